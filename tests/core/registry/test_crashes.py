"""Plugins that end the process or never come back: others stay usable, and the next command knows which one it was."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_distributions import GOOD, Site
from wheels import build, install

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes crash and are forked differently there")

KINDS = {
    "segfaults": "import ctypes; ctypes.string_at(0)",
    "aborts": "import os; os.abort()",
    "exits": "import os; os._exit(0)",
    "loops": "while True: pass",
}
"""What a plugin does."""
ENDINGS = {
    "segfaults": "it crashed the process with SIGSEGV",
    "aborts": "it crashed the process with SIGABRT",
    "exits": "it ended the process with exit code 0",
    "loops": "no answer within 2 seconds",  # or a little less, where another step was given a part of them
}
"""What is said of it."""

PLACES = {
    "import": ("from ggplug.backend", "failed to load"),
    "hook": ("    return TheRegistration()", "failed to load"),
    "devices": ("        return self.given", "failed to list its devices"),
    "memory": ("        return Memory(2**30, 2**31)", "failed to say what its devices are"),
    "init": ("        return super().init(**params)", "failed to start a stream"),
}
"""The line before which it does that, and what it failed to do then."""

CASES = [(kind, place) for kind in KINDS for place in PLACES]
REPAIRED = [case for case in CASES if case[0] == "segfaults" or case[1] == "devices"]
"""That it is repaired has nothing to do with the kind of crash in the other places."""
every_case = pytest.mark.parametrize(
    ("kind", "place"),
    [pytest.param(*case, id="-".join(case), marks=() if case in REPAIRED else pytest.mark.long) for case in CASES],
)
"""Each kind at one place and each place with one kind take seconds; all of them take minutes."""


def good(name: str) -> str:
    own = "    def init(self, **params):\n        return super().init(**params)\n"
    source = GOOD.format(name=name, version="1.0").replace('"0000:01:00.0"', "None").lstrip()
    return source.replace("\nclass TheRegistration", f"{own}\nclass TheRegistration")


def name_of(kind: str, place: str) -> str:
    return f"{kind}{place}".capitalize()


def broken(kind: str, place: str) -> str:
    line, _ = PLACES[place]
    indent = line[: -len(line.lstrip())]
    return good(name_of(kind, place)).replace(line, f"{indent}{KINDS[kind]}\n{line}", 1)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Distributions that pip installed from wheels: a good one, and each kind of fault at each place."""
    folder = tmp_path_factory.mktemp("crashes")
    wheels = [build(folder / "wheels", name_of(*case), broken(*case), "1.0") for case in CASES]
    install([*wheels, build(folder / "wheels", "NPU", good("NPU"), "1.0")], folder / "site")
    return Site(folder / "site")


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """Nothing is known of crashes yet."""
    return {"GGPLUG_CACHE_DIR": str(tmp_path / "cache"), "GGPLUG_LOAD_TIMEOUT": "2"}


@pytest.fixture
def chosen(settings: dict[str, str], kind: str, place: str) -> dict[str, str]:
    """The fault, a good plugin, and the CPU."""
    return {**settings, "GGPLUG_BACKENDS": f"{name_of(kind, place)},NPU,CPU"}


LISTING = "import ggplug as gg\nprint([device.name for device in gg.devices()])\n"
USE = {"memory": "gg.registry.REGISTRY.describe()", "init": "gg.init_best().free()"}
"""What makes a program run the code at that place, where listing devices does not."""


def reported(output: str) -> str:
    """In one line."""
    return re.sub(r"within 1\.9\d? seconds", "within 2 seconds", " ".join(output.split()))


def healthy_in(output: str) -> bool:
    return "NPU0" in output and "CPU" in output


