"""Decoders of 2023 and 2024 whose code was published with their weights, under settings and names of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ggplug.errors import ModelError
from ggplug_models.converting import rope
from ggplug_models.converting.checkpoint import Stored
from ggplug_models.converting.family import (
    PAIRED_K,
    PAIRED_Q,
    TRANSPOSED,
    Array,
    Change,
    Family,
    Tensors,
    head_dim,
    n_heads,
    n_kv_heads,
    part,
)
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import (
    ANY,
    ATTENTION,
    GLM_SPLITTING,
    INTEGERS,
    MLP,
    NORMS,
    PAIRED_ATTENTION,
    RMS,
    decoder,
    layer,
    layers,
)
from ggplug_models.converting.tokens.token_files import RANKS
from ggplug_models.converting.tokens.token_table import UNKNOWN
from ggplug_models.converting.tokens.vocabulary import MERGED
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.encoders import CONTROL
from ggplug_models.tokenizers.vocabulary import TOKEN_TYPE

_LAYOUT = {"tensor_data_layout": "Meta AI original pth"}
_CONTEXT = {
    **{key: to for key, to in INTEGERS.items() if to != "context_length"},
    "max_position_embeddings|max_sequence_length|model_max_length": "context_length",
}


def _of_meta(config: Values, folder: Folder) -> dict[str, Any]:
    return {**rope.keys(config), **_LAYOUT, "rope.dimension_count": head_dim(config)}


def _baichuan(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; the rows of ``W_pack`` are three equal parts.

    As in llama.cpp, the output matrix stays as it is: the code of Baichuan 2 divides its rows by their lengths.
    """
    if n_kv_heads(config) != n_heads(config):
        raise config.refused("num_key_value_heads", f"num_attention_heads ({n_heads(config)})")
    return _of_meta(config, folder)


def _xverse_tokens(found: Mapping[str, Any], config: Values, folder: Folder) -> dict[str, Any]:
    """The types of tokens, among which llama.cpp's converter knows no unknown one."""
    types = found[TOKEN_TYPE]
    return {TOKEN_TYPE: np.where(types == UNKNOWN, CONTROL, types)}


_H = r"h\.(\d+)\."
_GPT = (
    Tensors(r"wte\.weight", "token_embd.weight"),
    Tensors(rf"ln_f\.{ANY}", r"output_norm.\1"),
    Tensors(r"lm_head\.weight", "output.weight"),
    *layers({"ln_1": "attn_norm", "ln_2": "ffn_norm"}, block=_H),
)
"""The rows of models with GPT-2's names, without those of matrices."""

_OF_GPT = {
    "n_positions": "context_length",
    "n_embd": "embedding_length",
    "n_layer": "block_count",
    "n_head": "attention.head_count",
}
_EPSILON = {"layer_norm_epsilon": "attention.layer_norm_epsilon"}


