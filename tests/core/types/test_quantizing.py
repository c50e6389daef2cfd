"""Models quantised: which tensor becomes which type, by what importance, and the file that results."""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner

from ggplug import quants, types
from ggplug.cli.app import app
from ggplug.errors import GGPlugError, GGUFError, ModelError, ParameterError, TypeMismatchError
from ggplug.gguf import GGUFReader, GGUFWriter, TensorInfo
from ggplug.gguf.file_types import FILE_TYPES
from ggplug.quantizing import MIXTURES, Override, quantize_file, read_importance
from ggplug.quantizing.choice import choose, in_order, may_change
from ggplug.quantizing.mixtures import Model, mixture
from ggplug.quantizing.rows import Encoder

PARTS = ("ffn_down", "ffn_gate", "ffn_up", "attn_k", "attn_output", "attn_q", "attn_v")


def info(name: str, *ne: int, type: types.Type = types.F16) -> TensorInfo:
    return TensorInfo(name, type, ne or (256, 512), 0, 0)


def layers(count: int, parts: Iterable[str] = PARTS) -> list[TensorInfo]:
    return [info(f"blk.{layer}.{part}.weight") for layer in range(count) for part in parts]


def chosen(name: str, infos: list[TensorInfo], model: Model, **how: Any) -> dict[str, str]:
    """Of each tensor the type, where it is not that of most."""
    how.setdefault("importance", False)
    found = mixture(name)
    choices = choose(infos, found, model, **how)
    return {each.info.name: each.type.name for each in choices if each.type is not found.base}


def where(found: dict[str, str], part: str, type: str) -> list[int]:
    """The layers in which that part has that type."""
    return [int(name.split(".")[1]) for name, each in found.items() if f".{part}." in name and each == type]


# -- which type ----------------------------------------------------------------------------------------

GEMMA = Model("gemma3", 0, 2, 34)
"""Gemma 3 4B, of which llama.cpp's tests list every type; its files have layers in the order of their names."""
GEMMA_ORDER = [0, 1, 10, 11, 12, 13, 14, *range(2, 10), *range(15, 34)]


def gemma() -> list[TensorInfo]:
    found = [info("token_embd.weight")]
    for layer in GEMMA_ORDER:
        # the last matrix of layer 14 is in the second file
        parts = PARTS[1:] if layer == 14 else PARTS
        found += [info("blk.14.ffn_down.weight")] if layer == 15 else []
        found += [info(f"blk.{layer}.{part}.weight") for part in parts]
    return found


def test_mixtures_choose_what_llama_cpp_chooses_for_gemma() -> None:
    more = [15, 18, 21, 24, 27, 29, 30, 31, 32, 33]
    for name in ("Q4_K_M", "Q5_K_M"):
        found = chosen(name, gemma(), GEMMA)
        assert where(found, "ffn_down", "q6_K") == [0, 1, 10, 11, 2, 5, 8, *more]
        assert where(found, "attn_v", "q6_K") == [0, 1, 10, 11, 14, 4, 7, *more]
        assert found["token_embd.weight"] == "q6_K"
        assert len(found) == 35
    first = [0, 1, 10, 11]
    found = chosen("Q4_K_S", gemma(), GEMMA)
    assert found == {
        "token_embd.weight": "q6_K",
        **{f"blk.{layer}.{part}.weight": "q5_K" for layer in first for part in ("ffn_down", "attn_v")},
    }
    found = chosen("Q3_K_M", gemma(), GEMMA)
    assert where(found, "ffn_down", "q5_K") == where(found, "attn_v", "q5_K") == [0, 1]
    assert len(where(found, "ffn_down", "q4_K")) == len(where(found, "attn_v", "q4_K")) == 32
    assert len(where(found, "attn_output", "q4_K")) == 34
    found = chosen("IQ3_XS", gemma(), GEMMA)
    middle = sorted(set(GEMMA_ORDER) - {0, 1, 10, 11, 29, 30, 31, 32, 33})
    assert sorted(where(found, "ffn_up", "iq3_xxs")) == sorted(where(found, "ffn_gate", "iq3_xxs")) == middle
    assert len(where(found, "attn_k", "iq3_xxs")) == len(where(found, "attn_q", "iq3_xxs")) == 34
    found = chosen("IQ3_XXS", gemma(), GEMMA)
    assert where(found, "ffn_down", "q4_K") == first
    assert len(where(found, "ffn_down", "q3_K")) == 30
    assert len(where(found, "attn_k", "iq2_s")) == len(where(found, "attn_v", "iq3_s")) == 34
    found = chosen("IQ1_M", gemma(), GEMMA)
    assert where(found, "ffn_down", "q2_K") == first
    assert len(where(found, "attn_output", "iq2_xxs")) == len(where(found, "attn_v", "q2_K")) == 34
    assert found["token_embd.weight"] == "q5_K"
    found = chosen("IQ2_M", gemma(), GEMMA)
    assert where(found, "ffn_down", "iq3_s") == first
    assert len(where(found, "attn_output", "iq3_s")) == 34
    for name in ("Q4_0", "Q5_1", "Q3_K_S", "Q5_K_S", "IQ3_S", "TQ1_0"):
        assert chosen(name, gemma(), GEMMA) == {"token_embd.weight": "q6_K"}
    assert chosen("Q8_0", gemma(), GEMMA) == chosen("Q6_K", gemma(), GEMMA) == {}
    assert set(chosen("MXFP4_MOE", gemma(), GEMMA).values()) == {"q8_0"}


