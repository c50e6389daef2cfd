"""A file without a tensor that its architecture needs is refused by the tensor's name; so is one with others.

Which tensors are needed is what llama.cpp says: those without TENSOR_NOT_REQUIRED in its src/models.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles.packed import ORACLES

import ggplug_models
from ggplug.errors import ModelError
from ggplug.gguf import GGUFReader, GGUFWriter


def changed(name: str, out: Path, without: str = "", also: Mapping[str, Any] = {}) -> Path:
    """The recorded model without a tensor, or with further ones."""
    with (
        GGUFReader(ORACLES / f"{name}.gguf") as reader,
        GGUFWriter(out, reader.metadata["general.architecture"]) as new,
    ):
        assert not without or without in reader.tensors
        new.add_metadata_of(reader)
        for each, info in reader.tensors.items():
            if each != without:
                new.add_tensor(each, reader.data(info), info.type, info.ne)
        for each, values in also.items():
            new.add_tensor(each, values)
        new.write()
    return out


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("bloom", "blk.1.attn_norm.bias"),
        ("bloom", "token_embd_norm.bias"),
        ("codeshell", "output_norm.bias"),
        ("gpt2", "blk.0.attn_qkv.bias"),
        ("gpt-oss", "blk.0.ffn_gate_inp.bias"),
        ("phi2", "output.bias"),
        ("nomic-bert", "blk.0.layer_output_norm.bias"),
        ("deepseek", "blk.1.ffn_gate_exps.weight"),
        ("deepseek", "blk.1.ffn_gate_shexp.weight"),
        ("afmoe", "blk.1.exp_probs_b.bias"),
        ("qwen2moe", "blk.0.ffn_gate_inp_shexp.weight"),
        ("mamba2", "blk.0.ssm_norm.weight"),
        ("jamba", "blk.0.ssm_dt_norm.weight"),
        ("gemma4", "rope_freqs.weight"),
    ],
)
def test_a_tensor_that_an_architecture_needs_is_named(name: str, tensor: str, tmp_path: Path) -> None:
    path = changed(name, tmp_path / "less.gguf", tensor)
    with pytest.raises(ModelError, match=rf"the file has no tensor '{tensor}'"):
        ggplug_models.load(path, ["CPU"], pack=False)


@pytest.mark.parametrize(
    ("name", "tensor", "other"),
    [
        ("chatglm", "blk.1.attn_q.bias", "blk.0.attn_q.bias"),
        ("chatglm", "blk.0.attn_v.bias", "blk.1.attn_v.bias"),
        ("stablelm", "blk.1.ffn_norm.weight", "blk.0.ffn_norm.weight"),
        ("falcon-large", "blk.0.attn_norm_2.weight", "blk.1.attn_norm_2.weight"),
        ("t5-gated", "dec.blk.1.ffn_gate.weight", "dec.blk.0.ffn_gate.weight"),
    ],
)
def test_an_optional_tensor_that_one_block_lacks_is_named(name: str, tensor: str, other: str, tmp_path: Path) -> None:
    path = changed(name, tmp_path / "less.gguf", tensor)
    with pytest.raises(ModelError, match=rf"the file has no tensor '{tensor}', although it has '{other}'"):
        ggplug_models.load(path, ["CPU"], pack=False)


def test_blocks_that_would_not_be_computed_are_refused(tmp_path: Path) -> None:
    more = {"blk.7.attn_norm.weight": np.ones(8, np.float32)}
    path = changed("llama3", tmp_path / "more.gguf", also=more)
    with pytest.raises(ModelError, match=r"'blk\.7\.attn_norm\.weight', but by the settings the model has \d blocks"):
        ggplug_models.load(path, ["CPU"], pack=False)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("llama3", "blk.0.attn_q_norm.weight"),
        ("olmo2", "blk.1.attn_norm.weight"),
        ("nomic-bert", "output_norm.weight"),
        ("mamba", "dec.output_norm.weight"),
    ],
)
def test_a_tensor_that_no_node_reads_is_named(name: str, tensor: str, tmp_path: Path) -> None:
    path = changed(name, tmp_path / "more.gguf", also={tensor: np.ones(8, np.float32)})
    with pytest.raises(ModelError, match=rf"models do not read the tensors '{tensor}' of the file"):
        ggplug_models.load(path, ["CPU"], pack=False)


def test_tensors_for_something_else_than_texts_are_no_mistake(tmp_path: Path) -> None:
    names = ("v.blk.0.attn_q.weight", "mm.0.bias", "cls.output.weight", "blk.0.attn_q.input_scale")
    path = changed("llama3", tmp_path / "more.gguf", also=dict.fromkeys(names, np.ones(8, np.float32)))
    plain = ORACLES / "llama3.gguf"
    with ggplug_models.load(path, ["CPU"]) as more, ggplug_models.load(plain, ["CPU"]) as model:
        np.testing.assert_array_equal(more.logits([1, 2, 3]), model.logits([1, 2, 3]))
