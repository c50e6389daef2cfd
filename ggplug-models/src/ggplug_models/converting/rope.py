"""The settings of RoPE in ``config.json``: ``rope_parameters``, or the older ``rope_theta`` and ``rope_scaling``."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug_models.converting.family import SCALINGS, head_dim
from ggplug_models.layers.rope import LEAST, grown
from ggplug_models.metadata.values import Values

Factors = dict[str, npt.NDArray[np.float32]]

_YARN = {
    "extrapolation_factor": "yarn_ext_factor",
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


LONG = ("longrope",)
LLAMA3 = (*SCALINGS, "llama3")
"""Types of scaling of families whose graphs in llama.cpp read divisors of the frequencies."""


def settings(config: Values) -> Values:
    """The base, the rotated part, the type of scaling and its settings; if layers differ, those with full attention.

    Of settings that are in several places those count that count for transformers (``modeling_rope_utils.py``).
    """
    written = _written(config)
    parameters = written.inner("full_attention", written)
    kinds = (parameters.values.get(name) for name in ("rope_type", "type"))
    kind = next((each for each in kinds if each is not None), "default")
    outside = {name: config.values.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    found = {**outside, **parameters.values, "rope_type": "longrope" if kind == "su" else kind}
    if found["rope_type"] in _EXTENDED:
        holders = [config, parameters] if parameters is written else [parameters]
        originals = [each.values.get(_ORIGINAL) for each in holders]
        found[_ORIGINAL] = next((each for each in originals if each is not None), config.values.get(_WHOLE))
    return Values(found, where=parameters.where or config.where)


_ORIGINAL, _WHOLE = "original_max_position_embeddings", "max_position_embeddings"
_EXTENDED = ("llama3", "yarn", "longrope")
"""The types of scaling that read the length of contexts before it was extended."""


def _written(config: Values) -> Values:
    return config.inner("rope_scaling" if config.values.get("rope_scaling") else "rope_parameters", Values({}))


def check(config: Values, architecture: str, scalings: Collection[str]) -> None:
    """Raises ModelError for a scaling that the files of an architecture do not carry.  ``scalings``: those they do."""
    parameters, local = settings(config), _local(config)
    wanted = f"one of {', '.join(('default', *scalings))}: GGUF files of {architecture} models have no other scaling"
    if parameters.text("rope_type") not in ("default", *scalings):
        raise parameters.refused("rope_type", wanted)
    if local.text("rope_type", "default") != "default":
        raise local.refused("rope_type", "default: GGUF files have no scaling of blocks with a window")
    _check_rounding(parameters, config, architecture)


def _check_rounding(parameters: Values, config: Values, architecture: str) -> None:
    """Raises ModelError if YaRN does not round the pairs between which it interpolates, as files take it to do.

    Those outside of a head are its ends in either case.  Published settings of gpt-oss ask for no rounding, and
    llama.cpp rounds.
    """
    rounds = parameters.text("rope_type") != "yarn" or parameters.boolean("truncate", True)
    if rounds or architecture == "gpt-oss":
        return
    base, original = parameters.number("rope_theta", _USUAL), parameters.integer(_ORIGINAL)
    if base <= 1:
        raise parameters.refused("rope_theta", "more than 1 with YaRN")
    width = rotated(config)
    first, last = (
        width * math.log(original / (2 * math.pi * parameters.number(name, turns, at_least=LEAST))) / math.log(base) / 2
        for name, turns in (("beta_fast", 32.0), ("beta_slow", 1.0))
    )
    if first > 0 or last < width - 1:
        raise parameters.refused("truncate", "true: GGUF files have no key for it")


def _local(config: Values) -> Values:
    """The settings of layers with a window, if layers differ."""
    return _written(config).inner("sliding_attention", Values({}))


def keys(config: Values) -> dict[str, Any]:
    """The keys of base and scaling.  Raises ModelError."""
    found: dict[str, Any] = {}
    for key, parameters in (("rope.freq_base", settings(config)), ("rope.freq_base_swa", _local(config))):
        if "rope_theta" in parameters:
            found[key] = parameters.number("rope_theta", at_least=0)
    return found | scaling(config)


def scaling(config: Values) -> dict[str, Any]:
    """The keys of the scaling; those of Llama 3's are none, as its factors are a tensor.  Raises ModelError."""
    parameters = settings(config)
    kind = parameters.text("rope_type")
    found: dict[str, Any] = {}
    if kind in SCALINGS:
        found = {"rope.scaling.type": kind, "rope.scaling.factor": parameters.number("factor", at_least=0)}
    if kind == "yarn":
        found["rope.scaling.original_context_length"] = parameters.integer(_ORIGINAL)
        found |= {f"rope.scaling.{key}": parameters.number(name) for name, key in _YARN.items() if name in parameters}
    if kind == "longrope":
        found = {
            "rope.scaling.type": kind,
            "rope.scaling.original_context_length": parameters.integer(_ORIGINAL),
            **longrope_keys(config),
        }
    return found


