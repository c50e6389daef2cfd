"""The texts of one request, as they come from the batcher's thread to the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from ggplug_models.generation.finish import Finish
from ggplug_models.serve.batcher import Batcher
from ggplug_models.serve.log_probabilities import LogProbability, Scored
from ggplug_models.serve.problems import shutting_down
from ggplug_models.serve.request import Event, Request
from ggplug_models.serve.writer import Text


@dataclass
class Delta:
    """What comes next of the text with the number ``index``; ``finish``: why it ends with this, in OpenAI's words.

    ``scores``: of the tokens whose text is given up to here, and was not before.
    """

    index: int
    text: str
    scores: list[Scored] = field(default_factory=list)
    finish: str | None = None


class ClientDisconnected(Exception):
    """The client has left."""


class Answers:
    """Has texts written, and gives their pieces to a coroutine.

    ``written``: tokens so far.  Made in the event loop, in which :meth:`pieces` runs; :meth:`submit` may be called
    from another thread.
    """

    def __init__(self, texts: Sequence[Text], ends: frozenset[int]) -> None:
        self.texts = texts
        self.written = 0
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._requests = [
            Request(text.prompt, text.choose, text.max_tokens, ends, listener=partial(self._hear, number))
            for number, text in enumerate(texts)
        ]

    def submit(self, batcher: Batcher) -> None:
        """Hands all texts to the batcher, or none.  Raises what ``check`` and ``submit`` of it do."""
        batcher.check(len(self._requests))
        try:
            for request in self._requests:
                batcher.submit(request)
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Frees the places of all texts."""
        for request in self._requests:
            request.cancel()

    def leave(self) -> None:
        """The client has left: as :meth:`cancel`, and :meth:`pieces` raises ClientDisconnected."""
        self.cancel()
        self._events.put_nowait((0, ClientDisconnected()))

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts; one that several texts continue counts once."""
        return sum(len(prompt) for prompt in {id(text.prompt): text.prompt for text in self.texts}.values())

    @property
    def reused_tokens(self) -> int:
        """Tokens of the prompts that were not computed again."""
        return sum(request.reused for request in self._requests)

    async def pieces(self) -> AsyncIterator[Delta]:
        """Pieces as they come, until all texts have ended.

        Raises what failed, Problem if the server ends, and ClientDisconnected after :meth:`leave`.
        """
        left = set(range(len(self.texts)))
        kept: dict[int, deque[LogProbability]] = {number: deque() for number in left}
        while left:
            index, event = await self._events.get()
            if index not in left and not isinstance(event, ClientDisconnected):
                continue
            if isinstance(event, BaseException):
                raise event
            if event is Finish.CANCELLED:
                raise shutting_down()
            piece = self._piece(index, event, kept[index])
            if piece.finish is not None:
                left.discard(index)
            if piece.text or piece.finish is not None:
                yield piece

    def _piece(self, index: int, event: int | Finish, kept: deque[LogProbability]) -> Delta:
        text = self.texts[index]
        if isinstance(event, Finish):
            piece = Delta(index, text.written.finish())  # a stop string may end in what was held back
            piece.finish = str((Finish.STOP if text.written.stopped else event).value)
        else:
            self.written += 1
            piece = Delta(index, text.written.push(event))
            if text.scores is not None:
                kept.append(text.scores.found.popleft())
            if text.written.stopped:
                self._requests[index].cancel()
                piece.finish = Finish.STOP.value
        if piece.text or piece.finish is not None:  # others are not sent
            piece.scores = [Scored(kept.popleft(), spelled) for spelled in text.written.spelled]
            text.written.spelled.clear()
        return piece

    def _hear(self, index: int, event: Event) -> None:
        """Called by the batcher's thread."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, (index, event))
        except RuntimeError:  # the loop has ended, and with it all who listened
            self._requests[index].cancel()
