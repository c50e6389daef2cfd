"""RWKV-7 by its paper (arXiv 2503.14456, section 4), in double precision, one token after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oracles.files import N_VOCAB
from oracles.models import Array, OwnModel, coarse, layer_norm, sigmoid


@dataclass(frozen=True)
class Settings:
    n: int = 64
    head: int = 64
    inner: int = 32
    num_hidden_layers: int = 2
    rank: int = 8
    eps: float = 1e-5

    def keys(self) -> dict[str, Any]:
        ranks = ("decay", "iclr", "value_residual_mix", "gate")
        return {
            "context_length": 1 << 20,
            "embedding_length": self.n,
            "block_count": self.num_hidden_layers,
            "attention.layer_norm_epsilon": self.eps,
            "wkv.head_size": self.head,
            "feed_forward_length": self.inner,
            "attention.head_count": 0,
            **{f"attention.{name}_lora_rank": self.rank for name in ranks},
        }


class RWKV7(OwnModel):
    def __init__(self, seed: int, settings: Settings) -> None:
        self.config = c = settings
        rng = np.random.default_rng(seed)

        def matrix(rows: int, columns: int, gain: float = 1.2) -> Array:
            return coarse(gain * rng.standard_normal((rows, columns)) / np.sqrt(columns))

        def vector(centre: float, spread: float) -> Array:
            return coarse(centre + spread * rng.standard_normal(c.n))

        self.weights = w = {"token_embd.weight": coarse(rng.standard_normal((N_VOCAB, c.n)))}
        norms = ["token_embd_norm", "output_norm"]
        w["output.weight"] = matrix(N_VOCAB, c.n, 2)
        for i in range(c.num_hidden_layers):
            b = f"blk.{i}."
            norms += [f"{b}attn_norm", f"{b}attn_norm_2", f"{b}time_mix_ln"]
            w[f"{b}time_mix_lerp_fused.weight"] = coarse(rng.uniform(0, 1, (6, 1, 1, c.n)))
            w[f"{b}channel_mix_lerp_k.weight"] = coarse(rng.uniform(0, 1, c.n))
            for name in ("key", "value", "receptance", "output"):
                w[f"{b}time_mix_{name}.weight"] = matrix(c.n, c.n)
            for name in "wavg":
                if name != "g":
                    w[f"{b}time_mix_{name}0.weight"] = vector(0, 0.7)
                w[f"{b}time_mix_{name}1.weight"] = matrix(c.rank, c.n)
                w[f"{b}time_mix_{name}2.weight"] = matrix(c.n, c.rank)
            for name, centre in (("k_k", 1.0), ("k_a", 0.7), ("r_k", 0.0)):
                w[f"{b}time_mix_{name}.weight"] = vector(centre, 0.3)
            w[f"{b}channel_mix_key.weight"] = matrix(c.inner, c.n)
            w[f"{b}channel_mix_value.weight"] = matrix(c.n, c.inner)
        for name in norms:
            w[f"{name}.weight"], w[f"{name}.bias"] = vector(1, 0.3), vector(0, 0.2)

    def outputs(self, tokens: Sequence[int], noise: float = 0.0) -> Array:
        w, c = self.weights, self.config
        x = self.noisy(w["token_embd.weight"][list(tokens)], noise)
        x = layer_norm(x, w["token_embd_norm.weight"], w["token_embd_norm.bias"], c.eps)
        first = None
        for i in range(c.num_hidden_layers):
            b = f"blk.{i}."
            normed = layer_norm(x, w[f"{b}attn_norm.weight"], w[f"{b}attn_norm.bias"], c.eps)
            mixed, first = self._time_mix(b, normed, first)
            x = x + mixed
            normed = layer_norm(x, w[f"{b}attn_norm_2.weight"], w[f"{b}attn_norm_2.bias"], c.eps)
            k = normed + (before(normed) - normed) * w[f"{b}channel_mix_lerp_k.weight"]
            k = np.maximum(k @ w[f"{b}channel_mix_key.weight"].T, 0) ** 2
            x = x + k @ w[f"{b}channel_mix_value.weight"].T
        return layer_norm(x, w["output_norm.weight"], w["output_norm.bias"], c.eps) @ w["output.weight"].T

    def _time_mix(self, b: str, x: Array, first: Array | None) -> tuple[Array, Array]:
        """The mixed rows, and the first layer's values, towards which later layers move theirs."""
        start, n = f"{b}time_mix_", self.config.head
        w = {name.removeprefix(start): each for name, each in self.weights.items() if name.startswith(start)}
        lerp = w["lerp_fused.weight"].reshape(6, -1)
        xr, xw, xk, xv, xa, xg = (x + (before(x) - x) * each for each in lerp)
        r, k, v = xr @ w["receptance.weight"].T, xk @ w["key.weight"].T, xv @ w["value.weight"].T
        decay = np.exp(-np.exp(-0.5) * sigmoid(w["w0.weight"] + np.tanh(xw @ w["w1.weight"].T) @ w["w2.weight"].T))
        rate = sigmoid(w["a0.weight"] + xa @ w["a1.weight"].T @ w["a2.weight"].T)
        gate = sigmoid(xg @ w["g1.weight"].T) @ w["g2.weight"].T
        if first is None:
            first = v
        else:
            v = v + (first - v) * sigmoid(w["v0.weight"] + xv @ w["v1.weight"].T @ w["v2.weight"].T)
        heads = (len(x), -1, n)
        removal = (k * w["k_k.weight"]).reshape(heads)
        removal = removal / np.sqrt((removal**2).sum(-1, keepdims=True))
        k = (k * (1 + (rate - 1) * w["k_a.weight"])).reshape(heads)
        r, v, decay, rate = (each.reshape(heads) for each in (r, v, decay, rate))
        state = np.zeros((r.shape[1], n, n))  # value rows, key columns
        rows = np.empty_like(v)
        for t in range(len(x)):
            removed = (state * removal[t][:, None, :]).sum(-1)
            state = state * decay[t][:, None, :] - removed[..., None] * (removal[t] * rate[t])[:, None, :]
            state = state + v[t][..., None] * k[t][:, None, :]
            rows[t] = (state * r[t][:, None, :]).sum(-1)
        rows = layer_norm(rows, w["ln.weight"].reshape(-1, n), w["ln.bias"].reshape(-1, n), 64e-5)
        rows = rows + (r * k * w["r_k.weight"].reshape(-1, n)).sum(-1, keepdims=True) * v
        return (rows.reshape(len(x), -1) * gate) @ w["output.weight"].T, first


def before(x: Array) -> Array:
    """Each row's predecessor; zeros before the first."""
    return np.concatenate([np.zeros_like(x[:1]), x[:-1]])
