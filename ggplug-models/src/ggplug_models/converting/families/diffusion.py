"""Models that predict masked tokens, with attention in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggplug_models.converting import rope
from ggplug_models.converting.family import PAIRED_K, PAIRED_Q, Family, Tensors, head_dim
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
    layer,
    layers,
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


_UNSHIFTED = {"diffusion.shift_logits": False}
"""Of families whose outputs are for the tokens themselves, not for the next ones."""


_BLOCK = r"transformer\.blocks\.(\d+)\."
_LLADA = (
    Tensors(r"transformer\.wte\.weight", "token_embd.weight"),
    Tensors(r"transformer\.ln_f\.weight", "output_norm.weight"),
    Tensors(r"transformer\.ff_out\.weight", "output.weight"),
    layer("q_proj", "attn_q", PAIRED_Q, _BLOCK),
    layer("k_proj", "attn_k", PAIRED_K, _BLOCK),
    *layers(
        {
            "v_proj": "attn_v",
            "attn_out": "attn_output",
            "ff_proj": "ffn_gate",
            "up_proj": "ffn_up",
            "ff_out": "ffn_down",
            "attn_norm": "attn_norm",
            "ff_norm": "ffn_norm",
        },
        block=_BLOCK,
    ),
)


def _llada(config: Values, folder: Folder) -> dict[str, Any]:
    widths = {"vocab_size": config.integer("vocab_size"), "rope.dimension_count": head_dim(config)}
    return {**rope.keys(config), **widths, "attention.causal": False}


FAMILIES: dict[str, Family] = {
    "Dream": Family("dream", decoder(*ATTENTION, *MLP, *NORMS), INTEGERS, RMS, _dream, vocabulary=_mask),
    "llada": Family(
        "llada",
        _LLADA,
        {
            "max_sequence_length": "context_length",
            "d_model": "embedding_length",
            "n_layers": "block_count",
            "mlp_hidden_size": "feed_forward_length",
            "n_heads": "attention.head_count",
            "n_kv_heads?": "attention.head_count_kv",
        },
        RMS,
        _llada,
        head="model.transformer.ff_out.weight",
        vocabulary=lambda found, config, folder: {**_UNSHIFTED, "tokenizer.ggml.add_bos_token": True},
    ),
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
        vocabulary=lambda found, config, folder: {**_UNSHIFTED, "tokenizer.ggml.mask_token_id": 156895},
    ),
}
