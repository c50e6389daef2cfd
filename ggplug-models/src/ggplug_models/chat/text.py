"""The answer to a chat, as it is generated."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator

from ggplug_models.chat.answer import Answer, AnswerPiece
from ggplug_models.chat.parsing import AnswerParser
from ggplug_models.generation.detokenizer import Detokenizer, GeneratedText


class ChatAnswer(GeneratedText):
    """Iterates over the pieces of an answer's text, without its reasoning and calls.

    ``answer``: what came so far, with reasoning and calls; it is whole after the iteration.  :meth:`pieces` iterates
    over all pieces instead.
    """

    def __init__(
        self, parser: AnswerParser, detokenizer: Detokenizer, tokens: Iterator[int], ends: Collection[int]
    ) -> None:
        self.answer = Answer()
        self._parser = parser
        self._last = AnswerPiece()
        super().__init__(detokenizer, tokens, ends)

    def __next__(self) -> str:
        while not (text := super().__next__()):
            pass
        return text

    def pieces(self) -> Iterator[AnswerPiece]:
        """Iterates over the pieces of the answer: of its text, its reasoning, and its calls."""
        for _ in iter(super().__next__, None):
            yield self._last

    def complete(self) -> Answer:
        """Generates the rest, and returns the whole answer."""
        for _ in self.pieces():
            pass
        return self.answer

    def _generated(self, text: Detokenizer, tokens: Iterator[int], ends: Collection[int]) -> Generator[str, None, None]:
        for generated in super()._generated(text, tokens, ends):
            yield from self._read(self._parser.push(generated))
        yield from self._read(self._parser.finish())

    def _read(self, pieces: list[AnswerPiece]) -> Iterator[str]:
        for piece in pieces:
            self.answer.add(piece)
            self._last = piece
            yield piece.content
