"""BERT, and encoders with norms after attention and network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ggplug_models.architectures.bert import ACTIVATIONS
from ggplug_models.converting.family import Family, Tensors, apart
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import ANY, INTEGERS, layer, layers
from ggplug_models.embedding.pooling import Pooling
from ggplug_models.metadata.values import Values

_INTEGERS = {key: to for key, to in INTEGERS.items() if not to.endswith("_kv")}
_EPSILON = {"layer_norm_eps": "attention.layer_norm_epsilon"}
_TYPES = "tokenizer.ggml.token_type_count"
_PAIRS = r"encoder\.layer\.(\d+)\."
_JOINED = r"encoder\.layers\.(\d+)\."


def _rows(block: str, names: Mapping[str, str], norm: str) -> tuple[Tensors, ...]:
    """``block``: the pattern of a block.  ``names``: of its tensors.  ``norm``: the name of the one of embeddings."""
    return (
        Tensors(r"embeddings\.word_embeddings\.weight", "token_embd.weight"),
        Tensors(r"embeddings\.token_type_embeddings\.weight", "token_types.weight"),
        Tensors(rf"{norm}\.{ANY}", r"token_embd_norm.\1"),
        *layers(names, block=block),
    )


def _bert(config: Values, folder: Folder) -> dict[str, Any]:
    config.text("position_embedding_type", "absolute", one_of=("absolute",))
    return {
        "attention.causal": False,
        "hidden_activation": config.text("hidden_act", one_of=ACTIVATIONS),
        "pooling_type": Pooling.MEAN,
    }


def _jina2(config: Values, folder: Folder) -> dict[str, Any]:
    config.text("position_embedding_type", one_of=("alibi",))
    config.text("feed_forward_type", "geglu", one_of=("geglu",))
    return {"attention.causal": False}


def _types(number: int) -> Any:
    """The number of types of tokens, if the settings do not say it."""
    return lambda found, config, folder: {_TYPES: config.integer("type_vocab_size", number)}


def _jina3_names(name: str, config: Values) -> str:
    """The names without those of the modules in which adapters lie."""
    if "lora_adaptations" not in config:
        raise config.refused("lora_adaptations", "an array: of this model type, jina-embeddings-v3 alone is supported")
    return re.sub(r"\.parametrizations\.(weight)(?:\.original)?", r".\1", name)


def _jina3(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; positions begin after the padding token, so files have fewer.  Adapters are not written."""
    config.text("position_embedding_type", one_of=("rotary",))
    return {
        "context_length": config.integer("max_position_embeddings")
        - 1
        - config.integer("pad_token_id", -1, at_least=0),
        "rope.freq_base": config.number("rotary_emb_base", 10000.0, at_least=0),
        "attention.causal": False,
    }


_TRAINED = {8192: 2048, 2048: 512}
"""The context lengths of nomic-embed in training, by those of the settings."""


def _nomic(config: Values, folder: Folder) -> dict[str, Any]:
    length = config.integer("n_positions")
    if length not in _TRAINED:
        raise config.refused("n_positions", f"one of {', '.join(map(str, _TRAINED))}")
    found: dict[str, Any] = {
        "context_length": _TRAINED[length],
        "rope.freq_base": config.number("rotary_emb_base", 10000.0, at_least=0),
        "attention.causal": False,
    }
    if _has_experts(config):
        found |= {
            "moe_every_n_layers": config.integer("moe_every_n_layers"),
            "expert_count": config.integer("num_experts"),
            "expert_used_count": config.integer("moe_top_k"),
        }
    return found


def _has_experts(config: Values) -> bool:
    return config.integer("moe_every_n_layers", 0, at_least=0) > 0


_NOMIC_NAMES = {
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "norm1": "attn_output_norm",
    "norm2": "layer_output_norm",
    "mlp.fc2": "ffn_down",
}
_NOMIC = Family(
    "nomic-bert",
    _rows(_JOINED, {**_NOMIC_NAMES, "mlp.fc11": "ffn_up", "mlp.fc12": "ffn_gate"}, "emb_ln"),
    {
        "n_embd": "embedding_length",
        "n_layer": "block_count",
        "n_inner": "feed_forward_length",
        "n_head": "attention.head_count",
    },
    {"layer_norm_epsilon": "attention.layer_norm_epsilon"},
    _nomic,
    unused=r"pooler\..*",
    vocabularies=("WordPiece", "Unigram"),
    vocabulary=_types(1),
    head=None,
    scalings=(),
)
_JINA2 = Family(
    "jina-bert-v2",
    _rows(
        _PAIRS,
        {
            **{f"attention.self.{name}": f"attn_{name[0]}" for name in ("query", "key", "value")},
            "attention.self.layer_norm_q": "attn_q_norm",
            "attention.self.layer_norm_k": "attn_k_norm",
            "attention.output.dense": "attn_output",
            "attention.output.LayerNorm": "attn_output_norm",
            "layer_norm_1": "attn_norm_2",
            "mlp.gated_layers": "ffn_up",
            "mlp.up_gated_layer": "ffn_up",
            "mlp.wo": "ffn_down",
            "mlp.down_layer": "ffn_down",
            "mlp.layernorm": "layer_output_norm",
            "layer_norm_2": "layer_output_norm",
        },
        r"embeddings\.LayerNorm",
    ),
    _INTEGERS,
    _EPSILON,
    _jina2,
    prefix=r"(?:bert\.)?",
    unused=r"pooler\..*|cls\..*",
    vocabularies=("WordPiece", "BPE"),
    vocabulary=_types(2),
    head=None,
    scalings=(),
)

