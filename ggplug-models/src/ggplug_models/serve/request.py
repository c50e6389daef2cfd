"""Requests: a prompt, how to generate the text that follows it, and the events of its generation."""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Iterator, Sequence

from ggplug_models.generation.finish import Finish
from ggplug_models.sampling import Chooses

Event = int | Finish | BaseException
"""A generated token, the end of the text, or an error."""


class Request:
    """A text to generate after ``prompt``.

    ``choose``: chooses each token; a :class:`~ggplug_models.sampling.Sampler` must not be used by other requests.
    ``max_tokens``: maximum number of tokens; None: until the context is full.  ``ends``: end tokens, which are not part
    of the text.  ``finish``: why the text ended; None before the end.

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
        listener: Callable[[Event], None] | None = None,
    ) -> None:
        self.prompt = list(prompt)
        self.choose = choose
        self.max_tokens = max_tokens
        self.ends = frozenset(ends)
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
                else:
                    yield event
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Ends the request before its next token is computed."""
        self.cancelled = True

    def deliver(self, event: Event) -> None:
        """Passes an event to the reader or listener; for the batcher."""
        self._deliver(event)