def test_in_a_model_of_70b_attention_values_get_more_bits() -> None:
    model = Model("llama", 0, 8, 80)
    infos = [info("token_embd.weight"), *layers(80), info("output.weight")]
    for name in ("Q2_K", "Q3_K_S", "Q3_K_M"):
        found = chosen(name, infos, model)
        assert len(where(found, "attn_v", "q5_K")) == 80
        assert found["output.weight"] == "q6_K"
        assert "token_embd.weight" not in found  # it is not tied
    assert where(chosen("Q3_K_M", infos, model), "ffn_down", "q5_K") == [0, 1, 2, 3, 4]
    assert where(chosen("Q3_K_S", infos, Model("llama", 0, 1, 80)), "attn_v", "q5_K") == []


def test_with_eight_experts_attention_gets_more_bits_and_layers_are_read_from_names() -> None:
    model = Model("llama", 8, 4, 16)
    infos = [info("output.weight"), *layers(16, ("attn_k", "attn_output", "attn_v")), *layers(16, ("ffn_down_exps",))]
    found = chosen("Q4_K_M", list(reversed(infos)), model)
    assert len(where(found, "attn_k", "q8_0")) == len(where(found, "attn_v", "q8_0")) == 16
    assert len(where(found, "attn_output", "q5_K")) == 16
    assert sorted(where(found, "ffn_down_exps", "q6_K")) == [0, 1, 4, 7, 10, 13, 14, 15]
    found = chosen("IQ2_XXS", infos, model)
    assert len(where(found, "attn_v", "q4_K")) == len(where(found, "attn_k", "q4_K")) == 16
    with pytest.raises(ModelError, match=r"blk\.16\.ffn_down_exps\.weight has no layer number below 16"):
        chosen("Q4_K_M", [info("blk.16.ffn_down_exps.weight")], model)


def test_experts_become_mxfp4_and_what_they_share_q8_0() -> None:
    infos = [info("blk.0.ffn_up_exps.weight", 256, 64, 4), info("blk.0.ffn_up_shexp.weight"), info("output.weight")]
    assert chosen("MXFP4_MOE", infos, Model("gpt-oss", 4, 8, 1)) == {
        "blk.0.ffn_up_shexp.weight": "q8_0",
        "output.weight": "q8_0",
    }


def test_an_importance_matrix_changes_the_choice() -> None:
    model = Model("llama", 0, 1, 16)
    assert where(chosen("Q4_0", layers(16), model, importance=True), "ffn_down", "q4_1") == [0, 1]
    assert where(chosen("Q5_0", layers(16), model, importance=True), "ffn_down", "q5_1") == [0, 1]
    assert chosen("IQ4_XS", layers(16), model, importance=True) == {}
    assert where(chosen("IQ4_XS", layers(16), model), "ffn_down", "q5_K") == [0, 1]


def test_types_of_smaller_blocks_take_rows_that_are_no_whole_number_of_blocks() -> None:
    model = Model("llama", 0, 1, 1)
    smaller_blocks = {"Q4_K_S": "q5_0", "Q5_K_S": "q5_1", "Q6_K": "q8_0", "IQ3_S": "iq4_nl", "TQ1_0": "q4_0"}
    for name, smaller in smaller_blocks.items():
        rows = [info("blk.0.ffn_up.weight", 96, 4), info("blk.0.ffn_gate.weight", 33, 4), info("output.weight", 96, 8)]
        choices = choose(rows, mixture(name), model, importance=False)
        assert [each.type.name for each in choices] == [smaller, "f16", "q8_0"], name
        assert choices[0].wanted is mixture(name).base
    assert chosen("Q8_0", [info("a.weight", 33, 4)], model) == {"a.weight": "f16"}


def test_norms_vectors_and_small_matrices_stay_what_they_are() -> None:
    for name in (
        "blk.0.attn_norm.weight",
        "blk.0.ffn_gate_inp.weight",
        "position_embd.weight",
        "token_types.weight",
        "blk.3.ssm_conv1d.weight",
        "blk.0.time_mix_w1.weight",
        "blk.0.attn_q.bias",
        "per_layer_model_proj.weight",
        "enc.blk.0.attn_rel_b.weight",
        "v.patch_embd.weight",
    ):
        assert not may_change(info(name)), name
    assert not may_change(info("blk.0.ffn_up.weight", 256))
    assert not may_change(info("blk.0.ffn_up.weight", 256, 1))
    assert may_change(info("blk.0.ffn_up.weight", 1, 256))
    assert may_change(info("blk.0.attn_v.weight"))


