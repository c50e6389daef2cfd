"""Which position lies in which cell: a line of cells for blocks that see everything, a ring for sliding windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

GRANULE = 64
"""Sequences have multiples of so many cells.

As many lie behind them, for tokens that only fill a step up.
"""

READ = 256
"""Cells are read in multiples of this many, so that one graph serves many steps: what is masked costs little."""


_SHOWN, _HIDDEN = np.float16(0), np.float16(-np.inf)


def rounded(count: int) -> int:
    """``count`` rounded up to whole :data:`READ`, and so that of many at most an eighth is too much."""
    step = max(READ, 1 << max((count - 1).bit_length() - 4, 0))
    return -(-count // step) * step


class Cells:
    """The cells of blocks that see ``window`` positions back (0: all), the same for each of ``n_seq`` sequences.

    Position p lies in cell p modulo ``ring``.  A ring has room for a window and one step of ``n_step`` tokens, so a
    step never overwrites what its first token sees.
    """

    def __init__(self, n_seq: int, n_ctx: int, n_step: int, window: int = 0) -> None:
        self.window = window
        needed = n_ctx if not window else min(n_ctx, window + n_step)
        self.ring = -(-needed // GRANULE) * GRANULE
        self.count = self.ring + GRANULE
        self._lost = np.zeros(n_seq, np.int64)  # positions before it were overwritten

    def span(self, longest: int) -> int:
        """How many cells a step has to read if the longest sequence ends at position ``longest``."""
        return min(rounded(longest), self.ring)

    def rows(self, first: int, positions: Ints) -> npt.NDArray[np.int32]:
        """The rows of a cache that tokens are written to, for sequences from ``first`` on.

        positions: [S, n], -1 for those that only fill up, at most :data:`GRANULE` of a sequence, at its end.  A row is
        a cell of a sequence, all cells of one together.
        """
        n_seq, n = positions.shape
        cells = positions % self.ring if self.window else positions
        filling = positions < 0
        if filling.any():
            cells = np.where(filling, self.ring + np.arange(n) % GRANULE, cells)
        if first or n_seq > 1:
            cells = cells + (first + np.arange(n_seq))[:, np.newaxis] * self.count
        return cells.reshape(-1).astype(np.int32)

    def advance(self, seq: int, length: int) -> None:
        """Notes that a sequence is about to have ``length`` positions."""
        self.lose(seq, length - self.ring)

    def lost(self, seq: int) -> int:
        """The position before which cells of a sequence were overwritten."""
        return int(self._lost[seq])

    def lose(self, seq: int, position: int) -> None:
        """Notes that cells of positions before this one were overwritten."""
        self._lost[seq] = max(self._lost[seq], position)

    def keeps(self, seq: int, length: int) -> bool:
        """Whether a sequence that is cut to ``length`` positions has all that the next one sees."""
        return bool(self.losable(length)[1] >= self._lost[seq])

    def losable(self, length: int) -> tuple[int, int]:
        """From and to which position cells of a sequence of ``length`` positions may be overwritten."""
        return max(length - self.ring, 0), max(length - self.window + 1, 0) if self.window else 0

    def clear(self, seq: int) -> None:
        """Forgets what was overwritten: the sequence is empty."""
        self._lost[seq] = 0

    def copied(self, source: int, target: int) -> None:
        """Notes that all cells of a sequence were copied to another one."""
        self._lost[target] = self._lost[source]

    def shown(self, first: int, positions: Ints, lengths: Ints, span: int) -> npt.NDArray[Any]:
        """The mask of a step: F16 [S, 1, n, span], 0 where a token sees a cell and else -inf.

        positions: [S, n], -1 for tokens that only fill up, which see nothing.  lengths: [S], with the step's tokens.
        """
        cell = np.arange(span)
        if not self.window:  # a line: what lies in a cell is its position
            seen = cell <= positions[..., np.newaxis]
            return np.where(seen, _SHOWN, _HIDDEN)[:, np.newaxis]
        held = cell + self.ring * ((lengths[:, np.newaxis] - 1 - cell) // self.ring)  # [S, span]
        lost = self._lost[first : first + len(lengths), np.newaxis]
        held = np.where((held >= 0) & (held >= lost), held, np.iinfo(np.int64).max)
        seen = held[:, np.newaxis] <= positions[..., np.newaxis]
        seen &= positions[..., np.newaxis] - held[:, np.newaxis] < self.window
        return np.where(seen, _SHOWN, _HIDDEN)[:, np.newaxis]
