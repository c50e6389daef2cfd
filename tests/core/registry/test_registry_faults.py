"""Plugins as they are really installed, broken in every way: in processes of their own, found by their metadata."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_distributions import ADDING, GOOD, Site

from ggplug.backend import API_VERSION

FAULTS = {
    "NoImport": "import a_module_that_nobody_has",
    "NoLibrary": "raise OSError('libmissing.so.7: cannot open shared object file')",
    "Exits": "raise SystemExit('I want to be alone')",
    "WrongReturn": GOOD.format(name="WrongReturn", version="1").replace(
        "return TheRegistration()", "return 'not a registration'"
    ),
    "WrongVersion": GOOD.format(name="WrongVersion", version="1").replace(", API_VERSION\n", ", 1000\n"),
    "Half": "import ggplug as gg\n"
    + GOOD.format(name="Half", version="1")
    + "\ngg.register_device(TheDevice())\nraise RuntimeError('half way')\n",
    "Hangs": "import threading\nthreading.Event().wait()\n",
}
CAUSES = {
    "NoImport": "ModuleNotFoundError: No module named 'a_module_that_nobody_has'",
    "NoLibrary": "OSError: libmissing.so.7",
    "Exits": "SystemExit: I want to be alone",
    "WrongReturn": "returned str 'not a registration', not a ggplug Registration",
    "WrongVersion": "its entry point is in the group of api_version 2, but its registration says 1000",
    "Half": "RuntimeError: half way",
    "Hangs": "no answer within",
    "Twice": "claimed by fake-twice 1.0 and fake-twice-too 1.0",
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """One good backend among eight faults."""
    site = Site(tmp_path_factory.mktemp("site"))
    site.add_backend("NPU")
    for name, source in FAULTS.items():
        site.add_backend(name, source)
    site.add_backend("Twice")
    site.add_backend("Twice", distribution="fake-twice-too")
    return site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


def answer(site: Site, code: str, **environment: str) -> Any:
    """What the last line that ``code`` prints says in JSON."""
    done = site.run("-c", f"import json, sys, logging\nimport ggplug as gg\n{code}", **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def of_faults(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By entry point, the fakes only: whatever else is installed here is no concern of these tests."""
    return {row["entry_point"]: row for row in rows if (row["distribution"] or "").startswith("fake-")}


def test_eight_faults_leave_other_devices_working(broken: Site) -> None:
    code = """
names = [d.name for d in gg.devices()]
stream = gg.init_by_name("NPU0")
failed = {f.entry_point: f.error for f in gg.registry.failures()}
causes = {}
for name in failed:
    try:
        gg.device(name + "0")
    except gg.errors.GGPlugError as error:
        causes[name] = [type(error).__name__, str(error)]
import decimal, email.mime.audio, xml.dom.minidom  # imports go on while one hangs
print(json.dumps([names, stream.device.name, failed, causes]))
"""
    names, stream, failed, causes = answer(broken, code, GGPLUG_LOAD_TIMEOUT="3")
    assert "NPU0" in names
    assert not [name for name in names if name[:-1] in CAUSES]
    assert stream == "NPU0"
    for fault, cause in CAUSES.items():
        assert cause in failed[fault]
        kind, message = causes[fault]
        assert kind == ("DuplicateNameError" if fault == "Twice" else "PluginError")
        assert cause in message
        assert f"fake-{fault.lower()}" in message


def test_eight_faults_take_no_device_away_from_what_is_really_installed(broken: Site, site: Site) -> None:
    code = "logging.disable()\nprint(json.dumps([d.name for d in gg.devices()]))"
    really_there = answer(site, code)
    assert set(answer(broken, code, GGPLUG_LOAD_TIMEOUT="3")) == {*really_there, "NPU0"}


