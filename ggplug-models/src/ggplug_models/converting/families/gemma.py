"""Gemma."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np

from ggplug_models.converting import rope
from ggplug_models.converting.family import PLUS_ONE, Array, Change, Family, Tensors
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import (
    ATTENTION,
    INTEGERS,
    LAYER,
    MLP,
    RMS,
    WIDTHS,
    decoder,
    for_blocks,
    layer,
    layers,
)
from ggplug_models.converting.tokens.token_table import UNKNOWN, USER_DEFINED
from ggplug_models.converting.tokens.vocabulary import MERGED, merges
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.byte_pairs import MERGES
from ggplug_models.tokenizers.encoders import CONTROL
from ggplug_models.tokenizers.pre_tokenizers import PRE
from ggplug_models.tokenizers.vocabulary import MODEL, SCORES, SPACE_PREFIX, TOKEN_TYPE, TOKENS

_NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
_GEMMA_NORMS = layers(_NORMS, PLUS_ONE)
_KINDS = ("sliding_attention", "full_attention")


def _gemma2(config: Values, folder: Folder) -> dict[str, Any]:
    names = ("attn_logit_softcapping", "final_logit_softcapping")
    if (uncapped := next((name for name in names if config.values.get(name, 0) is None), None)) is not None:
        raise config.refused(uncapped, "a number: the logits of gemma2 models in GGUF files are capped")
    caps = {name: config.number(name, at_least=0) for name in names if name in config}
    return {**rope.base(config), **caps, **dict.fromkeys(WIDTHS, config.integer("head_dim"))}


def _gemma3(config: Values, folder: Folder) -> dict[str, Any]:
    found = rope.keys(config)
    if "rope_local_base_freq" in config:
        found.setdefault("rope.freq_base_swa", config.number("rope_local_base_freq", at_least=0))
    if "final_logit_softcapping" in config:
        found["final_logit_softcapping"] = config.number("final_logit_softcapping", at_least=0)
    if config.values.get("sliding_window_pattern") != 1:
        found |= {"attention.sliding_window": config.integer("sliding_window"), **_unusual_windows(config)}
    return found | dict.fromkeys(WIDTHS, config.integer("head_dim"))


def _unusual_windows(config: Values) -> dict[str, Any]:
    """The key of the blocks with a window, if they are others than the first five of each six."""
    every, n = config.integer("sliding_window_pattern", 6), config.integer("num_hidden_layers")
    found = [number % every != every - 1 for number in range(n)]
    if "layer_types" in config:
        found = [each == "sliding_attention" for each in for_blocks(config, "layer_types", _KINDS)]
    usual = [number % 6 != 5 for number in range(n)]
    return {} if found == usual else {"attention.sliding_window_pattern": found}


_GEMMA3 = Family(
    "gemma3",
    decoder(*ATTENTION, *MLP, *_GEMMA_NORMS, norm=PLUS_ONE),
    INTEGERS,
    RMS,
    _gemma3,
    prefix=r"(?:language_model\.model\.|model\.language_model\.|language_model\.|model\.)?",
    unused=r"(?:.*\.)?(?:vision_tower|multi_modal_projector)\..*",
    inner="text_config",
)


_EITHER_WAY = replace(
    _GEMMA3,
    variants=(
        (
            lambda config: config.boolean("use_bidirectional_attention"),
            replace(_GEMMA3, architecture="gemma-embedding", dense=True),
        ),
    ),
)

_GEMMA3N_KEYS = {
    **{name: key for name, key in INTEGERS.items() if name != "intermediate_size"},
    "hidden_size_per_layer_input": "embedding_length_per_layer_input",
}


def _gemma3n(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of Gemma 3n; the share of zeros in a sparse gate becomes a number of standard deviations."""
    layers = for_blocks(config, "layer_types", _KINDS)
    n = len(layers)
    wide = config.values.get("intermediate_size")
    wide = [wide] * n if type(wide) is int else wide
    if not isinstance(wide, list) or len(wide) != n or not all(type(each) is int and each > 0 for each in wide):
        raise config.refused("intermediate_size", f"a positive integer, or an array of {n}")
    shares = config.values.get("activation_sparsity_pattern", 0.0)
    shares = shares if isinstance(shares, list) else [shares] * n
    if len(shares) != n or not all(isinstance(each, (int, float)) and 0 <= each < 1 for each in shares):
        raise config.refused("activation_sparsity_pattern", f"a number from 0 to 1 without 1, or an array of {n}")
    return _gemma3(config, folder) | {
        "feed_forward_length": np.array(wide, np.int32),
        "attention.shared_kv_layers": config.integer("num_kv_shared_layers", at_least=0),
        "attention.sliding_window_pattern": [each == "sliding_attention" for each in layers],
        "altup.active_idx": config.integer("altup_active_idx", at_least=0),
        "altup.num_inputs": config.integer("altup_num_inputs"),
        "activation_sparsity_scale": np.array([_deviations(each) for each in shares], np.float32),
    }


