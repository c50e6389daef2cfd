"""Decoders with experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggplug_models.converting import delta_net, rope
from ggplug_models.converting.family import Array, Change, Family, Tensors, head_dim
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import (
    ATTENTION,
    BIAS_OF_CHOICE,
    EXPERT_COUNTS,
    EXPERT_WIDTH,
    EXPERTS,
    GATING,
    GLM_SPLITTING,
    HEAD_NORMS,
    INTEGERS,
    LAYER,
    MLP,
    NORMS,
    PAIRED_ATTENTION,
    RMS,
    ROUTED,
    SHARED_EXPERT,
    SHARED_EXPERTS,
    SPARSE_EXPERTS,
    decoder,
    layer,
    layers,
    llama_keys,
    positions,
    routing,
    windows,
)
from ggplug_models.metadata.values import Values


def _minimax(config: Values, folder: Folder) -> dict[str, Any]:
    kinds = ("sigmoid", "softmax")
    gating = {"expert_gating_func": 2 - kinds.index(config.text("scoring_func", one_of=kinds))}
    return {
        **positions(config, folder),
        **(gating if "scoring_func" in config else {}),
        "expert_feed_forward_length": config.integer("intermediate_size"),
        "rope.dimension_count": config.integer("rotary_dim"),
    }


def _llama4(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of Llama 4; a window of 0 says that all blocks attend to all positions."""
    everywhere = "layer_types" in config and {*map(str, config.values["layer_types"])} == {"full_attention"}
    return llama_keys(config, folder) | ({"attention.sliding_window": 0} if everywhere else {})


def _turned_half(number: int) -> Change:
    """One of the halves of the columns of each expert's matrix, as rows."""

    def apply(values: Array, config: Values) -> Array:
        return np.ascontiguousarray(np.split(values, 2, axis=-1)[number].swapaxes(-1, -2))

    return Change(apply, lambda shape, config: (*shape[:-2], shape[-1] // 2, shape[-2]))


_TURNED = Change(
    lambda values, config: np.ascontiguousarray(values.swapaxes(-1, -2)),
    lambda shape, config: (*shape[:-2], shape[-1], shape[-2]),
)


def _shared(module: str) -> tuple[Tensors, ...]:
    return layers({f"{module}.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")})


_LLAMA4 = Family(
    "llama4",
    decoder(
        *ATTENTION,
        *NORMS,
        *layers({f"feed_forward.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")}),
        *_shared("feed_forward.shared_expert"),
        layer("feed_forward.router", "ffn_gate_inp"),
        Tensors(LAYER + r"feed_forward\.experts\.gate_up_proj", r"blk.\1.ffn_gate_exps.weight", _turned_half(0)),
        Tensors(LAYER + r"feed_forward\.experts\.gate_up_proj", r"blk.\1.ffn_up_exps.weight", _turned_half(1)),
        Tensors(LAYER + r"feed_forward\.experts\.down_proj", r"blk.\1.ffn_down_exps.weight", _TURNED),
    ),
    {
        **{name: key for name, key in INTEGERS.items() if name != "intermediate_size"},
        "intermediate_size_mlp": "feed_forward_length",
        "intermediate_size": "expert_feed_forward_length",
        "interleave_moe_layer_step": "interleave_moe_layer_step",
        **EXPERT_COUNTS,
    },
    RMS,
    _llama4,
    rope.llama3_factors,
    prefix=r"(?:language_model\.model\.|model\.language_model\.|language_model\.|model\.)?",
    unused=r"(?:.*\.)?(?:vision_model|multi_modal_projector)\..*",
    inner="text_config",
)


def _glm4_moe(config: Values, folder: Folder) -> dict[str, Any]:
    n, ahead = config.integer("num_hidden_layers"), config.integer("num_nextn_predict_layers", None, at_least=0)
    part = rope.settings(config).number("partial_rotary_factor", config.number("partial_rotary_factor", 0.5))
    return {
        **positions(config, folder),
        **routing(config),
        "expert_gating_func": GATING["sigmoid"],
        "rope.dimension_count": int(head_dim(config) * part),
        **({} if ahead is None else {"block_count": n + ahead, "nextn_predict_layers": ahead}),
    }


