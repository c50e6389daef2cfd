"""Encoders, and encoder-decoders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ggplug_models.architectures.bert import ACTIVATIONS
from ggplug_models.converting.family import Family, Tensors
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import ANY, WIDTHS, layer
from ggplug_models.embedding.pooling import Pooling
from ggplug_models.metadata.values import Values


def _bert(config: Values, folder: Folder) -> Mapping[str, Any]:
    config.text("position_embedding_type", "absolute", one_of=("absolute",))
    return {
        "attention.causal": False,
        "hidden_activation": config.text("hidden_act", one_of=ACTIVATIONS),
        "pooling_type": _pooling(folder),
    }


def _pooling(folder: Folder) -> Pooling:
    modes = folder.optional_json("1_Pooling/config.json")
    if modes is None or modes.boolean("pooling_mode_mean_tokens", False):
        return Pooling.MEAN
    if modes.boolean("pooling_mode_cls_token", False):
        return Pooling.CLS
    raise modes.refused(
        "pooling_mode_mean_tokens", "true, or else pooling_mode_cls_token: no other pooling is supported"
    )


def _bert_layer(name: str, target: str) -> Tensors:
    return layer(name, target, layer=r"encoder\.layer\.(\d+)\.")


def _t5(config: Values, folder: Folder) -> dict[str, Any]:
    eps = config.number("layer_norm_epsilon", at_least=0)
    return {
        "context_length": config.integer("n_positions", 512),
        "decoder_start_token_id": config.integer("decoder_start_token_id", at_least=0),
        "attention.layer_norm_rms_epsilon": eps,
        **dict.fromkeys(WIDTHS, config.integer("d_kv")),
    }


def _t5_layer(part: str, number: int, names: Mapping[str, str]) -> Iterator[Tensors]:
    """The rows of one of the layers in each block of the encoder or the decoder."""
    for name, target in names.items():
        block = rf"{part}oder\.block\.(\d+)\.layer\.{number}\."
        yield Tensors(rf"{block}{re.escape(name)}\.weight", rf"{part}.blk.\1.{target}.weight")


def _t5_attention(name: str, target: str) -> dict[str, str]:
    names = {f"{name}.{each}": f"{target}_{each}" for each in "qkvo"}
    return {**names, f"{name}.relative_attention_bias": f"{target}_rel_b", "layer_norm": f"{target}_norm"}


_T5_NETWORK = {
    "DenseReluDense.wi": "ffn_up",
    "DenseReluDense.wi_0": "ffn_gate",
    "DenseReluDense.wi_1": "ffn_up",
    "DenseReluDense.wo": "ffn_down",
    "layer_norm": "ffn_norm",
}
_T5 = Family(
    "t5",
    (
        Tensors(r"shared\.weight", "token_embd.weight"),
        Tensors(r"lm_head\.weight", "output.weight"),
        Tensors(r"(enc|dec)oder\.final_layer_norm\.weight", r"\1.output_norm.weight"),
        *_t5_layer("enc", 0, _t5_attention("SelfAttention", "attn")),
        *_t5_layer("enc", 1, _T5_NETWORK),
        *_t5_layer("dec", 0, _t5_attention("SelfAttention", "attn")),
        *_t5_layer("dec", 1, _t5_attention("EncDecAttention", "cross_attn")),
        *_t5_layer("dec", 2, _T5_NETWORK),
    ),
    {
        "d_model": "embedding_length",
        "d_ff": "feed_forward_length",
        "num_layers": "block_count",
        "num_decoder_layers?": "decoder_block_count",
        "num_heads": "attention.head_count",
        "relative_attention_num_buckets": "attention.relative_buckets_count",
    },
    {"layer_norm_epsilon": "attention.layer_norm_epsilon"},
    _t5,
    unused=r"(?:en|de)coder\.embed_tokens\.weight",
    prefix="",
    vocabularies=("Unigram",),
)
FAMILIES: dict[str, Family] = {
    "bert": Family(
        "bert",
        (
            Tensors(r"embeddings\.word_embeddings\.weight", "token_embd.weight"),
            Tensors(r"embeddings\.token_type_embeddings\.weight", "token_types.weight"),
            Tensors(r"embeddings\.position_embeddings\.weight", "position_embd.weight"),
            Tensors(rf"embeddings\.LayerNorm\.{ANY}", r"token_embd_norm.\1"),
            _bert_layer("attention.self.query", "attn_q"),
            _bert_layer("attention.self.key", "attn_k"),
            _bert_layer("attention.self.value", "attn_v"),
            _bert_layer("attention.output.dense", "attn_output"),
            _bert_layer("attention.output.LayerNorm", "attn_output_norm"),
            _bert_layer("intermediate.dense", "ffn_up"),
            _bert_layer("output.dense", "ffn_down"),
            _bert_layer("output.LayerNorm", "layer_output_norm"),
        ),
        {
            "max_position_embeddings": "context_length",
            "hidden_size": "embedding_length",
            "num_hidden_layers": "block_count",
            "intermediate_size": "feed_forward_length",
            "num_attention_heads": "attention.head_count",
        },
        {"layer_norm_eps": "attention.layer_norm_epsilon"},
        _bert,
        prefix=r"(?:bert\.)?",
        unused=r"embeddings\.position_ids|pooler\..*|cls\..*",
        vocabularies=("WordPiece",),
        head=None,
    ),
    **dict.fromkeys(("t5", "mt5", "umt5"), _T5),
}
