"""The rows and keys of latent attention, whose keys and values are made of one vector for each token."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggplug.errors import ModelError
from ggplug_models.converting.family import Array, Change, n_heads
from ggplug_models.converting.rows import layer, layers
from ggplug_models.metadata.values import Values

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.o_proj": "attn_output",
}


def _widths(config: Values) -> tuple[int, int]:
    """The elements of a head's keys that are not rotated, and those of its values."""
    return config.integer("qk_nope_head_dim"), config.integer("v_head_dim")


def _heads(values: Array, config: Values) -> Array:
    n, wide = n_heads(config), sum(_widths(config))
    if len(values) != n * wide:
        raise ModelError(
            f"a matrix of keys and values has {len(values)} rows, expected {n} heads of {wide}",
            got=len(values),
            wanted=n * wide,
        )
    return values.reshape(n, wide, values.shape[-1])


KEYS_OF_HEADS = Change(
    lambda values, config: np.ascontiguousarray(_heads(values, config)[:, : _widths(config)[0]].swapaxes(1, 2)),
    lambda shape, config: (n_heads(config), shape[-1], _widths(config)[0]),
)
VALUES_OF_HEADS = Change(
    lambda values, config: _heads(values, config)[:, _widths(config)[0] :],
    lambda shape, config: (n_heads(config), _widths(config)[1], shape[-1]),
)

JOINED = (*layers(_NAMES), layer("self_attn.kv_b_proj", "attn_kv_b"))
"""With one matrix for keys and values."""

ATTENTION = (
    *layers(_NAMES),
    layer("self_attn.kv_b_proj", "attn_k_b", KEYS_OF_HEADS),
    layer("self_attn.kv_b_proj", "attn_v_b", VALUES_OF_HEADS),
)
"""With matrices by which the attention reads the vectors themselves, as one head of keys and values."""


def keys(config: Values) -> dict[str, Any]:
    rank, rotated = config.integer("kv_lora_rank"), config.integer("qk_rope_head_dim")
    still, values = _widths(config)
    return {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rotated,
        "attention.value_length": rank,
        "attention.key_length_mla": still + rotated,
        "attention.value_length_mla": values,
        "rope.dimension_count": rotated,
        **({"attention.q_lora_rank": config.integer("q_lora_rank")} if "q_lora_rank" in config else {}),
    }