@every_case
def test_devices_lists_the_others_at_once_and_the_next_command_names_the_plugin(
    kind: str, place: str, site: Site, chosen: dict[str, str]
) -> None:
    done = site.ggplug("devices", "--json", **chosen)
    assert (done.returncode, done.stderr) == (0, "")
    assert healthy_in(done.stdout)
    done = site.ggplug("devices", **chosen)
    assert (done.returncode, done.stderr) == (0, "")
    assert healthy_in(done.stdout)
    text, name = reported(done.stdout), name_of(kind, place)
    if place == "init":  # listing devices does not get there
        assert f"{name}0" in text
    elif (kind, place) == ("loops", "memory"):
        assert "fault: no answer within 2 seconds" in text
    else:
        assert f"{name} of fake-{name.lower()} 1.0 {PLACES[place][1]}: {ENDINGS[kind]} -> " in text


@every_case
def test_a_program_that_it_ended_lists_the_others_when_it_runs_again(
    kind: str, place: str, site: Site, chosen: dict[str, str]
) -> None:
    program = f"{LISTING}{USE.get(place, '')}\nprint('done')\n"
    if (kind, place) == ("loops", "init"):  # nothing but its user ends it
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, "-c", program],
                env={**os.environ, **chosen, "PYTHONPATH": str(site.folder)},
                timeout=8,
                capture_output=True,
            )
    else:
        first = site.run("-c", program, **chosen)
        assert ("done" in first.stdout) == (kind == "loops")
    done = site.run("-c", program, **chosen)
    assert done.returncode == 0, done.stderr
    assert healthy_in(done.stdout)
    if (kind, place) != ("loops", "memory"):  # that costs the others nothing
        name = name_of(kind, place)
        assert f"the plugin {name} of fake-{name.lower()} 1.0 {PLACES[place][1]}: {ENDINGS[kind]} (" in reported(
            done.stderr
        )
        assert f"{name}0" not in done.stdout


@every_case
def test_the_doctor_names_it_and_exits_with_1(kind: str, place: str, site: Site, chosen: dict[str, str]) -> None:
    done = site.ggplug("doctor", name_of(kind, place), "NPU", "--json", **chosen)
    assert done.returncode == 1, done.stderr
    bad, fine = json.loads(done.stdout)
    assert reported(bad["error"]) == f"{PLACES[place][1]}: {ENDINGS[kind]}"
    assert bad["remedy"]
    assert fine["ok"]


@pytest.mark.parametrize(("kind", "place"), REPAIRED, ids=map("-".join, REPAIRED))
def test_it_is_used_again_when_it_is_repaired(kind: str, place: str, tmp_path: Path, settings: dict[str, str]) -> None:
    site, name = Site(tmp_path / "site"), name_of(kind, place)
    settings["GGPLUG_BACKENDS"] = f"{name},CPU"
    install([build(tmp_path / "old", name, broken(kind, place), "1.0")], site.folder)
    site.ggplug("doctor", name, **settings)  # what crashes is left out from here on
    install([build(tmp_path / "new", name, good(name), "1.1")], site.folder)
    done = site.run("-c", f"{LISTING}{USE.get(place, '')}", **settings)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{name}0" in done.stdout
    assert "CPU" in done.stdout
    assert not list((tmp_path / "cache" / "plugins").iterdir())


# -- the record ------------------------------------------------------------------------------------


def answers(site: Site, settings: dict[str, str], **more: str) -> list[str]:
    """The devices of a program."""
    done = site.run("-c", LISTING, **{**settings, **more})
    assert done.returncode == 0, done.stderr
    return [name for name in ("Bad0", "NPU0") if name in done.stdout]


@pytest.fixture
def own(tmp_path: Path, settings: dict[str, str]) -> Site:
    """A plugin that crashes if the file ``crash`` says so, and notes each process that imports it; and a good one."""
    made = Site(tmp_path / "site")
    made.add_backend("NPU", good("NPU"))
    note = f"import os\nwith open({str(tmp_path / 'imported')!r}, 'a') as note:\n    note.write('x')\n"
    crash = f"if os.path.exists({str(tmp_path / 'crash')!r}): os.abort()\n"
    made.add_backend("Bad", note + crash + good("Bad"))
    settings["GGPLUG_BACKENDS"] = "Bad,NPU"
    (tmp_path / "crash").touch()
    return made


