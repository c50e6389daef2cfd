"""Decoders whose MLPs are chosen for each token among several."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import gguf
import numpy as np
import transformers

from oracles.attention import ARCH, SHAPE, WIDE, YARN, granite_scales, yarn
from oracles.family import PAIRED, Array, Family, basic, lengths, rotated
from oracles.files import Blocks
from oracles.models import Rules, TransformersModel, coarse

SMALL = {**SHAPE, "intermediate_size": 16}
ROUTER: Rules = {
    r"\.gate\.weight$|router": lambda rng, shape: coarse(2 * rng.standard_normal(shape) / math.sqrt(shape[-1]))
}
"""Scores far enough apart for choices that rounding does not change."""


def experts(config: Any, n: int, used: int = 2) -> dict[str, int]:
    return {"expert_count": n, "expert_used_count": used}


def mixtral(seed: int) -> TransformersModel:
    config = transformers.MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
    return TransformersModel(transformers.MixtralForCausalLM, config, seed, rules=ROUTER)


def qwen2moe(seed: int) -> TransformersModel:
    config = transformers.Qwen2MoeConfig(
        **SMALL,
        moe_intermediate_size=8,
        shared_expert_intermediate_size=24,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=False,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        use_sliding_window=False,
        sliding_window=None,
    )
    return TransformersModel(transformers.Qwen2MoeForCausalLM, config, seed, rules=ROUTER)


def qwen3moe(seed: int) -> TransformersModel:
    config = transformers.Qwen3MoeConfig(
        **SMALL,
        head_dim=16,
        moe_intermediate_size=8,
        num_experts=6,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        use_sliding_window=False,
        sliding_window=None,
        tie_word_embeddings=False,
    )
    return TransformersModel(transformers.Qwen3MoeForCausalLM, config, seed, rules=ROUTER)


def olmoe(seed: int) -> TransformersModel:
    config = transformers.OlmoeConfig(
        **{**SMALL, "num_key_value_heads": 4}, num_experts=4, num_experts_per_tok=2, norm_topk_prob=False
    )
    return TransformersModel(transformers.OlmoeForCausalLM, config, seed, rules=ROUTER)


def granitemoe(seed: int, shared: bool) -> TransformersModel:
    settings = dict(
        SMALL,
        num_local_experts=4,
        num_experts_per_tok=2,
        embedding_multiplier=3.0,
        attention_multiplier=0.25,
        residual_multiplier=0.6,
        logits_scaling=1.5,
        tie_word_embeddings=True,
    )
    kind: Any = transformers.GraniteMoeForCausalLM
    config: Any = transformers.GraniteMoeConfig(**settings)
    if shared:
        kind = transformers.GraniteMoeSharedForCausalLM
        config = transformers.GraniteMoeSharedConfig(**settings, shared_intermediate_size=16)
    return TransformersModel(kind, config, seed, embedding=0.4, layer=4.0, rules=ROUTER)


def split_granite(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    """The gates' rows come first."""
    kind = "exps" if "block_sparse_moe" in name else "shexp"
    layer = name.split(".")[2]
    gate, up = np.split(values, 2, axis=-2)
    yield f"blk.{layer}.ffn_gate_{kind}.weight", gate
    yield f"blk.{layer}.ffn_up_{kind}.weight", up


GPT_OSS_ROPE = {**YARN, "truncate": True}


