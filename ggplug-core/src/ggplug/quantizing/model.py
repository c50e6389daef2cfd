"""Writes a model's file with other types, with only a part of one tensor in memory at a time."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ggplug.errors import ModelError
from ggplug.gguf.file_types import FILE_TYPE_KEY, QUANTIZATION_VERSION, QUANTIZATION_VERSION_KEY
from ggplug.gguf.format import TensorInfo, ValueType, is_foreign, swap_byte_order
from ggplug.gguf.reader import GGUFReader
from ggplug.gguf.writer import GGUFWriter
from ggplug.quantizing.choice import Choice, Override, check, choose, in_order, needs_importance
from ggplug.quantizing.importance import Importance, read_importance
from ggplug.quantizing.mixtures import COPY, TOKEN_EMBEDDINGS, Mixture, Model, mixture
from ggplug.quantizing.rows import Encoder
from ggplug.system.files import check_target
from ggplug.types import Type

_PIECE = 1 << 22
"""Elements that are encoded at a time: 16 MiB as F32, and enough work for all threads."""

_LONGEST_TEXT = 127
"""The number of bytes to which llama.cpp shortens the names of an importance matrix and its texts."""


@dataclass(frozen=True)
class Quantized:
    """The result for one tensor.

    ``before``, ``after``: its types.  ``wanted``: the type that the rules chose, if its rows are no whole number of
    blocks of it, else None.  ``weighted``: whether an importance matrix was used.
    """

    name: str
    ne: tuple[int, ...]
    before: Type
    after: Type
    bytes_before: int
    bytes_after: int
    wanted: Type | None
    weighted: bool


def quantize_file(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    name: str,
    *,
    imatrix: str | os.PathLike[str] | None = None,
    overrides: Sequence[Override | tuple[str, Type | str]] = (),
    allow_requantize: bool = False,
    n_threads: int | None = None,
    compiled: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> list[Quantized]:
    """Quantise the GGUF model ``source`` to the file ``out`` (``llama_model_quantize``).

    Types are chosen as in llama.cpp, also for mixtures (``Q4_K_M``).  Norms, biases and small matrices keep their
    types; if rows are no whole number of blocks, they get a type with smaller blocks or else F16.  The bytes are those
    of :func:`ggplug.quantize`.  Only a few MiB of one tensor are in memory at a time.  Conversions between F32, F16 and
    BF16 keep NaN and infinities.

    Args:
        source: of a split model the first file.  ``out`` is one file in any case.
        out: written completely or not at all; see :class:`ggplug.gguf.GGUFWriter`.
        name: one of ``ggplug.quantizing.MIXTURES``, upper or lower case, or ``COPY``, which changes no tensor.
        imatrix: an importance matrix, see :func:`ggplug.quantizing.read_importance`.
        overrides: regular expressions and types; a tensor gets the type of the first that matches its name.
        allow_requantize: also quantise tensors that are quantised already.
        n_threads: number of threads; None leaves it to the backend that encodes.
        compiled: False encodes with NumPy, without backends.
        progress: called with (bytes read, all bytes), several times for a large tensor.

    Returns:
        The result for each tensor, in the order of the new file.

    Raises:
        ParameterError: there is no mixture ``name``; an override matches no tensor; ``out`` is a
            file of ``source``, or ``imatrix``.
        TypeMismatchError: a tensor is quantised already, or is of a type that cannot be quantised.
        ModelError: the metadata, or the importance matrix, is incomplete or does not fit; a number in a tensor to be
            quantised is NaN or infinite, or is out of range of the tensor's new type.
        GGUFError: a file is malformed.
        OSError: a file cannot be read or written, or the disk is full.
    """
    with GGUFReader(source) as reader:
        check_target(out, reader.paths if imatrix is None else (*reader.paths, imatrix))
        order = _Order(reader, name, imatrix, overrides, allow_requantize=allow_requantize)
        writer = GGUFWriter(out, endian=reader.endian, alignment=reader.alignment, version=reader.version)
        _add_metadata(writer, reader, order.mixture, order.importance)
        with Encoder(n_threads, compiled=compiled) as encoder:
            total = sum(choice.info.nbytes for choice in order.choices)
            work = _TensorEncoder(reader, encoder, progress, total)
            for choice, weight in zip(order.choices, order.weights, strict=True):
                writer.add_tensor(choice.info.name, work.of(choice, weight), choice.type, choice.info.ne)
            writer.write()
    return order.results


def preview_file(
    source: str | os.PathLike[str],
    name: str,
    *,
    imatrix: str | os.PathLike[str] | None = None,
    overrides: Sequence[Override | tuple[str, Type | str]] = (),
    allow_requantize: bool = False,
) -> list[Quantized]:
    """What :func:`quantize_file` would make of a model, without encoding or writing anything.

    Raises as :func:`quantize_file` does before it encodes.
    """
    with GGUFReader(source) as reader:
        return _Order(reader, name, imatrix, overrides, allow_requantize=allow_requantize).results


class _Order:
    """What is to be made of a model: its tensors in the new file's order, and their importance."""

    def __init__(
        self,
        reader: GGUFReader,
        name: str,
        imatrix: str | os.PathLike[str] | None,
        overrides: Sequence[Override | tuple[str, Type | str]],
        *,
        allow_requantize: bool,
    ) -> None:
        self.mixture = None if name.upper() == COPY else mixture(name)
        orders = [Override.of(each) for each in overrides]
        self.importance = None if imatrix is None else read_importance(imatrix)
        infos, model = in_order(reader.tensors.values()), Model.of(reader.metadata)
        self.choices = choose(infos, self.mixture, model, importance=imatrix is not None, overrides=orders)
        check(self.choices, allow_requantize=allow_requantize)
        self.weights = [_importance_of(choice, self.importance, name.upper()) for choice in self.choices]

    @property
    def results(self) -> list[Quantized]:
        return [
            Quantized(
                each.info.name,
                each.info.ne,
                each.info.type,
                each.type,
                each.info.nbytes,
                each.nbytes,
                each.wanted,
                weight is not None,
            )
            for each, weight in zip(self.choices, self.weights, strict=True)
        ]