def test_the_cpu_computes_despite_eight_faults_and_none_of_them_is_imported(broken: Site) -> None:
    pytest.importorskip("ggplug_cpu")
    code = """
import numpy as np
with gg.Scheduler([gg.device("CPU")]) as scheduler:
    graph = gg.Graph(total := gg.add(gg.tensor([1.0, 2.0]), gg.tensor([10.0, 20.0])))
    scheduler.compute(graph)
    print(json.dumps([total.numpy().tolist(), [m for m in sys.modules if m.startswith("fake_")]]))
"""
    assert answer(broken, code) == [[11.0, 22.0], []]


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent differently there")
def test_ctrl_c_ends_the_wait_for_a_plugin_that_hangs(site: Site) -> None:
    hang = "import os, signal, threading\nos.kill(os.getpid(), signal.SIGINT)\nthreading.Event().wait()\n"
    site.add_backend("Hangs", hang)
    code = """
try:
    gg.device("Hangs0")
except KeyboardInterrupt:
    print(json.dumps([f.entry_point for f in gg.registry.failures()]))
"""
    assert answer(site, code, GGPLUG_LOAD_TIMEOUT="100") == []


def test_the_doctor_names_distribution_and_cause_of_each_fault(broken: Site) -> None:
    names = [*({"NPU", *CAUSES} - {"Twice"}), "fake-twice:Twice", "fake-twice-too:Twice"]
    done = broken.ggplug("doctor", *names, "--json", GGPLUG_LOAD_TIMEOUT="3")
    assert done.returncode == 1, done.stderr
    rows = [row for row in json.loads(done.stdout) if row["distribution"].startswith("fake-")]
    assert len(rows) == 10
    for row in rows:
        assert {"entry_point", "distribution", "version", "stage", "ok", "error", "remedy", "milliseconds"} <= set(row)
        name = row["entry_point"]
        assert row["distribution"] in (f"fake-{name.lower()}", "fake-twice-too")
        assert row["version"] == "1.0"
        if name == "NPU":
            assert (row["ok"], row["stage"], row["error"], row["devices"]) == (True, "initialised", None, ["NPU0"])
            assert row["milliseconds"] > 0
        else:
            assert not row["ok"]
            assert CAUSES[name] in row["error"]
            assert row["remedy"]
    stages = {row["entry_point"]: row["stage"] for row in rows}
    assert {stages[name] for name in FAULTS} == {"installed"}
    assert stages["Twice"] == "initialised"  # either would work, if its name were its own


def test_asking_for_one_device_imports_no_other_plugin(broken: Site) -> None:
    code = """
gg.device("NPU0")
print(json.dumps([m for m in sys.modules if m.startswith("fake_")]))
"""
    assert answer(broken, code) == ["fake_npu"]


def test_a_plugin_that_crashes_the_process_is_a_finding(site: Site) -> None:
    site.add_backend("Crash", "import faulthandler, os\nos.abort()\n")
    late = GOOD.format(name="Late", version="1")
    site.add_backend("Late", late.replace("return self.given", "import os; os._exit(7)"))
    done = site.ggplug("doctor", "Crash", "Late", "--json")
    assert done.returncode == 1, done.stderr
    rows = of_faults(json.loads(done.stdout))
    crash = "ended the process with exit code" if sys.platform == "win32" else "crashed the process with SIGABRT"
    assert f"failed to load: it {crash}" in rows["Crash"]["error"]
    assert "fake_crash.py" in rows["Crash"]["traceback"]
    assert rows["Late"]["error"] == "failed to list its devices: it ended the process with exit code 7"
    assert (rows["Crash"]["stage"], rows["Late"]["stage"]) == ("installed", "loaded")


def test_what_a_plugin_prints_does_not_disturb_the_doctor(site: Site) -> None:
    site.add_backend("Loud", "print('{\"ok\": 1}')\n" + GOOD.format(name="Loud", version="1"))
    rows = of_faults(json.loads(site.ggplug("doctor", "Loud", "--json").stdout))
    assert (rows["Loud"]["ok"], rows["Loud"]["stage"]) == (True, "initialised")


