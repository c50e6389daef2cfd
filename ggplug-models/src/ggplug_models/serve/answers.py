"""Passes the texts of a request from the batcher's thread to the event loop, and collects what was written."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from ggplug_models.chat.answer import Answer, AnswerPiece, ToolCall
from ggplug_models.generation.finish import Finish
from ggplug_models.serve.batcher import Batcher
from ggplug_models.serve.log_probabilities import LogProbability, Scored
from ggplug_models.serve.problems import shutting_down
from ggplug_models.serve.request import Event, Progress, Request
from ggplug_models.serve.timings import timings
from ggplug_models.serve.writer import Text


def arguments_of(call: ToolCall) -> Any:
    """The arguments of a call as a JSON value; none where an answer that was cut has only a part of them."""
    try:
        return json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return {}


@dataclass
class Delta:
    """The next piece of the text with the number ``index``.

    ``text``: as the model wrote it.  ``pieces``: what it means: content, reasoning, calls of tools.  ``scores``: those
    of the tokens that are complete with this piece.  ``tokens``: those since the last piece.  ``finish``: OpenAI's
    ``finish_reason`` if the text ends here; such a piece has nothing else.  ``progress``: of the prompt, in a piece
    without anything else.
    """

    index: int
    text: str = ""
    pieces: list[AnswerPiece] = field(default_factory=list)
    scores: list[Scored] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    progress: Progress | None = None


@dataclass
class Written(Answer):
    """What was written for one text so far: an answer, and how it came about.

    ``text``: as the model wrote it.  ``finish``: OpenAI's ``finish_reason``, at the end.  ``stop``: the stop string
    that ended the text.  ``parts``: the answer in its order, without the arguments of calls.
    """

    text: str = ""
    parts: list[AnswerPiece] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    scores: list[Scored] = field(default_factory=list)
    finish: str | None = None
    stop: str | None = None

    def append(self, delta: Delta) -> None:
        """Appends a piece."""
        self.text += delta.text
        for piece in delta.pieces:
            self.add(piece)
        self.tokens += delta.tokens
        self.scores += delta.scores
        self.finish = delta.finish or self.finish

    def add(self, piece: AnswerPiece) -> None:
        super().add(piece)
        if not self.parts or kind_of(self.parts[-1]) != kind_of(piece):
            self.parts.append(piece)
        elif piece.call is None:
            last = self.parts[-1]
            self.parts[-1] = AnswerPiece(last.content + piece.content, last.reasoning + piece.reasoning)


def kind_of(piece: AnswerPiece) -> str | int:
    """What a piece is part of: a ``"message"``, a ``"reasoning"``, or the call with this number."""
    return piece.call.index if piece.call is not None else "reasoning" if piece.reasoning else "message"


DELAY = 0.001
"""Seconds after which events are passed on.  The batcher's thread computes by then; before, both would need Python."""


class ClientDisconnected(Exception):
    """The client closed the connection."""


