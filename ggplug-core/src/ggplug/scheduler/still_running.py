"""Which splits of a schedule may run at the same time."""

from __future__ import annotations

from typing import Any

from ggplug.graph import Graph
from ggplug.scheduler.ordering import is_asynchronous
from ggplug.scheduler.split import Decided, Split
from ggplug.scheduler.support import Streams

Progress = list[int]
"""For each stream the number of its last split that is certainly computed; -1 is none."""


def still_running(graph: Graph, streams: Streams, decided: Decided) -> list[tuple[int, ...]]:
    """For each split, the earlier ones that may still run while it does, because nothing waits for them before.

    As the scheduler does, a split waits for the splits of other streams that wrote a memory which it reads or copies
    from, and for those that accessed a memory which it writes; and the host waits for streams that do not run on.
    """
    none: Progress = [-1] * len(streams)
    host, waited = none, [none] * len(streams)
    before: list[Progress] = []  # by split: what is computed when it begins
    writers: dict[Any, Progress] = {}
    users: dict[Any, Progress] = {}
    found: list[tuple[int, ...]] = []
    for split in decided.cut.splits:
        reads, writes = _memories(graph, streams, decided, split)
        known = _later(host, waited[split.stream])
        for last, memories in ((writers, reads | writes), (users, writes)):
            for memory in memories:
                for stream, number in enumerate(last.get(memory, none)):
                    if number > known[stream]:
                        known = _later(known, before[number])
                        known[stream] = number
        earlier = decided.cut.splits[: split.number]
        found.append(tuple(e.number for e in earlier if e.stream != split.stream and e.number > known[e.stream]))
        before.append(known)
        done = known.copy()
        done[split.stream] = split.number
        waited[split.stream] = done
        if not is_asynchronous(streams[split.stream]):
            host = _later(host, done)
        for last, memories in ((writers, writes), (users, reads | writes)):
            for memory in memories:
                last.setdefault(memory, none.copy())[split.stream] = split.number
    return found


def _later(some: Progress, other: Progress) -> Progress:
    return list(map(max, some, other))


def _memories(graph: Graph, streams: Streams, decided: Decided, split: Split) -> tuple[set[Any], set[Any]]:
    """What a split reads or copies from, and what it writes: buffers of persistent tensors, and memories for results.

    Weights, which no node writes, count as well; nothing waits for them.
    """
    tensors, sources, at = graph.tensors, graph.sources, decided.assignment.streams

    def memory(position: int) -> Any:
        root = graph.roots[position]
        return tensors[root].buffer or streams.buffer_types[at[root]]

    reads = {memory(decided.cut.copies[number].position) for number in split.copies}
    writes = {streams.buffer_types[split.stream]} if split.copies else set()
    for position in split.nodes:
        op = tensors[position].op
        assert op is not None
        if not op.is_view:
            reads.update(memory(each) for each in sources[position] if each >= 0 and each not in split.reads)
            writes.update([memory(position), *(memory(sources[position][which]) for which in op.writes)])
    return reads, writes
