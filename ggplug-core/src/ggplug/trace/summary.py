"""The times of a recording, added up by device and op."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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

    Splits and graphs are left out where their groups are listed: they contain these.  Of preparing a graph, compiling
    is not counted, which has a row of its own.
    """
    return _added_up(_parts(spans))


def totals(spans: Sequence[Span]) -> list[Row]:
    """For each timeline the sum of its :func:`rows`, called ``total``; and for each thread the graphs, by name.

    A graph has one span for each computation of it, which contains what devices did for it.
    """
    whole = [("total", span, time) for _, span, time in _parts(spans)]
    graphs = [
        ("graph" if span.name == "graph" else f"graph {span.name}", span, span.end - span.start)
        for span in spans
        if span.kind == "graph"
    ]
    return _added_up(whole) + _added_up(graphs)


Part: TypeAlias = tuple[str, Span, int]
"""A span with the name of the row in which it is counted, and its nanoseconds there."""


def _parts(spans: Sequence[Span]) -> Iterator[Part]:
    """Each span without what is counted in others."""
    timed = {span.track for span in spans if span.kind == "group"}
    compiling = [span for span in spans if span.kind == "compile"]
    for span in spans:
        if span.kind == "graph" or (span.kind == "split" and span.track in timed):
            continue
        what = span.facts["ops"] if span.kind == "group" else span.name if span.kind == "host" else span.kind
        time = span.end - span.start
        if span.kind == "prepare":
            inside = [c for c in compiling if c.track == span.track and span.start <= c.start < span.end]
            time -= sum(each.end - each.start for each in inside)
        yield what, span, time


def _added_up(parts: Iterable[Part]) -> list[Row]:
    sums: dict[tuple[str, str], list[int]] = {}
    for what, span, taken in parts:
        found = sums.setdefault((span.track, what), [0, 0, 0, 0])
        numbers = (1, taken, span.facts.get("flops", 0), span.facts.get("bytes", 0))
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
