"""Passes the texts of a request from the batcher's thread to the event loop."""

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
    """The next piece of the text with the number ``index``.

    ``scores``: those of the tokens that are complete with this piece.  ``finish``: OpenAI's ``finish_reason`` if the
    text ends here.
    """

    index: int
    text: str
    scores: list[Scored] = field(default_factory=list)
    finish: str | None = None


class ClientDisconnected(Exception):
    """The client closed the connection."""


class Answers:
    """Generates the texts of a request, and yields their pieces in a coroutine.

    ``generated_tokens``: number of tokens so far.  Create it in the event loop that runs :meth:`deltas`; :meth:`submit`
    may be called from another thread.
    """

    def __init__(self, texts: Sequence[Text], ends: frozenset[int]) -> None:
        self.texts = texts
        self.generated_tokens = 0
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._requests = [
            Request(text.prompt, text.choose, text.max_tokens, ends, listener=partial(self._listen, number))
            for number, text in enumerate(texts)
        ]

    def submit(self, batcher: Batcher) -> None:
        """Submits all texts to the batcher, or none.  Raises as its ``check`` and ``submit`` do."""
        batcher.check(len(self._requests))
        try:
            for request in self._requests:
                batcher.submit(request)
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Cancels all texts."""
        for request in self._requests:
            request.cancel()

    def leave(self) -> None:
        """Cancels all texts; :meth:`deltas` then raises ClientDisconnected."""
        self.cancel()
        self._events.put_nowait((0, ClientDisconnected()))

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of the prompts; the prompt of several texts counts once."""
        return sum(len(prompt) for prompt in {id(text.prompt): text.prompt for text in self.texts}.values())

    @property
    def reused_tokens(self) -> int:
        """Number of tokens of the prompts that were taken from the KV cache."""
        return sum(request.reused for request in self._requests)

    async def deltas(self) -> AsyncIterator[Delta]:
        """Yields pieces as they come, until all texts have ended.

        Raises the error of a computation, Problem if the server shuts down, and ClientDisconnected after :meth:`leave`.
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
            delta = self._delta(index, event, kept[index])
            if delta.finish is not None:
                left.discard(index)
            if delta.text or delta.finish is not None:
                yield delta

    def _delta(self, index: int, event: int | Finish, kept: deque[LogProbability]) -> Delta:
        text = self.texts[index]
        if isinstance(event, Finish):
            delta = Delta(index, text.detokenizer.finish())  # what was held back may complete a stop string
            delta.finish = str((Finish.STOP if text.detokenizer.stopped else event).value)
        else:
            self.generated_tokens += 1
            delta = Delta(index, text.detokenizer.push(event))
            if text.scores is not None:
                kept.append(text.scores.found.popleft())
            if text.detokenizer.stopped:
                self._requests[index].cancel()
                delta.finish = Finish.STOP.value
        if delta.text or delta.finish is not None:  # others are not sent
            delta.scores = [Scored(kept.popleft(), each) for each in text.detokenizer.token_texts]
            text.detokenizer.token_texts.clear()
        return delta

    def _listen(self, index: int, event: Event) -> None:
        """Puts an event of a request into the event loop's queue.  Called by the batcher's thread."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, (index, event))
        except RuntimeError:  # the event loop has ended
            self._requests[index].cancel()
