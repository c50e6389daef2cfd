"""Language models of multimodal ones, whose positions have sections."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ggplug_models.converting import delta_net, rope
from ggplug_models.converting.families.dense import FAMILIES as DENSE
from ggplug_models.converting.families.latents import FAMILIES as LATENTS
from ggplug_models.converting.families.mixtures import turned_experts
from ggplug_models.converting.family import SCALINGS, Family, Tensors, head_dim
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.hunyuan import LATER_HEAD_NORMS, hunyuan_tokens
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
    WIDTHS,
    Keys,
    decoder,
    positions,
    unusual_weights,
)
from ggplug_models.metadata.values import Values

_PREFIX = r"(?:model\.language_model\.|language_model\.model\.|language_model\.|model\.)?"
_SEEING = r"(?:model\.)?(?:visual|vision_tower|multi_modal_projector|mlp_AR|projector|vit)\..*"


def _sections(config: Values, folder: Folder) -> dict[str, Any]:
    widths = dict.fromkeys(WIDTHS, head_dim(config)) if "head_dim" in config else {}
    parts = delta_net.sections(config) if "mrope_section" in rope.settings(config) else {}
    return {**rope.keys(config), **widths, **parts}


def _qwen3_vl(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; files say how many layers of the image encoder are read by layers of the language model."""
    seen = folder.json("config.json").inner("vision_config", Values({})).values.get("deepstack_visual_indexes", [])
    if not isinstance(seen, list):
        raise config.refused("deepstack_visual_indexes", "an array")
    return {**_sections(config, folder), "n_deepstack_layers": len(seen), **unusual_weights(config, usual=True)}


def _hunyuan_vl(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; the base of RoPE grows by ``alpha``, which files have as it is."""
    scaling = rope.settings(config)
    kind = scaling.text("rope_type")
    if kind not in _PARTS_OF_POSITIONS:
        return positions(config, folder)
    parts = scaling.values.get(_PARTS_OF_POSITIONS[kind])
    if not isinstance(parts, list) or not all(type(each) is int and each >= 0 for each in parts):
        raise scaling.refused(_PARTS_OF_POSITIONS[kind], "an array of integers of at least 0")
    length = config.integer("max_position_embeddings")
    return {
        **(dict.fromkeys(WIDTHS, head_dim(config)) if "head_dim" in config else {}),
        "rope.freq_base": scaling.number("rope_theta", 10000.0, at_least=0),
        "rope.scaling.alpha": scaling.number("alpha", at_least=0),
        "rope.scaling.type": "none",
        "rope.scaling.factor": scaling.number("factor", 1.0, at_least=0),
        "rope.scaling.original_context_length": length,
        "rope.dimension_sections": np.array(parts, np.int32),
    }


_PARTS_OF_POSITIONS = {"xdrope": "xdrope_section", "dynamic": "mrope_section"}
"""The names of the setting with the parts of a position, by the type of scaling."""


def _mistral3(config: Values, folder: Folder) -> dict[str, Any]:
    known = DENSE["ministral3" if config.text("model_type", "") == "ministral3" else "mistral"].more
    assert known is not None
    return dict(known(config, folder))


def _seeing(
    architecture: str,
    rows: tuple[Tensors, ...],
    more: Keys,
    integers: dict[str, str] = INTEGERS,
    scalings: tuple[str, ...] = (*SCALINGS, "mrope"),
) -> Family:
    return Family(
        architecture,
        rows,
        integers,
        RMS,
        more,
        prefix=_PREFIX,
        unused=_SEEING,
        inner="text_config",
        scalings=scalings,
    )


def _part_of_text(family: Family) -> Family:
    """The family of a language model, as a part of a multimodal one."""
    return replace(family, prefix=_PREFIX, unused=_SEEING, inner="text_config")


_QWEN2_VL = _seeing("qwen2vl", decoder(*ATTENTION, *MLP, *NORMS), _sections)

FAMILIES: dict[str, Family] = {
    "qwen2_vl": _QWEN2_VL,
    "qwen2_5_vl": _QWEN2_VL,
    "paddleocr_vl": _seeing("paddleocr", decoder(*ATTENTION, *MLP, *NORMS), _sections),
    "hunyuan_vl": replace(
        _seeing(
            "hunyuan_vl",
            decoder(*ATTENTION, *LATER_HEAD_NORMS, *MLP, *NORMS),
            _hunyuan_vl,
            scalings=(*SCALINGS, *_PARTS_OF_POSITIONS),
        ),
        vocabulary=hunyuan_tokens,
    ),
    "qwen3_vl": _seeing("qwen3vl", decoder(*ATTENTION, *HEAD_NORMS, *MLP, *NORMS), _qwen3_vl),
    "qwen3_vl_moe": _seeing(
        "qwen3vlmoe",
        decoder(*ATTENTION, *HEAD_NORMS, *EXPERTS, *turned_experts(either=True), *NORMS),
        _qwen3_vl,
        {**INTEGERS, **EXPERT_COUNTS, **EXPERT_WIDTH},
    ),
    "mistral3": replace(
        _seeing("mistral3", tuple(DENSE["llama"].tensors), _mistral3, scalings=rope.LLAMA3),
        variants=((lambda config: config.text("model_type", "") == "mistral4", _part_of_text(LATENTS["mistral4"])),),
    ),
}
