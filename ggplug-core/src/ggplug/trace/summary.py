"""The times of a recording, added up by device and op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from ggplug.trace.spans import Span


class Row(NamedTuple):
    """``spans`` spans of one kind took ``milliseconds`` on a timeline, ``fraction`` of all that is listed for it.

    ``what``: the ops of a group, otherwise the kind.  ``gigaflops``, ``gigabytes_per_second``: None if not known.
    """

    track: str
    what: str
    spans: int
    milliseconds: float
    fraction: float
    gigaflops: float | None
    gigabytes_per_second: float | None


def rows(spans: Sequence[Span]) -> list[Row]:
    """The times by timeline and op, those that took longest first.

    Splits and graphs are left out where their groups are listed: they contain these.
    """
    return _added_up(_parts(spans))


def totals(spans: Sequence[Span]) -> list[Row]:
    """For each timeline the sum of its :func:`rows`, called ``total``; and for each thread the graphs, by name.

    A graph has one span for each computation of it, which contains what devices did for it.
    """
    whole = [(track, "total", span) for track, _, span in _parts(spans)]
    graphs = [
        (span.track, "graph" if span.name == "graph" else f"graph {span.name}", span)
        for span in spans
        if span.kind == "graph"
    ]
    return _added_up(whole) + _added_up(graphs)


Part: TypeAlias = tuple[str, str, Span]
"""A span with the timeline and the name of the row in which it is counted."""


def _parts(spans: Sequence[Span]) -> list[Part]:
    """The spans that contain no others."""
    timed = {span.track for span in spans if span.kind == "group"}
    return [
        (
            span.track,
            span.facts["ops"] if span.kind == "group" else span.name if span.kind == "host" else span.kind,
            span,
        )
        for span in spans
        if span.kind != "graph" and (span.kind != "split" or span.track not in timed)
    ]


def _added_up(parts: Sequence[Part]) -> list[Row]:
    sums: dict[tuple[str, str], list[int]] = {}
    for track, what, span in parts:
        found = sums.setdefault((track, what), [0, 0, 0, 0])
        numbers = (1, span.end - span.start, span.facts.get("flops", 0), span.facts.get("bytes", 0))
        found[:] = [a + b for a, b in zip(found, numbers, strict=True)]
    whole: dict[str, int] = {}
    for (track, _), (_, time, _, _) in sums.items():
        whole[track] = whole.get(track, 0) + time
    order = {track: number for number, track in enumerate(sorted(whole, key=whole.__getitem__, reverse=True))}
    return [
        Row(
            track,
            what,
            count,
            time / 1e6,
            time / max(whole[track], 1),
            flops / time if flops and time else None,
            nbytes / time if nbytes and time else None,
        )
        for (track, what), (count, time, flops, nbytes) in sorted(
            sums.items(), key=lambda item: (order[item[0][0]], -item[1][1])
        )
    ]
