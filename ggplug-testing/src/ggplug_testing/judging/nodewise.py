"""Compares two devices node by node: finds the first wrong number, and the nodes that depend on it.

Every node is computed on both devices *from the same values*, those that the first device computed for its sources (or
the references, in float64 and rounded).  So an error that a node inherits is not held against it, and a second wrong
kernel behind the first is found as well.  In addition the other device computes the whole graph from its own values,
which shows how the difference grows.

A difference counts where it is larger than :mod:`ggplug_testing.precision` derives for a node: of two devices,
twice that.  A node is wrong as well if its kernel changes what it only reads, or more of a tensor than it writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.backend import BufferType, Decline, Device, forms_groups, groups_of
from ggplug.errors import GGPlugError, GraphError, in_one_line
from ggplug.graph import Graph
from ggplug.memory.graph_allocator import GraphAllocator, compute_piece, piece
from ggplug.nodes.groups import UNGROUPED, Group, Groups
from ggplug.nodes.hazards import written_positions, written_sources
from ggplug.ops.base import Array
from ggplug.scheduler.explain import kernel_name
from ggplug.tensor import Spec, Tensor, describe
from ggplug.types import TensorFlag
from ggplug.values.arrays import TensorLayout, as_bytes
from ggplug_testing.devices.reference import ReferenceDevice
from ggplug_testing.judging.comparison import Allowed, nmse
from ggplug_testing.judging.differences import Declined, Differences, Element, Node, WrongNode
from ggplug_testing.judging.expected import Expected
from ggplug_testing.judging.oracle import evaluate, read_values
from ggplug_testing.judging.results import Judging

Bytes = npt.NDArray[np.uint8]

LARGEST = 5
"""How many elements of a wrong node are shown."""


def compare(
    graph: Graph | tuple[Graph, Graph],
    a: Device,
    b: Device,
    *,
    values: Mapping[Tensor, Any] | None = None,
    reference: bool = False,
    groups: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Differences:
    """Computes a graph node by node on two devices, and finds the nodes that differ by more than their tolerance.

    The graph and its tensors stay as they are.  ``graph``: or two equal ones, over weights that lie in each device's
    own memory and, perhaps packed, in its own layout.  ``values``: bytes of leafs (of the first graph); the others are
    read from their places.  ``b`` is judged by what ``a`` computes of the same sources, and what ``a`` computes in
    groups by what it computes node by node.  With ``reference`` both are judged by the ops' references instead, whose
    values are handed on.  ``groups=False``: every node by itself.  ``progress(done, total)``: nodes.

    Raises GraphError for a part of a graph, or two that are not equal; TensorStateError for a leaf without values;
    OutOfMemoryError.
    """
    graphs = graph if isinstance(graph, tuple) else (graph, graph)
    if graphs[0].positions is not None or graphs[0].structure != graphs[1].structure:
        raise GraphError(f"{graphs[0]!r} and {graphs[1]!r} are not equal graphs", got=graphs[1], wanted=graphs[0])
    leaf_values = {graphs[0].index[leaf]: raw for leaf, raw in (values or {}).items()}
    with ExitStack() as stack:

        def side(device: Device, number: int, *, grouped: bool) -> _Side:
            return stack.enter_context(_Side(device, graphs[number], leaf_values.keys(), groups=grouped and groups))

        base = side(ReferenceDevice() if reference else a, 0, grouped=False)
        judged = [side(a, 0, grouped=True), side(b, 1, grouped=True)]
        own = [side(a, 0, grouped=False) if reference else base, side(b, 1, grouped=True)]
        return _Comparison(graphs[0], leaf_values, base, judged, own, reference=reference).run(progress)


class _Side(ExitStack):
    """A copy of a graph on a device, each tensor in bytes of its own but weights that the device can read in place."""

    def __init__(self, device: Device, graph: Graph, replaced: Collection[int], *, groups: bool) -> None:
        super().__init__()
        self.device = device
        self.graph = _copied(graph, device, replaced)
        self.reused = frozenset(
            position for position, tensor in enumerate(self.graph.tensors) if tensor.root in graph.index
        )
        self.declined: dict[int, str] = {}
        for position, node in zip(self.graph.order, self.graph.nodes, strict=True):
            answer = device.supports_op(node)
            if isinstance(answer, Decline):
                self.declined[position] = answer.reason
        self.groups: Groups = groups_of(device, self.graph) if groups and forms_groups(device) else UNGROUPED
        self._allocation = self.enter_context(GraphAllocator(device.buffer_type, reuse=False)).allocate(self.graph)
        self._stream = self.enter_context(device.init())

    def get(self, position: int) -> Bytes:
        """The bytes of a tensor's extent."""
        tensor = self.graph.tensors[position]
        raw = np.empty(tensor.nbytes, np.uint8)
        if raw.size:
            buffer, offset = self._allocation.where(self.graph, position)
            buffer.get_tensor(tensor, raw, offset)
        return raw

    def set(self, position: int, raw: Any) -> None:
        """Stores the bytes of a root."""
        tensor = self.graph.tensors[position]
        if tensor.nbytes and position not in self.reused:
            buffer, offset = self._allocation.place(self.graph, position)
            buffer.set_tensor(tensor, as_bytes(raw), offset)

    def compute(self, nodes: Sequence[int]) -> Tensor | None:
        """Computes nodes, together if they are several; the reference does what the device declines.

        Returns a tensor that was changed although the nodes only read it, or None; it has its values again.
        """
        if nodes[-1] in self.declined:
            self.refer(nodes[-1])
            return None
        part = piece(self.graph, nodes)
        written = {self.graph.tensors[each] for node in nodes for each in _written(self.graph, node)}
        held = {root: self._raw(root) for root in _read(part) if root not in written and self._is_plain(root)}
        groups = self.groups if len(nodes) > 1 else UNGROUPED
        compute_piece(self._stream, part, self._allocation, groups)
        changed = [root for root, raw in held.items() if not np.array_equal(raw, self._raw(root))]
        for root in changed:
            buffer, offset = self._allocation.where(self.graph, self.graph.index[root])
            buffer.set_tensor(root, held[root], offset)
        return changed[0] if changed else None

    def _raw(self, root: Tensor) -> Bytes:
        return self.get(self.graph.index[root])

    def _is_plain(self, root: Tensor) -> bool:
        """Whether a tensor's bytes are read as they lie there, not out of a layout of the device's own."""
        kind = root.buffer_type
        return kind is None or not kind.has_own_layout

    def refer(self, position: int) -> None:
        """Computes a node by its reference, from the values in this copy."""
        part = piece(self.graph, (position,))
        found = evaluate(part, {root: self._raw(root) for root in _read(part)}, wide=False)
        for target in _written(self.graph, position):
            self.set(target, found.bits(self.graph.tensors[target]).tobytes())

    def kernel(self, nodes: Sequence[int]) -> str:
        """The device's name for the kernel that computes these nodes."""
        kept = (True,) if len(nodes) == 1 else tuple(position not in self.groups.inner for position in nodes)
        return kernel_name(self.device.chosen(Group(tuple(self.graph.tensors[p] for p in nodes), kept)))