def test_overrides_come_first_and_have_to_be_for_something() -> None:
    model, infos = Model("llama", 0, 1, 16), layers(16)
    orders = [Override("blk.3.ffn", types.Q8_0), Override.parse("ffn_down=q2_k"), Override(r"attn_[qk]", types.F16)]
    found = chosen("Q4_K_M", infos, model, overrides=orders)
    assert where(found, "ffn_down", "q8_0") == [3]
    assert len(where(found, "ffn_down", "q2_K")) == 15
    assert len(where(found, "attn_q", "f16")) == 16
    with pytest.raises(ParameterError, match="the override 'ffn_donw' matches no tensor that may be quantised"):
        chosen("Q4_K_M", infos, model, overrides=[Override("ffn_donw", types.Q8_0)])
    for text in ("ffn_down", "=q8_0", "(=q8_0", "x=q9"):
        with pytest.raises(ParameterError):
            Override.parse(text)
    for name in ("i32", "i8", "f64", "q8_1", "q8_K"):
        with pytest.raises(ParameterError, match="not a type for weights"):
            Override.parse(f"attn={name}")
    for pattern, type in (("attn", "Q8_1"), (3, types.Q8_0), ("attn", None)):
        with pytest.raises((ParameterError, TypeMismatchError)):
            Override(pattern, type)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"overrides": [None]}, {"n_threads": 2.5}, {"n_threads": "2"}])
def test_options_of_other_types_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    source = tmp_path / "in.gguf"
    with GGUFWriter(source, arch="llama") as writer:
        writer.add_tensor("blk.0.attn_q.weight", np.ones((2, 64), np.float32))
    with pytest.raises(ParameterError):
        quantize_file(source, tmp_path / "out.gguf", "Q4_0", **options)


def test_names_are_llama_cpps_in_any_case() -> None:
    from gguf import LlamaFileType

    theirs = {member.name.partition("_")[2]: int(member) for member in LlamaFileType if member.name != "GUESSED"}
    assert {name: number for name, number in FILE_TYPES.items() if name in theirs} == {
        name: number for name, number in theirs.items() if name in FILE_TYPES
    }
    assert theirs.keys() <= FILE_TYPES.keys()
    assert mixture("q4_k") is mixture("Q4_K_M")
    assert {name: each.base.name for name, each in MIXTURES.items() if each.base.name.upper() != name} == {
        "Q3_K_S": "q3_K",
        "Q3_K_M": "q3_K",
        "Q3_K_L": "q3_K",
        "Q4_K_S": "q4_K",
        "Q4_K_M": "q4_K",
        "Q5_K_S": "q5_K",
        "Q5_K_M": "q5_K",
        "Q2_K_S": "q2_K",
        "IQ2_S": "iq2_xs",
        "IQ2_M": "iq2_s",
        "IQ3_XS": "iq3_s",
        "IQ3_M": "iq3_s",
        "MXFP4_MOE": "mxfp4",
    }
    with pytest.raises(ParameterError, match=r"there is no mixture 'Q9'.*Q4_K_M.*COPY"):
        mixture("Q9")


def test_tensors_are_counted_by_layer_and_name() -> None:
    names = ["output.weight", "blk.10.b.weight", "blk.2.b.weight", "blk.2.a.weight", "a.weight"]
    assert [each.name for each in in_order(map(info, names))] == [
        "a.weight",
        "output.weight",
        "blk.2.a.weight",
        "blk.2.b.weight",
        "blk.10.b.weight",
    ]


# -- the file ------------------------------------------------------------------------------------------


def values(*shape: int, seed: int = 0) -> npt.NDArray[np.float16]:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float16)


def write(path: Path, **how: Any) -> Path:
    """A model of four layers, in part of F16, F32 and BF16."""
    with GGUFWriter(path, "llama", **how) as writer:
        writer.add("llama.block_count", 4)
        writer.add("llama.attention.head_count", 4)
        writer.add("llama.attention.head_count_kv", np.array([2] * 4, np.int32))
        writer.add("general.file_type", 1)
        writer.add("tokens", ["a", "b"])
        writer.add_tensor("token_embd.weight", values(8, 256))
        writer.add_tensor("output_norm.weight", np.ones(256, np.float32))
        for layer in range(4):
            writer.add_tensor(f"blk.{layer}.attn_v.weight", values(4, 256, seed=layer).astype(np.float32))
            writer.add_tensor(f"blk.{layer}.ffn_down.weight", quants.quantize(values(4, 512), types.BF16), types.BF16)
        writer.add_tensor("blk.0.ffn_up_exps.weight", values(3, 4, 256))
        writer.add_tensor("blk.0.attn_q.bias", values(256))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf")


def contents(path: Path) -> dict[str, tuple[types.Type, bytes]]:
    with GGUFReader(path) as reader:
        return {name: (each.type, reader.data(each).tobytes()) for name, each in reader.tensors.items()}


def quantize(source: Path, out: Path, name: str, **how: Any) -> dict[str, tuple[types.Type, bytes]]:
    quantize_file(source, out, name, compiled=False, **how)
    return contents(out)


