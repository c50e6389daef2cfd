"""Drafts of a head, which reads what the model has computed of the text (:mod:`ggplug_models.networks.heads`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from ggplug.errors import ModelError, ParameterError
from ggplug_models.checks.arguments import number
from ggplug_models.generation.drafts import MOST, Drafts, probability
from ggplug_models.networks.heads import Head
from ggplug_models.state.session import LanguageModel, Session
from ggplug_models.state.steps import VECTORS, Outputs

Floats = npt.NDArray[np.float32]


class HeadDrafts(Drafts):
    """Drafts the most probable tokens of a head.

    ``session``: of the head, in which the drafts have the sequence ``seq``; when its context is full, the head forgets
    what it has read.  The caller frees it.  ``least``: a draft ends before a token with a smaller probability.

    Raises ParameterError for a session of another kind of model.
    """

    def __init__(self, session: Session, seq: int = 0, *, most: int = MOST, least: float = 0.0) -> None:
        super().__init__(most)
        self.least = number("least", least, 0, 1)
        if not isinstance(session.model, Head):
            raise ParameterError(f"session must be that of a head, got {session!r}", got=session)
        self.head, self.names = session.model, session.model.names
        self.session, self.seq = session, seq
        self._begin = 0
        """The position of the first token whose vector was read.  The head has pairs for the tokens after it."""
        self._tokens: list[int] = []
        """The tokens whose vectors were read, but are in no pair yet, because the token after them was not known."""
        self._vectors: list[Floats] = []
        self._chained = _Vectors()

    def check(self, model: LanguageModel) -> None:
        super().check(model)
        if model is not self.head.model:
            raise ModelError(
                f"the head of these drafts reads what {self.head.model!r} computes, not what {model!r} does",
                got=model,
                wanted=self.head.model,
                remedy="make the head for the model that generates",
            )

    def read(self, seq: int, place: int, tokens: Sequence[int], values: Sequence[Floats]) -> None:
        """Keeps the vectors of tokens.  The head reads at once many that certainly belong to the text, as a prompt."""
        vectors = list(self.head.encoded(values))
        self._rewind(place, np.zeros_like(vectors[0]))
        drafted = len(tokens) - 1 if len(tokens) <= self.most + 1 else 0
        self._tokens += tokens
        self._vectors += vectors
        pairs = len(self._tokens) - drafted - 1
        if pairs > self.most and self._fits(pairs):
            self._decode(self._tokens[1 : pairs + 1], self._vectors[:pairs])
            del self._tokens[:pairs], self._vectors[:pairs]

    @property
    def _end(self) -> int:
        """The position after the last token whose vector is known."""
        return self._waiting + len(self._tokens)

    @property
    def _waiting(self) -> int:
        """The position of the first token whose vector is in no pair yet."""
        return self._begin + self.session.length(self.seq)

    def _fits(self, count: int) -> bool:
        """Whether the session can take so many pairs; if not, all but the last token is forgotten."""
        if self.session.length(self.seq) + count <= self.session.n_ctx:
            return True
        self._begin = self._end - 1
        self.session.clear(self.seq)
        del self._tokens[:-1], self._vectors[:-1]
        return False

    def _rewind(self, place: int, unknown: Floats) -> None:
        """Forgets the tokens from position ``place`` on.  ``unknown``: stands for a vector that is not known."""
        if self._waiting <= place <= self._end:
            kept = place - self._waiting
            del self._tokens[kept:], self._vectors[kept:]
            return
        pairs = place - 1 - self._begin
        if 0 < pairs < self.session.length(self.seq):
            token = self.session.tokens(self.seq)[pairs - 1]
            if self.session.rewind(pairs, self.seq) == pairs:
                # The vector of this token is in a pair, and was not kept.  A guess may do without it.
                self._tokens, self._vectors = [token], [unknown]
                return
        self.session.clear(self.seq)
        self._begin, self._tokens, self._vectors = place, [], []

    def guess(self, text: Sequence[int], most: int) -> list[int]:
        waiting = self._waiting
        agree = takewhile(lambda pair: pair[0] == pair[1], zip(self._tokens, text[waiting:], strict=False))
        kept = len(list(agree))
        del self._tokens[kept:], self._vectors[kept:]
        if not kept or waiting + kept != len(text) - 1:
            return []
        most = min(most, self.session.n_ctx)
        self._fits(kept + most - 1)
        tokens, vectors = list(text[self._waiting + 1 :]), self._vectors
        certain = self.session.length(self.seq) + len(tokens)
        found: list[int] = []
        while len(found) < most:
            logits = self._decode(tokens, vectors, Outputs.LAST)
            best = int(logits.argmax())
            if self.least and not probability(logits, best) >= self.least:
                break
            found.append(self.head.token(best))
            tokens, vectors = found[-1:], [self._chained.last]
        self._tokens, self._vectors = [], []
        if self.session.rewind(certain, self.seq) != certain:  # the cells of its window were overwritten
            self._begin = len(text) - 1
        return found

    def _decode(self, tokens: list[int], vectors: list[Floats], outputs: Outputs = Outputs.NONE) -> Floats:
        """Has the head read pairs; returns the logits after the last one, if they are asked for."""
        reader = self._chained if outputs is Outputs.LAST else None
        given = {self.seq: np.stack(vectors)} if vectors else None
        found = self.session.decode({self.seq: tokens}, outputs, vectors=given, reader=reader)
        return found.get(self.seq, _NOTHING)


_NOTHING = np.empty(0, np.float32)


class _Vectors:
    """Keeps the vector that a head computed for the next pair."""

    names = (VECTORS,)

    def __init__(self) -> None:
        self.last = _NOTHING

    def read(self, seq: int, place: int, tokens: Sequence[int], values: Sequence[Floats]) -> None:
        self.last = values[0][-1]