def _deviations(share: float) -> float:
    """How many standard deviations above the mean of a normal distribution the share lies."""
    return NormalDist().inv_cdf(float(np.float32(share))) if share else -math.inf


def _padded(values: Array, config: Values) -> Array:
    """The embeddings with rows of zeros for further tokens, which have embeddings from elsewhere."""
    more = config.integer("vocab_size") - len(values)
    return np.pad(values, ((0, max(more, 0)), (0, 0)))


_GEMMA4_KEYS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "sliding_window": "attention.sliding_window",
    "num_experts?": "expert_count",
    "top_k_experts?": "expert_used_count",
    "expert_intermediate_size|moe_intermediate_size?": "expert_feed_forward_length",
}


def _wide(config: Values, setting: str, of_all: str) -> int | None:
    """A setting of the blocks that attend to all positions: their common one, or that of the first which has one."""
    if of_all in config:
        return config.integer(of_all)
    layers, each = config.values.get("layer_types"), config.inner("per_layer_config", Values({}))
    for number, kind in enumerate(layers if isinstance(layers, list) else []):
        own = each.inner(str(number), Values({}))
        if kind == "full_attention" and setting in own:
            return own.integer(setting)
    return None


def _wide_head(config: Values) -> int:
    found = _wide(config, "head_dim", "global_head_dim")
    return config.integer("global_head_dim") if found is None else found


def _gemma4(config: Values, folder: Folder) -> dict[str, Any]:
    windows = [each == "sliding_attention" for each in for_blocks(config, "layer_types", _KINDS)]
    n, shared = len(windows), config.integer("num_kv_shared_layers", at_least=0)
    positions, width = config.inner("rope_parameters"), config.integer("intermediate_size")
    wide, narrow = _wide_head(config), config.integer("head_dim")
    found: dict[str, Any] = {
        "rope.freq_base": positions.inner("full_attention").number("rope_theta", at_least=0),
        "rope.freq_base_swa": positions.inner("sliding_attention").number("rope_theta", at_least=0),
        "rope.dimension_count": wide,
        "rope.dimension_count_swa": narrow,
        "attention.sliding_window_pattern": windows,
        "attention.shared_kv_layers": shared,
        **dict.fromkeys(WIDTHS, wide),
        **{f"{key}_swa": narrow for key in WIDTHS},
        "embedding_length_per_layer_input": config.integer("hidden_size_per_layer_input", 0, at_least=0),
        "attention.head_count_kv": config.integer("num_key_value_heads"),
    }
    heads = _wide(config, "num_key_value_heads", "num_global_key_value_heads")
    if heads is not None:
        narrow_heads = config.integer("num_key_value_heads")
        found["attention.head_count_kv"] = np.array([narrow_heads if each else heads for each in windows], np.int32)
    if config.boolean("use_double_wide_mlp"):
        found["feed_forward_length"] = np.array([width] * (n - shared) + [2 * width] * shared, np.int32)
    if "final_logit_softcapping" in config:
        found["final_logit_softcapping"] = config.number("final_logit_softcapping", at_least=0)
    return found


def _still_pairs(config: Values) -> rope.Factors:
    """Divisors of the frequencies of wide heads, of which those of the last pairs stop their rotation."""
    every = config.inner("rope_parameters").inner("full_attention")
    every.text("rope_type", one_of=("proportional",))
    half = _wide_head(config) // 2
    turning = int(2 * half * every.number("partial_rotary_factor", at_least=0, at_most=1) / 2)
    return {"rope_freqs.weight": np.array([1.0] * turning + [1e30] * (half - turning), np.float32)}


_VISIBLE = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>')
"""Tokens that programs must be able to read in answers."""


def _gemma4_tokens(found: Mapping[str, Any], config: Values, folder: Folder) -> dict[str, Any]:
    if found[SPACE_PREFIX]:
        raise folder.json("tokenizer.json").refused("normalizer", "one that puts no space before texts, as Gemma's")
    types = np.where(found[TOKEN_TYPE] == UNKNOWN, CONTROL, found[TOKEN_TYPE]).astype(np.int32)
    for number, text in enumerate(found[TOKENS]):
        if text in _VISIBLE:
            types[number] = USER_DEFINED
    return {
        MODEL: "gemma4",
        PRE: None,
        SCORES: np.full(len(types), -1000, np.float32),
        TOKEN_TYPE: types,
        MERGES: [" ".join(each) for each in merges(folder.json("tokenizer.json"))],
        "tokenizer.ggml.add_bos_token": True,
    }