def _copied(graph: Graph, device: Device, replaced: Collection[int]) -> Graph:
    """The graph over tensors of its own, but leafs that the device can read where they lie.

    Those that nodes write, and those whose values are ``replaced``, by position, are not.
    """
    changed = {graph.roots[position] for position in written_positions(graph)}.union(replaced)
    made: dict[Tensor, Tensor] = {}
    for position, tensor in enumerate(graph.tensors):
        if tensor.op is None and graph.roots[position] not in changed and _reads(device, tensor.root.buffer_type):
            made[tensor] = tensor
            continue
        parent = None if tensor.view_src is None else made[tensor.view_src]
        spec = Spec(tensor.type, tensor.ne, tensor.rank, tensor.nb, parent, tensor.view_offset)
        copy = Tensor(spec, tensor.op, tuple(None if each is None else made[each] for each in tensor.src), tensor.name)
        copy.flags = tensor.flags
        made[tensor] = copy
    return Graph.listed(list(made.values()), [made[output] for output in graph.outputs], graph.name)


def _reads(device: Device, kind: BufferType | None) -> bool:
    return (
        kind is not None
        and device.supports_buffer_type(kind)
        and not (kind.has_own_layout and kind.device is not device)
    )


def _written(graph: Graph, position: int) -> list[int]:
    """The positions of the roots whose bytes a node writes."""
    node = graph.tensors[position]
    return list(dict.fromkeys(graph.index[each.root] for each in (node, *written_sources(node))))


def _read(part: Graph) -> list[Tensor]:
    """The roots that lay there before a part of a graph is computed."""
    made = {node for node in part.nodes if node.view_src is None}
    return [root for root in dict.fromkeys(tensor.root for tensor in part.tensors) if root not in made]


