"""Plugins that answer nonsense or not at all: the others are listed, and each of them with its fault."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_distributions import GOOD, Site

import ggplug as gg
from ggplug.backend import API_VERSION, Capabilities, Device, Memory, Registration
from ggplug.errors import PluginError
from ggplug.host import HOST
from ggplug.registry.discover import Settings
from ggplug.registry.isolation import FaultError, HangError, all_within, within
from ggplug.types import DeviceKind

HANG = "(__import__('threading').Event().wait())"

MEMORIES = {
    "Hangs": (f"return {HANG}", "no answer within 2 seconds"),
    "Sleeps": ("while True: __import__('time').sleep(1)", "no answer within 2 seconds"),
    "Raises": ("raise OSError('gone')", "OSError: gone"),
    "Exits": ("raise SystemExit('bye')", "SystemExit: bye"),
    "Nothing": ("return None", "TypeError: cannot unpack"),
    "Three": ("return 1, 2, 3", "ValueError: too many values"),
    "Endless": ("import itertools; return itertools.count()", "ValueError: too many values"),
    "Negative": ("return Memory(-1, 2**31)", "memory() returned tuple (-1, 2147483648)"),
    "Floats": ("return Memory(1e9, 2e9)", "memory() returned tuple (1000000000.0"),
    "NotNumbers": ("return Memory(float('nan'), float('inf'))", "memory() returned tuple (nan, inf)"),
    "Strings": ("return 'ab'", "memory() returned tuple ('a', 'b')"),
    "Bools": ("return Memory(True, True)", "memory() returned tuple (True, True)"),
    "TooFree": ("return Memory(2**31, 2**30)", "memory() says that 2147483648 of 1073741824 bytes are free"),
    "OddRepr": ("return Memory(Odd(), Odd())", "memory() returned tuple"),
    "OddError": ("raise Odd2()", "Odd2"),
}
"""What ``memory()`` does, and what is said of it."""

FACTS = {
    "NameHangs": (f"name = property(lambda self: {HANG})", "no answer within 2 seconds"),
    "NameRaises": ("name = property(lambda self: 1 / 0)", "ZeroDivisionError"),
    "NoName": ("name = None", "has the name None"),
    "DescriptionHangs": (f"description = property(lambda self: {HANG})", "no answer within 2 seconds"),
    "DescriptionRaises": ("description = property(lambda self: 1 / 0)", "ZeroDivisionError"),
    "Undescribed": ("description = 7", "has the description int 7"),
    "NoKind": ("kind = 'gpu'", "has the kind str 'gpu'"),
    "KindHangs": (f"kind = property(lambda self: {HANG})", "no answer within 2 seconds"),
    "OddCapabilities": ("capabilities = {'events': True}", "has the capabilities dict"),
    "CapabilitiesRaise": ("capabilities = property(lambda self: 1 / 0)", "ZeroDivisionError"),
    "OddId": ("device_id = 3", "has the device_id int 3"),
    "IdHangs": (f"device_id = property(lambda self: {HANG})", "no answer within 2 seconds"),
}
"""A line of the device's class, and what is said of the plugin."""

ODD = """
class Odd:
    def __repr__(self):
        raise RuntimeError("no words")
class Odd2(Exception):
    def __str__(self):
        raise RuntimeError("no words")
"""


def good(name: str) -> str:
    return ODD + GOOD.format(name=name, version="1").replace('"0000:01:00.0"', "None")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """One good backend among all these."""
    made = Site(tmp_path_factory.mktemp("site"))
    made.add_backend("NPU")
    for name, (body, _) in MEMORIES.items():
        made.add_backend(name, good(name).replace("return Memory(2**30, 2**31)", body))
    for name, (line, _) in FACTS.items():
        made.add_backend(name, good(name).replace("    def memory", f"    {line}\n    def memory"))
    return made


def chosen(*names: str) -> dict[str, str]:
    return {"GGPLUG_BACKENDS": ",".join(("NPU", *names)), "GGPLUG_LOAD_TIMEOUT": "2"}


def test_devices_whose_memory_is_nonsense_are_listed_with_their_fault(site: Site) -> None:
    done = site.ggplug("devices", "--json", **chosen(*MEMORIES))
    assert (done.returncode, done.stderr) == (0, "")
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads(done.stdout)}
    assert set(rows) == {f"{name}0" for name in ("NPU", *MEMORIES)}
    assert (rows["NPU0"]["memory_free"], rows["NPU0"]["error"]) == (2**30, None)
    for name, (_, fault) in MEMORIES.items():
        row = rows[f"{name}0"]
        assert (row["memory_free"], row["memory_total"], row["description"]) == (None, None, "a device on paper")
        assert fault in row["error"]
    done = site.ggplug("devices", **chosen("Hangs", "Negative"))
    text = " ".join(done.stdout.split())
    assert "1.0 GiB free" in text
    assert "fault: no answer within 2 seconds" in text
    assert (
        "fault: memory() returned tuple (-1, 2147483648); it must return two numbers of bytes, free and total" in text
    )


