"""The registry in this process: what plugins are, what they are called, and what happens to those that fail."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import ggplug as gg
from ggplug.backend import API_VERSION, BufferType, Device, Memory, Registration
from ggplug.errors import DeviceNotFoundError, DuplicateNameError, ParameterError, PluginError
from ggplug.hookspecs import Hooks, hookimpl
from ggplug.host import HOST
from ggplug.registry.discover import Installed, Settings, fits, restriction, version_of
from ggplug.registry.records import PluginStatus
from ggplug.registry.registry import Registry
from ggplug.types import DeviceKind


class PaperDevice(Device):
    def __init__(self, name: str, kind: DeviceKind = DeviceKind.GPU, device_id: str | None = None) -> None:
        self.name, self.kind, self.device_id = name, kind, device_id
        self.description = "a device on paper"

    def memory(self) -> Memory:
        return Memory(1, 2)

    @property
    def buffer_type(self) -> BufferType:
        return HOST


class PaperBackend(Registration):
    api_version = API_VERSION

    def __init__(self, name: str, *devices: Device) -> None:
        self.name = name
        self.given = devices
        self.probes = 0

    def devices(self) -> tuple[Device, ...]:
        self.probes += 1
        return self.given


def plugin_object(registration: Any) -> SimpleNamespace:
    @hookimpl
    def ggplug_backend_registration() -> Any:
        return registration

    return SimpleNamespace(ggplug_backend_registration=ggplug_backend_registration)


class Shelf:
    """Plugins as if they were installed; ``imported`` notes whose code ran."""

    def __init__(self) -> None:
        self.installed: list[Installed] = []
        self.imported: list[str] = []

    def add(
        self,
        name: str,
        load: Any = None,
        *,
        distribution: str = "",
        listed: bool = False,
        requires: str = "",
        api: int | None = None,
    ) -> None:
        distribution = distribution or f"paper-{name.lower()}"

        def find() -> Any:
            self.imported.append(f"{distribution}:{name}")
            return load() if callable(load) and not isinstance(load, SimpleNamespace) else load

        if load is None:
            load = plugin_object(PaperBackend(name, PaperDevice(f"{name}0")))
        point: Any = SimpleNamespace(load=find)
        self.installed.append(
            Installed(name, f"paper_{name.lower()}", distribution, "1.2", requires, listed, point, api=api)
        )

    def registry(self, **settings: Any) -> Registry:
        return Registry(self.installed, settings=Settings(**{"timeout": 5.0, **settings}))


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.CRITICAL, "ggplug"):
        yield


def status_of(registry: Registry, entry_point: str) -> PluginStatus:
    (found,) = [s for s in registry.status() if s.entry_point == entry_point]
    return found


# -- finding and loading ---------------------------------------------------------------------------


def test_asking_for_a_device_loads_its_plugin_alone(shelf: Shelf) -> None:
    for name in ("NPU", "TPU", "N"):
        shelf.add(name)
    registry = shelf.registry()
    assert registry.device("NPU0").name == "NPU0"
    assert shelf.imported == ["paper-npu:NPU"]


def test_device_names_are_found_in_any_case_and_are_always_the_same_object(shelf: Shelf) -> None:
    shelf.add("NPU")
    registry = shelf.registry()
    assert registry.device("npu0") is registry.device("NPU0") is registry.devices()[0]


def test_each_plugin_is_loaded_and_probed_once(shelf: Shelf) -> None:
    backend = PaperBackend("NPU", PaperDevice("NPU0"))
    shelf.add("NPU", plugin_object(backend))
    registry = shelf.registry()
    for _ in range(3):
        registry.devices()
        registry.load_all()
        registry.device("NPU0")
    assert shelf.imported == ["paper-npu:NPU"]
    assert backend.probes == 1


def test_status_lists_the_stages_that_a_plugin_went_through(shelf: Shelf) -> None:
    shelf.add("NPU")
    registry = shelf.registry()
    stages = [status_of(registry, "NPU").stage]
    registry.load_all()
    stages.append(status_of(registry, "NPU").stage)
    registry.devices()
    stages.append(status_of(registry, "NPU").stage)
    registry.init_by_name("NPU0").free()
    last = status_of(registry, "NPU")
    assert [*stages, last.stage] == ["installed", "loaded", "probed", "initialised"]
    assert list(last.stages) == ["loaded", "probed", "initialised"]
    assert last.milliseconds == pytest.approx(sum(last.stages.values()), abs=0.01)
    assert (last.ok, last.devices, last.distribution, last.version) == (True, ("NPU0",), "paper-npu", "1.2")


def test_loading_touches_no_device(shelf: Shelf) -> None:
    backend = PaperBackend("NPU", PaperDevice("NPU0"))
    shelf.add("NPU", plugin_object(backend))
    assert shelf.registry().load_all() == [backend]
    assert backend.probes == 0


def test_a_device_belongs_to_its_registration(shelf: Shelf) -> None:
    shelf.add("NPU")
    registry = shelf.registry()
    assert registry.device("NPU0").registration is registry.registration("NPU")


def test_an_unknown_device_is_answered_with_what_there_is_and_what_comes_close(shelf: Shelf) -> None:
    shelf.add("NPU")
    shelf.add("Other")
    registry = shelf.registry()
    with pytest.raises(DeviceNotFoundError, match=r"no device 'NPU1'.*mean NPU0.*not loaded yet: Other") as caught:
        registry.device("NPU1")
    assert isinstance(caught.value, LookupError)
    assert shelf.imported == ["paper-npu:NPU"]


def test_a_plugin_without_devices_is_no_failure(shelf: Shelf) -> None:
    shelf.add("NPU", plugin_object(PaperBackend("NPU")))
    registry = shelf.registry()
    assert registry.devices() == []
    assert registry.failures() == []
    with pytest.raises(DeviceNotFoundError, match="plugins that found no device: NPU"):
        registry.device("NPU0")


def test_a_plugin_may_say_why_it_has_no_device(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    class Nothing(PaperBackend):
        def devices(self) -> tuple[Device, ...]:
            super().devices()
            raise DeviceNotFoundError("no NPU is plugged in", remedy="plug one in")

    nothing = Nothing("NPU")
    shelf.add("NPU", plugin_object(nothing))
    shelf.add("Other")
    registry = shelf.registry()
    assert [device.name for device in registry.devices()] == ["Other0"]
    assert registry.failures() == []
    assert caplog.messages == []
    status = next(status for status in registry.status() if status.name == "NPU")
    assert (status.ok, status.stage, status.error) == (True, "probed", None)
    assert (status.no_device, status.remedy) == ("no NPU is plugged in", "plug one in")
    with pytest.raises(DeviceNotFoundError, match=r"found no device: NPU \(no NPU is plugged in\)") as caught:
        registry.device("NPU0")
    assert caught.value.remedy == "plug one in"
    with pytest.raises(DeviceNotFoundError) as caught:
        registry.device("Another0")
    assert caught.value.remedy != "plug one in"
    assert nothing.probes == 1


def test_hooks_next_to_the_registration_are_called_once_the_plugin_is_loaded(shelf: Shelf) -> None:
    seen: list[str] = []
    both = plugin_object(PaperBackend("NPU"))

    @hookimpl
    def ggplug_nodes_timed(device: Any) -> None:
        seen.append(device)

    both.ggplug_nodes_timed = ggplug_nodes_timed
    shelf.add("NPU", both)
    registry = shelf.registry()
    assert "ggplug_nodes_timed" not in registry.hooks.callers
    registry.load_all()
    registry.hooks.notify("ggplug_nodes_timed", graph=None, device="it", times=[])
    registry.unload("NPU")
    assert "ggplug_nodes_timed" not in registry.hooks.callers
    assert seen == ["it"]


# -- order -----------------------------------------------------------------------------------------


def test_devices_come_by_kind_and_the_cpu_last(shelf: Shelf) -> None:
    kinds = [DeviceKind.CPU, DeviceKind.ACCEL, DeviceKind.GPU, DeviceKind.IGPU]
    for position, kind in enumerate(kinds):
        shelf.add(f"P{position}", plugin_object(PaperBackend(f"P{position}", PaperDevice(f"P{position}", kind))))
    registry = shelf.registry()
    assert [d.kind.value for d in registry.devices()] == ["gpu", "igpu", "accel", "cpu"]
    assert [d.name for d in registry.devices_by_kind("igpu")] == ["P3"]
    assert registry.init_best().device.kind is DeviceKind.GPU
    assert registry.init_by_kind(DeviceKind.ACCEL).device.name == "P1"


def test_the_allow_list_is_the_order_of_priority(shelf: Shelf) -> None:
    for name, kind in (("GPU", DeviceKind.GPU), ("CPU", DeviceKind.CPU), ("Third", DeviceKind.GPU)):
        shelf.add(name, plugin_object(PaperBackend(name, PaperDevice(name, kind))))
    registry = shelf.registry(allowed=("cpu", "GPU"))
    assert [d.name for d in registry.devices()] == ["CPU", "GPU"]
    assert registry.init_best().device.name == "CPU"
    assert "paper-third:Third" not in shelf.imported
    assert status_of(registry, "Third").disabled == "GGPLUG_BACKENDS"
    with pytest.raises(DeviceNotFoundError, match=r"Third .by GGPLUG_BACKENDS"):
        registry.device("Third")


def test_a_name_in_the_allow_list_that_nobody_has_is_a_finding(shelf: Shelf) -> None:
    shelf.add("NPU")
    registry = shelf.registry(allowed=("NPU", "NUP"))
    (failure,) = registry.failures()
    assert (failure.entry_point, failure.source) == ("NUP", "GGPLUG_BACKENDS")


def test_an_accelerator_is_never_the_best_device(shelf: Shelf) -> None:
    shelf.add("Blas", plugin_object(PaperBackend("Blas", PaperDevice("Blas", DeviceKind.ACCEL))))
    with pytest.raises(DeviceNotFoundError, match="no device that runs whole graphs; devices: Blas"):
        shelf.registry().init_best()
    with pytest.raises(DeviceNotFoundError, match="no device of the kind GPU"):
        shelf.registry().init_by_kind("gpu")
    with pytest.raises(ParameterError, match="no kind of device"):
        shelf.registry().init_by_kind("fpga")


def test_hardware_that_two_backends_show_is_scheduled_once(shelf: Shelf) -> None:
    for name in ("A", "B"):
        devices = [PaperDevice(f"{name}{i}", device_id=f"0000:0{i}:00.0") for i in range(2)]
        shelf.add(name, plugin_object(PaperBackend(name, *devices)))
    registry = shelf.registry(allowed=("B", "A"))
    assert [d.name for d in registry.devices()] == ["B0", "B1"]
    assert [d.name for d in registry.devices(unique=False)] == ["B0", "B1", "A0", "A1"]
    assert registry.same_as(registry.device("A1")) is registry.device("B1")
    assert registry.same_as(registry.device("B1")) is None


# -- failures --------------------------------------------------------------------------------------


class HalfDevice(PaperDevice):
    def __init__(self) -> None:
        self.name = "Bad0"


class NoApiVersion(PaperBackend):
    api_version = None  # type: ignore[assignment]


class OtherApiVersion(PaperBackend):
    api_version = 99


def raising(error: BaseException) -> Callable[[], Any]:
    def load() -> Any:
        raise error

    return load


def unmarked() -> Any:
    return SimpleNamespace(ggplug_backend_registration=lambda: PaperBackend("Bad"))


FAULTS: dict[str, tuple[Any, str, str]] = {
    "missing module": (raising(ModuleNotFoundError("No module named 'bad_dep'", name="bad_dep")), "loaded", "bad_dep"),
    "missing library": (raising(OSError("libbad.so: cannot open shared object file")), "loaded", "OSError: libbad.so"),
    "exit": (raising(SystemExit(3)), "loaded", "SystemExit: 3"),
    "any exception": (raising(ZeroDivisionError("division by zero")), "loaded", "ZeroDivisionError"),
    "no hook": (SimpleNamespace(), "loaded", "no function ggplug_backend_registration"),
    "unmarked hook": (unmarked(), "loaded", "not marked with @ggplug.hookspecs.hookimpl"),
    "wrong return": (plugin_object("a backend"), "loaded", "returned str 'a backend', not a ggplug Registration"),
    "nothing returned": (plugin_object(None), "loaded", "returned None"),
    "no api version": (plugin_object(NoApiVersion("Bad")), "loaded", "states no api_version"),
    "other api version": (plugin_object(OtherApiVersion("Bad")), "loaded", "api_version 99"),
    "other name": (plugin_object(PaperBackend("Good")), "loaded", "'Bad' and its registration 'Good'"),
    "devices that are none": (plugin_object(PaperBackend("Bad", cast(Any, 1))), "probed", "int 1 is among the devices"),
    "half a device": (plugin_object(PaperBackend("Bad", HalfDevice())), "probed", "Bad0 has the description None"),
    "foreign device name": (plugin_object(PaperBackend("Bad", PaperDevice("NPU0"))), "probed", "does not begin with"),
    "twins": (plugin_object(PaperBackend("Bad", PaperDevice("Bad"), PaperDevice("bad"))), "probed", "two devices"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_plugin_that_fails_leaves_others_alone_and_says_why(shelf: Shelf, fault: str) -> None:
    load, stage, cause = FAULTS[fault]
    shelf.add("Bad", load)
    shelf.add("NPU")
    registry = shelf.registry()
    assert [d.name for d in registry.devices()] == ["NPU0"]
    (failure,) = registry.failures()
    assert (failure.entry_point, failure.distribution, failure.version) == ("Bad", "paper-bad", "1.2")
    assert cause in (failure.error or "")
    assert failure.remedy
    assert failure.stage == {"loaded": "installed", "probed": "loaded"}[stage]
    for _ in range(2):
        with pytest.raises(PluginError, match=r"Bad of paper-bad 1\.2") as caught:
            registry.device("Bad0")
        assert caught.value.distribution == "paper-bad"
        assert caught.value.version == "1.2"
        assert caught.value.stage == failure.stage
        assert caught.value.remedy == failure.remedy
    assert shelf.imported.count("paper-bad:Bad") == 1


def test_the_cause_of_a_failure_is_raised_again_each_time(shelf: Shelf) -> None:
    error = OSError("no driver")
    shelf.add("Bad", raising(error))
    registry = shelf.registry()
    for _ in range(2):
        with pytest.raises(PluginError) as caught:
            registry.init_by_name("Bad0")
        assert caught.value.__cause__ is error
    assert "OSError: no driver" in (status_of(registry, "Bad").traceback or "")


def test_a_failing_plugin_leaves_no_hook_and_no_device_behind(shelf: Shelf) -> None:
    bad = plugin_object(None)
    bad.ggplug_nodes_timed = hookimpl(lambda: None)
    bad.ggplug_nodes_timed.__name__ = "ggplug_nodes_timed"
    shelf.add("Bad", bad)
    registry = shelf.registry()
    registry.load_all()
    assert [status.entry_point for status in registry.failures()] == ["Bad"]
    assert "ggplug_nodes_timed" not in registry.hooks.callers


def test_what_a_plugin_registered_before_it_failed_goes_with_it(shelf: Shelf) -> None:
    registry: Registry

    def half() -> Any:
        registry.register_device(PaperDevice("Half0"))
        registry.register(PaperBackend("Halves", PaperDevice("Halves0")))
        raise ImportError("and then it broke")

    shelf.add("Bad", half)
    shelf.add("NPU")
    registry = shelf.registry()
    assert [d.name for d in registry.devices(unique=False)] == ["NPU0"]
    assert [s.entry_point for s in registry.status()] == ["Bad", "NPU"]


def test_a_hook_that_does_not_fit_is_refused(shelf: Shelf) -> None:
    bad = plugin_object(PaperBackend("Bad"))

    @hookimpl
    def ggplug_nodes_timed(no_such_argument: Any) -> None: ...

    bad.ggplug_nodes_timed = ggplug_nodes_timed
    shelf.add("Bad", bad)
    registry = shelf.registry()
    with pytest.raises(PluginError, match="no_such_argument"):
        registry.registration("Bad")


def test_a_plugin_that_hangs_is_abandoned_and_may_not_register_later(shelf: Shelf) -> None:
    go_on, late = threading.Event(), threading.Event()
    registry: Registry
    raised: list[Exception] = []

    def hang() -> Any:
        go_on.wait()
        try:
            registry.register_device(PaperDevice("Late0"))
        except PluginError as error:
            raised.append(error)
        late.set()

    shelf.add("Bad", hang)
    shelf.add("NPU")
    registry = shelf.registry(timeout=0.05)
    assert [d.name for d in registry.devices()] == ["NPU0"]
    (failure,) = registry.failures()
    assert "no answer within 0.05 seconds" in (failure.error or "")
    assert "GGPLUG_LOAD_TIMEOUT" in (failure.remedy or "")
    go_on.set()
    assert late.wait(5)
    assert len(raised) == 1
    assert [d.name for d in registry.devices()] == ["NPU0"]


def test_a_device_list_that_hangs_is_abandoned_too(shelf: Shelf) -> None:
    go_on = threading.Event()

    class Slow(PaperBackend):
        def devices(self) -> tuple[Device, ...]:
            go_on.wait()
            return ()

    shelf.add("Bad", plugin_object(Slow("Bad")))
    registry = shelf.registry(timeout=0.05)
    assert registry.devices() == []
    go_on.set()
    assert "failed to list its devices" in (status_of(registry, "Bad").error or "")


def test_ctrl_c_while_a_plugin_is_loaded_passes_through_and_nothing_failed(shelf: Shelf) -> None:
    answers: list[Any] = [KeyboardInterrupt(), plugin_object(PaperBackend("NPU", PaperDevice("NPU0")))]

    def load() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    shelf.add("NPU", load)
    registry = shelf.registry(timeout=0.0)  # in this thread, which is the one that Ctrl-C interrupts
    with pytest.raises(KeyboardInterrupt):
        registry.devices()
    assert registry.failures() == []
    assert [d.name for d in registry.devices()] == ["NPU0"]


def test_a_plugin_that_raises_what_ctrl_c_raises_has_failed(shelf: Shelf) -> None:
    def load() -> Any:
        raise KeyboardInterrupt

    shelf.add("NPU", load)
    shelf.add("CPU", plugin_object(PaperBackend("CPU", PaperDevice("CPU0"))))
    registry = shelf.registry()
    assert [d.name for d in registry.devices()] == ["CPU0"]
    assert "KeyboardInterrupt" in (status_of(registry, "NPU").error or "")


def test_a_plugin_that_asks_for_its_own_device_while_it_loads_fails_at_once(shelf: Shelf) -> None:
    registry: Registry

    def load() -> Any:
        registry.registration("Bad")

    shelf.add("Bad", load)
    registry = shelf.registry()
    with pytest.raises(PluginError, match="asked ggplug for itself"):
        registry.registration("Bad")


def test_a_plugin_may_ask_for_the_devices_of_others_while_it_loads(shelf: Shelf) -> None:
    registry: Registry
    seen: list[str] = []

    def load() -> Any:
        seen.extend(d.name for d in registry.devices())
        return plugin_object(PaperBackend("Layer", PaperDevice("Layer0")))

    shelf.add("Layer", load)
    shelf.add("NPU")
    registry = shelf.registry()
    assert [d.name for d in registry.devices()] == ["Layer0", "NPU0"]
    assert seen == ["NPU0"]


def test_threads_that_ask_at_once_get_the_same_device_from_one_load(shelf: Shelf) -> None:
    ready = threading.Barrier(8)

    def load() -> Any:
        return plugin_object(PaperBackend("NPU", PaperDevice("NPU0")))

    shelf.add("NPU", load)
    registry = shelf.registry()
    found: list[Device] = []

    def ask() -> None:
        ready.wait()
        found.append(registry.device("NPU0"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert shelf.imported == ["paper-npu:NPU"]


def test_a_stream_that_fails_to_start_names_the_plugin(shelf: Shelf) -> None:
    class NoStream(PaperDevice):
        def init(self, **params: Any) -> Any:
            raise RuntimeError("too old")

    shelf.add("NPU", plugin_object(PaperBackend("NPU", NoStream("NPU0"))))
    with pytest.raises(PluginError, match="NPU0 failed to start a stream: RuntimeError: too old") as caught:
        shelf.registry().init_by_name("NPU0")
    assert caught.value.distribution == "paper-npu"


# -- the versions in a distribution's metadata -----------------------------------------------------


@pytest.mark.parametrize(
    ("api", "remedy"),
    [
        (
            API_VERSION - 1,
            f"pip install --upgrade paper-other, or install a ggplug-core that accepts {API_VERSION - 1}",
        ),
        (API_VERSION + 1, "pip install --upgrade ggplug-core"),
    ],
)
def test_a_plugin_written_for_another_version_of_the_interface_is_not_imported(
    shelf: Shelf, api: int, remedy: str
) -> None:
    shelf.add("Other", api=api)
    shelf.add("Fits", api=API_VERSION)
    registry = shelf.registry()
    assert [d.name for d in registry.devices()] == ["Fits0"]
    assert shelf.imported == ["paper-fits:Fits"]
    with pytest.raises(PluginError) as caught:
        registry.device("Other0")
    line = str(caught.value)
    assert f"written for api_version {api} of the interface, and this ggplug-core accepts {API_VERSION}" in line
    assert f"({remedy})" in line
    assert "\n" not in line


def test_metadata_and_registration_name_the_same_version_of_the_interface(shelf: Shelf) -> None:
    shelf.add("Bad", plugin_object(OtherApiVersion("Bad")), api=API_VERSION)
    with pytest.raises(PluginError, match=f"in the group of api_version {API_VERSION}, but its registration says 99"):
        shelf.registry().device("Bad0")


@pytest.mark.parametrize(
    ("group", "version"),
    [
        ("ggplug.backends", 1),
        ("ggplug.backends.v2", 2),
        ("ggplug.backends.v12", 12),
        ("ggplug.backends.2", None),
        ("ggplug.backends.v02", None),
        ("ggplug.backends.v2.v3", None),
        ("ggplug.backendsx", None),
        ("ggplug.backends.v" + "9" * 5000, None),
    ],
)
def test_the_name_of_an_entry_points_group_has_the_version(group: str, version: int | None) -> None:
    assert version_of(group) == version


def test_a_plugin_built_for_another_core_is_not_imported(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggplug.registry.lifecycle.core_version", lambda: "0.1.0")
    shelf.add("Old", requires="<0.1")
    shelf.add("Fits", requires=">=0.1,<0.2")
    registry = shelf.registry()
    assert [d.name for d in registry.devices()] == ["Fits0"]
    assert shelf.imported == ["paper-fits:Fits"]
    assert "requires ggplug-core <0.1, and 0.1.0 is installed" in (status_of(registry, "Old").error or "")


@pytest.mark.parametrize(
    ("specifier", "version", "inside"),
    [
        (">=0.1,<0.3", "0.2.5", True),
        (">=0.1,<0.3", "0.3", False),
        (">=0.1,<0.3", "0.3.0rc1", False),
        ("~=1.4", "1.9", True),
        ("~=1.4", "2.0", False),
        ("~=1.4.2", "1.5", False),
        ("==0.1.*", "0.1.7", True),
        ("==0.1.*", "0.2", False),
        ("!=0.2", "0.2.0", False),
        ("==0.2", "0.2.0", True),
        (">0.1", "0.1.0", False),
        ("<=2", "2.0.0", True),
        ("something else", "1.0", True),
        (">=1", "unversioned", True),
    ],
)
def test_specifiers_are_read_as_installers_read_them(specifier: str, version: str, inside: bool) -> None:
    assert fits(specifier, version) is inside


def test_only_an_unconditional_requirement_on_core_restricts() -> None:
    requires = ["numpy>=2", "ggplug_core (>=0.1)", 'ggplug-core<9; extra == "x"', "ggplug-core[test]!=0.2"]
    assert restriction(requires) == ">=0.1,!=0.2"


# -- names that several have -----------------------------------------------------------------------


def test_a_name_with_two_claims_belongs_to_nobody_but_both_are_reachable(shelf: Shelf) -> None:
    shelf.add("NPU", distribution="first")
    shelf.add("NPU", distribution="second")
    shelf.add("TPU")
    registry = shelf.registry()
    with pytest.raises(DuplicateNameError, match=r"claimed by first 1.2 and second 1.2 .*second:NPU"):
        registry.device("NPU0")
    assert [d.name for d in registry.devices()] == ["TPU0"]
    first, second = registry.device("first:NPU0"), registry.device("second:NPU0")
    assert first is not second
    assert [registry.name_of(d) for d in (first, second)] == ["first:NPU0", "second:NPU0"]
    assert [s.name for s in registry.failures()] == ["first:NPU", "second:NPU"]
    assert all("claimed by first 1.2 and second 1.2" in (s.error or "") for s in registry.failures())


def test_leaving_one_out_settles_who_has_the_name(shelf: Shelf) -> None:
    shelf.add("NPU", distribution="first")
    shelf.add("NPU", distribution="second")
    registry = shelf.registry(disabled=("second:NPU",))
    assert registry.name_of(registry.device("NPU0")) == "NPU0"
    assert registry.failures() == []
    assert shelf.imported == ["first:NPU"]


def test_a_distribution_that_cores_extras_install_keeps_its_name(shelf: Shelf) -> None:
    shelf.add("NPU", distribution="of-the-family", listed=True)
    shelf.add("NPU", distribution="a-stranger")
    registry = shelf.registry()
    registry.device("NPU0")
    assert [d.name for d in registry.devices()] == ["NPU0"]
    assert shelf.imported == ["of-the-family:NPU"]
    (failure,) = registry.failures()
    assert failure.distribution == "a-stranger"
    assert "claimed by of-the-family 1.2 and a-stranger 1.2" in (failure.error or "")


def test_no_plugin_can_give_a_device_the_name_of_an_installed_one(shelf: Shelf) -> None:
    shelf.add("N", plugin_object(PaperBackend("N", PaperDevice("NPU0"))))
    shelf.add("NPU")
    registry = shelf.registry()
    assert [registry.distribution_of(d) for d in registry.devices()] == ["paper-npu"]
    assert "belongs to NPU of paper-npu" in (status_of(registry, "N").error or "")


# -- by hand ---------------------------------------------------------------------------------------


def test_a_program_can_register_its_own_backend_and_device(shelf: Shelf) -> None:
    shelf.add("NPU")
    registry = shelf.registry()
    backend = registry.register(PaperBackend("Mine", PaperDevice("Mine0")))
    device = registry.register_device(PaperDevice("Single", DeviceKind.CPU))
    assert registry.register(backend) is backend
    assert registry.register_device(device) is device
    assert [d.name for d in registry.devices()] == ["NPU0", "Mine0", "Single"]
    assert registry.device("single") is device
    assert device.registration is not None
    assert registry.distribution_of(device) is None
    registry.unload("Mine")
    registry.unload("Single")
    assert [d.name for d in registry.devices()] == ["NPU0"]


@pytest.mark.parametrize("name", ["NPU", "npu", "Mine"])
def test_a_taken_name_is_not_given_again(shelf: Shelf, name: str) -> None:
    shelf.add("NPU")
    registry = shelf.registry()
    registry.register(PaperBackend("Mine"))
    with pytest.raises(DuplicateNameError, match="belongs to"):
        registry.register(PaperBackend(name))
    with pytest.raises(DuplicateNameError, match="belongs to"):
        registry.register_device(PaperDevice(name))


def test_what_does_not_fit_the_interface_is_not_registered(shelf: Shelf) -> None:
    registry = shelf.registry()
    with pytest.raises(PluginError, match="api_version 99"):
        registry.register(OtherApiVersion("Bad"))
    with pytest.raises(PluginError, match="description None"):
        registry.register_device(HalfDevice())
    assert registry.status() == []


def test_an_unloaded_plugin_stays_away_until_it_is_loaded_by_name(shelf: Shelf) -> None:
    shelf.add("NPU")
    registry = shelf.registry()
    registry.device("NPU0")
    registry.unload("npu")
    assert registry.devices() == []
    with pytest.raises(DeviceNotFoundError, match=r'ggplug.load\("NPU"\) brings it back'):
        registry.device("NPU0")
    registry.load("NPU")
    assert registry.device("NPU0").name == "NPU0"
    with pytest.raises(DeviceNotFoundError, match="no plugin 'TPU'"):
        registry.unload("TPU")


def test_loading_by_name_tries_again_what_failed(shelf: Shelf) -> None:
    answers: list[Any] = [ImportError("not yet"), None]

    def load() -> Any:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return plugin_object(PaperBackend("NPU", PaperDevice("NPU0")))

    shelf.add("NPU", load)
    registry = shelf.registry()
    assert registry.devices() == []
    assert registry.load("NPU").name == "NPU"
    assert [d.name for d in registry.devices()] == ["NPU0"]
    assert registry.failures() == []


def test_what_the_environment_leaves_out_cannot_be_loaded_by_name(shelf: Shelf) -> None:
    shelf.add("NPU")
    with pytest.raises(PluginError, match="left out by GGPLUG_DISABLE"):
        shelf.registry(disabled=("NPU",)).load("NPU")


# -- files -----------------------------------------------------------------------------------------

PLUGIN_FILE = """
from ggplug.backend import API_VERSION, BufferType, Device, Memory, Registration
from ggplug.hookspecs import hookimpl
from ggplug.host import HOST
from ggplug.types import DeviceKind
{imports}
class TheDevice(Device):
    name, description, kind, buffer_type = "{name}0", "from a file", DeviceKind.GPU, HOST
    def memory(self):
        return Memory(None, None)