def _covered(root: Tensor, views: Sequence[Tensor]) -> npt.NDArray[np.bool_]:
    """Which bytes of a root are elements of one of these views."""
    covered = np.zeros(root.nbytes, np.uint8)
    for view in views:
        if view.size:
            layout = TensorLayout.of(view)
            kind = np.dtype((np.void, layout.dtype.itemsize))
            elements = np.ndarray(layout.shape, kind, covered.data, view.view_offset, layout.byte_strides)
            elements[...] = np.void(b"\1" * kind.itemsize)
    return covered.astype(bool)


class _Pair(Expected):
    """What a device may compute where another one computes ``results`` of the same sources."""

    def __init__(self, expected: Expected, results: Mapping[Tensor, Array]) -> None:
        self._expected, self._computed = expected, results

    def __getitem__(self, node: Tensor) -> Array:
        found = self._computed.get(node)
        return self._expected[node] if found is None else found

    def drift(self, node: Tensor) -> Array:
        return self._expected.drift(node)

    def allowed(self, node: Tensor) -> Allowed:
        """The tolerance of the difference: the sum of both tolerances."""
        allowed = self._expected.allowed(node)
        want = self[node]
        if want.dtype.kind != "f":
            return Allowed(want, want)
        with np.errstate(all="ignore"):
            apart = allowed.high - allowed.low
            return Allowed(want - apart, want + apart, 4 * allowed.nmse)


