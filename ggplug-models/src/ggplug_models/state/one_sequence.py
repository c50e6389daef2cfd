"""One sequence of a session as a session of its own, so that it can be saved and restored alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from ggplug.sharing import Claim
from ggplug_models.state.session import Session


class OneSequence:
    """What :mod:`.session_files` needs of a session, for the sequence ``seq`` of another session."""

    n_seq = 1

    def __init__(self, session: Session, seq: int) -> None:
        self._session = session
        self._seq = seq
        self.n_ctx = session.n_ctx
        self.micro_batch = session.micro_batch
        self.model = session.model
        memory = session.memory
        self.memory: Any = SimpleNamespace(of_sequence=lambda _: memory.of_sequence(seq), type=memory.type)

    def tokens(self, seq: int) -> tuple[int, ...]:
        """The tokens of the sequence."""
        return self._session.tokens(self._seq)

    def source(self, seq: int) -> tuple[int, ...]:
        """The tokens of the source text of the sequence."""
        return self._session.source(self._seq)

    def overwritten(self, seq: int) -> list[int]:
        """See :meth:`.Session.overwritten`."""
        return self._session.overwritten(self._seq)

    def overwritable(self, length: int) -> list[tuple[int, int]]:
        """See :meth:`.Session.overwritable`."""
        return self._session.overwritable(length)

    def clear(self) -> None:
        """Removes the tokens of the sequence."""
        self._session.clear(self._seq)

    def locked(self) -> Claim:
        """Locks the model."""
        return self._session.locked()

    def adopt(self, seq: int, tokens: Sequence[int], overwritten: Sequence[int], source: Sequence[int]) -> None:
        """Sets the tokens of the sequence and its source text."""
        self._session.adopt(self._seq, tokens, overwritten, source)

    def adapters(self, seq: int) -> str:
        """See :meth:`.Session.adapters`."""
        return self._session.adapters(self._seq)

    def patches(self, seq: int) -> str:
        """See :meth:`.Session.patches`."""
        return self._session.patches(self._seq)

    def patches_in_effect(self) -> str:
        """See :meth:`.Session.patches_in_effect`."""
        return self._session.patches_in_effect()

    def adapt_as(self, adapters: Mapping[int, str | None]) -> None:
        """See :meth:`.Session.adapt_as`."""
        self._session.adapt_as({self._seq: adapters[0]})
