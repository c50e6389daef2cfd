"""Reads a text that comes in pieces, with functions that wait for more text where they need it.

A reader is a generator: it yields when the text that came so far does not decide what comes next, and is continued
when there is more.  What it emits depends on the text alone, not on where the pieces were cut.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from typing import TypeAlias, TypeVar

from ggplug_models.chat.answer import AnswerPiece, CallPiece

T = TypeVar("T")
Waiting: TypeAlias = Generator[None, None, T]
"""A reader with a result of type T."""

_SPACE = re.compile(r"\s*")
_QUOTED = re.compile(r'[^"\\]*')
_UNQUOTED = re.compile(r'[^"{}\[\]]*')
_SCALAR_END = re.compile(r"[\s,\]}<]")


class Marks:
    """Texts that a reader looks for; none of them is the beginning of another one."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(sorted(set(texts), key=len, reverse=True))
        beginnings = (_beginning(text) + r"\Z" for text in self.texts)
        whole = "|".join(map(re.escape, self.texts))
        self.pattern = re.compile(f"(?P<whole>{whole})|{'|'.join(beginnings)}" if self.texts else r"(?!)")


def _beginning(text: str) -> str:
    """A pattern of the beginnings of a text."""
    found = ""
    for character in reversed(text):
        found = re.escape(character) + (f"(?:{found})?" if found else "")
    return found


