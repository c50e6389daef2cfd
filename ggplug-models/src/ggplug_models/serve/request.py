"""A text that somebody wants to have continued, and what becomes of it."""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Iterator, Sequence

from ggplug_models.generation.finish import Finish
from ggplug_models.sampling import Chooses

Event = int | Finish | BaseException
"""A token, the end, or what failed."""


class Request:
    """The tokens that are to follow ``prompt``.

    ``choose``: chooses each of them, such as a :class:`~ggplug_models.sampling.Sampler` of its own.  ``max_tokens``:
    how many at most; None for as many as the context takes.  ``ends``: tokens that end the text, and are not part of
    it.

    One thread reads :meth:`tokens`; any thread may :meth:`cancel`.  ``finish``: why the text ended; None before.
    ``listener``: is called with each event in place of :meth:`tokens`, by the batcher's thread, and must not raise.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        choose: Chooses,
        max_tokens: int | None = None,
        ends: Collection[int] = (),
        *,
        listener: Callable[[Event], None] | None = None,
    ) -> None:
        self.prompt = list(prompt)
        self.choose = choose
        self.max_tokens = max_tokens
        self.ends = frozenset(ends)
        self.finish: Finish | None = None
        self.cancelled = False
        self.reused = 0
        """Tokens of the prompt that were not computed, because a sequence began with them."""
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._deliver = listener or self._events.put

    def tokens(self) -> Iterator[int]:
        """The tokens as they come.  Raises what failed while they were computed or chosen.

        A reader that leaves early cancels the request.
        """
        try:
            while self.finish is None:
                event = self._events.get()
                if isinstance(event, Finish):
                    self.finish = event
                elif isinstance(event, BaseException):
                    self.finish = Finish.CANCELLED
                    raise event
                else:
                    yield event
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Frees the request's place before the next token is computed."""
        self.cancelled = True

    def deliver(self, event: Event) -> None:
        """Gives the reader a token, the end, or what failed; for the batcher."""
        self._deliver(event)
