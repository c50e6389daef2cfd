"""What a recording consists of."""

from __future__ import annotations

from typing import Any, NamedTuple


class Span(NamedTuple):
    """From ``start`` to ``end``, by ``time.perf_counter_ns``, something happened on a timeline.

    ``kind``: graph, prepare, split, group, copy, wait, compile, host, or of a combined device member or exchange.
    ``track``: the name of a device, or of a thread of the host.  ``facts``: more about it; of a group ``ops``,
    ``nodes``, ``flops`` and ``bytes``; of a graph or a split that failed ``error``.
    """

    kind: str
    name: str
    track: str
    start: int
    end: int
    facts: dict[str, Any]
