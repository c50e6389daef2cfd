"""MiniLM in other libraries, for :mod:`.embeddings`: PyTorch, and OpenVINO with the model converted from PyTorch."""

# mypy: disable-error-code="import-not-found,import-untyped,no-any-return,misc,untyped-decorator,unused-ignore"

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.cli.bench import usable_processors

Ids = Sequence[Sequence[int]]
Encoder = Callable[[], npt.NDArray[np.float32]]
"""A function that computes the vectors of fixed sequences: an array of shape (sequences, n_embd)."""

HEAD = 32
"""Number of elements of an attention head."""
EPS = 1e-12


def of_others(folder: Path, ids: Ids, threads: int | None = None) -> dict[str, Encoder]:
    """The installed peers by name: ``torch F32``, ``torch BF16``, ``openvino`` with its defaults, ``openvino F32``.

    ``folder``: contains ``model.safetensors``.  ``threads``: by default all processors that this process may use.
    """
    if importlib.util.find_spec("torch") is None:
        return {}
    import torch

    threads = threads or usable_processors()
    torch.set_num_threads(threads)
    tokens = torch.tensor(ids)
    found: dict[str, Encoder] = {}
    for name, kind in (("torch F32", torch.float32), ("torch BF16", torch.bfloat16)):
        module = _module(folder, kind, tokens.shape[1])
        found[name] = _without_gradients(module, tokens)
    if importlib.util.find_spec("openvino") is not None:
        module = _module(folder, torch.float32, tokens.shape[1])
        for name, hints in (("openvino", {}), ("openvino F32", {"INFERENCE_PRECISION_HINT": "f32"})):
            found[name] = _openvino(module, tokens, {"INFERENCE_NUM_THREADS": threads, **hints})
    return found


def _without_gradients(module: Any, tokens: Any) -> Encoder:
    import torch

    @torch.inference_mode()
    def run() -> npt.NDArray[np.float32]:
        return module(tokens).numpy()

    return run


def _openvino(module: Any, tokens: Any, hints: dict[str, Any]) -> Encoder:
    import openvino

    model = openvino.convert_model(module, example_input=tokens)
    model.reshape(list(tokens.shape))
    request = openvino.compile_model(model, "CPU", hints).create_infer_request()
    values = tokens.numpy()
    return lambda: request.infer([values])[0]


def _module(folder: Path, kind: Any, n_tok: int) -> Any:
    """The encoder in PyTorch, with its fused operations, and weights and activations of the type ``kind``."""
    import torch
    import torch.nn.functional as F  # noqa: N812
    from safetensors.torch import load_file

    w = {name: tensor.to(kind) for name, tensor in load_file(folder / "model.safetensors").items() if "." in name}
    n_embd = w["embeddings.LayerNorm.weight"].shape[0]
    n_layer = 1 + max(int(name.split(".")[2]) for name in w if name.startswith("encoder.layer."))

    def linear(x: Any, name: str) -> Any:
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x: Any, name: str) -> Any:
        return F.layer_norm(x, (n_embd,), w[f"{name}.weight"], w[f"{name}.bias"], EPS)

    class Bert(torch.nn.Module):
        def forward(self, tokens: Any) -> Any:
            n_seq = tokens.shape[0]
            x = F.embedding(tokens, w["embeddings.word_embeddings.weight"])
            x = x + w["embeddings.position_embeddings.weight"][:n_tok] + w["embeddings.token_type_embeddings.weight"][0]
            x = norm(x, "embeddings.LayerNorm")
            for layer in range(n_layer):
                block = f"encoder.layer.{layer}"
                q, k, v = (
                    linear(x, f"{block}.attention.self.{part}").view(n_seq, n_tok, -1, HEAD).transpose(1, 2)
                    for part in ("query", "key", "value")
                )
                mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n_seq, n_tok, n_embd)
                x = norm(linear(mixed, f"{block}.attention.output.dense") + x, f"{block}.attention.output.LayerNorm")
                up = F.gelu(linear(x, f"{block}.intermediate.dense"))
                x = norm(linear(up, f"{block}.output.dense") + x, f"{block}.output.LayerNorm")
            return F.normalize(x.float().mean(1), dim=-1)

    return Bert().eval()
