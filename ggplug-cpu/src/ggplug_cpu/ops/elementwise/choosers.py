"""Elementwise ops: single nodes, and chains of nodes in one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence

from ggplug import ops
from ggplug.backend import Decline
from ggplug.nodes.groups import Group
from ggplug.patterns import Names, Pattern, chain
from ggplug.tensor import Tensor, contiguous_strides
from ggplug_cpu.choosing.chooser import Chooser, GroupChooser
from ggplug_cpu.choosing.entries import RESULT, Entries, slot_of, source, source_tensor, tasks
from ggplug_cpu.choosing.nest import Shape, element_nest, words_of
from ggplug_cpu.choosing.places import reader, reading, writing
from ggplug_cpu.choosing.programs import KINDS, Chained, Source, chained
from ggplug_cpu.ops.copy.choosers import copy_bytes
from ggplug_cpu.ops.elementwise.kernels import elementwise, elementwise_parameters, scratch_bytes
from ggplug_cpu.parameters import Ref
from ggplug_cpu.tape import WORKSPACE, Entry


def single(node: Tensor) -> Entries | Decline:
    """y = f(x), y = f(a, b) with b repeated to a's shape, or y = f(x) gate."""
    # A single node's signature does not say which of its sources are the same tensor, so each source has its own slot.
    program = chained([node])
    present = [index for index, tensor in enumerate(node.src) if tensor is not None]
    slots = [source(index) for index in present] if len(present) > 1 else [source(0)] * 2
    return _computed(node, program, slots)


def run(group: Group, names: Names) -> Entries | Decline:
    """y = f(g(a, b), c) and so on: a chain of nodes, each read only by the next."""
    if sum(group.kept) > 1:
        return Decline("a result inside the chain is read by other nodes, too")
    program = chained(group.nodes)
    if isinstance(program, Decline):
        return program
    if any(s.tensor not in group.sources for s in program.sources):
        return Decline("a result of the chain is read as a view")
    return _computed(group.node, program, [slot_of(group, s.tensor) for s in program.sources])


def binary(node: Tensor) -> Entries | Decline:
    """y = f(a, b), b repeated to a's shape."""
    a, b = source_tensor(node, 0), source_tensor(node, 1)
    if b.ne[0] in (1, a.ne[0]) or b.ne[0] % a.type.block_size == 0:
        return single(node)
    # A row of b ends within a block of a: repeat it to the length of a's rows in the workspace.
    repeated, shape = repeated_rows(b, a.ne[0])
    nest = element_nest(node.ne, Shape.of(node), Shape.of(a), shape)
    y_stride, a_stride, b_stride = nest.inner.strides
    places = (
        writing(Ref(RESULT), node.type, y_stride),
        reading(Ref(source(0)), a.type, a_stride),
        reading(Ref(WORKSPACE), b.type, b_stride),
    )
    program = chained([node])
    assert not isinstance(program, Decline)
    words = words_of(elementwise_parameters(2), nest, *places, constants=[])
    entry = Entry(elementwise(program.text), words, tasks(nest.elements, program.weight))
    return Entries((*repeated.entries, entry), repeated.workspace_bytes, scratch_bytes(2))


def repeated_rows(b: Tensor, n: int) -> tuple[Entries, Shape]:
    """Entries that repeat source 1, ``b``, along ne0 to ``n`` elements in the workspace; and the shape of the copy."""
    ne = (n, *b.ne[1:])
    shape = Shape(ne, contiguous_strides(b.type, ne))
    entry = copy_bytes(b.type, ne, shape, Shape(b.ne, b.nb), Ref(WORKSPACE), Ref(source(1)))
    return Entries((entry,), b.type.row_bytes(n) * b.nrows), shape


def _computed(node: Tensor, program: Chained | Decline, slots: Sequence[int]) -> Entries | Decline:
    """The entry of a program whose result is ``node``; ``slots``: of its sources."""
    if isinstance(program, Decline):
        return program
    refusal = _refusal(program.sources, node)
    if refusal is not None:
        return refusal
    nest = element_nest(node.ne, Shape.of(node), *(s.shape for s in program.sources))
    y_stride, *strides = nest.inner.strides
    places = [
        reading(Ref(slot, s.offset), s.tensor.type, stride)
        for slot, s, stride in zip(slots, program.sources, strides, strict=False)
    ]
    result = writing(Ref(RESULT), node.type, y_stride)
    words = words_of(elementwise_parameters(len(places)), nest, result, *places, constants=program.constants)
    entry = Entry(elementwise(program.text), words, tasks(nest.elements, program.weight))
    return Entries((entry,), scratch_bytes=scratch_bytes(len(places)))


def _refusal(sources: tuple[Source, ...], node: Tensor) -> Decline | None:
    for s in sources:
        if reader(s.tensor.type) is None:
            return Decline(f"the CPU device does not convert {s.tensor.type.name} within a chain")
        if 1 < s.ne[0] < node.ne[0] and s.ne[0] % node.type.block_size:
            return Decline(f"a row of {s.tensor!r} ends within a block of {node!r}")
    for i, n in enumerate(node.ne):
        if len({s.ne[i] for s in sources if 1 < s.ne[i] < n}) > 1:
            return Decline(f"sources repeat in different ways along ne{i}")
    return None


CHOOSERS = (
    Chooser(ops.Binary, "float|encoded float > float|encoded", binary),
    Chooser(ops.Unary, "float > float", single),
    Chooser(ops.Glu, "float float? > float", single),
)


GROUPS: dict[Pattern, GroupChooser] = {chain("elementwise", *KINDS, inplace=True): run}
