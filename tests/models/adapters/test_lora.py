"""LoRA adapters: beside a model's weights, and merged into them.  The recorded logits are llama.cpp's."""

from __future__ import annotations

from collections.abc import Callable
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
from ggplug import quants
from ggplug.backend import Device
from ggplug.cli.app import app
from ggplug.combined import CombinedDevice
from ggplug.errors import ModelError, ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug.quantizing import quantize_file
from ggplug_models.adapters.merging import merge
from ggplug_models.weights.placement import alternating
from ggplug_testing import FakeDevice

MODEL, ADAPTER = DATA / "qwen3.gguf", DATA / "adapters" / "qwen3-lora.gguf"
RECORDED = np.load(ADAPTER.with_suffix(".npz"))
IDS = RECORDED["ids"].tolist()
SCALE = float(RECORDED["scale"])


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """The normalised mean squared error."""
    return float(np.mean((found - wanted.astype(np.float64)) ** 2) / np.mean(wanted.astype(np.float64) ** 2))


def adapter(path: Path, changed: dict[str, tuple[tuple[int, ...], tuple[int, ...]]], **metadata: Any) -> Path:
    """An adapter with random matrices of these shapes, rows first."""
    random = np.random.default_rng(5)
    pairs = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": np.float32(6), **metadata}
    with GGUFWriter(path, arch=pairs.pop("general.architecture", "qwen3")) as writer:
        for key, value in pairs.items():
            writer.add(key, value)
        for name, shapes in changed.items():
            for end, shape in zip(("a", "b"), shapes, strict=True):
                writer.add_tensor(f"{name}.lora_{end}", random.standard_normal(shape, np.float32) * np.float32(0.1))
        writer.write()
    return path


def on_cpu() -> list[Device]:
    return [gg.device("CPU")]


def on_opencl() -> list[Device]:
    return [device_or_skip("OpenCL0"), gg.device("CPU")]


def on_two() -> list[Device]:
    return [FakeDevice(inner=gg.device("CPU")), gg.device("CPU")]


def combined() -> list[Device]:
    return [CombinedDevice([FakeDevice(inner=gg.device("CPU")), gg.device("CPU")]), gg.device("CPU")]


@pytest.mark.parametrize("devices", [on_cpu, on_opencl, on_two, combined])
def test_logits_with_an_adapter_are_llama_cpps(devices: Callable[[], list[Device]]) -> None:
    placement = alternating if devices is on_two else None
    with ggplug_models.load(MODEL, devices(), placement=placement) as model:
        before = model.logits(IDS)
        with model.adapt(ADAPTER, SCALE):
            assert error(model.logits(IDS), RECORDED["logits"]) < 1e-5
        np.testing.assert_array_equal(model.logits(IDS), before)
    assert error(before, RECORDED["logits"]) > 0.1


def test_adapters_add_up_and_one_with_scale_zero_changes_nothing() -> None:
    with ggplug_models.load(MODEL, ["CPU"]) as model:
        plain = model.logits(IDS)
        with model.adapt(ADAPTER, 0):
            np.testing.assert_array_equal(model.logits(IDS), plain)
        with model.adapt(ADAPTER, SCALE / 2), model.adapt(ADAPTER, SCALE / 2):
            assert error(model.logits(IDS), RECORDED["logits"]) < 1e-5


def test_a_session_goes_on_when_an_adapter_is_removed() -> None:
    with ggplug_models.load(MODEL, ["CPU"]) as model, model.session(64) as session:
        used = model.adapt(ADAPTER)
        with_it = session.decode({0: IDS})[0]
        used.remove()
        used.remove()
        session.clear()
        assert error(session.decode({0: IDS})[0], with_it) > 0.01


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_a_merged_model_is_the_model_with_the_adapter(tmp_path: Path, kind: str) -> None:
    plain = tmp_path / "plain.gguf"
    quantize_file(MODEL, plain, kind)
    merged = merge(plain, {ADAPTER: SCALE}, tmp_path / "merged.gguf")
    with GGUFReader(plain) as before, GGUFReader(merged) as after:
        assert {n: (t.type, t.ne) for n, t in before.tensors.items()} == {
            n: (t.type, t.ne) for n, t in after.tensors.items()
        }
    with ggplug_models.load(plain, ["CPU"]) as model, model.adapt(ADAPTER, SCALE):
        wanted = model.logits(IDS)
    with ggplug_models.load(merged, ["CPU"]) as model:
        assert error(model.logits(IDS), wanted) < (1e-5 if kind == "F16" else 1e-3)