def check_magnitude(config: Values, *, multiplied: bool) -> None:
    """Raises ModelError if YaRN multiplies queries and keys by a number that files have no key for.

    ``multiplied``: whether the file has a key of YaRN's multipliers, ``mscale`` and ``mscale_all_dim``.
    """
    parameters = settings(config)
    if parameters.text("rope_type") != "yarn":
        return
    factor = parameters.number("factor", at_least=0)
    scales = [parameters.number(name, 0.0, at_least=0) for name in ("mscale", "mscale_all_dim")]
    usual = grown(factor, 1.0)
    of_scales = grown(factor, scales[0]) / grown(factor, scales[1]) if all(scales) else usual
    name = "attention_factor" if "attention_factor" in parameters else "mscale"
    wanted = of_scales if multiplied else usual
    if not math.isclose(parameters.number("attention_factor", of_scales), wanted, rel_tol=_NEAR):
        raise parameters.refused(name, f"such that queries and keys are multiplied by {wanted:g}, as in GGUF files")


_NEAR = 1e-3
"""How far a magnitude may be from that of a file: settings are rounded."""

_USUAL = 10000.0


def base(config: Values) -> dict[str, Any]:
    """The keys of the scaling, and of an unusual base, of families whose files usually have none."""
    usual = config.number("rotary_emb_base", settings(config).number("rope_theta", _USUAL, at_least=0), at_least=0)
    found = _written(config).number("rope_theta", usual, at_least=0)
    return scaling(config) | ({} if found == _USUAL else {"rope.freq_base": found})


def factors(config: Values) -> Factors:
    """The tensors that divide the frequencies of pairs; none, if the settings have no scaling that needs them."""
    kinds = {"llama3": llama3_factors, "longrope": longrope_factors}
    kind = settings(config).text("rope_type")
    return kinds[kind](config) if kind in kinds else {}


def llama3_factors(config: Values) -> Factors:
    """The divisor of each frequency of Llama 3's scaling.

    It is 1 for frequencies with many rotations within the original context, ``factor`` for those with few, and
    interpolated in between.
    """
    parameters = settings(config)
    factor, low, high = (
        parameters.number(name, default, at_least=0)
        for name, default in (("factor", 8.0), ("low_freq_factor", 1.0), ("high_freq_factor", 4.0))
    )
    original = parameters.integer(_ORIGINAL)
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
    """The attention factor of LongRoPE, by default from its factor, which is by default the ratio of the contexts.

    Other types have no keys.
    """
    parameters = settings(config)
    if parameters.text("rope_type") != "longrope":
        return {}
    original = parameters.integer(_ORIGINAL)
    scale = parameters.number("factor", config.integer(_WHOLE) / original)
    factor = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 and original > 1 else 1.0
    return {"rope.scaling.attn_factor": parameters.number("attention_factor", factor)}


def longrope_factors(config: Values) -> Factors:
    """The divisors of LongRoPE's frequencies."""
    parameters = settings(config)
    wanted = rotated(config) // 2
    found: Factors = {}
    for name in ("long", "short"):
        values = parameters.values.get(f"{name}_factor")
        if not (isinstance(values, list) and len(values) == wanted and all(_positive(each) for each in values)):
            raise parameters.refused(f"{name}_factor", f"an array of {wanted} positive numbers")
        found[f"rope_factors_{name}.weight"] = np.array(values, np.float32)
    return found


def rotated(config: Values) -> int:
    """The number of elements of a head that are rotated."""
    if "qk_rope_head_dim" in config:
        return config.integer("qk_rope_head_dim")
    parameters = settings(config)
    return int(parameters.number("partial_rotary_factor", 1.0, at_least=0) * head_dim(config))


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
