"""Decoders of 2026, most of which have windows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ggplug.errors import ModelError
from ggplug_models.converting import rope
from ggplug_models.converting.checkpoint import Stored
from ggplug_models.converting.family import PLUS_ONE, Array, Change, Family, Tensors, head_dim
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import (
    AHEAD,
    ATTENTION,
    BIAS_OF_CHOICE,
    EXPERT_COUNTS,
    EXPERT_WIDTH,
    EXPERTS,
    GATING,
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
    SIGMOID,
    WIDTHS,
    decoder,
    for_blocks,
    layer,
    layers,
    positions,
    routing,
    unusual_weights,
    windows,
)
from ggplug_models.converting.tokens.special import chat_template
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.encoders import CONTROL
from ggplug_models.tokenizers.vocabulary import TOKEN_TYPE, TOKENS


def _first_dense(config: Values) -> int:
    """The number of the first blocks, which have no experts."""
    if "mlp_layer_types" not in config:
        return config.integer("first_k_dense_replace", 0, at_least=0)
    kinds = for_blocks(config, "mlp_layer_types", ("dense", "sparse"))
    if kinds != sorted(kinds):
        raise config.refused("mlp_layer_types", "such that no dense block follows a sparse one")
    return kinds.count("dense")


def _ahead(config: Values) -> dict[str, Any]:
    """The keys of blocks that guess further tokens, if there are any."""
    n = config.integer("num_nextn_predict_layers", 0, at_least=0)
    return {"block_count": config.integer("num_hidden_layers") + n, "nextn_predict_layers": n} if n else {}


def _cohere2_moe(config: Values, folder: Folder) -> dict[str, Any]:
    shared, wide = config.integer("num_shared_experts", at_least=0), config.integer("intermediate_size")
    found = windows(config, folder) | _ahead(config)
    if shared:
        found |= {"expert_shared_count": shared, "expert_shared_feed_forward_length": shared * wide}
    return {
        **found,
        "vocab_size": config.integer("vocab_size"),
        "expert_feed_forward_length": wide,
        "leading_dense_block_count": _first_dense(config),
        "expert_gating_func": GATING[config.text("expert_selection_fn", one_of=("softmax", "sigmoid"))],
        "expert_weights_norm": config.boolean("norm_topk_prob"),
        "rope.dimension_count": head_dim(config),
        "rope.scaling.type": "none",
    }


def _hy_v3(config: Values, folder: Folder) -> dict[str, Any]:
    shared = config.integer("num_shared_experts") * config.integer("moe_intermediate_size")
    return {
        **positions(config, folder),
        **_ahead(config),
        **SIGMOID,
        "expert_shared_feed_forward_length": shared,
        "expert_weights_norm": config.boolean("route_norm", True),
        "expert_weights_scale": config.number("router_scaling_factor", at_least=0),
    }


def _mellum(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; the network has one base of RoPE, which blocks with a window do not scale."""
    weights = unusual_weights(config, usual=True)
    if not config.boolean("use_sliding_window", True):
        return positions(config, folder) | weights
    found = windows(config, folder) | weights
    base, local = found.get("rope.freq_base"), found.get("rope.freq_base_swa")
    if local is not None and local != base and True in found.get("attention.sliding_window_pattern", ()):
        parameters = config.inner("rope_parameters").inner("sliding_attention")
        raise parameters.refused("rope_theta", f"{base:g}: mellum models in GGUF files have one base for all blocks")
    return found


