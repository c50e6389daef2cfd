"""Spans in the Trace Event Format: a JSON object with a list of events, as Perfetto and chrome://tracing read it.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU describes it.  Each span is a complete
event (``"ph": "X"``) with its beginning ``ts`` and its duration ``dur`` in microseconds.  Each device, and each thread
of the host, is a thread of one process; metadata events (``"ph": "M"``) have their names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ggplug.trace.spans import Span

PROCESS = 1


def document(spans: Sequence[Span], *, dropped: int = 0) -> dict[str, Any]:
    """The file's content."""
    tracks = {name: number for number, name in enumerate(ordered_tracks(spans), 1)}
    begin = min((span.start for span in spans), default=0)
    found: list[dict[str, Any]] = [_metadata("process_name", 0, {"name": "ggplug"})]
    for name, number in tracks.items():
        found.append(_metadata("thread_name", number, {"name": name}))
        found.append(_metadata("thread_sort_index", number, {"sort_index": number}))
    for span in spans:
        found.append(
            {
                "name": span.name,
                "cat": span.kind,
                "ph": "X",
                "ts": (span.start - begin) / 1e3,
                "dur": (span.end - span.start) / 1e3,
                "pid": PROCESS,
                "tid": tracks[span.track],
                "args": span.facts,
            }
        )
    return {"traceEvents": found, "displayTimeUnit": "ms", "otherData": {"dropped_spans": dropped}}


def ordered_tracks(spans: Sequence[Span]) -> list[str]:
    """The timelines: threads of the host, then devices, each in the order of their first spans."""
    names = dict.fromkeys(span.track for span in spans)
    return sorted(names, key=lambda name: not name.startswith("host"))


def text(content: dict[str, Any]) -> str:
    """JSON, one event a line."""
    lines = ",\n".join(json.dumps(event) for event in content["traceEvents"])
    rest = json.dumps({key: value for key, value in content.items() if key != "traceEvents"})
    return f'{{"traceEvents": [\n{lines}\n], {rest[1:]}\n'


def _metadata(name: str, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "ts": 0, "pid": PROCESS, "tid": thread, "args": args}
