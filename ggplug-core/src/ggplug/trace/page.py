"""A page of HTML, in one file, that shows a recording: timeline, table, and pictures of graphs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

from ggplug.trace.events import ordered_tracks
from ggplug.trace.pictures import GraphPicture
from ggplug.trace.spans import Span
from ggplug.trace.summary import rows, totals


def text(spans: Sequence[Span], graphs: Sequence[GraphPicture], *, dropped: int = 0) -> str:
    """The page."""
    content = json.dumps(data(spans, graphs, dropped=dropped), separators=(",", ":"))
    # Within a script element only this could end it.
    page = resources.files("ggplug.trace").joinpath("page.html").read_text(encoding="utf-8")
    return page.replace("DATA", content.replace("<", "\\u003c"), 1)


def data(spans: Sequence[Span], graphs: Sequence[GraphPicture], *, dropped: int) -> dict[str, Any]:
    """What the page shows.  A span is [track, kind, start, duration, name, facts], all but the times as indices."""
    tracks = {name: number for number, name in enumerate(ordered_tracks(spans))}
    kinds: dict[str, int] = {}
    names: dict[str, int] = {}
    facts: dict[str, int] = {}
    begin = min((span.start for span in spans), default=0)
    listed = [
        [
            tracks[span.track],
            kinds.setdefault(span.kind, len(kinds)),
            (span.start - begin) / 1e3,
            (span.end - span.start) / 1e3,
            names.setdefault(span.name, len(names)),
            facts.setdefault(json.dumps(span.facts), len(facts)),
        ]
        for span in spans
    ]
    return {
        "tracks": list(tracks),
        "kinds": list(kinds),
        "names": list(names),
        "facts": [json.loads(each) for each in facts],
        "spans": listed,
        "summary": rows(spans),
        "totals": totals(spans),
        "graphs": [
            {
                **asdict(graph),
                "splits": [s._asdict() for s in graph.splits],
                "buffers": [b._asdict() for b in graph.buffers],
            }
            for graph in graphs
        ],
        "dropped": dropped,
    }
