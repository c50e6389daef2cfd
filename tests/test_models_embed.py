"""``ggplug embed``: texts from standard input to vectors on standard output, on the devices that were named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import ggplug as gg
from ggplug.errors import DeviceNotFoundError, ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug.testing import FakeDevice
from ggplug_models import commands


@pytest.fixture(scope="module")
def model(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model with a vocabulary, so that it takes texts."""
    path = tmp_path_factory.mktemp("embed") / "words.gguf"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"\u2581w{n}" for n in range(296))]
    with GGUFReader(data / "bert.gguf") as reader, GGUFWriter(path, "bert") as writer:
        writer.add_metadata_of(reader, without={key for key in reader.metadata if key.startswith("tokenizer.")})
        writer.add("tokenizer.ggml.model", "bert")
        writer.add("tokenizer.ggml.tokens", words)
        for name, info in reader.tensors.items():
            writer.add_tensor(name, reader.data(name), info.type, info.ne)
        writer.write()
    return path


@pytest.fixture
def fake() -> Any:
    """A device whose memory is its own, by the name Fake0."""
    device = FakeDevice("Fake0", inner=gg.device("CPU"))
    gg.register_device(device)
    yield device
    gg.unload("Fake0")


def embed(model: Path, given: bytes, *options: str) -> Result:
    return CliRunner().invoke(commands.embed, [str(model), *options], input=given)


def records(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


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
    assert "line 3 of standard input is not UTF-8" in str(done.exception)


def test_a_long_line_is_answered_like_any_other_and_printed_whole(model: Path) -> None:
    words = [f"w{n % 290}" for n in range(60_000)]
    text = f'{" ".join(words)}\t"quoted" \\ ü 漢 😀'
    done = embed(model, f"w1\n{text}\r\n{' '.join(words[:600])}\nw2".encode(), "--device", "CPU")
    assert done.exit_code == 0, done.output
    found = records(done)
    assert [record["text"] for record in found] == ["w1", text, " ".join(words[:600]), "w2"]
    assert found[1]["embedding"] == found[2]["embedding"]  # both are cut where the model takes no more


def test_layers_are_split_between_the_named_devices(model: Path, fake: FakeDevice) -> None:
    given = b"w1 w2 w3\nw7\n"
    wanted = records(embed(model, given, "--device", "CPU"))
    fake.forget()
    done = embed(model, given, "--device", "Fake0", "--device", "CPU", "--split", "2,1")
    assert done.exit_code == 0, done.output
    assert fake.computed().count("gelu") == 2  # one in each layer
    for record, expected in zip(records(done), wanted, strict=True):
        assert record["text"] == expected["text"]
        np.testing.assert_allclose(record["embedding"], expected["embedding"], rtol=0, atol=1e-6)
    fake.forget()
    assert embed(model, given, "--device", "CPU,Fake0", "--split", "even").exit_code == 0
    assert fake.computed().count("gelu") == 1


def test_without_a_split_the_first_device_computes_all_layers(model: Path, fake: FakeDevice) -> None:
    assert embed(model, b"w1\n", "--device", "Fake0", "--device", "CPU").exit_code == 0
    assert fake.computed().count("gelu") == 3


def test_a_split_that_makes_no_sense_is_refused_with_what_to_do(model: Path, fake: FakeDevice) -> None:
    both = ("--device", "Fake0", "--device", "CPU")
    alone = embed(model, b"w1\n", "--device", "CPU", "--split", "even")
    assert (alone.exit_code, alone.stdout) == (2, "")
    assert "name each with --device" in alone.stderr
    for split, complaint in (("2,x", "is no share"), ("1,2,3", "3 shares"), ("0,0", "without layers")):
        done = embed(model, b"w1\n", *both, "--split", split)
        assert isinstance(done.exception, ParameterError)
        assert complaint in str(done.exception)
        assert done.exception.remedy
        assert done.stdout == ""


def test_a_device_that_is_not_there_is_not_replaced(model: Path) -> None:
    done = embed(model, b"w1\n", "--device", "Nowhere0")
    assert isinstance(done.exception, DeviceNotFoundError)