def gpt_oss(seed: int, blocks: bool) -> TransformersModel:
    config = transformers.GptOssConfig(
        **{**SHAPE, **WIDE, "intermediate_size": 32 if blocks else 16},
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=12,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters=GPT_OSS_ROPE,
        tie_word_embeddings=False,
    )
    rules: dict[str, Any] = {
        "sinks": lambda rng, shape: coarse(0.7 * rng.standard_normal(shape)),
        r"experts\.\w+_bias$": lambda rng, shape: coarse(0.2 * rng.standard_normal(shape)),
        r"experts\.\w+_proj$": on_grid if blocks else lambda rng, shape: coarse(0.2 * rng.standard_normal(shape)),
        **ROUTER,
    }
    return TransformersModel(transformers.GptOssForCausalLM, config, seed, rules=rules)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def on_grid(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Values that MXFP4 holds exactly: one power of two for 32 of them along the axis that is summed over."""
    values = rng.choice(E2M1, size=shape) * rng.choice([-1.0, 1.0], size=shape)
    powers = np.exp2(rng.integers(-5, -3, size=(shape[0], shape[1] // 32, 1, shape[2])))
    grouped = values.reshape(shape[0], shape[1] // 32, 32, shape[2])
    grouped[:, :, 0] = 6.0  # the power is seen from the largest
    return (grouped * powers).reshape(shape)


def gpt_oss_experts(config: Any, name: str, values: Array) -> Iterable[tuple[str, Any]]:
    """Gate and up alternate; matrices lie the other way round than those of other models."""
    layer, end = name.split(".")[2], "bias" if name.endswith("bias") else "weight"
    if end == "weight":
        values = values.swapaxes(-1, -2)
    axis = -1 if end == "bias" else -2
    parts = {"down": values}
    if "gate_up" in name:
        parts = {
            "gate": np.take(values, range(0, values.shape[axis], 2), axis),
            "up": np.take(values, range(1, values.shape[axis], 2), axis),
        }
    for part, each in parts.items():
        yield f"blk.{layer}.ffn_{part}_exps.{end}", each


def gpt_oss_blocks(config: Any, name: str, values: Array) -> Iterable[tuple[str, Any]]:
    kind = gguf.GGMLQuantizationType.MXFP4
    for new, each in gpt_oss_experts(config, name, values):
        if new.endswith("weight"):
            packed = gguf.quantize(np.ascontiguousarray(each, np.float32), kind)
            if (gguf.dequantize(packed, kind) != each).any():
                raise ValueError(f"{new} is not what MXFP4 can hold")
            yield new, Blocks(packed, kind)
        else:
            yield new, each


def gpt_oss_keys(config: Any) -> dict[str, Any]:
    return basic(config, **lengths(config), **yarn(config), **experts(config, 4)) | {
        "expert_feed_forward_length": config.intermediate_size,
        "attention.sliding_window": config.sliding_window,
    }


def as_weight(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    yield f"{name}.weight", values


DEEPSEEK: dict[str, Any] = {
    **SHAPE,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "first_k_dense_replace": 1,
}
DEEPSEEK_YARN = {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}


def deepseek2(seed: int, q_lora_rank: int | None) -> TransformersModel:
    config = transformers.DeepseekV2Config(
        **DEEPSEEK,
        q_lora_rank=q_lora_rank,
        topk_method="greedy",
        norm_topk_prob=False,
        routed_scaling_factor=1.5,
        n_group=1,
        topk_group=1,
        rope_parameters=DEEPSEEK_YARN,
        tie_word_embeddings=False,
    )
    return TransformersModel(transformers.DeepseekV2ForCausalLM, config, seed, rules=ROUTER)


def deepseek3(seed: int) -> TransformersModel:
    config = transformers.DeepseekV3Config(
        **{**DEEPSEEK, "n_routed_experts": 8},
        q_lora_rank=16,
        norm_topk_prob=True,
        routed_scaling_factor=1.5,
        n_group=4,
        topk_group=2,
        rope_parameters=DEEPSEEK_YARN,
        tie_word_embeddings=False,
    )
    return TransformersModel(
        transformers.DeepseekV3ForCausalLM,
        config,
        seed,
        rules={"e_score_correction_bias": lambda rng, shape: coarse(0.2 * rng.standard_normal(shape)), **ROUTER},
    )


def deepseek_keys(config: Any, joint: bool) -> dict[str, Any]:
    """``joint``: as older files have it, every head with keys and values of its own."""
    nope, rotated, latent = config.qk_nope_head_dim, config.qk_rope_head_dim, config.kv_lora_rank
    widths = (
        {"attention.key_length": nope + rotated, "attention.value_length": config.v_head_dim}
        if joint
        else {
            "attention.head_count_kv": 1,
            "attention.key_length": latent + rotated,
            "attention.value_length": latent,
            "attention.key_length_mla": nope + rotated,
            "attention.value_length_mla": config.v_head_dim,
        }
    )
    return (
        basic(config, **yarn(config), **experts(config, config.n_routed_experts))
        | widths
        | {
            "attention.kv_lora_rank": latent,
            "attention.q_lora_rank": config.q_lora_rank or 0,
            "rope.dimension_count": rotated,
            "leading_dense_block_count": 1,
            "expert_shared_count": 1,
            "expert_feed_forward_length": config.moe_intermediate_size,
            "expert_weights_scale": 1.5,
            "rope.scaling.yarn_log_multiplier": 0.07,
        }
    )


def split_latent(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    """Keys and values from the latent vector: two tensors with an axis of heads, the keys' matrices transposed."""
    layer = name.split(".")[2]
    heads = values.reshape(config.num_attention_heads, -1, values.shape[-1])
    keys, rest = np.split(heads, [config.qk_nope_head_dim], axis=1)
    yield f"blk.{layer}.attn_k_b.weight", keys.swapaxes(1, 2)
    yield f"blk.{layer}.attn_v_b.weight", rest


def correction(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    yield f"blk.{name.split('.')[2]}.exp_probs_b.bias", values


SPLIT = {r"kv_b_proj": split_latent, "e_score_correction_bias": correction}

EXPERTS: dict[str, Family] = {
    "mixtral": Family(ARCH.LLAMA, mixtral, lambda c: basic(c, **rotated(c), **experts(c, 4)), PAIRED),
    "qwen2moe": Family(
        ARCH.QWEN2MOE,
        qwen2moe,
        lambda c: (
            basic(c, **experts(c, 4))
            | {
                "expert_feed_forward_length": 8,
                "expert_shared_feed_forward_length": 24,
            }
        ),
        without_effect=("k_proj.bias",),
    ),
    "qwen3moe": Family(
        ARCH.QWEN3MOE,
        qwen3moe,
        lambda c: basic(c, **lengths(c), **experts(c, 6)) | {"expert_feed_forward_length": 8},
        hidden=True,
    ),
    "olmoe": Family(ARCH.OLMOE, olmoe, lambda c: basic(c, **experts(c, 4))),
    "granitemoe": Family(
        ARCH.GRANITE_MOE,
        lambda seed: granitemoe(seed, False),
        lambda c: basic(c, **rotated(c), **experts(c, 4)) | granite_scales(c),
        {**PAIRED, "input_linear": split_granite},
    ),
    "granitemoe-shared": Family(
        ARCH.GRANITE_MOE,
        lambda seed: granitemoe(seed, True),
        lambda c: (
            basic(c, **rotated(c), **experts(c, 4))
            | granite_scales(c)
            | {
                "expert_shared_feed_forward_length": 16,
            }
        ),
        {**PAIRED, "input_linear": split_granite},
    ),
    "gpt-oss": Family(
        ARCH.GPT_OSS,
        lambda seed: gpt_oss(seed, False),
        gpt_oss_keys,
        {r"mlp\.experts": gpt_oss_experts, "sinks": as_weight},
        seed=2,
    ),
    "gpt-oss-mxfp4": Family(
        ARCH.GPT_OSS,
        lambda seed: gpt_oss(seed, True),
        gpt_oss_keys,
        {r"mlp\.experts": gpt_oss_blocks, "sinks": as_weight},
    ),
    "deepseek2": Family(
        ARCH.DEEPSEEK2,
        lambda seed: deepseek2(seed, 16),
        lambda c: deepseek_keys(c, joint=False),
        SPLIT,
    ),
    "deepseek2-joint": Family(
        ARCH.DEEPSEEK2,
        lambda seed: deepseek2(seed, 16),
        lambda c: deepseek_keys(c, joint=True),
        seed=100,
    ),
    "deepseek3": Family(
        ARCH.DEEPSEEK2,
        deepseek3,
        lambda c: (
            deepseek_keys(c, joint=False)
            | {
                "expert_gating_func": 2,
                "expert_weights_norm": True,
                "expert_group_count": 4,
                "expert_group_used_count": 2,
            }
        ),
        SPLIT,
    ),
}
