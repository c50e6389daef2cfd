"""What Hunyuan's families have in common: norms of heads, positions, and the tokens that end texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggplug_models.converting import rope
from ggplug_models.converting.family import SCALINGS, head_dim
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import WIDTHS, layers, positions
from ggplug_models.metadata.values import Values

LATER_HEAD_NORMS = layers({"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"})

HUNYUAN_SCALINGS = (*SCALINGS, "dynamic")

_LONGEST = 2**18
"""The context length of models whose settings say a shorter one."""


def hunyuan_positions(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of RoPE, whose base may be scaled by a power of ``alpha``."""
    scaling = rope.settings(config)
    if scaling.text("rope_type") != "dynamic":
        return positions(config, folder)
    width = head_dim(config)
    base, alpha = scaling.number("rope_theta", 10000.0, at_least=0), scaling.number("alpha", at_least=0)
    return {
        **(dict.fromkeys(WIDTHS, width) if "head_dim" in config else {}),
        "rope.freq_base": base * alpha ** (width / (width - 2)),
        "rope.scaling.type": "none",
        "rope.scaling.factor": 1.0,
        "rope.scaling.original_context_length": _LONGEST,
        "context_length": _LONGEST,
    }


def hunyuan_tokens(found: Mapping[str, Any], config: Values, folder: Folder) -> dict[str, Any]:
    """The token that ends texts has a setting of its own, and the one that ends turns comes first of several."""
    ends = {"eos": config.integer("eod_token_id", None, at_least=0)}
    generation = folder.optional_json("generation_config.json")
    several = None if generation is None else generation.values.get("eos_token_id")
    if isinstance(several, list) and len(several) > 1 and type(several[0]) is int:
        ends["eot"] = several[0]
    return {f"tokenizer.ggml.{kind}_token_id": token for kind, token in ends.items() if token is not None}