def imports(tmp_path: Path) -> int:
    return len((tmp_path / "imported").read_text("utf-8"))


def test_a_plugin_that_crashes_is_asked_once_and_then_left_alone(
    own: Site, tmp_path: Path, settings: dict[str, str]
) -> None:
    assert own.run("-c", LISTING, **settings).returncode == -signal.SIGABRT
    for _ in range(3):
        assert answers(own, settings) == ["NPU0"]
    assert imports(tmp_path) == 2  # by the program, and by the child process of the next one


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_process_that_somebody_ended_condemns_nobody(
    number: int, own: Site, tmp_path: Path, settings: dict[str, str]
) -> None:
    (tmp_path / "crash").unlink()
    plugin = own.folder / "fake_bad.py"
    source = plugin.read_text("utf-8")
    ending = f"import os, sys\nif 'end' in sys.argv:\n    os.kill(os.getpid(), {int(number)})\n"
    plugin.write_text(ending + source, "utf-8")
    assert own.run("-c", LISTING, "end", **settings).returncode != 0
    for count in (2, 3):  # the second one asks it in a child process
        assert answers(own, settings) == ["Bad0", "NPU0"]
        assert number == signal.SIGINT or imports(tmp_path) == count  # Ctrl-C ends the main thread alone
        assert not list((tmp_path / "cache" / "plugins").iterdir())


@pytest.mark.parametrize(
    "ending",
    [
        *(f"os.kill(os.getpid(), {int(number)})" for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)),
        "sys.modules['ggplug.registry.probe'].json = None",
    ],
    ids=["killed", "terminated", "hung up", "an error of ggplug's own"],
)
def test_a_child_that_the_plugin_did_not_crash_condemns_nobody(
    ending: str, own: Site, tmp_path: Path, settings: dict[str, str]
) -> None:
    (tmp_path / "crash").unlink()
    plugin = own.folder / "fake_bad.py"
    here = f"import os, sys\nif 'ggplug.registry.probe' in sys.modules:\n    {ending}\n"
    plugin.write_text(here + plugin.read_text("utf-8"), "utf-8")
    assert answers(own, {**settings, "GGPLUG_SAFE": "1"}) == ["Bad0", "NPU0"]
    assert not [each.name for each in (tmp_path / "cache" / "plugins").iterdir() if each.suffix == ".crashed"]


def test_the_doctor_tries_again_what_was_left_out(own: Site, tmp_path: Path, settings: dict[str, str]) -> None:
    own.run("-c", LISTING, **settings)
    assert answers(own, settings) == ["NPU0"]
    (tmp_path / "crash").unlink()  # nothing that is looked at when deciding
    assert answers(own, settings) == ["NPU0"]
    done = own.ggplug("doctor", "--retry", "Bad", **settings)
    assert done.returncode == 0, done.stdout
    assert answers(own, settings) == ["Bad0", "NPU0"]


@pytest.mark.parametrize("change", ["a module", "another distribution"])
def test_it_is_tried_again_when_something_changed(
    change: str, own: Site, tmp_path: Path, settings: dict[str, str]
) -> None:
    own.run("-c", LISTING, **settings)
    assert answers(own, settings) == ["NPU0"]
    (tmp_path / "crash").unlink()
    if change == "a module":
        with open(own.folder / "fake_bad.py", "a", encoding="utf-8") as file:
            file.write("# mended\n")
    else:
        own.add("a-driver", {}, {})
    assert answers(own, settings) == ["Bad0", "NPU0"]


def test_a_program_loads_by_name_what_was_left_out_if_it_does_not_crash_any_more(
    own: Site, tmp_path: Path, settings: dict[str, str]
) -> None:
    own.run("-c", LISTING, **settings)
    code = "import logging, ggplug as gg\nlogging.disable()\ngg.devices()\n"
    load = "try:\n    print(gg.load('Bad').name)\nexcept gg.PluginError as error:\n    print(error.stage, error)\n"
    done = own.run("-c", code + load, **settings)
    assert "installed the plugin Bad of fake-bad 1.0 failed to load: it crashed" in done.stdout
    gone = f"import os\nos.unlink({str(tmp_path / 'crash')!r})\n"
    assert own.run("-c", code + gone + load, **settings).stdout == "Bad\n"


