"""What every API's replies have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ggplug_models.serve.answers import Answers, Delta
from ggplug_models.serve.bodies.asked import Asked
from ggplug_models.serve.http.event_stream import event
from ggplug_models.serve.problems import Problem
from ggplug_models.tokenizers import Tokenizer


@dataclass(frozen=True)
class Served:
    """The model of a server, as replies name it.

    ``fingerprint``: of the programs that computed an answer.  ``n_ctx``: context length of a slot.
    """

    name: str
    fingerprint: str
    tokenizer: Tokenizer
    n_ctx: int
    slots: int


class Reply(ABC):
    """Writes the answers to one request in the form of one API, whole or as a stream.

    ``body``: the request, for APIs that repeat it.
    """

    MEDIA_TYPE: ClassVar[str] = "text/event-stream"

    def __init__(self, served: Served, body: Any, asked: Asked, answers: Answers) -> None:
        self.served = served
        self.body = body
        self.asked = asked
        self.answers = answers

    @abstractmethod
    def whole(self) -> Any:
        """The whole response, as JSON."""

    def begin(self) -> Iterator[bytes]:
        """What a stream begins with."""
        yield from ()

    @abstractmethod
    def piece(self, delta: Delta) -> Iterator[bytes]:
        """The events for a piece of a text."""

    def end(self) -> Iterator[bytes]:
        """What a stream ends with, after the last piece."""
        yield from ()

    def failed(self, problem: Problem) -> bytes:
        """The event for an error in a stream, after its status was sent."""
        return self.event(problem.body)

    def event(self, data: Mapping[str, Any]) -> bytes:
        """An event with a JSON object."""
        return event(data)