def _importance_of(choice: Choice, importance: Importance | None, name: str) -> npt.NDArray[np.float32] | None:
    """The importance of the columns of a tensor that is quantised, [matrices, ne0], or None."""
    found = None if importance is None or not choice.type.is_quantized else importance.entries.get(choice.info.name)
    info = choice.info
    if choice.changes and found is not None:
        assert importance is not None
        matrices = int(np.prod(info.ne[2:], dtype=np.int64))
        if found.size == info.ne[0] * matrices:
            return found.reshape(matrices, info.ne[0])
        if info.name not in TOKEN_EMBEDDINGS:  # embeddings are looked up, not multiplied
            raise ModelError(
                f"{importance.path}: the importance of {info.name} has {found.size} numbers, not "
                f"{info.ne[0]} for each of {matrices} matrices",
                got=found.size,
                wanted=info.ne[0] * matrices,
                remedy="use an importance matrix that was made with this model",
            )
    if choice.changes and needs_importance(choice, name):
        where, remedy = "", "pass one that was made with this model (--imatrix, imatrix=)"
        if importance is not None:
            where = f", and {importance.path} has no entry for it"
            # A matrix has no entry for weights that the model did not use, as those of an indexer in a short context.
            other = f"'{re.escape(info.name)}=q4_K'"
            remedy = f"name a type that needs none (--override {other}, overrides=), or {remedy}"
        raise ModelError(
            f"tensor {info.name} would be {choice.type.name}, which needs an importance matrix{where}",
            tensor=info.name,
            wanted=choice.type,
            remedy=remedy,
        )
    return None


