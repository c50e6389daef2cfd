"""The settings of RoPE in ``config.json``: ``rope_parameters``, or the older ``rope_theta`` and ``rope_scaling``."""

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
    """The base, the type of scaling and its settings in one object; if layers differ, those with full attention."""
    parameters = config.inner("rope_parameters" if "rope_parameters" in config else "rope_scaling", Values({}))
    parameters = parameters.inner("full_attention", parameters)
    more = {"rope_theta": config.values.get("rope_theta"), "rope_type": parameters.values.get("type")}
    original = config.values.get("original_max_position_embeddings")
    more |= {"original_max_position_embeddings": original, **parameters.values}
    if "rope_type" not in parameters:
        more["rope_type"] = parameters.values.get("type", "default")
    return Values(more, where=parameters.where or config.where)


def keys(config: Values, also: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """The keys of base and scaling.  Raises ModelError for a type of scaling that GGUF files have no keys for.

    ``also``: types for which the caller has keys.
    """
    parameters = settings(config)
    found: dict[str, Any] = {}
    if "rope_theta" in parameters:
        found["rope.freq_base"] = parameters.number("rope_theta", at_least=0)
    local = config.inner("rope_parameters", Values({})).inner("sliding_attention", Values({}))
    if "rope_theta" in local:
        found["rope.freq_base_swa"] = local.number("rope_theta", at_least=0)
    kind = parameters.text("rope_type", one_of=("default", "linear", "yarn", "llama3", "su", "longrope", *also))
    if kind in ("linear", "yarn"):
        found |= {"rope.scaling.type": kind, "rope.scaling.factor": parameters.number("factor", at_least=0)}
    if kind == "yarn":
        found["rope.scaling.original_context_length"] = parameters.integer("original_max_position_embeddings")
        found |= {f"rope.scaling.{key}": parameters.number(name) for name, key in _YARN.items() if name in parameters}
    if kind in ("su", "longrope"):
        found["rope.scaling.type"] = "longrope"
    return found


_USUAL = 10000.0


def base(config: Values) -> dict[str, float]:
    """The key of an unusual base, of families whose files usually have none."""
    found = settings(config).number("rope_theta", config.number("rotary_emb_base", _USUAL, at_least=0), at_least=0)
    return {} if found == _USUAL else {"rope.freq_base": found}


def llama3_factors(config: Values) -> Factors:
    """The divisor of each frequency of Llama 3's scaling.

    It is 1 for frequencies with many rotations within the original context, ``factor`` for those with few, and
    interpolated in between.
    """
    parameters = settings(config)
    if parameters.text("rope_type") != "llama3":
        return {}
    factor, low, high = (
        parameters.number(name, default, at_least=0)
        for name, default in (("factor", 8.0), ("low_freq_factor", 1.0), ("high_freq_factor", 4.0))
    )
    original = parameters.integer("original_max_position_embeddings", 8192)
    if factor <= 0 or high <= low:
        raise parameters.refused("high_freq_factor", "greater than low_freq_factor, and the factor positive")
    width = head_dim(config)
    base = parameters.number("rope_theta", 10000.0, at_least=0)
    exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    frequencies = 1 / (np.float32(base) ** exponents)
    rotations = original / (2 * math.pi / frequencies)
    smooth = np.clip((rotations - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)}


def longrope_keys(config: Values) -> dict[str, Any]:
    """The attention factor of LongRoPE, from the ratio of the context lengths; empty for other types of scaling."""
    parameters = settings(config)
    if parameters.text("rope_type") not in ("su", "longrope"):
        return {}
    original, context = _original(config), config.integer("max_position_embeddings")
    scale = context / original
    factor = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 and original > 1 else 1.0
    return {"rope.scaling.attn_factor": factor}


def longrope_factors(config: Values, width: int | None = None) -> Factors:
    """The divisors of LongRoPE's frequencies.  ``width``: the elements of a head that are rotated."""
    parameters = settings(config)
    if parameters.text("rope_type") not in ("su", "longrope"):
        return {}
    wanted = (rotated(config) if width is None else width) // 2
    found: Factors = {}
    for name in ("long", "short"):
        values = parameters.values.get(f"{name}_factor")
        if not (isinstance(values, list) and len(values) == wanted and all(_positive(each) for each in values)):
            raise parameters.refused(f"{name}_factor", f"an array of {wanted} positive numbers")
        found[f"rope_factors_{name}.weight"] = np.array(values, np.float32)
    return found


def rotated(config: Values) -> int:
    """The number of elements of a head that are rotated."""
    parameters = settings(config)
    fraction = parameters.number(
        "partial_rotary_factor", config.number("partial_rotary_factor", 1.0, at_least=0), at_least=0
    )
    return int(fraction * config.integer("hidden_size")) // config.integer("num_attention_heads")


def _original(config: Values) -> int:
    whole = config.integer("max_position_embeddings")
    return int(settings(config).integer("original_max_position_embeddings", whole))


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