class _Comparison:
    """The walk over the nodes of a graph; see :func:`compare`."""

    def __init__(
        self,
        graph: Graph,
        leaf_values: Mapping[int, Any],
        base: _Side,
        judged: Sequence[_Side],
        own: Sequence[_Side],
        *,
        reference: bool,
    ) -> None:
        self.graph = graph
        self.base, self.judged, self.own = base, judged, own
        self.reference = reference
        self._number_of = {position: number for number, position in enumerate(graph.order)}
        self._results: dict[int, Bytes] = {}
        self._before: dict[int, dict[int, Bytes]] = {}
        """For each node the bytes of roots that it wrote into, as they were before."""
        self._growth: dict[int, float] = {}
        self._wrong: list[tuple[int, WrongNode]] = []
        for position in dict.fromkeys(graph.roots):
            root = graph.tensors[position]
            sides = [side for side in dict.fromkeys((base, *judged, *own)) if position not in side.reused]
            if root.op is None and root.nbytes and sides:
                raw = leaf_values[position] if position in leaf_values else root.tobytes()
                for side in sides:
                    side.set(position, raw)

    def run(self, progress: Callable[[int, int], None] | None) -> Differences:
        graph = self.graph
        units = {side: dict(self._units(side)) for side in dict.fromkeys((*self.judged, *self.own))}
        computing = [p for p in graph.order if not graph.tensors[p].op.is_view and graph.tensors[p].size]  # type: ignore[union-attr]
        for done, position in enumerate(computing, 1):
            targets = _written(graph, position)
            if graph.tensors[position].is_view or len(targets) > 1:
                self._before[position] = {target: self.base.get(target) for target in targets}
            self._begin(position)
            self._results[position] = self.base.get(position)
            for side in self.judged:
                members = units[side].get(position)
                if members is not None:
                    self._judge(side, members)
            for side in self.own:
                if side is not self.base and position in units[side]:
                    self._go_on(side, units[side][position])
            self._measure(units[self.own[1]].get(position, ()))
            if progress is not None:
                progress(done, len(computing))
        first = self._wrong[0][0] if self._wrong else None
        return Differences(
            self.own[0].device.name,
            self.own[1].device.name,
            "references" if self.reference else self.base.device.name,
            len(computing),
            tuple(replace(each, node=self._node(position)) for position, each in self._wrong),
            () if first is None else tuple(self._follows(first)),
            tuple(self._grown()),
            tuple(self._declined()),
        )

    def _units(self, side: _Side) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The groups of a device, by position of the last node."""
        for position, members in zip(self.graph.order, side.groups.by_place(self.graph.order), strict=True):
            node = self.graph.tensors[position]
            if members and not node.op.is_view and node.size:  # type: ignore[union-attr]
                yield position, members

    def _begin(self, position: int) -> None:
        """Computes a node on the base; where it fails the reference does, and that is recorded."""
        try:
            changed = self.base.compute((position,))
            if changed is not None:
                self._wrong.append(self._changing(self.base, (position,), changed))
        except GGPlugError as error:
            self._wrong.append(self._failed(self.base, (position,), error))
            for target, raw in self._before.get(position, {}).items():
                self.base.set(target, raw)
            self.base.refer(position)

    # -- judging -----------------------------------------------------------------------------------

    def _judge(self, side: _Side, members: tuple[int, ...]) -> None:
        """Whether a side computes these nodes as the base does, from the base's values; then it has the base's."""
        several = len(members) > 1
        if members[-1] not in side.declined and (several or side.device is not self.base.device):
            found = self._wrong_of(side, members)
            if found is not None:
                alone = [self._node(each) for each in members if several and self._wrong_alone(side, each, members)]
                self._wrong.append((found[0], replace(found[1], alone=tuple(alone))))
        self._restore(side, members)

    def _restore(self, side: _Side, members: Sequence[int]) -> None:
        """Copies the base device's values of all results of these nodes to another device."""
        for target in dict.fromkeys(target for member in members for target in _written(self.graph, member)):
            side.set(target, self.base.get(target))

    def _wrong_alone(self, side: _Side, member: int, members: Sequence[int]) -> bool:
        """Whether a node of a group is also wrong when the device computes it alone."""
        if member in side.declined:
            return False
        self._restore(side, members)
        for target, raw in self._before.get(member, {}).items():
            side.set(target, raw)
        return self._wrong_of(side, (member,)) is not None

    def _wrong_of(self, side: _Side, members: tuple[int, ...]) -> tuple[int, WrongNode] | None:
        """The first of these nodes that is wrong, by position, if one is."""
        try:
            changed = side.compute(members)
        except GGPlugError as error:
            return self._failed(side, members, error)
        if changed is not None:
            return self._changing(side, members, changed)
        kept = [member for member in members if len(members) == 1 or member not in side.groups.inner]
        expected: Expected | None = None
        for member in kept:
            got, want = side.get(member), self._results[member]
            if got.tobytes() == want.tobytes():
                continue
            if expected is None:
                expected = self._expected(members)
            node = self.base.graph.tensors[member]
            results = {self.base.graph.tensors[p]: self._values(p, self._results[p]) for p in members}
            judge_by = expected if self.reference else _Pair(expected, results)
            found = Judging(judge_by).of(node, got)
            if not found:
                computed = (
                    {side.device.name: got} if self.reference else {self.base.device.name: want, side.device.name: got}
                )
                blamed = [name for name, raw in computed.items() if not Judging(expected).of(node, raw)]
                elements = tuple(self._largest(member, got, expected, judge_by))
                wrong = self._described(side, members, member, found.reason)
                return member, replace(wrong, nmse=found.nmse, blamed=tuple(blamed), elements=elements)
        return self._wrong_beside(side, members, expected)

    def _wrong_beside(
        self, side: _Side, members: tuple[int, ...], expected: Expected | None
    ) -> tuple[int, WrongNode] | None:
        """The first of these nodes that leaves something wrong in a tensor which it writes, but is not its result."""
        graph = self.base.graph
        for member in members:
            node = graph.tensors[member]
            for target, before in self._before.get(member, {}).items():
                root, got, want = graph.tensors[target], side.get(target), self.base.get(target)
                if target == self.graph.roots[member]:
                    results = [graph.tensors[each] for each in members if self.graph.roots[each] == target]
                    beside = np.flatnonzero((got != want) & (before == want) & ~_covered(root, results))
                    if beside.size:
                        reason = f"byte {int(beside[0])} of {root!r} was modified, which the op leaves as it is"
                        return member, self._described(side, members, member, reason)
                elif not np.array_equal(got, want):
                    expected = expected or self._expected(members)
                    [source] = [each for each in written_sources(node) if each.root is root]
                    values = read_values(source, got[source.view_offset :][: source.nbytes])
                    found = Judging(expected).compared(values, source, expected.allowed_in_source)
                    if not found:
                        reason = f"{source!r}, which it writes, too: {found.reason}"
                        return member, replace(self._described(side, members, member, reason), nmse=found.nmse)
        return None

    def _expected(self, members: Sequence[int]) -> Expected:
        """The results of the references for these nodes, from the base device's values."""
        part = piece(self.base.graph, members)
        values = {}
        before = {target: raw for p in reversed(members) for target, raw in self._before.get(p, {}).items()}
        for root in _read(part):
            position = self.base.graph.index[root]
            values[root] = before[position] if position in before else self.base.get(position)
        return Expected(part, values)

    def _values(self, position: int, raw: Bytes) -> Array:
        return read_values(self.graph.tensors[position], raw)

    def _largest(self, position: int, got: Bytes, expected: Expected, judge_by: Expected) -> Iterator[Element]:
        """The elements that are furthest off."""
        node = self.base.graph.tensors[position]
        found, wanted, exact = self._values(position, got), judge_by[node], expected[node]
        allowed = judge_by.allowed(node)
        with np.errstate(all="ignore"):
            off = np.abs(found.astype(np.float64) - wanted)
            outside = ~((found >= allowed.low) & (found <= allowed.high) | np.isnan(found) & np.isnan(wanted))
        off = np.where(np.isnan(off), np.where(outside, np.inf, 0.0), off)
        if outside.any():
            off = np.where(outside, off, 0.0)
        for flat in np.argsort(-off, axis=None, kind="stable")[:LARGEST]:
            place = np.unravel_index(int(flat), off.shape)
            if off[place] > 0:
                shown = tuple(int(i) for i in place[::-1])[: max(node.rank, 1)]
                numbers = (wanted, found, exact, allowed.low, allowed.high)
                yield Element(shown, *(float(each[place]) for each in numbers))

    def _changing(self, side: _Side, members: tuple[int, ...], changed: Tensor) -> tuple[int, WrongNode]:
        reason = f"{changed!r} was modified, which is only read"
        return members[-1], self._described(side, members, members[-1], reason)

    def _failed(self, side: _Side, members: tuple[int, ...], error: GGPlugError) -> tuple[int, WrongNode]:
        return members[-1], self._described(side, members, members[-1], in_one_line(error))

    def _described(self, side: _Side, members: tuple[int, ...], position: int, reason: str) -> WrongNode:
        """A node that a device does not compute; of one that it computes wrongly the rest is said by who saw that."""
        node, device = self.graph.tensors[position], side.device.name
        made = self._node(position), node.type.name, node.ne[: node.rank], describe(node.src)
        group = tuple(map(self._node, members)) if len(members) > 1 else ()
        return WrongNode(*made, device, side.kernel(members), group, (), reason, math.inf, (device,), ())

    def _node(self, position: int) -> Node:
        node = self.graph.tensors[position]
        assert node.op is not None
        weights = (s.name for s in node.src if s is not None and s.op is None and not s.flags & TensorFlag.INPUT)
        name = node.name or next(filter(None, weights), "")
        return Node(self._number_of[position], name, node.op.name, self._growth.get(position))

    def _declined(self) -> Iterator[Declined]:
        for side in dict.fromkeys((*self.judged, self.base)):
            if side is self.base and not self.reference:
                continue  # the first of those that are judged is the same device
            for position, reason in side.declined.items():
                if not self.graph.tensors[position].op.is_view:  # type: ignore[union-attr]
                    yield Declined(self._node(position), side.device.name, reason)

    # -- from end to end ---------------------------------------------------------------------------

    def _go_on(self, side: _Side, members: tuple[int, ...]) -> None:
        """Computes nodes from a device's own values; if that fails, uses the base device's values."""
        try:
            side.compute(members)
        except GGPlugError:
            self._restore(side, members)

    def _measure(self, members: tuple[int, ...]) -> None:
        """The difference of the devices at these nodes, each computing from its own values."""
        first, second = self.own
        for position in members:
            node = self.graph.tensors[position]
            if node.type.dtype.kind == "i" or (len(members) > 1 and position in second.groups.inner):
                continue
            a, b = (self._values(position, side.get(position)) for side in (first, second))
            finite = np.isfinite(a) & np.isfinite(b)
            same = np.array_equal(a[~finite], b[~finite], equal_nan=True)
            self._growth[position] = nmse(b[finite], a[finite]) if same else np.inf

    def _grown(self) -> Iterator[Node]:
        """The first difference, each that is ten times the one before, and the last."""
        largest, last = 0.0, None
        for position, error in self._growth.items():
            last = position
            if error and error >= 10 * largest:
                largest = error
                yield self._node(position)
                last = None
        if last is not None:
            yield self._node(last)

    def _follows(self, first: int) -> Iterator[Node]:
        """The nodes that depend on one, and are not wrong themselves."""
        graph = self.graph
        reached = {graph.roots[first]}
        wrong = {position for position, _ in self._wrong}
        for position in graph.order[self._number_of[first] + 1 :]:
            node = graph.tensors[position]
            if any(source >= 0 and graph.roots[source] in reached for source in graph.sources[position]):
                reached.update(_written(graph, position))
                if position not in wrong and not node.op.is_view and node.size:  # type: ignore[union-attr]
                    yield self._node(position)
