"""Further decoders of attention and one gated or plain MLP."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
import transformers

from oracles.attention import ARCH, LLAMA3, SHAPE, WIDE, command_r_keys, llama, llama3_factors
from oracles.family import PAIRED, Array, Family, basic, head_dim, lengths, plus_one, rotated, unused
from oracles.files import N_VOCAB
from oracles.models import Rules, TransformersModel, coarse

ROPE = {"rope_type": "default", "rope_theta": 100.0}
HALF_ROPE = {**ROPE, "partial_rotary_factor": 0.5}
EPS = {"attention.layer_norm_epsilon": 1e-5}

LEARNED: Rules = {
    r"lm_head": lambda rng, shape: coarse(2 * rng.standard_normal(shape) / math.sqrt(shape[-1])),
    r"wte|word_embeddings\.weight|embed_in": lambda rng, shape: coarse(0.3 * rng.standard_normal(shape)),
    r"wpe": lambda rng, shape: coarse(0.2 * rng.standard_normal(shape)),
}
WEAK_EMBEDDING: dict[str, Any] = {"embedding": 0.3, "layer": 4.0}
"""Of models whose head is the embeddings."""


def model(kind: str, seed: int, settings: dict[str, Any], of: str = "Config", **how: Any) -> TransformersModel:
    """``kind``: the name in transformers without ``Config`` and ``ForCausalLM``.  ``of``: which class of settings."""
    config = getattr(transformers, f"{kind}{of}")(**{**SHAPE, **settings})
    return TransformersModel(getattr(transformers, f"{kind}ForCausalLM"), config, seed, **how)


def of(kind: str, **settings: Any) -> Callable[[int], TransformersModel]:
    return lambda seed: model(kind, seed, {"tie_word_embeddings": False, **settings})


def llama_of(**settings: Any) -> Callable[[int], TransformersModel]:
    """For families that compute LLaMA's block, and that transformers do not have."""
    return lambda seed: llama(seed, **settings)


def rotary(config: Any, part: float = 1.0) -> dict[str, int]:
    return {"rope.dimension_count": int(part * head_dim(config))}


