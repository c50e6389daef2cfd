"""The command line: ``ggplug devices | doctor | gguf | cache | bench``, and what other distributions add.

A distribution adds a command by an entry point of the group ``ggplug.commands`` that names a click command::

    [project.entry-points."ggplug.commands"]
    embed = "ggplug_models.commands.embed:embed"

What it writes by ``print`` or ``click.echo`` goes to standard output.  If that is data for programs, use the class
:class:`ggplug.cli.output.Command` and write to :func:`ggplug.cli.streams.stdout`: then nothing else gets in between,
whatever plugins and libraries print.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Runs ``ggplug`` with the given arguments (default: the process's) and exits."""
    from ggplug.cli import streams

    streams.protect()
    from ggplug.cli.app import run
    from ggplug.registry import REGISTRY

    streams.leave(run(args), REGISTRY.settings.timeout)
