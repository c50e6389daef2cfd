"""``ggplug embed``: texts from standard input to vectors on standard output, on the devices that were named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from word_models import with_words

import ggplug as gg
from ggplug.errors import DeviceNotFoundError, ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug_models.commands.embed import embed as command
from ggplug_testing import FakeDevice


@pytest.fixture(scope="module")
def model(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_words(data / "bert.gguf", tmp_path_factory.mktemp("embed") / "words.gguf")


@pytest.fixture
def fake() -> Any:
    """A device whose memory is its own, by the name Fake0."""
    device = FakeDevice("Fake0", inner=gg.device("CPU"))
    gg.register_device(device)
    yield device
    gg.unload("Fake0")


def embed(model: Path, given: bytes, *options: str) -> Result:
    return CliRunner().invoke(command, [str(model), *options], input=given)


def records(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_vectors_that_are_not_finite_are_an_error_and_no_line(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged.gguf"
    with GGUFReader(model) as reader, GGUFWriter(path) as writer:
        writer.add_metadata_of(reader)
        for name, info in reader.tensors.items():
            raw = np.array(reader.data(info))
            raw = np.full_like(raw, 255) if name == "token_embd_norm.weight" else raw
            writer.add_tensor(name, raw, info.type, info.ne)
        writer.write()
    done = embed(path, b"w1 w2\n", "--device", "CPU")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "the embedding of line 1 is not finite" in str(done.exception)


def test_each_line_is_answered_in_order(model: Path) -> None:
    done = embed(model, b"w1 w2\r\nw250\n\nw9", "--device", "CPU")
    assert done.exit_code == 0, done.output
    assert [record["text"] for record in records(done)] == ["w1 w2", "w250", "", "w9"]
    for record in records(done):
        assert np.linalg.norm(record["embedding"]) == pytest.approx(1)


def test_lines_before_one_that_is_not_utf_8_are_answered_first(model: Path) -> None:
    done = embed(model, b"w1\nw2\n\xff\xfe\nw3\n", "--device", "CPU")
    assert [record["text"] for record in records(done)] == ["w1", "w2"]
    assert isinstance(done.exception, ParameterError)
    assert "line 3 of standard input is not valid UTF-8" in str(done.exception)


def test_a_long_line_is_answered_like_any_other_and_printed_whole(model: Path) -> None:
    words = [f"w{n % 290}" for n in range(60_000)]
    text = f'{" ".join(words)}\t"quoted" \\ ü 漢 😀'
    done = embed(model, f"w1\n{text}\r\n{' '.join(words[:600])}\nw2".encode(), "--device", "CPU")
    assert done.exit_code == 0, done.output
    found = records(done)
    assert [record["text"] for record in found] == ["w1", text, " ".join(words[:600]), "w2"]
    assert found[1]["embedding"] == found[2]["embedding"]  # both are cut where the model takes no more


def ops_of(fake: FakeDevice) -> list[str]:
    """The ops that the device computed, those of groups one by one."""
    return [op for group in fake.computed() for op in group.split()]


def test_layers_are_split_between_the_named_devices(model: Path, fake: FakeDevice) -> None:
    given = b"w1 w2 w3\nw7\n"
    wanted = records(embed(model, given, "--device", "CPU"))
    fake.forget()
    done = embed(model, given, "--device", "Fake0", "--device", "CPU", "--split", "2,1")
    assert done.exit_code == 0, done.output
    assert ops_of(fake).count("gelu") == 2  # one in each layer
    for record, expected in zip(records(done), wanted, strict=True):
        assert record["text"] == expected["text"]
        np.testing.assert_allclose(record["embedding"], expected["embedding"], rtol=0, atol=1e-6)
    fake.forget()
    assert embed(model, given, "--device", "CPU,Fake0", "--split", "even").exit_code == 0
    assert ops_of(fake).count("gelu") == 1


def test_without_a_split_the_first_device_computes_all_layers(model: Path, fake: FakeDevice) -> None:
    assert embed(model, b"w1\n", "--device", "Fake0", "--device", "CPU").exit_code == 0
    assert ops_of(fake).count("gelu") == 3


def test_a_split_that_makes_no_sense_is_refused_with_what_to_do(model: Path, fake: FakeDevice) -> None:
    both = ("--device", "Fake0", "--device", "CPU")
    alone = embed(model, b"w1\n", "--device", "CPU", "--split", "even")
    assert (alone.exit_code, alone.stdout) == (2, "")
    assert "name each of them with" in alone.stderr
    for split, complaint in (("2,x", "numbers of at least 0"), ("1,2,3", "3 numbers"), ("0,0", "no layers")):
        done = embed(model, b"w1\n", *both, "--split", split)
        assert isinstance(done.exception, ParameterError)
        assert complaint in str(done.exception)
        assert done.exception.remedy
        assert done.stdout == ""


def test_a_device_that_is_not_there_is_not_replaced(model: Path) -> None:
    done = embed(model, b"w1\n", "--device", "Nowhere0")
    assert isinstance(done.exception, DeviceNotFoundError)


# -- in a process of its own -----------------------------------------------------------------------

LOUD = """
import os
import ggplug as gg
from ggplug.backend import API_VERSION, Registration
from ggplug_testing import FakeDevice

