"""Tiny models with heads: recorded models of ``tests/data/oracles``, and heads of seeded random weights.

Only what llama.cpp computes with them is recorded (``tests/data/heads.npz``): ``python -m heads FOLDER``, where
the folder has a build of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from oracles.packed import ORACLES
from paths import DATA

from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug.types import F16, F32, I64

Array = npt.NDArray[Any]

RECORDED = DATA / "heads.npz"
TOKENS = [int(token) for token in np.random.default_rng(38).integers(0, 68, 12)]
"""The text; the head reads pairs for all but the first, and after them those of :data:`GUESSED`."""
GUESSED = [5, 61, 20]
N_EMBD, N_VOCAB, N_DRAFT = 32, 72, 40

NEXT = {"glm4moe": "glm4moe", "glm4moe-own": "glm4moe", "deepseek2": "deepseek2", "deepseek3": "deepseek3"}
"""Models with a block that guesses (MTP), by the recorded models that they are made of."""
EAGLES: dict[str, dict[str, Any]] = {
    "eagle3": {"embeds": False, "chooses": True},
    "eagle3-own": {"embeds": True, "chooses": False, "norm_before_residual": True, "norm_before_fc": True},
}
"""Heads in files of their own, for :data:`TARGET`.  ``embeds``: whether it has a table of embeddings; ``chooses``:
whether it has an output matrix, for a part of the vocabulary."""
TARGET = "llama3"
LAYERS = [1, 0, 1]


def random(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
    """Numbers that half precision holds."""
    return (scale * rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float16)


def norm(rng: np.random.Generator, n: int) -> Array:
    return (1 + 0.2 * rng.standard_normal(n)).astype(np.float32)


def write_next(name: str, path: Path) -> Path:
    """Writes a recorded model with one more block, and what makes it a head."""
    rng = np.random.default_rng(sum(map(ord, name)))
    with GGUFReader(ORACLES / f"{NEXT[name]}.gguf") as reader:
        arch = reader.metadata["general.architecture"]
        n_layer = int(reader.metadata[f"{arch}.block_count"])
        tensors: dict[str, Array] = {}
        for of, info in reader.tensors.items():
            if of.startswith(f"blk.{n_layer - 1}."):
                values = np.array(reader.array(of))
                shuffled = rng.permutation(values.reshape(-1)).reshape(values.shape)
                tensors[of.replace(f"blk.{n_layer - 1}.", f"blk.{n_layer}.")] = shuffled.astype(info.type.dtype)
        prefix = f"blk.{n_layer}.nextn."
        tensors[f"{prefix}eh_proj.weight"] = random(rng, N_EMBD, 2 * N_EMBD, scale=2)
        tensors[f"{prefix}enorm.weight"], tensors[f"{prefix}hnorm.weight"] = norm(rng, N_EMBD), norm(rng, N_EMBD)
        if name.endswith("-own"):
            tensors[f"{prefix}embed_tokens.weight"] = random(rng, N_VOCAB, N_EMBD)
            tensors[f"{prefix}shared_head_head.weight"] = random(rng, N_VOCAB, N_EMBD, scale=3)
            tensors[f"{prefix}shared_head_norm.weight"] = norm(rng, N_EMBD)
        keys = {f"{arch}.block_count": n_layer + 1, f"{arch}.nextn_predict_layers": 1}
        write(path, arch, reader, keys, tensors, copied=True)
    return path


def write_eagle(name: str, path: Path) -> Path:
    """Writes a head for :data:`TARGET`."""
    how = dict(EAGLES[name])
    embeds, chooses = how.pop("embeds"), how.pop("chooses")
    rng = np.random.default_rng(sum(map(ord, name)))
    n, width, kv = N_EMBD, 32, 16
    tensors = {
        "fc.weight": random(rng, n, 3 * n),
        "output_norm.weight": norm(rng, n),
        **{f"blk.0.{each}.weight": norm(rng, n) for each in ("attn_norm", "attn_norm_2", "ffn_norm")},
        "blk.0.attn_q.weight": random(rng, width, 2 * n),
        "blk.0.attn_k.weight": random(rng, kv, 2 * n),
        "blk.0.attn_v.weight": random(rng, kv, 2 * n),
        "blk.0.attn_output.weight": random(rng, n, width),
        "blk.0.ffn_gate.weight": random(rng, 24, n),
        "blk.0.ffn_up.weight": random(rng, 24, n),
        "blk.0.ffn_down.weight": random(rng, n, 24),
    }
    if how.get("norm_before_fc"):
        tensors["enc.output_norm.weight"] = norm(rng, 3 * n)
    if embeds:
        tensors["token_embd.weight"] = random(rng, N_VOCAB, n)
    if chooses:
        tensors["output.weight"] = random(rng, N_DRAFT, n, scale=3)
        tensors["d2t"] = np.sort(rng.choice(N_VOCAB, N_DRAFT, replace=False)).astype(np.int64)
    settings = {
        "context_length": 64,
        "embedding_length": n,
        "block_count": 1,
        "feed_forward_length": 24,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": 16,
        "rope.freq_base": 500.0,
        "vocab_size": N_VOCAB,
        "target_layers": np.array(LAYERS, np.int32),
        "target_hidden_size": n,
        **how,
    }
    with GGUFReader(ORACLES / f"{TARGET}.gguf") as reader:
        write(path, "eagle3", reader, {f"eagle3.{key}": value for key, value in settings.items()}, tensors)
    return path


def write(
    path: Path,
    arch: str,
    reader: GGUFReader,
    keys: Mapping[str, Any],
    tensors: Mapping[str, Array],
    *,
    copied: bool = False,
) -> None:
    """Writes a file with the vocabulary of ``reader``; ``copied``: with its other keys and its tensors, too."""
    with GGUFWriter(path, arch) as writer:
        for key, value in reader.metadata.items():
            if key not in keys and key != "general.architecture" and (copied or key.startswith("tokenizer.")):
                writer.add(key, value)
        for key, value in keys.items():
            writer.add(key, value)
        for name, info in reader.tensors.items() if copied else ():
            writer.add_tensor(name, reader.data(name), info.type, info.ne)
        types = {np.dtype(np.float16): F16, np.dtype(np.float32): F32, np.dtype(np.int64): I64}
        for name, values in tensors.items():
            writer.add_tensor(name, values, types[values.dtype], values.shape[::-1])
        writer.write()
