"""Normalisation of rows: single nodes, and groups with elementwise nodes before and after it."""

from __future__ import annotations

from ggplug import ops
from ggplug.backend import Decline
from ggplug.nodes.groups import Group
from ggplug.patterns import Names, Pattern, chain, of, pattern
from ggplug.tensor import Tensor
from ggplug.types import F32
from ggplug_cpu.choosing.chooser import Chooser, GroupChooser
from ggplug_cpu.choosing.entries import RESULT, Entries, slot_of, source, source_tensor, tasks
from ggplug_cpu.choosing.nest import Shape, row_nest, words_of
from ggplug_cpu.choosing.places import PLAIN, reader, reading, writing
from ggplug_cpu.choosing.programs import KINDS, NOTHING, Chained, Source, chained
from ggplug_cpu.ops.copy.choosers import copy_bytes
from ggplug_cpu.ops.mul_mat.fused import normed as of_product
from ggplug_cpu.ops.norms.kernels import FIRST_STEPS, norm, norm_parameters, scratch_bytes
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import WORKSPACE, Entry


def row_norm(node: Tensor) -> Entries | Decline:
    """y = f(row of x) x, perhaps minus the row's mean."""
    return fused(Group((node,)), {})


def group_norm(node: Tensor) -> Entries | Decline:
    """y = (x - mean) / sqrt(var + eps) over groups of channels: those of contiguous tensors are rows."""
    op, x = node.op, source_tensor(node, 0)
    assert isinstance(op, ops.GroupNorm)
    n0, n1, channels, batches = node.ne
    if x.type not in PLAIN:
        return Decline(f"the CPU device does not normalise groups of {x.type.name}")
    entries: tuple[Entry, ...] = ()
    workspace, at = 0, Ref(source(0))
    nb = node.nb  # not x's: along extents of one a contiguous tensor has any strides
    if not x.is_contiguous():
        at = Ref(WORKSPACE)
        entries, workspace = (copy_bytes(x.type, x.ne, Shape.of(node), Shape.of(x), at, Ref(source(0))),), node.nbytes
    each = min(op.channels(x), channels)
    whole, left = channels // each, channels % each
    for first, count, groups in ((0, each, whole), (whole * each, left, 1)):
        if count:
            ne = (n0 * n1 * count, groups, batches, 1)
            shape = Shape(ne, (nb[0], nb[2] * count, nb[3], nb[3] * batches))
            offset = first * nb[2]
            places = (
                writing(Ref(RESULT, offset), node.type, nb[0]),
                reading(Ref(at.slot, offset), x.type, nb[0]),
            )
            parameters = norm_parameters(1, 0, False)
            words = words_of(parameters, row_nest(ne, shape, shape), *places, eps=op.eps, constants=[])
            entries += (Entry(norm("norm"), words, tasks(node.size, 2), barrier_before=first == 0),)
    return Entries(entries, workspace, scratch_bytes(n0 * n1 * each, 2))


def fused(group: Group, names: Names) -> Entries | Decline:
    """y = f(norm(g(a, b, ...)), w, ...): elementwise nodes before and after a norm.

    The normalised row may be stored, too.
    """
    nodes = group.nodes
    at = next(i for i, node in enumerate(nodes) if isinstance(node.op, ops.RowNorm))
    normed, x = nodes[at], source_tensor(nodes[at], 0)
    assert isinstance(normed.op, ops.RowNorm)
    if x.type not in PLAIN:
        return Decline(f"the CPU device does not normalise {x.type.name} within a group")
    if any(kept and node not in (x, group.node) for node, kept in zip(nodes, group.kept, strict=True)):
        return Decline("inside a group with a norm, only the row that it normalises may be read by other nodes")
    step, _ = FIRST_STEPS[normed.op.name]
    before = chained(nodes[:at], rounded=True) if at else NOTHING
    behind: Chained | Decline = NOTHING
    if at + 1 < len(nodes):
        rounded = "" if normed.type is F32 else f">{normed.type.name}"
        behind = chained(nodes[at + 1 :], {normed: "r0"}, before=step + rounded, sources=1)
    if isinstance(before, Decline):
        return before
    if isinstance(behind, Decline):
        return behind
    return _entries(group, normed, x, before, behind)


def _entries(group: Group, normed: Tensor, x: Tensor, before: Chained, behind: Chained) -> Entries | Decline:
    node, ne = group.node, normed.ne
    keeps = x in group.operands[1 + len(group.sources) :] if len(group) > 1 else False
    sources = [*(before.sources or [Source(x, 0, x.ne)]), *behind.sources]
    spread = []
    for s in sources:
        shape = s.spread(ne)
        if shape is None:
            return Decline(f"{s.tensor!r} is repeated along a part of an axis")
        if s.tensor not in group.sources or reader(s.tensor.type) is None:
            return Decline(f"the CPU device does not read {s.tensor!r} together with a norm")
        spread.append(shape)
    shapes = [Shape.of(node), *spread, *([Shape.of(x)] if keeps else [])]
    places: list[Place] = [writing(Ref(RESULT), node.type, node.nb[0])]
    for s, shape in zip(sources, spread, strict=True):
        places.append(reading(Ref(slot_of(group, s.tensor), s.offset), s.tensor.type, shape.nb[0]))
    if keeps:
        places.append(writing(Ref(slot_of(group, x)), x.type, x.nb[0]))
    first = len(sources) - len(behind.sources)
    parameters = norm_parameters(first, len(behind.sources), keeps)
    assert isinstance(normed.op, ops.RowNorm)
    constants = [*before.constants, *behind.constants]
    words = words_of(parameters, row_nest(ne, *shapes), *places, eps=normed.op.eps, constants=constants)
    work = tasks(node.size, 2 + before.weight + behind.weight)
    entry = Entry(norm(normed.op.name, before.text, behind.text, keeps), words, work)
    return Entries((entry,), scratch_bytes=scratch_bytes(ne[0], len(places)))


CHOOSERS = (
    Chooser(ops.RowNorm, "float > float", row_norm),
    Chooser(ops.GroupNorm, "float > float", group_norm),
)


NORM, ADD, AGAIN = of(ops.RowNorm, name="norm"), of(ops.Add), of(ops.Add, name="again")
PRODUCT = of(ops.MulMat, name="product")

GROUPS: dict[Pattern, GroupChooser] = {
    chain(
        "norm of a product and two sums", *KINDS, start=lambda w, x, b, c: NORM(AGAIN(ADD(PRODUCT(w, x), b), c))
    ): of_product,
    chain("norm of a product and a sum", *KINDS, start=lambda w, x, b: NORM(ADD(PRODUCT(w, x), b))): of_product,
    chain("norm of two sums", *KINDS, start=lambda a, b, c: NORM(AGAIN(ADD(a, b), c)), inplace=True): fused,
    chain("norm of a sum", *KINDS, start=lambda a, b: NORM(ADD(a, b)), inplace=True): fused,
    chain("norm", *KINDS, start=lambda x: NORM(x), inplace=True): fused,
    pattern(
        "bare norm of a product and two sums", lambda w, x, b, c: NORM(AGAIN(ADD(PRODUCT(w, x), b), c))
    ): of_product,
    pattern("bare norm of a product and a sum", lambda w, x, b: NORM(ADD(PRODUCT(w, x), b))): of_product,
    pattern("bare norm of a sum", lambda a, b: NORM(ADD(a, b)), inplace=("a", "b")): fused,
}