FAMILIES: dict[str, Family] = {
    "bert": Family(
        "bert",
        (
            Tensors(r"embeddings\.position_embeddings\.weight", "position_embd.weight"),
            *_rows(
                _PAIRS,
                {
                    **{f"attention.self.{name}": f"attn_{name[0]}" for name in ("query", "key", "value")},
                    "attention.output.dense": "attn_output",
                    "attention.output.LayerNorm": "attn_output_norm",
                    "intermediate.dense": "ffn_up",
                    "output.dense": "ffn_down",
                    "output.LayerNorm": "layer_output_norm",
                },
                r"embeddings\.LayerNorm",
            ),
        ),
        _INTEGERS,
        _EPSILON,
        _bert,
        prefix=r"(?:bert\.)?",
        unused=r"embeddings\.position_ids|pooler\..*|cls\..*",
        vocabularies=("WordPiece",),
        head=None,
        scalings=(),
        variants=((lambda config: any("JinaBert" in name for name in config.texts("architectures", [])), _JINA2),),
    ),
    "nomic_bert": replace(
        _NOMIC,
        variants=(
            (
                _has_experts,
                replace(
                    _NOMIC,
                    architecture="nomic-bert-moe",
                    tensors=(
                        *_rows(_JOINED, {**_NOMIC_NAMES, "mlp.fc1": "ffn_up"}, "emb_ln"),
                        layer("mlp.router.layer", "ffn_gate_inp", layer=_JOINED),
                        Tensors(_JOINED + r"mlp\.experts\.mlp\.w1", r"blk.\1.ffn_up_exps.weight", apart("num_experts")),
                        Tensors(
                            _JOINED + r"mlp\.experts\.mlp\.w2",
                            r"blk.\1.ffn_down_exps.weight",
                            apart("num_experts", turned=True),
                        ),
                    ),
                    unused=r"pooler\..*|.*\.mlp\.experts\.bias",
                ),
            ),
        ),
    ),
    "xlm-roberta": Family(
        "jina-bert-v3",
        _rows(
            _JOINED,
            {
                "mixer.Wqkv": "attn_qkv",
                "mixer.out_proj": "attn_output",
                "norm1": "attn_output_norm",
                "norm2": "layer_output_norm",
                "mlp.fc1": "ffn_up",
                "mlp.fc2": "ffn_down",
            },
            "emb_ln",
        ),
        {key: to for key, to in _INTEGERS.items() if to != "context_length"},
        _EPSILON,
        _jina3,
        prefix=r"(?:roberta\.)?",
        unused=r"pooler\..*|.*\.0\.lora_[AB]",
        vocabularies=("Unigram",),
        vocabulary=_types(1),
        head=None,
        names=_jina3_names,
        scalings=(),
    ),
    "neobert": Family(
        "neo-bert",
        (
            Tensors(r"encoder\.weight", "token_embd.weight"),
            Tensors(r"layer_norm\.weight", "enc.output_norm.weight"),
            *layers(
                {
                    "qkv": "attn_qkv",
                    "wo": "attn_output",
                    "attention_norm": "attn_norm",
                    "ffn_norm": "ffn_norm",
                    "ffn.w12": "ffn_up",
                    "ffn.w3": "ffn_down",
                },
                block=r"transformer_encoder\.(\d+)\.",
            ),
        ),
        {
            **{key: to for key, to in _INTEGERS.items() if to not in ("context_length", "feed_forward_length")},
            "max_length": "context_length",
        },
        {"norm_eps": "attention.layer_norm_rms_epsilon"},
        lambda config, folder: {
            "feed_forward_length": int(2 * config.integer("intermediate_size") / 3),
            "rope.freq_base": 10000.0,
            "rope.scaling.type": "none",
            "attention.causal": False,
            "pooling_type": Pooling.CLS,
        },
        unused=r"decoder\..*",
        vocabularies=("WordPiece",),
        vocabulary=_types(1),
        head=None,
        scalings=(),
    ),
}