def joined_heads(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    """Queries, keys and values of each head lie together; in the file all queries come first."""
    heads = getattr(config, "num_attention_heads", None) or config.n_head
    parts = values.reshape(heads, 3, -1, *values.shape[1:])
    yield name, np.concatenate([parts[:, i].reshape(-1, *values.shape[1:]) for i in range(3)])


def grouped_heads(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    """Falcon: a group has its queries, then one key and one value."""
    groups = config.num_kv_heads if config.new_decoder_architecture else 1
    parts = values.reshape(groups, config.num_attention_heads // groups + 2, -1, values.shape[-1])
    rows = (parts[:, :-2], parts[:, -2:-1], parts[:, -1:])
    yield name, np.concatenate([each.reshape(-1, values.shape[-1]) for each in rows])


def falcon(seed: int, *, large: bool) -> TransformersModel:
    config = transformers.FalconConfig(
        vocab_size=N_VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_kv_heads=2,
        new_decoder_architecture=large,
        multi_query=not large,
        parallel_attn=True,
        bias=False,
        alibi=False,
        activation="gelu_pytorch_tanh",
        ffn_hidden_size=64,
        max_position_embeddings=64,
        rope_parameters=ROPE,
        bos_token_id=None,
        eos_token_id=None,
    )
    return TransformersModel(transformers.FalconForCausalLM, config, seed, rules=LEARNED, layer=4.0)


def falcon_keys(config: Any) -> dict[str, Any]:
    kv = config.num_kv_heads if config.new_decoder_architecture else 1
    return basic(_Widths(config, intermediate_size=config.ffn_hidden_size)) | {"attention.head_count_kv": kv, **EPS}


def ffn_norm(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    """The norm before the MLP, which gguf knows under no such name."""
    layer, end = re.search(r"\d+", name), name.rsplit(".", 1)[-1]
    assert layer is not None
    yield f"blk.{layer[0]}.ffn_norm.{end}", values


def embedding_norm(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    yield f"token_embd_norm.{name.rsplit('.', 1)[-1]}", values


class _Widths:
    """A configuration with attributes that others have under these names."""

    def __init__(self, config: Any, **more: Any) -> None:
        self.__dict__.update(more)
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def gptneox(seed: int, *, parallel: bool) -> TransformersModel:
    return model(
        "GPTNeoX",
        seed,
        {
            "intermediate_size": 64,
            "use_parallel_residual": parallel,
            "hidden_act": "gelu_pytorch_tanh",
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
            "tie_word_embeddings": False,
        },
    )


def bloom(seed: int) -> TransformersModel:
    config = transformers.BloomConfig(
        vocab_size=N_VOCAB, hidden_size=32, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None
    )
    return TransformersModel(transformers.BloomForCausalLM, config, seed, rules=LEARNED, layer=4.0)


def gpt_keys(config: Any, width: int) -> dict[str, Any]:
    """Of families whose settings have GPT's names."""
    heads = config.n_head if hasattr(config, "n_head") else config.n_heads
    return {
        "context_length": 64,
        "embedding_length": config.hidden_size,
        "block_count": config.n_layer if hasattr(config, "n_layer") else config.n_layers,
        "feed_forward_length": width,
        "attention.head_count": heads,
        **EPS,
    }


def mpt(seed: int) -> TransformersModel:
    """As llama.cpp computes it: with GELU of tanh, where the library has that of erf."""
    config = transformers.MptConfig(
        d_model=32,
        n_heads=4,
        n_layers=2,
        expansion_ratio=2,
        max_seq_len=64,
        vocab_size=N_VOCAB,
        no_bias=True,
        attn_config={"alibi": True, "alibi_bias_max": 8, "clip_qkv": 1.5},
    )
    found = TransformersModel(transformers.MptForCausalLM, config, seed, rules=LEARNED, layer=4.0)
    for block in found.network.transformer.blocks:
        block.ffn.act = torch.nn.GELU(approximate="tanh")
    return found


def starcoder(seed: int) -> TransformersModel:
    config = transformers.GPTBigCodeConfig(
        vocab_size=N_VOCAB,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_inner=64,
        multi_query=True,
        activation_function="gelu_pytorch_tanh",
        bos_token_id=None,
        eos_token_id=None,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
    )
    return TransformersModel(transformers.GPTBigCodeForCausalLM, config, seed, rules=LEARNED, layer=4.0)


APERTUS: dict[str, Any] = {
    **WIDE,
    "intermediate_size": 64,
    "rope_parameters": LLAMA3,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
XIELU = {"alpha_n": [0.75, -0.5], "alpha_p": [1.25, 0.25]}
"""The parameters of the activation, as the library holds them, by layers."""

DENSE: dict[str, Family] = {
    "internlm2": Family(ARCH.INTERNLM2, llama_of(), lambda c: basic(c, **rotated(c)), PAIRED),
    "xverse": Family(ARCH.XVERSE, llama_of(), lambda c: basic(c, **rotated(c)), PAIRED, seed=40),
    "exaone": Family(
        ARCH.EXAONE,
        llama_of(**WIDE, rope_parameters=LLAMA3, max_position_embeddings=128),
        lambda c: basic(c, **lengths(c), **rotated(c)),
        {},
        llama3_factors,
    ),
    "orion": Family(
        ARCH.ORION,
        of("StableLm", rope_parameters={**ROPE, "partial_rotary_factor": 1.0}),
        lambda c: basic(c) | EPS,
    ),
    "arcee": Family(ARCH.ARCEE, of("Arcee"), lambda c: basic(c, **rotated(c)), PAIRED),
    "seed_oss": Family(
        ARCH.SEED_OSS,
        of("SeedOss", head_dim=16, attention_bias=True, attention_out_bias=False),
        lambda c: basic(c, **lengths(c)),
        {r"post_attention_layernorm": lambda c, n, v: [(f"blk.{n.split('.')[2]}.post_attention_norm.weight", v)]},
        without_effect=("k_proj.bias",),
    ),
    "ernie4_5": Family(
        ARCH.ERNIE4_5,
        of("Ernie4_5", head_dim=16, use_bias=False),
        lambda c: basic(c, **lengths(c), **rotated(c)),
    ),
    "hunyuan-dense": Family(
        ARCH.HUNYUAN_DENSE,
        of("HunYuanDenseV1", head_dim=16, attention_bias=False, rope_parameters=ROPE),
        lambda c: basic(c, **lengths(c)),
    ),
    "nemotron": Family(
        ARCH.NEMOTRON,
        lambda seed: model(
            "Nemotron",
            seed,
            {"intermediate_size": 64, "tie_word_embeddings": False, "rope_parameters": HALF_ROPE, "head_dim": None},
            rules={r"norm\.weight": lambda rng, shape: coarse(0.3 * rng.standard_normal(shape))},
        ),
        lambda c: basic(c, **rotary(c, 0.5)) | EPS,
        {r"norm\.weight": plus_one},
    ),
    "apertus": Family(
        ARCH.APERTUS,
        lambda seed: model(
            "Apertus",
            seed,
            APERTUS,
            rules={
                rf"{n}.*{name}$": lambda rng, shape, value=values[n]: np.full(shape, value)
                for name, values in XIELU.items()
                for n in range(2)
            },
        ),
        lambda c: (
            basic(c, **lengths(c), **rotated(c))
            | {f"xielu.{name}": values for name, values in XIELU.items()}
            | {"xielu.beta": [0.5, 0.5], "xielu.eps": [-1e-6, -1e-6]}
        ),
        {"act_fn": unused},
        llama3_factors,
        without_effect=("act_fn",),
    ),
    "falcon": Family(
        ARCH.FALCON, lambda seed: falcon(seed, large=False), falcon_keys, {r"query_key_value": grouped_heads}
    ),
    "falcon-large": Family(
        ARCH.FALCON, lambda seed: falcon(seed, large=True), falcon_keys, {r"query_key_value": grouped_heads}
    ),
    "gptneox": Family(
        ARCH.GPTNEOX,
        lambda seed: gptneox(seed, parallel=True),
        lambda c: basic(c, **rotary(c, 0.5)) | EPS | {"attention.head_count_kv": 4, "use_parallel_residual": True},
        {r"query_key_value": joined_heads},
        without_effect=(),
    ),
    "gptneox-sequential": Family(
        ARCH.GPTNEOX,
        lambda seed: gptneox(seed, parallel=False),
        lambda c: basic(c, **rotary(c, 0.5)) | EPS | {"attention.head_count_kv": 4, "use_parallel_residual": False},
        {r"query_key_value": joined_heads},
    ),
    "bloom": Family(
        ARCH.BLOOM,
        bloom,
        lambda c: gpt_keys(c, 4 * c.hidden_size),
        {
            r"query_key_value": joined_heads,
            r"post_attention_layernorm": ffn_norm,
            "word_embeddings_layernorm": embedding_norm,
        },
    ),
    "mpt": Family(
        ARCH.MPT,
        mpt,
        lambda c: gpt_keys(c, 4 * c.hidden_size) | {"attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 1.5},
    ),
    "starcoder": Family(ARCH.STARCODER, starcoder, lambda c: gpt_keys(c, 64) | {"attention.head_count_kv": 1}),
    "olmo": Family(
        ARCH.OLMO,
        of("Olmo", clip_qkv=1.5),
        lambda c: basic(c, **rotated(c)) | EPS | {"attention.clamp_kqv": 1.5},
        PAIRED,
    ),
    "exaone4": Family(
        ARCH.EXAONE4,
        of("Exaone4", head_dim=8, sliding_window=None, layer_types=["full_attention"] * 2),
        lambda c: basic(c, **lengths(c)),
    ),
    "exaone4-window": Family(
        ARCH.EXAONE4,
        of("Exaone4", head_dim=8, num_hidden_layers=4, sliding_window=12, sliding_window_pattern=4),
        lambda c: basic(c, **lengths(c)) | {"attention.sliding_window": 12},
    ),
    "cohere2": Family(
        ARCH.COHERE2,
        lambda seed: model(
            "Cohere2",
            seed,
            {"num_hidden_layers": 4, "logit_scale": 0.5, "sliding_window": 12, "rope_parameters": ROPE},
            embedding=0.6,
            layer=4.0,
        ),
        lambda c: (
            command_r_keys(c)
            | {
                "attention.sliding_window": 12,
                "rope.dimension_count": head_dim(c),
            }
        ),
    ),
    "minicpm": Family(
        ARCH.MINICPM,
        lambda seed: model(
            "Granite",
            seed,
            {
                "embedding_multiplier": 3.0,
                "attention_multiplier": 8**-0.5,
                "residual_multiplier": 0.6,
                "logits_scaling": 1.5,
                "tie_word_embeddings": True,
            },
            embedding=0.4,
            layer=4.0,
        ),
        lambda c: basic(c, **rotated(c)) | {"embedding_scale": 3.0, "residual_scale": 0.6, "logit_scale": 1.5},
        PAIRED,
    ),
    "chatglm": Family(
        ARCH.CHATGLM,
        of("Glm", head_dim=8, attention_bias=True, rope_parameters=HALF_ROPE),
        lambda c: basic(c, **lengths(c)) | {"rope.dimension_count": 4},
        without_effect=("k_proj.bias",),
    ),
    "jais2": Family(
        ARCH.JAIS2,
        of("Jais2", intermediate_size=64, rope_parameters=ROPE),
        lambda c: basic(c, **rotary(c)) | EPS,
        without_effect=("k_proj.bias",),
    ),
    "qwen2vl": Family(
        ARCH.QWEN2VL,
        of("Qwen2", use_sliding_window=False, sliding_window=None, rope_parameters=ROPE),
        lambda c: basic(c) | {"rope.dimension_sections": [1, 1, 2, 0]},
        without_effect=("k_proj.bias",),
    ),
    "qwen3vl": Family(
        ARCH.QWEN3VL,
        of("Qwen3", head_dim=16, use_sliding_window=False, sliding_window=None, rope_parameters=ROPE),
        lambda c: basic(c, **lengths(c)) | {"rope.dimension_sections": [3, 3, 2, 0]},
    ),
}
