"""Decoders of 2025 and 2026."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from oracles.attention import ARCH
from oracles.dense import ROPE, model
from oracles.experts import DEEPSEEK, SPLIT, sinks
from oracles.family import Array, Family, basic, lengths
from oracles.hybrids import MAMBA2, state_space
from oracles.mixtures import BLOCKS, SIGMOID, of, widths
from oracles.states import STATE_RULES, named

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


def indexer(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    """What the package gguf calls otherwise."""
    part = name.split("indexer.")[1].replace("wq_b", "attn_q_b").replace("wk", "attn_k").replace("weights_", "")
    yield f"blk.{name.split('.')[2]}.indexer.{part}", values


RECENT: dict[str, Family] = {
    "mimo2": Family(
        ARCH.MIMO2,
        lambda seed: of("MiMoV2Flash", seed, **MIMO),
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
        {**BLOCKS, "sink": sinks},
    ),
    "glm-dsa": Family(
        ARCH.GLM_DSA,
        lambda seed: of("GlmMoeDsa", seed, **GLM),
        lambda c: (
            basic(c, **widths(c, 4, 1, 1, 1.5), **SIGMOID)
            | {
                "attention.head_count_kv": 1,
                "attention.key_length": 20,
                "attention.value_length": 16,
                "attention.key_length_mla": 12,
                "attention.value_length_mla": 12,
                "attention.kv_lora_rank": 16,
                "attention.q_lora_rank": 16,
                "attention.indexer.head_count": 2,
                "attention.indexer.key_length": 64,
                "attention.indexer.top_k": 64,
                "rope.dimension_count": 4,
            }
        ),
        {**SPLIT, "indexer": indexer},
        without_effect=("indexer",),
    ),
    "falcon-h1": Family(
        ARCH.FALCON_H1,
        lambda seed: model("FalconH1", seed, FALCON, rules=STATE_RULES),
        lambda c: basic(c, **lengths(c), **state_space(c, 64, 16, 4)) | {"ssm.group_count": 2},
        {**MAMBA2, r"mamba\.norm": named("norm", shape=(2, -1), end=".weight")},
    ),
}
