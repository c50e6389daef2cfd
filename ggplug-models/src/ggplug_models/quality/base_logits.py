"""What a model predicts for a text, in llama.cpp's file of logits (``llama-perplexity --save-all-logits``).

The file has the tokens of the text in chunks, and for each token that is predicted log p of all tokens of the
vocabulary, in 16 bits: the largest is exact, and those that are smaller than it by more than 16 are not told apart.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

import numpy as np
import numpy.typing as npt

from ggplug.errors import ModelError
from ggplug.system.files import naming, open_regular, replacing

Floats = npt.NDArray[np.float32]

MAGIC = b"_logits_"
_HEADER = struct.Struct("<8siii")
"""Magic, tokens of a chunk, tokens of the vocabulary, chunks."""

_SCALE = 8
"""Bytes before the numbers of a row: what a step is worth, and log p of the number 0, as F32."""
_STEPS = 65535
_SUM = 0.1
"""How far from 1 the sum of a token's probabilities may be: those below the range of 16 count as its least."""
_RANGE = np.float32(16)


def beginning(chunks: npt.NDArray[np.int64], n_vocab: int) -> bytes:
    """The beginning of a file: header and tokens, ``(chunks, n_ctx)``.  :func:`rows` follow."""
    count, n_ctx = chunks.shape
    return _HEADER.pack(MAGIC, n_ctx, n_vocab, count) + chunks.astype("<i4").tobytes()


@contextmanager
def saving(
    path: str | os.PathLike[str], chunks: npt.NDArray[np.int64], n_vocab: int
) -> Iterator[Callable[[Floats], object]]:
    """A function that gets all logits of the chunks, whose predictions the file has at the end of the block.

    The file is complete, or what it was before.  ``chunks``: tokens, ``(chunks, n_ctx)``.  Raises OSError.
    """
    with replacing(path) as file:
        file.write(beginning(chunks, n_vocab))
        yield lambda logits: file.write(rows(logits))


def rows(logits: Floats) -> bytes:
    """Logits ``(n, n_vocab)`` as rows of the file."""
    largest = logits.max(axis=1, keepdims=True)
    least = np.maximum(logits.min(axis=1, keepdims=True), largest - _RANGE)
    log_sum = np.log(np.exp(logits - largest).sum(axis=1, dtype=np.float64, keepdims=True)).astype(np.float32)
    scale = (largest - least) / np.float32(_STEPS)
    steps = np.maximum(logits - least, 0) * np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    found = np.zeros((len(logits), _row_bytes(logits.shape[1])), np.uint8)
    found[:, :_SCALE] = np.hstack([scale, least - largest - log_sum]).astype("<f4").view(np.uint8)
    encoded = np.rint(steps).astype("<u2")
    found[:, _SCALE : _SCALE + 2 * logits.shape[1]] = encoded.view(np.uint8)
    return found.tobytes()


def _row_bytes(n_vocab: int) -> int:
    return _SCALE + 2 * (n_vocab + n_vocab % 2)


class BaseLogits:
    """A file of logits, open until the end of a ``with`` block.

    ``chunks``: the tokens, ``(chunks, n_ctx)``.  ``n_vocab``: the number of tokens of the vocabulary.

    Raises ModelError for a file that is none, or is truncated; FileKindError and other OSErrors.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._file = open_regular(path)
        try:
            with naming(path):
                self._open()
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> None:
        head = self._file.read(_HEADER.size)
        if len(head) < _HEADER.size or not head.startswith(MAGIC):
            raise ModelError(
                f"{self.path} is no file of logits: it does not begin with {MAGIC.decode()}",
                remedy="`ggplug perplexity --save-logits` and `llama-perplexity --save-all-logits` write such files",
            )
        _, n_ctx, self.n_vocab, count = _HEADER.unpack(head)
        if n_ctx < 3 or self.n_vocab < 1 or count < 1:
            raise ModelError(
                f"{self.path} is damaged: it has {count} chunks of {n_ctx} tokens of a vocabulary of {self.n_vocab}",
                got=(count, n_ctx, self.n_vocab),
            )
        self._n_rows, self._row = n_ctx - 1 - n_ctx // 2, _row_bytes(self.n_vocab)
        self._begin = _HEADER.size + 4 * count * n_ctx
        wanted, there = self._begin + count * self._n_rows * self._row, os.fstat(self._file.fileno()).st_size
        if there < wanted:
            raise ModelError(
                f"{self.path} is truncated: {count} chunks of {n_ctx} tokens take {wanted} bytes, and it has {there}",
                got=there,
                wanted=wanted,
                remedy="write it again",
            )
        tokens = np.frombuffer(self._file.read(4 * count * n_ctx), "<i4").astype(np.int64)
        self.chunks: npt.NDArray[np.int64] = tokens.reshape(count, n_ctx)

    def read(self, chunk: int, first: int, count: int) -> Floats:
        """log p of all tokens after ``count`` tokens of a chunk, from its token ``first`` on: ``(count, n_vocab)``.

        Raises ModelError for numbers that are no probabilities, OSError.
        """
        row = chunk * self._n_rows + first - self.chunks.shape[1] // 2
        with naming(self.path):
            self._file.seek(self._begin + row * self._row)
            data = self._file.read(count * self._row)
        if len(data) < count * self._row:
            raise ModelError(f"{self.path} became shorter while it was read")
        found = np.frombuffer(data, np.uint8).reshape(count, self._row)
        scale, least = np.hsplit(found[:, :_SCALE].copy().view("<f4").astype(np.float32), 2)
        steps = found[:, _SCALE : _SCALE + 2 * self.n_vocab].copy().view("<u2")
        with np.errstate(over="ignore", invalid="ignore"):
            logs: Floats = steps * scale + least
            sums = np.exp(logs.astype(np.float64)).sum(axis=1)
        if not (np.abs(sums - 1) <= _SUM).all():
            raise ModelError(
                f"{self.path} is damaged: probabilities of its chunk {chunk} do not add up to 1",
                got=chunk,
                remedy="write it again",
            )
        return logs

    def __enter__(self) -> BaseLogits:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