class Scanner:
    """The text of an answer that was not read yet, and the pieces that were found in it.

    ``ended``: whether no more text comes.
    """

    def __init__(self) -> None:
        self.ended = False
        self._text = ""
        self._at = 0
        self._held: int | None = None
        self._calls = 0
        self._pieces: list[AnswerPiece] = []

    def push(self, text: str) -> None:
        """Adds text."""
        start = self._at if self._held is None else self._held
        self._text = self._text[start:] + text
        self._at -= start
        self._held = None if self._held is None else 0

    def pieces(self) -> list[AnswerPiece]:
        """The pieces that were emitted since the last call."""
        found, self._pieces = self._pieces, []
        return found

    # -- what readers emit -------------------------------------------------------------------------

    def content(self, text: str) -> None:
        """Emits text of the answer."""
        self._emit(AnswerPiece(content=text))

    def reasoning(self, text: str) -> None:
        """Emits text of the reasoning."""
        self._emit(AnswerPiece(reasoning=text))

    def call(self, name: str, id: str = "") -> None:
        """Begins a tool call.  ``id``: by default a new one, of 9 letters and digits, as Mistral's templates want."""
        self._calls += 1
        self._held = None
        id = id or "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
        self._pieces.append(AnswerPiece(call=CallPiece(self._calls - 1, "", name, id)))

    def arguments(self, text: str) -> None:
        """Emits a piece of the arguments of the call that began last."""
        self._emit(AnswerPiece(call=CallPiece(self._calls - 1, text)))

    def _emit(self, piece: AnswerPiece) -> None:
        before = self._pieces[-1] if self._pieces else None
        if before is not None and (before.call is None) == (piece.call is None):
            if piece.call is None and bool(before.content) == bool(piece.content):
                self._pieces[-1] = AnswerPiece(before.content + piece.content, before.reasoning + piece.reasoning)
                return
            if piece.call is not None and before.call is not None:
                more = before.call.arguments + piece.call.arguments
                self._pieces[-1] = AnswerPiece(call=replace(before.call, arguments=more))
                return
        self._pieces.append(piece)

    # -- positions ---------------------------------------------------------------------------------

    def hold(self) -> None:
        """Keeps the text from here on, so that :meth:`rewind` can go back; the beginning of a call ends this."""
        self._held = self._at

    def rewind(self) -> None:
        """Goes back to where :meth:`hold` was called."""
        assert self._held is not None
        self._at, self._held = self._held, None

    def release(self) -> None:
        """Ends :meth:`hold`."""
        self._held = None

    @property
    def exhausted(self) -> bool:
        """Whether the whole text was read, and no more comes."""
        return self.ended and self._at == len(self._text)

    def take(self, count: int) -> str:
        """Reads ``count`` characters, which must be there."""
        found = self._text[self._at : self._at + count]
        self._at += count
        return found

    # -- readers -----------------------------------------------------------------------------------

    def spaces(self) -> Waiting[None]:
        """Skips white space."""
        while True:
            found = _SPACE.match(self._text, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._text) or self.ended:
                return
            yield

    def at(self, *texts: str) -> Waiting[str | None]:
        """The first of ``texts`` with which the text continues; it is not read."""
        longest = max(map(len, texts))
        while True:
            rest = self._text[self._at : self._at + longest]
            for text in texts:
                if rest.startswith(text):
                    return text
                if text.startswith(rest) and not self.ended:
                    break
            else:
                return None
            yield

    def skip(self, *texts: str) -> Waiting[bool]:
        """Reads white space and the first of ``texts`` that follows; False: none follows.  An empty text is skipped."""
        yield from self.spaces()
        found = yield from self.at(*texts)
        self.take(len(found or ""))
        return found is not None

    def skip_to(self, *texts: str) -> Waiting[bool]:
        """Skips white space; whether one of ``texts`` follows, which is not read."""
        yield from self.spaces()
        return (yield from self.at(*texts)) is not None

    def next(self) -> Waiting[str]:
        """The next character, which is not read; empty at the end."""
        while self._at == len(self._text) and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    def until(self, marks: Marks, emit: Callable[[str], None]) -> Waiting[str | None]:
        """Passes text to ``emit`` up to a mark, which is not read; returns the mark, or None at the end of the text."""
        while True:
            found = marks.pattern.search(self._text, self._at)
            end = found.start() if found else len(self._text)
            if end > self._at:
                emit(self.take(end - self._at))
            if found and (whole := found["whole"]) is not None:
                return str(whole)
            if self.ended:
                if self._at < len(self._text):
                    emit(self.take(len(self._text) - self._at))
                return None
            yield

    def text(self, marks: Marks) -> Waiting[tuple[str, str | None]]:
        """The text up to a mark, and the mark, which is not read."""
        parts: list[str] = []
        mark = yield from self.until(marks, parts.append)
        return "".join(parts), mark

    def json(self, emit: Callable[[str], None]) -> Waiting[bool]:
        """Passes a JSON value to ``emit``, in pieces; False if the text ends before it."""
        depth, quoted = 0, False
        if (yield from self.next()) not in ("{", "[", '"'):
            while not (found := _SCALAR_END.search(self._text, self._at)) and not self.ended:
                yield
            if found is None or found.start() > self._at:
                emit(self.take((found.start() if found else len(self._text)) - self._at))
            return found is not None
        while True:
            end = self._at
            while end < len(self._text):
                pattern = _QUOTED if quoted else _UNQUOTED
                found = pattern.match(self._text, end)
                assert found is not None
                end = found.end()
                character = self._text[end : end + 1]
                if character == "\\":
                    if end + 2 > len(self._text):
                        break  # the next character belongs to the escape
                    end += 2
                    continue
                end += len(character)
                if character == '"':
                    quoted = not quoted
                elif character:
                    depth += 1 if character in "{[" else -1
                if character and not quoted and depth == 0:
                    emit(self.take(end - self._at))
                    return True
            if end > self._at:
                emit(self.take(end - self._at))
            if self.ended:
                if self._at < len(self._text):
                    emit(self.take(len(self._text) - self._at))
                return False
            yield

    def python(self) -> Waiting[str]:
        """The text of a literal of Python: up to a comma or a bracket that belongs to what is around it."""
        end, depth, quote = self._at, 0, ""
        while True:
            while end < len(self._text):
                character = self._text[end]
                if quote:
                    if character == "\\":
                        end += 1
                    elif character == quote:
                        quote = ""
                elif character in "\"'":
                    quote = character
                elif character in "([{":
                    depth += 1
                elif depth == 0 and character in ",)]}":
                    return self.take(end - self._at)
                elif character in ")]}":
                    depth -= 1
                end += 1
            if self.ended:
                return self.take(len(self._text) - self._at)
            read = end - self._at  # adding text moves positions
            yield
            end = self._at + read

    def json_text(self) -> Waiting[str | None]:
        """A JSON value as text; None if the text ends before it."""
        parts: list[str] = []
        complete = yield from self.json(parts.append)
        return "".join(parts) if complete else None
