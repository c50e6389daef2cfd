"""What clauses build on: where a simpler clause is broken, others that rely on it may be broken only for that reason.

A report lists such failures with the simpler one.
"""

from __future__ import annotations

from ggplug_testing.reporting.report import GROUND

BYTES, TENSORS = GROUND
TRANSFERS = "asynchronous transfers arrive"
SYNCHRONIZE = "the host waits for a held stream"
READS = "a read waits for held streams"
EVENTS = "a held stream holds those that wait for its event"
HOST_EVENTS = "the host waits for the event of a held stream"
COPIES = "buffers copy from each other"
FAILURES = "a failure is raised by the next synchronize and only once"
PLANS = "a plan computes again with new values"
PLACES = "a plan binds to other places"
FAR_BYTES = "bytes far into a buffer are transferred where they lie"
PACKED = "extra memory keeps weights"

OF_CHAPTERS: dict[str, tuple[str, ...]] = {
    "devices": (),
    "buffers": (BYTES,),
    "streams": (BYTES, TRANSFERS, SYNCHRONIZE),
    "synchronous": (BYTES, TRANSFERS, SYNCHRONIZE),
    "plans": (BYTES, TENSORS, PLANS, TRANSFERS, SYNCHRONIZE),
    "binding": (BYTES, TENSORS, PLANS, PLACES),
    "again": (BYTES, TENSORS, PLANS),
    "freeing": (BYTES, TRANSFERS),
    "pending": (BYTES, TRANSFERS, SYNCHRONIZE, READS),
    "limits": (BYTES, TENSORS, PLANS, TRANSFERS, SYNCHRONIZE),
    "racing": (BYTES, TRANSFERS, SYNCHRONIZE),
    "sharing": (BYTES, TENSORS, TRANSFERS, SYNCHRONIZE),
    "layouts": (BYTES, PACKED),
    "far": (BYTES, TENSORS, FAR_BYTES),
}
"""The chapters of the contract, which are modules, the simplest first, and the clauses that all later ones of a chapter
build on."""

OF_CLAUSES: dict[str, tuple[str, ...]] = {
    SYNCHRONIZE: (BYTES, TRANSFERS),
    READS: (BYTES, TRANSFERS, SYNCHRONIZE),
    "synchronous reads wait": (READS,),
    "synchronous writes wait": ("a write waits for held streams",),
    "a copy waits for held streams": (COPIES,),
    "a copy waits for the streams of another device": (COPIES, READS),
    "copies follow the stream that writes their source": ("a held stream holds copies of what it writes",),
    "events order streams": (EVENTS,),
    "events can be waited for by the host": (HOST_EVENTS,),
    "an event holds every stream until what it was recorded for last": (EVENTS,),
    "a second stream waits for an event too": (EVENTS,),
    "an event that a stream waits for can be freed": (EVENTS,),
    "freeing waits": ("a held stream is freed afterwards",),
    "pending work keeps its places": ("work of a held stream keeps its places",),
    "work of a held stream keeps its places": (PLACES,),
    "a failure waits for synchronize and harms nothing else": (FAILURES,),
    "a failure stays with its stream": (FAILURES,),
    "a failure does not keep its stream from being freed": (FAILURES,),
    "extra memory waits for held streams": (PACKED, SYNCHRONIZE),
}
"""Further clauses that single clauses depend on."""


def bases_of(name: str, module: str) -> tuple[str, ...]:
    """The names of the clauses that a clause of a module builds on."""
    chapter = OF_CHAPTERS.get(module.rpartition(".")[2], ())
    known = chapter[: chapter.index(name)] if name in chapter else chapter
    return tuple(dict.fromkeys((*OF_CLAUSES.get(name, ()), *known)))
