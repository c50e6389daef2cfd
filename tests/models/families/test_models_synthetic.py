"""Model files of random weights: what they hold, and that a seed gives the same one again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ggplug_models
from ggplug.errors import ParameterError
from ggplug.gguf import GGUFReader
from ggplug_models.benchmarks.synthetic import LlamaShape, write_llama

SMALL = LlamaShape(n_embd=64, n_ff=160, n_layer=2, n_head=4, n_head_kv=2, n_vocab=300, n_ctx=128)


def test_a_random_llama_has_the_requested_extents(tmp_path: Path) -> None:
    with GGUFReader(write_llama(tmp_path / "a.gguf", SMALL)) as reader:
        assert reader.metadata["general.architecture"] == "llama"
        assert reader.metadata["llama.attention.head_count_kv"] == 2
        assert reader.tensors["blk.1.attn_k.weight"].ne[:2] == (64, 32)
        assert reader.tensors["blk.0.ffn_down.weight"].ne[:2] == (160, 64)
        assert len(reader.tensors) == 2 * 9 + 3


def test_a_random_mixture_of_experts_generates(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "a.gguf", replace(SMALL, n_expert=4))
    with GGUFReader(path) as reader:
        assert reader.tensors["blk.1.ffn_up_exps.weight"].ne[:3] == (64, 160, 4)
    with ggplug_models.load(path, ["CPU"]) as model:
        assert len(list(model.generate_ids([1, 2], 3))) == 3


def test_weights_keep_the_size_of_activations(tmp_path: Path) -> None:
    with GGUFReader(write_llama(tmp_path / "a.gguf", SMALL)) as reader:
        weights = np.asarray(reader.array("blk.0.ffn_down.weight"), np.float64)
    assert weights.shape == (64, 160)
    assert np.sqrt((weights**2).sum(1)).mean() == pytest.approx(1, abs=0.1)


def test_a_vocabulary_holds_every_token_once(tmp_path: Path) -> None:
    with GGUFReader(write_llama(tmp_path / "a.gguf", SMALL)) as reader:
        tokens = reader.metadata["tokenizer.ggml.tokens"]
        assert len(tokens) == len(set(tokens)) == len(reader.metadata["tokenizer.ggml.token_type"]) == 300


def test_equal_seeds_write_equal_files(tmp_path: Path) -> None:
    first, second, third = (
        write_llama(tmp_path / f"{n}.gguf", SMALL, seed=seed).read_bytes() for n, seed in enumerate((1, 1, 2))
    )
    assert first == second != third


def test_heads_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ParameterError, match="multiple of 2"):
        LlamaShape(n_head=5)
    with pytest.raises(ParameterError, match="n_vocab must be at least"):
        LlamaShape(n_vocab=3)
    with pytest.raises(ParameterError, match="n_expert_used must be from 1 to n_expert, got 2 of 1"):
        LlamaShape(n_expert=1)
