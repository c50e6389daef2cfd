"""Decoders of attention and one MLP."""

from __future__ import annotations

from typing import Any

from ggplug_models.converting import rope
from ggplug_models.converting.family import TRANSPOSED, Family, Tensors
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import (
    ANY,
    ATTENTION,
    ATTENTION_AFTER,
    HEAD_NORMS,
    INTEGERS,
    MLP,
    NORMS,
    PAIRED_ATTENTION,
    RMS,
    decoder,
    layer,
    llama_keys,
    positions,
    windows,
)
from ggplug_models.metadata.values import Values


def _phi3(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of Phi 3; a sliding window of 0 distinguishes Phi 4."""
    settings = rope.settings(config)
    return rope.longrope_keys(config) | {
        "attention.head_count_kv": config.integer("num_key_value_heads", config.integer("num_attention_heads")),
        "rope.scaling.original_context_length": settings.integer(
            "original_max_position_embeddings", config.integer("max_position_embeddings")
        ),
        "rope.dimension_count": rope.rotated(config),
        "rope.freq_base": settings.number("rope_theta", 10000.0, at_least=0),
        "attention.sliding_window": config.integer("sliding_window", 0),
    }


def _gpt2(config: Values, folder: Folder) -> dict[str, Any]:
    return {"feed_forward_length": config.integer("n_inner", 4 * config.integer("n_embd"))}


def _exaone4(config: Values, folder: Folder) -> dict[str, Any]:
    return windows(config, folder) | {"vocab_size": config.integer("vocab_size")}


FAMILIES: dict[str, Family] = {
    "llama": Family(
        "llama",
        decoder(*PAIRED_ATTENTION, *MLP, *NORMS),
        INTEGERS,
        RMS,
        llama_keys,
        rope.llama3_factors,
        unused=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    ),
    "qwen2": Family("qwen2", decoder(*ATTENTION, *MLP, *NORMS), INTEGERS, RMS, positions),
    "qwen3": Family("qwen3", decoder(*ATTENTION, *HEAD_NORMS, *MLP, *NORMS), INTEGERS, RMS, positions),
    "phi3": Family(
        "phi3",
        decoder(
            layer("self_attn.qkv_proj", "attn_qkv"),
            layer("self_attn.o_proj", "attn_output"),
            layer("mlp.gate_up_proj", "ffn_up"),
            layer("mlp.down_proj", "ffn_down"),
            *NORMS,
        ),
        INTEGERS,
        RMS,
        _phi3,
        rope.longrope_factors,
    ),
    "gpt2": Family(
        "gpt2",
        (
            Tensors(r"wte\.weight", "token_embd.weight"),
            Tensors(r"wpe\.weight", "position_embd.weight"),
            Tensors(rf"ln_f\.{ANY}", r"output_norm.\1"),
            Tensors(r"lm_head\.weight", "output.weight"),
            *(
                Tensors(rf"h\.(\d+)\.{name}\.{end}", rf"blk.\1.{target}.{end}", TRANSPOSED if end == "weight" else None)
                for name, target in (
                    (r"attn\.c_attn", "attn_qkv"),
                    (r"attn\.c_proj", "attn_output"),
                    (r"mlp\.c_fc", "ffn_up"),
                    (r"mlp\.c_proj", "ffn_down"),
                )
                for end in ("weight", "bias")
            ),
            layer("ln_1", "attn_norm", layer=r"h\.(\d+)\."),
            layer("ln_2", "ffn_norm", layer=r"h\.(\d+)\."),
        ),
        {
            "n_ctx|n_positions": "context_length",
            "n_embd": "embedding_length",
            "n_layer": "block_count",
            "n_head": "attention.head_count",
        },
        {"layer_norm_epsilon": "attention.layer_norm_epsilon"},
        _gpt2,
        prefix=r"(?:transformer\.)?",
        unused=r"h\.\d+\.attn\.(masked_)?bias",
    ),
}
FAMILIES |= {
    "mistral": FAMILIES["llama"],
    "smollm3": Family("smollm3", FAMILIES["llama"].tensors, INTEGERS, RMS, llama_keys, rope.llama3_factors),
    "ernie4_5": Family("ernie4_5", decoder(*ATTENTION, *MLP, *NORMS), INTEGERS, RMS, positions),
    "seed_oss": Family("seed_oss", decoder(*ATTENTION, *MLP, NORMS[0], ATTENTION_AFTER[0]), INTEGERS, RMS, positions),
    "exaone4": Family(
        "exaone4",
        decoder(*ATTENTION, *HEAD_NORMS, *MLP, *ATTENTION_AFTER),
        INTEGERS,
        RMS,
        _exaone4,
        rope.llama3_factors,
    ),
    "olmo2": Family("olmo2", decoder(*ATTENTION, *HEAD_NORMS, *MLP, *ATTENTION_AFTER), INTEGERS, RMS, windows),
}
FAMILIES["olmo3"] = FAMILIES["olmo2"]