_AHEAD = layers(
    {
        "eh_proj": "nextn.eh_proj",
        "embed_tokens": "nextn.embed_tokens",
        "enorm": "nextn.enorm",
        "hnorm": "nextn.hnorm",
        "shared_head.head": "nextn.shared_head_head",
        "shared_head.norm": "nextn.shared_head_norm",
    }
)
"""Of blocks after the last, which guess further tokens."""


def _dots1(config: Values, folder: Folder) -> dict[str, Any]:
    return positions(config, folder) | routing(config)


def _exaone_moe(config: Values, folder: Folder) -> dict[str, Any]:
    n, ahead = config.integer("num_hidden_layers"), config.integer("num_nextn_predict_layers", 0, at_least=0)
    shared = config.integer("num_shared_experts", at_least=0)
    found = windows(config, folder)
    if "attention.sliding_window_pattern" in found:
        found["attention.sliding_window_pattern"] += [False] * ahead
    return {
        **found,
        **routing(config),
        "vocab_size": config.integer("vocab_size"),
        "block_count": n + ahead,
        "nextn_predict_layers": ahead,
        "expert_shared_feed_forward_length": shared * config.integer("moe_intermediate_size"),
        "rope.scaling.type": "none",
    }


def _ernie45_moe(config: Values, folder: Folder) -> dict[str, Any]:
    shared = config.integer("moe_num_shared_experts", 0, at_least=0)
    width = config.integer("intermediate_size") // config.integer("num_key_value_heads")
    return {
        **positions(config, folder),
        "leading_dense_block_count": config.integer("moe_layer_start_index", at_least=0),
        **({"expert_shared_count": shared} if "moe_num_shared_experts" in config else {}),
        **({"expert_shared_feed_forward_length": width} if shared else {}),
    }


def _afmoe(config: Values, folder: Folder) -> dict[str, Any]:
    found = llama_keys(config, folder) | routing(config)
    if "route_norm" in config:
        found["expert_weights_norm"] = config.boolean("route_norm")
    if "sliding_window" in config:
        found["attention.sliding_window"] = config.integer("sliding_window")
    return found


def _gpt_oss(config: Values, folder: Folder) -> dict[str, Any]:
    return positions(config, folder) | {"expert_feed_forward_length": config.integer("intermediate_size")}


