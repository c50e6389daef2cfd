"""The text of an answer, token by token."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import suppress

from ggplug.errors import BusyError
from ggplug.sharing import alone
from ggplug_models.finish import Finish
from ggplug_models.sampling import StopStrings
from ggplug_models.tokenizers import Tokenizer


class Written:
    """Turns the tokens of an answer into text, in pieces that never end within a character.

    ``stop``: strings that end it; they are not part of it.  ``begins``: whether the tokens begin a text, as the answer
    in a chat does; False for what continues a text, which keeps a space that it begins with.  Control tokens are left
    out.  Raises ParameterError for stop strings that are none.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, begins: bool = True) -> None:
        self._stream = tokenizer.stream(skip_special=True, begins=begins)
        self._stops = StopStrings(stop)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; nothing comes after it."""
        return self._stops.stopped is not None

    def push(self, token: int) -> str:
        """The text that is certain now."""
        return self._stops.push(self._stream.push(token))

    def finish(self) -> str:
        """What was held back, now that no more tokens come."""
        return self._stops.push(self._stream.finish()) + self._stops.finish()


class GeneratedText(Iterator[str]):
    """The text of tokens in pieces, as they come, up to a stop string or the last token.

    ``finish``: why the text ended, a :class:`~ggplug_models.Finish`; None before.  One thread at a time takes pieces:
    another gets BusyError.
    """

    def __init__(self, written: Written, tokens: Iterator[int], ends: Collection[int]) -> None:
        self.finish: Finish | None = None
        self._entered_by = 0
        self._closed = False
        self._pieces = self._written(written, tokens, ends)

    def __next__(self) -> str:
        if self._closed:
            self._end()
        return self._next()

    def close(self) -> None:
        """End the text here, or, while a piece is computed, with the next token; any thread may.

        Tokens that were computed ahead are forgotten.
        """
        self._closed = True
        with suppress(BusyError):  # what computes a piece looks at each token whether to go on
            self._end()

    @alone
    def _next(self) -> str:
        return next(self._pieces)

    @alone
    def _end(self) -> None:
        self._pieces.close()
        self.finish = self.finish or Finish.CANCELLED

    def _written(self, written: Written, tokens: Iterator[int], ends: Collection[int]) -> Generator[str, None, None]:
        token = None
        for token in tokens:
            if self._closed:
                self.finish = Finish.CANCELLED
                return
            if piece := written.push(token):
                yield piece
            if written.stopped:
                self.finish = Finish.STOP
                return
        piece = written.finish()  # a stop string may end in what was held back
        self.finish = Finish.STOP if written.stopped or token in ends else Finish.LENGTH
        if piece:
            yield piece