@pytest.mark.parametrize("way", ["option", "option of the command", "setting"])
def test_a_safe_command_lets_no_plugin_crash_it(way: str, own: Site, tmp_path: Path, settings: dict[str, str]) -> None:
    settings["GGPLUG_CACHE_DIR"] = "/dev/null/nothing"
    if way == "setting":
        assert answers(own, settings, GGPLUG_SAFE="1") == ["NPU0"]
        return
    command = ["--safe", "devices"] if way == "option" else ["devices", "--safe"]
    done = own.ggplug(*command, **settings)
    assert (done.returncode, done.stderr) == (0, "")
    assert "NPU0" in done.stdout
    assert "Bad of fake-bad 1.0 failed to load: it crashed the process with SIGABRT" in " ".join(done.stdout.split())
    assert imports(tmp_path) == 1


def test_devices_survives_a_crash_of_which_nothing_can_be_recorded(own: Site, settings: dict[str, str]) -> None:
    done = own.ggplug("devices", **{**settings, "GGPLUG_CACHE_DIR": "/dev/null/nothing"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "NPU0" in done.stdout
    assert "Bad of fake-bad 1.0 failed to load: it crashed the process with SIGABRT" in " ".join(done.stdout.split())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not try the command in a child process")
def test_devices_does_not_wait_for_what_a_plugin_started_before_it_crashed(
    own: Site, tmp_path: Path, settings: dict[str, str]
) -> None:
    """The process that it started keeps open what it inherited, so the output goes to a file."""
    over, listed = tmp_path / "over", tmp_path / "listed"
    plugin = own.folder / "fake_bad.py"
    stays = f"while not os.path.exists({str(over)!r}): time.sleep(0.1)"
    start = f"import os, time\nif not os.fork():\n    {stays}\n    os._exit(0)\n"
    plugin.write_text(start + plugin.read_text("utf-8"), "utf-8")
    command = "[sys.executable, '-m', 'ggplug', 'devices'], stdout=listed, stderr=listed"
    run = f"with open({str(listed)!r}, 'w') as listed:\n    sys.exit(subprocess.run({command}).returncode)"
    try:
        done = own.run("-c", f"import subprocess, sys\n{run}", **{**settings, "GGPLUG_LOAD_TIMEOUT": "0"})
    finally:
        over.touch()
    assert (done.returncode, done.stderr) == (0, "")
    assert "NPU0" in listed.read_text("utf-8")


def spoil(folder: Path, how: str) -> None:
    plugins = folder / "plugins"
    if how == "a file":
        folder.write_text("not a folder", "utf-8")
        return
    if how == "a link":
        folder.mkdir()
        plugins.symlink_to("/tmp")
        return
    plugins.mkdir(parents=True)
    if how == "writable by others":
        plugins.chmod(0o777)
    elif how == "read-only":
        plugins.chmod(0o500)
    elif how == "odd files":
        os.mkfifo(plugins / "a-fifo")
        (plugins / "a-folder").mkdir()
        (plugins / "\udcff").touch()


@pytest.mark.parametrize("how", ["a file", "a link", "writable by others", "read-only", "odd files"])
def test_where_nothing_can_be_kept_plugins_load_all_the_same(
    how: str, own: Site, tmp_path: Path, settings: dict[str, str]
) -> None:
    (tmp_path / "crash").unlink()
    spoil(tmp_path / "cache", how)
    assert answers(own, settings) == ["Bad0", "NPU0"]
    assert len(own.ggplug("devices", "--json", **settings).stdout) > 2


def test_without_a_home_nothing_is_missing(own: Site, tmp_path: Path, settings: dict[str, str]) -> None:
    (tmp_path / "crash").unlink()
    none = {"GGPLUG_CACHE_DIR": "", "HOME": "", "XDG_CACHE_HOME": "", "TMPDIR": str(tmp_path / "none")}
    assert answers(own, settings, **none) == ["Bad0", "NPU0"]


DAMAGE = ["", "{", "[]", "[" * 100_000, '{"doing": 1}', "\x00" * 200_000]


def test_a_verdict_that_is_damaged_or_not_ones_own_counts_for_nothing(
    own: Site, tmp_path: Path, settings: dict[str, str]
) -> None:
    own.run("-c", LISTING, **settings)
    assert answers(own, settings) == ["NPU0"]
    (verdict,) = (tmp_path / "cache" / "plugins").iterdir()
    content = verdict.read_text("utf-8")
    (tmp_path / "crash").unlink()
    for text in DAMAGE:
        verdict.write_text(text, "utf-8")
        assert answers(own, settings) == ["Bad0", "NPU0"]
    verdict.write_text(content, "utf-8")
    verdict.chmod(0o666)
    assert answers(own, settings) == ["Bad0", "NPU0"]


def test_who_is_in_the_middle_of_it_is_not_taken_for_crashed(
    own: Site, tmp_path: Path, settings: dict[str, str]
) -> None:
    """One process loads it and stays in there, while another one uses it."""
    (tmp_path / "crash").unlink()
    plugin = own.folder / "fake_bad.py"
    source = plugin.read_text("utf-8")
    wait = "import sys\nif 'wait' in sys.argv:\n    print('in there', flush=True)\n    sys.stdin.read()\n"
    plugin.write_text(wait + source, "utf-8")
    environment = {**os.environ, **settings, "PYTHONPATH": str(own.folder), "GGPLUG_LOAD_TIMEOUT": "60"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    slow = subprocess.Popen([sys.executable, "-c", LISTING, "wait"], env=environment, **pipes)  # type: ignore[call-overload]
    try:
        assert slow.stdout.readline() == "in there\n"
        before = imports(tmp_path) if (tmp_path / "imported").exists() else 0
        assert answers(own, settings) == ["Bad0", "NPU0"]
        assert imports(tmp_path) == before + 1  # by this process, and by no child
        assert len(list((tmp_path / "cache" / "plugins").iterdir())) == 1
        assert "Bad0" in slow.communicate("go on")[0]
    finally:
        slow.kill()
        slow.wait()
    assert not list((tmp_path / "cache" / "plugins").iterdir())


def test_many_processes_at_once_agree(own: Site, tmp_path: Path, settings: dict[str, str]) -> None:
    own.run("-c", LISTING, **settings)
    environment = {**os.environ, **settings, "PYTHONPATH": str(own.folder)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", LISTING], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(6)
    ]
    for each in started:
        out, _ = each.communicate(timeout=100)
        assert each.returncode == 0
        assert b"NPU0" in out
        assert b"Bad0" not in out
    assert len(list((tmp_path / "cache" / "plugins").iterdir())) == 1


def test_a_plugin_that_is_loaded_from_a_path_is_known_by_its_path(tmp_path: Path, settings: dict[str, str]) -> None:
    site = Site(tmp_path / "site")
    path = site.folder / "of_a_path.py"
    path.write_text("import os\nos.abort()\n", "utf-8")
    settings.update(GGPLUG_BACKEND_PATH=str(path), GGPLUG_BACKENDS="of_a_path")
    assert site.run("-c", LISTING, **settings).returncode == -signal.SIGABRT
    done = site.run("-c", LISTING, **settings)
    assert (done.returncode, done.stdout) == (0, "[]\n")
    assert f"the plugin of_a_path of {path} failed to load: it crashed" in done.stderr
    path.write_text(good("Fine"), "utf-8")
    assert site.run("-c", LISTING, **settings).stdout == "['Fine0']\n"


@pytest.fixture(autouse=True)
def no_core_files() -> Iterator[None]:
    """Crashes on purpose leave no memory images behind."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)
