"""Keeps the order of accesses by asynchronous streams.

Each stream does its work in the order of submission.  This module orders accesses of several streams to one buffer: a
stream that reads waits for the streams that write, and one that writes waits for all others.  A stream whose work is
done when its call returns records no event, so synchronous streams never wait.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ggplug.backend import Backend, Event


class Ordering:
    """Events after the work that may still be under way, by the objects (buffers or others) that it accesses.

    A newer event of a stream replaces its older one, because a stream's work is done in order.
    """

    def __init__(self) -> None:
        self._writers: dict[Any, dict[Backend, Event]] = {}
        self._readers: dict[Any, dict[Backend, Event]] = {}

    def wait(self, stream: Backend, reads: Collection[Any], writes: Collection[Any]) -> None:
        """Makes a stream wait for the work of others that conflicts with these reads and writes."""
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
        """Streams that may still write these objects."""
        return list(self._writers.get(touched, ()))

    def note(self, stream: Backend, event: Event | None, reads: Collection[Any], writes: Collection[Any]) -> None:
        """Records work that was submitted to a stream, after :meth:`wait` for it.

        ``event``: recorded after the work; None if the work is done already.
        """
        for touched in reads:
            if event is not None:
                self._readers.setdefault(touched, {})[stream] = event
        for touched in writes:
            # A stream that waits for this write also waits for all earlier accesses.
            self._readers.pop(touched, None)
            if event is None:
                self._writers.pop(touched, None)
            else:
                self._writers[touched] = {stream: event}

    def clear(self) -> None:
        """Removes all events, after all streams were waited for."""
        self._writers.clear()
        self._readers.clear()

    def __bool__(self) -> bool:
        return bool(self._writers or self._readers)


def is_asynchronous(stream: Backend) -> bool:
    """Whether the stream's work may be under way after a call has returned."""
    return stream.device.capabilities.asynchronous
