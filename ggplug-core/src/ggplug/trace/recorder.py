"""Records spans of time: of graphs, splits, groups, copies, waits, preparing, compiling, and of work on the host."""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from ggplug.backend import Device, NodeTime
from ggplug.errors import ParameterError, in_one_line
from ggplug.graph import Graph
from ggplug.hookspecs import HOOKS, hookimpl
from ggplug.nodes.groups import Groups
from ggplug.system.files import replacing
from ggplug.tensor import Tensor
from ggplug.trace import events, page, summary
from ggplug.trace.pictures import GraphPicture, SplitPicture, picture_of, range_of
from ggplug.trace.spans import Span
from ggplug.trace.summary import Row

MOST = 2_000_000
"""Spans that a recording keeps; later ones are counted only."""


MOST_GRAPHS = 100
"""Graphs of which a recording keeps a picture."""

Described: TypeAlias = dict[int, tuple[str, dict[str, Any]]]
"""The name of each group and the facts about it, by the position of its last node."""


class Recording:
    """The spans that were recorded between the beginning and the end of a ``with`` block of :func:`recording`.

    ``graphs``: pictures of the graphs that were computed, each structure once.  ``dropped``: how many spans were not
    kept, because there were too many.
    """

    def __init__(self, *, groups: bool = True) -> None:
        self.dropped = 0
        self.graphs: list[GraphPicture] = []
        self._spans: list[Span] = []
        self._groups: deque[tuple[Described, str, array[int]]] = deque()
        """Groups that are not in ``_spans`` yet: for each split what they are, its device, and the node times."""
        self._kept = 0
        self._listener = _WithGroups(self) if groups else _Listener(self)

    @property
    def spans(self) -> list[Span]:
        """All spans, in the order in which they began; one that contains others comes before them."""
        while self._groups:
            known, track, numbers = self._groups.popleft()
            each = iter(numbers)
            for node, start, end in zip(each, each, each, strict=True):
                if node in known:
                    name, facts = known[node]
                    self._spans.append(Span("group", name, track, start, end, facts))
        return sorted(self._spans, key=lambda span: (span.start, -span.end))

    def add(self, span: Span) -> None:
        """Adds a span, such as one of a program's own work."""
        if self._fits(1):
            self._spans.append(span)

    def add_groups(self, describe: Callable[[], Described], track: str, times: Sequence[NodeTime]) -> None:
        """Adds a span for each group of a split, if there is space for all; ``describe`` says what they are.

        Numbers are kept, of which spans are made when they are asked for: a token of a model has hundreds of groups,
        and recording must not take a call of Python for each.
        """
        if self._fits(len(times)):
            self._groups.append((describe(), track, array("q", chain.from_iterable(times))))

    def _fits(self, count: int) -> bool:
        """Whether so many spans can be kept; counts them."""
        if self._kept + count > MOST:
            self.dropped += count
            return False
        self._kept += count
        return True

    def start(self) -> None:
        """Begins to record.  Raises PluginError if it has begun already."""
        HOOKS.register(self._listener, f"trace {id(self)}")

    def stop(self) -> None:
        """Ends recording."""
        HOOKS.unregister(self._listener)

    def summary(self) -> list[Row]:
        """The times by device and op; see :func:`ggplug.trace.summary.rows`."""
        return summary.rows(self.spans)

    def totals(self) -> list[Row]:
        """The times of whole timelines and of graphs; see :func:`ggplug.trace.summary.totals`."""
        return summary.totals(self.spans)

    def to_dict(self) -> dict[str, Any]:
        """The spans in the Trace Event Format."""
        return events.document(self.spans, dropped=self.dropped)

    def save(self, path: str | Path) -> Path:
        """Writes the spans to ``PATH.json``, in the Trace Event Format, or to ``PATH.html``, a page that shows them.

        The page has the timeline, the summary, and for each graph its splits and the memory of its intermediates.
        Raises ParameterError for another suffix; OSError.
        """
        target = checked_path(path)
        if target.suffix == ".html":
            content = page.text(self.spans, self.graphs, dropped=self.dropped)
        else:
            content = events.text(self.to_dict())
        with replacing(target) as file:
            file.write(content.encode())
        return target


def checked_path(path: str | Path) -> Path:
    """The path of a file for a trace.  Raises ParameterError unless it ends with .json or .html, in a folder."""
    if Path(path).suffix not in (".json", ".html"):
        raise ParameterError(f"a trace is written to a .json or an .html file, not to {path}", got=path)
    if not Path(path).parent.is_dir():
        raise ParameterError(f"a trace cannot be written to {path}: there is no folder {Path(path).parent}", got=path)
    return Path(path)


@contextmanager
def recording(*, groups: bool = True) -> Iterator[Recording]:
    """A ``with`` block in which all computations of this process are recorded.

    While it is in effect, the splits of a graph are computed one after the other, and with ``groups`` devices take the
    time of each group, for which they wait: the whole takes longer then.
    """
    found = Recording(groups=groups)
    found.start()
    try:
        yield found
    finally:
        found.stop()


class _Computation:
    """The splits of a computation so far, and how many bytes were copied for the next one."""

    __slots__ = ("copied", "splits")

    def __init__(self) -> None:
        self.splits: list[SplitPicture] = []
        self.copied = 0


class _Computations(threading.local):
    """The computations of a thread, by graph: a function of a node may compute another graph meanwhile.

    One that was submitted by ``compute_async`` stays until its graph is computed again or freed.
    """

    def __init__(self) -> None:
        self.of: WeakKeyDictionary[Graph, _Computation] = WeakKeyDictionary()


