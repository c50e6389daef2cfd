"""Standard streams: only the command writes to standard output, and none of them ends a command with a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_distributions import GOOD, Site

from ggplug.cli.streams import _Raw
from ggplug.gguf import GGUFWriter

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the shell and the devices are Unix's")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    with GGUFWriter(path, "bert") as writer:
        writer.add("words", [f"word {n}" for n in range(20_000)])
        writer.add_tensor("x", np.zeros(32, np.float32))
    return path


def shell(site: Site, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line for bash, in which ``ggplug`` is this one."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GGPLUG_", "COLUMNS"))}
    path = os.pathsep.join([str(site.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    script = f'ggplug() {{ "{sys.executable}" -P -m ggplug "$@"; }}\n{command}'
    return subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        cwd=site.folder,
        env={**clean, "PYTHONPATH": path, "PYTHONWARNINGS": "error", **environment},
    )


# -- what plugins print ----------------------------------------------------------------------------

LOUD = """
import atexit, ctypes, os, subprocess, sys, threading
libc = ctypes.CDLL(None)

def shout(where):
    print("python", where)
    sys.stdout.write("stream " + where + "\\n")
    sys.__stdout__.write("original " + where + "\\n")
    sys.__stdout__.flush()
    os.write(1, b"descriptor " + where.encode() + b"\\n")
    libc.puts(b"library " + where.encode())
    libc.fflush(None)
    subprocess.run(["echo", "child " + where])
    thread = threading.Thread(target=print, args=("thread", where))
    thread.start()
    thread.join()

shout("import")
atexit.register(shout, "exit")
"""
WAYS = ("python", "stream", "original", "descriptor", "library", "child", "thread")


def loud(name: str) -> str:
    """A good backend that prints wherever its code runs."""
    good = GOOD.format(name=name, version="1")
    return (
        LOUD
        + good.replace("return TheRegistration()", "shout('hook'); return TheRegistration()")
        .replace("return self.given", "shout('devices'); return self.given")
        .replace("return Memory(", "shout('memory'); return Memory(")
        + """
class Kernels:
    def entries(self):
        shout('entries')
        return []
    def clear(self):
        shout('clear')
        return 0
    def prebuild(self, progress):
        shout('prebuild')
        return 0
def get(self, name):
    shout('get')
    return Kernels() if name == "cache" else None
TheRegistration.get = get
"""
    )


@pytest.mark.parametrize(
    ("command", "places"),
    [
        ("devices --json", ("import", "hook", "devices", "memory", "exit")),
        ("cache show --json", ("import", "hook", "get", "entries", "exit")),
        ("cache clear --json", ("get", "clear")),
        ("cache prebuild --json", ("get", "prebuild")),
    ],
)
@pytest.mark.parametrize("timeout", ["30", "0"], ids=["in a thread", "in the main thread"])
def test_what_plugins_print_goes_to_standard_error(
    site: Site, command: str, places: tuple[str, ...], timeout: str
) -> None:
    site.add_backend("Loud", loud("Loud"))
    done = site.ggplug(*command.split(), GGPLUG_BACKENDS="Loud", GGPLUG_LOAD_TIMEOUT=timeout)
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)
    for place in places:
        for way in WAYS:
            if (way, place) != ("thread", "exit") or sys.version_info < (3, 12):  # no threads start then
                assert f"{way} {place}\n" in done.stderr


def test_help_and_the_commands_of_others_print_as_ever_when_a_plugin_prints(site: Site) -> None:
    source = "import click\nprint('python import')\n@click.command()\ndef hello():\n    'Greets.'\n    "
    source += "click.echo('hello')\n    print('world')\n    import ggplug\n    ggplug.device('Loud0').memory()\n"
    site.add("fake-greeter", {"ggplug.commands": {"hello": "fake_greeter:hello"}}, {"fake_greeter": source})
    site.add_backend("Loud", loud("Loud"))
    done = site.ggplug("hello")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("hello\nworld\n")
    assert "python import" not in done.stdout
    assert "python devices" in done.stderr
    shown = site.ggplug("--help")
    assert "Greets." in shown.stdout
    assert "python import" not in shown.stdout
    assert shown.stderr == "python import\n"


@pytest.mark.parametrize(
    "hang",
    ["threading.Thread(target=threading.Event().wait).start()", "atexit.register(threading.Event().wait)"],
    ids=["a thread", "at the end"],
)
def test_what_a_plugin_leaves_running_does_not_hold_the_process(site: Site, hang: str) -> None:
    good = GOOD.format(name="Clings", version="1")
    site.add_backend("Clings", f"import atexit, threading\n{good}\n{hang}\n")
    done = site.ggplug("devices", "--json", GGPLUG_BACKENDS="Clings", GGPLUG_LOAD_TIMEOUT="2")
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["name"] for row in json.loads(done.stdout)] == ["Clings0"]


# -- streams that are closed, full, or without a reader --------------------------------------------

COMMANDS = ["--help", "--version", "devices --json", "gguf MODEL", "gguf MODEL --json", "cache show"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_closed_or_full_standard_output_is_one_line_that_says_so(site: Site, model: Path, command: str) -> None:
    site.add_backend("NPU")
    line = command.replace("MODEL", f'"{model}"')
    for target, reason in ((">&-", "it is closed"), ("> /dev/full", "No space left on device")):
        done = shell(site, f"ggplug {line} {target}", GGPLUG_BACKENDS="NPU")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"error: standard output: {reason}\n"


@pytest.mark.parametrize("command", ["--help", "devices --json", "gguf MODEL", "gguf MODEL --json"])
def test_a_reader_that_is_gone_ends_a_command_in_silence(site: Site, model: Path, command: str) -> None:
    site.add_backend("NPU")
    line = command.replace("MODEL", f'"{model}"')
    done = shell(site, f"ggplug {line} | true; echo ${{PIPESTATUS[0]}}", GGPLUG_BACKENDS="NPU")
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_standard_error_that_cannot_be_written_changes_nothing(site: Site, model: Path) -> None:
    site.add_backend("NPU")
    site.add_backend("Loud", GOOD.format(name="Loud", version="1") + "print('loud' * 100_000)\n")
    for target in ("2>&-", "2> /dev/full", "<&- 2>&-"):
        done = shell(site, f"ggplug devices --json {target}", GGPLUG_BACKENDS="NPU,Loud")
        assert (done.returncode, done.stderr) == (0, "")
        assert [row["name"] for row in json.loads(done.stdout)] == ["NPU0", "Loud0"]
        for command, code in (("gguf nowhere.gguf", 1), ("devises", 2), ("devices --jsn", 2)):
            done = shell(site, f"ggplug {command} {target}")
            assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    done = shell(site, "ggplug gguf nowhere.gguf 2> >(true); echo $?")
    assert done.stdout == "1\n"
    done = shell(site, f'ggplug gguf "{model}" >&- 2>&- <&-; echo $?')
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_no_file_is_opened_in_the_place_of_a_closed_stream(site: Site) -> None:
    """Whatever is printed to the descriptor 1 would be written into that file."""
    source = """
