"""Commands that other distributions add."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import click

from ggplug.registry.discover import Installed, scan
from ggplug.registry.entry_points import imported, unavailable

GROUP = "ggplug.commands"


@dataclass(frozen=True)
class Extension:
    """An entry point of the group ``ggplug.commands``."""

    installed: Installed

    @property
    def distribution(self) -> str:
        return self.installed.distribution

    @property
    def version(self) -> str | None:
        return self.installed.version

    def load(self, patience: float = 0.0) -> click.Command:
        """The command.  ``patience``: seconds that importing it may take (0: no limit).  Raises PluginError."""
        what = f"the command {self.installed.name}"
        found = imported(self.installed, what, patience=patience)
        if not isinstance(found, click.Command):
            reason = f"{self.installed.value} is not a click command but {type(found).__name__}"
            raise unavailable(self.installed, what, reason)
        return found


@cache
def extensions() -> dict[str, Extension]:
    """By command name.  Of several with one name the first counts; those of ggplug-core's extras come first."""
    found: dict[str, Extension] = {}
    for installed in scan(GROUP):
        found.setdefault(installed.name, Extension(installed))
    return found
