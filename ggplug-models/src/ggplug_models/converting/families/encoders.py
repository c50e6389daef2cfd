"""Encoders with norms before attention and network, and encoder-decoders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ggplug_models.architectures.bert import GATES
from ggplug_models.converting import rope
from ggplug_models.converting.checkpoint import Stored
from ggplug_models.converting.family import Family, Tensors
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import (
    ANY,
    ATTENTION,
    INTEGERS,
    MLP,
    NORMS,
    PAIRED_ATTENTION,
    RMS,
    WIDTHS,
    decoder,
    layers,
    llama_keys,
    positions,
)
from ggplug_models.embedding.pooling import Pooling
from ggplug_models.metadata.values import Values


def _t5(config: Values, folder: Folder) -> dict[str, Any]:
    eps = config.number("layer_norm_epsilon", at_least=0)
    return {
        "context_length": config.integer("n_positions", 512),
        "decoder_start_token_id": config.integer("decoder_start_token_id", at_least=0),
        "attention.layer_norm_rms_epsilon": eps,
        **dict.fromkeys(WIDTHS, config.integer("d_kv")),
    }


def _scaled(weights: Mapping[str, Stored], config: Values) -> dict[str, Any]:
    """The key of what logits are multiplied by, unless that follows from whether there is an output matrix.

    mT5's are not scaled, and T5's as a setting says; UMT5's as in the first release of the models, without a setting.
    """
    kind, usual = config.text("model_type", "t5"), "lm_head.weight" not in weights
    said = config.boolean("scale_decoder_outputs", config.boolean("tie_word_embeddings", True))
    scaled = {"mt5": False, "umt5": usual}.get(kind, said)
    return {} if scaled == usual else {"t5.logit_scale": config.integer("d_model") ** -0.5 if scaled else 1.0}


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
_T5_FAMILY = Family(
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
    of_weights=_scaled,
    unused=r"(?:en|de)coder\.embed_tokens\.weight",
    prefix="",
    vocabularies=("Unigram",),
    scalings=(),
)


def _t5_encoder(config: Values, folder: Folder) -> dict[str, Any]:
    return {key: value for key, value in _t5(config, folder).items() if key != "decoder_start_token_id"}


_T5 = replace(
    _T5_FAMILY,
    variants=(
        (
            lambda config: _classes(config) in (["T5EncoderModel"], ["MT5EncoderModel"], ["UMT5EncoderModel"]),
            replace(
                _T5_FAMILY,
                architecture="t5encoder",
                integers={key: to for key, to in _T5_FAMILY.integers.items() if to != "decoder_block_count"},
                more=_t5_encoder,
            ),
        ),
    ),
)


def _classes(config: Values) -> list[str]:
    """The names of the classes of the model in transformers."""
    return config.texts("architectures", [])


_POOLED_CLASSIFIER = {"mean": Pooling.MEAN, "cls": Pooling.CLS}


def _modern_bert(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of ModernBERT, whose blocks have two bases of RoPE.  Files have the epsilon under two keys."""
    bases = {"rope.freq_base": "global_rope_theta", "rope.freq_base_swa": "local_rope_theta"}
    found: dict[str, Any] = {key: config.number(name, at_least=0) for key, name in bases.items() if name in config}
    if "global_attn_every_n_layers" in config:
        found["attention.sliding_window_pattern"] = config.integer("global_attn_every_n_layers")
    if "classifier_pooling" in config:
        kind = config.text("classifier_pooling", one_of=_POOLED_CLASSIFIER)
        found["classifier.pooling_type"] = _POOLED_CLASSIFIER[kind]
    if "hidden_activation" in config:
        found["hidden_activation"] = config.text("hidden_activation", one_of=GATES)
    return {
        **found,
        **rope.keys(config),
        "attention.causal": False,
        "attention.layer_norm_epsilon": config.number("norm_eps", at_least=0),
        "rope.scaling.type": "none",
        "vocab_size": config.integer("vocab_size"),
    }


def _modern_tokens(found: Mapping[str, Any], config: Values, folder: Folder) -> dict[str, Any]:
    """Texts begin and end with special tokens, unless the tokenizer says that they do not, or has no post-processor."""
    usual = "post_processor" in folder.json("tokenizer.json")
    keys = (f"tokenizer.ggml.add_{kind}_token" for kind in ("bos", "eos", "sep"))
    return {key: found.get(key, usual) for key in keys}


def _both_ways(config: Values, folder: Folder) -> dict[str, Any]:
    return {**positions(config, folder), "attention.causal": False, "rope.scaling.type": "none"}


_MODERN_BERT = Family(
    "modern-bert",
    (
        Tensors(r"embeddings\.tok_embeddings\.weight", "token_embd.weight"),
        Tensors(rf"embeddings\.norm\.{ANY}", r"token_embd_norm.\1"),
        Tensors(rf"final_norm\.{ANY}", r"output_norm.\1"),
        *layers(
            {
                "attn.Wqkv": "attn_qkv",
                "attn.Wo": "attn_output",
                "attn_norm": "attn_norm",
                "mlp.Wi": "ffn_up",
                "mlp.Wo": "ffn_down",
                "mlp_norm": "ffn_norm",
            }
        ),
    ),
    {
        **{key: to for key, to in INTEGERS.items() if not to.endswith("_kv")},
        "local_attention": "attention.sliding_window",
    },
    {"norm_eps": "attention.layer_norm_rms_epsilon"},
    _modern_bert,
    unused=r"decoder\..*|head\..*",
    vocabulary=_modern_tokens,
    head=None,
    scalings=(),
)


def _modern_classifier(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of ModernBERT with a classifier, and the labels of its results."""
    config.text("classifier_activation", "gelu", one_of=("gelu",))
    kind = config.text("classifier_pooling", "cls", one_of=_POOLED_CLASSIFIER)
    labels = config.inner("id2label", Values({"0": "LABEL_0", "1": "LABEL_1"}))
    return {
        **_modern_bert(config, folder),
        "pooling_type": Pooling.RANK,
        "classifier.pooling_type": _POOLED_CLASSIFIER[kind],
        "classifier.output_labels": [labels.text(str(number)) for number in range(len(labels.values))],
    }


_MODERN_CLASSIFIER = replace(
    _MODERN_BERT,
    tensors=(
        *_MODERN_BERT.tensors,
        Tensors(r"head\.dense\.(weight|bias)", r"cls.\1"),
        Tensors(r"head\.norm\.weight", "cls.norm.weight"),
        Tensors(r"classifier\.(weight|bias)", r"cls.output.\1"),
    ),
    more=_modern_classifier,
    unused=r"(?!)",
)


FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("t5", "mt5", "umt5"), _T5),
    "modernbert": replace(
        _MODERN_BERT,
        variants=((lambda config: _classes(config) == ["ModernBertForSequenceClassification"], _MODERN_CLASSIFIER),),
    ),
    "llama_bidirec": Family(
        "llama-embed",
        decoder(*PAIRED_ATTENTION, *MLP, *NORMS),
        INTEGERS,
        RMS,
        llama_keys,
        head=None,
        scalings=rope.LLAMA3,
    ),
    "eurobert": Family(
        "eurobert", decoder(*ATTENTION, *MLP, *NORMS), INTEGERS, RMS, _both_ways, head=None, scalings=()
    ),
}
