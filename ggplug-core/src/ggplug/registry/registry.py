"""The registry: plugins from metadata to streams, each in isolation from the others."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ggplug.backend import API_VERSION, Backend, Device, DeviceProps, Registration
from ggplug.errors import GGPlugError, ParameterError, PluginError, in_one_line
from ggplug.hookspecs import Hooks
from ggplug.registry import naming
from ggplug.registry.catalog import LOADING, Catalog
from ggplug.registry.discover import Installed, Settings
from ggplug.registry.doctor import Trial, try_all
from ggplug.registry.facts import DeviceFacts, ask, check_device, check_registration, silent
from ggplug.registry.isolation import FaultError, HangError, all_within, within
from ggplug.registry.lifecycle import Lifecycle
from ggplug.registry.loading import plugins_in
from ggplug.registry.records import Plugin, PluginStatus, Stage, reason_of
from ggplug.types import DeviceKind

T = TypeVar("T")


class Description(NamedTuple):
    """A device at a glance.

    ``name``: what it is reached by.  ``props``: what it says of itself.  ``backend``, ``distribution``, ``version``:
    where it comes from.  ``same_as``: the name of the device that stands for the same hardware, if another one does.
    ``error``: why it says nothing of itself, if so.
    """

    name: str
    props: DeviceProps
    backend: str | None
    distribution: str | None
    version: str | None
    same_as: str | None
    error: str | None


class Registry:
    """Finds, loads and enumerates plugins, and explains those that fail.

    A plugin is loaded when a device of it is requested by name, or when all are (:meth:`devices`).  What fails is
    kept: :meth:`status` shows it, and asking for its devices raises its cause again.  May be used by several threads at
    once; the code of plugins runs without any lock but the plugin's own.

    ``plugins``: what is installed (default: what the entry points say).  ``settings``: default from the environment,
    read when the registry is used first.  ``hooks``: where plugins' hooks are registered (default: hooks of this
    registry).
    """

    def __init__(
        self,
        plugins: Iterable[Installed] | None = None,
        *,
        settings: Settings | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.hooks = hooks if hooks is not None else Hooks()
        self.catalog = Catalog(plugins, settings)
        self.lifecycle = Lifecycle(self.catalog, self.hooks)
        self._combined: dict[tuple[Device, ...], Device] = {}

    @property
    def settings(self) -> Settings:
        """What the environment says, as it was when the registry was used first."""
        return self.catalog.settings

    # -- listing ----------------------------------------------------------------------------------

    def load_all(self) -> list[Registration]:
        """Loads every plugin that is installed or in GGPLUG_BACKEND_PATH (ggml_backend_load_all).

        Those that fail are logged and kept in :meth:`failures`; nothing is raised.  Returns what is loaded, in
        priority order.
        """
        self._take(self.catalog.usable(), self.lifecycle.load)
        return [p.registration for p in self.catalog.usable() if p.registration is not None]

    def registrations(self) -> list[Registration]:
        """All backends, in priority order (ggml_backend_reg_get)."""
        return self.load_all()

    def registration(self, name: str) -> Registration:
        """The backend of that name; loads only its plugin (ggml_backend_reg_by_name).

        Raises PluginError with the cause if it fails, DeviceNotFoundError if there is none.
        """
        return self.lifecycle.load(self.catalog.require(name))

    def devices(self, *, unique: bool = True) -> list[Device]:
        """All devices of all plugins, in priority order (ggml_backend_dev_get).

        By kind (GPU, IGPU, ACCEL, CPU), or by GGPLUG_BACKENDS where that is set.  ``unique``: hardware that several
        backends show is listed once, for the first of them.
        """
        return [each.device for each in self._listed(unique=unique)]

    def devices_by_kind(self, kind: DeviceKind | str, *, unique: bool = True) -> list[Device]:
        """The devices of one kind, in priority order (ggml_backend_dev_by_type)."""
        wanted = _kind(kind)
        return [each.device for each in self._listed(unique=unique) if each.kind is wanted]

    def device(self, name: str) -> Device:
        """The device of that name, in any case (ggml_backend_dev_by_name).

        Loads only the plugin whose name the device's name begins with.  ``distribution:name`` reaches a plugin whose
        name others have too.

        Raises PluginError with the cause if that plugin failed, DuplicateNameError if several have the name, and
        DeviceNotFoundError otherwise, whose message lists the devices.
        """
        plain = naming.split_name(name)[1].casefold()
        for find in (self.catalog.plugins, self._of_paths):
            candidates = [p for p in find() if p.disabled is None and p not in LOADING.get()]
            for plugin in naming.owners(candidates, name):
                try:
                    self.lifecycle.probe(plugin)
                except PluginError:
                    if naming.is_whole(plugin, name):
                        raise
                    continue
                for each in plugin.facts:
                    if each.name.casefold() == plain:
                        return each.device
        if "+" in name:
            from ggplug.combined import CombinedDevice  # only where a device of several is named

            members = tuple(map(self.device, name.split("+")))
            return self._combined.get(members) or self._combined.setdefault(members, CombinedDevice(members))
        raise naming.not_found(f"no device {name!r:.100}", name, self.catalog.plugins())

    def name_of(self, device: Device) -> str:
        """The name by which :meth:`device` finds it: with its distribution if the plain name is not enough."""
        plugin, facts = self._known(device)
        if plugin is None or facts is None:
            return device.name
        return facts.name if plugin.duplicate is None else f"{plugin.distribution}:{facts.name}"

    def distribution_of(self, device: Device) -> str | None:
        """The distribution that the device comes from; None if it was handed over by the program."""
        plugin = self.catalog.owner(device)
        return None if plugin is None else plugin.distribution

    def describe(self, *, unique: bool = True) -> list[Description]:
        """What all devices say of themselves now, in the order of :meth:`devices`; all in parallel.

        One that does not answer within the time limit, fails or answers nonsense is described as it was listed, with
        the ``error``.
        """
        listed = self._listed(unique=unique)
        owners = filter(None, {self.catalog.owner(each.device) for each in listed})
        with self.lifecycle.crashes.during(Stage.PROBED, *owners):
            answers = all_within(self.settings.timeout, {n: partial(ask, each) for n, each in enumerate(listed)})
        return [self._describe(each, answers[n]) for n, each in enumerate(listed)]

    def _describe(self, facts: DeviceFacts, answer: DeviceProps | HangError | FaultError) -> Description:
        props, error = silent(facts), None
        if isinstance(answer, DeviceProps):
            props = answer
        else:
            error = reason_of(answer.cause) if isinstance(answer, FaultError) else str(answer)
        plugin, same = self.catalog.owner(facts.device), self.same_as(facts.device)
        return Description(
            name=self.name_of(facts.device),
            props=props,
            backend=None if plugin is None else plugin.backend or None,
            distribution=None if plugin is None else plugin.distribution,
            version=None if plugin is None else plugin.version,
            same_as=None if same is None else self.name_of(same),
            error=error,
        )

    def same_as(self, device: Device) -> Device | None:
        """The device that stands for the same hardware in :meth:`devices`, or None if that is this one."""
        _, facts = self._known(device)
        if facts is None or facts.device_id is None:
            return None
        first = next((each.device for each in self._listed() if each.hardware == facts.hardware), device)
        return None if first is device else first

    def _listed(self, *, unique: bool = True) -> list[DeviceFacts]:
        self._take(self.catalog.usable(), self.lifecycle.probe)
        found = naming.in_order(self.catalog.usable(), self.settings)
        if not unique:
            return found
        first: dict[object, DeviceFacts] = {}
        for each in found:
            first.setdefault(each.hardware, each)
        return list(first.values())

    def _known(self, device: Device) -> tuple[Plugin | None, DeviceFacts | None]:
        """The plugin that a device belongs to, and what it stated when it was listed."""
        plugin = self.catalog.owner(device)
        if plugin is None:
            return None, None
        return plugin, next(each for each in plugin.facts if each.device is device)

    def status(self) -> list[PluginStatus]:
        """Every plugin there is: how far it got, how long that took, what went wrong.  Loads nothing."""
        return [plugin.status() for plugin in self.catalog.plugins()]

    def failures(self) -> list[PluginStatus]:
        """The plugins with which something is wrong, as far as is known now."""
        return [status for status in self.status() if not status.ok]

    # -- streams -----------------------------------------------------------------------------------

    def init_by_name(self, name: str, **params: Any) -> Backend:
        """A new stream on the device of that name (ggml_backend_init_by_name).

        ``params`` are the device's own.  Raises as :meth:`device` does; there is no other device in its stead.
        """
        return self._init(self.device(name), params)

    def init_by_kind(self, kind: DeviceKind | str, **params: Any) -> Backend:
        """A new stream on the first device of a kind (ggml_backend_init_by_type).

        Raises DeviceNotFoundError if there is none.
        """
        wanted = _kind(kind)
        found = self.devices_by_kind(wanted)
        if not found:
            raise self.catalog.nothing(f"no device of the kind {wanted.name}")
        return self._init(found[0], params)

    def init_best(self, **params: Any) -> Backend:
        """A new stream on the best device (ggml_backend_init_best).

        That is the first GPU, else IGPU, else CPU; an ACCEL never, since it does not run whole graphs.  Where
        GGPLUG_BACKENDS is set, the first device in its order counts.  Raises DeviceNotFoundError if there is none.
        """
        return self._init(self.best(), params)

    def best(self) -> Device:
        """The device that :meth:`init_best` chooses.  Raises DeviceNotFoundError if there is none."""
        found = next((each.device for each in self._listed() if each.kind is not DeviceKind.ACCEL), None)
        if found is None:
            raise self.catalog.nothing("no device that runs whole graphs")
        return found

    # -- plugins by hand ---------------------------------------------------------------------------

    def load(self, path: str | os.PathLike[str]) -> Registration:
        """Loads a plugin from a ``.py`` file or a package folder, or an installed one by its name (ggml_backend_load).

        Loading what is loaded gives it again; loading what failed tries again.  Raises PluginError with the cause.
        """
        while True:
            plugin = self.catalog.named(path) if isinstance(path, str) else None
            if plugin is None:
                plugin = self.catalog.at(Path(path))
            with plugin.lock:
                if not self.catalog.holds(plugin):
                    continue  # another thread has unloaded it just now
                if plugin.disabled == "unload":
                    plugin.disabled = None
                if plugin.disabled is not None:
                    message = f"the plugin {plugin.described} is left out by {plugin.disabled}"
                    raise plugin.problem(message, f"change {plugin.disabled} to use it")
                if plugin.failure is not None and plugin.find is not None:
                    self.lifecycle.reset(plugin)
                    self.lifecycle.consult([plugin], again=True)
                return self.lifecycle.load(plugin)

    def load_all_from_path(self, folder: str | os.PathLike[str]) -> list[Registration]:
        """Loads every ``.py`` file and package directly in a folder (ggml_backend_load_all_from_path).

        Those that fail are logged and kept in :meth:`failures`.  Raises PluginError if there is no such folder.
        """
        try:
            paths = plugins_in(Path(folder))
        except OSError as error:
            raise PluginError(f"cannot read the plugins in {folder}: {error.strerror or error}") from error
        found = [self.catalog.at(path) for path in paths]
        self._take(found, self.lifecycle.load)
        return [plugin.registration for plugin in found if plugin.registration is not None]

    def unload(self, name: str) -> None:
        """Forgets a plugin and its devices, or its failure, until it is loaded by name again (ggml_backend_unload).

        Streams and buffers that are in use stay usable.  Raises DeviceNotFoundError if there is no such plugin.
        """
        plugin = self.catalog.require(name, left_out=True)
        with plugin.lock:
            self.lifecycle.reset(plugin)
            self.catalog.leave_out(plugin)

    def register(self, registration: Registration) -> Registration:
        """Adds a backend that the program brings itself (ggml_backend_register).  The same one again is no error.

        Raises PluginError if it does not fit the interface, DuplicateNameError if its name is taken.
        """
        facts = _accepted("backend", lambda: check_registration(registration))
        plugin = Plugin(facts.name, type(registration).__module__, None, explicit=True)
        plugin.version, plugin.backend = facts.version, facts.name
        plugin.registration, plugin.stage = registration, Stage.LOADED
        self.catalog.hand_over(plugin)
        return registration

    def register_device(self, device: Device) -> Device:
        """Adds a single device that the program brings itself (ggml_backend_device_register).

        Raises PluginError if it does not fit the interface, DuplicateNameError if its name is taken.
        """
        facts = _accepted("device", lambda: check_device(device))
        single = _SingleDevice(device, facts.name)
        plugin = Plugin(facts.name, type(device).__module__, None, explicit=True)
        plugin.registration, plugin.facts, plugin.stage = single, (facts,), Stage.PROBED
        plugin.backend, plugin.version = single.name, single.version
        self.catalog.hand_over(plugin)
        if device.registration is None:
            device.registration = single
        return device

    # -- finding out -------------------------------------------------------------------------------

    def doctor(self, names: Sequence[str] | None = None) -> list[PluginStatus]:
        """Tries every plugin in a child process, up to a tiny computation on each of its devices.

        Reports what works, what does not, and why.  ``names``: only these plugins (default all).  A plugin that crashes
        or hangs is a finding like any other.  What the program itself handed over is reported as it is in this process.
        Raises DeviceNotFoundError for an unknown name.
        """
        if names is None:
            chosen = self.catalog.plugins()
        else:
            chosen = [self.catalog.require(name, left_out=True) for name in names]
        trials = try_all(chosen, self.settings.timeout or Settings.timeout)
        return [self._finding(plugin, trial) for plugin, trial in zip(chosen, trials, strict=True)]

    def _finding(self, plugin: Plugin, trial: Trial) -> PluginStatus:
        failure = self.lifecycle.judge(plugin, trial)
        if trial.crash is None:
            return trial.status
        remedy = f"a fault of the plugin or its driver; GGPLUG_DISABLE={plugin.qualified} leaves it out"
        return dataclasses.replace(
            trial.status,
            ok=False,
            error=f"{trial.doing}: {trial.crash}",
            remedy=failure.remedy if failure else remedy,
            traceback=trial.details or None,
        )

    # -- inside ------------------------------------------------------------------------------------

    def _of_paths(self) -> list[Plugin]:
        """The plugins of GGPLUG_BACKEND_PATH, loaded, because only then their names are known."""
        found = [plugin for plugin in self.catalog.usable() if plugin.file_name and not plugin.explicit]
        self._take(found, self.lifecycle.load)
        return found

    def _take(self, plugins: Sequence[Plugin], step: Callable[[Plugin], object]) -> None:
        """Takes plugins through a step; a failure is logged and kept in the plugin."""
        self.lifecycle.consult(plugins)
        for plugin in plugins:
            if plugin.failure is None:
                with contextlib.suppress(PluginError):
                    step(plugin)

    def _init(self, device: Device, params: dict[str, Any]) -> Backend:
        plugin = self.catalog.owner(device)
        start = time.perf_counter()
        try:
            with self.lifecycle.crashes.during(Stage.INITIALISED, *filter(None, [plugin])):
                stream = device.init(**params)
        except GGPlugError:
            raise
        except Exception as error:
            message = f"{device.name} failed to start a stream: {in_one_line(error)}"
            if plugin is None:
                raise PluginError(message, device=device) from error
            raise plugin.problem(message, "`ggplug doctor` shows more", device=device) from error
        if plugin is not None:
            plugin.stage = Stage.INITIALISED
            plugin.stages.setdefault(Stage.INITIALISED.value, (time.perf_counter() - start) * 1e3)
        return stream


class _SingleDevice(Registration):
    """What a device that was registered alone belongs to."""

    api_version = API_VERSION

    def __init__(self, device: Device, name: str) -> None:
        self.name = name
        self._device = device

    def devices(self) -> Sequence[Device]:
        return (self._device,)


def _accepted(what: str, check: Callable[[], T]) -> T:
    """What the program hands over, checked.  Raises PluginError."""
    try:
        return within(0, what, check)
    except FaultError as fault:
        remedy = getattr(fault.cause, "remedy", None)
        raise PluginError(f"cannot register this {what}: {reason_of(fault.cause)}", remedy=remedy) from fault.cause


def _kind(kind: DeviceKind | str) -> DeviceKind:
    if isinstance(kind, DeviceKind):
        return kind
    try:
        return DeviceKind(kind.lower())
    except ValueError:
        names = ", ".join(k.value for k in DeviceKind)
        raise ParameterError(f"{kind!r} is no kind of device; there are {names}", got=kind) from None
