"""Devices whose groups have one fault each."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ggplug import ops
from ggplug.arrays import strided
from ggplug.backend import UNGROUPED, Backend, Group, Groups, Operand, Plan, WalkPlan, check_parameters
from ggplug.graph import Graph
from ggplug.groups import Missed
from ggplug.ops.base import Array, Op
from ggplug.patterns import Pattern, pattern
from ggplug.tensor import Tensor
from ggplug_testing.fusing import ADD, MUL, NORM, PATTERNS, RESIDUAL, FusingDevice, interpret_group
from ggplug_testing.oracle import compute_node, decoded, round_into

Operands = Mapping[Tensor, Operand]


class OtherKernel(FusingDevice):
    """The reference device of groups with another kernel for groups of several nodes."""

    def __init__(self, kernel: Callable[[Group, Operands], None], patterns: Sequence[Pattern] = PATTERNS) -> None:
        super().__init__("faulty", patterns)
        self._kernel = kernel

    def match(self, group: Group) -> Any:
        found = super().match(group)
        return self._kernel if found is interpret_group else found


def _computed(group: Group, operands: Operands, change: Callable[[Tensor, Array], Array]) -> None:
    """The nodes one after the other in float64, each result changed before it goes on."""
    wide: dict[Tensor, Array] = {}

    def values(tensor: Tensor | None) -> Array | None:
        if tensor is None:
            return None
        if tensor in wide:
            return wide[tensor]
        if tensor.root in wide:
            flat = np.ascontiguousarray(wide[tensor.root]).reshape(-1)
            return flat.reshape(tensor.ne[::-1])
        return decoded(operands[tensor].array(), tensor)

    for node in group.nodes:
        assert node.op is not None
        with np.errstate(all="ignore"):
            result = np.asarray(node.op.reference(*map(values, node.src))).reshape(node.ne[::-1])
        wide[node] = change(node, result)
    for node, kept in zip(group.nodes, group.kept, strict=True):
        if kept:
            round_into(operands[node].array(), node, wide[node])


def rounds_only_the_last(group: Group, operands: Operands) -> None:
    """Results inside of the group go on in full precision, whatever their type is."""
    if any(node.view_src is not None for node in group.nodes):
        return interpret_group(group, operands)
    return _computed(group, operands, lambda node, result: result)


def leaves_kept_results(group: Group, operands: Operands) -> None:
    """Writes the last result only."""
    kept = {node: operands[node].array().copy() for node in group.nodes[:-1] if node in operands}
    interpret_group(group, operands)
    for node, before in kept.items():
        if node.view_src is None:
            operands[node].array()[...] = before


def writes_before_it_reads(group: Group, operands: Operands) -> None:
    """Clears its result first; wrong where that lies on a source."""
    if group.node.view_src is None:
        operands[group.node].array()[...] = np.zeros((), operands[group.node].array().dtype)
    interpret_group(group, operands)


def takes_one_order(group: Group, operands: Operands) -> None:
    """Takes the result of the group for the first source of every difference and quotient."""
    _renamed(group, operands, lambda node, before: (before, *(s for s in node.src if s is not before)))


def broadcasts_the_first_row(group: Group, operands: Operands) -> None:
    """Takes each sum's other source for one row."""
    narrow = {}
    for tensor, operand in operands.items():
        raw = operand.array()
        if tensor not in group.nodes and raw.shape[2] > 1 and _added(group, tensor):
            raw = raw.copy()
            raw[...] = raw[:1, :1, :1, :]
            narrow[tensor] = raw
    _with_arrays(group, operands, narrow)


def forgets_parameters(group: Group, operands: Operands) -> None:
    """Norms have the default eps."""
    nodes = []
    for node in group.nodes:
        op = node.op
        nodes.append(dataclasses.replace(op, eps=1e-6) if isinstance(op, ops.RowNorm) else op)
    _with_ops(group, operands, nodes)


def spoils_a_source(group: Group, operands: Operands) -> None:
    """Uses the bytes of the first source for what it computes in between."""
    interpret_group(group, operands)
    first = group.sources[0]
    if not any(node.view_src is not None for node in group.nodes) and operands[first].array().size:
        operands[first].array().reshape(-1)[:1].view(np.uint8)[:] ^= 0x10


def writes_what_is_inside(group: Group, operands: Operands) -> None:
    """Writes the first result inside of the group behind the last one."""
    interpret_group(group, operands)
    last = operands[group.node]
    if not all(group.kept):
        last.buffer.bytes(last.offset + group.node.nbytes, 4)[:] = 0


def goes_on_in_its_result(start: type[Op]) -> Callable[[Group, Operands], None]:
    """Keeps all results of groups that begin with ``start`` in the place of the last one, and reads a source where a
    node needs it: wrong where the group's result lies on a source that a later node reads."""

    def kernel(group: Group, operands: Operands) -> None:
        straight = all(before in node.src for before, node in itertools.pairwise(group.nodes))
        same = all((node.type, node.ne) == (group.node.type, group.node.ne) for node in group.nodes)
        if not isinstance(group.nodes[0].op, start) or not straight or not same:
            return interpret_group(group, operands)
        last = operands[group.node]
        place = strided(last.buffer.bytes(last.offset, group.node.nbytes), group.node)
        for number, (node, kept) in enumerate(zip(group.nodes, group.kept, strict=True)):
            before = group.nodes[number - 1] if number else None
            compute_node(
                node, place, [None if s is None else place if s is before else operands[s].array() for s in node.src]
            )
            if kept:
                operands[node].array()[...] = place

    return kernel


