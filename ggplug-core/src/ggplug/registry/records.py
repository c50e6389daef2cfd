"""What is known about a plugin: where it comes from, how far it got, and what went wrong."""

from __future__ import annotations

import enum
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ggplug.backend import Device, Registration
from ggplug.errors import DeviceNotFoundError, DuplicateNameError, GGPlugError, PluginError, in_one_line
from ggplug.registry.facts import DeviceFacts, RefusalError


class Stage(enum.Enum):
    """How far a plugin got."""

    INSTALLED = "installed"  #: known from metadata, nothing of it was imported
    LOADED = "loaded"  #: imported and registered, no hardware touched
    PROBED = "probed"  #: its devices are known, without a context or device memory
    INITIALISED = "initialised"  #: a stream on one of its devices was made
    COMPUTED = "computed"  #: its devices computed a tiny graph, and rightly; only the doctor tries that

    @property
    def action(self) -> str:
        """What was tried when a plugin did not get here."""
        return _ACTIONS[self]


_ACTIONS = {
    Stage.INSTALLED: "cannot be read",
    Stage.LOADED: "failed to load",
    Stage.PROBED: "failed to list its devices",
    Stage.INITIALISED: "failed to start a stream",
    Stage.COMPUTED: "failed to compute",
}
ASKING = "failed to say what its devices are"
"""What was tried between listing devices and starting streams on them."""


@dataclass(frozen=True)
class PluginStatus:
    """A plugin at a glance.

    ``name``: what it is reached by, ``distribution:entry_point`` if the plain name is taken.  ``source``: the object
    reference of the entry point, or a file.  ``stage``: how far it got.  ``ok``: nothing is wrong with it (a plugin
    that the user left out is fine too: then ``disabled`` says by what).  ``milliseconds``: all its stages together;
    ``stages``: each of them.  ``no_device``: why it found no device, if it said so; that is no failure.
    """

    name: str
    entry_point: str
    distribution: str | None
    version: str | None
    source: str
    stage: str
    ok: bool
    error: str | None = None
    remedy: str | None = None
    traceback: str | None = None
    disabled: str | None = None
    no_device: str | None = None
    devices: tuple[str, ...] = ()
    milliseconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The fields in the types that JSON has."""
        return {**self.__dict__, "devices": list(self.devices), "stages": dict(self.stages)}


@dataclass(frozen=True)
class Failure:
    """What a plugin failed to do, and why.  Kept, so that each request for it can raise the cause anew.

    ``slow``: it took longer than the time limit.
    """

    doing: str
    reason: str
    remedy: str
    cause: BaseException | None = None
    slow: bool = False

    @property
    def traceback(self) -> str | None:
        if self.cause is None or isinstance(self.cause, GGPlugError):
            return None
        return "".join(traceback.format_exception(self.cause))


@dataclass(eq=False)
class Plugin:
    """The registry's own record of a plugin.

    ``find``: imports it and returns the module or object that has its hooks; None for what was handed over ready made.
    ``lock`` is held by the thread that loads or probes it.
    """

    name: str
    source: str
    find: Callable[[], object] | None
    distribution: str | None = None
    version: str | None = None
    location: str = ""
    """Where it is installed, unlike the same plugin in another environment; empty if that is unknown."""
    top_level: str | None = None
    """The package whose import this is, so as not to wait for an import that the caller is in the middle of."""
    forget: Callable[[], None] = lambda: None
    """Undoes what ``find`` did to the process."""
    requires: str = ""
    """Which versions of ggplug-core its metadata requires."""
    api: int | None = None
    """The version of the interface that its metadata says it was written for."""
    file_name: str = ""
    """What it goes by until it is loaded, if it comes from a path."""
    explicit: bool = False
    """Handed over by the program, or loaded from a path; not found by itself."""
    brought_by: Plugin | None = None
    """The plugin that handed this one over while it was loaded."""

    stage: Stage = Stage.INSTALLED
    stages: dict[str, float] = field(default_factory=dict)
    object: Any = None
    registration: Registration | None = None
    backend: str = ""
    """The registration's own name; known when it is loaded."""
    facts: tuple[DeviceFacts, ...] = ()
    """Its devices, and what they state about themselves; known when it is probed."""
    failure: Failure | None = None
    duplicate: DuplicateNameError | None = None
    no_device: DeviceNotFoundError | None = None
    """Why it found no device."""
    disabled: str | None = None
    tried: bool = False
    """A child process found that it does not crash."""
    lock: Any = field(default_factory=threading.RLock)

    @property
    def devices(self) -> tuple[Device, ...]:
        return tuple(each.device for each in self.facts)

    @property
    def qualified(self) -> str:
        return f"{self.distribution}:{self.name}" if self.distribution else self.name

    @property
    def is_unnamed(self) -> bool:
        """Whether its backend's name is not known yet: a plugin from a path, before it is loaded."""
        return bool(self.file_name) and self.registration is None

    @property
    def reachable_as(self) -> str:
        return self.qualified if self.duplicate is not None else self.name

    @property
    def described(self) -> str:
        """``NAME of DISTRIBUTION VERSION``, for messages."""
        if self.distribution:
            return f"{self.name} of {self.distribution} {self.version or '(no version)'}"
        return f"{self.name} of {self.source}"

    def error(self) -> PluginError:
        """What went wrong, to be raised from ``failure.cause``."""
        assert self.failure is not None
        message = f"the plugin {self.described} {self.failure.doing}: {self.failure.reason}"
        return self.problem(message, self.failure.remedy)

    def problem(self, message: str, remedy: str, **more: Any) -> PluginError:
        """An error whose fields name this plugin."""
        fields = {"distribution": self.distribution, "version": self.version, "stage": self.stage.value}
        return PluginError(message, entry_point=self.name, **fields, remedy=remedy, **more)

    def status(self) -> PluginStatus:
        error, remedy = None, None
        if self.failure is not None:
            error, remedy = f"{self.failure.doing}: {self.failure.reason}", self.failure.remedy
        elif self.duplicate is not None:
            error, remedy = self.duplicate.message, self.duplicate.remedy
        elif self.no_device is not None:
            remedy = self.no_device.remedy
        return PluginStatus(
            name=self.reachable_as,
            entry_point=self.name,
            distribution=self.distribution,
            version=self.version,
            source=self.source,
            stage=self.stage.value,
            ok=error is None,
            error=error,
            remedy=remedy,
            traceback=self.failure.traceback if self.failure is not None else None,
            disabled=self.disabled,
            no_device=None if self.no_device is None else self.no_device.message,
            devices=tuple(each.name for each in self.facts),
            milliseconds=round(sum(self.stages.values()), 3),
            stages={stage: round(time, 3) for stage, time in self.stages.items()},
        )


def reason_of(error: BaseException) -> str:
    """Why a plugin failed, in one line, without the remedy."""
    if isinstance(error, GGPlugError):
        return str(error.message)
    return str(error) if isinstance(error, RefusalError) else in_one_line(error)