def _alternate(number: int) -> Change:
    """Every second column of each expert's matrix, or of its bias: the rows of the gate, or those of the other."""

    def apply(values: Array, config: Values) -> Array:
        taken = values[..., number::2]
        return np.ascontiguousarray(taken.swapaxes(-1, -2)) if taken.ndim == 3 else taken

    def shape(old: tuple[int, ...], config: Values) -> tuple[int, ...]:
        return (old[0], old[2] // 2, old[1]) if len(old) == 3 else (old[0], old[1] // 2)

    return Change(apply, shape)


FAMILIES: dict[str, Family] = {
    "mixtral": Family(
        "llama",
        decoder(*PAIRED_ATTENTION, *SPARSE_EXPERTS, *NORMS),
        {**INTEGERS, **EXPERT_COUNTS},
        RMS,
        llama_keys,
    ),
    "qwen2_moe": Family(
        "qwen2moe",
        decoder(*ATTENTION, *EXPERTS, *SHARED_EXPERT, *NORMS),
        {
            **INTEGERS,
            **EXPERT_COUNTS,
            **EXPERT_WIDTH,
            "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        },
        RMS,
        positions,
    ),
    "qwen3_moe": Family(
        "qwen3moe",
        decoder(*ATTENTION, *HEAD_NORMS, *EXPERTS, *NORMS),
        {**INTEGERS, **EXPERT_COUNTS, **EXPERT_WIDTH},
        RMS,
        positions,
    ),
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "glm4_moe": Family(
        "glm4moe",
        decoder(
            *ATTENTION,
            *HEAD_NORMS,
            *MLP,
            NORMS[0],
            layer("post_attention_layernorm", "post_attention_norm"),
            *EXPERTS,
            *SHARED_EXPERTS,
            *BIAS_OF_CHOICE,
            *_AHEAD,
        ),
        {**INTEGERS, **ROUTED},
        RMS,
        _glm4_moe,
        special={"bos": "[gMASK]", "eot": "<|user|>", "unk": "<|endoftext|>", "eom": "<|observation|>"},
        splitting=GLM_SPLITTING,
    ),
    "dots1": Family(
        "dots1",
        decoder(*ATTENTION, *HEAD_NORMS, *MLP, *NORMS, *EXPERTS, *SHARED_EXPERTS, *BIAS_OF_CHOICE),
        {**INTEGERS, **ROUTED},
        RMS,
        _dots1,
    ),
    "exaone_moe": Family(
        "exaone-moe",
        decoder(*ATTENTION, *HEAD_NORMS, *MLP, *NORMS, *EXPERTS, *SHARED_EXPERTS, *BIAS_OF_CHOICE, *_AHEAD),
        {**INTEGERS, **ROUTED},
        RMS,
        _exaone_moe,
        rope.llama3_factors,
        names=delta_net.names,
    ),
    "ernie4_5_moe": Family(
        "ernie4_5-moe",
        decoder(
            *ATTENTION,
            *MLP,
            *NORMS,
            *EXPERTS,
            *SHARED_EXPERTS,
            Tensors(LAYER + r"mlp\.moe_statics\.e_score_correction_bias", r"blk.\1.exp_probs_b.bias"),
        ),
        {
            **INTEGERS,
            "moe_num_experts": "expert_count",
            "moe_k": "expert_used_count",
            "moe_layer_interval": "interleave_moe_layer_step",
            "moe_intermediate_size?": "expert_feed_forward_length",
        },
        RMS,
        _ernie45_moe,
        unused=r"mtp_.*",
        prefix=r"(?:ernie\.|model\.)?",
    ),
    "afmoe": Family(
        "afmoe",
        decoder(
            *ATTENTION,
            *HEAD_NORMS,
            *MLP,
            *EXPERTS,
            *SHARED_EXPERTS,
            *BIAS_OF_CHOICE,
            *layers(
                {
                    "input_layernorm": "attn_norm",
                    "post_attention_layernorm": "post_attention_norm",
                    "pre_mlp_layernorm": "ffn_norm",
                    "post_mlp_layernorm": "post_ffw_norm",
                    "self_attn.gate_proj": "attn_gate",
                    "mlp.router.gate": "ffn_gate_inp",
                }
            ),
        ),
        {**INTEGERS, **ROUTED},
        {**RMS, "route_scale": "expert_weights_scale"},
        _afmoe,
        rope.llama3_factors,
    ),
    "gpt_oss": Family(
        "gpt-oss",
        decoder(
            *ATTENTION,
            NORMS[0],
            layer("post_attention_layernorm", "post_attention_norm"),
            layer("mlp.router", "ffn_gate_inp"),
            Tensors(LAYER + r"self_attn\.sinks", r"blk.\1.attn_sinks.weight"),
            *(
                Tensors(rf"{LAYER}mlp\.experts\.gate_up_proj{old}", rf"blk.\1.{target}.{end}", _alternate(number))
                for number, target in enumerate(("ffn_gate_exps", "ffn_up_exps"))
                for old, end in (("", "weight"), ("_bias", "bias"))
            ),
            Tensors(LAYER + r"mlp\.experts\.down_proj", r"blk.\1.ffn_down_exps.weight", _TURNED),
            Tensors(LAYER + r"mlp\.experts\.down_proj_bias", r"blk.\1.ffn_down_exps.bias"),
        ),
        {**INTEGERS, **EXPERT_COUNTS, "sliding_window": "attention.sliding_window"},
        RMS,
        _gpt_oss,
    ),
    "olmoe": Family(
        "olmoe",
        decoder(*ATTENTION, *HEAD_NORMS, *EXPERTS, *NORMS),
        {**INTEGERS, **EXPERT_COUNTS},
        RMS,
        positions,
    ),
    "minimax_m2": Family(
        "minimax-m2",
        decoder(
            *ATTENTION,
            *HEAD_NORMS,
            *SPARSE_EXPERTS,
            Tensors(LAYER + r"block_sparse_moe\.e_score_correction_bias", r"blk.\1.exp_probs_b.bias"),
            *NORMS,
        ),
        {**INTEGERS, **EXPERT_COUNTS},
        RMS,
        _minimax,
    ),
}