def test_a_mixture_of_a_model_has_the_bytes_of_its_tensors_quantised(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    seen: list[tuple[int, int]] = []
    report = quantize_file(model, out, "q4_k_m", compiled=False, progress=lambda *at: seen.append(at))
    wanted = {
        "token_embd.weight": types.Q6_K,
        "blk.0.attn_v.weight": types.Q4_K,
        "blk.1.attn_v.weight": types.Q4_K,
        "blk.2.attn_v.weight": types.Q6_K,
        "blk.3.attn_v.weight": types.Q6_K,
        "blk.0.ffn_down.weight": types.Q4_K,
        "blk.1.ffn_down.weight": types.Q4_K,
        "blk.2.ffn_down.weight": types.Q6_K,
        "blk.3.ffn_down.weight": types.Q6_K,
        "blk.0.ffn_up_exps.weight": types.Q4_K,
    }
    with GGUFReader(model) as before, GGUFReader(out) as after:
        assert [each.name for each in report] == list(after.tensors)
        for name, each in after.tensors.items():
            source = before.tensors[name]
            assert each.ne == source.ne
            assert each.type is wanted.get(name, source.type), name
            kept = before.array(name)
            if name in wanted:
                rows = quants.dequantize(kept.reshape(*each.shape).view(np.uint8), source.type)
                kept = quants.quantize(rows, each.type)
            assert after.array(name).tobytes() == kept.tobytes()
        assert after.metadata["general.file_type"] == 15
        assert after.metadata["general.quantization_version"] == 2
        assert list(after.metadata["tokens"]) == ["a", "b"]
        total = sum(each.nbytes for each in before.tensors.values())
    assert seen[-1] == (total, total)
    assert sum(each.bytes_after for each in report) == sum(len(data) for _, data in contents(out).values())


def test_the_file_is_read_by_the_gguf_package(model: Path, tmp_path: Path) -> None:
    import gguf

    quantize(model, tmp_path / "out.gguf", "Q4_0")
    theirs = gguf.GGUFReader(tmp_path / "out.gguf")
    found = {tensor.name: tensor for tensor in theirs.tensors}
    tensor = found["blk.1.attn_v.weight"]
    assert tensor.tensor_type.name == "Q4_0"
    decoded = gguf.dequantize(tensor.data, tensor.tensor_type)
    assert np.abs(decoded - values(4, 256, seed=1).astype(np.float32)).max() < 0.5


def test_copy_changes_no_tensor_and_joins_a_split_model(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", split_max_tensors=3)
    first = next(path for path in tmp_path.iterdir() if "-00001-of-" in path.name)
    report = quantize_file(first, tmp_path / "whole.gguf", "copy", compiled=False)
    assert all(each.before is each.after for each in report)
    assert contents(tmp_path / "whole.gguf") == contents(first)
    with GGUFReader(tmp_path / "whole.gguf") as reader:
        assert not [key for key in reader.metadata if key.startswith("split.")]
        assert reader.metadata["general.file_type"] == 1


def test_a_file_in_the_other_byte_order_keeps_it(model: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.gguf", endian="big")
    quantize(model, tmp_path / "a.gguf", "Q4_K_M")
    quantize(other, tmp_path / "b.gguf", "Q4_K_M")
    with GGUFReader(tmp_path / "a.gguf") as little, GGUFReader(tmp_path / "b.gguf") as big:
        assert big.endian == "big"
        for name in little.tensors:
            assert little.array(name).tobytes() == big.array(name).tobytes(), name


def test_what_is_quantised_is_quantised_again_only_when_that_is_allowed(model: Path, tmp_path: Path) -> None:
    once = tmp_path / "once.gguf"
    quantize(model, once, "Q8_0")
    with pytest.raises(TypeMismatchError, match=r"token_embd\.weight is already q8_0.*--allow-requantize"):
        quantize_file(once, tmp_path / "twice.gguf", "Q4_0", compiled=False)
    assert quantize(once, tmp_path / "same.gguf", "Q8_0") == contents(once)  # nothing changes
    twice = quantize(once, tmp_path / "twice.gguf", "Q4_0", allow_requantize=True)
    kind, data = contents(once)["blk.0.attn_v.weight"]
    rows = quants.dequantize(np.frombuffer(data, np.uint8).reshape(4, -1), kind)
    assert twice["blk.0.attn_v.weight"] == (types.Q4_0, quants.quantize(rows, types.Q4_0).tobytes())


def test_other_types_are_refused_by_name(tmp_path: Path) -> None:
    with GGUFWriter(tmp_path / "model.gguf", "llama") as writer:
        writer.add_tensor("blk.0.a.weight", np.zeros((2, 32), np.int32))
    with pytest.raises(TypeMismatchError, match=r"blk\.0\.a\.weight is i32, a type that cannot be quantised"):
        quantize_file(tmp_path / "model.gguf", tmp_path / "out.gguf", "Q4_0", compiled=False)


def test_a_model_that_does_not_say_how_many_layers_it_has_says_so_where_that_counts(tmp_path: Path) -> None:
    with GGUFWriter(tmp_path / "model.gguf", "llama") as writer:
        writer.add_tensor("blk.0.ffn_down.weight", values(2, 256))
    with pytest.raises(ModelError, match=r"the file has no llama\.block_count"):
        quantize_file(tmp_path / "model.gguf", tmp_path / "out.gguf", "Q4_K_M", compiled=False)
    found = quantize(tmp_path / "model.gguf", tmp_path / "out.gguf", "Q5_K_S")
    assert found["blk.0.ffn_down.weight"][0] is types.Q5_K


BAD = [(np.nan, "nan", types.F32), (np.inf, "inf", types.F16), (-np.inf, "-inf", types.BF16)]


def one_tensor(path: Path, kind: types.Type, array: npt.NDArray[np.float32]) -> Path:
    writer = GGUFWriter(path, "test")
    writer.add("test.block_count", 1)
    writer.add_tensor("blk.0.ffn_up.weight", quants.quantize(array, kind), kind)
    return writer.write()[0]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("value", "said", "source"), BAD)
@pytest.mark.parametrize("name", ["Q8_0", "Q4_K_M", "IQ4_XS", "TQ2_0", "MXFP4_MOE"])
def test_a_weight_that_is_no_finite_number_is_refused_by_name_and_place(
    name: str, value: float, said: str, source: types.Type, compiled: bool, tmp_path: Path
) -> None:
    array = values(2, 8, 512).astype(np.float32)
    array[1, 5, 300] = value
    path = one_tensor(tmp_path / "in.gguf", source, array)
    with pytest.raises(ModelError, match=rf"blk.0.ffn_up.weight.* has {said} at \[1, 5, 300\]") as caught:
        quantize_file(path, tmp_path / "out.gguf", name, compiled=compiled)
    assert (caught.value.tensor, caught.value.fields["index"]) == ("blk.0.ffn_up.weight", (1, 5, 300))
    assert os.listdir(tmp_path) == ["in.gguf"]


@pytest.mark.parametrize("step", [1, 512, 1 << 22])
def test_the_place_is_that_in_the_tensor_whatever_is_encoded_at_a_time(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ggplug.quantizing.model._PIECE", step)
    array = np.zeros((3, 4, 256), np.float32)
    array[2, 1, 7] = np.nan
    with pytest.raises(ModelError, match=r"has nan at \[2, 1, 7\]"):
        quantize_file(one_tensor(tmp_path / "in.gguf", types.F32, array), tmp_path / "out.gguf", "Q8_0")


@pytest.mark.parametrize("source", [types.F32, types.BF16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", ["Q8_0", "Q4_K_M", "F16"])
def test_a_weight_that_a_type_has_no_finite_number_for_is_refused(
    name: str, source: types.Type, tmp_path: Path
) -> None:
    array = values(8, 512).astype(np.float32)
    array[2, 3], array[2, 4] = 1e4, -(2.0**60)
    path = one_tensor(tmp_path / "in.gguf", source, array)
    with pytest.raises(ModelError, match=r"has -1.15292e\+18 at \[2, 4\]"):
        quantize_file(path, tmp_path / "out.gguf", name)
    for kind in ("BF16", "F32"):
        quantize_file(path, tmp_path / "out.gguf", kind)  # they hold it


@pytest.mark.parametrize(
    ("name", "value"),
    [("Q3_K_S", 2.0**62), ("Q6_K", 2.0**62), ("IQ4_XS", -(2.0**62)), ("MXFP4_MOE", None), ("Q8_0", None)],
)
def test_a_weight_that_a_type_makes_zero_of_is_refused(name: str, value: float | None, tmp_path: Path) -> None:
    array = values(8, 512).astype(np.float32)
    array[2, 4] = value or 2.0**14
    path = one_tensor(tmp_path / "in.gguf", types.F32, array)
    if value is None:
        quantize_file(path, tmp_path / "out.gguf", name)
    else:
        with pytest.raises(ModelError, match=r"has -?4.61169e\+18 at \[2, 4\]"):
            quantize_file(path, tmp_path / "out.gguf", name)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("kind", "exponent", "lost"),
    [
        (types.Q2_K, 64, True),
        (types.Q4_K, 64, True),
        (types.Q5_K, 64, True),
        (types.NVFP4, 14, True),
        (types.IQ1_S, 64, True),
        (types.IQ2_XXS, 127, True),
        (types.Q2_K, 14, False),
        (types.Q4_K, 14, False),
        (types.NVFP4, 11, False),
        (types.IQ1_S, 14, False),
        (types.IQ2_XXS, 14, False),
        (types.Q1_0, 14, False),
        (types.TQ1_0, 14, False),
        (types.TQ2_0, 14, False),
        (types.IQ1_M, 14, False),
    ],
)
def test_what_importance_or_saturation_loses_is_found_and_what_a_type_is_too_coarse_for_is_not(
    kind: types.Type, exponent: int, lost: bool, compiled: bool
) -> None:
    weights = np.linspace(0.1, 2, 512, dtype=np.float32)
    rows = np.zeros((2, 512), np.float32)
    rows[1, 5] = 2.0**exponent
    with Encoder(compiled=compiled) as encoder, np.errstate(all="ignore"):
        encoded = encoder.encode(rows.view(np.uint8), types.F32, kind, weights)
        found = encoder.misfit(rows.view(np.uint8), types.F32, encoded, kind, weights)
    assert found == ((512 + 5, 2.0**exponent, True) if lost else None)


@pytest.mark.parametrize("name", ["IQ3_XXS", "IQ2_S", "IQ3_S"])
def test_large_rows_for_which_a_search_finds_other_numbers_about_as_near_are_taken(name: str, tmp_path: Path) -> None:
    array = values(4, 512).astype(np.float32)
    array *= 2.0**21 / np.abs(array).max()
    kind = types.by_name(name)
    with Encoder() as encoder:
        encoded = encoder.encode(array.view(np.uint8), types.F32, kind)
        assert encoder.misfit(array.view(np.uint8), types.F32, encoded, kind) is None
    found = quants.dequantize(encoded, kind)
    assert np.linalg.norm(found - array) < 0.4 * np.linalg.norm(array)


DOUBLES = [
    (1e300, types.F32),
    (-1e300, types.BF16),
    (1e39, types.Q8_0),
    (-1e39, types.Q4_K),
    (1e5, types.F16),
    (2.0**62, types.Q6_K),
]


@pytest.mark.parametrize(("value", "kind"), DOUBLES, ids=str)
def test_a_number_in_double_precision_that_is_too_large_is_told_as_it_is(value: float, kind: types.Type) -> None:
    array = values(8, 512).astype(np.float64)
    array[2, 4] = value
    with Encoder() as encoder, np.errstate(all="ignore"):
        encoded = encoder.encode(array.view(np.uint8), types.F64, kind)
        assert encoder.misfit(array.view(np.uint8), types.F64, encoded, kind) == (2 * 512 + 4, value, True)


@pytest.mark.parametrize("kind", [types.F32, types.F16, types.Q8_0, types.Q4_K, types.IQ4_XS])
def test_weights_in_double_precision_become_what_their_nearest_floats_become(kind: types.Type) -> None:
    array = np.random.default_rng(7).standard_normal((4, 512))
    with Encoder() as encoder:
        found = encoder.encode(array.view(np.uint8), types.F64, kind)
        assert encoder.misfit(array.view(np.uint8), types.F64, found, kind) is None
    np.testing.assert_array_equal(found, quants.quantize(array.astype(np.float32), kind))


@pytest.mark.parametrize(("kind", "into_blocks", "seen"), [(types.F16, True, True), (types.F16, False, False)])
def test_a_weight_that_is_no_number_spoils_floats_that_become_blocks_later(
    kind: types.Type, into_blocks: bool, seen: bool
) -> None:
    rows = np.zeros((2, 32), np.float32)
    rows[1, 3] = -np.inf
    with Encoder() as encoder:
        encoded = encoder.encode(rows.view(np.uint8), types.F32, kind)
        found = encoder.misfit(rows.view(np.uint8), types.F32, encoded, kind, into_blocks=into_blocks)
    assert found == ((35, -np.inf, False) if seen else None)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "COPY"])
def test_between_floats_and_in_copies_every_value_stays_what_it_is(name: str, tmp_path: Path) -> None:
    array = values(4, 256).astype(np.float32)
    array[0, :3] = np.nan, np.inf, -np.inf
    path = one_tensor(tmp_path / "in.gguf", types.F32, array)
    quantize_file(path, tmp_path / "out.gguf", name)
    with GGUFReader(tmp_path / "out.gguf") as reader:
        each = reader.tensors["blk.0.ffn_up.weight"]
        found = quants.dequantize(reader.data(each), each.type).reshape(array.shape)
    np.testing.assert_array_equal(found[0, :3], array[0, :3])


def test_what_is_quantised_already_is_looked_at_too(tmp_path: Path) -> None:
    array = values(4, 256).astype(np.float32)
    array[3, 64] = np.inf
    path = one_tensor(tmp_path / "in.gguf", types.Q8_0, array)
    with pytest.raises(ModelError, match=r"has nan at \[3, 64\]"):
        quantize_file(path, tmp_path / "out.gguf", "Q4_K_M", allow_requantize=True)


@pytest.mark.parametrize(
    ("kind", "weighted"),
    [(kind, way) for kind in quants.block_types() for way in (False, True) if quants.can_quantize(kind, imatrix=way)],
)
def test_every_type_holds_what_is_below_the_number_from_which_it_is_asked(kind: types.Type, weighted: bool) -> None:
    below = np.nextafter(np.float32(2**15), 0, dtype=np.float32)
    rng = np.random.default_rng(5)
    for scale in (1, 1e-3, rng.random((8, 512))):
        array = (below * np.sign(rng.standard_normal((8, 512))) * scale).astype(np.float32)
        array[:, ::32] = below
        weights = rng.random(512).astype(np.float32) if weighted else None
        assert np.isfinite(quants.dequantize(quants.quantize(array, kind, weights), kind)).all()


def test_large_weights_that_a_type_holds_become_what_they_did(tmp_path: Path) -> None:
    array = 60000 * values(4, 512).astype(np.float32) / 4
    path = one_tensor(tmp_path / "in.gguf", types.F32, array)
    assert quantize(path, tmp_path / "out.gguf", "Q8_0")["blk.0.ffn_up.weight"] == (
        types.Q8_0,
        quants.quantize(array, types.Q8_0).tobytes(),
    )


@pytest.mark.parametrize("damage", ["the disk is full", "interrupted"])
def test_a_failure_leaves_nothing_behind(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"before")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def stop(done: int, _: int) -> None:
        if done > 4096 and damage == "interrupted":
            raise KeyboardInterrupt

    if damage == "the disk is full":
        monkeypatch.setattr("ggplug.system.files.os.fsync", full)
    with pytest.raises((OSError, KeyboardInterrupt)) as caught:
        quantize_file(model, out, "Q4_0", compiled=False, progress=stop)
    if isinstance(caught.value, OSError):
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(out))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.gguf", "out.gguf"]
    assert out.read_bytes() == b"before"


def test_the_model_that_is_read_is_not_replaced(model: Path, tmp_path: Path) -> None:
    imatrix = tmp_path / "importance.gguf"
    before = model.read_bytes()
    imatrix.write_bytes(b"not read")
    (tmp_path / "link.gguf").symlink_to(model)
    (tmp_path / "hard.gguf").hardlink_to(imatrix)
    for out in (model, tmp_path / "link.gguf", imatrix, tmp_path / "hard.gguf"):
        with pytest.raises(ParameterError, match=r"is the same file as .*, which would be overwritten"):
            quantize_file(model, out, "Q4_0", imatrix=imatrix, compiled=False)
    assert (model.read_bytes(), imatrix.read_bytes()) == (before, b"not read")


def test_a_part_of_a_tensor_is_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggplug.quantizing.model._PIECE", 1 << 16)
    rows = np.zeros((64, 1024), np.float16)
    with GGUFWriter(tmp_path / "model.gguf", "llama") as writer:
        writer.add_tensor("a.weight", lambda: [rows] * 64, types.F16, (1024, 64 * 64))
    tracemalloc.start()
    try:
        quantize_file(tmp_path / "model.gguf", tmp_path / "out.gguf", "Q8_0", compiled=False)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 << 20  # the tensor has 16 MiB as F32


# -- importance ----------------------------------------------------------------------------------------


def importance(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(5).uniform(0.1, 3, shape).astype(np.float32)


def write_gguf_importance(path: Path, entries: dict[str, npt.NDArray[np.float32]], count: float = 8) -> Path:
    with GGUFWriter(path) as writer:
        writer.add("general.type", "imatrix")
        writer.add("imatrix.datasets", ["text.txt", "more.txt"])
        writer.add("imatrix.chunk_count", 7)
        for name, entry in entries.items():
            rows = entry.reshape(-1, entry.shape[-1])
            writer.add_tensor(f"{name}.in_sum2", rows * np.float32(count))
            writer.add_tensor(f"{name}.counts", np.full((len(rows), 1), count, np.float32))
    return path


def old_importance(entries: dict[str, npt.NDArray[np.float32]], end: bytes = b"") -> bytes:
    parts = [struct.pack("<i", len(entries))]
    for name, entry in entries.items():
        parts += [struct.pack("<i", len(name)), name.encode(), struct.pack("<ii", 4, entry.size)]
        parts.append((entry * np.float32(4)).astype("<f4").tobytes())
    return b"".join([*parts, end])


def test_both_formats_of_importance_make_the_same_bytes(model: Path, tmp_path: Path) -> None:
    entries = {
        "blk.0.attn_v.weight": importance(256),
        "blk.0.ffn_up_exps.weight": importance(3, 256),
        "blk.2.ffn_down.weight": importance(512),
        "not there": importance(7),
    }
    new = write_gguf_importance(tmp_path / "new.gguf", entries)
    old = tmp_path / "old.dat"
    old.write_bytes(old_importance(entries, struct.pack("<ii", 7, 8) + b"text.txt"))
    assert read_importance(new).chunks == read_importance(old).chunks == 7
    a = quantize(model, tmp_path / "a.gguf", "Q4_0", imatrix=new)
    assert a == quantize(model, tmp_path / "b.gguf", "Q4_0", imatrix=old)
    plain = quantize(model, tmp_path / "c.gguf", "Q4_0")
    assert {name for name in a if a[name] != plain[name]} == {
        "blk.0.attn_v.weight",
        "blk.0.ffn_up_exps.weight",
        "blk.2.ffn_down.weight",
    }
    experts = values(3, 4, 256)
    weighted = [
        quants.quantize(expert, types.Q4_0, row)
        for expert, row in zip(experts, entries["blk.0.ffn_up_exps.weight"], strict=True)
    ]
    assert a["blk.0.ffn_up_exps.weight"] == (types.Q4_0, b"".join(each.tobytes() for each in weighted))
    with GGUFReader(tmp_path / "a.gguf") as reader:
        written = {key: value for key, value in reader.metadata.items() if key.startswith("quantize.")}
    assert written == {
        "quantize.imatrix.file": str(new)[:127],
        "quantize.imatrix.dataset": "text.txt",
        "quantize.imatrix.entries_count": 4,
        "quantize.imatrix.chunks_count": 7,
    }


def test_columns_that_nothing_entered_count_the_same(tmp_path: Path) -> None:
    path = write_gguf_importance(tmp_path / "i.gguf", {"a": importance(2, 32)}, count=0)
    assert (read_importance(path).entries["a"] == 1).all()


def test_types_of_few_bits_need_importance(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"blk\.0\.ffn_down\.weight would be iq2_xs, .*--imatrix"):
        quantize_file(model, tmp_path / "out.gguf", "IQ2_XS", compiled=False)
    with pytest.raises(ModelError, match="would be q2_K"):
        quantize_file(model, tmp_path / "out.gguf", "Q2_K_S", compiled=False)
    some = write_gguf_importance(tmp_path / "i.gguf", {"blk.0.ffn_down.weight": importance(512)})
    with pytest.raises(ModelError, match=r"i\.gguf has no entry for it.*--override '(.*)=q4_K'") as raised:
        quantize_file(model, tmp_path / "out.gguf", "IQ2_XS", imatrix=some, compiled=False)
    assert re.search(r"--override '(.*)=q4_K'", str(raised.value))[1] == re.escape(raised.value.tensor)
    assert not (tmp_path / "out.gguf").exists()


def test_importance_of_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    other = write_gguf_importance(tmp_path / "i.gguf", {"blk.0.ffn_up_exps.weight": importance(256)})
    with pytest.raises(ModelError, match="has 256 numbers, not 256 for each of 3 matrices"):
        quantize_file(model, tmp_path / "out.gguf", "Q4_0", imatrix=other, compiled=False)
    tokens = write_gguf_importance(tmp_path / "t.gguf", {"token_embd.weight": importance(8)})
    quantize_file(model, tmp_path / "out.gguf", "Q4_0", imatrix=tokens, compiled=False)


NAN = importance(4)
NAN[1] = np.nan


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the number of entries at byte 0"),
        (struct.pack("<i", 0), "it has 0 entries"),
        (struct.pack("<i", 1 << 30), "the length of a name"),
        (old_importance({"a": importance(4)})[:-1], "the numbers of a"),
        (struct.pack("<ii", 1, -5), "a name at byte 8 would take -5 bytes"),
        (old_importance({"a": importance(4)}, b"\x01"), "the number of chunks"),
        (old_importance({"a": NAN}), "the importance of a is not finite"),
        (old_importance({"a": -importance(4)}), "the importance of a is negative"),
    ],
)
def test_what_is_no_importance_matrix_says_why(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "i.dat").write_bytes(data)
    with pytest.raises(ModelError, match=reason):
        read_importance(tmp_path / "i.dat")