def _scale_or_one(values: Array, config: Values) -> Array:
    """The scale of what is added to the stream that attention reads; 1 where the settings switch it off."""
    return values if config.boolean("altup_correct_scale", True) else np.ones(values.shape, np.float32)


_PADDED = Change(_padded, lambda shape, config: (max(config.integer("vocab_size"), shape[0]), *shape[1:]))
_STREAMS = (("altup_projections", "altup_proj"), ("altup_unembed_projections", "altup_unembd_proj"))
_PER_LAYER = (
    Tensors(r"per_layer_model_projection\.weight", "per_layer_model_proj.weight"),
    Tensors(r"per_layer_projection_norm\.weight", "per_layer_proj_norm.weight"),
    *layers(
        {
            "per_layer_input_gate": "inp_gate",
            "per_layer_projection": "proj",
            "post_per_layer_input_norm": "post_norm",
        }
    ),
)
"""Of models with embeddings for each block."""

_GEMMA3N = Family(
    "gemma3n",
    (
        Tensors(r"embed_tokens\.weight", "token_embd.weight", _PADDED),
        Tensors(r"embed_tokens_per_layer\.weight", "per_layer_token_embd.weight", _PADDED),
        *decoder()[1:],
        *_PER_LAYER,
        *(Tensors(rf"(){name}\.(\d+)\.weight", f"{target}.weight", of_experts=True) for name, target in _STREAMS),
        *ATTENTION,
        *MLP,
        *layers(_NORMS),
        *layers(
            {
                "laurel.linear_left": "laurel_l",
                "laurel.linear_right": "laurel_r",
                "laurel.post_laurel_norm": "laurel_post_norm",
                "altup.modality_router": "altup_router",
                "altup.router_norm": "altup_router_norm",
                "altup.prediction_coefs": "altup_predict_coef",
                "altup.correction_coefs": "altup_correct_coef",
            }
        ),
        Tensors(LAYER + r"altup\.correct_output_scale", r"blk.\1.altup_correct_scale.weight", Change(_scale_or_one)),
    ),
    _GEMMA3N_KEYS,
    RMS,
    _gemma3n,
    prefix=_GEMMA3.prefix,
    unused=r"(?:.*\.)?(?:vision_tower|audio_tower|embed_vision|embed_audio)\..*",
    inner="text_config",
)

_GEMMA4 = Family(
    "gemma4",
    (
        Tensors(r"embed_tokens_per_layer\.weight", "per_layer_token_embd.weight"),
        *decoder(*ATTENTION, *MLP, *layers(_NORMS)),
        *_PER_LAYER,
        layer("router.proj", "ffn_gate_inp"),
        *(
            Tensors(LAYER + name, rf"blk.\1.{target}")
            for name, target in (
                (r"layer_scalar", "layer_output_scale.weight"),
                (r"router\.scale", "ffn_gate_inp.scale"),
                (r"router\.per_expert_scale", "ffn_down_exps.scale"),
                (r"experts\.down_proj", "ffn_down_exps.weight"),
                (r"experts\.gate_up_proj", "ffn_gate_up_exps.weight"),
            )
        ),
        *layers(
            {
                "post_feedforward_layernorm_1": "post_ffw_norm_1",
                "post_feedforward_layernorm_2": "post_ffw_norm_2",
                "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
            }
        ),
    ),
    _GEMMA4_KEYS,
    RMS,
    _gemma4,
    _still_pairs,
    prefix=_GEMMA3.prefix,
    unused=_GEMMA3N.unused,
    inner="text_config",
    vocabularies=(MERGED,),
    vocabulary=_gemma4_tokens,
    scalings=("proportional",),
)

FAMILIES: dict[str, Family] = {
    "gemma": Family(
        "gemma",
        decoder(
            *ATTENTION,
            *MLP,
            *layers({"input_layernorm": "attn_norm"}, PLUS_ONE),
            layer("post_attention_layernorm", "ffn_norm", PLUS_ONE),
            norm=PLUS_ONE,
        ),
        INTEGERS,
        RMS,
        lambda config, folder: {**rope.base(config), **dict.fromkeys(WIDTHS, config.integer("head_dim"))},
        special={"eot": 107},
    ),
    "gemma2": Family(
        "gemma2",
        decoder(*ATTENTION, *MLP, *_GEMMA_NORMS, norm=PLUS_ONE),
        {**INTEGERS, "sliding_window": "attention.sliding_window"},
        RMS,
        _gemma2,
    ),
    "gemma3_text": _EITHER_WAY,
    "gemma3": _GEMMA3,
    "gemma3n_text": _GEMMA3N,
    "gemma3n": _GEMMA3N,
    "gemma4_text": _GEMMA4,
    "gemma4": _GEMMA4,
}