def test_a_stream_that_does_not_start_is_found_by_the_doctor_alone(site: Site) -> None:
    source = GOOD.format(name="NoStream", version="1")
    site.add_backend("NoStream", source + "\ndef init(self):\n    raise OSError('no context')\nTheDevice.init = init\n")
    rows = of_faults(json.loads(site.ggplug("doctor", "NoStream", "--json").stdout))
    assert rows["NoStream"]["stage"] == "probed"
    error = rows["NoStream"]["error"]
    assert re.fullmatch(r"failed to start a stream: OSError: no context \(.*fake_nostream\.py:\d+ in init\)", error)


def adding(site: Site, name: str, addition: str) -> None:
    """A plugin whose device has one kernel: ``addition``, the body of a function of ``a`` and ``b``."""
    source = ADDING.format(name=name, version="1")
    site.add_backend(name, f"{source}\ndef addition(a, b):\n    {addition}\n")


def test_the_doctor_computes_on_each_device(site: Site) -> None:
    adding(site, "Adds", "return a + b")
    rows = of_faults(json.loads(site.ggplug("doctor", "Adds", "--json").stdout))
    assert (rows["Adds"]["ok"], rows["Adds"]["stage"]) == (True, "computed")
    assert list(rows["Adds"]["stages"]) == ["loaded", "probed", "initialised", "computed"]


@pytest.mark.parametrize("wrong", ["a + b + 1", "a + b * np.nan", "np.where(a > 100, a + b, 0)"])
def test_a_device_that_computes_wrongly_is_found_by_the_doctor(site: Site, wrong: str) -> None:
    adding(site, "Wrong", f"return {wrong}")
    rows = of_faults(json.loads(site.ggplug("doctor", "Wrong", "--json").stdout))
    assert (rows["Wrong"]["ok"], rows["Wrong"]["stage"]) == (False, "initialised")
    assert "failed to compute: Wrong0 computes add of f32 and f32 wrongly" in rows["Wrong"]["error"]
    assert "upgrade it" in rows["Wrong"]["remedy"]


def test_a_device_that_crashes_or_hangs_while_it_computes_is_found_by_the_doctor(site: Site) -> None:
    adding(site, "Crashes", "import os; os.abort()")
    adding(site, "Hangs", "import threading; threading.Event().wait()")
    adding(site, "Raises", "raise OSError('the chip is gone')")
    done = site.ggplug("doctor", "Crashes", "Hangs", "Raises", "--json", GGPLUG_LOAD_TIMEOUT="3")
    assert done.returncode == 1, done.stderr
    rows = of_faults(json.loads(done.stdout))
    assert {row["stage"] for row in rows.values()} == {"initialised"}
    crash = "ended the process with exit code" if sys.platform == "win32" else "crashed the process with SIGABRT"
    assert f"failed to compute: it {crash}" in rows["Crashes"]["error"]
    assert rows["Hangs"]["error"] == "failed to compute: no answer within 3 seconds"
    assert "failed to compute" in rows["Raises"]["error"]
    assert "the chip is gone" in rows["Raises"]["error"]


def test_damaged_metadata_hides_no_other_plugin(site: Site) -> None:
    site.add_backend("NPU")
    site.add_backend("Damaged")
    (information,) = site.folder.glob("fake_damaged-*.dist-info")
    (information / "entry_points.txt").write_text("[ggplug.backends.v2]\nno equals sign\n", "utf-8")
    site.add("fake-binary", {"ggplug.backends.v2": {"Binary": "fake_binary"}}, {})
    (information,) = site.folder.glob("fake_binary-*.dist-info")
    (information / "METADATA").write_bytes(b"\xff\xfe\x00")
    code = """
logging.disable()
names = [d.name for d in gg.devices()]
print(json.dumps([names, [[f.distribution, f.error] for f in gg.registry.failures()]]))
"""
    names, failures = answer(site, code)
    assert "NPU0" in names
    assert {distribution for distribution, _ in failures} >= {"fake-damaged", "fake-binary"}


