"""The same of encoders."""

from __future__ import annotations

from typing import Any

from oracles.folders.by_hand import LLAMA, NO_SHAPE, both, by_hand
from oracles.folders.recording import N_VOCAB, Tiny, word_pieces
from oracles.folders.vocabularies import jina_code_tokens, listed_unigrams, pooled_pieces


def of_embeddings(vocabulary: int, types: int, norm: str) -> dict[str, list[int]]:
    """The shapes of an encoder's embeddings.  ``norm``: the name of theirs."""
    return {
        "embeddings.word_embeddings.weight": [vocabulary, 32],
        "embeddings.token_type_embeddings.weight": [types, 32],
        **both(norm, [32]),
    }


def adapted(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """The names of modules with adapters, which lie next to the weights."""
    found: dict[str, list[int]] = {}
    for name, shape in shapes.items():
        module, _, kind = name.rpartition(".")
        if len(shape) == 2 and kind == "weight":
            inner = f"{module}.parametrizations.weight"
            found |= {f"{inner}.original": shape, f"{inner}.0.lora_A": [2, 4, shape[1]]}
            found[f"{inner}.0.lora_B"] = [2, shape[0], 4]
        else:
            found[name] = shape
    return found


def jina2(network: dict[str, list[int]]) -> dict[str, list[int]]:
    block: dict[str, list[int]] = {**both("attention.output.LayerNorm", [32]), **network}
    for name in ("self.query", "self.key", "self.value", "output.dense"):
        block |= both(f"attention.{name}", [32, 32])
    return {f"encoder.layer.{n}.{name}": shape for n in range(2) for name, shape in block.items()}


JINA2: dict[str, Any] = {
    "rms_norm_eps": None,
    "rope_theta": None,
    "feed_forward_type": "geglu",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "num_key_value_heads": None,
    "position_embedding_type": "alibi",
    "tie_word_embeddings": None,
    "type_vocab_size": 2,
    "vocab_size": 120,
}


NOMIC: dict[str, Any] = {
    **NO_SHAPE,
    "rms_norm_eps": None,
    "rope_theta": None,
    "tie_word_embeddings": None,
    "activation_function": "swiglu",
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    **dict.fromkeys(("mlp_fc1_bias", "mlp_fc2_bias", "qkv_proj_bias", "prenorm", "parallel_block"), False),
    "n_embd": 32,
    "n_head": 4,
    "n_inner": 48,
    "n_layer": 2,
    "n_positions": 8192,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "type_vocab_size": 2,
    "use_rms_norm": False,
    "vocab_size": 120,
}


FOLDERS: dict[str, Tiny] = {
    "llama_bidirec": by_hand(
        "llama_bidirec",
        LLAMA,
        {"pooling": "avg"},
        tokens=pooled_pieces,
        renamed={"^model\\.": "", "^lm_head": None},
    ),
    "jina-bert-v3": by_hand(
        "xlm-roberta",
        adapted(
            of_embeddings(62, 1, "emb_ln")
            | {
                f"encoder.layers.{n}.{name}": shape
                for n in range(2)
                for name, shape in {
                    **both("mixer.Wqkv", [96, 32]),
                    **both("mixer.out_proj", [32, 32]),
                    **both("mlp.fc1", [48, 32]),
                    **both("mlp.fc2", [32, 48]),
                    **both("norm1", [32]),
                    **both("norm2", [32]),
                }.items()
            }
        ),
        {
            "rms_norm_eps": None,
            "rope_theta": None,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            "lora_adaptations": ["retrieval", "separation"],
            "lora_alpha": 1,
            "max_position_embeddings": 130,
            "num_key_value_heads": None,
            "pad_token_id": 1,
            "position_embedding_type": "rotary",
            "rotary_emb_base": 20000.0,
            "tie_word_embeddings": None,
            "type_vocab_size": 1,
            "vocab_size": 62,
        },
        tokens=listed_unigrams,
        renamed={"^": "roberta."},
    ),
    "nomic-bert": by_hand(
        "nomic_bert",
        of_embeddings(120, 2, "emb_ln")
        | {
            f"encoder.layers.{n}.{name}": shape
            for n in range(2)
            for name, shape in {
                "attn.Wqkv.weight": [96, 32],
                "attn.out_proj.weight": [32, 32],
                **{f"mlp.{name}.weight": [48, 32] for name in ("fc11", "fc12")},
                "mlp.fc2.weight": [32, 48],
                **both("norm1", [32]),
                **both("norm2", [32]),
            }.items()
        },
        NOMIC,
        tokens=word_pieces,
        null=("rotary_emb_scale_base",),
    ),
    "nomic-bert-moe": by_hand(
        "nomic_bert",
        of_embeddings(62, 1, "emb_ln")
        | {
            f"encoder.layers.{n}.{name}": shape
            for n in range(2)
            for name, shape in {
                **both("attn.Wqkv", [96, 32]),
                **both("attn.out_proj", [32, 32]),
                **(
                    {
                        "mlp.router.layer.weight": [4, 32],
                        **{f"mlp.experts.mlp.w{which}": [192, 32] for which in (1, 2)},
                        "mlp.experts.bias": [32],
                    }
                    if n
                    else {**both("mlp.fc1", [48, 32]), **both("mlp.fc2", [32, 48])}
                ),
                **both("norm1", [32]),
                **both("norm2", [32]),
            }.items()
        },
        {
            **NOMIC,
            "activation_function": "gelu",
            "layer_norm_epsilon": 1e-5,
            **dict.fromkeys(("mlp_fc1_bias", "mlp_fc2_bias", "qkv_proj_bias"), True),
            "moe_every_n_layers": 2,
            "moe_normalize_expert_weights": False,
            "moe_top_k": 2,
            "n_positions": 2048,
            "num_experts": 4,
            "num_shared_experts": 0,
            "pad_token_id": 1,
            "rotary_emb_base": 10000,
            "type_vocab_size": 1,
            "vocab_size": 62,
        },
        tokens=listed_unigrams,
        null=("rotary_emb_scale_base",),
    ),
    "jina-bert-v2": by_hand(
        "bert",
        of_embeddings(120, 2, "embeddings.LayerNorm")
        | jina2({"mlp.gated_layers.weight": [96, 32], **both("mlp.wo", [32, 48]), **both("mlp.layernorm", [32])})
        | both("pooler.dense", [32, 32]),
        JINA2,
        tokens=word_pieces,
    ),
    "jina-bert-v2-code": by_hand(
        "bert",
        of_embeddings(N_VOCAB, 2, "embeddings.LayerNorm")
        | jina2(
            {
                **both("attention.self.layer_norm_q", [32]),
                **both("attention.self.layer_norm_k", [32]),
                "mlp.up_gated_layer.weight": [96, 32],
                **both("mlp.down_layer", [32, 48]),
                **both("layer_norm_1", [32]),
                **both("layer_norm_2", [32]),
            }
        ),
        {**JINA2, "vocab_size": N_VOCAB},
        tokens=jina_code_tokens,
        pre="gpt-2",
    ),
    "neo-bert": by_hand(
        "neobert",
        {
            "model.encoder.weight": [120, 32],
            "model.layer_norm.weight": [32],
            **both("decoder", [120, 32]),
            **{
                f"model.transformer_encoder.{n}.{name}.weight": shape
                for n in range(2)
                for name, shape in {
                    "qkv": [96, 32],
                    "wo": [32, 32],
                    "ffn.w12": [64, 32],
                    "ffn.w3": [32, 32],
                    "attention_norm": [32],
                    "ffn_norm": [32],
                }.items()
            },
        },
        {
            "rms_norm_eps": None,
            "rope_theta": None,
            "max_length": 128,
            "max_position_embeddings": None,
            "norm_eps": 1e-5,
            "num_key_value_heads": None,
            "tie_word_embeddings": None,
            "vocab_size": 120,
        },
        tokens=word_pieces,
    ),
}