IN_PLACE_OF_ANY: tuple[Pattern, ...] = (
    pattern("add_norm_affine", lambda x, y, w, b: ADD(MUL(NORM(RESIDUAL(x, y)), w), b), inplace=("x", "y", "w", "b")),
    pattern("norm_affine", lambda x, w, b: ADD(MUL(NORM(x), w), b), inplace=("x", "w", "b")),
    pattern("norm_scale", lambda x, w: MUL(NORM(x), w), inplace=("x", "w")),
)
"""Patterns that say of every source that it may be overwritten."""


def _added(group: Group, tensor: Tensor) -> bool:
    return any(isinstance(node.op, ops.Binary) and tensor in node.src for node in group.nodes)


def _with_arrays(group: Group, operands: Operands, arrays: Mapping[Tensor, Array]) -> None:
    _run(group, operands, [node.op for node in group.nodes], [node.src for node in group.nodes], arrays)


def _with_ops(group: Group, operands: Operands, nodes: Sequence[Any]) -> None:
    _run(group, operands, nodes, [node.src for node in group.nodes], {})


def _renamed(group: Group, operands: Operands, order: Callable[[Tensor, Tensor], tuple[Tensor | None, ...]]) -> None:
    sources: list[Sequence[Tensor | None]] = []
    members = set(group.nodes)
    for node in group.nodes:
        inside = next((s for s in node.src if s in members), None)
        fits = inside is not None and isinstance(node.op, (ops.Sub, ops.Div)) and inside.ne == node.ne
        sources.append(order(node, inside) if fits and inside is not None else node.src)
    _run(group, operands, [node.op for node in group.nodes], sources, {})


def _run(
    group: Group, operands: Operands, kinds: Sequence[Any], sources: Sequence[Sequence[Tensor | None]],
    arrays: Mapping[Tensor, Array],
) -> None:  # fmt: skip
    """The group with other ops, sources or values of sources."""
    made: dict[Tensor, Any] = {}

    def stored(tensor: Tensor | None) -> Array | None:
        if tensor is None:
            return None
        if tensor in arrays:
            return arrays[tensor]
        if tensor.root in made:
            return strided(made[tensor.root][tensor.view_offset : tensor.view_offset + tensor.nbytes], tensor)
        return operands[tensor].array()

    for node, op, src in zip(group.nodes, kinds, sources, strict=True):
        other = Tensor.__new__(Tensor)
        for name in ("type", "ne", "nb", "nbytes", "rank", "view_src", "view_offset", "name"):
            setattr(other, name, getattr(node, name))
        other.op, other.src = op, tuple(src)
        if node.view_src is not None:
            compute_node(other, operands[node].array(), [stored(s) for s in src])
            continue
        raw = np.zeros(node.nbytes, np.uint8)
        compute_node(other, strided(raw, node), [stored(s) for s in src])
        made[node] = raw
    for node, kept in zip(group.nodes, group.kept, strict=True):
        if kept and node in made:
            operands[node].array()[...] = strided(made[node], node)


# -- groups that should not be ---------------------------------------------------------------------


class TakesEverythingInside(FusingDevice):
    """Takes every result but the last for one that nobody else needs."""

    def groups(self, graph: Graph, leaving: Collection[int] = ()) -> Groups:
        found = super().groups(graph, leaving)
        return Groups(found.members, frozenset(p for each in found.members for p in each[:-1]), found.inplace)


class LooksAtSourcesOnly(FusingDevice):
    """Forms groups of what was missed, too, whatever comes in between."""

    def groups(self, graph: Graph, leaving: Collection[int] = ()) -> Groups:
        found = super().groups(graph, leaving)
        taken = {position for members in found.members for position in members}
        more: list[Missed] = []
        for missed in found.missed:
            if not taken & set(missed.nodes):
                taken |= set(missed.nodes)
                more.append(missed)
        return Groups([*found.members, *(missed.nodes for missed in more)], found.inner, found.inplace)


class RunsAtTheFirstNode(FusingDevice):
    """Its plans compute a group at the place of its first node, before sources that are computed in between."""

    def init(self, **params: Any) -> Backend:
        check_parameters(self, params)
        return _RunsAtTheFirstNodeStream(self)


class _RunsAtTheFirstNodeStream(Backend):
    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return _RunsAtTheFirstNodePlan(self, graph, groups)


class _RunsAtTheFirstNodePlan(WalkPlan):
    def rebind(self, graph: Graph, allocation: Any) -> None:
        super().rebind(graph, allocation)
        self._bound[0].sort(key=lambda call: graph.index[call.group.nodes[0]])