def test_all_devices_are_asked_within_one_time_limit(site: Site) -> None:
    """As long as twenty of them would take one after the other, nobody waits."""
    names = [f"Many{n}" for n in range(20)]
    source = good("Many").replace("return Memory(2**30, 2**31)", f"return {HANG}")
    many = ", ".join(f"type('D', (TheDevice,), dict(name='{name}'))()" for name in names)
    site.add_backend("Many", source.replace("(TheDevice(),)", f"({many})"))
    code = """
import json, threading, ggplug as gg
waits = []
real = threading.Event.wait
def wait(self, seconds=None):
    if seconds is not None and threading.current_thread() is threading.main_thread():
        waits.append(seconds)
    return real(self, seconds)
gg.devices()
threading.Event.wait = wait
errors = [each.error for each in gg.registry.REGISTRY.describe()]
print(json.dumps([errors, waits]))
"""
    done = site.run("-c", code, **chosen("Many"))
    assert done.returncode == 0, done.stderr
    errors, waits = json.loads(done.stdout)
    assert errors == [None, *["no answer within 2 seconds"] * 20]
    assert sum(sorted(waits)[:-1]) <= 2  # the first waits for all of them


def test_devices_that_do_not_say_what_they_are_are_findings(site: Site) -> None:
    done = site.ggplug("devices", **chosen("NameHangs", "OddCapabilities", "DescriptionRaises"))
    assert (done.returncode, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    assert text.startswith("device kind memory what it is")
    assert "NPU0" in text
    for name in ("NameHangs", "OddCapabilities", "DescriptionRaises"):
        assert f"{name} of fake-{name.lower()} 1.0 failed to list its devices" in text
        assert FACTS[name][1] in text
    done = site.ggplug("doctor", "--json", "NPU", *FACTS, "Hangs", "Negative", **chosen(*FACTS, "Hangs", "Negative"))
    assert done.returncode == 1, done.stderr
    findings = {row["entry_point"]: row for row in json.loads(done.stdout)}
    assert findings["NPU"]["ok"]
    for name, (_, fault) in FACTS.items():
        assert fault in findings[name]["error"], name
        assert findings[name]["stage"] == "loaded"
    for name in ("Hangs", "Negative"):
        assert MEMORIES[name][1] in findings[name]["error"]
        assert findings[name]["stage"] == "probed"
        assert findings[name]["remedy"]


def test_the_others_can_be_used(site: Site) -> None:
    code = """
import json, ggplug as gg, logging
logging.disable()
names = sorted(device.name for device in gg.devices())
best = gg.init_best().device.name
kinds = [device.name for device in gg.devices_by_kind("gpu")]
failed = sorted(each.entry_point for each in gg.registry.failures())
print(json.dumps([names, best, sorted(kinds), failed]))
"""
    done = site.run("-c", code, **chosen(*MEMORIES, "NameHangs", "NoKind", "IdHangs"))
    assert done.returncode == 0, done.stderr
    names, best, kinds, failed = json.loads(done.stdout)
    listed = sorted(f"{name}0" for name in ("NPU", *MEMORIES))
    assert (names, best, kinds, failed) == (listed, "NPU0", listed, ["IdHangs", "NameHangs", "NoKind"])


def test_a_registration_that_blocks_or_misstates_itself_is_a_finding(tmp_path: Path) -> None:
    site = Site(tmp_path / "site")
    site.add_backend("NPU")
    lines = {
        "Blocks": (f"name = property(lambda self: {HANG})", "no answer within"),
        "Versioned": ("version = 3", "TheRegistration.version is int 3; it must be a string"),
        "Unnamed": ("name = 5", "TheRegistration.name is int 5"),
    }
    for name, (line, _) in lines.items():
        site.add_backend(name, good(name).replace("    def __init__(self):", f"    {line}\n    def __init__(self):"))
    endless = "import itertools; return (TheDevice() for n in itertools.count())"
    site.add_backend("Endless", good("Endless").replace("return self.given", endless))
    done = site.ggplug("devices", **chosen(*lines, "Endless"))
    assert (done.returncode, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    assert "NPU0" in text
    for name, (_, fault) in (*lines.items(), ("Endless", ("", "devices() returned more than 1024 devices"))):
        assert f"{name} of fake-{name.lower()} 1.0 failed" in text
        assert fault in text


def test_a_cache_that_fails_or_hangs_hides_no_other(tmp_path: Path) -> None:
    site = Site(tmp_path / "site")
    template = """
class Kernels:
    def entries(self):
        ENTRIES
    def clear(self):
        ENTRIES
TheRegistration.get = lambda self, name: Kernels() if name == "cache" else None
"""
    entry = "from types import SimpleNamespace; return [SimpleNamespace(name='k\\x1b[31m', bytes=None, used=1e99)]"
    entries = {"Good": entry, "Raises": "raise OSError('torn')", "Hangs": HANG, "Odd": "return [1]"}
    for name, body in entries.items():
        site.add_backend(name, good(name) + template.replace("ENTRIES", body))
    names = {"GGPLUG_BACKENDS": ",".join(entries), "GGPLUG_LOAD_TIMEOUT": "2"}
    done = site.ggplug("cache", "show", **names)
    assert done.returncode == 1
    assert r"k\x1b[31m" in done.stdout
    assert done.stdout.endswith("1 kernels, 0 B\n")
    for name, fault in (("Raises", "OSError: torn"), ("Hangs", "no answer within 2 seconds"), ("Odd", "Attribute")):
        assert f"error: the cache of the backend {name}: {fault}" in done.stderr
    (row,) = json.loads(site.ggplug("cache", "show", "--json", **names).stdout)
    assert (row["backend"], row["bytes"], row["problem"]) == ("Good", 0, None)


# -- parts -----------------------------------------------------------------------------------------


class Changing(Device):
    """States itself once, and nonsense ever after."""

    buffer_type = HOST
    capabilities = Capabilities()

    def __init__(self) -> None:
        self.calls = {"name": 0, "kind": 0, "description": 0}

    def _once(self, what: str, value: Any) -> Any:
        self.calls[what] += 1
        return value if self.calls[what] == 1 else None

    @property
    def name(self) -> str:  # type: ignore[override]
        return self._once("name", "Changing0")

    @property
    def kind(self) -> DeviceKind:  # type: ignore[override]
        return self._once("kind", DeviceKind.ACCEL)

    @property
    def description(self) -> str:  # type: ignore[override]
        return self._once("description", "a device on paper")

    def memory(self) -> Memory:
        return Memory(1, 2)


def test_the_registry_asks_a_device_once_and_goes_by_that() -> None:
    registry = gg.registry.Registry(plugins=())
    device = registry.register_device(Changing())
    assert registry.devices() == [device]
    assert registry.device("changing0") is device
    assert registry.devices_by_kind("accel") == [device]
    assert registry.name_of(device) == "Changing0"
    (described,) = registry.describe()
    assert (described.name, described.props.kind) == ("Changing0", DeviceKind.ACCEL)
    assert "has the name None" in (described.error or "")
    with pytest.raises(gg.DeviceNotFoundError, match="devices: Changing0"):
        registry.device("other")


def test_a_backend_or_device_by_hand_is_refused_in_words() -> None:
    class Broken(Registration):
        api_version = API_VERSION
        name = property(lambda self: 1 / 0)  # type: ignore[assignment]

        def devices(self) -> list[Device]:
            return []

    registry = gg.registry.Registry(plugins=())
    with pytest.raises(PluginError, match="cannot register this backend: ZeroDivisionError"):
        registry.register(Broken())
    device = Changing()
    device.calls["name"] = 1
    with pytest.raises(PluginError, match="cannot register this device: the device Changing has the name None"):
        registry.register_device(device)


def test_a_time_limit_beyond_what_a_system_can_count_is_no_limit() -> None:
    assert within(1e300, "x", lambda: 5) == 5
    assert all_within(1e300, {"a": lambda: 1, "b": lambda: 1 // 0})["a"] == 1


def test_answers_come_despite_hangs_and_faults() -> None:
    import threading

    never = threading.Event()
    answers = all_within(0.2, {1: lambda: "good", 2: never.wait, 3: lambda: 1 // 0})
    never.set()
    assert answers[1] == "good"
    assert isinstance(answers[2], HangError)
    assert isinstance(answers[3], FaultError)
    assert isinstance(answers[3].cause, ZeroDivisionError)


# -- what the user says ----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", " ", ",,,", " , ,"])
def test_empty_lists_leave_nothing_out(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GGPLUG_BACKENDS", "GGPLUG_DISABLE"):
        monkeypatch.setenv(name, text)
    monkeypatch.delenv("GGPLUG_BACKEND_PATH", raising=False)
    assert Settings.from_environment() == Settings()


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no FIFOs")
def test_odd_paths_of_plugins_are_findings(tmp_path: Path) -> None:
    site = Site(tmp_path / "site")
    site.add_backend("NPU")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / "plugin.py")
    os.symlink("loop", tmp_path / "loop")
    odd = [*(f"{tmp_path / name}" for name in ("fifo", "folder", "loop")), "/dev/zero", "\udcff", "missing"]
    paths = {"GGPLUG_BACKEND_PATH": os.pathsep.join(odd), "GGPLUG_BACKENDS": "NPU,fifo,plugin,loop,zero,missing"}
    done = site.ggplug("devices", **paths)
    assert (done.returncode, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    assert "NPU0" in text
    for name in ("fifo", "plugin", "loop", "zero", "missing"):
        assert f"{name} of " in text
