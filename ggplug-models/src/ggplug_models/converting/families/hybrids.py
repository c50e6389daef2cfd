"""Decoders with state spaces or short convolutions, in all blocks or in some."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ggplug_models.converting import rope
from ggplug_models.converting.delta_net import PLAIN_KERNEL
from ggplug_models.converting.family import PAIRED_K, PAIRED_Q, Array, Change, Family, Tensors, first_integer
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import (
    ATTENTION,
    BIAS_OF_CHOICE,
    EXPERT_COUNTS,
    FINAL_NORM,
    GATING,
    INTEGERS,
    LAYER,
    RMS,
    ROUTED,
    WIDTHS,
    decoder,
    for_blocks,
    layer,
    layers,
    of_blocks,
    of_experts,
    positions,
    routing,
    unusual_weights,
)
from ggplug_models.converting.state_space import MAX_POSITION, mamba, mamba2
from ggplug_models.metadata.values import Values

# -- short convolutions ----------------------------------------------------------------------------

_ATTENDS = "full_attention"


def _lfm2(config: Values, folder: Folder) -> dict[str, Any]:
    numbers = config.values.get("full_attn_idxs")
    if "layer_types" in config or numbers is None:
        attends = [kind == _ATTENDS for kind in for_blocks(config, "layer_types", ("conv", _ATTENDS))]
    else:
        blocks = range(config.integer("num_hidden_layers"))
        if not isinstance(numbers, list) or not all(type(each) is int and each in blocks for each in numbers):
            raise config.refused("full_attn_idxs", f"an array of numbers of blocks below {len(blocks)}")
        attends = [block in numbers for block in blocks]
    if config.boolean("conv_bias"):
        raise config.refused("conv_bias", "false: GGUF files of these models have no biases of convolutions")
    both_ways = "Lfm2BidirectionalModel" in config.texts("architectures", [])
    return {
        **rope.keys(config),
        **({"attention.causal": False} if both_ways else {}),
        "attention.head_count_kv": of_blocks(config.integer("num_key_value_heads"), attends),
        "vocab_size": config.integer("vocab_size"),
    }


def _lfm2_dense(config: Values, folder: Folder) -> dict[str, Any]:
    """The width of the MLP is two thirds of the setting, times a factor, rounded up to a multiple."""
    width = first_integer(config, "block_ff_dim|intermediate_size")
    if config.boolean("block_auto_adjust_ff_dim"):
        multiple = config.integer("block_multiple_of")
        width = int(config.number("block_ffn_dim_multiplier", at_least=0) * int(2 * width / 3))
        width = -(width // -multiple) * multiple
    return {**_lfm2(config, folder), "feed_forward_length": width}


def _lfm2_experts(config: Values, folder: Folder) -> dict[str, Any]:
    dense = config.integer("num_dense_layers", at_least=0)
    return {
        **_lfm2(config, folder),
        "leading_dense_block_count": dense,
        "expert_gating_func": GATING["sigmoid"],
        **unusual_weights(config, usual=True),
    }


_LFM2 = (
    Tensors(r"embed_tokens\.weight", "token_embd.weight"),
    Tensors(r"embedding_norm\.weight", "token_embd_norm.weight"),
    Tensors(r"lm_head\.weight", "output.weight"),
    layer("conv.conv", "shortconv.conv", PLAIN_KERNEL),
    *layers(
        {
            "conv.in_proj": "shortconv.in_proj",
            "conv.out_proj": "shortconv.out_proj",
            "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v",
            "self_attn.out_proj": "attn_output",
            "self_attn.q_layernorm": "attn_q_norm",
            "self_attn.k_layernorm": "attn_k_norm",
            "operator_norm": "attn_norm",
            "ffn_norm": "ffn_norm",
            "feed_forward.w1": "ffn_gate",
            "feed_forward.w2": "ffn_down",
            "feed_forward.w3": "ffn_up",
        }
    ),
)
_LFM2_KEYS = {**INTEGERS, "conv_L_cache": "shortconv.l_cache"}
_LFM2_NUMBERS = {"norm_eps": "attention.layer_norm_rms_epsilon"}

# -- Mamba in all blocks ---------------------------------------------------------------------------

_EPS = {"layer_norm_epsilon": "attention.layer_norm_rms_epsilon"}
_STATE = {"hidden_size": "embedding_length", "num_hidden_layers": "block_count", "state_size": "ssm.state_size"}
_MIXER = (
    Tensors(r"embeddings\.weight", "token_embd.weight"),
    Tensors(r"norm_f\.weight", "output_norm.weight"),
    Tensors(r"lm_head\.weight", "output.weight"),
    layer("norm", "attn_norm"),
)
_BACKBONE = r"(?:backbone\.|model\.)?"


def _without_attention(config: Values) -> dict[str, Any]:
    return {"context_length": MAX_POSITION, "feed_forward_length": 0, "attention.head_count": 0}


def _mamba(config: Values, folder: Folder) -> dict[str, Any]:
    width = config.integer("hidden_size")
    if config.integer("intermediate_size", 2 * width) != 2 * width:
        raise config.refused("intermediate_size", f"twice hidden_size ({width})")
    return {
        **_without_attention(config),
        "ssm.conv_kernel": config.integer("conv_kernel"),
        "ssm.inner_size": 2 * width,
        "ssm.time_step_rank": _rank(config, "time_step_rank"),
        "ssm.dt_b_c_rms": config.text("model_type") == "falcon_mamba",
    }


def _rank(config: Values, setting: str) -> int:
    """The rank of the step sizes; by default, and for "auto", a 16th of the width, rounded up."""
    if config.values.get(setting) in (None, "auto"):
        return -(config.integer("hidden_size") // -16)
    return config.integer(setting)


def _mamba2(config: Values, folder: Folder) -> dict[str, Any]:
    inner, head = config.integer("expand") * config.integer("hidden_size"), config.integer("head_dim")
    if inner % head:
        raise config.refused("head_dim", f"a divisor of the inner width ({inner})")
    return {
        **_without_attention(config),
        "ssm.conv_kernel": config.integer("conv_kernel"),
        "ssm.inner_size": inner,
        "ssm.time_step_rank": inner // head,
        "ssm.group_count": config.integer("n_groups"),
    }


# -- Mamba in some blocks --------------------------------------------------------------------------


def _jamba(config: Values, folder: Folder) -> dict[str, Any]:
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset", at_least=0)
    attends = (n % period == offset % period and n >= offset for n in range(config.integer("num_hidden_layers")))
    return {
        "attention.head_count_kv": of_blocks(config.integer("num_key_value_heads"), attends),
        "ssm.conv_kernel": config.integer("mamba_d_conv"),
        "ssm.inner_size": config.integer("mamba_expand") * config.integer("hidden_size"),
        "ssm.state_size": config.integer("mamba_d_state"),
        "ssm.time_step_rank": _rank(config, "mamba_dt_rank"),
    }


def _jamba_name(name: str, config: Values) -> str:
    """The name of a tensor; some models give the only MLP of a block the name of expert 0, and MLPs another name."""
    name = name.replace(".moe.", ".feed_forward.")
    match = re.search(r"layers\.(\d+)\.", name)
    if match is None:
        return name
    period, offset = config.integer("expert_layer_period"), config.integer("expert_layer_offset", at_least=0)
    n = int(match[1])
    return name if n >= offset and (n - offset) % period == 0 else name.replace(".experts.0.", ".")


_FEED_FORWARD = {f"feed_forward.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")}
_JAMBA = (
    *decoder(*ATTENTION, *layers(_FEED_FORWARD), *of_experts("feed_forward", "gate_proj", "up_proj", "down_proj")),
    FINAL_NORM,
    *layers(
        {"input_layernorm": "attn_norm", "pre_ff_layernorm": "ffn_norm", "feed_forward.router": "ffn_gate_inp"},
    ),
    *mamba("mamba"),
)

# -- Mamba and attention in each block -------------------------------------------------------------


def _falcon_h1(config: Values, folder: Folder) -> dict[str, Any]:
    config.text("hidden_act", one_of=("silu",))
    inner, width = config.integer("mamba_d_ssm"), config.values.get("mamba_d_head")
    head = inner // config.integer("mamba_n_heads") if width == "auto" else config.integer("mamba_d_head")
    if inner % head:
        raise config.refused("mamba_d_head", f"a divisor of mamba_d_ssm ({inner})")
    return {
        **positions(config, folder),
        "vocab_size": config.integer("vocab_size"),
        "ssm.time_step_rank": inner // head,
    }


def _factor(config: Values, setting: str, part: int | None = None) -> np.float32:
    """The factor of a setting, or one of several."""
    if part is None:
        return np.float32(config.number(setting))
    found = config.values.get(setting)
    if not isinstance(found, list) or len(found) <= part or not all(type(each) in (int, float) for each in found):
        raise config.refused(setting, f"an array of at least {part + 1} numbers")
    return np.float32(found[part])


def _times(*settings: tuple[str, int | None], into: str = "") -> Change:
    """The product of a matrix or its bias and the factors of the result, which files have no keys for.

    ``into``: the setting of a factor of the operand, by which biases are not multiplied.
    """

    def apply(values: Array, config: Values) -> Array:
        values = np.asarray(values, np.float32)
        if into and values.ndim > 1:
            values = values * _factor(config, into)
        for setting, part in settings:
            values = values * _factor(config, setting, part)
        return values

    return Change(apply)


def _times_in_parts(values: Array, config: Values) -> Array:
    """The rows of the gate, the input, B, C and the step sizes, each times its factor."""
    inner, state = config.integer("mamba_d_ssm"), config.integer("mamba_n_groups") * config.integer("mamba_d_state")
    parts = np.split(_times(into="ssm_in_multiplier").apply(values, config), np.cumsum([inner, inner, state, state]))
    return np.concatenate([rows * _factor(config, "ssm_multipliers", n) for n, rows in enumerate(parts)])


_INTO = "attention_in_multiplier"
_FALCON_H1 = (
    Tensors(r"embed_tokens\.weight", "token_embd.weight", _times(("embedding_multiplier", None))),
    Tensors(r"lm_head\.weight", "output.weight", _times(("lm_head_multiplier", None))),
    FINAL_NORM,
    layer("input_layernorm", "attn_norm"),
    Tensors(LAYER + r"pre_ff_layernorm\.weight", r"blk.\1.ffn_norm"),
    layer("self_attn.q_proj", "attn_q", _times(into=_INTO)),
    layer("self_attn.k_proj", "attn_k", _times(("key_multiplier", None), into=_INTO)),
    layer("self_attn.v_proj", "attn_v", _times(into=_INTO)),
    layer("self_attn.o_proj", "attn_output", _times(("attention_out_multiplier", None))),
    layer("feed_forward.gate_proj", "ffn_gate", _times(("mlp_multipliers", 0))),
    layer("feed_forward.up_proj", "ffn_up"),
    layer("feed_forward.down_proj", "ffn_down", _times(("mlp_multipliers", 1))),
    layer("mamba.in_proj", "ssm_in", Change(_times_in_parts)),
    layer("mamba.out_proj", "ssm_out", _times(("ssm_out_multiplier", None))),
    *mamba2("mamba", "mamba_n_groups")[2:],
)

# -- one of several modules in each block ----------------------------------------------------------

_MODULES = {
    "M": "mamba",
    "*": "attention",
    "-": "mlp",
    "E": "moe",
    "linear_attention": "mamba",
    "full_attention": "attention",
    **{each: each for each in ("mamba", "attention", "mlp", "moe")},
}


def _modules(config: Values) -> list[str]:
    """The module of each block, from a text with a letter for each, or an array."""
    setting = "hybrid_override_pattern" if "hybrid_override_pattern" in config else "layers_block_type"
    found = config.values.get(setting)
    if not isinstance(found, (str, list)) or not found or not {*_MODULES} >= {*map(str, found)}:
        raise config.refused(setting, f"for each block one of {', '.join(_MODULES)}")
    return [_MODULES[each] for each in found]


def _nemotron_h(config: Values, folder: Folder) -> dict[str, Any]:
    modules, heads = _modules(config), config.integer("mamba_num_heads")
    attends = (each == "attention" for each in modules)
    return {
        "block_count": len(modules),
        "context_length": MAX_POSITION,
        "vocab_size": config.integer("vocab_size"),
        "attention.head_count_kv": of_blocks(config.integer("num_key_value_heads"), attends),
        "rope.dimension_count": config.integer("hidden_size") // config.integer("num_attention_heads"),
        "rope.scaling.finetuned": False,
        **dict.fromkeys(WIDTHS, first_integer(config, "head_dim|attention_head_dim")),
        "ssm.inner_size": heads * config.integer("mamba_head_dim"),
        "ssm.time_step_rank": heads,
        "feed_forward_length": of_blocks(config.integer("intermediate_size"), (each == "mlp" for each in modules)),
    }


def _nemotron_h_moe(config: Values, folder: Folder) -> dict[str, Any]:
    width, modules = config.integer("moe_intermediate_size"), _modules(config)
    latent = {"moe_latent_size": config.integer("moe_latent_size")} if "moe_latent_size" in config else {}
    return {
        **_nemotron_h(config, folder),
        **routing(config),
        **latent,
        "feed_forward_length": of_blocks(width, (each == "moe" for each in modules)),
    }


_NEMOTRON_KEYS = {
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "conv_kernel": "ssm.conv_kernel",
    "ssm_state_size": "ssm.state_size",
    "n_groups": "ssm.group_count",
}
_NEMOTRON_NUMBERS = {
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "rms_norm_eps|norm_eps|layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
}
_NEMOTRON = (
    *_MIXER,
    *mamba2("mixer", "n_groups"),
    layer("mixer.q_proj", "attn_q", PAIRED_Q),
    layer("mixer.k_proj", "attn_k", PAIRED_K),
    *layers(
        {
            "mixer.v_proj": "attn_v",
            "mixer.o_proj": "attn_output",
            "mixer.up_proj": "ffn_up",
            "mixer.down_proj": "ffn_down",
        }
    ),
)
_NEMOTRON_MOE = Family(
    "nemotron_h_moe",
    (
        *_NEMOTRON,
        *of_experts("mixer", "gate_proj", "up_proj", "down_proj"),
        *BIAS_OF_CHOICE,
        *layers(
            {
                "mixer.fc1_latent_proj": "ffn_latent_down",
                "mixer.fc2_latent_proj": "ffn_latent_up",
                "mixer.shared_experts.up_proj": "ffn_up_shexp",
                "mixer.shared_experts.down_proj": "ffn_down_shexp",
            }
        ),
    ),
    {
        **_NEMOTRON_KEYS,
        **ROUTED,
        "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    },
    _NEMOTRON_NUMBERS,
    _nemotron_h_moe,
    prefix=_BACKBONE,
    unused=r"mtp\..*",
    scalings=(),
)

FAMILIES: dict[str, Family] = {
    "lfm2": Family("lfm2", _LFM2, _LFM2_KEYS, _LFM2_NUMBERS, _lfm2_dense),
    "lfm2_moe": Family(
        "lfm2moe",
        (*_LFM2, *BIAS_OF_CHOICE, *of_experts("feed_forward", "w1", "w3", "w2")),
        {**_LFM2_KEYS, **ROUTED},
        _LFM2_NUMBERS,
        _lfm2_experts,
    ),
    "mamba": Family("mamba", (*_MIXER, *mamba("mixer")), _STATE, _EPS, _mamba, prefix=_BACKBONE, scalings=()),
    "mamba2": Family(
        "mamba2", (*_MIXER, *mamba2("mixer", "n_groups")), _STATE, _EPS, _mamba2, prefix=_BACKBONE, scalings=()
    ),
    "jamba": Family("jamba", _JAMBA, {**INTEGERS, **EXPERT_COUNTS}, RMS, _jamba, names=_jamba_name, scalings=()),
    "falcon_h1": Family(
        "falcon-h1",
        _FALCON_H1,
        {
            **INTEGERS,
            "mamba_d_conv": "ssm.conv_kernel",
            "mamba_d_ssm": "ssm.inner_size",
            "mamba_d_state": "ssm.state_size",
            "mamba_n_groups": "ssm.group_count",
        },
        RMS,
        _falcon_h1,
    ),
    "nemotron_h": Family(
        "nemotron_h",
        _NEMOTRON,
        _NEMOTRON_KEYS,
        _NEMOTRON_NUMBERS,
        _nemotron_h,
        prefix=_BACKBONE,
        scalings=(),
        variants=((lambda config: "moe" in _modules(config), _NEMOTRON_MOE),),
    ),
}
FAMILIES["falcon_mamba"] = FAMILIES["mamba"]
