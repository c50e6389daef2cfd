"""Importance matrices: how large the inputs of each column of a model's weights are on a text (llama.cpp's imatrix)."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug import ops
from ggplug.errors import ModelError, ParameterError, PlacementError
from ggplug.gguf import GGUFWriter
from ggplug.quantizing.importance import CHUNK_SIZE, CHUNKS, COUNTS, DATASETS, SUMS
from ggplug.system.files import check_target, replacing
from ggplug.tensor import Tensor
from ggplug_models.layers.patches import GraphChange, Patching
from ggplug_models.networks.decoder import Decoder
from ggplug_models.perplexity import in_chunks, with_bos
from ggplug_models.state.steps import Outputs

Array = npt.NDArray[Any]

FORMATS = ("gguf", "dat")
"""Formats of files: GGUF, and llama.cpp's older one."""


class InputSums(GraphChange):
    """A change of graphs that changes no value: products with a block's weights add up the squares of their inputs.

    ``sums``: float64 by the name of a weight, [matrices, n] for one of ``matrices`` matrices with rows of n elements.
    ``counts``: the number of inputs: of each expert, or one for all matrices, which read as many.  ``tokens``: how many
    tokens of the next step are no padding.  ``paths``: the model's files.
    """

    def __init__(self, paths: Sequence[Path] = ()) -> None:
        self.paths = tuple(paths)
        self.sums: dict[str, npt.NDArray[np.float64]] = {}
        self.counts: dict[str, npt.NDArray[np.int64]] = {}
        self.tokens = 0

    def change(self, name: str, base: Tensor, made: Tensor) -> Tensor | None:
        weight, x = (base.src[0], base.src[1]) if isinstance(base.op, (ops.MulMat, ops.MulMatId)) else (None, None)
        if isinstance(base.op, ops.MulMat) and weight is not None and isinstance(weight.op, ops.Reshape):
            (weight,) = weight.src  # groups of its rows, which are one matrix in the file
        if weight is None or x is None or weight.op is not None:
            return None
        if weight.ne[0] != x.ne[0] or not weight.name.startswith("blk."):
            return None
        of = weight.name
        shape = (weight.ne[2] * weight.ne[3], weight.ne[0])
        if isinstance(base.op, ops.MulMatId):
            ids = base.src[2]
            assert ids is not None

            def chosen(dst: Array, y: Array, x: Array, ids: Array, ith: int, nth: int, userdata: object) -> None:
                np.copyto(dst, y)
                self._add_chosen(of, shape, x.reshape(-1, x.shape[-2], shape[1]), ids.reshape(-1, ids.shape[-1]))

            return gg.map_custom3(made, x, ids, chosen)

        def each(dst: Array, y: Array, x: Array, ith: int, nth: int, userdata: object) -> None:
            np.copyto(dst, y)
            self._add(of, shape, x.reshape(-1, x.shape[-2], shape[1]))

        return gg.map_custom2(made, x, each)

    def _entry(
        self, name: str, shape: tuple[int, int], counts: int
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        found = self.sums.setdefault(name, np.zeros(shape)), self.counts.setdefault(name, np.zeros(counts, np.int64))
        return found

    def _add(self, name: str, shape: tuple[int, int], x: Array) -> None:
        """``x``: [matrices of inputs, tokens, n]; several of them may be multiplied with the same matrix."""
        sums, counts = self._entry(name, shape, 1)
        squares = np.square(x[:, : self.tokens], dtype=np.float64).sum(axis=1)
        sums += squares.reshape(shape[0], -1, shape[1]).sum(axis=1)
        counts += self.tokens * (len(x) // shape[0])

    def _add_chosen(self, name: str, shape: tuple[int, int], x: Array, ids: Array) -> None:
        """``x``: [tokens, 1 or experts of a token, n]; ``ids``: [tokens, experts of a token]."""
        sums, counts = self._entry(name, shape, shape[0])
        x, ids = np.broadcast_arrays(x[: self.tokens], ids[: self.tokens, :, np.newaxis])
        experts = ids[..., 0].reshape(-1)
        np.add.at(sums, experts, np.square(x.reshape(-1, shape[1]), dtype=np.float64))
        counts += np.bincount(experts, minlength=shape[0])


def measure(
    model: Decoder,
    tokens: Sequence[int],
    n_ctx: int | None = None,
    *,
    chunks: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[InputSums, int]:
    """Measures the inputs of a model's weights on a text; returns the sums, and the number of chunks that were read.

    ``tokens``: the text with its special tokens, read in chunks as by :func:`.perplexities`.
    ``progress(done, count)``: called after each chunk.  Raises what :func:`.in_chunks` and sessions raise;
    PlacementError if none of the model's devices calls Python functions, ModelError for inputs that are not finite.
    """
    read, found = in_chunks(model, tokens, n_ctx, chunks), InputSums(model.paths)
    call = gg.map_custom1(gg.new_tensor(gg.F32, (1,)), lambda *_: None)
    if not any(device.supports_op(call) for device in model.devices):
        raise PlacementError(
            "inputs cannot be measured: none of the model's devices calls Python functions",
            tensor=call,
            op=call.op,
            remedy="load the model with the CPU too",
        )
    found.tokens = read.shape[1]
    with Patching(model, found), model.session(found.tokens, micro_batch=found.tokens) as session:
        for number, chunk in enumerate(read):
            session.clear()
            session.decode({0: with_bos(model, chunk)}, Outputs.ALL, hidden=True)
            wrong = next((name for name, sums in found.sums.items() if not np.isfinite(sums).all()), None)
            if wrong is not None:
                raise ModelError(f"the inputs of {wrong} are not finite in chunk {number}", got=number)
            if progress is not None:
                progress(number + 1, len(read))
    return found, len(read)


def write_importance(
    path: str | os.PathLike[str], found: InputSums, *, dataset: str, chunks: int, n_ctx: int, format: str = "gguf"
) -> Path:
    """Writes what :func:`measure` found in a format of llama.cpp's, which ``ggplug quantize --imatrix`` reads.

    ``dataset``: the name of the text.  ``chunks``, ``n_ctx``: the number of chunks, and of the tokens of one.
    ``format``: one of :data:`FORMATS`.  Raises ParameterError for another one, or for the path of a
    file of the model, and OSError.
    """
    if format not in FORMATS:
        raise ParameterError(f"format must be one of {', '.join(FORMATS)}, got {format!r}", got=format, wanted=FORMATS)
    check_target(path, found.paths)
    if format == "dat":
        with replacing(path) as file:
            file.write(_in_old_format(found, dataset, chunks, n_ctx))
        return Path(path)
    with GGUFWriter(path) as writer:
        writer.add("general.type", "imatrix")
        writer.add(DATASETS, [dataset])
        writer.add(CHUNKS, np.uint32(chunks))
        writer.add(CHUNK_SIZE, np.uint32(n_ctx))
        for name in sorted(found.sums):
            counts = found.counts[name].astype(np.float32)
            sums = found.sums[name].astype(np.float32).reshape(len(counts), -1)
            several = len(counts) > 1  # llama.cpp writes no dimensions of one element at the end
            writer.add_tensor(name + SUMS, sums if several else sums[0])
            writer.add_tensor(name + COUNTS, counts[:, np.newaxis] if several else counts)
        writer.write()
    return Path(path)


def _in_old_format(found: InputSums, dataset: str, chunks: int, n_ctx: int) -> bytes:
    """The older format: mean squares of inputs, multiplied with a number of calls that stands before them."""
    names = [name for name in sorted(found.sums) if found.counts[name].any()]
    parts = [struct.pack("<i", len(names))]
    for name in names:
        counts = found.counts[name]
        calls = -(-int(counts.max()) // n_ctx)
        sums = found.sums[name].astype(np.float32).reshape(len(counts), -1)
        # no inputs: all columns count the same
        means = np.where(counts > 0, sums.T / np.maximum(counts, 1).astype(np.float32), np.float32(1)).T
        encoded = name.encode()
        parts.append(struct.pack(f"<i{len(encoded)}sii", len(encoded), encoded, calls, sums.size))
        parts.append((means * np.float32(calls)).astype("<f4").tobytes())
    encoded = dataset.encode()
    parts.append(struct.pack(f"<ii{len(encoded)}s", chunks, len(encoded), encoded))
    return b"".join(parts)
