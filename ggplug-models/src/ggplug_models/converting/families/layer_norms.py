"""Decoders with LayerNorm, most of them with attention and MLP in parallel."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggplug_models.converting import rope
from ggplug_models.converting.family import PLUS_ONE, Array, Change, Family, Tensors, first_integer, head_dim, in_heads
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import (
    ANY,
    ATTENTION,
    FINAL_NORM,
    HEAD_NORMS,
    INTEGERS,
    LAYER,
    MLP,
    NORMS,
    decoder,
    layer,
    layers,
    one_window,
    positions,
)
from ggplug_models.metadata.values import Values

_EPS = {
    "layer_norm_eps|layer_norm_epsilon|norm_epsilon|norm_eps": "attention.layer_norm_epsilon",
}
_OF_HEADS = "num_attention_heads|n_head"
_OF_WIDTH = "hidden_size|n_embed|n_embd"


def _rotated(config: Values) -> int:
    """The number of elements of a head that are rotated."""
    part = rope.settings(config).number("partial_rotary_factor", config.number("rotary_pct", 1.0), at_least=0)
    return int(part * head_dim(config))


# -- Command R, Phi, StableLM ----------------------------------------------------------------------


def _cohere(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of Command R, whose settings may have the trained context length under another name."""
    return {
        **positions(config, folder),
        "context_length": config.integer("model_max_length", config.integer("max_position_embeddings")),
        "rope.scaling.type": "none",
    }


def _cohere2(config: Values, folder: Folder) -> dict[str, Any]:
    return {
        **positions(config, folder),
        "vocab_size": config.integer("vocab_size"),
        "rope.dimension_count": head_dim(config),
        "rope.scaling.type": "none",
    }


def _phi(config: Values, folder: Folder) -> dict[str, Any]:
    heads = config.integer("num_attention_heads")
    return {**rope.base(config), "attention.head_count_kv": heads, "rope.dimension_count": _rotated(config)}


_PARALLEL = (*ATTENTION, *HEAD_NORMS, *MLP, NORMS[0])


def _stablelm(config: Values, folder: Folder) -> dict[str, Any]:
    parallel = config.boolean("use_parallel_residual")
    return {**rope.base(config), "rope.dimension_count": _rotated(config), "use_parallel_residual": parallel}