def _qwen(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; llama.cpp's converter has the epsilon under another name than its network."""
    return {
        "rope.freq_base": config.number("rotary_emb_base", 10000.0, at_least=0),
        "attention.layer_norm_rms_epsilon": config.number("layer_norm_epsilon", at_least=0),
    }


def _refact(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; the width of the network follows from that of the model."""
    return {
        "feed_forward_length": -(-int(8 * config.integer("n_embd") / 3) // 256) * 256,
        "attention.head_count_kv": 1,
    }


def _scaled(*settings: str) -> Change:
    """Multiplies by the product of settings, or else by that of the others that follow a bar."""

    def apply(values: Array, config: Values) -> Array:
        names = next((each for each in settings if each.split("*")[0] in config), settings[-1])
        factor = math.prod(config.number(name) for name in names.split("*"))
        return np.asarray(values, np.float32) * np.float32(factor)

    return Change(apply)


_EMBEDDINGS = _scaled("mup_embeddings_scale", "embeddings_scale")
_LOGITS = _scaled("mup_output_alpha*mup_width_scale", "width_scale")


def _alibi_of_jais(weights: Mapping[str, Stored], config: Values) -> dict[str, Any]:
    """The largest slope of ALiBi, of the slopes among the weights."""
    n = config.integer("n_head")
    stored = next((each for name, each in weights.items() if name.endswith("relative_pe.slopes")), None)
    if stored is None:
        return {"jais.attention.max_alibi_bias": 8.0}
    first = float(np.asarray(stored.array(), np.float32).reshape(-1)[0])
    if not 0 < first < 1:
        raise ModelError(
            f"{stored.path}: tensor {stored.name!r} begins with {first:g}, expected a slope between 0 and 1",
            tensor=stored.name,
            got=first,
        )
    return {"jais.attention.max_alibi_bias": float(-round(math.log2(first) * 2 ** math.floor(math.log2(n))))}


_JAIS = Family(
    "jais",
    (
        Tensors(r"wte\.weight", "token_embd.weight", _EMBEDDINGS),
        Tensors(r"lm_head\.weight", "output.weight", _LOGITS),
        _GPT[1],
        *_GPT[3:],
        *(
            Tensors(rf"{_H}{name}\.{end}", rf"blk.\1.{target}.{end}", TRANSPOSED if end == "weight" else None)
            for name, target in (
                (r"attn\.c_attn", "attn_qkv"),
                (r"attn\.c_proj", "attn_output"),
                (r"mlp\.c_fc", "ffn_up"),
                (r"mlp\.c_fc2", "ffn_gate"),
                (r"mlp\.c_proj", "ffn_down"),
            )
            for end in ("weight", "bias")
        ),
    ),
    {**_OF_GPT, "n_inner": "feed_forward_length"},
    _EPSILON,
    prefix=r"(?:transformer\.)?",
    unused=r"(?:.*\.)?relative_pe\.slopes|h\.\d+\.attn\.bias",
    of_weights=_alibi_of_jais,
    head=None,
    scalings=(),
)
"""Both tables are multiplied by settings, so one that is tied becomes two."""


def _codeshell(config: Values, folder: Folder) -> dict[str, Any]:
    wide = 4 * config.integer("n_embd")
    if config.integer("n_inner", wide) != wide:
        raise config.refused("n_inner", f"4 * n_embd ({wide})")
    return {
        "feed_forward_length": wide,
        "rope.freq_base": 10000.0,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 1.0,
    }


def _glm(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of GLM 4 as transformers has it."""
    part = rope.settings(config).number("partial_rotary_factor", 1.0, at_least=0)
    return {
        "rope.freq_base": rope.settings(config).number("rope_theta", at_least=0),
        "rope.dimension_count": int(head_dim(config) * part),
    }


def _chatglm(config: Values, folder: Folder) -> dict[str, Any]:
    wide = config.integer("hidden_size") // n_heads(config)
    if config.integer("kv_channels", wide) != wide:
        raise config.refused("kv_channels", f"hidden_size / num_attention_heads ({wide})")
    return {
        "attention.head_count_kv": config.integer("multi_query_group_num", n_heads(config)),
        "attention.layer_norm_rms_epsilon": config.number("layernorm_epsilon", 1e-5, at_least=0),
        "rope.dimension_count": wide // 2,
        "rope.freq_base": 10000.0 * config.number("rope_ratio", 1.0, at_least=0),
    }


_ADDS_BOS = "tokenizer.ggml.add_bos_token"
_GLM_END = "<|endoftext|>"
_GLM_TOKENS: dict[str, Any] = {
    "vocabularies": (MERGED,),
    "vocabulary": lambda found, config, folder: {_ADDS_BOS: found.get(_ADDS_BOS, False)},
    "special": {"eos": _GLM_END, "eot": "<|user|>", "unk": _GLM_END},
}


FAMILIES: dict[str, Family] = {
    "baichuan": Family(
        "baichuan",
        decoder(
            layer("self_attn.W_pack", "attn_q", part(0, 3).then(PAIRED_Q)),
            layer("self_attn.W_pack", "attn_k", part(1, 3).then(PAIRED_K)),
            layer("self_attn.W_pack", "attn_v", part(2, 3)),
            ATTENTION[3],
            *MLP,
            *NORMS,
        ),
        _CONTEXT,
        RMS,
        _baichuan,
        unused=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    ),
    "xverse": Family(
        "xverse",
        decoder(*PAIRED_ATTENTION, *MLP, *NORMS),
        _CONTEXT,
        RMS,
        _of_meta,
        unused=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
        vocabularies=(MERGED,),
        vocabulary=_xverse_tokens,
    ),
    "qwen": Family(
        "qwen",
        (
            *_GPT,
            *layers(
                {
                    "attn.c_attn": "attn_qkv",
                    "attn.c_proj": "attn_output",
                    "mlp.w1": "ffn_up",
                    "mlp.w2": "ffn_gate",
                    "mlp.c_proj": "ffn_down",
                },
                block=_H,
            ),
        ),
        {key: to for key, to in INTEGERS.items() if not to.endswith("_kv")},
        _EPSILON,
        _qwen,
        prefix=r"(?:transformer\.)?",
        unused=r"(?:h\.\d+\.attn\.)?rotary_emb\.inv_freq",
        vocabularies=(RANKS,),
        special=dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>"),
        scalings=(),
    ),
    "gpt_refact": Family(
        "refact",
        (
            *_GPT,
            layer("attn.kv", "attn_k", part(0), _H),
            layer("attn.kv", "attn_v", part(1), _H),
            layer("mlp.gate_up_proj", "ffn_gate", part(0), _H),
            layer("mlp.gate_up_proj", "ffn_up", part(1), _H),
            *layers({"attn.q": "attn_q", "attn.c_proj": "attn_output", "mlp.c_proj": "ffn_down"}, block=_H),
        ),
        _OF_GPT,
        {"layer_norm_epsilon": "attention.layer_norm_rms_epsilon"},
        _refact,
        prefix=r"(?:transformer\.)?",
        splitting={"starcoder": "refact"},
        scalings=(),
    ),
    "jais": replace(
        _JAIS,
        variants=(
            (
                lambda config: config.boolean("tie_word_embeddings", True),
                replace(
                    _JAIS,
                    tensors=(Tensors(r"wte\.weight", "output.weight", _LOGITS), _JAIS.tensors[0], *_JAIS.tensors[2:]),
                    unused=rf"{_JAIS.unused}|lm_head\.weight",
                ),
            ),
        ),
    ),
    "codeshell": Family(
        "codeshell",
        (
            *_GPT,
            *layers(
                {
                    "attn.c_attn": "attn_qkv",
                    "attn.c_proj": "attn_output",
                    "mlp.c_fc": "ffn_up",
                    "mlp.c_proj": "ffn_down",
                },
                block=_H,
            ),
        ),
        {**_OF_GPT, "num_query_groups": "attention.head_count_kv"},
        _EPSILON,
        _codeshell,
        prefix=r"(?:transformer\.)?",
        unused=r"h\.\d+\.attn\.(?:bias|masked_bias|rotary_emb\.inv_freq)",
        splitting={"starcoder": "codeshell"},
        scalings=(),
    ),
    "glm": Family(
        "chatglm",
        decoder(*ATTENTION, *layers({"mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}), *NORMS),
        INTEGERS,
        RMS,
        _glm,
        splitting=GLM_SPLITTING,
        scalings=(),
        **_GLM_TOKENS,
    ),
    "chatglm": Family(
        "chatglm",
        (
            Tensors(r"embedding\.word_embeddings\.weight", "token_embd.weight"),
            Tensors(r"encoder\.final_layernorm\.weight", "output_norm.weight"),
            Tensors(r"output_layer\.weight", "output.weight"),
            *layers(
                {
                    "self_attention.query_key_value": "attn_qkv",
                    "self_attention.dense": "attn_output",
                    "mlp.dense_h_to_4h": "ffn_up",
                    "mlp.dense_4h_to_h": "ffn_down",
                    "input_layernorm": "attn_norm",
                    "post_attention_layernorm": "ffn_norm",
                },
                block=r"encoder\.layers\.(\d+)\.",
            ),
        ),
        {
            "seq_length": "context_length",
            "hidden_size": "embedding_length",
            "num_layers": "block_count",
            "ffn_hidden_size": "feed_forward_length",
            "num_attention_heads": "attention.head_count",
        },
        more=_chatglm,
        prefix=r"(?:transformer\.)?",
        unused=r"rotary_pos_emb\.inv_freq",
        head="transformer.output_layer.weight",
        splitting=dict.fromkeys(("llama-bpe", "dbrx"), "chatglm-bpe"),
        scalings=(),
        **_GLM_TOKENS,
    ),
}
