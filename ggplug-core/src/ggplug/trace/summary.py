"""The times of a recording, added up by device and op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
    timed = {span.track for span in spans if span.kind == "group"}
    sums: dict[tuple[str, str], list[int]] = {}
    for span in spans:
        if span.kind == "graph" or (span.kind == "split" and span.track in timed):
            continue
        what = span.facts["ops"] if span.kind == "group" else span.name if span.kind == "host" else span.kind
        found = sums.setdefault((span.track, what), [0, 0, 0, 0])
        numbers = (1, span.end - span.start, span.facts.get("flops", 0), span.facts.get("bytes", 0))
        found[:] = [a + b for a, b in zip(found, numbers, strict=True)]
    totals: dict[str, int] = {}
    for (track, _), (_, time, _, _) in sums.items():
        totals[track] = totals.get(track, 0) + time
    order = {track: number for number, track in enumerate(sorted(totals, key=totals.__getitem__, reverse=True))}
    return [
        Row(
            track,
            what,
            count,
            time / 1e6,
            time / max(totals[track], 1),
            flops / time if flops and time else None,
            nbytes / time if nbytes and time else None,
        )
        for (track, what), (count, time, flops, nbytes) in sorted(
            sums.items(), key=lambda item: (order[item[0][0]], -item[1][1])
        )
    ]
