"""Further decoders with experts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from oracles.attention import ARCH
from oracles.dense import HALF_ROPE, ROPE, model
from oracles.experts import ROUTER, SMALL, experts, qwen3moe
from oracles.family import Array, Family, basic, head_dim, lengths, rotated
from oracles.models import Rules, TransformersModel, coarse
from oracles.states import STATE_RULES, squeezed

CHOSEN: Rules = {
    r"e_score_correction_bias|expert_bias|moe_statics": lambda rng, shape: coarse(0.2 * rng.standard_normal(shape)),
    r"\.gate\.w\w+$": ROUTER[r"\.gate\.weight$|router"],
    r"experts\.\w+(_proj)?$": lambda rng, shape: coarse(1.2 * rng.standard_normal(shape) / shape[-1] ** 0.5),
    **ROUTER,
}
"""Rules with a bias for the choice of experts."""

SIGMOID = {"expert_gating_func": 2, "expert_weights_norm": True}


def of(kind: str, seed: int, **settings: Any) -> TransformersModel:
    return model(kind, seed, {**SMALL, "tie_word_embeddings": False, **settings}, rules=CHOSEN)


def widths(config: Any, n: int, shared: int = 0, dense: int = 0, scale: float = 1.0) -> dict[str, Any]:
    """``shared``: number of shared experts; ``dense``: of blocks without experts."""
    found: dict[str, Any] = {
        **experts(config, n),
        "expert_feed_forward_length": getattr(config, "moe_intermediate_size", config.intermediate_size),
    }
    if shared:
        found["expert_shared_count"] = shared
    if dense:
        found["leading_dense_block_count"] = dense
    if scale != 1:
        found["expert_weights_scale"] = scale
    return found


def bias_of_layer(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    yield f"blk.{name.split('.')[2]}.exp_probs_b.bias", values.reshape(-1)


def numbered_experts(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    """LFM2's matrices, which gguf knows under no such names."""
    part = {"w1": "gate", "w2": "down", "w3": "up"}[name.split(".")[-2]]
    yield f"blk.{name.split('.')[2]}.ffn_{part}_exps.weight", values


BLOCKS: dict[str, Any] = {"e_score_correction_bias|expert_bias": bias_of_layer}

LFM2MOE: dict[str, Any] = {
    **SMALL,
    "moe_intermediate_size": 8,
    "num_dense_layers": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "use_expert_bias": True,
    "norm_topk_prob": True,
    "num_hidden_layers": 3,
    "layer_types": ["conv", "full_attention", "conv"],
    "conv_L_cache": 3,
    "rope_parameters": ROPE,
}

MIXTURES: dict[str, Family] = {
    "ernie4_5-moe": Family(
        ARCH.ERNIE4_5_MOE,
        lambda seed: of(
            "Ernie4_5_Moe",
            seed,
            moe_intermediate_size=8,
            moe_k=2,
            moe_num_experts=4,
            moe_num_shared_experts=2,
            moe_layer_start_index=1,
            num_hidden_layers=2,
            intermediate_size=32,
            rope_parameters=ROPE,
        ),
        lambda c: (
            basic(c, **lengths(c), **rotated(c), **widths(c, 4, 2, 1))
            | {"expert_shared_feed_forward_length": 16, "interleave_moe_layer_step": 1}
        ),
        BLOCKS,
    ),
    "hunyuan-moe": Family(
        ARCH.HUNYUAN_MOE,
        lambda seed: of("HunYuanMoEV1", seed, head_dim=16, num_experts=4, moe_topk=2, rope_parameters=ROPE),
        lambda c: (
            basic(c, **lengths(c), **widths(c, 4))
            | {"expert_shared_feed_forward_length": c.intermediate_size, "expert_shared_count": 1}
        ),
    ),
    "dots1": Family(
        ARCH.DOTS1,
        lambda seed: of(
            "Dots1",
            seed,
            head_dim=16,
            num_key_value_heads=4,
            moe_intermediate_size=8,
            n_shared_experts=2,
            n_routed_experts=4,
            num_experts_per_tok=2,
            first_k_dense_replace=1,
            norm_topk_prob=True,
            routed_scaling_factor=1.5,
            sliding_window=None,
            layer_types=["full_attention"] * 2,
            rope_parameters=ROPE,
        ),
        lambda c: basic(c, **lengths(c), **widths(c, 4, 2, 1, 1.5), **SIGMOID),
        BLOCKS,
    ),
    "glm4moe": Family(
        ARCH.GLM4_MOE,
        lambda seed: of(
            "Glm4Moe",
            seed,
            head_dim=16,
            attention_bias=True,
            use_qk_norm=True,
            moe_intermediate_size=8,
            n_shared_experts=1,
            n_routed_experts=4,
            num_experts_per_tok=2,
            first_k_dense_replace=1,
            norm_topk_prob=True,
            routed_scaling_factor=1.5,
            rope_parameters=HALF_ROPE,
        ),
        lambda c: basic(c, **lengths(c), **widths(c, 4, 1, 1, 1.5), **SIGMOID) | {"rope.dimension_count": 8},
        {
            **BLOCKS,
            r"post_attention_layernorm": lambda c, n, v: [(f"blk.{n.split('.')[2]}.post_attention_norm.weight", v)],
        },
    ),
    "minimax-m2": Family(
        ARCH.MINIMAXM2,
        lambda seed: of(
            "MiniMaxM2",
            seed,
            head_dim=16,
            num_local_experts=4,
            num_experts_per_tok=2,
            rope_parameters=HALF_ROPE,
        ),
        lambda c: (
            basic(c, **lengths(c), **widths(c, 4)) | {"rope.dimension_count": head_dim(c) // 2, "expert_gating_func": 2}
        ),
        BLOCKS,
    ),
    "exaone-moe": Family(
        ARCH.EXAONE_MOE,
        lambda seed: of(
            "ExaoneMoe",
            seed,
            head_dim=16,
            num_hidden_layers=4,
            sliding_window=12,
            layer_types=[*["sliding_attention"] * 3, "full_attention"],
            mlp_layer_types=["dense", *["sparse"] * 3],
            first_k_dense_replace=1,
            moe_intermediate_size=8,
            num_experts=4,
            num_experts_per_tok=2,
            num_shared_experts=1,
            norm_topk_prob=True,
            routed_scaling_factor=1.5,
            rope_parameters=ROPE,
        ),
        lambda c: (
            basic(c, **lengths(c), **widths(c, 4, 1, 1, 1.5), **SIGMOID)
            | {"attention.sliding_window": 12, "attention.sliding_window_pattern": [True, True, True, False]}
        ),
        BLOCKS,
    ),
    "lfm2moe": Family(
        ARCH.LFM2MOE,
        lambda seed: model(
            "Lfm2Moe",
            seed,
            LFM2MOE,
            embedding=0.3,
            layer=4.0,
            rules={**STATE_RULES, **CHOSEN},
        ),
        lambda c: (
            basic(c, **widths(c, 4, 0, 1), expert_gating_func=2)
            | {
                "attention.head_count_kv": [0, 2, 0],
                "attention.layer_norm_rms_epsilon": c.norm_eps,
                "shortconv.l_cache": c.conv_L_cache,
            }
        ),
        {**BLOCKS, r"conv\.conv": squeezed, r"experts\.w\d": numbered_experts},
    ),
    "qwen3vlmoe": Family(
        ARCH.QWEN3VLMOE,
        qwen3moe,
        lambda c: basic(c, **lengths(c), **widths(c, 6)) | {"rope.dimension_sections": [3, 3, 2, 0]},
        seed=20,
    ),
}
