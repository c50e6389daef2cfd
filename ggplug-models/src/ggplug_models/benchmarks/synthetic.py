"""Writes model files with random weights: language models of any size, for measurements."""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug import cache
from ggplug.errors import ParameterError
from ggplug.gguf import GGUFWriter
from ggplug.quantizing import quantize_file
from ggplug.types import F16, F32, Type

PIECE = 1 << 22
"""Number of elements that are drawn at a time."""

CONTROLS = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = "etaoinshrdlucmfwygpbvk"
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
"""Kinds of tokens (llama.cpp's ``llama_token_type``)."""

NORMS = {
    "attn_q": ("attn_norm",),
    "ffn_gate": ("ffn_norm",),
    "ffn_gate_inp": ("ffn_norm",),
    "eh_proj": ("enorm", "hnorm", "shared_head_norm"),
}
"""The norms of a block, by the matrices after which they are written."""

Matrix = tuple[tuple[int, ...], Callable[[], Iterator[npt.NDArray[np.float16]]]]
"""The extents ``ne`` of a matrix, or of the matrices of all experts, and a function that yields its rows in pieces."""

Values = tuple[Type, tuple[int, ...], npt.NDArray[np.float32] | Callable[[], Iterator[npt.NDArray[Any]]]]
"""The type and the extents ``ne`` of a tensor, and its values or a function that yields them in pieces."""


@dataclass(frozen=True)
class LlamaShape:
    """The sizes of a llama, by default of 0.85 G parameters.  Raises ParameterError for sizes that do not match.

    ``n_expert``: experts of each block, of which each token uses ``n_expert_used``; 0: no mixture.
    """

    n_embd: int = 2048
    n_ff: int = 5632
    n_layer: int = 16
    n_head: int = 32
    n_head_kv: int = 8
    n_vocab: int = 32000
    n_ctx: int = 8192
    n_expert: int = 0
    n_expert_used: int = 2

    def __post_init__(self) -> None:
        if self.n_embd % (2 * self.n_head) or self.n_head % self.n_head_kv:
            raise ParameterError(
                f"n_embd must be a multiple of 2 * n_head, and n_head of n_head_kv, got n_embd {self.n_embd}, "
                f"n_head {self.n_head}, n_head_kv {self.n_head_kv}",
                got=self,
            )
        if self.n_expert and not 0 < self.n_expert_used <= self.n_expert:
            raise ParameterError(
                f"n_expert_used must be from 1 to n_expert, got {self.n_expert_used} of {self.n_expert}", got=self
            )
        if self.n_vocab < len(CONTROLS) + len(BYTES):
            raise ParameterError(
                f"n_vocab must be at least {len(CONTROLS) + len(BYTES)}, got {self.n_vocab}", got=self.n_vocab
            )

    @property
    def matrices(self) -> dict[str, tuple[int, ...]]:
        """The extents ``ne`` of every matrix by name, in the order of the file."""
        found: dict[str, tuple[int, ...]] = {"token_embd": (self.n_embd, self.n_vocab)}
        for layer in range(self.n_layer):
            found |= self.block(layer)
        return found | {"output": (self.n_embd, self.n_vocab)}

    def block(self, layer: int) -> dict[str, tuple[int, ...]]:
        """The extents of the matrices of a block."""
        n_kv = self.n_embd // self.n_head * self.n_head_kv
        experts = (self.n_expert,) if self.n_expert else ()
        kind = "_exps" if experts else ""
        router = {f"blk.{layer}.ffn_gate_inp": (self.n_embd, *experts)} if experts else {}
        return {
            f"blk.{layer}.attn_q": (self.n_embd, self.n_embd),
            f"blk.{layer}.attn_k": (self.n_embd, n_kv),
            f"blk.{layer}.attn_v": (self.n_embd, n_kv),
            f"blk.{layer}.attn_output": (self.n_embd, self.n_embd),
            **router,
            f"blk.{layer}.ffn_gate{kind}": (self.n_embd, self.n_ff, *experts),
            f"blk.{layer}.ffn_up{kind}": (self.n_embd, self.n_ff, *experts),
            f"blk.{layer}.ffn_down{kind}": (self.n_ff, self.n_embd, *experts),
        }


