"""A model's answer in a chat: its text, its reasoning, and the functions that it calls."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True)
class CallPiece:
    """A piece of the tool call with the number ``index``: its name and id in the first one, then its arguments."""

    index: int
    arguments: str = ""
    name: str | None = None
    id: str | None = None


class AnswerPiece(NamedTuple):
    """A piece of an answer: of one of ``content``, ``reasoning`` and ``call``."""

    content: str = ""
    reasoning: str = ""
    call: CallPiece | None = None


@dataclass
class ToolCall:
    """A call of a function.  ``arguments``: a JSON object as text, as the model wrote it."""

    name: str
    arguments: str = ""
    id: str = ""

    @property
    def parsed(self) -> dict[str, Any]:
        """The arguments as a dict.  Raises ValueError if they are not a JSON object: the answer was cut."""
        try:
            found = json.loads(self.arguments)
        except RecursionError as error:
            raise ValueError(f"the arguments of {self.name} are nested too deeply") from error
        if not isinstance(found, dict):
            raise ValueError(f"the arguments of {self.name} are not a JSON object: {self.arguments!r:.200}")
        return found

    @property
    def message(self) -> dict[str, Any]:
        """The call as in a message of the OpenAI API."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass
class Answer:
    """A whole answer, or its beginning.  ``calls``: the functions that the model calls, in order."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)

    @classmethod
    def of(cls, pieces: Iterable[AnswerPiece]) -> Answer:
        """The answer made of its pieces."""
        found = cls()
        for piece in pieces:
            found.add(piece)
        return found

    def add(self, piece: AnswerPiece) -> None:
        """Adds the next piece."""
        self.content += piece.content
        self.reasoning += piece.reasoning
        if piece.call is not None:
            if piece.call.index == len(self.calls):
                self.calls.append(ToolCall(piece.call.name or "", id=piece.call.id or ""))
            self.calls[piece.call.index].arguments += piece.call.arguments

    @property
    def message(self) -> dict[str, Any]:
        """The message of the assistant, which continues the chat: as in the OpenAI API, with ``reasoning_content``."""
        found: dict[str, Any] = {"role": "assistant", "content": self.content or (None if self.calls else "")}
        if self.reasoning:
            found["reasoning_content"] = self.reasoning
        if self.calls:
            found["tool_calls"] = [call.message for call in self.calls]
        return found
