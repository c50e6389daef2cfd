"""The text of an answer, token by token."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from ggplug.errors import BusyError
from ggplug.sharing import alone
from ggplug_models.generation.finish import Finish
from ggplug_models.sampling import StopStrings
from ggplug_models.tokenizers import Tokenizer


class Spelled(NamedTuple):
    """What a token adds to a text: ``text``, which is empty while a character lacks bytes, and ``data``, its bytes.

    ``bare``: without the space that it may begin with.
    """

    text: str
    data: bytes
    bare: bool


class Spelling:
    """The tokens of a text, as parts of it: joined, their texts are the text that was given.

    Joined, their bytes are the text's, too, where these are UTF-8.
    """

    def __init__(self) -> None:
        self._waiting: deque[Spelled] = deque()
        self._given = 0
        """Characters that were given, of tokens that wait."""

    def add(self, token: Spelled) -> None:
        """A token comes next, of whose text nothing was given."""
        self._waiting.append(token)

    def rest(self, text: str) -> None:
        """What the text ends with, for bytes of the last token that are no character."""
        if text:
            last = self._waiting.pop()
            self._waiting.append(last._replace(text=last.text + text))

    def give(self, text: str, *, keep_last: bool = False) -> list[Spelled]:
        """More of the text was given: the tokens that are complete by that.

        ``keep_last``: whether the last one that was added may get a :meth:`rest`.
        """
        self._given += len(text)
        found = []
        while len(self._waiting) > keep_last:
            token = self._waiting[0]
            # Bytes of a character belong to the text when the character does.
            if len(token.text) > self._given or (token.data and not self._given):
                break
            found.append(self._waiting.popleft())
            self._given -= len(token.text)
        return found

    def cut(self) -> list[Spelled]:
        """Nothing more is given: what was, of a token that goes on behind the end."""
        if not self._given:
            return []
        token = self._waiting[0]
        text, tail = token.text[: self._given], token.text[self._given :].encode()
        place = token.data.rfind(tail)
        return [token._replace(text=text, data=token.data[:place] if place >= 0 else text.encode())]


class Written:
    """Turns the tokens of an answer into text, in pieces that never end within a character.

    ``stop``: strings that end it; they are not part of it.  ``begins``: whether the tokens begin a text, as the answer
    in a chat does; False for what continues a text, which keeps a space that it begins with.  Control tokens are left
    out.  ``spells``: whether :attr:`spelled` gets the tokens of the text that was given, those before a stop string.
    Raises ParameterError for stop strings that are none.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, begins: bool = True, spells: bool = False
    ) -> None:
        self._stream = tokenizer.stream(skip_special=True, begins=begins)
        self._stops = StopStrings(stop)
        self._spelling = Spelling() if spells else None
        self.spelled: list[Spelled] = []

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; nothing comes after it."""
        return self._stops.stopped is not None

    def push(self, token: int) -> str:
        """The text that is certain now."""
        stream = self._stream
        bare, data = stream.skips_space, stream.bytes_of(token)
        text = stream.push(token)
        given = self._stops.push(text)
        if self._spelling is not None:
            self._spelling.add(Spelled(text, data, bare))
            self._spell(self._spelling, given, keep_last=stream.within_character and not self.stopped)
        return given

    def finish(self) -> str:
        """What was held back, now that no more tokens come."""
        rest = self._stream.finish()
        given = self._stops.push(rest) + self._stops.finish()
        if self._spelling is not None:
            self._spelling.rest(rest)
            self._spell(self._spelling, given, keep_last=False)
        return given

    def _spell(self, spelling: Spelling, given: str, *, keep_last: bool) -> None:
        self.spelled += spelling.give(given, keep_last=keep_last)
        if self.stopped:
            self.spelled += spelling.cut()
            self._spelling = None


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
