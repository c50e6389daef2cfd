"""Decoders of 2025 and 2026."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from oracles.attention import ARCH
from oracles.dense import ROPE, model
from oracles.experts import DEEPSEEK, SMALL, SPLIT, as_weight
from oracles.family import Array, Family, Tensors, basic, lengths
from oracles.files import N_VOCAB
from oracles.hybrids import MAMBA2, state_space
from oracles.mixtures import BLOCKS, CHOSEN, SIGMOID, widths
from oracles.models import Rules, TransformersModel, coarse
from oracles.states import STATE_RULES, named
from oracles.theirs import INDEXED

MIMO: dict[str, Any] = {
    "num_hidden_layers": 3,
    "head_dim": 12,
    "v_head_dim": 8,
    "num_key_value_heads": 1,
    "sliding_window": 12,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "moe_intermediate_size": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "attention_value_scale": 0.7,
    "rope_parameters": {
        "full_attention": {**ROPE, "rope_theta": 1000.0, "partial_rotary_factor": 0.34},
        "sliding_attention": {**ROPE, "partial_rotary_factor": 0.34},
    },
}
GLM: dict[str, Any] = {
    **DEEPSEEK,
    "q_lora_rank": 16,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "mlp_layer_types": ["dense", "sparse"],
    "index_topk": 64,
    "index_head_dim": 64,
    "index_n_heads": 2,
    "rope_parameters": ROPE,
}

FALCON: dict[str, Any] = {
    "head_dim": 8,
    "mamba_d_ssm": 64,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
    "mamba_rms_norm": True,
    "mamba_norm_before_gate": False,
    "tie_word_embeddings": False,
    "rope_parameters": ROPE,
}


def mixture(kind: str, seed: int, settings: dict[str, Any]) -> TransformersModel:
    settings = {**SMALL, "tie_word_embeddings": False, **settings}
    return model(kind, seed, settings, rules=CHOSEN)


GEMMA: dict[str, Any] = {
    "head_dim": 8,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "sliding_window": 12,
    "vocab_size_per_layer_input": N_VOCAB,
    "hidden_size_per_layer_input": 8,
    "final_logit_softcapping": 5.0,
    "tie_word_embeddings": False,
}
BASES: dict[str, Any] = {
    "full_attention": {**ROPE, "rope_theta": 1000.0},
    "sliding_attention": ROPE,
}
GEMMA3N: dict[str, Any] = {
    **GEMMA,
    "laurel_rank": 8,
    "activation_sparsity_pattern": [0.6, 0.0, 0.0, 0.3],
    "rope_parameters": BASES,
}
GEMMA4: dict[str, Any] = {
    **GEMMA,
    "global_head_dim": 16,
    "use_double_wide_mlp": True,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
        "sliding_attention": ROPE,
    },
}
GEMMA4_EXPERTS: dict[str, Any] = {
    **GEMMA4,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "intermediate_size": 16,
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 8,
    "use_double_wide_mlp": False,
}
NARROW: Rules = {
    r"altup\w*\.(\d|modality|p)": lambda rng, shape: coarse(1.2 * rng.standard_normal(shape) / np.sqrt(shape[-1]))
}
FACTOR: Rules = {"layer_scalar": lambda rng, shape: coarse(0.8 + 0.2 * rng.standard_normal(shape))}


def gemma_keys(config: Any, **more: Any) -> dict[str, Any]:
    """The keys that Gemma 3n and 4 share."""
    return basic(config, **more) | {
        "attention.key_length": 8,
        "attention.value_length": 8,
        "attention.sliding_window": 12,
        "attention.sliding_window_pattern": [True, False] * 2,
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "final_logit_softcapping": 5.0,
        "rope.freq_base": 1000.0,
        "rope.freq_base_swa": 100.0,
    }


def gemma4_keys(config: Any, **more: Any) -> dict[str, Any]:
    config.allow_global_per_layer_attribute_access = True  # keys of single layers replace these
    return gemma_keys(config, **more) | {
        "attention.key_length": 16,
        "attention.value_length": 16,
        "attention.key_length_swa": 8,
        "attention.value_length_swa": 8,
        "rope.dimension_count": 16,
        "rope.dimension_count_swa": 8,
    }


def proportional(config: Any) -> Tensors:
    """Half of the pairs of blocks without a window are rotated; the others have no frequency."""
    return {"rope_freqs.weight": np.array([1.0] * 4 + [1e30] * 4)}


def router_scale(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    part = "ffn_down_exps" if "per_expert" in name else "ffn_gate_inp"
    yield f"blk.{name.split('.')[2]}.{part}.scale", values


def scalar(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    yield f"blk.{name.split('.')[2]}.layer_output_scale.weight", values


def indexer(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    """What the package gguf calls otherwise."""
    part = name.split("indexer.")[1].replace("wq_b", "attn_q_b").replace("wk", "attn_k").replace("weights_", "")
    yield f"blk.{name.split('.')[2]}.indexer.{part}", values


RECENT: dict[str, Family] = {
    "mimo2": Family(
        ARCH.MIMO2,
        lambda seed: mixture("MiMoV2Flash", seed, MIMO),
        lambda c: (
            basic(c, **widths(c, 4), **SIGMOID)
            | {
                "attention.head_count_kv": [1, 2, 2],
                "attention.key_length": 12,
                "attention.value_length": 8,
                "attention.value_scale": 0.7,
                "attention.sliding_window": 12,
                "attention.sliding_window_pattern": [False, True, True],
                "rope.freq_base": 1000.0,
                "rope.freq_base_swa": 100.0,
                "rope.dimension_count": 4,
            }
        ),
        {**BLOCKS, "sink": as_weight},
    ),
    "glm-dsa": Family(
        ARCH.GLM_DSA,
        lambda seed: mixture("GlmMoeDsa", seed, GLM),
        lambda c: basic(c, **widths(c, 4, 1, 1, 1.5), **SIGMOID) | INDEXED,
        {**SPLIT, "indexer": indexer},
        without_effect=("indexer",),
    ),
    "falcon-h1": Family(
        ARCH.FALCON_H1,
        lambda seed: model("FalconH1", seed, FALCON, rules=STATE_RULES),
        lambda c: basic(c, **lengths(c), **state_space(c, 64, 16, 4)) | {"ssm.group_count": 2},
        {**MAMBA2, r"mamba\.norm": named("norm", shape=(2, -1), end=".weight")},
    ),
    "gemma3n": Family(
        ARCH.GEMMA3N,
        lambda seed: model("Gemma3n", seed, GEMMA3N, of="TextConfig", rules=NARROW),
        lambda c: (
            gemma_keys(c)
            | {
                "feed_forward_length": 32,
                "altup.num_inputs": 4,
                "altup.active_idx": 0,
                "activation_sparsity_scale": [0.2533471, -math.inf, -math.inf, -0.5244005],
            }
        ),
        {"correct_output_scale": as_weight},
    ),
    "gemma4": Family(
        ARCH.GEMMA4,
        lambda seed: model("Gemma4", seed, GEMMA4, of="TextConfig", buffers=FACTOR),
        lambda c: gemma4_keys(c) | {"feed_forward_length": [32, 32, 64, 64]},
        {"layer_scalar": scalar},
        proportional,
        without_effect=("layer_scalar",),  # the other way round, one number is the same
    ),
    "gemma4-experts": Family(
        ARCH.GEMMA4,
        lambda seed: model("Gemma4", seed, GEMMA4_EXPERTS, of="TextConfig", rules=CHOSEN, buffers=FACTOR),
        lambda c: (
            gemma4_keys(c)
            | {
                "attention.head_count_kv": [2, 1],
                "attention.sliding_window_pattern": [True, False],
                "feed_forward_length": 16,
                "expert_count": 4,
                "expert_used_count": 2,
                "expert_feed_forward_length": 8,
            }
        ),
        {"layer_scalar": scalar, r"experts\.\w+_proj$": as_weight, r"router\.(scale|per_expert)": router_scale},
        proportional,
        without_effect=("layer_scalar",),
    ),
}