def _laguna(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; the first of each four blocks has no window, if any has one."""
    kinds = for_blocks(config, "layer_types", ("sliding_attention", "full_attention"))
    heads = config.values.get("num_attention_heads_per_layer") or [config.integer("num_attention_heads")] * len(kinds)
    if not isinstance(heads, list) or len(heads) != len(kinds) or not all(type(each) is int for each in heads):
        raise config.refused("num_attention_heads_per_layer", f"an array of {len(kinds)} integers")
    found = rope.keys(config)
    if "sliding_attention" in kinds:
        if kinds != [("sliding_attention" if number % 4 else "full_attention") for number in range(len(kinds))]:
            raise config.refused("layer_types", "'full_attention' for the first of each four blocks alone")
        found["attention.sliding_window"] = config.integer("sliding_window")
    full, local = rope.settings(config), config.inner("rope_parameters").inner("sliding_attention", None)
    for key, parameters in (("rope.dimension_count", full), ("rope.dimension_count_swa", local)):
        if parameters is not None:
            found[key] = int(head_dim(config) * parameters.number("partial_rotary_factor", 1.0, at_least=0))
    return {
        **found,
        **dict.fromkeys(WIDTHS, config.integer("head_dim")),
        **SIGMOID,
        "vocab_size": config.integer("vocab_size"),
        "attention.head_count": np.array(heads, np.int32),
        "leading_dense_block_count": _first_dense(config),
        "expert_weights_norm": True,
        "expert_weights_scale": config.number("moe_routed_scaling_factor", at_least=0),
    }


def _maple(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; the network clips the gates of experts at a number that is no setting."""
    part = rope.settings(config).number("partial_rotary_factor", 1.0, at_least=0)
    return {
        **windows(config, folder),
        "vocab_size": config.integer("vocab_size"),
        "rope.dimension_count": int(head_dim(config) * part),
        "swiglu_clamp_exp": np.full(config.integer("num_hidden_layers"), 7.0, np.float32),
    }


def _spark(config: Values, folder: Folder) -> dict[str, Any]:
    full, local = (config.inner("rope_parameters").inner(f"{kind}_attention") for kind in ("full", "sliding"))
    parts = [each.number("partial_rotary_factor", at_least=0) for each in (full, local)]
    if parts[0] != parts[1]:
        raise local.refused("partial_rotary_factor", f"that of blocks without a window ({parts[0]:g})")
    rotated = int(config.integer("head_dim") * parts[0])
    return {
        **windows(config, folder),
        "vocab_size": config.integer("vocab_size"),
        "rope.dimension_count": rotated,
        "rope.dimension_count_swa": rotated,
    }


def _muse(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; only blocks with a window rotate."""
    found, bases = windows(config, folder), config.values.get("layer_rope_theta")
    base = rope.settings(config).number("rope_theta", at_least=0)
    if bases is not None and bases != [base * each for each in found["attention.sliding_window_pattern"]]:
        raise config.refused("layer_rope_theta", f"an array of {base:g} for blocks with a window, and 0 for others")
    return found


def _muse_norms(config: Values) -> dict[str, Array]:
    """The norms of heads, of which the one of queries has a factor and the other is one."""
    wide, factor = config.integer("head_dim"), config.number("qk_scale_factor")
    return {
        f"blk.{number}.attn_{name}_norm.weight": np.full(wide, value, np.float32)
        for number in range(config.integer("num_hidden_layers"))
        for name, value in (("q", factor), ("k", 1.0))
    }


def _muse_tokens(found: Mapping[str, Any], config: Values, folder: Folder) -> dict[str, Any]:
    end = "<|eot|>"
    return {"tokenizer.ggml.eot_token_id": found[TOKENS].index(end)} if end in found[TOKENS] else {}


_TURN_END = "</assistant>"


def _laguna_tokens(found: Mapping[str, Any], config: Values, folder: Folder) -> dict[str, Any]:
    """The end of a turn, which is a control token, and the template of the file that the settings only refer to."""
    types = np.array(
        [CONTROL if text == _TURN_END else kind for text, kind in zip(found[TOKENS], found[TOKEN_TYPE], strict=True)],
        np.int32,
    )
    more = {TOKEN_TYPE: types, **chat_template(folder, Values({}))}
    ends, begin = config.values.get("eos_token_id"), config.values.get("bos_token_id")
    others = [each for each in ends if each != begin] if isinstance(ends, list) else []
    if others:
        if type(others[0]) is not int or not 0 <= others[0] < len(types):
            raise config.refused("eos_token_id", "the ids of tokens")
        more["tokenizer.ggml.eot_token_id"] = others[0]
    return more


def _turned(values: Array, config: Values) -> Array:
    """The negative of the second half of each head's rows: Talkie rotates in the other direction."""
    wide = head_dim(config)
    if len(values) % wide or wide % 2:
        raise ModelError(f"a matrix with {len(values)} rows cannot be split into heads of {wide}", got=len(values))
    signs = np.where(np.arange(len(values)) % wide < wide // 2, 1, -1).astype(np.float32)
    return np.asarray(values, np.float32) * signs[:, None]


def _talkie(weights: Mapping[str, Stored], config: Values) -> dict[str, Any]:
    """The factor of the logits, which is a weight; norms have the epsilon of single precision."""
    name = "lm_head_gain.w_g"
    if name not in weights:
        raise ModelError(f"the folder has no tensor {name!r}, which talkie models need", tensor=name)
    factor = float(np.asarray(weights[name].array(), np.float32).reshape(-1)[0])
    return {"talkie.logit_scale": factor}


_AHEAD_OF_MIMO = 3
"""How many blocks guess further tokens, which the settings of MiMo 2 do not say."""


def _mimo_names(name: str, config: Values) -> str:
    """The name of a tensor; the blocks that guess further tokens are those after the last one."""
    if match := re.match(r"model\.mtp\.layers\.(\d+)\.(.+)", name):
        return f"model.layers.{config.integer('num_hidden_layers') + int(match[1])}.{match[2]}"
    return name


def _mimo2(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; blocks with a window have their own number of heads of keys and values."""
    windowed, n = config.values.get("hybrid_layer_pattern"), config.integer("num_hidden_layers")
    if not isinstance(windowed, list) or len(windowed) != n or not {0, 1} >= {*windowed}:
        raise config.refused("hybrid_layer_pattern", f"an array of {n} of 0 and 1")
    windowed = [*windowed, *[1] * _AHEAD_OF_MIMO]
    for setting in ("head_dim", "v_head_dim", "num_attention_heads"):
        if (wide := config.integer(setting)) != config.integer(f"swa_{setting}", wide):
            raise config.refused(f"swa_{setting}", f"{setting} ({wide})")
    groups = [config.integer(f"{'swa_' * each}num_key_value_heads") for each in windowed]
    local = {"rope.freq_base_swa": config.number("swa_rope_theta", at_least=0)} if "swa_rope_theta" in config else {}
    scale = config.number("attention_value_scale", None)
    part = rope.settings(config).number("partial_rotary_factor", 1.0, at_least=0)
    unwritten = ("expert_weights_norm", "expert_weights_scale")
    weights = {key: value for key, value in routing(config).items() if key not in unwritten}
    return {
        **rope.keys(config),
        **local,
        **weights,
        "block_count": len(windowed),
        "nextn_predict_layers": _AHEAD_OF_MIMO,
        "attention.head_count_kv": np.array(groups, np.int32),
        "attention.key_length": config.integer("head_dim"),
        "attention.value_length": config.integer("v_head_dim"),
        "attention.sliding_window": config.integer("sliding_window"),
        "attention.sliding_window_pattern": np.array(windowed, np.int32),
        **({} if scale is None else {"attention.value_scale": scale}),
        "attention.layer_norm_rms_epsilon": config.number("layernorm_epsilon", 1e-5, at_least=0),
        "rope.dimension_count": int(config.integer("head_dim") * part),
    }


_MIMO2 = Family(
    "mimo2",
    decoder(
        *ATTENTION,
        layer("self_attn.qkv_proj", "attn_qkv"),
        Tensors(LAYER + r"self_attn\.attention_sink_bias", r"blk.\1.attn_sinks.weight"),
        *MLP,
        *NORMS,
        *EXPERTS,
        *BIAS_OF_CHOICE,
        *AHEAD,
        *layers({"pre_mlp_layernorm": "ffn_norm", "final_layernorm": "layer_output_norm"}),
    ),
    {**{key: to for key, to in INTEGERS.items() if not to.endswith("_kv")}, **ROUTED},
    more=_mimo2,
    names=_mimo_names,
    unused=r"(?:visual|audio_encoder|speech_embeddings)\..*",
    scalings=(),
)
_TURNED = Change(_turned)
_COLUMN = Change(lambda values, config: values.reshape(-1, 1), lambda shape, config: (shape[0], 1))
_BLOCK = r"blocks\.(\d+)\."

FAMILIES: dict[str, Family] = {
    "cohere2_moe": Family(
        "cohere2moe",
        decoder(*ATTENTION, *HEAD_NORMS, *MLP, NORMS[0], *EXPERTS, *SHARED_EXPERTS, *AHEAD),
        {
            **{key: to for key, to in INTEGERS.items() if key != "intermediate_size"},
            "prefix_dense_intermediate_size|intermediate_size": "feed_forward_length",
            **EXPERT_COUNTS,
        },
        {
            "layer_norm_eps?": "attention.layer_norm_epsilon",
            "rms_norm_eps?": "attention.layer_norm_rms_epsilon",
            "logit_scale": "logit_scale",
        },
        _cohere2_moe,
        scalings=(),
    ),
    "hy_v3": Family(
        "hy_v3",
        decoder(
            *ATTENTION,
            *HEAD_NORMS,
            *MLP,
            *NORMS,
            *EXPERTS,
            layer("mlp.router.gate", "ffn_gate_inp"),
            *layers({f"mlp.shared_mlp.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")}),
            Tensors(LAYER + r"mlp\.expert_bias", r"blk.\1.exp_probs_b"),
            *AHEAD,
            layer("final_layernorm", "nextn.shared_head_norm"),
        ),
        {**INTEGERS, **EXPERT_COUNTS, **EXPERT_WIDTH},
        RMS,
        _hy_v3,
    ),
    "laguna": Family(
        "laguna",
        decoder(
            *ATTENTION,
            *HEAD_NORMS,
            layer("self_attn.g_proj", "attn_gate"),
            *MLP,
            *NORMS,
            *EXPERTS,
            *SHARED_EXPERT,
            *BIAS_OF_CHOICE,
        ),
        {
            **{key: to for key, to in INTEGERS.items() if key != "num_attention_heads"},
            **EXPERT_COUNTS,
            **EXPERT_WIDTH,
            "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        },
        RMS,
        _laguna,
        vocabulary=_laguna_tokens,
    ),
    "mellum": Family(
        "mellum",
        decoder(*ATTENTION, *HEAD_NORMS, *EXPERTS, *NORMS),
        {**INTEGERS, **EXPERT_COUNTS, **EXPERT_WIDTH},
        RMS,
        _mellum,
    ),
    **dict.fromkeys(("mimo_v2_flash", "mimo_v2"), _MIMO2),
    "maple": Family(
        "maple",
        decoder(*ATTENTION, *HEAD_NORMS, *EXPERTS, *NORMS),
        {**INTEGERS, **EXPERT_COUNTS, **EXPERT_WIDTH},
        RMS,
        _maple,
    ),
    "spark2_5": Family(
        "spark2_5",
        decoder(
            layer("self_attn.q_k_v_proj", "attn_qkv"),
            layer("self_attn.g_proj", "attn_gate"),
            ATTENTION[3],
            *MLP,
            *NORMS,
        ),
        INTEGERS,
        RMS,
        _spark,
        scalings=(),
    ),
    "muse_glimmer": Family(
        "muse-glimmer",
        decoder(
            *PAIRED_ATTENTION,
            layer("self_attn.gate_proj", "attn_gate"),
            *MLP,
            *layers(
                {
                    "input_layernorm": "attn_norm",
                    "post_attention_layernorm": "post_attention_norm",
                    "pre_feedforward_layernorm": "ffn_norm",
                    "post_feedforward_layernorm": "post_ffw_norm",
                },
                PLUS_ONE,
            ),
        ),
        INTEGERS,
        {**RMS, "final_logit_softcapping": "final_logit_softcapping", "output_multiplier": "logit_scale"},
        _muse,
        fixed=_muse_norms,
        prefix=r"(?:model\.language_model\.|model\.)?",
        unused=r"(?:model\.)?vision_\w+\..*",
        inner="text_config",
        vocabulary=_muse_tokens,
        scalings=(),
    ),
    "talkie": Family(
        "talkie",
        (
            Tensors(r"embed\.weight", "token_embd.weight"),
            Tensors(r"lm_head(?:\.weight)?", "output.weight"),
            *layers({"attn.attn_query": "attn_q", "attn.attn_key": "attn_k"}, _TURNED, _BLOCK),
            *layers(
                {
                    "attn.attn_value": "attn_v",
                    "attn.attn_resid": "attn_output",
                    "mlp.mlp_gate": "ffn_gate",
                    "mlp.mlp_linear": "ffn_up",
                    "mlp.mlp_resid": "ffn_down",
                },
                block=_BLOCK,
            ),
            Tensors(_BLOCK + r"attn_gain\.a_g", r"blk.\1.attn_output.scale"),
            Tensors(_BLOCK + r"mlp_gain\.a_g", r"blk.\1.ffn_down.scale"),
            Tensors(_BLOCK + r"embed_skip\.a_g", r"blk.\1.layer_output_scale.weight"),
            Tensors(_BLOCK + r"attn\.head_gain\.head_g", r"blk.\1.attn_q_norm.weight", _COLUMN),
        ),
        INTEGERS,
        more=lambda config, folder: {
            **positions(config, folder),
            "attention.layer_norm_rms_epsilon": float(np.finfo(np.float32).eps),
        },
        of_weights=_talkie,
        unused=r"lm_head_gain\.w_g",
    ),
}
