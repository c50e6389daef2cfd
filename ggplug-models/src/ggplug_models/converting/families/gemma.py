"""Gemma 2, 3 and 3n."""

from __future__ import annotations

import math
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
from ggplug_models.metadata.values import Values

_NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
_GEMMA_NORMS = layers(_NORMS, PLUS_ONE)


def _gemma2(config: Values, folder: Folder) -> dict[str, Any]:
    names = ("attn_logit_softcapping", "final_logit_softcapping")
    caps = {name: config.number(name, at_least=0) for name in names if name in config}
    return caps | dict.fromkeys(WIDTHS, config.integer("head_dim"))


def _gemma3(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of Gemma 3; missing settings have the defaults of the class in transformers."""
    found = dict(rope.keys(config))
    found.setdefault("rope.freq_base", 1e6)
    if "rope_local_base_freq" in config:
        found.setdefault("rope.freq_base_swa", config.number("rope_local_base_freq", at_least=0))
    if "final_logit_softcapping" in config:
        found["final_logit_softcapping"] = config.number("final_logit_softcapping", at_least=0)
    if config.values.get("sliding_window_pattern") != 1:
        found["attention.sliding_window"] = config.integer("sliding_window")
    return found | {
        "context_length": config.integer("max_position_embeddings", 131072),
        "attention.head_count": config.integer("num_attention_heads", 8),
        "attention.head_count_kv": config.integer("num_key_value_heads", 4),
        "attention.layer_norm_rms_epsilon": config.number("rms_norm_eps", 1e-6, at_least=0),
        **dict.fromkeys(WIDTHS, config.integer("head_dim", 256)),
    }


_GEMMA3 = Family(
    "gemma3",
    decoder(*ATTENTION, *MLP, *_GEMMA_NORMS, norm=PLUS_ONE),
    {
        "hidden_size": "embedding_length",
        "num_hidden_layers": "block_count",
        "intermediate_size": "feed_forward_length",
    },
    more=_gemma3,
    prefix=r"(?:language_model\.model\.|model\.language_model\.|language_model\.|model\.)?",
    unused=r"(?:.*\.)?(?:vision_tower|multi_modal_projector)\..*",
    inner="text_config",
)


_NESTED_KEYS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "hidden_size_per_layer_input": "embedding_length_per_layer_input",
}


def _gemma3n(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of Gemma 3n; the share of zeros in a sparse gate becomes a number of standard deviations."""
    layers = for_blocks(config, "layer_types", ("sliding_attention", "full_attention"))
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


_PADDED = Change(_padded, lambda shape, config: (max(config.integer("vocab_size"), shape[0]), *shape[1:]))
_STREAMS = (("altup_projections", "altup_proj"), ("altup_unembed_projections", "altup_unembd_proj"))
_GEMMA3N = Family(
    "gemma3n",
    (
        Tensors(r"embed_tokens\.weight", "token_embd.weight", _PADDED),
        Tensors(r"embed_tokens_per_layer\.weight", "per_layer_token_embd.weight", _PADDED),
        *decoder()[1:],
        Tensors(r"per_layer_model_projection\.weight", "per_layer_model_proj.weight"),
        Tensors(r"per_layer_projection_norm\.weight", "per_layer_proj_norm.weight"),
        *(Tensors(rf"(){name}\.(\d+)\.weight", f"{target}.weight", of_experts=True) for name, target in _STREAMS),
        *ATTENTION,
        *MLP,
        *layers(_NORMS),
        *layers(
            {
                "per_layer_input_gate": "inp_gate",
                "per_layer_projection": "proj",
                "post_per_layer_input_norm": "post_norm",
                "laurel.linear_left": "laurel_l",
                "laurel.linear_right": "laurel_r",
                "laurel.post_laurel_norm": "laurel_post_norm",
                "altup.modality_router": "altup_router",
                "altup.router_norm": "altup_router_norm",
                "altup.prediction_coefs": "altup_predict_coef",
                "altup.correction_coefs": "altup_correct_coef",
            }
        ),
        Tensors(LAYER + r"altup\.correct_output_scale", r"blk.\1.altup_correct_scale.weight"),
    ),
    _NESTED_KEYS,
    more=_gemma3n,
    prefix=_GEMMA3.prefix,
    unused=r"(?:.*\.)?(?:vision_tower|audio_tower|embed_vision|embed_audio)\..*",
    inner="text_config",
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
        lambda config, folder: dict.fromkeys(WIDTHS, config.integer("head_dim")),
        special={"eot": 107},
    ),
    "gemma2": Family(
        "gemma2",
        decoder(*ATTENTION, *MLP, *_GEMMA_NORMS, norm=PLUS_ONE),
        {**INTEGERS, "sliding_window": "attention.sliding_window"},
        RMS,
        _gemma2,
    ),
    "gemma3_text": _GEMMA3,
    "gemma3": _GEMMA3,
    "gemma3n_text": _GEMMA3N,
    "gemma3n": _GEMMA3N,
}
