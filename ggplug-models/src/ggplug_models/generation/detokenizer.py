"""Incremental detokenization: the text of generated tokens, up to a stop string."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from ggplug.errors import BusyError
from ggplug.sharing import one_thread_at_a_time
from ggplug.system.copying import Uncopied
from ggplug_models.generation.finish import Finish
from ggplug_models.sampling import StopStrings
from ggplug_models.tokenizers import Tokenizer


class TokenText(NamedTuple):
    """The part of a text that comes from one token.

    ``text``: empty if the token ends within a character.  ``data``: the bytes.  ``bare``: whether a leading space was
    removed.
    """

    text: str
    data: bytes
    bare: bool


class TokenTexts:
    """Assigns to each token its part of the text that was emitted: joined, the parts are that text.

    The joined bytes of the tokens are the bytes of the text, if these are UTF-8.
    """

    def __init__(self) -> None:
        self._waiting: deque[TokenText] = deque()
        self._emitted = 0
        """Number of characters emitted of the waiting tokens."""

    def add(self, token: TokenText) -> None:
        """Adds a token; none of its text was emitted so far."""
        self._waiting.append(token)

    def rest(self, text: str) -> None:
        """Appends ``text`` to the last token: what stands for its incomplete bytes at the end."""
        if text:
            last = self._waiting.pop()
            self._waiting.append(last._replace(text=last.text + text))

    def emit(self, text: str, *, keep_last: bool = False) -> list[TokenText]:
        """Notes that ``text`` was emitted, and returns the tokens that are complete now.

        ``keep_last``: whether the last token is kept, because :meth:`rest` may follow.
        """
        self._emitted += len(text)
        found = []
        while len(self._waiting) > keep_last:
            token = self._waiting[0]
            # The bytes of a character are emitted together with the character.
            if len(token.text) > self._emitted or (token.data and not self._emitted):
                break
            found.append(self._waiting.popleft())
            self._emitted -= len(token.text)
        return found

    def cut(self) -> list[TokenText]:
        """Ends the text, and returns the emitted part of a token that the end cuts."""
        if not self._emitted:
            return []
        token = self._waiting[0]
        text, tail = token.text[: self._emitted], token.text[self._emitted :].encode()
        place = token.data.rfind(tail)
        return [token._replace(text=text, data=token.data[:place] if place >= 0 else text.encode())]


class Detokenizer:
    """Converts generated tokens to text, in pieces that never end within a character; control tokens have no text.

    ``stop``: stop strings, which end the text and are not part of it.  ``begins``: True if the tokens start a text, as
    an answer in a chat does; False if they continue one, and so keep a leading space.  ``keep_texts``: whether
    :attr:`token_texts` lists the part of the text that each token stands for.  ``keep``: control tokens whose names are
    a part of the text.  Raises ParameterError for stop strings that are empty or not strings.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        *,
        begins: bool = True,
        keep_texts: bool = False,
        keep: Collection[int] = (),
    ) -> None:
        self._stream = tokenizer.stream(skip_special=True, begins=begins, keep=keep)
        self._stops = StopStrings(stop)
        self._texts = TokenTexts() if keep_texts else None
        self.token_texts: list[TokenText] = []

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; no text comes after it."""
        return self._stops.stopped is not None

    @property
    def stopped_at(self) -> str | None:
        """The stop string that was found."""
        return self._stops.stopped

    def push(self, token: int) -> str:
        """Adds a token, and returns the text that can be emitted now."""
        stream = self._stream
        bare, data = stream.skips_space, stream.bytes_of(token)
        text = stream.push(token)
        emitted = self._stops.push(text)
        if self._texts is not None:
            self._texts.add(TokenText(text, data, bare))
            self._assign(self._texts, emitted, keep_last=stream.within_character and not self.stopped)
        return emitted

    def finish(self) -> str:
        """Ends the tokens, and returns the text that was held back."""
        rest = self._stream.finish()
        emitted = self._stops.push(rest) + self._stops.finish()
        if self._texts is not None:
            self._texts.rest(rest)
            self._assign(self._texts, emitted, keep_last=False)
        return emitted

    def _assign(self, texts: TokenTexts, emitted: str, *, keep_last: bool) -> None:
        self.token_texts += texts.emit(emitted, keep_last=keep_last)
        if self.stopped:
            self.token_texts += texts.cut()
            self._texts = None


class GeneratedText(Uncopied, Iterator[str]):
    """Iterates over the pieces of a generated text, up to a stop string or the last token.

    ``finish``: why the text ended, a :class:`~ggplug_models.Finish`; None before the end.  A second thread that takes a
    piece at the same time gets BusyError.
    """

    _INSTEAD = "generate another one"

    def __init__(self, detokenizer: Detokenizer, tokens: Iterator[int], ends: Collection[int]) -> None:
        self.finish: Finish | None = None
        self._entered_by = 0
        self._closed = False
        self._pieces = self._generated(detokenizer, tokens, ends)

    def __next__(self) -> str:
        if self._closed:
            self._end()
        return self._next()

    def close(self) -> None:
        """Ends the text: at once, or, while another thread computes a piece, with the next token.

        Draft tokens that were not used yet are removed from the session.
        """
        self._closed = True
        with suppress(BusyError):  # the thread that computes a piece checks _closed at each token
            self._end()

    @one_thread_at_a_time
    def _next(self) -> str:
        return next(self._pieces)

    @one_thread_at_a_time
    def _end(self) -> None:
        self._pieces.close()
        self.finish = self.finish or Finish.CANCELLED

    def _generated(self, text: Detokenizer, tokens: Iterator[int], ends: Collection[int]) -> Generator[str, None, None]:
        token = None
        for token in tokens:
            if self._closed:
                self.finish = Finish.CANCELLED
                return
            if piece := text.push(token):
                yield piece
            if text.stopped:
                self.finish = Finish.STOP
                return
        piece = text.finish()  # what was held back may complete a stop string
        self.finish = Finish.STOP if text.stopped or token in ends else Finish.LENGTH
        if piece:
            yield piece
