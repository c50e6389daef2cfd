"""Which cell holds which position: a line of cells for full attention, a ring of cells for a sliding window, a line
for a source text, and a line of which each cell stands for several positions."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

GRANULE = 64
"""The number of cells of a sequence is a multiple of this.

As many further cells take the padding tokens of a step.
"""

READ = 256
"""Cells are read in multiples of this many, so that one graph serves many steps; masked cells cost little."""


_VISIBLE, _MASKED = np.float16(0), np.float16(-np.inf)


def rounded(count: int) -> int:
    """``count`` rounded up to a multiple of :data:`READ`, or, if it is large, by at most an eighth."""
    step = max(READ, 1 << max((count - 1).bit_length() - 4, 0))
    return -(-count // step) * step


@functools.lru_cache(maxsize=8)
def _edge(span: int) -> npt.NDArray[np.float16]:
    """``span`` visible cells, then as many masked ones."""
    return np.repeat(np.array([_VISIBLE, _MASKED]), span)


class Cells:
    """The cells of blocks that attend to the last ``window`` positions (0: all), for each of ``n_seq`` sequences.

    Cell p modulo ``ring`` holds position p.  A ring holds a window and one step of ``n_step`` tokens, so a step never
    overwrites what its first token attends to.
    """

    def __init__(self, n_seq: int, n_ctx: int, n_step: int, window: int = 0) -> None:
        self.window = window
        needed = n_ctx if not window else min(n_ctx, window + n_step)
        self.ring = -(-needed // GRANULE) * GRANULE
        self.count = self.ring + GRANULE
        self._lost = np.zeros(n_seq, np.int64)  # the cells of positions before this were overwritten

    def span(self, longest: int) -> int:
        """Number of cells that a step reads if its longest sequence has ``longest`` positions."""
        return min(rounded(longest), self.ring)

    def serves(self, longest: int) -> int:
        """The largest number of positions with the same :meth:`span` as ``longest``."""
        span = self.span(longest)
        return span if span < self.ring else sys.maxsize

    def n_rows(self, n: int) -> int:
        """Number of rows in which a step of ``n`` tokens of a sequence stores something for it."""
        return n

    def rows(self, first: int, positions: Ints) -> npt.NDArray[np.int32]:
        """The rows of the cache in which a step stores its tokens, for the sequences from ``first`` on.

        positions: [S, n], -1 for padding tokens, at most :data:`GRANULE` of a sequence, at its end.  A row is a cell;
        the cells of a sequence are adjacent.
        """
        if positions.size == 1 and positions[0, 0] >= 0:  # as below, without computing arrays
            position = int(positions[0, 0])
            return np.array([first * self.count + (position % self.ring if self.window else position)], np.int32)
        n_seq, n = positions.shape
        cells = positions % self.ring if self.window else positions
        filling = positions < 0
        if filling.any():
            cells = np.where(filling, self.ring + np.arange(n) % GRANULE, cells)
        if first or n_seq > 1:
            cells = cells + (first + np.arange(n_seq))[:, np.newaxis] * self.count
        return cells.reshape(-1).astype(np.int32)

    def advance(self, seq: int, length: int) -> None:
        """Notes that a sequence will have ``length`` positions after this step."""
        self.lose(seq, length - self.ring)

    def lost(self, seq: int) -> int:
        """The position before which the cells of a sequence were overwritten."""
        return int(self._lost[seq])

    def lose(self, seq: int, position: int) -> None:
        """Notes that the cells of positions before ``position`` were overwritten."""
        self._lost[seq] = max(self._lost[seq], position)

    def keeps(self, seq: int, length: int) -> bool:
        """Whether the next token can attend to all its cells after a sequence is rewound to ``length`` positions."""
        return bool(self.losable(length)[1] >= self._lost[seq])

    def losable(self, length: int) -> tuple[int, int]:
        """The least and the largest value that :meth:`lost` may have for a sequence of ``length`` positions."""
        return max(length - self.ring, 0), max(length - self.window + 1, 0) if self.window else 0

    def clear(self, seq: int) -> None:
        """Notes that a sequence is empty, and so has no overwritten cells."""
        self._lost[seq] = 0

    def copied(self, source: int, target: int) -> None:
        """Notes that all cells of a sequence were copied to another one."""
        self._lost[target] = self._lost[source]

    def distances(self, positions: Ints, span: int) -> npt.NDArray[Any]:
        """What ALiBi multiplies by a slope: cells minus positions, F16 [S, 1, n, span]; only without a window."""
        apart = np.minimum(np.arange(span) - positions[:, np.newaxis, :, np.newaxis], 0)
        return np.asarray(apart, np.float16)

    def mask(self, first: int, positions: Ints, lengths: Ints, span: int) -> npt.NDArray[Any]:
        """The attention mask of a step: F16 [S, 1, n, span], 0 where a token attends to a cell, else -inf.

        positions: [S, n], -1 for padding tokens, which attend to nothing.  lengths: [S], with the step's tokens.
        """
        if not self.window and positions.size == 1:
            # As below, for one token, without computing anything.
            past = span - 1 - int(positions[0, 0])
            return _edge(span)[past : past + span].reshape(1, 1, 1, span)
        cell = np.arange(span)
        if not self.window:  # a line: cell p holds position p
            seen = cell <= positions[..., np.newaxis]
            return np.where(seen, _VISIBLE, _MASKED)[:, np.newaxis]
        held = cell + self.ring * ((lengths[:, np.newaxis] - 1 - cell) // self.ring)  # [S, span]
        lost = self._lost[first : first + len(lengths), np.newaxis]
        held = np.where((held >= 0) & (held >= lost), held, np.iinfo(np.int64).max)
        seen = held[:, np.newaxis] <= positions[..., np.newaxis]
        seen &= held[:, np.newaxis] >= self.earliest(positions)[..., np.newaxis]
        return np.where(seen, _VISIBLE, _MASKED)[:, np.newaxis]

    def earliest(self, positions: Ints) -> Ints:
        """The first position within the window of each one."""
        return positions - self.window + 1


class ChunkedCells(Cells):
    """The cells of blocks that attend to the positions of the same chunk of ``window`` ones."""

    def earliest(self, positions: Ints) -> Ints:
        return positions // self.window * self.window


SOURCE = -1
"""In the place of a window: that of blocks whose cells hold the tokens of a source text."""


class SourceCells(Cells):
    """The cells of the source texts of encoder-decoders, to all of which every token attends.

    ``lengths``: the number of tokens of the source text of each sequence.
    """

    def __init__(self, n_seq: int, n_ctx: int) -> None:
        super().__init__(n_seq, n_ctx, 0)
        self.lengths = np.zeros(n_seq, np.int64)

    def span(self, longest: int) -> int:
        return super().span(max(int(self.lengths.max()), 1))

    def serves(self, longest: int) -> int:
        return sys.maxsize

    def mask(self, first: int, positions: Ints, lengths: Ints, span: int) -> npt.NDArray[Any]:
        of_source = self.lengths[first : first + len(positions), np.newaxis, np.newaxis, np.newaxis]
        seen = np.where(np.arange(span) < of_source, _VISIBLE, _MASKED)
        return np.broadcast_to(seen, (len(positions), 1, positions.shape[1], span))


class CompressedCells(Cells):
    """Cells of which each stands for ``ratio`` adjacent positions; tokens attend to it once all of them are computed.

    Cell b stands for the positions from b times ``ratio`` on.
    """

    def __init__(self, n_seq: int, n_ctx: int, ratio: int) -> None:
        super().__init__(n_seq, max(n_ctx // ratio, 1), 0)
        self.ratio = ratio

    def span(self, longest: int) -> int:
        return super().span(max(longest // self.ratio, 1))

    def serves(self, longest: int) -> int:
        return (self.span(longest) + 1) * self.ratio - 1

    def n_rows(self, n: int) -> int:
        return -(-n // self.ratio)

    def completed(self, positions: Ints) -> Ints:
        """The cells that a step completes, for positions [S, n]: [S, n_rows(n)], -1 where there are no more."""
        begun, last = positions[:, :1], positions.max(axis=1, keepdims=True)
        cells = np.maximum(begun, 0) // self.ratio + np.arange(self.n_rows(positions.shape[1]))
        return np.where((cells + 1) * self.ratio <= last + 1, cells, -1)

    def rows(self, first: int, positions: Ints) -> npt.NDArray[np.int32]:
        return super().rows(first, self.completed(positions))

    def sources(self, ring: Cells, first: int, positions: Ints, before: int) -> npt.NDArray[np.int32]:
        """The rows of what each cell that a step completes is computed from: [S, n_rows(n), ``before`` + ratio].

        ``ring``: the cells of these positions, among which ``before`` earlier ones may be.  Rows of positions that
        there are not are any others.
        """
        cells = np.maximum(self.completed(positions), 0)[..., np.newaxis]
        positions = np.maximum(cells * self.ratio + np.arange(-before, self.ratio), 0)
        rows = ring.rows(first, positions.reshape(len(positions), -1))
        return rows.reshape(positions.shape)

    def advance(self, seq: int, length: int) -> None:
        """No cell is overwritten."""

    def losable(self, length: int) -> tuple[int, int]:
        return 0, 0

    def mask(self, first: int, positions: Ints, lengths: Ints, span: int) -> npt.NDArray[Any]:
        seen = np.arange(span) < (positions[..., np.newaxis] + 1) // self.ratio
        return np.where(seen, _VISIBLE, _MASKED)[:, np.newaxis]
