"""The command line: ``ggplug devices | doctor | gguf | cache | bench``, and what other distributions add.

A distribution adds a command by an entry point of the group ``ggplug.commands`` that names a click command::

    [project.entry-points."ggplug.commands"]
    embed = "ggplug_models.commands:embed"
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Runs ``ggplug`` with the given arguments (default: the process's) and exits."""
    from ggplug.cli.app import run

    sys.exit(run(args))
