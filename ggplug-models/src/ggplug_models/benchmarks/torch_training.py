"""Training in PyTorch, for :mod:`.training`: the same transformer, and LoRA beside BF16 weights as PEFT does it."""

# mypy: disable-error-code="import-not-found,import-untyped,no-any-return,misc,untyped-decorator,unused-ignore"

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.cli.bench import usable_processors
from ggplug.gguf import GGUFReader
from ggplug.quants import dequantize
from ggplug_models.benchmarks.transformer import ALPHA, DECAY, EPS, Transformer

Array = npt.NDArray[Any]
Step = Callable[[Array, Array], float]


def installed() -> bool:
    """Whether PyTorch can be imported."""
    return importlib.util.find_spec("torch") is not None


def imported(threads: int | None = None) -> Any:
    """PyTorch, which uses so many threads; by default one for each processor that this process may use."""
    import torch

    torch.set_num_threads(threads or usable_processors())
    return torch


def _learning(
    torch: Any, loss_of: Callable[[Any, Any], Any], parameters: list[Any], alpha: float, decay: float
) -> Step:
    optimiser = torch.optim.AdamW(parameters, lr=alpha, weight_decay=decay, fused=True)

    def step(data: Array, labels: Array) -> float:
        optimiser.zero_grad(set_to_none=True)
        loss = loss_of(*(torch.from_numpy(np.ascontiguousarray(each, np.int64)) for each in (data, labels)))
        loss.backward()
        optimiser.step()
        return float(loss.item())

    return step


def transformer(shape: Transformer, threads: int | None = None, *, compiled: bool = False) -> Step:
    """A step of the transformer, with PyTorch's fused attention and AdamW; ``compiled``: by ``torch.compile``."""
    torch = imported(threads)
    import torch.nn.functional as F  # noqa: N812

    p = {name: torch.from_numpy(value).requires_grad_() for name, value in shape.parameters().items()}

    def norm(x: Any, name: str) -> Any:
        return F.layer_norm(x, (shape.n_embd,), p[f"{name}.weight"], p[f"{name}.bias"], EPS)

    def loss_of(ids: Any, labels: Any) -> Any:
        batch, n = ids.shape
        x = F.embedding(ids, p["tokens"]) + p["positions"]
        for layer in range(shape.n_layer):
            h = norm(x, f"{layer}.norm1")
            q, k, v = (
                F.linear(h, p[f"{layer}.{name}"]).view(batch, n, shape.n_head, -1).transpose(1, 2) for name in "qkv"
            )
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, n, -1)
            x = x + F.linear(attended, p[f"{layer}.o"])
            up = F.gelu(F.linear(norm(x, f"{layer}.norm2"), p[f"{layer}.up"]), approximate="tanh")
            x = x + F.linear(up, p[f"{layer}.down"])
        logits = F.linear(norm(x, "norm"), p["output"])
        return F.cross_entropy(logits.view(-1, shape.n_vocab), labels.reshape(-1))

    if compiled:
        torch._dynamo.config.suppress_errors = True  # where the compiler fails, it is not faster
        loss_of = torch.compile(loss_of)
    return _learning(torch, loss_of, [*p.values()], ALPHA, DECAY)


def adapter(path: Path, rank: int, alpha: float, rate: float, decay: float, threads: int | None = None) -> Step:
    """A step of a LoRA adapter on all matrices of the blocks of a llama: BF16 weights, and matrices in F32 as in PEFT.

    ``path``: a GGUF file of any types.  ``rate``, ``decay``: of AdamW.
    """
    torch = imported(threads)
    import torch.nn.functional as F  # noqa: N812

    with GGUFReader(path) as reader:
        w = {name: _bf16(torch, reader, name) for name in reader.tensors}
        keys: dict[str, Any] = {key.removeprefix("llama."): value for key, value in reader.metadata.items()}
    heads, groups = keys["attention.head_count"], keys["attention.head_count_kv"]
    eps, base, random = keys["attention.layer_norm_rms_epsilon"], keys["rope.freq_base"], np.random.default_rng(0)
    matrices: dict[str, tuple[Any, Any]] = {}
    for name, weight in w.items():
        if name.startswith("blk.") and weight.ndim == 2:
            m, n = weight.shape
            a = torch.from_numpy((random.uniform(-1, 1, (rank, n)) / n**0.5).astype(np.float32))
            matrices[name] = a.requires_grad_(), torch.zeros(m, rank, requires_grad=True)

    def linear(x: Any, name: str) -> Any:
        a, b = matrices[f"{name}.weight"]
        changed = F.linear(F.linear(x.float(), a), b) * (alpha / rank)
        return (F.linear(x, w[f"{name}.weight"]) + changed).to(x.dtype)

    def norm(x: Any, name: str) -> Any:
        return F.rms_norm(x, x.shape[-1:], w[f"{name}.weight"], eps)

    def rotated(x: Any, cos: Any, sin: Any) -> Any:
        """Pairs of adjacent elements of (batch, heads, n, size), turned."""
        first, second = x[..., ::2], x[..., 1::2]
        return torch.stack((first * cos - second * sin, first * sin + second * cos), -1).flatten(-2)

    def loss_of(ids: Any, labels: Any) -> Any:
        batch, n = ids.shape
        x = F.embedding(ids, w["token_embd.weight"])
        size = x.shape[-1] // heads
        angles = torch.outer(torch.arange(n), base ** (-torch.arange(0, size, 2) / size))
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in range(keys["block_count"]):
            block = f"blk.{layer}"
            h = norm(x, f"{block}.attn_norm")
            q, k, v = (
                linear(h, f"{block}.attn_{name}").view(batch, n, count, size).transpose(1, 2)
                for name, count in (("q", heads), ("k", groups), ("v", groups))
            )
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + linear(mixed.transpose(1, 2).reshape(batch, n, -1), f"{block}.attn_output")
            h = norm(x, f"{block}.ffn_norm")
            x = x + linear(F.silu(linear(h, f"{block}.ffn_gate")) * linear(h, f"{block}.ffn_up"), f"{block}.ffn_down")
        logits = F.linear(norm(x, "output_norm"), w["output.weight"]).float()
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.reshape(-1))

    return _learning(torch, loss_of, [each for pair in matrices.values() for each in pair], rate, decay)


def _bf16(torch: Any, reader: GGUFReader, name: str) -> Any:
    info = reader.tensors[name]
    rows = np.asarray(reader.data(info)).reshape(*info.shape[:-1], -1)
    return torch.from_numpy(dequantize(rows, info.type)).to(torch.bfloat16)
