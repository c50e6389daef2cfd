"""What the conversion of gated delta nets changes (Qwen 3 Next, Qwen 3.5): the order of heads, and rates."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ggplug.errors import ModelError
from ggplug_models.converting import rope
from ggplug_models.converting.family import Array, Change, head_dim
from ggplug_models.metadata.values import Values

Shape = tuple[int, ...]

SECTIONS = (11, 11, 10, 0)
"""The parts of a position of Qwen 3.5, if the file does not say them."""

_AHEAD = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head.norm"}


def names(name: str, config: Values) -> str:
    """The name of a tensor; the blocks of ``mtp``, which guess further tokens, are those after the last one."""
    match = re.fullmatch(r"(?:model\.)?mtp\.(?:layers\.(\d+)\.)?(.+)\.(\w+)", name)
    if match is None:
        return name
    number = config.integer("num_hidden_layers") + int(match[1] or 0)
    inner = match[2] if match[1] else _AHEAD.get(match[2], match[2])
    return f"layers.{number}.{inner}.{match[3]}"


def keys(config: Values) -> dict[str, Any]:
    """The keys of delta nets, of blocks without attention, and of blocks that guess further tokens."""
    n_layer, ahead = config.integer("num_hidden_layers"), config.integer("mtp_num_hidden_layers", 0, at_least=0)
    found: dict[str, Any] = {
        "block_count": n_layer + ahead,
        "ssm.inner_size": config.integer("linear_value_head_dim") * config.integer("linear_num_value_heads"),
        "full_attention_interval": config.integer("full_attention_interval", 4),
        "rope.dimension_count": int(
            head_dim(config) * rope.settings(config).number("partial_rotary_factor", 0.25, at_least=0)
        ),
    }
    if ahead:
        found["nextn_predict_layers"] = ahead
    if "layer_types" in config:
        kinds = config.values["layer_types"]
        if not isinstance(kinds, list) or len(kinds) != n_layer:
            raise config.refused("layer_types", f"an array of {n_layer} kinds of blocks")
        found["attention.recurrent_layers"] = [each == "linear_attention" for each in kinds] + [False] * ahead
    return found


def sections(config: Values) -> dict[str, Any]:
    """The parts of a position, with zeros up to four."""
    given = rope.settings(config).values.get("mrope_section", SECTIONS)
    if not isinstance(given, (list, tuple)) or not all(type(each) is int and each >= 0 for each in given):
        raise config.refused("mrope_section", "an array of integers of at least 0")
    return {"rope.dimension_sections": np.array([*given, 0, 0, 0, 0][:4], np.int32)}


def _widths(config: Values) -> tuple[int, int, int]:
    """The number of heads of keys, how many heads of values use each, and the elements of a head of values."""
    n_key, n_value = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
    if n_value % n_key:
        raise config.refused("linear_num_key_heads", f"a divisor of linear_num_value_heads ({n_value})")
    return n_key, n_value // n_key, config.integer("linear_value_head_dim")


def _tiled(values: Array, config: Values, width: int, axis: int = 0) -> Array:
    """Heads of values, first grouped by their key, so that those that come first of each key come first."""
    n_key, together, _ = _widths(config)
    if values.shape[axis] != n_key * together * width:
        raise ModelError(
            f"a tensor of a delta net has {values.shape[axis]} rows, expected {n_key * together} heads of {width}",
            got=values.shape[axis],
            wanted=n_key * together * width,
        )
    moved = np.moveaxis(values, axis, 0)
    heads = moved.reshape(n_key, together, width, *moved.shape[1:]).swapaxes(0, 1)
    return np.moveaxis(heads.reshape(moved.shape), 0, axis)


def _of_values(values: Array, config: Values) -> Array:
    """:func:`_tiled` for the rows after those of queries and keys."""
    first = 2 * config.integer("linear_num_key_heads") * config.integer("linear_key_head_dim")
    return np.concatenate([values[:first], _tiled(values[first:], config, _widths(config)[2])])


def _rate(values: Array, config: Values) -> Array:
    return np.asarray(-np.exp(np.asarray(values, np.float32)))


def _kernel(values: Array, config: Values) -> Array:
    return values.reshape(values.shape[0], values.shape[-1])


def _kernel_shape(shape: Shape, config: Values) -> Shape:
    return shape[0], shape[-1]


QKV = Change(_of_values)
VALUES = Change(lambda values, config: _tiled(values, config, _widths(config)[2]))
RATES = Change(lambda values, config: _tiled(values, config, 1))
DECAY = Change(lambda values, config: _tiled(_rate(values, config), config, 1))
KERNEL = Change(lambda values, config: _of_values(_kernel(values, config), config), shape=_kernel_shape)
OUT = Change(lambda values, config: _tiled(values, config, _widths(config)[2], axis=1))
"""For heads of values in the order of the op: Qwen 3.5."""

PLAIN_DECAY = Change(_rate)
PLAIN_KERNEL = Change(_kernel, shape=_kernel_shape)
"""For heads of values next to those with the same key: Qwen 3 Next."""


def _parts(config: Values) -> tuple[int, int]:
    """The rows of a head of keys: those of query, key and values, and those of the gate."""
    _, together, width = _widths(config)
    return 2 * config.integer("linear_key_head_dim") + together * width, together * width


def _joined_qkv(values: Array, config: Values) -> Array:
    n_key, _, _ = _widths(config)
    d, (qkv, gate) = config.integer("linear_key_head_dim"), _parts(config)
    heads = values.reshape(n_key, qkv + gate, -1)
    bounds = ((0, d), (d, 2 * d), (2 * d, qkv))
    return np.concatenate([heads[:, a:b].reshape(-1, values.shape[-1]) for a, b in bounds])


def _joined_gate(values: Array, config: Values) -> Array:
    n_key, _, _ = _widths(config)
    qkv, gate = _parts(config)
    return values.reshape(n_key, qkv + gate, -1)[:, qkv:].reshape(-1, values.shape[-1])


def _rows(part: int) -> Callable[[Shape, Values], Shape]:
    return lambda shape, config: (_widths(config)[0] * _parts(config)[part], *shape[1:])


JOINED_QKV = Change(_joined_qkv, shape=_rows(0))
JOINED_GATE = Change(_joined_gate, shape=_rows(1))
"""The parts of one matrix whose rows are the query, key, values and gate of each head of keys."""
