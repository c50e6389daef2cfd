"""``ggplug compare``: a model on two devices, one of which reads weights of one type wrongly."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from oracles.packed import model_file
from wrong_device import Wrong

import ggplug as gg
from ggplug.backend import Device, Group
from ggplug.cli.app import app
from ggplug.gguf import GGUFReader
from ggplug.quantizing import quantize_file
from ggplug.testing import ReferenceDevice

DOWN = "blk.1.ffn_down.weight"


def reads_q8(group: Group) -> bool:
    source = group.node.src[0]
    return (
        group.node.op is not None
        and group.node.op.name == "mul_mat"
        and source is not None
        and (source.type is gg.Q8_0)
    )


@pytest.fixture(scope="module")
def mixed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with one matrix of Q8_0."""
    path = tmp_path_factory.mktemp("models") / "mixed.gguf"
    quantize_file(data / "qwen3.gguf", path, "copy", overrides=[(DOWN, "q8_0")], compiled=False)
    with GGUFReader(path) as reader:
        assert [info.name for info in reader.tensors.values() if info.type is gg.Q8_0] == [DOWN]
    return path


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs the command with these devices in addition to those that are installed."""
    devices: dict[str, Device] = {
        "right": ReferenceDevice("right"),
        "wrong": Wrong(reads_q8, by=10.0, patterns=()),
        "together": Wrong(lambda group: len(group) > 1 and group.node.op.name == "add", by=10.0, name="together"),
    }
    found = gg.device
    monkeypatch.setattr(gg, "device", lambda name: devices.get(name) or found(name))

    def run(*arguments: object, columns: int = 80) -> Result:
        return CliRunner().invoke(app, ["compare", *map(str, arguments)], env={"COLUMNS": str(columns)})

    return run


def test_two_right_devices_agree(compare: Callable[..., Result], mixed: Path, data: Path) -> None:
    for path in (mixed, data / "bert.gguf", model_file("mamba"), model_file("jamba")):
        done = compare(path, "--device", "CPU", "--device", "right")
        assert done.exit_code == 0, done.output
        assert "CPU and right agree on all " in done.output


@pytest.mark.parametrize("options", [(), ("--reference",), ("--no-groups",), ("--no-pack",), ("--ids", "1,2,3")])
def test_the_matrix_that_is_read_wrongly_is_named(
    options: tuple[str, ...], compare: Callable[..., Result], mixed: Path
) -> None:
    done = compare(mixed, "--device", "CPU,wrong", "--json", *options)
    assert done.exit_code == 1, done.output
    found = json.loads(done.output)
    (wrong,) = found["wrong"]
    assert wrong["node"]["name"] == "blk.1.ffn_out"
    assert (wrong["device"], wrong["kernel"], wrong["blamed"]) == ("wrong", "wrong_mul_mat", ["wrong"])
    assert DOWN + " q8_0" in wrong["sources"]
    assert found["follows"][-1]["name"] == "result_output"
    assert found["follows"][-1]["nmse"] > 1e-6
    assert found["growth"][-1]["name"] == "result_output"
    assert found["against"] == ("references" if "--reference" in options else "CPU")
    if options[:1] == ("--ids",):
        assert found["tokens"] == [1, 2, 3]


def test_a_wrong_kernel_of_several_nodes_is_distinguished_from_its_nodes(
    compare: Callable[..., Result], mixed: Path
) -> None:
    done = compare(mixed, "--device", "CPU", "--device", "together", "--json")
    found = json.loads(done.output)
    assert found["wrong"]
    for wrong in found["wrong"]:
        assert len(wrong["group"]) > 1
        assert wrong["alone"] == []
    assert compare(mixed, "--device", "CPU", "--device", "together", "--no-groups").exit_code == 0


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("device", ["wrong", "together"])
def test_the_output_fits_the_terminal(device: str, columns: int, compare: Callable[..., Result], mixed: Path) -> None:
    done = compare(mixed, "--device", "CPU", "--device", device, columns=columns)
    assert done.exit_code == 1
    lines = done.output.splitlines()
    assert max(map(len, lines)) <= columns
    text = " ".join(done.output.split())
    for words in (
        "first wrong node",
        f"wrong_{'mul_mat' if device == 'wrong' else ''}",
        "wrong because of it:",
        device,
    ):
        assert words in text
    assert "\x1b" not in done.output


def test_what_cannot_be_compared_is_refused(compare: Callable[..., Result], mixed: Path) -> None:
    for arguments in ((), ("--device", "CPU"), ("--device", "CPU", "--device", "right", "--device", "wrong")):
        done = compare(mixed, *arguments)
        assert done.exit_code == 2
        assert "Give two devices" in done.output
    done = compare(mixed, "--device", "CPU,right", "--ids", "1", "--prompt", "x")
    assert done.exit_code == 2
    for ids, why in (
        ("one", "integers separated by commas"),
        ("-1", "-1"),
        ("", "integers separated"),
        ("999999999", "9999"),
    ):
        refused = compare(mixed, "--device", "CPU,right", "--ids", ids)
        assert isinstance(refused.exception, gg.ParameterError), ids
        assert why in str(refused.exception)
    assert "which reads a source text first" in str(compare(model_file("t5"), "--device", "CPU,right").exception)


def test_without_the_suite_it_says_what_to_install(
    compare: Callable[..., Result], mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ggplug_testing", None)
    done = compare(mixed, "--device", "CPU,right")
    assert isinstance(done.exception, gg.PluginError)
    assert 'pip install "ggplug-core[test]"' in str(done.exception)


def test_encoders_and_texts_are_read(compare: Callable[..., Result], data: Path) -> None:
    first = json.loads(compare(data / "qwen3.gguf", "--device", "CPU,right", "--json").output)
    other = json.loads(compare(data / "qwen3.gguf", "--device", "CPU,right", "--json", "-p", "Another text").output)
    assert first["tokens"] != other["tokens"]
    assert first["ok"]
    assert other["ok"]


def test_the_model_is_only_read(compare: Callable[..., Result], mixed: Path) -> None:
    before: Any = mixed.read_bytes()
    compare(mixed, "--device", "CPU,right")
    assert mixed.read_bytes() == before