def test_merged_weights_are_w_plus_the_scaled_product(tmp_path: Path) -> None:
    merged = merge(MODEL, {ADAPTER: 2}, tmp_path / "merged.gguf")
    name = "blk.1.attn_v.weight"
    with GGUFReader(MODEL) as model, GGUFReader(ADAPTER) as file, GGUFReader(merged) as found:
        a, b = (file.array(f"{name}.lora_{end}").astype(np.float64) for end in "ab")
        wanted = model.array(name).astype(np.float64) + 2 * 8.0 / 4 * np.einsum("or,ri->oi", b, a)
        np.testing.assert_allclose(found.array(name).astype(np.float64), wanted, rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(found.array("blk.1.attn_k.weight"), model.array("blk.1.attn_k.weight"))


def test_a_weight_of_one_dimension_is_merged_as_it_is_adapted(tmp_path: Path) -> None:
    ids = [each % 64 for each in IDS]
    model, gate = ORACLES / "qwen2moe.gguf", "blk.0.ffn_gate_inp_shexp.weight"
    with GGUFReader(model) as reader:
        ((n,),) = (reader.tensors[gate].shape,)
    file = adapter(tmp_path / "a.gguf", {gate: ((3, n), (1, 3))}, **{"general.architecture": "qwen2moe"})
    with ggplug_models.load(merge(model, {file: 1.5}, tmp_path / "merged.gguf"), ["CPU"]) as other:
        wanted = other.logits(ids)
    with ggplug_models.load(model, ["CPU"]) as loaded, loaded.adapt(file, 1.5):
        assert error(loaded.logits(ids), wanted) < 1e-5


@pytest.mark.parametrize(
    ("scale", "kind", "said"),
    [(1e6, "F16", "f16 needs numbers that f16 holds"), (3e38, "F32", "f32 needs finite numbers")],
)
def test_a_merged_weight_out_of_range_is_refused(tmp_path: Path, scale: float, kind: str, said: str) -> None:
    quantize_file(MODEL, plain := tmp_path / "plain.gguf", kind)
    file = adapter(tmp_path / "a.gguf", {"blk.1.attn_q.weight": ((4, 64), (128, 4))})
    with pytest.raises(ModelError, match=rf"plain.gguf with .*a.gguf: tensor blk.1.attn_q.weight has .*{said}"):
        merge(plain, {file: scale}, tmp_path / "merged.gguf")
    assert not (tmp_path / "merged.gguf").exists()


def test_experts_and_a_table_of_embeddings_that_is_the_output_too_can_be_changed(tmp_path: Path) -> None:
    ids = [each % 64 for each in IDS]
    for name, weights in (("qwen3moe", ["blk.0.ffn_down_exps.weight"]), ("gemma", ["token_embd.weight"])):
        model = ORACLES / f"{name}.gguf"
        with GGUFReader(model) as reader:
            shapes = {weight: reader.tensors[weight].shape for weight in weights}
            architecture = reader.metadata["general.architecture"]
            assert name != "gemma" or "output.weight" not in reader.tensors
        changed = {
            weight: ((shape[0], 3), (shape[1], 3))
            if weight == "token_embd.weight"
            else ((*shape[:-2], 3, shape[-1]), (*shape[:-2], shape[-2], 3))
            for weight, shape in shapes.items()
        }
        file = adapter(tmp_path / "adapter.gguf", changed, **{"general.architecture": architecture})
        merged = merge(model, {file: 1.5}, tmp_path / "merged.gguf")
        with ggplug_models.load(merged, ["CPU"]) as other:
            wanted = other.logits(ids)
        with ggplug_models.load(model, ["CPU"]) as loaded:
            plain = loaded.logits(ids)
            with loaded.adapt(file, 1.5):
                assert error(loaded.logits(ids), wanted) < 1e-5
        assert error(plain, wanted) > 1e-3


def test_quantised_matrices_can_change_a_table_that_is_the_output_too(tmp_path: Path) -> None:
    model, ids = ORACLES / "gemma.gguf", [each % 64 for each in IDS]
    with GGUFReader(model) as reader:
        rows, n = reader.tensors["token_embd.weight"].shape
    plain = adapter(
        tmp_path / "plain.gguf", {"token_embd.weight": ((rows, 32), (n, 32))}, **{"general.architecture": "gemma"}
    )
    with GGUFReader(plain) as reader, GGUFWriter(tmp_path / "quantised.gguf", arch="gemma") as writer:
        writer.add_metadata_of(reader)
        for name, info in reader.tensors.items():
            writer.add_tensor(name, quants.quantize(reader.array(info), gg.Q8_0), gg.Q8_0, info.ne)
        writer.write()
    merged = merge(model, {tmp_path / "quantised.gguf": 1.0}, tmp_path / "merged.gguf")
    with ggplug_models.load(merged, ["CPU"]) as other:
        wanted = other.logits(ids)
    with ggplug_models.load(model, ["CPU"]) as loaded, loaded.adapt(tmp_path / "quantised.gguf"):
        assert error(loaded.logits(ids), wanted) < 1e-3


@pytest.mark.parametrize(
    ("changed", "metadata", "said"),
    [
        ({"blk.0.attn_q.weight": ((3, 64), (128, 3))}, {"general.type": "model"}, "general.type is 'model'"),
        ({"blk.0.attn_q.weight": ((3, 64), (128, 3))}, {"general.architecture": "llama"}, "made for llama"),
        ({"blk.0.attn_q.weight": ((3, 63), (128, 3))}, {}, "its matrices for 'blk.0.attn_q.weight'"),
        ({"blk.0.attn_q.weight": ((2, 64), (128, 3))}, {}, "its matrices for 'blk.0.attn_q.weight'"),
        ({"blk.9.attn_q.weight": ((3, 64), (128, 3))}, {}, "the model has no weight 'blk.9.attn_q.weight'"),
        ({"output_norm.weight": ((3, 64), (1, 3))}, {}, "no product of the model reads output_norm.weight"),
        ({}, {}, "it changes no weights"),
        ({"blk.0.attn_q.weight": ((3, 64), (128, 3))}, {"adapter.alora.invocation_tokens": [1]}, "aLoRA"),
    ],
)
def test_what_is_no_adapter_of_the_model_is_refused(
    tmp_path: Path, changed: Any, metadata: dict[str, Any], said: str
) -> None:
    file = adapter(tmp_path / "adapter.gguf", changed, **metadata)
    with ggplug_models.load(MODEL, ["CPU"]) as model:
        with pytest.raises(ModelError, match=said):
            model.adapt(file)
        assert model.patches == ()
    with pytest.raises(ModelError, match="adapter"):
        ggplug_models.load(MODEL, ["CPU"]).adapt(MODEL)


def test_half_of_a_pair_is_refused(tmp_path: Path) -> None:
    with GGUFWriter(tmp_path / "adapter.gguf", arch="qwen3") as writer:
        writer.add("general.type", "adapter")
        writer.add("adapter.type", "lora")
        writer.add_tensor("blk.0.attn_q.weight.lora_a", np.zeros((3, 64), np.float32))
        writer.write()
    with ggplug_models.load(MODEL, ["CPU"]) as model, pytest.raises(ModelError, match=r"only one of \.lora_a"):
        model.adapt(tmp_path / "adapter.gguf")


@pytest.mark.parametrize(
    ("type", "rank", "said"),
    [(np.float32, 0, "rank 0"), (np.int32, 3, "holds i32"), (np.float64, 3, "holds f64")],
)
def test_matrices_that_no_product_takes_are_refused(tmp_path: Path, type: Any, rank: int, said: str) -> None:
    with GGUFWriter(tmp_path / "adapter.gguf", arch="qwen3") as writer:
        for key, value in {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 6.0}.items():
            writer.add(key, value)
        writer.add_tensor("blk.0.attn_q.weight.lora_a", np.ones((rank, 64), type))
        writer.add_tensor("blk.0.attn_q.weight.lora_b", np.ones((128, rank), type))
        writer.write()
    with ggplug_models.load(MODEL, ["CPU"]) as model, pytest.raises(ModelError, match=said):
        model.adapt(tmp_path / "adapter.gguf")


def test_a_scale_that_is_no_number_is_refused() -> None:
    with ggplug_models.load(MODEL, ["CPU"]) as model, pytest.raises(ParameterError, match="scale must be"):
        model.adapt(ADAPTER, float("nan"))


def test_the_command_line_adapts_and_merges(tmp_path: Path) -> None:
    run = ["run", "--raw", "-p", "abc", "-n", "8", "--temperature", "0", "--device", "CPU"]
    beside = CliRunner().invoke(app, [*run, str(DATA / "qwen3.gguf"), "--lora", f"{ADAPTER}=0.7"])
    assert beside.exit_code == 0, beside.output
    done = CliRunner().invoke(app, ["merge", str(MODEL), str(tmp_path / "m.gguf"), "--lora", f"{ADAPTER}=0.7"])
    assert done.exit_code == 0, done.output
    merged = CliRunner().invoke(app, [*run, str(tmp_path / "m.gguf")])
    assert merged.output.splitlines()[0] == beside.output.splitlines()[0]
    halves = ["--lora", f"{ADAPTER}=0.5", "--lora", f"{ADAPTER}=0.2"]
    done = CliRunner().invoke(app, ["merge", str(MODEL), str(tmp_path / "halves.gguf"), *halves])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "halves.gguf").read_bytes() == (tmp_path / "m.gguf").read_bytes()
    for options, said in ((["--lora", f"{ADAPTER}=x"], "'x' is not a number"), ([], "at least one adapter")):
        found = CliRunner().invoke(app, ["merge", str(MODEL), str(tmp_path / "n.gguf"), *options])
        assert found.exit_code == 2
        assert said in found.output
    assert not (tmp_path / "n.gguf").exists()
