"""Keeping streams that run on by themselves in order.

Each stream does its work in the order in which it was given.  What several streams touch is ordered here, buffer by
buffer: a stream that reads waits for the writers, one that writes for readers and writers.  A stream that has done its
work when it returns leaves no mark, so with such streams only nothing is ever waited for.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ggplug.backend import Backend, Event


class Ordering:
    """Marks of the work that may still be under way, by what it touches (buffers, or any other objects).

    Newer marks of a stream replace its older ones: a stream's work is done in order.
    """

    def __init__(self) -> None:
        self._writers: dict[Any, dict[Backend, Event]] = {}
        self._readers: dict[Any, dict[Backend, Event]] = {}

    def wait(self, stream: Backend, reads: Collection[Any], writes: Collection[Any]) -> None:
        """Makes a stream wait for all others whose work conflicts with what it is going to do."""
        events: dict[Event, None] = {}
        for touched in reads:
            self._collect(self._writers, touched, stream, events)
        for touched in writes:
            self._collect(self._writers, touched, stream, events)
            self._collect(self._readers, touched, stream, events)
        for event in events:
            if is_asynchronous(stream):
                event.wait(stream)
            else:
                event.synchronize()

    @staticmethod
    def _collect(
        marks: dict[Any, dict[Backend, Event]], touched: Any, stream: Backend, events: dict[Event, None]
    ) -> None:
        for other, event in marks.get(touched, {}).items():
            if other is not stream:
                events[event] = None

    def writers(self, touched: Any) -> list[Backend]:
        """Streams that may still be writing there."""
        return list(self._writers.get(touched, ()))

    def note(self, stream: Backend, event: Event | None, reads: Collection[Any], writes: Collection[Any]) -> None:
        """Remembers what a stream was given to do.

        ``event``: recorded after it; None if the work is done already.  The stream has to have waited for the others.
        """
        for touched in reads:
            if event is not None:
                self._readers.setdefault(touched, {})[stream] = event
        for touched in writes:
            # What waits for this write waits for all before it.
            self._readers.pop(touched, None)
            if event is None:
                self._writers.pop(touched, None)
            else:
                self._writers[touched] = {stream: event}

    def clear(self) -> None:
        """Forgets everything: all streams were waited for."""
        self._writers.clear()
        self._readers.clear()

    def __bool__(self) -> bool:
        return bool(self._writers or self._readers)


def is_asynchronous(stream: Backend) -> bool:
    """Whether the stream's work may be under way after a call has returned."""
    return stream.device.capabilities.asynchronous