def write_llama(
    path: str | os.PathLike[str],
    shape: LlamaShape | None = None,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Writes a llama with normally distributed F16 matrices, scaled so that activations keep their magnitude.

    ``seed``: of the random numbers.  ``progress(done, total)``: called with bytes of tensors.
    Raises OSError.
    """
    shape = LlamaShape() if shape is None else shape
    matrices: dict[str, Matrix] = {
        name: (ne, drawn(np.random.default_rng([seed, number]), ne))
        for number, (name, ne) in enumerate(shape.matrices.items())
    }
    return write_matrices(path, shape, matrices, {"general.name": f"random llama, seed {seed}"}, progress=progress)


def write_matrices(
    path: str | os.PathLike[str],
    shape: LlamaShape,
    matrices: Mapping[str, Matrix],
    keys: Mapping[str, Any],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Writes a llama with F16 matrices, norms of ones, and further keys.  Raises OSError."""
    experts = {"llama.expert_count": shape.n_expert, "llama.expert_used_count": shape.n_expert_used}
    of_llama = {
        "llama.block_count": shape.n_layer,
        "llama.context_length": shape.n_ctx,
        "llama.embedding_length": shape.n_embd,
        "llama.feed_forward_length": shape.n_ff,
        "llama.attention.head_count": shape.n_head,
        "llama.attention.head_count_kv": shape.n_head_kv,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": shape.n_embd // shape.n_head,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": shape.n_vocab,
        **(experts if shape.n_expert else {}),
    }
    tensors: dict[str, Values] = {}
    norms = ["output_norm"]
    for name, (ne, pieces) in matrices.items():
        tensors[f"{name}.weight"] = F16, ne, pieces
        block, _, last = name.rpartition(".")
        norms += [f"{block}.{norm}" for norm in NORMS.get(last, ())]
    ones = F32, (shape.n_embd,), np.ones(shape.n_embd, np.float32)
    tensors |= dict.fromkeys((f"{name}.weight" for name in norms), ones)
    return write_model(path, "llama", shape.n_vocab, of_llama | dict(keys), tensors, progress=progress)


def write_model(
    path: str | os.PathLike[str],
    architecture: str,
    n_vocab: int,
    keys: Mapping[str, Any],
    tensors: Mapping[str, Values],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Writes a model of any family, with a vocabulary.  Raises OSError."""
    with GGUFWriter(path, arch=architecture) as writer:
        for key, value in keys.items():
            writer.add(key, value)
        _add_vocabulary(writer, n_vocab)
        for name, (type, ne, values) in tensors.items():
            writer.add_tensor(name, values, type, ne)
        writer.write(progress)
    return Path(path)


def drawn(
    generator: np.random.Generator, ne: tuple[int, ...], scale: float = 1.0
) -> Callable[[], Iterator[npt.NDArray[np.float16]]]:
    """A function that yields the rows of random matrices in pieces.

    ``scale``: the magnitude of products with vectors whose elements have a magnitude of 1.
    """
    step, factor, count = max(1, PIECE // ne[0]), np.float32(scale * ne[0] ** -0.5), math.prod(ne[1:])

    def pieces() -> Iterator[npt.NDArray[np.float16]]:
        for start in range(0, count, step):
            rows = min(step, count - start)
            yield (generator.standard_normal((rows, ne[0]), np.float32) * factor).astype(np.float16)

    return pieces


def _add_vocabulary(writer: GGUFWriter, n_vocab: int) -> None:
    """Adds a SentencePiece vocabulary: control tokens, all bytes, and the shortest words of a few letters."""
    words = (
        start + "".join(word)
        for n in itertools.count(1)
        for word in itertools.product(LETTERS, repeat=n)
        for start in ("\u2581", "")
    )
    normal = list(itertools.islice(words, n_vocab - len(CONTROLS) - len(BYTES)))
    writer.add("tokenizer.ggml.model", "llama")
    writer.add("tokenizer.ggml.tokens", [*CONTROLS, *BYTES, *normal])
    writer.add("tokenizer.ggml.scores", -np.arange(n_vocab, dtype=np.float32))
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * len(BYTES) + [NORMAL] * len(normal)
    writer.add("tokenizer.ggml.token_type", np.array(kinds, np.int32))
    for number, name in enumerate(("unknown", "bos", "eos")):
        writer.add(f"tokenizer.ggml.{name}_token_id", number)


def written_once(name: str, kind: str, write: Callable[[Path], Path]) -> Path:
    """The file of a random model in the cache folder, quantised as ``kind``; it is written if it is missing.

    ``write(path)`` writes the model before that.  Raises what it raises, and OSError.
    """
    path = cache.folder("models") / f"{name}-{kind}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            quantize_file(write(Path(folder) / "plain.gguf"), path, kind)
    return path
