"""Limits the number of tokens of an answer's reasoning."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ggplug_models.sampling.sampler import Constraint
from ggplug_models.tokenizers import Tokenizer


class ReasoningBudget:
    """A :class:`~ggplug_models.sampling.Constraint` that ends the reasoning after some tokens.

    ``most``: maximum number of tokens of a reasoning, or some more up to the end of a character.  ``start``, ``ends``:
    the mark at its beginning, and those at which it ends, of which the first one is forced.  They are found in the
    text, because a token may have the end of a mark and what follows it.  A reasoning that the prompt has opened
    ``reasons`` from the first token on; another one begins the answer, or, if a model reasons ``again``, may begin
    anywhere.  ``message``: a text before the mark that is forced.  ``inner``: another constraint that applies as well;
    it must allow these texts.
    """

    def __init__(
        self,
        most: int,
        start: str,
        ends: Sequence[str],
        tokenizer: Tokenizer,
        n_vocab: int,
        *,
        reasons: bool,
        again: bool = False,
        message: str = "",
        inner: Constraint | None = None,
    ) -> None:
        self._most = most
        self._start, self._ends = start.encode(), [end.encode() for end in ends]
        self._tokenizer = tokenizer
        self._end = ends[0]
        self._closing = self._ids(self._end)
        self._forced_text = [*self._ids(message), *self._closing]
        self._n_vocab = n_vocab
        self._reasons, self._again = reasons, again
        self._inner = inner
        self.begin()

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, parse_special=True, add_special=False, begins=False)

    def begin(self) -> None:
        """Starts a new text."""
        self._within = self._reasons
        self._done = False
        self._used = 0
        self._tail = b""
        """What may be the beginning of a mark."""
        self._characters = getincrementaldecoder("utf-8")("replace")
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
            if not self._forced:
                self._close()
        elif not self._done:
            piece = self._tokenizer.piece(token)
            self._characters.decode(piece)
            self._read(self._tail + piece)

    def _read(self, text: bytes) -> None:
        """Looks for the marks in what may be the beginning of one, and the text of a token."""
        if self._within:
            self._used += 1
        elif self._start and self._start in text and (self._again or text.lstrip().startswith(self._start.lstrip())):
            self._within, text = True, text.partition(self._start)[2]
        elif not self._again:  # the reasoning is at the beginning of the answer, or there is none
            self._done = not self._start.lstrip().startswith(text.lstrip())
        if self._within and any(end in text for end in self._ends):
            self._close()
            return
        marks = self._ends if self._within else [self._start]
        kept = max(map(len, marks)) - 1 if self._within or self._again else len(text)
        self._tail = text[max(len(text) - kept, 0) :]
        self._force()

    def _close(self) -> None:
        """Ends a reasoning."""
        self._within, self._used, self._tail = False, 0, b""
        self._done = not self._again

    def _force(self) -> None:
        within_character = self._characters.getstate()[0]
        if self._within and self._used >= self._most and not within_character:
            begun = self._begun()
            self._forced = self._ids(self._end[begun:]) if begun else list(self._forced_text)

    def _begun(self) -> int:
        """Number of characters of the mark at the end that the text ends with; a control token is not begun."""
        if self._tokenizer.is_control(self._closing[0]):
            return 0
        end = self._end
        return next((count for count in range(len(end) - 1, 0, -1) if self._tail.endswith(end[:count].encode())), 0)
