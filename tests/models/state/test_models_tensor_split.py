"""A model of which each device has a part of the weights gives what it gives on one device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from installed import device_or_skip
from oracles.packed import ORACLES
from paths import DATA

import ggplug as gg
import ggplug_models
from ggplug.backend import Device
from ggplug.cli.app import app
from ggplug.combined import CombinedDevice
from ggplug.errors import ComputeError, OutOfMemoryError, ParameterError
from ggplug_models import CacheOn, LayerSplit, Placement
from ggplug_models.goldens import replay
from ggplug_testing import FakeDevice

OFTEN = ("qwen3", "gemma3", "bert", "gpt-oss", "deepseek2", "bloom", "lfm2", "mamba2")
"""The models with the ops that others lack; the checks that take long have all."""
FILES = sorted([*DATA.glob("*.gguf"), *ORACLES.glob("*.gguf")], key=lambda path: path.stem)
EACH = [pytest.param(path, id=path.stem, marks=[] if path.stem in OFTEN else pytest.mark.long) for path in FILES]
IDS = [2, 9, 33, 120, 7, 3]


def fakes(count: int) -> list[Device]:
    return [FakeDevice(f"fake{number}", inner=gg.device("CPU")) for number in range(count)]


def logits(devices: list[Device], **how: Any) -> np.ndarray:
    with ggplug_models.load(DATA / "qwen3.gguf", devices, **how) as model:
        return model.logits(IDS)


@pytest.mark.parametrize("path", EACH)
def test_each_family_is_right_on_the_cpu_and_opencl_together(path: Path) -> None:
    device = CombinedDevice([gg.device("CPU"), device_or_skip("OpenCL0")])
    report = replay(path, [device, gg.device("CPU")])
    assert report["ok"], report


@pytest.mark.parametrize("path", EACH)
def test_each_family_is_right_on_three_devices(path: Path) -> None:
    report = replay(path, [CombinedDevice(fakes(3), [3, 2, 1]), gg.device("CPU")])
    assert report["ok"], report


def test_a_family_is_right_on_two_opencl_devices() -> None:
    device_or_skip("OpenCL0")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "import ggplug as gg\n"
        "from ggplug_models.goldens import replay\n"
        "report = replay(Path(sys.argv[1]), [gg.device('OpenCL0+OpenCL1'), gg.device('CPU')])\n"
        "assert report['ok'], report\n"
    )
    command = [sys.executable, "-c", code, str(DATA / "qwen3.gguf")]
    done = subprocess.run(
        command, env={**os.environ, "POCL_DEVICES": "basic pthread"}, capture_output=True, text=True, check=False
    )
    if "there is no device 'OpenCL1'" in done.stderr:
        pytest.skip("this OpenCL has one device only")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("proportions", [None, [1, 1], [3, 1], [1, 0, 2]])
def test_the_split_mode_tensor_gives_the_logits_of_one_device(proportions: list[float] | None) -> None:
    devices = fakes(3 if proportions is not None and len(proportions) == 3 else 2)
    found = logits([*devices], placement=LayerSplit(proportions), split_mode="tensor")
    np.testing.assert_allclose(found, logits([gg.device("CPU")]), rtol=0, atol=1e-4)


def test_products_of_a_block_are_split_by_rows_and_then_by_columns() -> None:
    with ggplug_models.load(DATA / "qwen3.gguf", fakes(2), split_mode="tensor") as model:
        lies = {weight.name.removeprefix("blk.1."): weight.buffer_type for weight in model.weights}
    rows = {name for name, memory in lies.items() if memory.name.endswith("rows at 1/2")}
    assert rows >= {"attn_q.weight", "attn_k.weight", "attn_v.weight", "ffn_gate.weight", "ffn_up.weight"}
    columns = {name for name, memory in lies.items() if memory.name.endswith("columns at 1/2")}
    assert columns >= {"attn_output.weight", "ffn_down.weight"}
    assert lies["attn_norm.weight"] is lies["token_embd.weight"]


def test_members_exchange_two_sums_for_each_block() -> None:
    with ggplug_models.load(DATA / "qwen3.gguf", fakes(2), split_mode="tensor") as model:
        details = [row.text for row in model.scheduler.explain(model.sample()).details]
    of_block = [text.partition("then ")[2].split(",")[0] for text in details[:2]]
    assert of_block == ["sum of blk.0.attn_out", "sum of blk.0.ffn_out"]
    assert len(details) == 2 * 3 + 1


def test_members_compute_the_groups_of_a_device_alone() -> None:
    with ggplug_models.load(DATA / "qwen3.gguf", [gg.device("CPU")]) as alone:
        wanted = [group.nodes for group in alone.scheduler.explain(alone.sample()).groups]
    with ggplug_models.load(DATA / "qwen3.gguf", fakes(2), split_mode="tensor") as model:
        assert [group.nodes for group in model.scheduler.explain(model.sample()).groups] == wanted


@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
def test_members_have_the_keys_and_values_of_their_own_heads(cache_type: str) -> None:
    devices = fakes(2)
    with ggplug_models.load(DATA / "qwen3.gguf", [gg.device("CPU")]) as alone, alone.session(64, 1, cache_type) as one:
        wanted, whole = one.decode({0: IDS})[0], one.memory.of_sequence(0)
        with ggplug_models.load(DATA / "qwen3.gguf", devices, split_mode="tensor") as model:
            before = [device.memory().free for device in devices]
            with model.session(64, 1, cache_type) as session:
                taken = [free - device.memory().free for free, device in zip(before, devices, strict=True)]
                assert all(one.memory.nbytes / 2 <= each < one.memory.nbytes / 2 + 8192 for each in taken)
                np.testing.assert_allclose(session.decode({0: IDS})[0], wanted, rtol=0, atol=1e-2)
                for mine, its in zip(session.memory.of_sequence(0), whole, strict=True):
                    np.testing.assert_allclose(mine.numpy(), its.numpy(), rtol=0, atol=5e-2)


def test_a_session_with_split_keys_and_values_is_copied_saved_and_restored(tmp_path: Path) -> None:
    with ggplug_models.load(DATA / "qwen3.gguf", fakes(2), split_mode="tensor") as model:
        with model.session(64, 2) as session:
            session.decode({0: IDS})
            session.copy(0, 1)
            wanted = session.decode({0: [5]})[0]
            np.testing.assert_array_equal(session.decode({1: [5]})[1], wanted)
            session.save(tmp_path / "session")
            after = session.decode({1: [6]})[1]
        with model.session(64, 2) as other:
            other.restore(tmp_path / "session")
            np.testing.assert_array_equal(other.decode({1: [6]})[1], after)


def test_a_member_packs_its_part_of_a_weight() -> None:
    devices = [gg.device("CPU"), *fakes(1)]
    with ggplug_models.load(DATA / "qwen3.gguf", devices, split_mode="tensor") as model:
        weight = model.weights["blk.0.attn_q.weight"]
        assert [kind.has_own_layout for kind in weight.buffer_type.members] == [True, False]
        (packed,) = (each for each in model.packing if each.name == weight.name and each.device is devices[0])
        assert packed.nbytes == weight.nbytes / 2
        with ggplug_models.load(DATA / "qwen3.gguf", devices, split_mode="tensor", pack=False) as plain:
            assert plain.weights[weight.name].tobytes() == weight.tobytes()
            np.testing.assert_allclose(model.logits(IDS * 4), plain.logits(IDS * 4), rtol=0, atol=1e-4)


def test_fit_says_what_each_member_holds_in_the_split_mode_tensor() -> None:
    devices = fakes(2)
    placement = Placement(LayerSplit([3, 1]), split_mode="tensor")
    found = ggplug_models.fit(DATA / "qwen3.gguf", devices, n_ctx=64, placement=placement)
    assert str(found.placement) == "--split-mode tensor --split 3,1"
    assert [each.device for each in found.holdings] == devices
    before = [device.memory().free for device in devices]
    with ggplug_models.load(DATA / "qwen3.gguf", devices, placement=placement) as model:
        assert [free - each.memory().free for free, each in zip(before, devices, strict=True)] == [
            each.weights + each.packed for each in found.holdings
        ]
        before = [device.memory().free for device in devices]
        with model.session(64):
            assert [free - each.memory().free for free, each in zip(before, devices, strict=True)] == [
                each.cache for each in found.holdings
            ]
    with pytest.raises(OutOfMemoryError, match="fake1 would hold"):
        ggplug_models.fit(DATA / "qwen3.gguf", devices, [None, 1000], n_ctx=64, placement=placement)


@pytest.mark.parametrize("kind", ["kernel", "get", "set"])
def test_a_model_is_usable_after_an_error_of_a_member(kind: Any) -> None:
    fake = FakeDevice(inner=gg.device("CPU"))
    with ggplug_models.load(DATA / "qwen3.gguf", [gg.device("CPU"), fake], split_mode="tensor") as model:
        wanted = model.logits(IDS)
        fake.fail(kind)
        with pytest.raises(ComputeError, match=fake.name):
            model.logits(IDS)
        np.testing.assert_array_equal(model.logits(IDS), wanted)
    assert fake.used == 0


def test_rules_for_whole_weights_are_refused_with_the_split_mode_tensor() -> None:
    with pytest.raises(ParameterError, match=r"can be combined only with --split, not with --cache-on CPU"):
        logits(fakes(2), placement=CacheOn("CPU"), split_mode="tensor")
    with pytest.raises(ParameterError, match="at least two devices"):
        logits(fakes(1), split_mode="tensor")
    with pytest.raises(ParameterError, match=r"two devices with a part of the weights, got fake0 "):
        logits(fakes(2), placement=LayerSplit([1, 0]), split_mode="tensor")
    with pytest.raises(ParameterError, match="3 numbers for 2 devices"):
        logits(fakes(2), placement=LayerSplit([1, 1, 1]), split_mode="tensor")
    with pytest.raises(ParameterError, match="the split mode is 'layer' or 'tensor', not 'row'"):
        Placement(split_mode="row")


def test_the_command_line_has_the_split_mode() -> None:
    device_or_skip("OpenCL0")
    command = ["run", str(DATA / "qwen3.gguf"), "--raw", "-p", "abc", "-n", "4"]
    found = CliRunner().invoke(app, [*command, "--device", "CPU,OpenCL0", "--split-mode", "tensor", "-v"])
    assert found.exit_code == 0, found.output
    assert "CPU+OpenCL0" in found.output
    found = CliRunner().invoke(app, [*command, "--device", "CPU", "--split-mode", "tensor"])
    assert found.exit_code == 2
    assert "needs at least two devices" in found.output
