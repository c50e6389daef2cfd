"""Jina embeddings 2 (arXiv 2310.19923): BERT with linear biases in the place of positions, and gated MLPs.

GELU is the formula with tanh, as llama.cpp has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oracles.files import N_VOCAB
from oracles.models import Array, OwnModel, coarse, layer_norm


@dataclass(frozen=True)
class Settings:
    n: int = 32
    heads: int = 4
    inner: int = 48
    num_hidden_layers: int = 2
    eps: float = 1e-12

    def keys(self) -> dict[str, Any]:
        return {
            "context_length": 64,
            "embedding_length": self.n,
            "block_count": self.num_hidden_layers,
            "feed_forward_length": self.inner,
            "attention.head_count": self.heads,
            "attention.layer_norm_epsilon": self.eps,
            "attention.causal": False,
            "pooling_type": 1,
        }


class JinaBert(OwnModel):
    def __init__(self, seed: int) -> None:
        self.config = c = Settings()
        rng = np.random.default_rng(seed)
        self.weights = w = {
            "token_embd.weight": coarse(rng.standard_normal((N_VOCAB, c.n))),
            "token_types.weight": coarse(0.5 * rng.standard_normal((2, c.n))),
        }
        norms = ["token_embd_norm"]
        for i in range(c.num_hidden_layers):
            b = f"blk.{i}."
            shapes = {
                "attn_q": (c.n, c.n),
                "attn_k": (c.n, c.n),
                "attn_v": (c.n, c.n),
                "attn_output": (c.n, c.n),
                "ffn_gate": (c.inner, c.n),
                "ffn_up": (c.inner, c.n),
                "ffn_down": (c.n, c.inner),
            }
            for name, shape in shapes.items():
                w[f"{b}{name}.weight"] = coarse(1.5 * rng.standard_normal(shape) / np.sqrt(shape[1]))
                if name not in ("ffn_gate", "ffn_up"):
                    w[f"{b}{name}.bias"] = coarse(0.2 * rng.standard_normal(shape[0]))
            norms += [f"{b}attn_output_norm", f"{b}layer_output_norm"]
        for name in norms:
            w[f"{name}.weight"] = coarse(1 + 0.3 * rng.standard_normal(c.n))
            w[f"{name}.bias"] = coarse(0.2 * rng.standard_normal(c.n))

    def outputs(self, tokens: Sequence[int], noise: float = 0.0) -> Array:
        w, c = self.weights, self.config
        x = self.noisy(w["token_embd.weight"][list(tokens)], noise) + w["token_types.weight"][0]
        x = self._norm("token_embd_norm", x)
        for i in range(c.num_hidden_layers):
            b = f"blk.{i}."
            x = self._norm(f"{b}attn_output_norm", x + self._attention(b, x))
            gate, up = x @ w[f"{b}ffn_gate.weight"].T, x @ w[f"{b}ffn_up.weight"].T
            gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
            x = self._norm(f"{b}layer_output_norm", x + self._linear(f"{b}ffn_down", gate * up))
        return x

    def _attention(self, b: str, x: Array) -> Array:
        heads, width = self.config.heads, self.config.n // self.config.heads
        q, k, v = (self._linear(f"{b}attn_{name}", x).reshape(len(x), heads, width).swapaxes(0, 1) for name in "qkv")
        slopes = 2.0 ** (-8 * np.arange(1, heads + 1) / heads)
        positions = np.arange(len(x))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(width)
        scores = scores - slopes[:, None, None] * np.abs(positions[:, None] - positions)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        rows = (powers / powers.sum(-1, keepdims=True)) @ v
        return self._linear(f"{b}attn_output", rows.swapaxes(0, 1).reshape(len(x), -1))

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _norm(self, name: str, x: Array) -> Array:
        return layer_norm(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], self.config.eps)
