"""Granite: with scales, with experts, and with Mamba 2 in some blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ggplug_models.converting import rope
from ggplug_models.converting.family import Family, Tensors, part
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import (
    INTEGERS,
    LAYER,
    MLP,
    NORMS,
    PAIRED_ATTENTION,
    RMS,
    Keys,
    decoder,
    for_blocks,
    layer,
    of_blocks,
)
from ggplug_models.converting.state_space import MAX_POSITION, mamba2
from ggplug_models.metadata.values import Values

_NUMBERS = {
    **RMS,
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
_MAMBA = {
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_d_state": "ssm.state_size",
    "mamba_n_groups": "ssm.group_count",
    "mamba_n_heads": "ssm.time_step_rank",
}
_KINDS = {"mamba": "mamba", "attention": "attention", "linear_attention": "mamba", "full_attention": "attention"}
"""The kinds of blocks, by their names in published settings, and in those that transformers write now."""


def _granite(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of RoPE; a width of heads in the settings has no effect."""
    return {
        **rope.keys(config),
        "vocab_size": config.integer("vocab_size"),
        "rope.dimension_count": config.integer("hidden_size") // config.integer("num_attention_heads"),
    }


def _mixture(config: Values, folder: Folder) -> dict[str, Any]:
    found = _granite(config, folder) | {
        "expert_count": config.integer("num_local_experts", at_least=0),
        "expert_used_count": config.integer("num_experts_per_tok", at_least=0),
    }
    if shared := config.integer("shared_intermediate_size", 0, at_least=0):
        found["expert_shared_feed_forward_length"] = shared
    return found


def _kinds(config: Values) -> list[str]:
    return [_KINDS[each] for each in for_blocks(config, "layer_types", _KINDS)]


def _hybrid(config: Values, folder: Folder) -> dict[str, Any]:
    kinds = _kinds(config)
    heads = config.integer("num_key_value_heads", config.integer("num_attention_heads"))
    rotates = config.text("position_embedding_type", "nope") == "rope"
    if not rotates and _attends_everywhere(config) and _has_experts(config):
        raise config.refused("position_embedding_type", "rope: granitemoe models in GGUF files have nothing else")
    width = {} if _has_experts(config) else {"feed_forward_length": config.integer("shared_intermediate_size")}
    return {
        **_mixture(config, folder),
        "attention.head_count_kv": of_blocks(heads, (each == "attention" for each in kinds)),
        "ssm.inner_size": config.integer("mamba_expand") * config.integer("hidden_size"),
        "rope.scaling.finetuned": rotates,
        **({} if rotates else {"context_length": MAX_POSITION}),
        **width,
    }


def _halves(name: str, gate: str, up: str) -> tuple[Tensors, ...]:
    return layer(name, gate, part(0)), layer(name, up, part(1))


_EXPERTS = (
    layer("block_sparse_moe.router.layer", "ffn_gate_inp"),
    *_halves("block_sparse_moe.input_linear", "ffn_gate_exps", "ffn_up_exps"),
    layer("block_sparse_moe.output_linear", "ffn_down_exps"),
    *_halves("shared_mlp.input_linear", "ffn_gate_shexp", "ffn_up_shexp"),
    layer("shared_mlp.output_linear", "ffn_down_shexp"),
)
_ALONE = (
    *_halves("shared_mlp.input_linear", "ffn_gate", "ffn_up"),
    layer("shared_mlp.output_linear", "ffn_down"),
)
"""Of models without experts, whose only MLP has the name of the shared one."""

_ATTENTION = (*PAIRED_ATTENTION, *NORMS)
_BLOCKS = (*_ATTENTION, *mamba2("mamba", "mamba_n_groups"))


def _family(architecture: str, rows: tuple[Tensors, ...], more: Keys) -> Family:
    return Family(architecture, decoder(*rows), INTEGERS, _NUMBERS, more, scalings=rope.LLAMA3)


def _hybrid_family(architecture: str, rows: tuple[Tensors, ...]) -> Family:
    return Family(architecture, decoder(*rows), {**INTEGERS, **_MAMBA}, _NUMBERS, _hybrid, scalings=rope.LLAMA3)


def _attends_everywhere(config: Values) -> bool:
    return set(_kinds(config)) == {"attention"}


def _has_experts(config: Values) -> bool:
    return config.integer("num_local_experts", at_least=0) > 0


def _windows(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of blocks with a window, and of those that rotate; llama.cpp's converter takes all to have one base."""
    kinds = for_blocks(config, "layer_types", ("sliding_attention", "full_attention"))
    rotate = config.values.get("no_rope_layers")
    bases, base = config.values.get("layer_rope_theta"), rope.settings(config).number("rope_theta", at_least=0)
    if bases is not None:
        if not isinstance(bases, list) or len(bases) != len(kinds) or not {*map(float, bases)} <= {0.0, base}:
            raise config.refused("layer_rope_theta", f"an array of {len(kinds)} of 0 and {base:g}")
        rotate = [int(each > 0) for each in bases] if 0 in bases else rotate
    found: dict[str, Any] = {
        "attention.sliding_window": config.integer("sliding_window"),
        "attention.sliding_window_pattern": [each == "sliding_attention" for each in kinds],
    }
    if rotate:
        if not isinstance(rotate, list) or len(rotate) != len(kinds):
            raise config.refused("no_rope_layers", f"an array of {len(kinds)} of 0 and 1")
        found["attention.rope_pattern"] = [bool(each) for each in rotate]
    return _granite(config, folder) | found


_MOE = _family("granitemoe", (*_ATTENTION, *_EXPERTS), _mixture)

FAMILIES: dict[str, Family] = {
    "granite": _family("granite", (*_ATTENTION, *MLP), _granite),
    "granite_swa": _family(
        "granite_swa",
        (*_ATTENTION, *MLP, Tensors(LAYER + r"self_attn\.sinks", r"blk.\1.attn_sinks.weight")),
        _windows,
    ),
    "granitemoe": _MOE,
    "granitemoeshared": _MOE,
    "granitemoehybrid": replace(
        _hybrid_family("granitehybrid", (*_BLOCKS, *_EXPERTS)),
        variants=(
            (
                lambda config: _attends_everywhere(config) and _has_experts(config),
                _hybrid_family("granitemoe", (*_ATTENTION, *_EXPERTS)),
            ),
            (_attends_everywhere, _hybrid_family("granite", (*_ATTENTION, *_ALONE))),
            (lambda config: not _has_experts(config), _hybrid_family("granitehybrid", (*_BLOCKS, *_ALONE))),
        ),
    ),
}
