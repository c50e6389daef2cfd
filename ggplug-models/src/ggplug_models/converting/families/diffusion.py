"""Models that predict masked tokens, with attention in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggplug_models.converting.family import Family
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import (
    ATTENTION,
    EXPERT_COUNTS,
    EXPERT_WIDTH,
    EXPERTS,
    HEAD_NORMS,
    INTEGERS,
    MLP,
    NORMS,
    RMS,
    decoder,
    positions,
    unusual_weights,
)
from ggplug_models.metadata.values import Values


def _dream(config: Values, folder: Folder) -> dict[str, Any]:
    return {**positions(config, folder), "attention.causal": False}


def _rnd1(config: Values, folder: Folder) -> dict[str, Any]:
    return {**_dream(config, folder), **unusual_weights(config, usual=True)}


def _mask(found: Mapping[str, Any], config: Values, folder: Folder) -> dict[str, Any]:
    """The token that stands for one to predict, of the settings."""
    token = config.integer("mask_token_id", None, at_least=0)
    return {} if token is None else {"tokenizer.ggml.mask_token_id": token}


def _unshifted(found: Mapping[str, Any], config: Values, folder: Folder) -> dict[str, Any]:
    """That outputs are for the tokens themselves, and the token to predict."""
    return {"diffusion.shift_logits": False, "tokenizer.ggml.mask_token_id": 156895}


FAMILIES: dict[str, Family] = {
    "Dream": Family("dream", decoder(*ATTENTION, *MLP, *NORMS), INTEGERS, RMS, _dream, vocabulary=_mask),
    "rnd1": Family(
        "rnd1",
        decoder(*ATTENTION, *HEAD_NORMS, *EXPERTS, *NORMS),
        {**INTEGERS, **EXPERT_COUNTS, **EXPERT_WIDTH},
        RMS,
        _rnd1,
        vocabulary=_mask,
    ),
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
