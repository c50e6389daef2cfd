"""Limits the number of tokens of an answer's reasoning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ggplug_models.sampling.sampler import Constraint


class ReasoningBudget:
    """A :class:`~ggplug_models.sampling.Constraint` that ends the reasoning after some tokens.

    ``most``: maximum number of tokens of the reasoning.  ``start``, ``end``: the tokens of its marks; a reasoning that
    the prompt has opened ``reasons`` from the first token on.  ``message``: tokens before the end, if it is forced.
    ``inner``: another constraint that applies as well; it must allow these tokens.
    """

    def __init__(
        self,
        most: int,
        start: Sequence[int],
        end: Sequence[int],
        n_vocab: int,
        *,
        reasons: bool,
        message: Sequence[int] = (),
        inner: Constraint | None = None,
    ) -> None:
        self._most = most
        self._marks = list(start), list(end)
        self._forced_text = [*message, *end]
        self._n_vocab = n_vocab
        self._reasons = reasons
        self._inner = inner
        self.begin()

    def begin(self) -> None:
        """Starts a new text."""
        self._within = self._reasons
        self._done = False
        self._used = 0
        self._tail: list[int] = []
        self._forced: list[int] = []
        if self._inner is not None:
            self._inner.begin()
        self._force()

    def allowed(self) -> npt.NDArray[np.bool_]:
        """The tokens that may come next, booleans ``(n_vocab,)``."""
        if self._forced:
            found = np.zeros(self._n_vocab, np.bool_)
            found[self._forced[0]] = True
            return found
        return np.ones(self._n_vocab, np.bool_) if self._inner is None else self._inner.allowed()

    def accept(self, token: int) -> None:
        """Advances by a token."""
        if self._inner is not None:
            self._inner.accept(token)
        if self._forced:
            self._forced.pop(0)
            self._done = self._done or not self._forced
            return
        if self._done:
            return
        start, end = self._marks
        longest = max(len(start), len(end))
        self._tail = [*self._tail, token][-longest:]
        if not self._within:
            self._within = bool(start) and self._tail[-len(start) :] == start
        elif self._tail[-len(end) :] == end:
            self._done = True
        else:
            self._used += 1
        self._force()

    def _force(self) -> None:
        if self._within and not self._done and self._used >= self._most:
            end = self._marks[1]
            begun = range(min(len(end) - 1, self._used), 0, -1)
            written = next((count for count in begun if self._tail[-count:] == end[:count]), 0)
            self._forced = end[written:] if written else list(self._forced_text)
