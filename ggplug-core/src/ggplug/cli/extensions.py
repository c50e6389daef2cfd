"""Commands that other distributions add."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import click

from ggplug.errors import PluginError
from ggplug.registry.discover import Installed, scan
from ggplug.registry.isolation import FaultError, HangError, within
from ggplug.registry.records import reason_of

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
        installed = self.installed
        cause: BaseException | None = None
        try:
            if installed.damage is not None or installed.entry_point is None:
                reason = installed.damage or "its metadata is damaged"
            else:
                found = within(patience, installed.name, installed.entry_point.load)
                if isinstance(found, click.Command):
                    return found
                reason = f"{installed.value} is not a click command but {type(found).__name__}"
        except HangError as error:
            reason = f"importing it takes too long: {error}"
        except FaultError as error:
            reason, cause = reason_of(error.cause), error.cause
        raise PluginError(
            f"the command {installed.name} of {installed.distribution} {installed.version} is unavailable: {reason}",
            entry_point=installed.name,
            distribution=installed.distribution,
            version=installed.version,
            stage="installed",
            reason=reason,
            remedy=f"pip install --upgrade {installed.distribution}",
        ) from cause


@cache
def extensions() -> dict[str, Extension]:
    """By command name.  Of several with one name the first counts; those of ggplug-core's extras come first."""
    found: dict[str, Extension] = {}
    for installed in scan(GROUP):
        found.setdefault(installed.name, Extension(installed))
    return found
