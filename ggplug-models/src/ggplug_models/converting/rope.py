"""What ``config.json`` says of rotary positions: ``rope_parameters``, or ``rope_theta`` and ``rope_scaling`` of old."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug_models.converting.family import head_dim
from ggplug_models.metadata.values import Values

Factors = dict[str, npt.NDArray[np.float32]]

_YARN = {
    "extrapolation_factor": "yarn_ext_factor",
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


def settings(config: Values) -> Values:
    """Base, kind of scaling and its settings, in one object; of the global layers where kinds of layers differ."""
    given = config.inner("rope_parameters" if "rope_parameters" in config else "rope_scaling", Values({}))
    given = given.inner("full_attention", given)
    more = {"rope_theta": config.values.get("rope_theta"), "rope_type": given.values.get("type")}
    original = config.values.get("original_max_position_embeddings")
    more |= {"original_max_position_embeddings": original, **given.values}
    if "rope_type" not in given:
        more["rope_type"] = given.values.get("type", "default")
    return Values(more, where=given.where or config.where)


def keys(config: Values) -> Mapping[str, Any]:
    """Base and scaling.  Raises ModelError for a kind of scaling that llama.cpp's files have no keys for."""
    given = settings(config)
    found: dict[str, Any] = {}
    if "rope_theta" in given:
        found["rope.freq_base"] = given.number("rope_theta", at_least=0)
    kind = given.text("rope_type", one_of=("default", "linear", "yarn", "llama3", "su", "longrope"))
    if kind in ("linear", "yarn"):
        found |= {"rope.scaling.type": kind, "rope.scaling.factor": given.number("factor", at_least=0)}
    if kind == "yarn":
        found["rope.scaling.original_context_length"] = given.integer("original_max_position_embeddings")
        found |= {f"rope.scaling.{key}": given.number(name) for name, key in _YARN.items() if name in given}
    if kind in ("su", "longrope"):
        found["rope.scaling.type"] = "longrope"
    return found


def llama3_factors(config: Values) -> Factors:
    """What each frequency is divided by: nothing where it turns often within the original context, the whole factor
    where it turns seldom, and in between a mixture."""
    given = settings(config)
    if given.text("rope_type") != "llama3":
        return {}
    factor, low, high = (
        given.number(name, default, at_least=0)
        for name, default in (("factor", 8.0), ("low_freq_factor", 1.0), ("high_freq_factor", 4.0))
    )
    original = given.integer("original_max_position_embeddings", 8192)
    if factor <= 0 or high <= low:
        raise given.refused("high_freq_factor", "greater than low_freq_factor, and the factor positive")
    width = head_dim(config)
    base = given.number("rope_theta", 10000.0, at_least=0)
    exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    frequencies = 1 / (np.float32(base) ** exponents)
    turns = original / (2 * math.pi / frequencies)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": (1 / ((1 - share) / factor + share)).astype(np.float32)}


def longrope_keys(config: Values) -> dict[str, Any]:
    """Attention's factor, by the ratio of the context to the original one."""
    given = settings(config)
    if given.text("rope_type") not in ("su", "longrope"):
        return {}
    original, context = _original(config), config.integer("max_position_embeddings")
    scale = context / original
    factor = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 and original > 1 else 1.0
    return {"rope.scaling.attn_factor": factor}


def longrope_factors(config: Values) -> Factors:
    given = settings(config)
    if given.text("rope_type") not in ("su", "longrope"):
        return {}
    wanted = rotated(config) // 2
    found: Factors = {}
    for name in ("long", "short"):
        values = given.values.get(f"{name}_factor")
        if not (isinstance(values, list) and len(values) == wanted and all(_positive(each) for each in values)):
            raise given.refused(f"{name}_factor", f"an array of {wanted} positive numbers")
        found[f"rope_factors_{name}.weight"] = np.array(values, np.float32)
    return found


def rotated(config: Values) -> int:
    """Dimensions of a head that are rotated."""
    given = settings(config)
    share = given.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0, at_least=0), at_least=0)
    return int(share * config.integer("hidden_size")) // config.integer("num_attention_heads")


def _original(config: Values) -> int:
    whole = config.integer("max_position_embeddings")
    return int(settings(config).integer("original_max_position_embeddings", whole))


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