def test_a_gguf_file_without_importance_says_what_is_missing(model: Path, tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="holds no importance matrix"):
        read_importance(model)
    for name, array, reason in (
        ("a.in_sum2", np.ones((2, 4), np.float32), r"the tensor a\.counts is missing"),
        ("a.counts", np.ones((2, 1), np.float32), r"the tensor a\.in_sum2 is missing"),
        ("a.in_sum2", np.ones((2, 4), np.float16), r"is missing|is f16"),
    ):
        with GGUFWriter(tmp_path / "i.gguf") as writer:
            writer.add_tensor(name, array)
        with pytest.raises(GGUFError, match=reason):
            read_importance(tmp_path / "i.gguf")


# -- the command ---------------------------------------------------------------------------------------


def test_the_command_says_what_became_of_the_tensors(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = CliRunner().invoke(app, ["quantize", str(model), str(out), "Q4_K_M", "--override", "attn_v=Q8_0", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["bytes_after"] == sum(len(data) for _, data in contents(out).values())
    after = {each["name"]: each["after"] for each in report["tensors"]}
    assert after["blk.0.attn_v.weight"] == "q8_0"
    assert after["output_norm.weight"] == "f32"
    done = CliRunner().invoke(app, ["quantize", str(model), str(out), "Q4_0", "--threads", "1"])
    assert done.exit_code == 0
    assert "q4_0" in done.stdout
    assert "-> " in done.stdout


def test_the_command_answers_what_it_cannot_do_with_what_it_can(model: Path, tmp_path: Path) -> None:
    for arguments in (["Q9"], ["Q4_0", "--override", "x"], ["Q4_0", "--override", "nowhere=Q8_0"], ["IQ1_S"]):
        done = CliRunner().invoke(app, ["quantize", str(model), str(tmp_path / "out.gguf"), *arguments])
        assert isinstance(done.exception, GGPlugError), arguments
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.gguf"]