class Answers:
    """Generates the texts of a request, and yields their pieces in a coroutine.

    ``written``: what was written for each text so far.  Create it in the event loop that runs :meth:`deltas`;
    :meth:`submit` may be called from another thread.
    """

    def __init__(self, texts: Sequence[Text]) -> None:
        self.texts = texts
        self.written = [Written() for _ in texts]
        self._mailbox = _Mailbox.of(asyncio.get_running_loop())
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self.requests = [
            Request(
                text.prompt,
                text.choose,
                text.max_tokens,
                text.ends,
                slot=text.slot,
                shift=text.shift,
                reports=text.reports,
                lora=text.lora,
                scored=None if text.prompt_scores is None else text.prompt_scores.add,
                listener=partial(self._mailbox.put, self, number),
                flush=self._mailbox.flush,
            )
            for number, text in enumerate(texts)
        ]

    def submit(self, batcher: Batcher) -> None:
        """Submits all texts to the batcher, or none.  Raises as its ``check`` and ``submit`` do."""
        batcher.check(len(self.requests))
        try:
            for request in self.requests:
                batcher.submit(request)
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Cancels all texts."""
        for request in self.requests:
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
        return min(sum(request.reused for request in self.requests), self.prompt_tokens)

    @property
    def generated_tokens(self) -> int:
        """Number of generated tokens."""
        return sum(len(written.tokens) for written in self.written)

    def timings(self, index: int = 0, progress: Progress | None = None) -> dict[str, float]:
        """The timings of one of the texts; see :func:`.timings`."""
        return timings(self.requests[index], progress)

    async def deltas(self) -> AsyncIterator[Delta]:
        """Yields pieces as they come, until all texts have ended, and adds them to :attr:`written`.

        Raises the error of a computation, Problem if the server shuts down, and ClientDisconnected after :meth:`leave`.
        """
        left = set(range(len(self.texts)))
        kept: dict[int, deque[LogProbability]] = {number: deque() for number in left}
        tokens: dict[int, list[int]] = {number: [] for number in left}
        while left:
            index, event = await self._events.get()
            if index not in left and not isinstance(event, ClientDisconnected):
                continue
            if isinstance(event, BaseException):
                raise event
            if event is Finish.CANCELLED:
                raise shutting_down()
            if isinstance(event, Progress):
                yield Delta(index, progress=event)
                continue
            delta = self._delta(index, event, kept[index], tokens[index])
            finish, delta.finish = delta.finish, None
            delta.pieces = list(self._pieces(index, delta.text, last=finish is not None))
            written = self.written[index]
            if delta.text or delta.pieces or (finish and (delta.scores or delta.tokens)):
                written.append(delta)
                yield delta
            if finish is not None:
                left.discard(index)
                written.stop = self.texts[index].detokenizer.stopped_at
                last = Delta(index, finish="tool_calls" if written.calls and finish == Finish.STOP.value else finish)
                written.append(last)
                yield last

    def _pieces(self, index: int, text: str, *, last: bool) -> Iterator[AnswerPiece]:
        """What a piece of a text means."""
        parser = self.texts[index].parser
        if parser is not None:
            yield from parser.push(text)
            yield from parser.finish() if last else ()
        elif text:
            yield AnswerPiece(text)

    def _delta(self, index: int, event: int | Finish, kept: deque[LogProbability], tokens: list[int]) -> Delta:
        text = self.texts[index]
        if isinstance(event, Finish):
            delta = Delta(index, text.detokenizer.finish())  # what was held back may complete a stop string
            delta.finish = str((Finish.STOP if text.detokenizer.stopped else event).value)
        else:
            tokens.append(event)
            delta = Delta(index, text.detokenizer.push(event))
            if text.scores is not None:
                kept.append(text.scores.found.popleft())
            if text.detokenizer.stopped:
                self.requests[index].cancel()
                delta.finish = Finish.STOP.value
        if delta.text or delta.finish is not None:  # others are not sent
            delta.scores = [Scored(kept.popleft(), each) for each in text.detokenizer.token_texts]
            text.detokenizer.token_texts.clear()
            delta.tokens, tokens[:] = list(tokens), []
        return delta

    def put(self, index: int, event: Event) -> None:
        """Adds an event of the text with this number.  Called by the event loop."""
        self._events.put_nowait((index, event))


class _Mailbox:
    """Passes events from other threads to the texts that an event loop answers with, the events of a step together.

    All texts of a loop share one: waking a loop takes as long as several events.
    """

    _of_loops: ClassVar[WeakValueDictionary[int, _Mailbox]] = WeakValueDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: deque[tuple[Answers, int, Event]] = deque()

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> _Mailbox:
        """The mailbox of a loop; called by the loop's thread."""
        found = cls._of_loops.get(id(loop))  # it keeps the loop alive, so that no other one has this id
        if found is None:
            found = cls._of_loops[id(loop)] = _Mailbox(loop)
        return found

    def put(self, answers: Answers, index: int, event: Event) -> None:
        """Adds an event."""
        self._events.append((answers, index, event))

    def flush(self) -> None:
        """Has the loop pass on all events; if it has ended, cancels their requests."""
        try:
            self._loop.call_soon_threadsafe(self._loop.call_later, DELAY, self._pass_on)
        except RuntimeError:  # the event loop has ended
            with suppress(IndexError):  # other batchers may do the same
                while True:
                    answers, index, _ = self._events.popleft()
                    answers.requests[index].cancel()

    def _pass_on(self) -> None:
        while self._events:
            answers, index, event = self._events.popleft()
            answers.put(index, event)
