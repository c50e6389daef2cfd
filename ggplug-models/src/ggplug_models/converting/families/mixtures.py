"""Decoders with experts."""

from __future__ import annotations

from typing import Any

from ggplug_models.converting.family import Family, Tensors
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import (
    ATTENTION,
    EXPERT_COUNTS,
    EXPERT_WIDTH,
    EXPERTS,
    HEAD_NORMS,
    INTEGERS,
    LAYER,
    NORMS,
    PAIRED_ATTENTION,
    RMS,
    SHARED_EXPERT,
    SPARSE_EXPERTS,
    decoder,
    llama_keys,
    positions,
)
from ggplug_models.metadata.values import Values


def _minimax(config: Values, folder: Folder) -> dict[str, Any]:
    kinds = ("sigmoid", "softmax")
    gating = {"expert_gating_func": 2 - kinds.index(config.text("scoring_func", one_of=kinds))}
    return {
        **positions(config, folder),
        **(gating if "scoring_func" in config else {}),
        "expert_feed_forward_length": config.integer("intermediate_size"),
        "rope.dimension_count": config.integer("rotary_dim"),
    }


FAMILIES: dict[str, Family] = {
    "mixtral": Family(
        "llama",
        decoder(*PAIRED_ATTENTION, *SPARSE_EXPERTS, *NORMS),
        {**INTEGERS, **EXPERT_COUNTS},
        RMS,
        llama_keys,
    ),
    "qwen2_moe": Family(
        "qwen2moe",
        decoder(*ATTENTION, *EXPERTS, *SHARED_EXPERT, *NORMS),
        {
            **INTEGERS,
            **EXPERT_COUNTS,
            **EXPERT_WIDTH,
            "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        },
        RMS,
        positions,
    ),
    "qwen3_moe": Family(
        "qwen3moe",
        decoder(*ATTENTION, *HEAD_NORMS, *EXPERTS, *NORMS),
        {**INTEGERS, **EXPERT_COUNTS, **EXPERT_WIDTH},
        RMS,
        positions,
    ),
    "minimax_m2": Family(
        "minimax-m2",
        decoder(
            *ATTENTION,
            *HEAD_NORMS,
            *SPARSE_EXPERTS,
            Tensors(LAYER + r"block_sparse_moe\.e_score_correction_bias", r"blk.\1.exp_probs_b.bias"),
            *NORMS,
        ),
        {**INTEGERS, **EXPERT_COUNTS},
        RMS,
        _minimax,
    ),
}
