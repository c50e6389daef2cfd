"""Decoders of 2023 and 2024 whose code was published with their weights, under settings and names of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ggplug_models.converting import rope
from ggplug_models.converting.family import PAIRED_K, PAIRED_Q, Family, head_dim, n_heads, n_kv_heads, part
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import (
    ATTENTION,
    INTEGERS,
    MLP,
    NORMS,
    PAIRED_ATTENTION,
    RMS,
    decoder,
    layer,
)
from ggplug_models.converting.vocabulary import MERGED, UNKNOWN
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.encoders import CONTROL
from ggplug_models.tokenizers.vocabulary import TOKEN_TYPE

_LAYOUT = {"tensor_data_layout": "Meta AI original pth"}
_CONTEXT = {
    **{key: to for key, to in INTEGERS.items() if to != "context_length"},
    "max_position_embeddings|max_sequence_length|model_max_length": "context_length",
}


def _of_meta(config: Values, folder: Folder) -> dict[str, Any]:
    return {**rope.keys(config), **_LAYOUT, "rope.dimension_count": head_dim(config)}


def _baichuan(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; the rows of ``W_pack`` are three equal parts.

    As in llama.cpp, the output matrix stays as it is: the code of Baichuan 2 divides its rows by their lengths.
    """
    if n_kv_heads(config) != n_heads(config):
        raise config.refused("num_key_value_heads", f"num_attention_heads ({n_heads(config)})")
    return _of_meta(config, folder)


def _xverse_tokens(found: Mapping[str, Any], config: Values, folder: Folder) -> dict[str, Any]:
    """The types of tokens, among which llama.cpp's converter knows no unknown one."""
    types = found[TOKEN_TYPE]
    return {TOKEN_TYPE: np.where(types == UNKNOWN, CONTROL, types)}


FAMILIES: dict[str, Family] = {
    "baichuan": Family(
        "baichuan",
        decoder(
            layer("self_attn.W_pack", "attn_q", part(0, 3).then(PAIRED_Q)),
            layer("self_attn.W_pack", "attn_k", part(1, 3).then(PAIRED_K)),
            layer("self_attn.W_pack", "attn_v", part(2, 3)),
            ATTENTION[3],
            *MLP,
            *NORMS,
        ),
        _CONTEXT,
        RMS,
        _baichuan,
        unused=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    ),
    "xverse": Family(
        "xverse",
        decoder(*PAIRED_ATTENTION, *MLP, *NORMS),
        _CONTEXT,
        RMS,
        _of_meta,
        unused=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
        vocabularies=(MERGED,),
        vocabulary=_xverse_tokens,
    ),
}
