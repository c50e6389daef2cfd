"""Requests: a prompt, how to generate the text that follows it, and the events of its generation."""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug_models.generation.finish import Finish
from ggplug_models.sampling import Chooses

Floats = npt.NDArray[np.float32]


class Progress(NamedTuple):
    """How much of a prompt is computed: its length, the tokens that were taken from the KV cache, and all so far."""

    total: int
    cache: int
    processed: int


Event = int | Finish | BaseException | Progress
"""A generated token, the end of the text, an error, or a part of the prompt that was computed."""


@dataclass
class Times:
    """When a request was computed, in seconds of :func:`time.perf_counter`; 0: not yet.

    ``begun``: its slot was assigned.  ``prompted``: its prompt was computed.  ``last``: its last token was chosen.
    """

    begun: float = 0.0
    prompted: float = 0.0
    last: float = 0.0

    @property
    def prompt_seconds(self) -> float:
        """The time for the prompt so far."""
        return 0.0 if not self.begun else (self.prompted or self.last or self.begun) - self.begun

    @property
    def generating_seconds(self) -> float:
        """The time for the tokens after the prompt so far."""
        return self.last - self.prompted if self.prompted and self.last else 0.0


class Request:
    """A text to generate after ``prompt``.

    ``choose``: chooses each token; a :class:`~ggplug_models.sampling.Sampler` must not be used by other requests.
    ``max_tokens``: maximum number of tokens; None: until the context is full.  ``ends``: end tokens, which are not part
    of the text.  ``slot``: the slot that computes it, if it is free; -1: any.  ``reports``: whether the listener gets
    each :class:`Progress`.  ``scored``: is called with the logits after each token of a part of the prompt; no token of
    the prompt is then taken from the KV cache.  ``finish``: why the text ended; None before the end.

    One thread iterates over :meth:`tokens`; any thread may call :meth:`cancel`.  If there is a ``listener``, the
    batcher's thread calls it with each event, and :meth:`tokens` yields nothing; it must not raise.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        choose: Chooses,
        max_tokens: int | None = None,
        ends: Collection[int] = (),
        *,
        slot: int = -1,
        reports: bool = False,
        scored: Callable[[Floats], None] | None = None,
        listener: Callable[[Event], None] | None = None,
    ) -> None:
        self.prompt = list(prompt)
        self.choose = choose
        self.max_tokens = max_tokens
        self.ends = frozenset(ends)
        self.slot = slot
        self.reports = reports
        self.scored = scored
        self.times = Times()
        self.generated = 0
        """Number of generated tokens."""
        self.drafted = self.accepted = 0
        """Number of draft tokens, and of those that were right."""
        self.finish: Finish | None = None
        self.cancelled = False
        self.reused = 0
        """Number of tokens of the prompt that were taken from the KV cache, and not computed again."""
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._deliver = listener or self._events.put

    def tokens(self) -> Iterator[int]:
        """Yields the tokens as they come.  Raises the error of their computation, or of ``choose``.

        A reader that stops early cancels the request.
        """
        try:
            while self.finish is None:
                event = self._events.get()
                if isinstance(event, Finish):
                    self.finish = event
                elif isinstance(event, BaseException):
                    self.finish = Finish.CANCELLED
                    raise event
                elif not isinstance(event, Progress):
                    yield event
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Ends the request before its next token is computed."""
        self.cancelled = True

    def report(self, processed: int) -> None:
        """Reports how many tokens of the prompt are computed, if that is wanted; for the batcher."""
        if self.reports:
            self.deliver(Progress(len(self.prompt), self.reused, processed))

    def deliver(self, event: Event) -> None:
        """Passes an event to the reader or listener; for the batcher."""
        self._deliver(event)