import click, os
@click.command()
def where():
    with open("opened", "wb") as file:
        print(file.fileno() > 2, file=open("answer", "w"))
        os.write(1, b"printed")
        os.write(2, b"printed")
"""
    site.add("fake-where", {"ggplug.commands": {"where": "fake_where:where"}}, {"fake_where": source})
    done = shell(site, "ggplug where >&- 2>&- <&-")
    assert done.returncode == 0
    assert (site.folder / "answer").read_text("ascii") == "True\n"
    assert (site.folder / "opened").read_bytes() == b""


def test_a_pipe_that_does_not_wait_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    os.set_blocking(reading, False)
    received = []

    def drain(*waiting: object) -> object:
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(reading, 1 << 16):
                received.append(piece)
        return wait(*waiting)

    wait = select.select
    monkeypatch.setattr(select, "select", drain)  # the reader reads when the writer waits for it, and no sooner
    text = "".join(f"{n}\n" for n in range(100_000))
    stream = io.TextIOWrapper(io.BufferedWriter(_Raw(writing, "a pipe")), "utf-8")
    stream.write(text)
    stream.flush()
    drain([], [], [], 0)
    os.close(reading)
    os.close(writing)
    assert b"".join(received).decode() == text


# -- terminals that say odd things of themselves ---------------------------------------------------


@pytest.mark.parametrize("columns", ["0", "-5", "abc", "", "9" * 30, "1e3", "1", "٣"])
def test_any_number_of_columns_is_survived(site: Site, model: Path, columns: str) -> None:
    site.add_backend("NPU")
    done = shell(
        site, f'ggplug devices && ggplug gguf "{model}" && ggplug --help', GGPLUG_BACKENDS="NPU", COLUMNS=columns
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "a device on paper" in " ".join(done.stdout.split())
    assert "Show what a GGUF file holds." in " ".join(done.stdout.split())


def test_a_locale_without_letters_is_survived(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "größe.gguf"
    with GGUFWriter(path, "bert") as writer:
        writer.add("name", "größe 漢字")
    for locale in ({"LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        for option in ("", "--json"):
            done = shell(site, f'ggplug gguf "{path}" {option}', **locale)
            assert (done.returncode, done.stderr) == (0, "")
    assert r"gr\xf6\xdfe" in shell(site, f'ggplug gguf "{path}"', PYTHONIOENCODING="ascii").stdout