def _nemotron(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; files without scaling say so, and have the epsilon under two keys."""
    return {
        "rope.scaling.type": "none",
        **positions(config, folder),
        "vocab_size": config.integer("vocab_size"),
        "rope.dimension_count": _rotated(config),
        "attention.layer_norm_rms_epsilon": config.number("norm_eps", at_least=0),
    }


_NEMOTRON_NORMS = tuple(
    Tensors(rf"{name}\.{end}", f"{target}.{end}", PLUS_ONE if end == "weight" else None)
    for name, target in (
        ("norm", "output_norm"),
        (f"{LAYER}input_layernorm", r"blk.\1.attn_norm"),
        (f"{LAYER}post_attention_layernorm", r"blk.\1.ffn_norm"),
    )
    for end in ("weight", "bias")
)


def _jais2(config: Values, folder: Folder) -> dict[str, Any]:
    return positions(config, folder) | {"rope.dimension_count": head_dim(config)}


# -- joined queries, keys and values ---------------------------------------------------------------


def _heads(config: Values) -> int:
    return first_integer(config, _OF_HEADS)


def _joined(values: Array, config: Values) -> Array:
    """All queries, then all keys, then all values, of rows in which those of each head lie together."""
    return _in_groups(values, _heads(config), 1)


def _falcon_groups(config: Values) -> int:
    """The number of heads of keys, each with its queries."""
    one = not config.boolean("new_decoder_architecture") and config.boolean("multi_query")
    return 1 if one else first_integer(config, "num_kv_heads|n_head_kv", 1)


def _of_falcon(values: Array, config: Values) -> Array:
    """The same for rows in which groups of queries have one key and one value."""
    n, groups = _heads(config), _falcon_groups(config)
    return _in_groups(values, groups, n // groups)


def _in_groups(values: Array, groups: int, queries: int) -> Array:
    rest = values.shape[1:]
    heads = in_heads(values, groups * (queries + 2))
    parts = heads.reshape(groups, queries + 2, -1, *rest)
    return np.concatenate([part.reshape(-1, *rest) for part in (parts[:, :-2], parts[:, -2], parts[:, -1])])


_JOINED = Change(_joined)


def _gpt_neox(config: Values, folder: Folder) -> dict[str, Any]:
    return {
        **rope.base(config),
        "rope.dimension_count": _rotated(config),
        "use_parallel_residual": config.boolean("use_parallel_residual"),
    }


def _bloom(config: Values, folder: Folder) -> dict[str, Any]:
    width, heads = first_integer(config, _OF_WIDTH), _heads(config)
    context = config.integer("seq_length", width)
    return {"context_length": context, "feed_forward_length": 4 * width, "attention.head_count_kv": heads}


def _falcon(config: Values, folder: Folder) -> dict[str, Any]:
    return {
        **rope.base(config),
        "context_length": 2048,
        "tensor_data_layout": "jploski",
        "feed_forward_length": 4 * config.integer("hidden_size"),
        "attention.head_count_kv": _falcon_groups(config),
    }


def _bigcode(config: Values, folder: Folder) -> dict[str, Any]:
    if not config.boolean("multi_query"):
        raise config.refused("multi_query", "true: files have one head of keys and values")
    return {"feed_forward_length": 4 * config.integer("n_embd"), "attention.head_count_kv": 1}


def _mpt(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of MPT, whose settings of attention stand in an object of their own."""
    width, attention = config.integer("d_model"), config.inner("attn_config")
    attention.text("attn_type", "multihead_attention", one_of=("multihead_attention",))
    for name, wanted in {"alibi": True, "prefix_lm": False, "qk_ln": False}.items():
        if attention.boolean(name, wanted) is not wanted:
            raise attention.refused(name, f"{str(wanted).lower()}: mpt models in GGUF files have nothing else")
    for values, name in ((attention, "softmax_scale"), (config, "logit_scale")):
        if name in values:
            raise values.refused(name, "null: GGUF files of these models have no key for it")
    clamp = {"attention.clamp_kqv": attention.number("clip_qkv", at_least=0)} if "clip_qkv" in attention else {}
    return {
        **clamp,
        "feed_forward_length": config.integer("expansion_ratio") * width,
        "attention.layer_norm_epsilon": config.number("layer_norm_epsilon", at_least=0),
        "attention.max_alibi_bias": attention.number("alibi_bias_max", 8.0, at_least=0),
    }


_BLOCK = r"h\.(\d+)\."
_ENDS = (
    Tensors(r"(?:word_embeddings|wte)\.weight", "token_embd.weight"),
    Tensors(r"wpe\.weight", "position_embd.weight"),
    Tensors(rf"word_embeddings_layernorm\.{ANY}", r"token_embd_norm.\1"),
    Tensors(rf"ln_f\.{ANY}", r"output_norm.\1"),
    Tensors(r"lm_head\.weight", "output.weight"),
)
_BLOOM_NAMES = {
    "self_attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}


def _blocks(names: dict[str, str]) -> tuple[Tensors, ...]:
    return tuple(layer(name, target, layer=_BLOCK) for name, target in names.items())


_TRANSFORMER = r"(?:transformer\.)?"

FAMILIES: dict[str, Family] = {
    "cohere": Family(
        "command-r", decoder(*_PARALLEL), INTEGERS, {**_EPS, "logit_scale": "logit_scale"}, _cohere, scalings=()
    ),
    "cohere2": Family(
        "cohere2",
        decoder(*_PARALLEL),
        {**INTEGERS, "sliding_window": "attention.sliding_window"},
        {**_EPS, "logit_scale": "logit_scale"},
        _cohere2,
        scalings=(),
    ),
    "phi": Family(
        "phi2",
        (
            Tensors(r"lm_head\.bias", "output.bias"),
            *decoder(*ATTENTION[:3], NORMS[0]),
            FINAL_NORM,
            *layers({"self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}),
        ),
        INTEGERS,
        _EPS,
        _phi,
    ),
    "stablelm": Family("stablelm", decoder(*ATTENTION, *MLP, *NORMS), INTEGERS, _EPS, _stablelm),
    "starcoder2": Family(
        "starcoder2",
        decoder(*ATTENTION, *NORMS, *layers({"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"})),
        INTEGERS,
        {"norm_epsilon|layer_norm_epsilon": "attention.layer_norm_epsilon"},  # published folders have both
        lambda config, folder: positions(config, folder) | one_window(config),
    ),
    "nemotron": Family(
        "nemotron",
        (decoder()[0], decoder()[-1], *ATTENTION, *MLP[1:], *_NEMOTRON_NORMS),
        INTEGERS,
        {"norm_eps": "attention.layer_norm_epsilon"},
        _nemotron,
        special={"pad": 0, "unk": 1},
        scalings=("linear",),
    ),
    "jais2": Family("jais2", decoder(*ATTENTION, *MLP[1:], *NORMS), INTEGERS, _EPS, _jais2),
    "gpt_neox": Family(
        "gptneox",
        (
            Tensors(r"embed_in\.weight", "token_embd.weight"),
            Tensors(r"embed_out\.weight", "output.weight"),
            Tensors(rf"final_layer_norm\.{ANY}", r"output_norm.\1"),
            layer("attention.query_key_value", "attn_qkv", _JOINED),
            *layers({"attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down"}),
            *NORMS,
        ),
        {name: key for name, key in INTEGERS.items() if not key.endswith("_kv")},
        _EPS,
        _gpt_neox,
        prefix=r"(?:gpt_neox\.)?",
        unused=r"layers\.\d+\.attention\.(?:masked_bias|bias|rotary_emb\.inv_freq)",
        head="embed_out.weight",
    ),
    "bloom": Family(
        "bloom",
        (
            *_ENDS,
            layer("self_attention.query_key_value", "attn_qkv", _JOINED, _BLOCK),
            *_blocks({"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", **_BLOOM_NAMES}),
        ),
        {_OF_WIDTH: "embedding_length", "num_hidden_layers|n_layer": "block_count", _OF_HEADS: "attention.head_count"},
        _EPS,
        _bloom,
        prefix=_TRANSFORMER,
        scalings=(),
    ),
    "falcon": Family(
        "falcon",
        (
            *_ENDS,
            layer("self_attention.query_key_value", "attn_qkv", Change(_of_falcon), _BLOCK),
            *_blocks({"input_layernorm": "attn_norm", "ln_mlp": "attn_norm", "ln_attn": "attn_norm_2", **_BLOOM_NAMES}),
        ),
        {_OF_WIDTH: "embedding_length", "n_layer|num_hidden_layers": "block_count", _OF_HEADS: "attention.head_count"},
        _EPS,
        _falcon,
        prefix=_TRANSFORMER,
    ),
    "mpt": Family(
        "mpt",
        (
            Tensors(r"wte\.weight", "token_embd.weight"),
            Tensors(rf"norm_f\.{ANY}", r"output_norm.\1"),
            Tensors(r"lm_head\.weight", "output.weight"),
            *(
                layer(name, target, layer=r"blocks\.(\d+)\.")
                for name, target in {
                    "norm_1": "attn_norm",
                    "attn.Wqkv": "attn_qkv",
                    "attn.out_proj": "attn_output",
                    "norm_2": "ffn_norm",
                    "ffn.up_proj": "ffn_up",
                    "ffn.down_proj": "ffn_down",
                }.items()
            ),
        ),
        {
            "max_seq_len": "context_length",
            "d_model": "embedding_length",
            "n_layers": "block_count",
            "n_heads": "attention.head_count",
        },
        more=_mpt,
        prefix=_TRANSFORMER,
        scalings=(),
    ),
    "gpt_bigcode": Family(
        "starcoder",
        (
            *_ENDS,
            *_blocks(
                {
                    "attn.c_attn": "attn_qkv",
                    "attn.c_proj": "attn_output",
                    "mlp.c_fc": "ffn_up",
                    "mlp.c_proj": "ffn_down",
                    "ln_1": "attn_norm",
                    "ln_2": "ffn_norm",
                }
            ),
        ),
        {
            "n_positions": "context_length",
            "n_embd": "embedding_length",
            "n_layer": "block_count",
            "n_head": "attention.head_count",
        },
        _EPS,
        _bigcode,
        prefix=_TRANSFORMER,
        unused=r"h\.\d+\.attn\.(?:masked_)?bias",
        scalings=(),
    ),
}
