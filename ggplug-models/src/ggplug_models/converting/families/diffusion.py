"""Models that predict masked tokens, with attention in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggplug_models.converting.family import Family
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import (
    ATTENTION,
    EXPERT_COUNTS,
    EXPERTS,
    HEAD_NORMS,
    INTEGERS,
    MLP,
    NORMS,
    RMS,
    decoder,
    positions,
)
from ggplug_models.metadata.values import Values


def _dream(config: Values, folder: Folder) -> dict[str, Any]:
    return {**positions(config, folder), "attention.causal": False}


def _mask(found: Mapping[str, Any], config: Values, folder: Folder) -> dict[str, Any]:
    """The token that stands for one to predict, of the settings."""
    token = config.integer("mask_token_id", None, at_least=0)
    return {} if token is None else {"tokenizer.ggml.mask_token_id": token}


def _unshifted(found: Mapping[str, Any], config: Values, folder: Folder) -> dict[str, Any]:
    """That outputs are for the tokens themselves, and the token to predict."""
    return {"diffusion.shift_logits": False, "tokenizer.ggml.mask_token_id": 156895}


FAMILIES: dict[str, Family] = {
    "Dream": Family("dream", decoder(*ATTENTION, *MLP, *NORMS), INTEGERS, RMS, _dream, vocabulary=_mask),
    "llada_moe": Family(
        "llada-moe",
        decoder(*ATTENTION, *HEAD_NORMS, *EXPERTS, *NORMS),
        {
            **{key: to for key, to in INTEGERS.items() if key != "intermediate_size"},
            "dense_intermediate_size|intermediate_size": "feed_forward_length",
            "expert_intermediate_size": "expert_feed_forward_length",
            **EXPERT_COUNTS,
        },
        RMS,
        _dream,
        vocabulary=_unshifted,
    ),
}
