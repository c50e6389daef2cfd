"""Decoders with gated delta nets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggplug_models.converting import delta_net
from ggplug_models.converting.family import PLUS_ONE, Family, Tensors
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import (
    ATTENTION,
    EXPERT_COUNTS,
    EXPERT_WIDTH,
    EXPERTS,
    INTEGERS,
    JOINED_EXPERTS,
    LAYER,
    MLP,
    RMS,
    SHARED_EXPERT,
    Keys,
    decoder,
    layer,
    positions,
    unusual_weights,
)
from ggplug_models.metadata.values import Values

_DELTA_NORMS = tuple(
    layer(name, target, PLUS_ONE)
    for name, target in (
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "post_attention_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("enorm", "nextn.enorm"),
        ("hnorm", "nextn.hnorm"),
        ("shared_head.norm", "nextn.shared_head_norm"),
    )
)
_DELTA = (*ATTENTION, *_DELTA_NORMS, layer("linear_attn.norm", "ssm_norm"), layer("eh_proj", "nextn.eh_proj"))
_DELTA_35 = (
    *_DELTA,
    layer("linear_attn.in_proj_qkv", "attn_qkv", delta_net.QKV),
    layer("linear_attn.in_proj_z", "attn_gate", delta_net.VALUES),
    layer("linear_attn.in_proj_a", "ssm_alpha", delta_net.RATES),
    layer("linear_attn.in_proj_b", "ssm_beta", delta_net.RATES),
    layer("linear_attn.conv1d", "ssm_conv1d", delta_net.KERNEL),
    layer("linear_attn.out_proj", "ssm_out", delta_net.OUT),
    Tensors(LAYER + r"linear_attn\.A_log", r"blk.\1.ssm_a", delta_net.DECAY),
    Tensors(LAYER + r"linear_attn\.dt_bias", r"blk.\1.ssm_dt.bias", delta_net.RATES),
)
_DELTA_NEXT = (
    *_DELTA,
    layer("linear_attn.in_proj_qkvz", "attn_qkv", delta_net.JOINED_QKV),
    layer("linear_attn.in_proj_qkvz", "attn_gate", delta_net.JOINED_GATE),
    layer("linear_attn.in_proj_ba", "ssm_ba"),
    layer("linear_attn.conv1d", "ssm_conv1d", delta_net.PLAIN_KERNEL),
    layer("linear_attn.out_proj", "ssm_out"),
    Tensors(LAYER + r"linear_attn\.A_log", r"blk.\1.ssm_a", delta_net.PLAIN_DECAY),
    Tensors(LAYER + r"linear_attn\.dt_bias", r"blk.\1.ssm_dt.bias"),
)
_DELTA_INTEGERS = {
    **INTEGERS,
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
}
_DELTA_EXPERTS = {
    **{name: key for name, key in _DELTA_INTEGERS.items() if name != "intermediate_size"},
    "intermediate_size?": "feed_forward_length",
    **EXPERT_COUNTS,
    **EXPERT_WIDTH,
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}


def _qwen3_next(config: Values, folder: Folder) -> dict[str, Any]:
    return {**positions(config, folder), **delta_net.keys(config), **unusual_weights(config, usual=True)}


def _qwen35(config: Values, folder: Folder) -> dict[str, Any]:
    return _qwen3_next(config, folder) | delta_net.sections(config)


def _delta(architecture: str, layers: tuple[Tensors, ...], integers: Mapping[str, str], more: Keys) -> Family:
    return Family(
        architecture,
        decoder(*layers, norm=PLUS_ONE),
        integers,
        RMS,
        more,
        prefix=r"(?:model\.language_model\.|language_model\.model\.|model\.)?",
        unused=r"(?:model\.)?visual\..*",
        inner="text_config",
        names=delta_net.names,
    )


_QWEN35 = _delta("qwen35", (*_DELTA_35, *MLP), _DELTA_INTEGERS, _qwen35)
_EXPERT_LAYERS = (*EXPERTS, *JOINED_EXPERTS, *SHARED_EXPERT)
_QWEN35_MOE = _delta("qwen35moe", (*_DELTA_35, *_EXPERT_LAYERS), _DELTA_EXPERTS, _qwen35)

FAMILIES: dict[str, Family] = {
    "qwen3_5": _QWEN35,
    "qwen3_5_text": _QWEN35,
    "qwen3_5_moe": _QWEN35_MOE,
    "qwen3_5_moe_text": _QWEN35_MOE,
    "qwen3_next": _delta("qwen3next", (*_DELTA_NEXT, *_EXPERT_LAYERS), _DELTA_EXPERTS, _qwen3_next),
}
