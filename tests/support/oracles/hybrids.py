"""Decoders with attention in some layers, and a state space model or gated delta nets in others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import transformers

from oracles.attention import ARCH, SHAPE, granite_scales
from oracles.dense import HALF_ROPE, model
from oracles.experts import ROUTER, SMALL, SPLIT, experts, split_granite
from oracles.family import Array, Change, Family, basic, lengths, plus_one
from oracles.mixtures import BLOCKS, CHOSEN, widths
from oracles.models import Rules, TransformersModel, coarse
from oracles.states import STATE_RULES, decay, named, squeezed

GRANITE: dict[str, Any] = {
    **SMALL,
    "layer_types": ["mamba", "attention"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 16,
    "mamba_n_heads": 4,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_head": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.25,
    "residual_multiplier": 0.6,
    "logits_scaling": 1.5,
    "position_embedding_type": "nope",
    "tie_word_embeddings": True,
}

JAMBA: dict[str, Any] = {
    **SMALL,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "use_mamba_kernels": False,
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": 4,
    "tie_word_embeddings": False,
}

NEMOTRON: dict[str, Any] = {
    "head_dim": 16,
    "layers_block_type": ["mamba", "mlp", "attention"],
    "num_hidden_layers": 3,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "n_groups": 2,
    "conv_kernel": 4,
    "chunk_size": 16,
    "use_mamba_kernels": False,
    "intermediate_size": 64,
    "tie_word_embeddings": False,
}

MAMBA2: dict[str, Any] = {
    "A_log": decay,
    r"conv1d\.weight": squeezed,
    r"\.D$": named("d", shape=(-1, 1)),
    "dt_bias": named("dt", end=".bias"),
}


def state_space(config: Any, inner: int, state: int, rank: int) -> dict[str, Any]:
    return {"ssm.conv_kernel": 4, "ssm.inner_size": inner, "ssm.state_size": state, "ssm.time_step_rank": rank}


HYBRIDS: dict[str, Family] = {
    "granitehybrid": Family(
        ARCH.GRANITE_HYBRID,
        lambda seed: model(
            "GraniteMoeHybrid", seed, GRANITE, embedding=0.4, layer=4.0, rules={**STATE_RULES, **ROUTER}
        ),
        lambda c: (
            basic(c, **experts(c, 4), **state_space(c, 64, 16, 4))
            | granite_scales(c)
            | {
                "attention.head_count_kv": [0, 2],
                "expert_shared_feed_forward_length": 16,
                "ssm.group_count": 1,
                "rope.dimension_count": 8,
                "rope.scaling.finetuned": False,
            }
        ),
        {**MAMBA2, r"mamba\.norm": named("norm", shape=(1, -1), end=".weight"), "input_linear": split_granite},
    ),
    "jamba": Family(
        ARCH.JAMBA,
        lambda seed: model("Jamba", seed, JAMBA, rules={**STATE_RULES, **ROUTER}),
        lambda c: basic(c, **experts(c, 4), **state_space(c, 64, 8, 4)) | {"attention.head_count_kv": [0, 2]},
        {"A_log": decay, r"conv1d\.weight": squeezed, r"\.D$": named("d")},
    ),
    "nemotron_h": Family(
        ARCH.NEMOTRON_H,
        lambda seed: model("NemotronH", seed, NEMOTRON, rules=STATE_RULES),
        lambda c: (
            basic(c, **lengths(c), **state_space(c, 64, 16, 4))
            | {
                "attention.head_count_kv": [0, 0, 2],
                "feed_forward_length": [0, 64, 0],
                "attention.layer_norm_rms_epsilon": c.layer_norm_epsilon,
                "attention.layer_norm_epsilon": c.layer_norm_epsilon,
                "ssm.group_count": 2,
            }
        ),
        {**MAMBA2, r"mixer\.norm": named("norm", shape=(2, -1), end=".weight")},
    ),
}


QWEN: dict[str, Any] = {
    **SMALL,
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "rope_parameters": HALF_ROPE,
    "tie_word_embeddings": False,
}
EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 12,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
RULES: Rules = {
    r"(layernorm|q_norm|k_norm|model\.norm)\.weight": lambda rng, shape: coarse(0.3 * rng.standard_normal(shape)),
    **STATE_RULES,
    **CHOSEN,
}


def qwen(kind: str, seed: int, of: str = "Config", **settings: Any) -> TransformersModel:
    """``of``: which class of settings."""
    config = getattr(transformers, f"{kind}{of}")(**{**SHAPE, **QWEN, **settings})
    return TransformersModel(getattr(transformers, f"{kind}ForCausalLM"), config, seed, rules=RULES)


def keys(config: Any, **more: Any) -> dict[str, Any]:
    d, n_key, n_value = config.linear_key_head_dim, config.linear_num_key_heads, config.linear_num_value_heads
    return basic(config, **lengths(config), **more) | {
        "ssm.conv_kernel": 4,
        "ssm.state_size": d,
        "ssm.group_count": n_key,
        "ssm.time_step_rank": n_value,
        "ssm.inner_size": d * n_value,
        "full_attention_interval": 2,
        "rope.dimension_count": 8,
    }


def mixed(config: Any, **more: Any) -> dict[str, Any]:
    return keys(config, **experts(config, 4), **more) | {
        "feed_forward_length": 16,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.shared_expert_intermediate_size,
    }


def decays(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    yield f"blk.{name.split('.')[2]}.ssm_a", -np.exp(values)


def behind(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    yield f"blk.{name.split('.')[2]}.post_attention_norm.weight", values + 1


def of_keys(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    """Rows of queries, keys, values and gates, which lie together for each head of keys."""
    layer, n, d = name.split(".")[2], config.linear_num_key_heads, config.linear_key_head_dim
    wide = d * config.linear_num_value_heads // n
    parts = np.split(values.reshape(n, -1, values.shape[-1]), np.cumsum([d, d, wide]), axis=1)
    q, k, v, z = (part.reshape(-1, values.shape[-1]) for part in parts)
    yield f"blk.{layer}.attn_qkv.weight", np.concatenate([q, k, v])
    yield f"blk.{layer}.attn_gate.weight", z


def tiled(config: Any, values: Array, d: int, axis: int = 0) -> Array:
    """Heads of values that use the same key lie apart, as the op combines them."""
    values = np.moveaxis(values, axis, 0)
    n = config.linear_num_key_heads
    heads = values.reshape(n, -1, d, *values.shape[1:]).swapaxes(0, 1)
    return np.moveaxis(heads.reshape(values.shape), 0, axis)


def tiling(change: Change, d: int = 1, axis: int = 0, *, behind_keys: bool = False) -> Change:
    """The change, of a tensor whose heads of values are tiled; ``behind_keys``: they follow queries and keys."""

    def changed(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
        first = 2 * config.linear_num_key_heads * config.linear_key_head_dim if behind_keys else 0
        rest = tiled(config, values[first:], d, axis)
        yield from change(config, name, np.concatenate([values[:first], rest]) if first else rest)

    return changed


def plain(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    yield name, values


def weight(part: str, of: str = "ssm") -> Change:
    return named(part, of, end=".weight")


def flat(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    yield f"blk.{name.split('.')[2]}.ssm_conv1d.weight", values.reshape(values.shape[0], -1)


def convolution(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    part = name.split("_conv1d")[0][-1]
    yield f"blk.{name.split('.')[2]}.ssm_conv1d_{part}.weight", values.reshape(1, -1, 1, values.shape[-1])


NORMS: dict[str, Change] = {
    r"post_attention_layernorm": behind,
    r"(input_layernorm|q_norm|k_norm|^model\.norm)\.weight": plus_one,
}
TILED: dict[str, Change] = {
    **NORMS,
    "A_log": tiling(decays),
    "dt_bias": tiling(named("dt", end=".bias")),
    r"conv1d": tiling(flat, 8, behind_keys=True),
    r"in_proj_qkv\.": tiling(weight("qkv", "attn"), 8, behind_keys=True),
    r"in_proj_z": tiling(weight("gate", "attn"), 8),
    r"in_proj_b": tiling(weight("beta")),
    r"in_proj_a": tiling(weight("alpha")),
    r"linear_attn\.out_proj": tiling(weight("out"), 8, 1),
}
SECTIONS: dict[str, Any] = {"rope.dimension_sections": [2, 1, 1, 0]}

KIMI: dict[str, Any] = {
    **SMALL,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "layer_types": ["linear_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse"],
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "linear_conv_kernel_dim": 4,
    "moe_intermediate_size": 8,
    "n_shared_experts": 1,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.5,
    "tie_word_embeddings": False,
}

DELTAS: dict[str, Family] = {
    "qwen3next": Family(
        ARCH.QWEN3NEXT,
        lambda seed: qwen("Qwen3Next", seed, **EXPERTS),
        mixed,
        {
            **NORMS,
            "A_log": decays,
            "dt_bias": named("dt", end=".bias"),
            "conv1d": flat,
            "in_proj_qkvz": of_keys,
            r"in_proj_ba": weight("ba"),
        },
    ),
    "qwen35": Family(
        ARCH.QWEN35,
        lambda seed: qwen("Qwen3_5", seed, "TextConfig"),
        lambda c: keys(c) | SECTIONS,
        TILED,
    ),
    "qwen35moe": Family(
        ARCH.QWEN35MOE,
        lambda seed: qwen("Qwen3_5Moe", seed, "TextConfig", **EXPERTS),
        lambda c: mixed(c) | SECTIONS,
        TILED,
    ),
    "kimi-linear": Family(
        ARCH.KIMI_LINEAR,
        lambda seed: model("KimiLinear", seed, KIMI, rules={**STATE_RULES, **CHOSEN}),
        lambda c: (
            basic(c, **widths(c, 4, 1, 1, 1.5), expert_gating_func=2)
            | {
                "attention.head_count_kv": [0, 1],
                "attention.kv_lora_rank": 16,
                "attention.key_length": 20,
                "attention.value_length": 16,
                "attention.key_length_mla": 12,
                "attention.value_length_mla": 12,
                "rope.dimension_count": 4,
                "ssm.conv_kernel": 4,
                "kda.head_dim": 8,
            }
        ),
        {
            **SPLIT,
            **BLOCKS,
            "A_log": lambda c, n, v: [(f"blk.{n.split('.')[2]}.ssm_a", -np.exp(v.reshape(-1, 1)))],
            "dt_bias": named("dt", end=".bias"),
            r"([qkv])_conv1d": convolution,
            r"f_a_proj": weight("f_a"),
            r"f_b_proj": weight("f_b"),
            r"g_a_proj": weight("g_a"),
            r"g_b_proj": weight("g_b"),
            r"\.b_proj": weight("beta"),
            r"o_norm": weight("norm"),
            r"0\.block_sparse_moe": lambda c, n, v: [(n.replace("block_sparse_moe", "mlp"), v)],
        },
    ),
}
