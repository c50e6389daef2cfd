"""Explanations: why each node runs on its device, and which tensors are copied, as text and as data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ggplug.backend import Device
from ggplug.graph import Graph
from ggplug.nodes.groups import Group
from ggplug.scheduler.assign import Assignment
from ggplug.scheduler.prediction import Seconds
from ggplug.scheduler.schedule import Schedule
from ggplug.scheduler.still_running import still_running
from ggplug.scheduler.support import Streams
from ggplug.tensor import Tensor


@dataclass(frozen=True)
class Row:
    """One node: ``number`` in the order of computation, and why it runs on ``device``.

    ``reason``: the name of the :class:`~ggplug.scheduler.assign.Reason`; ``text``: the reason in words.  ``ne``:
    innermost first.  Views compute nothing; their device is that of their root, and they belong to no split (-1) and no
    group (-1).  ``inner``: whether the result is an inner one of its group, and takes no memory.
    """

    number: int
    name: str
    op: str
    type: str
    ne: tuple[int, ...]
    device: str
    reason: str
    text: str
    split: int
    group: int
    inner: bool


@dataclass(frozen=True)
class GroupRow:
    """Nodes that one kernel of ``device`` computes: their numbers in the order of computation, mostly one.

    ``kernel``: its name, by the device.
    """

    number: int
    device: str
    nodes: tuple[int, ...]
    kernel: str


@dataclass(frozen=True)
class MissedRow:
    """Nodes that matched ``pattern`` but are no group: their numbers, and the reason."""

    nodes: tuple[int, ...]
    pattern: str
    reason: str


@dataclass(frozen=True)
class CopyRow:
    """A tensor that is copied before a split begins.

    ``source``: its memory; ``target``: the stream that needs it.  ``unpacked``: whether its memory has a layout of its
    own, so that the host converts its bytes for each computation.
    """

    split: int
    name: str
    source: str
    target: str
    nbytes: int
    unpacked: bool = False


@dataclass(frozen=True)
class PackedRow:
    """A tensor in ``memory`` with a layout of its own: bytes of the tensor, and those that it takes there."""

    name: str
    type: str
    memory: str
    nbytes: int
    packed_bytes: int


@dataclass(frozen=True)
class DetailRow:
    """What the device of a split says about how it computes it, in one line: of several devices as one, a stage."""

    split: int
    text: str


@dataclass(frozen=True)
class SplitRow:
    """Nodes ``first`` to ``end`` (exclusive) run on ``device``; ``n_nodes`` of them compute something.

    ``predicted``, ``measured``: seconds with its copies, by the cost model and when it ran; None if they are not known.
    ``overlaps``: the earlier splits that may still run while it does.
    """

    number: int
    device: str
    first: int
    end: int
    n_nodes: int
    n_copies: int
    bytes_copied: int
    predicted: float | None = None
    measured: float | None = None
    overlaps: tuple[int, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """The scheduler's decisions about a graph: ``rows`` for nodes, ``splits``, ``copies``.  Printing it gives tables.

    ``groups``: nodes that are computed together, at the place of the last; ``missed``: matches that are no group.
    ``packed``: the tensors in memory with a layout of its own, such as packed or split weights.  ``details``: what the
    devices add (:meth:`.Device.details`).
    ``memory``: bytes for intermediates by stream; memory of several streams is listed for each.
    ``predicted``, ``measured``: seconds of a computation with its copies, by the cost model and when it ran.
    """

    rows: tuple[Row, ...]
    splits: tuple[SplitRow, ...]
    copies: tuple[CopyRow, ...]
    groups: tuple[GroupRow, ...]
    missed: tuple[MissedRow, ...]
    memory: dict[str, int]
    packed: tuple[PackedRow, ...] = ()
    predicted: float | None = None
    measured: float | None = None
    details: tuple[DetailRow, ...] = ()

    @property
    def bytes_copied(self) -> int:
        """Bytes that one computation copies between devices."""
        return sum(copy.nbytes for copy in self.copies)

    def edges(self) -> dict[tuple[str, str], int]:
        """Bytes copied by (memory, stream)."""
        edges: dict[tuple[str, str], int] = {}
        for copy in self.copies:
            edges[copy.source, copy.target] = edges.get((copy.source, copy.target), 0) + copy.nbytes
        return edges

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "nodes": [dataclasses.asdict(row) for row in self.rows],
            "splits": [dataclasses.asdict(split) for split in self.splits],
            "copies": [dataclasses.asdict(copy) for copy in self.copies],
            "groups": [dataclasses.asdict(group) for group in self.groups],
            "missed": [dataclasses.asdict(missed) for missed in self.missed],
            "memory": dict(self.memory),
            "packed": [dataclasses.asdict(packed) for packed in self.packed],
            "predicted": self.predicted,
            "measured": self.measured,
            "details": [dataclasses.asdict(detail) for detail in self.details],
        }

    def __str__(self) -> str:
        if not self.rows:
            return "nothing to compute"
        by_split: dict[int, list[CopyRow]] = {}
        for copy in self.copies:
            by_split.setdefault(copy.split, []).append(copy)
        width = max(len(row.op) for row in self.rows)
        naming = min(max(len(row.name) for row in self.rows), 32)
        devices = max(len(row.device) for row in self.rows)
        lines = []
        at = iter(self.splits)
        upcoming = next(at, None)
        for row in self.rows:
            if upcoming is not None and row.number >= upcoming.first:
                lines.append(
                    f"split {upcoming.number} on {upcoming.device}: {upcoming.n_nodes} nodes{_times(upcoming)}"
                    f"{_overlaps(upcoming)}"
                )
                lines += [
                    f"    copy {copy.name}  {copy.source} -> {copy.target}  {copy.nbytes} bytes"
                    + (", unpacked for each computation" if copy.unpacked else "")
                    for copy in by_split.get(upcoming.number, ())
                ]
                upcoming = next(at, None)
            extents = "x".join(map(str, row.ne)) or "scalar"
            lines.append(
                f"  {row.number:5d}  {row.op:{width}s}  {row.name[:32]:{naming}s}  {row.type:>5s} {extents:>18s}  "
                f"{row.device:{devices}s}  {row.text}{self._in_group(row)}"
            )
        lines.append(f"{len(self.splits)} splits, {len(self.copies)} copies of {self.bytes_copied} bytes{_times(self)}")
        computing = sum(len(group.nodes) for group in self.groups)
        lines.append(f"{computing} nodes that compute something, in {len(self.groups)} groups")
        lines += [f"  {_numbers(g.nodes)} in group {g.number}: {g.kernel}" for g in self.groups if len(g.nodes) > 1]
        lines += [f"  {_numbers(m.nodes)} are no group ({m.pattern}): {m.reason}" for m in self.missed]
        lines += [f"  {source} -> {target}: {size} bytes" for (source, target), size in self.edges().items()]
        lines += [f"  split {row.split}: {row.text}" for row in self.details]
        lines += [f"  {size} bytes for intermediates on {name}" for name, size in self.memory.items()]
        for memory in dict.fromkeys(row.memory for row in self.packed):
            rows = [row for row in self.packed if row.memory == memory]
            lines.append(
                f"  {len(rows)} tensors of {sum(row.nbytes for row in rows)} bytes take "
                f"{sum(row.packed_bytes for row in rows)} in {memory}"
            )
            lines += [f"    {row.name}  {row.type}  {row.nbytes} bytes, {row.packed_bytes} there" for row in rows]
        return "\n".join(lines)

    def _in_group(self, row: Row) -> str:
        if row.group < 0 or len(self.groups[row.group].nodes) == 1:
            return ""
        return f"; in group {row.group}{', not kept' if row.inner else ''}"


def _times(row: SplitRow | Explanation) -> str:
    """The predicted and the measured time in words; empty if neither is known."""
    known = (("predicted", row.predicted), ("measured", row.measured))
    return "".join(f", {seconds * 1e3:.3g} ms {word}" for word, seconds in known if seconds is not None)


def _overlaps(row: SplitRow) -> str:
    """Which splits may still run, in words; empty if none."""
    if not row.overlaps:
        return ""
    return f", while split{'s' if len(row.overlaps) > 1 else ''} {_numbers(row.overlaps)} may still run"


def _numbers(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, nodes))


def explanation(
    graph: Graph,
    streams: Streams,
    schedule: Schedule,
    memory: dict[str, int],
    predicted: Seconds | None = None,
    measured: Seconds | None = None,
) -> Explanation:
    """The explanation of a schedule, with its times as far as they are known."""
    assignment, cut = schedule.assignment, schedule.cut
    split_of = {position: split.number for split in cut.splits for position in split.nodes}
    groups = _group_rows(graph, streams, schedule)
    group_of = {cut.order[number]: group.number for group in groups for number in group.nodes}
    rows = []
    for number, position in enumerate(cut.order):
        node = graph.tensors[position]
        assert node.op is not None
        reason = assignment.reasons[position]
        assert reason is not None
        subject = assignment.subjects[position]
        text = reason.value.format(_name(graph.tensors[subject]) if subject >= 0 else "")
        stream = assignment.streams[position]
        device = streams[stream].name if stream >= 0 else "-"
        split = -1 if node.op.is_view else split_of[position]
        rows.append(
            Row(
                number,
                node.name,
                node.op.name,
                node.type.name,
                node.ne[: node.rank],
                device,
                reason.name.lower(),
                text,
                split,
                group_of.get(position, -1),
                position in schedule.groups.inner,
            )
        )
    copies = tuple(
        CopyRow(
            copy.split,
            _name(graph.tensors[copy.position]),
            _memory(graph, streams, assignment, copy.position),
            streams[copy.stream].name,
            copy.nbytes,
            _has_own_layout(graph, copy.position),
        )
        for copy in cut.copies
        if copy.nbytes
    )
    splits = tuple(
        SplitRow(
            split.number,
            streams[split.stream].name,
            split.first,
            split.end,
            sum(not graph.tensors[position].op.is_view for position in split.nodes),  # type: ignore[union-attr]
            sum(cut.copies[copy].nbytes > 0 for copy in split.copies),
            sum(cut.copies[copy].nbytes for copy in split.copies),
            None if predicted is None else predicted.of(split.number),
            None if measured is None else measured.of(split.number),
            overlaps,
        )
        for split, overlaps in zip(cut.splits, still_running(graph, streams, schedule), strict=True)
    )
    number_of = {position: number for number, position in enumerate(cut.order)}
    missed = tuple(
        MissedRow(tuple(number_of[position] for position in each.nodes), each.pattern, each.reason)
        for each in schedule.groups.missed
    )
    packed = tuple(
        PackedRow(_name(leaf), leaf.type.name, kind.name, leaf.nbytes, kind.alloc_size(leaf))
        for leaf in graph.leafs
        if (kind := leaf.buffer_type) is not None and kind.has_own_layout
    )
    details = tuple(
        DetailRow(split.number, text)
        for split, on in zip(cut.splits, (streams[split.stream].device for split in cut.splits), strict=True)
        if type(on).details is not Device.details
        for text in on.details(split.part(graph))
    )
    totals = [None if each is None else each.total for each in (predicted, measured)]
    return Explanation(tuple(rows), splits, copies, groups, missed, memory, packed, totals[0], totals[1], details)


def _group_rows(graph: Graph, streams: Streams, schedule: Schedule) -> tuple[GroupRow, ...]:
    """The groups in order; views and nodes without elements are in no group."""
    found: list[GroupRow] = []
    inner, order = schedule.groups.inner, schedule.cut.order
    number_of = {position: number for number, position in enumerate(order)}
    for members in schedule.groups.by_place(order):
        nodes = tuple(graph.tensors[position] for position in members)
        if not nodes or nodes[-1].op.is_view or not nodes[-1].size:  # type: ignore[union-attr]
            continue
        device = streams[schedule.assignment.streams[members[-1]]].device
        kernel = device.chosen(Group(nodes, tuple(position not in inner for position in members)))
        found.append(GroupRow(len(found), device.name, tuple(number_of[p] for p in members), kernel_name(kernel)))
    return tuple(found)


def kernel_name(kernel: object) -> str:
    """The name of a kernel: its attribute ``name``, or the name of its function or class."""
    return str(getattr(kernel, "name", None) or getattr(kernel, "__name__", type(kernel).__name__))


def _name(tensor: Tensor) -> str:
    if tensor.name:
        return tensor.name
    extents = "x".join(map(str, tensor.ne[: tensor.rank])) or "scalar"
    return f"{tensor.op.name if tensor.op is not None else 'leaf'} {tensor.type.name} [{extents}]"


def _has_own_layout(graph: Graph, position: int) -> bool:
    kind = graph.tensors[graph.roots[position]].buffer_type
    return kind is not None and kind.has_own_layout


def _memory(graph: Graph, streams: Streams, assignment: Assignment, position: int) -> str:
    root = graph.roots[position]
    placed = graph.tensors[root].buffer_type
    return placed.name if placed is not None else streams.buffer_types[assignment.streams[root]].name