def _add_metadata(
    writer: GGUFWriter, reader: GGUFReader, chosen: Mixture | None, importance: Importance | None
) -> None:
    writer.add_metadata_of(reader, without=() if chosen is None else (QUANTIZATION_VERSION_KEY, FILE_TYPE_KEY))
    writer.add(QUANTIZATION_VERSION_KEY, QUANTIZATION_VERSION, ValueType.UINT32)
    if chosen is not None:
        writer.add(FILE_TYPE_KEY, chosen.file_type, ValueType.UINT32)
    if importance is not None:
        writer.add("quantize.imatrix.file", _short(os.fspath(importance.path)))
        if importance.datasets:
            writer.add("quantize.imatrix.dataset", _short(importance.datasets[0]))
        writer.add("quantize.imatrix.entries_count", len(importance.entries), ValueType.UINT32)
        if importance.chunks > 0:
            writer.add("quantize.imatrix.chunks_count", importance.chunks, ValueType.UINT32)


def _short(text: str) -> str:
    return text.encode("utf-8", "replace")[:_LONGEST_TEXT].decode("utf-8", "ignore")


class _TensorEncoder:
    """Encodes the tensors of a model when the writer calls the functions that it returns."""

    def __init__(
        self, reader: GGUFReader, encoder: Encoder, progress: Callable[[int, int], None] | None, total: int
    ) -> None:
        self.reader, self.encoder, self.progress = reader, encoder, progress
        self.done, self.total = 0, total

    def of(
        self, choice: Choice, weights: npt.NDArray[np.float32] | None
    ) -> Callable[[], Iterator[npt.NDArray[np.uint8]]]:
        """A function that yields the encoded parts of a tensor."""
        return lambda: self._pieces(choice, weights)

    def _pieces(self, choice: Choice, weights: npt.NDArray[np.float32] | None) -> Iterator[npt.NDArray[np.uint8]]:
        info = choice.info
        if info.n_elements:
            before = 0
            for rows, importance in self._rows(info, weights):
                if not choice.changes:
                    yield rows
                else:
                    encoded = self.encoder.encode(rows, info.type, choice.type, importance)
                    self._check(choice, rows, encoded, importance, before)
                    yield encoded
                before += rows.nbytes // info.type.block_bytes * info.type.block_size
                self._advance(rows.nbytes)
        self.reader.release(info)

    def _check(
        self,
        choice: Choice,
        rows: npt.NDArray[np.uint8],
        encoded: npt.NDArray[np.uint8],
        importance: npt.NDArray[np.float32] | None,
        before: int,
    ) -> None:
        """Raises ModelError for a number that the type cannot hold; ``before``: number of elements before the rows."""
        info = choice.info
        found = self.encoder.misfit(rows, info.type, encoded, choice.type, importance)
        if found is not None:
            raise found.refused(str(self.reader.paths[info.shard]), info.name, info.ne, choice.type, before)

    def _rows(
        self, info: TensorInfo, weights: npt.NDArray[np.float32] | None
    ) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32] | None]]:
        """Some rows at a time, all of one matrix, in the host's byte order, with the matrix's importance."""
        row_bytes = info.type.row_bytes(info.ne[0]) if info.ne else info.nbytes
        rows = self.reader.data(info).reshape(-1, row_bytes)
        each = len(rows) if weights is None else len(rows) // len(weights)
        step = max(1, _PIECE // (info.ne[0] if info.ne else 1))
        for matrix, first in enumerate(range(0, len(rows), each)):
            importance = None if weights is None else weights[matrix]
            for start in range(first, first + each, step):
                piece = rows[start : min(start + step, first + each)]
                yield swap_byte_order(piece, info.type) if is_foreign(self.reader.endian) else piece, importance

    def _advance(self, size: int) -> None:
        self.done += size
        if self.progress is not None:
            self.progress(self.done, self.total)
