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
from ggplug_models.state.adapting import Lora

Floats = npt.NDArray[np.float32]


class Progress(NamedTuple):
    """How much of a prompt is computed: its length, the tokens that were taken from the KV cache, and all so far.

    ``seconds``: the time for it.
    """

    total: int
    cache: int
    processed: int
    seconds: float

    @property
    def fields(self) -> dict[str, int]:
        """What llama-server reports about it."""
        return {
            "total": self.total,
            "cache": self.cache,
            "processed": self.processed,
            "time_ms": round(1e3 * self.seconds),
        }


Event = int | Finish | BaseException | Progress
"""A generated token, the end of the text, an error, or a part of the prompt that was computed."""


class Shift(NamedTuple):
    """What is dropped when the context is full: ``drop`` tokens after the first ``keep``; 0: half of the others.

    A text without a maximum of tokens has then at most as many as the context.
    """

    keep: int
    drop: int = 0

    def parts(self, length: int) -> tuple[int, int]:
        """How many of ``length`` tokens are kept, and how many after them are dropped, at least one."""
        keep = min(self.keep, max(length - NEVER_KEPT, 0))
        others = length - keep
        return keep, min(max(self.drop or others // 2, 1), max(others - 1, 1))


NEVER_KEPT = 4
"""Number of tokens of a full context that are never kept."""


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
    of the text.  ``slot``: the slot that is to compute it, if it is free; -1: any; then the one that does.  ``shift``:
    what is dropped when the context is full, so that the text can go on; None: it ends.  ``reports``: whether the
    listener gets each :class:`Progress`.  ``lora``: scales of adapters for its sequence, see :meth:`.Session.adapt`.
    ``scored``: is called with the logits after each token of a part of the prompt; no token of the prompt is then taken
    from the KV cache.  ``finish``: why the text ended; None before the end.

    One thread iterates over :meth:`tokens`; any thread may call :meth:`cancel`.  If there is a ``listener``, the
    batcher's thread calls it with each event, and :meth:`tokens` yields nothing.  After the events of a step it calls
    ``flush``, once for all requests whose functions are equal.  Neither may raise.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        choose: Chooses,
        max_tokens: int | None = None,
        ends: Collection[int] = (),
        *,
        slot: int = -1,
        shift: Shift | None = None,
        reports: bool = False,
        lora: Lora | None = None,
        scored: Callable[[Floats], None] | None = None,
        listener: Callable[[Event], None] | None = None,
        flush: Callable[[], None] | None = None,
    ) -> None:
        self.prompt = list(prompt)
        self.choose = choose
        self.max_tokens = max_tokens
        self.ends = frozenset(ends)
        self.slot = slot
        self.shift = shift
        self.reports = reports
        self.lora = lora
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
        self.dropped = 0
        """Number of tokens that the text no longer follows, because the context was full."""
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._deliver = listener or self._events.put
        self.flush = flush

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

    def progress(self, processed: int) -> Progress:
        """How much of the prompt is computed, of which that is ``processed`` tokens."""
        return Progress(len(self.prompt), self.reused, processed, self.times.prompt_seconds)

    def deliver(self, event: Event) -> None:
        """Passes an event to the reader or listener; for the batcher, which then calls :attr:`flush`."""
        self._deliver(event)
