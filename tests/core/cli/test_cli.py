"""The command line: what it prints for people and for programs, and how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fake_distributions import GOOD, Site
from python_calls import python_calls
from rich.cells import cell_len

from ggplug.cli.gguf import gguf as gguf_command
from ggplug.cli.output import byte_count, plain, print_error, printable
from ggplug.gguf import GGUFReader, GGUFWriter

ESCAPES = re.compile(r"\x1b\[")
LONG_NAME = f"blk.0.{'a_rather_long_part.' * 2}and_then_weight"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    with GGUFWriter(path, "bert") as writer:
        writer.add("general.name", "a \x1b[31mred\x1b[0m model")
        writer.add("tokenizer.tokens", [f"token{i}" for i in range(500)])
        writer.add("scores", np.array([0.5, np.nan, np.inf], np.float32))
        writer.add("template", "x" * 400)
        writer.add_tensor(LONG_NAME, np.zeros((3, 32), np.float32))
        writer.add_tensor("token_embd.weight", np.zeros((5, 64), np.float16))
        writer.write()
    return path


def assert_readable(text: str) -> None:
    """In a terminal of 80 columns, without colours where nobody sees them."""
    assert not ESCAPES.search(text)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


# -- devices and doctor ----------------------------------------------------------------------------


def test_devices_lists_what_there_is_as_json(site: Site) -> None:
    site.add_backend("NPU")
    site.add_backend("Same")
    done = site.ggplug("devices", "--json", GGPLUG_BACKENDS="NPU,Same")
    assert (done.returncode, done.stderr) == (0, "")
    first, second = json.loads(done.stdout)
    assert first == {
        "name": "NPU0",
        "description": "a device on paper",
        "kind": "gpu",
        "backend": "NPU",
        "distribution": "fake-npu",
        "version": "1.0",
        "memory_free": 2**30,
        "memory_total": 2**31,
        "device_id": "0000:01:00.0",
        "capabilities": {"asynchronous": False, "host_buffer": False, "buffer_from_host": False, "events": False},
        "same_as": None,
        "error": None,
    }
    assert (second["name"], second["same_as"]) == ("Same0", "NPU0")


def test_devices_is_readable_for_people_and_names_what_failed(site: Site) -> None:
    site.add_backend("NPU")
    site.add_backend("Bad", "raise OSError('libbad.so')")
    done = site.ggplug("devices", GGPLUG_BACKENDS="NPU,Bad")
    assert (done.returncode, done.stderr) == (0, "")
    assert_readable(done.stdout)
    for part in ("NPU0", "GPU", "1.0 GiB free", "of 2.0 GiB", "fake-npu 1.0", "Bad of fake-bad 1.0 failed to load"):
        assert part in done.stdout


def test_a_device_that_does_not_answer_is_listed_with_the_reason(site: Site) -> None:
    source = GOOD.format(name="NPU", version="1")
    site.add_backend("NPU", source.replace("return Memory(2**30, 2**31)", "raise OSError('gone')"))
    (row,) = json.loads(site.ggplug("devices", "--json", GGPLUG_BACKENDS="NPU").stdout)
    assert (row["name"], row["memory_free"]) == ("NPU0", None)
    assert row["error"].startswith("OSError: gone (")
    assert row["error"].endswith("fake_npu.py:11 in memory)")


def test_without_any_backend_devices_says_so(site: Site) -> None:
    done = site.ggplug("devices", GGPLUG_BACKENDS="nothing")
    assert done.returncode == 0
    assert "There is no device." in done.stdout
    assert "nothing of GGPLUG_BACKENDS cannot be read: no plugin of this name" in " ".join(done.stdout.split())
    assert json.loads(site.ggplug("devices", "--json", GGPLUG_BACKENDS="nothing").stdout) == []


def test_doctor_is_readable_for_people(site: Site) -> None:
    site.add_backend("NPU")
    site.add_backend("Bad", "import nobody_has_this")
    done = site.ggplug("doctor", "NPU", "Bad")
    assert (done.returncode, done.stderr) == (1, "")
    assert_readable(done.stdout)
    parts = ("NPU  fake-npu 1.0  ok", "Bad  fake-bad 1.0  failed", "nobody_has_this", "pip install --upgrade fake-bad")
    for part in parts:
        assert part in done.stdout
    assert "1 of 2 plugins have a problem (--traceback shows more)." in done.stdout
    assert "Traceback (most recent call last)" in site.ggplug("doctor", "Bad", "--traceback").stdout


@pytest.mark.parametrize("option", [(), ("--json",), ("--strict",)], ids=" ".join)
def test_the_doctor_exits_with_1_if_something_is_wrong(site: Site, option: tuple[str, ...]) -> None:
    site.add_backend("NPU")
    site.add_backend("Bad", "import nobody_has_this")
    assert site.ggplug("doctor", *option, "NPU").returncode == 0
    assert site.ggplug("doctor", *option, "NPU", "Bad").returncode == 1


def test_a_plugin_that_says_why_it_has_no_device_is_fine_and_quoted(site: Site) -> None:
    site.add_backend("NPU")
    good = GOOD.format(name="Absent", version="1.0")
    nothing = 'raise DeviceNotFoundError("no chip is plugged in", remedy="plug one in")'
    absent = "from ggplug.errors import DeviceNotFoundError\n" + good.replace("return self.given", nothing)
    site.add_backend("Absent", absent)
    done = site.ggplug("doctor", "NPU", "Absent")
    assert (done.returncode, done.stderr) == (0, "")
    assert_readable(done.stdout)
    assert "  it found no device: no chip is plugged in\n  -> plug one in" in done.stdout
    (row,) = json.loads(site.ggplug("doctor", "Absent", "--json").stdout)
    assert (row["ok"], row["no_device"], row["remedy"]) == (True, "no chip is plugged in", "plug one in")
    done = site.ggplug("devices", GGPLUG_BACKENDS="NPU,Absent")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Absent of fake-absent 1.0 found no device: no chip is plugged in\n  -> plug one in" in done.stdout


def test_doctor_shows_what_the_user_left_out(site: Site) -> None:
    site.add_backend("NPU", "raise SystemExit('must not run')")
    (row,) = json.loads(site.ggplug("doctor", "NPU", "--json", GGPLUG_DISABLE="NPU").stdout)
    assert (row["ok"], row["disabled"], row["stage"]) == (True, "GGPLUG_DISABLE", "installed")


# -- gguf ------------------------------------------------------------------------------------------


def test_gguf_prints_everything_as_json(site: Site, model: Path) -> None:
    done = site.ggplug("gguf", str(model), "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert facts["metadata"]["general.architecture"] == "bert"
    assert facts["metadata"]["scores"] == [0.5, "nan", "inf"]
    assert len(facts["metadata"]["tokenizer.tokens"]) == 500
    assert facts["tensors"][1]["name"] == "token_embd.weight"
    assert facts["tensors"][1]["ne"] == [64, 5]
    assert (facts["tensors"][1]["type"], facts["tensors"][1]["bytes"]) == ("f16", 640)


def test_gguf_is_readable_for_people_and_obeys_no_control_characters(site: Site, model: Path) -> None:
    done = site.ggplug("gguf", model.name, COLUMNS="80")
    assert done.returncode == 1  # relative to the folder in which it runs
    assert f"error: {model.name}: No such file or directory" in done.stderr
    done = site.ggplug("gguf", os.path.relpath(model, site.folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert_readable(done.stdout)
    assert r"a \x1b[31mred\x1b[0m model" in done.stdout
    assert "64 × 5" in done.stdout
    text = " ".join(done.stdout.split())
    assert 'tokenizer.tokens string[] "token0", "token1", "token2", ... (500)' in text
    assert "(400 characters)" in text
    assert LONG_NAME in "".join(re.sub(r"  .*", "", line).strip() for line in done.stdout.splitlines())
    full = site.ggplug("gguf", str(model), "--full").stdout
    assert '"token499"' in full
    assert full.count("x") >= 400


ODD_KEYS = {
    "bert.attention.layer_norm_epsilon": np.float32(1e-12),
    "tokenizer.ggml.token_type": np.ones(30_522, np.int32),
    "tokenizer.ggml.tokens": [f"[unused{n}]" for n in range(3000)],
    "short": [1, 2, 3],
    "nothing": np.zeros(0, np.float32),
    "scores": np.array([0.1, np.nan, np.inf, -0.0], np.float32),
    "largest": np.float64(1.7976931348623157e308),
    "nested": [[1, 2], [3, 4]],
    "\x1b]0;owned\x07key": "\x1b[2J\x9b31m\u202ereversed\r\nfake.key   string   fake",
    "a\nfake.key   string   fake": ["\x1b[31m\n", "plain"],
    "words": "several words " * 40,
    "wide": "漢字" * 100,
}


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    path = tmp_path / "odd.gguf"
    with GGUFWriter(path, "bert") as writer:
        for key, value in ODD_KEYS.items():
            writer.add(key, value)
        writer.add_tensor("\x1b[1mname\n\u202e", np.zeros((3, 32), np.float32))
        writer.add_tensor("blk.0.attention_output_layer_norm.weight", np.zeros(32, np.float32))
    return path


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_gguf_breaks_no_words_and_shows_arrays_in_short(site: Site, odd: Path, columns: int) -> None:
    done = site.ggplug("gguf", str(odd), COLUMNS=str(columns))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()[1:]  # the first is the path
    assert max(map(cell_len, lines)) <= columns
    for key in ("general.architecture", "bert.attention.layer_norm_epsilon", "tokenizer.ggml.token_type"):
        assert any(line.startswith(key) for line in lines), done.stdout
    text = " ".join(done.stdout.split())
    for shown in (
        "1, 1, 1, ... (30,522)",
        '"[unused0]", "[unused1]", "[unused2]", ... (3,000)',
        "1, 2, 3",
        "0.1, nan, inf, -0.0",
        "1e-12",
        "1.7976931348623157e+308",
        "[1, 2], [3, 4]",
        "several words several words",
        "... (560 characters)",
    ):
        assert shown in text, done.stdout
    assert "3 × 32" not in text
    assert "32 × 3" in text


@pytest.mark.parametrize("options", [(), ("--full",), ("--json",)], ids=" ".join)
def test_what_a_file_says_never_reaches_the_terminal_as_a_command(
    site: Site, odd: Path, options: tuple[str, ...]
) -> None:
    done = site.ggplug("gguf", str(odd), *options, COLUMNS="60")
    assert done.returncode == 0
    for line in done.stdout.splitlines():
        assert line.isprintable(), line
    if not options:
        assert not any(line.startswith("fake.key") for line in done.stdout.splitlines())


def large(path: Path, what: str, count: int) -> Path:
    """A file with as many keys, tensors, or items of an array."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    n_pairs, n_tensors = {"keys": (count, 0), "tensors": (0, count), "an array": (1, 0)}[what]
    if what == "keys":
        parts = [text(f"some.key_{n}") + struct.pack("<I", 8) + text(f"value {n}") for n in range(count)]
    elif what == "tensors":
        facts = [struct.pack("<IQIQ", 1, 8, 0, 32 * n) for n in range(count)]
        parts = [text(f"blk.{n}.weight") + facts[n] for n in range(count)]
    else:
        parts = [text("words") + struct.pack("<IIQ", 9, 8, count), *(text(f"w{n}") for n in range(count))]
    header = b"".join([b"GGUF", struct.pack("<IQQ", 3, n_tensors, n_pairs), *parts])
    path.write_bytes(header + bytes(-len(header) % 32 + 32 * n_tensors))
    return path


