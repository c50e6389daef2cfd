"""Splits the text of an answer, as it is generated, into reasoning, text and tool calls."""

from __future__ import annotations

from collections.abc import Sequence

from ggplug_models.chat.answer import Answer, AnswerPiece
from ggplug_models.chat.formats.format import Format
from ggplug_models.chat.scanning import Scanner
from ggplug_models.chat.tools import Tool


class AnswerParser:
    """Reads an answer that comes in pieces.

    ``tools``: the tools that may be called; none: text that looks like a call is text.  ``opening``: the part of the
    answer with which the prompt ended, see :meth:`.Format.opening`; nothing is emitted for it.

    The pieces depend on where the text was cut only in their boundaries: joined, they are the same.
    """

    def __init__(self, format: Format, tools: Sequence[Tool] = (), opening: str = "") -> None:
        self._scan = Scanner()
        self._reader = format.read(self._scan, tools)
        self._done = False
        self._advance()
        if opening:
            self.push(opening)

    def push(self, text: str) -> list[AnswerPiece]:
        """Adds text, and returns the pieces that it completes."""
        if not text:
            return []
        self._scan.push(text)
        return self._advance()

    def finish(self) -> list[AnswerPiece]:
        """Ends the text, and returns the last pieces."""
        self._scan.ended = True
        return self._advance()

    def _advance(self) -> list[AnswerPiece]:
        if not self._done:
            self._done = next(self._reader, True) is True
        return self._scan.pieces()


def parse(format: Format, text: str, tools: Sequence[Tool] = (), opening: str = "") -> Answer:
    """The answer in a whole text."""
    parser = AnswerParser(format, tools, opening)
    return Answer.of([*parser.push(text), *parser.finish()])