print("at import")

class LoudDevice(FakeDevice):
    def init(self, **params):
        print("in init")
        return super().init(**params)

class Loud(Registration):
    name, version, api_version = "Loud", "1", API_VERSION
    def devices(self):
        return made

made = ()

@gg.hookimpl
def ggplug_backend_registration():
    global made
    made = (LoudDevice("Loud0", inner=gg.device("CPU")),)
    return Loud()

@gg.hookimpl
def ggplug_graph_computed(graph):
    print("in compute")
    os.write(1, b"by the descriptor")
"""


def shell(line: str, model: Path, given: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    script = f'embed() {{ "{sys.executable}" -P -m ggplug embed "{model}" "$@"; }}\n{line}'
    return subprocess.run(
        ["bash", "-c", script], input=given, capture_output=True, timeout=120, env={**os.environ, **environment}
    )


unix = pytest.mark.skipif(sys.platform == "win32", reason="the shell and the devices are Unix's")


@unix
def test_what_devices_print_while_they_compute_does_not_disturb_the_answers(model: Path, tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(LOUD, "utf-8")
    line = "embed --device Loud0 --device CPU"
    done = shell(line, model, b"w1\nw2 w3\n", GGPLUG_BACKEND_PATH=str(tmp_path / "loud.py"))
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == ["w1", "w2 w3"]
    for said in (b"at import", b"in init", b"in compute", b"by the descriptor"):
        assert said in done.stderr


@unix
def test_streams_that_are_closed_full_or_without_a_reader_are_said_in_one_line(model: Path) -> None:
    for line, code, said in (
        ("embed --device CPU <&-", 1, b"error: standard input: it is closed\n"),
        ("embed --device CPU > /dev/full", 1, b"error: standard output: No space left on device\n"),
        ("embed --device CPU >&-", 1, b"error: standard output: it is closed\n"),
        ("embed --device CPU 2>&-", 0, b""),
        ("embed --device CPU | true; exit ${PIPESTATUS[0]}", 141, b""),
    ):
        done = shell(line, model, b"w1\n" * 500)
        assert (done.returncode, done.stderr) == (code, said), line


@unix
def test_a_terminal_that_knows_only_ascii_gets_json_all_the_same(model: Path) -> None:
    done = shell("embed --device CPU", model, "w1 ü 漢 😀\n".encode(), PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.decode("ascii"))["text"] == "w1 ü 漢 😀"


@unix
def test_a_model_that_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.gguf")
    for path, kind in ((tmp_path / "fifo.gguf", "a FIFO"), (Path("/dev/zero"), "a device")):
        done = shell("embed", path)
        assert done.returncode == 1
        assert done.stderr.decode() == f"error: {path} is no regular file but {kind}\n"