@pytest.mark.parametrize("what", ["keys", "tensors", "an array"])
def test_the_work_grows_with_the_file_and_no_faster(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted for 2,000 and 20,000; and that nothing costs hundreds of calls each, as 200,000 of them would show."""
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    small, big = (large(tmp_path / f"{count}.gguf", what, count) for count in (2_000, 20_000))
    show = gguf_command.callback
    assert show is not None
    for run, most in (
        (lambda path: GGUFReader(path).close(), 40),
        (lambda path: show(path, as_json=False, full=False, no_tensors=False), 150),
        (lambda path: show(path, as_json=False, full=True, no_tensors=False), 150),
        (lambda path: show(path, as_json=True, full=False, no_tensors=False), 300),
    ):
        few, many = (python_calls(partial(run, path)) for path in (small, big))
        assert many <= 13 * few
        assert many <= most * 20_000


def test_a_broken_file_is_one_clean_message(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF\x03")
    done = site.ggplug("gguf", str(path))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert "Traceback" in site.ggplug("--debug", "gguf", str(path)).stderr
    assert "Traceback" in site.ggplug("gguf", str(path), GGPLUG_DEBUG="1").stderr


# -- cache -----------------------------------------------------------------------------------------

CACHE = """
from types import SimpleNamespace
class Kernels:
    def entries(self):
        return [SimpleNamespace(name="mul_mat", target="avx2", bytes=2048, used=0.0)]
    def clear(self):
        return 3
    def prebuild(self, progress):
        progress(0, 1, "mul_mat")
        return 1
TheRegistration.get = lambda self, name: Kernels() if name == "cache" else None
"""


def test_cache_asks_the_backends_that_keep_kernels(site: Site) -> None:
    site.add_backend("Keeps", GOOD.format(name="Keeps", version="1") + CACHE)
    site.add_backend("Keepsnot")
    chosen = {"GGPLUG_BACKENDS": "Keeps,Keepsnot"}
    (entry,) = json.loads(site.ggplug("cache", "show", "--json", **chosen).stdout)
    assert (entry["backend"], entry["name"], entry["bytes"]) == ("Keeps", "mul_mat", 2048)
    shown = site.ggplug("cache", "show", **chosen).stdout
    assert_readable(shown)
    assert "1 kernels, 2.0 KiB" in shown
    assert site.ggplug("cache", "clear", **chosen).stdout == "Keeps: deleted 3 kernels\n"
    assert site.ggplug("cache", "prebuild", **chosen).stdout == "Keeps: compiled 1 kernels\n"
    done = site.ggplug("cache", "clear", "--backend", "Keepsnot", **chosen)
    assert done.returncode == 1
    assert "Keepsnot keeps no compiled kernels" in done.stderr


# -- commands of other distributions ---------------------------------------------------------------


def test_another_distribution_adds_a_command(site: Site) -> None:
    source = "import click\n@click.command()\ndef hello():\n    'Greets.'\n    click.echo('hello')\n"
    site.add("fake-greeter", {"ggplug.commands": {"hello": "fake_greeter:hello"}}, {"fake_greeter": source})
    assert site.ggplug("hello").stdout == "hello\n"
    assert re.search(r"hello +Greets\.", site.ggplug("--help").stdout)


def test_a_command_that_cannot_be_loaded_is_shown_with_its_reason_and_breaks_nothing(site: Site) -> None:
    broken = "raise SystemExit(9)"
    site.add("fake-broken", {"ggplug.commands": {"broken": "fake_broken:command"}}, {"fake_broken": broken})
    site.add("fake-odd", {"ggplug.commands": {"odd": "fake_odd:command"}}, {"fake_odd": "command = 1"})
    shown = site.ggplug("--help")
    assert shown.returncode == 0
    text = " ".join(shown.stdout.split())
    assert "Unavailable:" in text
    assert "broken fake-broken 1.0: SystemExit: 9" in text
    assert "odd fake-odd 1.0: fake_odd:command is not a click command but int" in text
    assert site.ggplug("devices", GGPLUG_BACKENDS="none").returncode == 0
    done = site.ggplug("broken")
    assert done.returncode == 1
    assert "the command broken of fake-broken 1.0 is unavailable: SystemExit: 9" in done.stderr


def test_version_names_every_distribution(site: Site) -> None:
    site.add_backend("NPU", "raise SystemExit('must not be imported')")
    done = site.ggplug("--version")
    assert done.returncode == 0
    assert "ggplug-core" in done.stdout
    assert "fake-npu 1.0" in done.stdout
    assert f"Python {sys.version.split()[0]}" in done.stdout


# -- endings ---------------------------------------------------------------------------------------


def test_wrong_usage_exits_with_2(site: Site) -> None:
    done = site.ggplug("devises")
    assert done.returncode == 2
    assert "No such command 'devises'" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="a pipe without readers ends differently there")
def test_a_reader_that_goes_away_is_no_error(site: Site, model: Path) -> None:
    command = f'"{sys.executable}" -m ggplug gguf "{model}" --json | head -n 1; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.splitlines()[0] == "{"
    assert done.stdout.splitlines()[-1] in ("0", "141")  # it may have been done before the reader left


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent differently there")
def test_ctrl_c_exits_with_130(site: Site) -> None:
    source = "import click, signal\n@click.command()\ndef wait():\n    signal.raise_signal(signal.SIGINT)\n"
    site.add("fake-waiter", {"ggplug.commands": {"wait": "fake_waiter:wait"}}, {"fake_waiter": source})
    done = site.ggplug("wait")
    assert done.returncode == 128 + signal.SIGINT
    assert "Traceback" not in done.stderr


def test_colour_is_for_terminals_that_want_it(site: Site) -> None:
    site.add_backend("NPU")
    assert not ESCAPES.search(site.ggplug("devices", GGPLUG_BACKENDS="NPU").stdout)
    assert ESCAPES.search(site.ggplug("devices", GGPLUG_BACKENDS="NPU", FORCE_COLOR="1").stdout)
    unwanted = site.ggplug("devices", GGPLUG_BACKENDS="NPU", FORCE_COLOR="1", NO_COLOR="1")
    assert not re.search(r"\x1b\[3\dm", unwanted.stdout)


def test_a_terminal_that_knows_only_ascii_gets_escapes(site: Site, model: Path) -> None:
    done = site.ggplug("gguf", str(model), PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert r"64 \xd7 5" in done.stdout


# -- parts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "?"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**40, "1.0 TiB"), (2**51, "2048.0 TiB")],
)
def test_bytes_are_counted_in_units_of_1024(count: int | None, text: str) -> None:
    assert byte_count(count) == text


def test_control_characters_and_lone_surrogates_are_shown_as_escapes() -> None:
    assert printable("tab\there\nbell\x07 \ud800 ü") == "tab\\there\nbell\\x07 \\ud800 ü"


def test_what_an_error_quotes_looks_like_no_message_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("tensor \x1b[2Jx\nerror: another\n  -> do as I say is odd", "look at it\n-> or not")
    assert capsys.readouterr().err.splitlines() == [
        r"error: tensor \x1b[2Jx",
        "  error: another",
        "    -> do as I say is odd",
        "  -> look at it",
        "     -> or not",
    ]


def test_json_values_are_what_json_has() -> None:
    value = {1: np.float32(0.5), "b": (np.int64(3), np.array([[1, 2]])), "c": float("-inf"), "d": Path("x")}
    assert plain(value) == {"1": 0.5, "b": [3, [[1, 2]]], "c": "-inf", "d": "x"}


def test_a_name_of_a_model_that_a_plugin_does_not_make_a_path_of_is_refused(site: Site) -> None:
    source = "def path_of(name):\n    print('looking')\n    return len(name)\n"
    site.add("fake-hub", {"ggplug.model_names": {"odd": "fake_hub:path_of"}}, {"fake_hub": source})
    done = site.ggplug("gguf", "odd:model")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "looking\nerror: the model odd:model of fake-hub 1.0 is unavailable: fake_hub:path_of returned a int, no path"
    )
