"""A small transformer that the benchmark of training trains, and texts from which it learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug.gradients.rules import zeros

EPS = 1e-5
"""Of the norms."""
ALPHA, DECAY = 1e-3, 0.01
"""Of AdamW."""


@dataclass(frozen=True)
class Transformer:
    """The sizes of a decoder over ``n`` tokens, with ``batch`` texts a step; its parameters, and texts to learn from.

    In each text, one of four tokens follows each token, with equal probabilities.
    """

    n_layer: int = 4
    n_embd: int = 256
    n_head: int = 8
    n: int = 256
    batch: int = 16
    n_vocab: int = 512

    def parameters(self, seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
        """Random matrices, and norms of ones and zeros."""
        random, e = np.random.default_rng(seed), self.n_embd

        def matrix(rows: int, columns: int, size: float) -> npt.NDArray[np.float32]:
            return np.float32(size) * random.standard_normal((rows, columns), np.float32)

        found = {"tokens": matrix(self.n_vocab, e, 0.02), "positions": matrix(self.n, e, 0.02)}
        for layer in range(self.n_layer):
            for name, rows, columns in (("q", e, e), ("k", e, e), ("v", e, e), ("o", e, e)):
                found[f"{layer}.{name}"] = matrix(rows, columns, columns**-0.5)
            found |= {f"{layer}.up": matrix(4 * e, e, e**-0.5), f"{layer}.down": matrix(e, 4 * e, 0.5 * e**-0.5)}
        for norm in ("norm", *(f"{layer}.{name}" for layer in range(self.n_layer) for name in ("norm1", "norm2"))):
            found |= {f"{norm}.weight": np.ones(e, np.float32), f"{norm}.bias": np.zeros(e, np.float32)}
        return found | {"output": matrix(self.n_vocab, e, e**-0.5)}

    def texts(self, count: int, seed: int = 0) -> npt.NDArray[np.int32]:
        """Tokens of ``count`` batches: (count, batch, n + 1)."""
        random = np.random.default_rng(seed)
        following = random.integers(0, self.n_vocab, (self.n_vocab, 4), np.int32)
        found = np.empty((count, self.batch, self.n + 1), np.int32)
        found[:, :, 0] = random.integers(0, self.n_vocab, (count, self.batch))
        for place in range(self.n):
            found[:, :, place + 1] = following[found[:, :, place], random.integers(0, 4, (count, self.batch))]
        return found

    def logits(self, p: Mapping[str, gg.Tensor], ids: gg.Tensor) -> gg.Tensor:
        """The logits after each token, [n_vocab, n * batch], for ``ids`` I32 [n, batch]."""
        n, batch = ids.ne[:2]
        e, head = self.n_embd, self.n_embd // self.n_head
        mask = gg.tensor(np.triu(np.full((n, n), -np.inf, np.float16), 1))

        def norm(x: gg.Tensor, name: str) -> gg.Tensor:
            return gg.add(gg.mul(gg.norm(x, EPS), p[f"{name}.weight"]), p[f"{name}.bias"])

        def heads(x: gg.Tensor) -> gg.Tensor:
            return gg.permute(gg.reshape(x, head, self.n_head, n, batch), 0, 2, 1, 3)

        x = gg.get_rows(p["tokens"], gg.reshape(ids, n * batch))
        x = gg.reshape(gg.add(gg.reshape(x, e, n, batch), p["positions"]), e, n * batch)
        for layer in range(self.n_layer):
            h = norm(x, f"{layer}.norm1")
            q, k, v = (heads(gg.mul_mat(p[f"{layer}.{name}"], h)) for name in "qkv")
            attended = gg.flash_attn_ext(q, k, v, mask, head**-0.5)
            x = gg.add(x, gg.mul_mat(p[f"{layer}.o"], gg.reshape(attended, e, n * batch)))
            up = gg.gelu(gg.mul_mat(p[f"{layer}.up"], norm(x, f"{layer}.norm2")))
            x = gg.add(x, gg.mul_mat(p[f"{layer}.down"], up))
        return gg.mul_mat(p["output"], norm(x, "norm"))

    @staticmethod
    def loss(logits: gg.Tensor, labels: gg.Tensor | None) -> gg.Tensor:
        """The mean of -log p(next token); ``labels``: I32 [n, batch]."""
        assert labels is not None
        n_vocab, count = logits.ne[:2]
        ones = gg.tensor(np.ones((count, 1, 1), np.float32))
        chances = gg.set_rows(zeros((1, n_vocab, count, 1)), ones, gg.reshape(labels, 1, count))
        return gg.cross_entropy_loss(logits, gg.reshape(chances, n_vocab, count))