def test_what_is_edited_in_a_folder_is_mended_and_installed_from_there(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "of the author"
    folder.mkdir()
    site.add_backend("Missing", "import nobody_has_this")
    site.add_backend("Changed", "from json import nothing_like_it")
    site.add_backend("Wrong", "1 / 0")
    site.add_backend("Old", "raise SystemExit('imported')", group="ggplug.backends")
    site.add_backend("Other", requires="ggplug-core<0.0.1")
    site.add("fake-gone", {"ggplug.backends.v2": {"Gone": "fake_gone"}}, {})
    for information in site.folder.glob("*.dist-info"):
        origin = {"url": folder.as_uri(), "dir_info": {"editable": True}}
        (information / "direct_url.json").write_text(json.dumps(origin), "utf-8")
    code = """
logging.disable()
gg.devices()
print(json.dumps({each.entry_point: each.remedy for each in gg.registry.failures()}))
"""
    found = answer(site, code)
    install = f"pip install -e '{folder}'"
    without = "GGPLUG_DISABLE=fake-{0}:{1} leaves it out"
    assert found == {
        "Missing": "install what provides the module nobody_has_this, and name it in the dependencies of "
        f"{folder}; {without.format('missing', 'Missing')}",
        "Changed": f"{install} installs the versions that it needs; {without.format('changed', 'Changed')}",
        "Wrong": f"this is a fault of the plugin: mend it in {folder}; {without.format('wrong', 'Wrong')}",
        "Old": f"change it in {folder} for api_version {API_VERSION}, or install a ggplug-core that accepts 1",
        "Other": f"change what {folder} requires, and {install}",
        "Gone": f"its files are missing: {install}",
    }


@pytest.mark.parametrize(
    "origin",
    [
        "{",
        "[]",
        "{}",
        '{"url": 3, "dir_info": {"editable": true}}',
        '{"url": "https://x/y.whl"}',
        '{"url": "file:///x", "dir_info": {}}',
    ],
)
def test_what_is_installed_from_another_place_is_upgraded(origin: str, site: Site) -> None:
    site.add_backend("Missing", "import nobody_has_this")
    (information,) = site.folder.glob("fake_missing-*.dist-info")
    (information / "direct_url.json").write_text(origin, "utf-8")
    code = "logging.disable(); gg.devices(); print(json.dumps([each.remedy for each in gg.registry.failures()]))"
    (remedy,) = answer(site, code)
    assert remedy.startswith("pip install --upgrade fake-missing installs what it needs; ")


def test_the_group_of_an_entry_point_keeps_what_was_written_for_another_version_from_being_imported(site: Site) -> None:
    for name, group in {"Old": "ggplug.backends", "New": "ggplug.backends.v1000", "Typo": "ggplug.backends.2"}.items():
        site.add_backend(name, "raise SystemExit('imported')", group=group)
    site.add_backend("NPU")
    points = {"ggplug.backends": {"Both": "gone"}, "ggplug.backends.v2": {"Both": "fake_both"}}
    source = GOOD.format(name="Both", version="1").replace('"0000:01:00.0"', "None")
    site.add("fake-both", {**points, "ggplug.backends.v3": {"Both": "gone"}}, {"fake_both": source})
    code = """
logging.disable()
names = [device.name for device in gg.devices()]
failed = {each.entry_point: [each.error, each.remedy] for each in gg.registry.failures()}
print(json.dumps([names, failed, sorted(name for name in sys.modules if name.startswith("fake_"))]))
"""
    names, failed, imported = answer(site, code)
    assert set(names) >= {"NPU0", "Both0"}
    assert imported == ["fake_both", "fake_npu"]
    another = "failed to load: it was written for api_version {} of the interface, and this ggplug-core accepts 2"
    assert failed["Old"] == [
        another.format(1),
        "pip install --upgrade fake-old, or install a ggplug-core that accepts 1",
    ]
    assert failed["New"] == [another.format(1000), "pip install --upgrade ggplug-core"]
    assert failed["Typo"][0].endswith("the group of its entry point, ggplug.backends.2, is not ggplug.backends.v2")


def test_metadata_that_excludes_this_core_keeps_the_plugin_from_being_imported(site: Site) -> None:
    site.add_backend("Future", "raise SystemExit('imported')", requires="ggplug-core>=1000")
    code = """
try:
    gg.device("Future0")
except gg.errors.PluginError as error:
    print(json.dumps([str(error), "fake_future" in sys.modules, bool(gg.registry.discover.core_version())]))
"""
    message, imported, installed = answer(site, code)
    if not installed:
        pytest.skip("ggplug-core is used as a plain source tree here, which has no version")
    assert "requires ggplug-core >=1000" in message
    assert not imported


def test_the_environment_chooses_among_installed_plugins(site: Site) -> None:
    for name in ("A", "B", "C"):
        site.add_backend(name, GOOD.format(name=name, version="1").replace('"0000:01:00.0"', "None"))
    code = "print(json.dumps([d.name for d in gg.devices()]))"
    assert answer(site, code, GGPLUG_BACKENDS="C,fake-a:A") == ["C0", "A0"]
    assert answer(site, code, GGPLUG_BACKENDS="C,A,B", GGPLUG_DISABLE="A") == ["C0", "B0"]


def test_an_application_that_is_its_own_plugin_does_not_wait_for_itself(site: Site) -> None:
    source = GOOD.format(name="App", version="1")
    own = "\nimport ggplug as gg\nfound = gg.device('App0')\n"
    site.add("fake-app", {"ggplug.backends.v2": {"App": "fake_app"}}, {"fake_app": source + own})
    code = "import fake_app\nprint(json.dumps(fake_app.found.name))"
    assert answer(site, code, GGPLUG_LOAD_TIMEOUT="20") == "App0"


def test_a_missing_extra_is_named_with_the_command_that_installs_it(site: Site) -> None:
    code = """
from importlib import metadata
import ggplug.registry.discover as discover
real = metadata.requires
metadata.requires = lambda name: ['ggplug-xyz; extra == "xyz9"', 'numpy; extra == "plain"']
try:
    gg.device("XYZ0")
except gg.errors.DeviceNotFoundError as error:
    print(json.dumps(error.remedy))
"""
    assert answer(site, code) == 'pip install "ggplug-core[xyz9]"'


IMPORTED = """
from ggplug.errors import PluginError
from ggplug.registry.discover import scan
from ggplug.registry.entry_points import imported

def answer():
    (found,) = [each for each in scan("ggplug.ops") if each.distribution == "fake-ops"]
    try:
        return imported(found, "the op")
    except PluginError as error:
        return str(error.reason)
"""


def test_what_entry_points_name_has_as_much_time_as_plugins_to_be_imported(site: Site) -> None:
    hanging = {"fake_ops": "import threading\nthreading.Event().wait()\n"}
    site.add("fake-ops", {"ggplug.ops": {"fake": "fake_ops"}}, hanging)
    found = answer(site, f"{IMPORTED}\nprint(json.dumps(answer()))", GGPLUG_LOAD_TIMEOUT="1")
    assert found.startswith("importing it takes too long: no answer within 1 seconds")


def test_a_package_may_ask_for_what_it_names_while_it_is_imported(site: Site) -> None:
    source = f"thing = 'mine'\n{IMPORTED}\ngot = answer()\n"
    site.add("fake-ops", {"ggplug.ops": {"fake": "fake_ops:thing"}}, {"fake_ops": source})
    found = answer(site, "import fake_ops\nprint(json.dumps(fake_ops.got))", GGPLUG_LOAD_TIMEOUT="5")
    assert found == "mine"
