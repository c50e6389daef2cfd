"""What this device computes, and how: one ordered table.

A row names a class of ops, the types that it takes, and a function from a node to its :class:`Steps`.  "Is this group
supported?" and "run this group" are the same call, :func:`find`.  The first row that fits decides; a row whose function
answers with a :class:`~ggplug.backend.Decline` leaves the node to the rows after it.  To add an op, write a kernel and
a row.

Types are written ``source source > result``: each a choice of names of types or of the groups in :data:`GROUPS`, with
``?`` for a source that may be absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ggplug import ops
from ggplug.backend import Decline, Group
from ggplug.ops import Op
from ggplug.tensor import Tensor
from ggplug.types import TYPES, Type, by_name
from ggplug_cpu.choices import copy, elementwise, mul_mat, norms, reduce, rotary, rows_by_index, soft_max, sort
from ggplug_cpu.choices.steps import Steps
from ggplug_cpu.types import BLOCKS, ENCODED, PLAIN

GROUPS = {
    "float": "|".join(PLAIN),
    "block": "|".join(BLOCKS),
    "encoded": "|".join(ENCODED),
    "any": "|".join(t.name for t in TYPES),
}


@dataclass(frozen=True)
class Row:
    """``types`` fit and ``choose`` agrees: then the node is computed by what ``choose`` returns."""

    op: type[Op]
    types: str
    choose: Callable[[Tensor], Steps | Decline]
    _wanted: tuple[frozenset[Type | None], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        sources, result = self.types.split(">")
        wanted = [_choice(word) for word in [result.strip(), *sources.split()]]
        object.__setattr__(self, "_wanted", tuple(wanted))

    def takes(self, node: Tensor) -> bool:
        """Whether the types of result and sources fit; absent sources at the end need no mention."""
        given = [node.type, *(None if s is None else s.type for s in node.src)]
        wanted = self._wanted
        return all((t in wanted[i]) if i < len(wanted) else t is None for i, t in enumerate(given))


def _choice(word: str) -> frozenset[Type | None]:
    names = "|".join(GROUPS.get(name, name) for name in word.rstrip("?").split("|")).split("|")
    return frozenset([by_name(name) for name in names] + ([None] if word.endswith("?") else []))


TABLE: tuple[Row, ...] = (
    Row(ops.Binary, "float|encoded float > float|encoded", elementwise.binary),
    Row(ops.Unary, "float > float", elementwise.unary),
    Row(ops.Glu, "float float? > float", elementwise.glu),
    Row(ops.MulMat, "float|block float|block > f32", mul_mat.mul_mat),
    Row(ops.MulMatId, "float|block float|block i32 > f32", mul_mat.mul_mat_id),
    Row(ops.RowNorm, "float > float", norms.row_norm),
    Row(ops.SoftMax, "float f32|f16? f32? > float", soft_max.soft_max),
    Row(ops.Rope, "float i32 f32? > float", rotary.rope),
    Row(ops.GetRows, "float|block i32 > f32", rows_by_index.get_rows),
    Row(ops.GetRows, "i32 i32 > i32", rows_by_index.get_rows),
    Row(ops.SetRows, "float|encoded float i64|i32 > float|encoded", rows_by_index.set_rows),
    Row(ops.Cpy, "any any > any", copy.copy),
    Row(ops.Cont, "any > any", copy.copy),
    Row(ops.Dup, "any > any", copy.copy),
    Row(ops.Concat, "any any > any", copy.concat),
    Row(ops.Repeat, "any > any", copy.repeat),
    Row(ops.SumRows, "float > float", reduce.sum_rows),
    Row(ops.Mean, "float > f32", reduce.sum_rows),
    Row(ops.Sum, "float > float", reduce.sum_all),
    Row(ops.Argmax, "float > i32", reduce.argmax),
    Row(ops.Argsort, "float > i32", sort.argsort),
)


def rows_for(kind: type[Op]) -> Iterator[Row]:
    """The rows that an op's class has, in order."""
    for row in TABLE:
        if issubclass(kind, row.op):
            yield row


def find(group: Group) -> Steps | Decline:
    """What computes a group, or why nothing does.  A pure function of :func:`~ggplug.groups.signature_of`."""
    if len(group) > 1:
        return Decline("the CPU device computes every node alone")
    node = group.node
    op = node.op
    assert op is not None
    if nothing_to_do(node):
        return Steps(())
    reason = ""
    for row in rows_for(type(op)):
        if row.takes(node):
            steps = row.choose(node)
            if not isinstance(steps, Decline):
                return steps
            reason = reason or steps.reason
    return Decline(reason or _refusal(node, op))


def nothing_to_do(node: Tensor) -> bool:
    """Whether a node is empty, or writes nothing because what it would write is; functions of rows see none such."""
    assert node.op is not None
    if 0 in node.ne:
        return True
    return bool(node.op.writes) and any(s is not None and 0 in s.ne for s in node.src)


def _refusal(node: Tensor, op: Op) -> str:
    takes = [row.types for row in rows_for(type(op))]
    if not takes:
        return f"the CPU device has no kernel for {op.name}"
    given = " ".join("-" if s is None else s.type.name for s in node.src)
    return f"the CPU device's {op.name} does not take {given} > {node.type.name}, but {', '.join(takes)}"