class TheRegistration(Registration):
    name, version, api_version = "{name}", "7", API_VERSION
    given = (TheDevice(),)
    def devices(self):
        return self.given

@hookimpl
def ggplug_backend_registration():
    return TheRegistration()
"""


def write_plugin(path: Path, name: str, imports: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PLUGIN_FILE.format(name=name, imports=imports), encoding="utf-8")
    return path


def test_a_file_is_a_plugin(shelf: Shelf, tmp_path: Path) -> None:
    registry = shelf.registry()
    path = write_plugin(tmp_path / "some_file.py", "Filed")
    backend = registry.load(path)
    assert registry.load(str(path)) is backend
    assert [d.name for d in registry.devices()] == ["Filed0"]
    (status,) = registry.status()
    assert (status.entry_point, status.source, status.version) == ("Filed", str(path), "7")
    registry.unload("Filed")
    assert registry.devices() == registry.status() == []
    assert registry.load(path) is not backend


def test_who_found_a_plugin_before_it_was_unloaded_does_not_load_it_behind_the_registrys_back(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = shelf.registry()
    path = write_plugin(tmp_path / "quick.py", "Quick")
    registry.load(path)
    found = registry.catalog.at(path)
    registry.unload("Quick")
    with pytest.raises(PluginError, match="was unloaded"):
        registry.lifecycle.load(found)
    assert "ggplug_plugin_quick" not in sys.modules
    backend = registry.load(path)
    # The same between finding and loading: it looks again.
    late = [registry.catalog.at(path), registry.catalog.at]
    monkeypatch.setattr(registry.catalog, "at", lambda where: late.pop(0) if len(late) > 1 else late[0](where))
    registry.unload("Quick")
    assert registry.load(path) is not backend
    assert [d.name for d in registry.devices()] == ["Quick0"]


def test_a_package_folder_is_a_plugin_and_can_import_from_itself(shelf: Shelf, tmp_path: Path) -> None:
    package = tmp_path / "paper_package"
    write_plugin(package / "__init__.py", "Pack", "from paper_package.part import one\nfrom .part import one as same")
    (package / "part.py").write_text("one = 1\n", encoding="utf-8")
    registry = shelf.registry()
    registry.load(package)
    assert registry.device("Pack0").name == "Pack0"
    registry.unload("Pack")


def test_all_plugins_of_a_folder_are_loaded_and_the_broken_ones_are_kept_apart(shelf: Shelf, tmp_path: Path) -> None:
    write_plugin(tmp_path / "one.py", "One")
    write_plugin(tmp_path / "paper_two" / "__init__.py", "Two")
    write_plugin(tmp_path / "_hidden.py", "Hidden")
    (tmp_path / "broken.py").write_text("raise ImportError('oh no')\n", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("not a plugin", encoding="utf-8")
    registry = shelf.registry()
    assert [r.name for r in registry.load_all_from_path(tmp_path)] == ["One", "Two"]
    assert [(s.entry_point, s.ok) for s in registry.status()] == [("broken", False), ("One", True), ("Two", True)]
    registry.unload("Two")
    with pytest.raises(PluginError, match="cannot read the plugins in"):
        registry.load_all_from_path(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("path", "reason"),
    [("nowhere.py", "no file"), (".", "not a package"), ("broken.py", "SyntaxError"), ("npu.py", "belongs to NPU")],
)
def test_a_path_without_a_plugin_is_explained(shelf: Shelf, tmp_path: Path, path: str, reason: str) -> None:
    (tmp_path / "broken.py").write_text("def\n", encoding="utf-8")
    write_plugin(tmp_path / "npu.py", "NPU")
    shelf.add("NPU")
    with pytest.raises((PluginError, DuplicateNameError), match=reason):
        shelf.registry().load(tmp_path / path)


def test_the_path_variable_names_files_packages_and_folders(shelf: Shelf, tmp_path: Path) -> None:
    one = write_plugin(tmp_path / "one.py", "One")
    write_plugin(tmp_path / "folder" / "two.py", "Two")
    write_plugin(tmp_path / "folder" / "three.py", "Three")
    shelf.add("NPU")
    paths = (str(one), str(tmp_path / "folder"), str(tmp_path / "nowhere"))
    registry = shelf.registry(paths=paths, disabled=("three",))
    assert registry.device("NPU0").name == "NPU0"
    assert [s.stage for s in registry.status() if s.source.endswith(".py")] == ["installed"] * 3
    assert registry.device("Two0").name == "Two0"
    assert [d.name for d in registry.devices()] == ["NPU0", "One0", "Two0"]
    assert [s.entry_point for s in registry.failures()] == ["nowhere"]


# -- the environment -------------------------------------------------------------------------------


def test_the_environment_is_read_when_the_registry_is_used_first(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("A", "B", "C"):
        shelf.add(name)
    registry = Registry(shelf.installed)
    monkeypatch.setenv("GGPLUG_BACKENDS", " c, A ,B")
    monkeypatch.setenv("GGPLUG_DISABLE", "paper-b:b")
    monkeypatch.setenv("GGPLUG_LOAD_TIMEOUT", "12.5")
    assert [d.name for d in registry.devices()] == ["C0", "A0"]
    assert registry.settings.timeout == 12.5


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_a_time_limit_that_is_no_number_of_seconds_is_ignored(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("GGPLUG_LOAD_TIMEOUT", text)
    assert Settings.from_environment().timeout == 30.0


@pytest.mark.parametrize("text", ["1e300", "9" * 300])
def test_plugins_load_within_a_time_limit_that_no_clock_reaches(
    monkeypatch: pytest.MonkeyPatch, shelf: Shelf, text: str
) -> None:
    monkeypatch.setenv("GGPLUG_LOAD_TIMEOUT", text)
    shelf.add("NPU")
    assert [device.name for device in Registry(shelf.installed).devices()] == ["NPU0"]


def test_without_a_time_limit_plugins_load_in_the_calling_thread(shelf: Shelf) -> None:
    where: list[threading.Thread] = []

    def load() -> Any:
        where.append(threading.current_thread())
        return plugin_object(PaperBackend("NPU"))

    shelf.add("NPU", load)
    shelf.registry(timeout=0.0).load_all()
    assert where == [threading.current_thread()]


# -- hooks -----------------------------------------------------------------------------------------


def test_nobody_listens_until_somebody_is_registered() -> None:
    hooks = Hooks()
    assert "ggplug_graph_computed" not in hooks.callers
    before = hooks.epoch

    class Observer:
        @hookimpl
        def ggplug_graph_computed(self, graph: Any, end: int) -> None:
            self.seen = (graph, end)

    observer = Observer()
    assert hooks.register(observer) == "test_nobody_listens_until_somebody_is_registered.<locals>.Observer"
    hooks.notify("ggplug_graph_computed", graph="g", devices=[], start=1, end=2)
    assert observer.seen == ("g", 2)
    assert hooks.epoch > before
    hooks.unregister(observer)
    assert "ggplug_graph_computed" not in hooks.callers


def test_an_observer_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks()
    seen: list[int] = []

    class Bad:
        @hookimpl
        def ggplug_graph_computed(self) -> None:
            raise ValueError("my own fault")

    class Good:
        @hookimpl
        def ggplug_graph_computed(self, start: int) -> None:
            seen.append(start)

    for plugin in (Good(), Bad(), Good()):
        hooks.register(plugin)
    with caplog.at_level(logging.ERROR, "ggplug"):
        hooks.notify("ggplug_graph_computed", graph=None, devices=[], start=5, end=6)
    assert seen == [5, 5]
    assert "my own fault" in caplog.text


def test_the_last_policy_with_an_opinion_places_a_node() -> None:
    hooks = Hooks()
    one, two = PaperDevice("one"), PaperDevice("two")

    class Policy:
        def __init__(self, answer: Device | None) -> None:
            self.answer = answer

        @hookimpl
        def ggplug_placement(self, devices: Any) -> Device | None:
            return self.answer

    graph: Any = None
    node: Any = "node"
    assert hooks.place(graph, node, [one, two]) is None
    for answer, name in ((one, "first"), (two, "second"), (None, "third")):
        hooks.register(Policy(answer), name)
    assert hooks.place(graph, node, [one, two]) == (two, "second")
    with pytest.raises(gg.PlacementError, match="second chose"):
        hooks.place(graph, node, [one])


def test_a_hook_that_does_not_exist_is_refused_as_a_whole() -> None:
    hooks = Hooks()

    class Misspelt:
        @hookimpl
        def ggplug_graph_computed(self) -> None: ...

        @hookimpl
        def ggplug_graf_computed(self) -> None: ...

    with pytest.raises(PluginError, match="ggplug_graf_computed"):
        hooks.register(Misspelt())
    assert "ggplug_graph_computed" not in hooks.callers
