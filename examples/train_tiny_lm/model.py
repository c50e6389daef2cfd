"""The file of a small LLaMA with random weights, whose tokens are characters."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ggplug.gguf import GGUFWriter

CONTROLS = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
"""Tokens for what is no character of the vocabulary, which SentencePiece needs."""
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def write(path: Path, characters: str, *, n_embd: int = 192, n_layer: int = 4, n_ctx: int = 128, seed: int = 0) -> Path:
    """Writes the model with F16 matrices.  ``characters``: each becomes a token."""
    random, n_head, n_ff = np.random.default_rng(seed), n_embd // 32, n_embd * 8 // 3 // 32 * 32
    tokens = [*CONTROLS, *BYTES, *sorted(set(characters.replace(" ", "\u2581")))]
    with GGUFWriter(path, arch="llama") as writer:
        for key, value in {
            "general.name": "tiny docs",
            "llama.block_count": n_layer,
            "llama.context_length": n_ctx,
            "llama.embedding_length": n_embd,
            "llama.feed_forward_length": n_ff,
            "llama.attention.head_count": n_head,
            "llama.attention.head_count_kv": n_head,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.rope.dimension_count": 32,
            "llama.vocab_size": len(tokens),
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": np.zeros(len(tokens), np.float32),
            "tokenizer.ggml.token_type": np.array(
                [UNKNOWN, CONTROL, CONTROL] + [BYTE] * len(BYTES) + [NORMAL] * (len(tokens) - 3 - len(BYTES)), np.int32
            ),
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.add_bos_token": False,
            "tokenizer.ggml.add_space_prefix": False,
        }.items():
            writer.add(key, value)

        def matrix(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
            values = random.standard_normal((rows, columns)) * scale / columns**0.5
            writer.add_tensor(f"{name}.weight", values.astype(np.float16))

        def norm(name: str) -> None:
            writer.add_tensor(f"{name}.weight", np.ones(n_embd, np.float32))

        matrix("token_embd", len(tokens), n_embd)
        for block in (f"blk.{number}" for number in range(n_layer)):
            norm(f"{block}.attn_norm")
            for name in ("attn_q", "attn_k", "attn_v"):
                matrix(f"{block}.{name}", n_embd, n_embd)
            # What blocks add to the residual stream begins small.
            matrix(f"{block}.attn_output", n_embd, n_embd, (2 * n_layer) ** -0.5)
            norm(f"{block}.ffn_norm")
            matrix(f"{block}.ffn_gate", n_ff, n_embd)
            matrix(f"{block}.ffn_up", n_ff, n_embd)
            matrix(f"{block}.ffn_down", n_embd, n_ff, (2 * n_layer) ** -0.5)
        norm("output_norm")
        writer.write()
    return path
