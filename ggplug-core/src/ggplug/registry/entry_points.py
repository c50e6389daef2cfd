"""Objects that entry points of other distributions name: commands, ops, architectures of models."""

from __future__ import annotations

from typing import Any

from ggplug.errors import PluginError
from ggplug.registry.discover import Installed, Settings
from ggplug.registry.isolation import FaultError, HangError, within
from ggplug.registry.loading import importing
from ggplug.registry.records import reason_of


def imported(installed: Installed, what: str, *, patience: float | None = None) -> Any:
    """The object that an entry point names.

    ``what``: for messages, such as ``the command run``.  ``patience``: seconds that importing it may take (0: no limit;
    default: GGPLUG_LOAD_TIMEOUT).  Raises PluginError.
    """
    if importing(installed.value.partition(":")[0].partition(".")[0]):
        patience = 0.0
    elif patience is None:
        patience = Settings.from_environment().timeout
    cause: BaseException | None = None
    try:
        if installed.damage is None and installed.entry_point is not None:
            return within(patience, installed.name, installed.entry_point.load)
        reason = installed.damage or "its metadata is damaged"
    except HangError as error:
        reason = f"importing it takes too long: {error}"
    except FaultError as error:
        reason, cause = reason_of(error.cause), error.cause
    raise unavailable(installed, what, reason) from cause


def unavailable(installed: Installed, what: str, reason: str) -> PluginError:
    """The error for an entry point that cannot be used."""
    return PluginError(
        f"{what} of {installed.distribution} {installed.version} is unavailable: {reason}",
        entry_point=installed.name,
        distribution=installed.distribution,
        version=installed.version,
        stage="installed",
        reason=reason,
        remedy=f"pip install --upgrade {installed.distribution}",
    )