class _Listener:
    """The hooks of a recording that is not interested in groups."""

    def __init__(self, target: Recording) -> None:
        self.target = target
        self._computations = _Computations()
        # By the identity of the structure, which is held so that no other one gets it.
        self._pictures: dict[int, tuple[object, GraphPicture]] = {}

    def note(self, kind: str, name: str, start: int, end: int, track: str = "", **facts: Any) -> None:
        """``track``: by default the calling thread's."""
        self.target.add(Span(kind, name, track or f"host: {threading.current_thread().name}", start, end, facts))

    @hookimpl
    def ggplug_graph_prepared(self, graph: Graph, start: int, end: int) -> None:
        self._computations.of[graph] = _Computation()
        self.note("prepare", graph.name or "graph", start, end)

    @hookimpl
    def ggplug_graph_computed(self, graph: Graph, devices: Sequence[Device], start: int, end: int) -> None:
        names = [device.name for device in devices]
        self.note("graph", graph.name or "graph", start, end, nodes=len(graph.nodes), devices=names)
        done = self._computations.of.pop(graph, None)
        known = self._pictures.get(id(graph.structure))
        if known is not None:
            known[1].times += 1
        elif len(self.target.graphs) < MOST_GRAPHS:
            self.target.graphs.append(picture_of(graph, [] if done is None else done.splits))
            self._pictures[id(graph.structure)] = graph.structure, self.target.graphs[-1]

    @hookimpl
    def ggplug_graph_failed(self, graph: Graph, error: BaseException, start: int, end: int) -> None:
        self._computations.of.pop(graph, None)
        self.note("graph", graph.name or "graph", start, end, nodes=len(graph.nodes), error=in_one_line(error))

    @hookimpl
    def ggplug_split_computed(
        self, graph: Graph, split: Graph, device: Device, start: int, end: int, submitted: int
    ) -> None:
        self.note("split", split.name or "split", start, end, device.name, nodes=len(split.nodes))
        self.note("wait", f"for {device.name}", submitted, end)
        computation = self._computations.of.get(graph)
        if computation is not None:
            picture = SplitPicture(device.name, len(split.nodes), range_of(split.nodes), computation.copied)
            computation.splits.append(picture)
            computation.copied = 0

    @hookimpl
    def ggplug_split_failed(self, split: Graph, device: Device, error: BaseException, start: int, end: int) -> None:
        facts = {"nodes": len(split.nodes), "error": in_one_line(error)}
        self.note("split", split.name or "split", start, end, device.name, **facts)

    @hookimpl
    def ggplug_split_copied(self, graph: Graph, device: Device, nbytes: int, start: int, end: int) -> None:
        self.note("copy", f"to {device.name}", start, end, device.name, bytes=nbytes)
        computation = self._computations.of.get(graph)
        if computation is not None:
            computation.copied = nbytes

    @hookimpl
    def ggplug_member_worked(
        self, device: Device, member: Device | None, what: str, nodes: int, nbytes: int, start: int, end: int
    ) -> None:
        if member is None:
            self.note("exchange", what, start, end, f"{device.name}: exchange", bytes=nbytes)
        else:
            self.note("member", what, start, end, f"{device.name}: {member.name}", nodes=nodes)

    @hookimpl
    def ggplug_kernels_compiled(self, device: str, names: Sequence[str], start: int, end: int) -> None:
        self.note("compile", f"for {device}", start, end, kernels=list(names))

    @hookimpl
    def ggplug_host_worked(self, what: str, start: int, end: int) -> None:
        self.note("host", what, start, end)


class _WithGroups(_Listener):
    """The hooks of a recording, groups included.  What is known of a graph's groups is made once for each structure."""

    def __init__(self, target: Recording) -> None:
        super().__init__(target)
        # As for the pictures.
        self._known: dict[tuple[int, Groups], tuple[object, Described]] = {}

    @hookimpl
    def ggplug_nodes_timed(self, graph: Graph, device: Device, times: Sequence[NodeTime], groups: Groups) -> None:
        if times and times[0].node >= 0:  # else the device does not time nodes: the span of the split says the same
            self.target.add_groups(lambda: self._described(graph, groups), device.name, times)

    def _described(self, graph: Graph, groups: Groups) -> Described:
        key = id(graph.structure), groups
        if key not in self._known:
            members = {group[-1]: group for group in groups.members}
            inside = {position for group in groups.members for position in group[:-1]}
            found = {
                position: described([graph.tensors[each] for each in members.get(position, (position,))])
                for position in graph.order
                if position not in inside
            }
            self._known[key] = graph.structure, found
        return self._known[key][1]


def described(nodes: Sequence[Tensor]) -> tuple[str, dict[str, Any]]:
    """The name of a group, that of its last node, and the facts about it."""
    computing = [node for node in nodes if node.op is not None and not node.op.is_view]
    costs = [node.op.cost(node) for node in computing if node.op is not None]
    last = nodes[-1]
    facts = {
        "ops": " + ".join(node.op.name for node in computing if node.op is not None),
        "nodes": [node.name for node in computing],
        "result": f"{last.type.name} {'x'.join(map(str, last.ne[: last.rank])) or 'scalar'}",
        "flops": sum(cost.flops for cost in costs),
        "bytes": sum(cost.bytes for cost in costs),
    }
    return last.name or str(facts["ops"]), facts
