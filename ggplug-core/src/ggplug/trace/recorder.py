"""Records spans of time: of graphs, splits, groups, copies, waits, compiling, and of work on the host."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ggplug.backend import Device, NodeTime
from ggplug.errors import ParameterError
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


class Recording:
    """The spans that were recorded between the beginning and the end of a ``with`` block of :func:`recording`.

    ``graphs``: pictures of the graphs that were computed, each structure once.  ``dropped``: how many spans were not
    kept, because there were too many.
    """

    def __init__(self, *, groups: bool = True) -> None:
        self.dropped = 0
        self.graphs: list[GraphPicture] = []
        self._spans: list[Span] = []
        self._listener = _WithGroups(self) if groups else _Listener(self)

    @property
    def spans(self) -> list[Span]:
        """All spans, in the order in which they began; one that contains others comes before them."""
        return sorted(self._spans, key=lambda span: (span.start, -span.end))

    def add(self, span: Span) -> None:
        """Adds a span, such as one of a program's own work."""
        if len(self._spans) < MOST:
            self._spans.append(span)
        else:
            self.dropped += 1

    def start(self) -> None:
        """Begins to record.  Raises PluginError if it has begun already."""
        HOOKS.register(self._listener, f"trace {id(self)}")

    def stop(self) -> None:
        """Ends recording."""
        HOOKS.unregister(self._listener)

    def summary(self) -> list[Row]:
        """The times by device and op; see :func:`ggplug.trace.summary.rows`."""
        return summary.rows(self.spans)

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

    While it is in effect, splits are computed one after the other, and with ``groups`` devices take the time of each
    group, for which they wait: the whole takes longer then.
    """
    found = Recording(groups=groups)
    found.start()
    try:
        yield found
    finally:
        found.stop()


class _Listener:
    """The hooks of a recording that is not interested in groups."""

    def __init__(self, target: Recording) -> None:
        self.target = target
        self._splits = threading.local()
        # By the identity of the structure, which is held so that no other one gets it.
        self._pictures: dict[int, tuple[object, GraphPicture]] = {}

    def note(self, kind: str, name: str, start: int, end: int, track: str = "", **facts: Any) -> None:
        """``track``: by default the calling thread's."""
        self.target.add(Span(kind, name, track or f"host: {threading.current_thread().name}", start, end, facts))

    @hookimpl
    def ggplug_graph_computed(self, graph: Graph, devices: Sequence[Device], start: int, end: int) -> None:
        names = [device.name for device in devices]
        self.note("graph", graph.name or "graph", start, end, nodes=len(graph.nodes), devices=names)
        splits: list[SplitPicture] = self._splits.__dict__.pop("of_this_graph", [])
        known = self._pictures.get(id(graph.structure))
        if known is not None:
            known[1].times += 1
        elif len(self.target.graphs) < MOST_GRAPHS:
            self.target.graphs.append(picture_of(graph, splits))
            self._pictures[id(graph.structure)] = graph.structure, self.target.graphs[-1]

    @hookimpl
    def ggplug_split_computed(self, split: Graph, device: Device, start: int, end: int, submitted: int) -> None:
        self.note("split", split.name or "split", start, end, device.name, nodes=len(split.nodes))
        self.note("wait", f"for {device.name}", submitted, end)
        splits: list[SplitPicture] = self._splits.__dict__.setdefault("of_this_graph", [])
        copied = self._splits.__dict__.pop("copied", 0)
        splits.append(SplitPicture(device.name, len(split.nodes), range_of(split.nodes), copied))

    @hookimpl
    def ggplug_split_copied(self, device: Device, nbytes: int, start: int, end: int) -> None:
        self.note("copy", f"to {device.name}", start, end, device.name, bytes=nbytes)
        self._splits.copied = nbytes

    @hookimpl
    def ggplug_kernels_compiled(self, device: str, names: Sequence[str], start: int, end: int) -> None:
        self.note("compile", f"for {device}", start, end, kernels=list(names))

    @hookimpl
    def ggplug_host_worked(self, what: str, start: int, end: int) -> None:
        self.note("host", what, start, end)


class _WithGroups(_Listener):
    """The hooks of a recording, groups included.  What is known of a graph's nodes is made once for each structure."""

    def __init__(self, target: Recording) -> None:
        super().__init__(target)
        # As for the pictures.
        self._known: dict[int, tuple[object, dict[tuple[int, ...], tuple[str, dict[str, Any]]]]] = {}

    @hookimpl
    def ggplug_nodes_timed(self, graph: Graph, device: Device, times: Sequence[NodeTime], groups: Groups) -> None:
        _, known = self._known.setdefault(id(graph.structure), (graph.structure, {}))
        members = {group[-1]: group for group in groups.members}
        for node, start, end in times:
            if node < 0:  # the device does not time nodes: the span of the split says the same
                continue
            group = members.get(node, (node,))
            if group not in known:
                known[group] = described([graph.tensors[each] for each in group])
            name, facts = known[group]
            self.target.add(Span("group", name, device.name, start, end, facts))


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
