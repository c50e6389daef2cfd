"""Tiny checkpoints of the families that ``oracles.folders`` makes of the recorded models, and of others by hand."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from oracles.families import FAMILIES
from oracles.folders import N_VOCAB, Tiny, byte_pairs, qwen_tokens, sentence_pieces


def recorded(name: str) -> Any:
    """The recorded model with the vocabulary of these folders; its weights are a formula's."""
    network: Any = FAMILIES[name].make(1)
    network = network.network
    config = network.config
    for each in (config, config.get_text_config()):
        each.vocab_size, each.bos_token_id, each.eos_token_id = N_VOCAB, 1, 2
        if hasattr(each, "vocab_size_per_layer_input"):
            each.vocab_size_per_layer_input = N_VOCAB - 16
    return type(network)(config)


def pieces(folder: Path) -> None:
    sentence_pieces(folder, {"add_bos_token": True, "add_eos_token": False})


def glm_tokens(folder: Path) -> None:
    special = ["<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|observation|>"]
    byte_pairs(folder, "llama-bpe", special, {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"})


def of(name: str, tokens: str = "qwen2", dtype: str = "BF16", **more: Any) -> Tiny:
    makers = {"qwen2": qwen_tokens, "glm4": glm_tokens, "default": pieces}
    return Tiny(partial(recorded, name), makers[tokens], dtype, pre=tokens, **more)


FOLDERS: dict[str, Tiny] = {
    "gemma3n": of("gemma3n", "default"),
    "llama4": of("llama4"),
    "glm4moe": of("glm4moe", "glm4"),
    "nemotron_h": of(
        "nemotron_h",
        changes={
            "hybrid_override_pattern": "M-*",
            "num_hidden_layers": 3,
            **dict.fromkeys(("layers_block_type", "num_experts_per_tok", "n_routed_experts", "n_group", "topk_group")),
        },
    ),
    "nemotron_h_moe": of("nemotron_h_moe"),
    "granitemoe": of("granitemoe-shared"),
    "granitehybrid-dense": of(
        "granitehybrid",
        changes={"layer_types": ["mamba", "attention"], "num_local_experts": 0, "num_experts_per_tok": 0},
        renamed={"block_sparse_moe": None},
    ),
    "granitehybrid-attention": of(
        "granitehybrid",
        changes={"layer_types": ["attention"] * 2, "num_local_experts": 0, "num_experts_per_tok": 0},
        renamed={"block_sparse_moe": None, r"layers\.0\.mamba": None},
        more=lambda shapes: {k.replace("rs.1", "rs.0"): v for k, v in shapes.items() if "rs.1.self_attn" in k},
    ),
    "lfm2": of("lfm2"),
    "lfm2moe": of("lfm2moe"),
    "jamba": of("jamba", "default"),
    "falcon-h1": of(
        "falcon-h1",
        changes={
            "attention_in_multiplier": 0.75,
            "attention_out_multiplier": 1.3,
            "embedding_multiplier": 1.7,
            "key_multiplier": 0.4,
            "lm_head_multiplier": 0.3,
            "mlp_multipliers": [0.9, 0.6],
            "ssm_in_multiplier": 1.1,
            "ssm_multipliers": [0.35, 0.25, 0.18, 0.5, 0.36],
            "ssm_out_multiplier": 0.23,
        },
    ),
    "mamba": of("mamba"),
    "mamba2": of("mamba2"),
    "minicpm3": of("minicpm3", "default"),
    "hunyuan-dense": of("hunyuan-dense"),
    "hunyuan-moe": of("hunyuan-moe"),
    "deepseek2": of("deepseek2"),
    "deepseek3": of("deepseek3"),
    "cohere2": of("cohere2", changes={"rotary_pct": 1.0}),
    "arcee": of("arcee"),
    "apertus": of("apertus"),
    "dots1": of("dots1"),
}
