"""How ops split over the members of a combined device: one rule for each op, or family of ops.

A rule gets a node and the states of its sources.  It returns the states in which the members need the sources, and
the state of the result; or None, and then each member computes the whole node from whole sources.  An op without a
rule is always computed so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import prod
from operator import mul
from typing import NamedTuple

from ggplug import ops
from ggplug.combined.cuts import Divides, Split, State
from ggplug.ops.base import Op
from ggplug.ops.elementwise import Binary
from ggplug.ops.glu import Glu
from ggplug.ops.norms import RowNorm
from ggplug.ops.unary import Unary
from ggplug.tensor import Extents, Tensor


class Answer(NamedTuple):
    """How a node is computed in parts.

    ``sources``: the states in which it reads its sources.  ``result``: the state of its result.  ``partial``: each
    member computes a result of full size, and their sum is the node's.  ``op``: the op of a member, from the extents
    of its part of the result and its sources; None: the node's own.
    """

    sources: tuple[State, ...]
    result: State
    partial: bool = False
    op: Callable[[Extents, Sequence[Tensor | None]], Op] | None = None


Rule = Callable[[Tensor, Sequence[State]], Answer | None]


def matrix_product(node: Tensor, states: Sequence[State]) -> Answer | None:
    """Weights split by rows give a result split by ne0; by columns, partial sums; by matrices, matrices."""
    w, x = states[0], states[1]
    weights, others = node.src[0], (None,) * (len(states) - 2)
    assert weights is not None
    if w is not None and w.axis == 1:
        return Answer((w, None, *others), Split(0, w.by))
    if w is not None and w.axis == 0:
        return Answer((w, Split(0, w.by), *others), None, partial=True)
    if others or x is None or x.axis < 2:
        return None
    return None if (read := _repeated(weights, x)) is _NO else Answer((read, x), x)


def elementwise(node: Tensor, states: Sequence[State]) -> Answer | None:
    """The result is split as the sources are; sources with one element there are read whole."""
    state = _first(states)
    wanted = _same(node, state)
    return None if wanted is None else Answer(wanted, state)


def gated(node: Tensor, states: Sequence[State]) -> Answer | None:
    """As :func:`elementwise`; where both halves of a row are one source, rows are not split."""
    state = _first(states)
    if node.src[1] is None:
        return None if state.axis == 0 else Answer((state, None), state)
    return elementwise(node, states)


def by_rows(node: Tensor, states: Sequence[State]) -> Answer | None:
    """Norms of rows: whole rows."""
    state = states[0]
    return None if state is None or state.axis == 0 else Answer((state, *(None,) * (len(states) - 1)), state)


def soft_max(node: Tensor, states: Sequence[State]) -> Answer | None:
    """Whole rows; with slopes that depend on the number of the head, nothing is split."""
    x, mask = states[0], node.src[1]
    assert isinstance(node.op, ops.SoftMax)
    if x is None or x.axis == 0 or node.op.max_bias:
        return None
    read: State = None
    if mask is not None and mask.ne[x.axis] != 1:
        if mask.ne[x.axis] != node.ne[x.axis]:
            return None
        read = x
    return Answer((x, read, _of_heads(x, 2)), x)


def rotary(node: Tensor, states: Sequence[State]) -> Answer | None:
    """Whole heads."""
    x = states[0]
    return None if x is None or x.axis != 1 else Answer((x, None, None), x)


def attention(node: Tensor, states: Sequence[State]) -> Answer | None:
    """Heads: those of queries, and of the keys and values that they read."""
    q, (_, keys, values, mask, _) = states[0] or states[1], node.src
    assert isinstance(node.op, ops.FlashAttnExt)
    assert keys is not None
    assert values is not None
    if q is None or q.axis != 2 or node.op.max_bias or (mask is not None and mask.ne[2] != 1):
        return None
    read = _repeated(keys, q)
    if read is _NO:
        return None
    return Answer((q, read, read, None, _of_heads(q, 2)), Split(1, q.by))


def rows(node: Tensor, states: Sequence[State]) -> Answer | None:
    """Chosen rows of a source whose rows are split."""
    source = states[0]
    return Answer((source, None), source) if source is not None and source.axis == 0 else None


def chosen_sums(node: Tensor, states: Sequence[State]) -> Answer | None:
    """Sums with chosen rows: parts of rows."""
    a = states[0]
    return Answer((a, a, None), a) if a is not None and a.axis == 0 else None


def copied(node: Tensor, states: Sequence[State]) -> Answer | None:
    """The same elements in another memory."""
    return None if getattr(node.op, "ne", ()) else Answer((states[0],), states[0])


def reshaped(node: Tensor, states: Sequence[State]) -> Answer | None:
    """The dimension of the result that ends where the split one ends, if it can be cut there."""
    state, x = states[0], node.src[0]
    assert x is not None
    assert state is not None
    end = prod(x.ne[: state.axis + 1])
    ends = list(accumulate(node.ne, mul))
    axis = next((axis for axis in range(4) if ends[axis] == end and node.ne[axis] > 1), None)
    if axis is None or not state.by.fits(node.ne[axis]):
        return None
    return Answer((state,), Split(axis, state.by), op=lambda ne, _: ops.Reshape(ne[: node.rank]))


def permuted(node: Tensor, states: Sequence[State]) -> Answer | None:
    """The place of the split dimension changes."""
    state = states[0]
    assert state is not None
    axes = node.op.axes if isinstance(node.op, ops.Permute) else (1, 0, 2, 3)
    return Answer((state,), Split(axes[state.axis], state.by))


def windows(node: Tensor, states: Sequence[State]) -> Answer | None:
    """Windows with all elements of the split dimension, or with some of the first of each of its equal pieces."""
    state, x = states[0], node.src[0]
    assert x is not None
    assert state is not None
    if not x.is_contiguous():
        return None
    kind, unit = x.type, x.nb[state.axis]
    block = unit * x.ne[state.axis] if state.axis else kind.row_bytes(x.ne[0])
    counts = (node.ne[0] // kind.block_size, *node.ne[1:])
    spans = [n for n in range(4) if counts[n] > 1 and node.nb[n] * counts[n] == block and node.nb[n] % unit == 0]
    axis = next((n for n in spans if state.by.fits(counts[n])), None)
    assert isinstance(node.op, ops.View)
    if axis is None:
        return None
    whole, offset = node.nb, node.op.offset
    within = (n for n in range(4) if n != axis and whole[n] % block)
    if offset % block + sum(whole[n] * (counts[n] - 1) for n in within) >= whole[axis]:
        return None  # rows of the window reach into the next element of the split dimension

    def window(ne: Extents, sources: Sequence[Tensor | None]) -> Op:
        part = whole[axis] * ne[axis] if axis else kind.row_bytes(ne[0])
        nb = tuple(each // block * part if each % block == 0 else each for each in whole[1:])
        return ops.View(ne, nb, offset // block * part + offset % block)

    return Answer((state,), Split(axis, state.by), op=window)


def stored(node: Tensor, states: Sequence[State]) -> Answer | None:
    """Rows that are stored in a split leaf: their parts."""
    target = states[0]
    return None if target is None or target.axis else Answer((target, target, None), target)


RULES: Mapping[type[Op], Rule] = {
    ops.MulMat: matrix_product,
    ops.MulMatId: matrix_product,
    Binary: elementwise,
    Unary: elementwise,
    Glu: gated,
    RowNorm: by_rows,
    ops.SoftMax: soft_max,
    ops.Rope: rotary,
    ops.FlashAttnExt: attention,
    ops.GetRows: rows,
    ops.SetRows: stored,
    ops.AddId: chosen_sums,
    ops.Cont: copied,
    ops.Dup: copied,
    ops.Reshape: reshaped,
    ops.Permute: permuted,
    ops.Transpose: permuted,
    ops.View: windows,
}
"""The rule of each op, or of the abstract op from which a family of ops derives."""


def answer_for(node: Tensor, states: Sequence[State]) -> Answer | None:
    """How a node is computed in parts; None: whole, on each member."""
    op = node.op
    if op is None or not any(states) or not node.size or not (op.is_view or node.is_contiguous()):
        return None
    if op.writes and not isinstance(op, ops.SetRows):
        return None
    rule = next((RULES[kind] for kind in op.kinds if kind in RULES), None)
    answer = None if rule is None else rule(node, states)
    if answer is None:
        return None
    for source, state in ((node, answer.result), *zip(node.src, answer.sources, strict=True)):
        if source is not None and state is not None and not _cut(source, state):
            return None
    return answer


def _cut(tensor: Tensor, state: Split) -> bool:
    """Whether a tensor can be cut so: between elements, and in rows of a quantised type between blocks."""
    extent = tensor.ne[state.axis]
    return state.by.fits(extent if state.axis else extent // tensor.type.block_size)


_NO = Split(-1, None)  # type: ignore[arg-type]
"""What :func:`_repeated` returns where the repeated tensor cannot be split."""


def _repeated(tensor: Tensor, state: Split) -> State:
    """The state of a tensor that is repeated along the split dimension: whole if it has one element there."""
    extent = tensor.ne[state.axis]
    return None if extent == 1 else state if state.by.fits(extent) else _NO


def _of_heads(state: Split, axis: int) -> State:
    """The state of a vector with a number for each head, which are dimension ``axis``."""
    return Split(0, state.by) if state.axis == axis else None


def _first(states: Sequence[State]) -> Split:
    return next(state for state in states if state is not None)


def _same(node: Tensor, state: Split) -> tuple[State, ...] | None:
    """The states of sources that are repeated to the extents of the node, or have them."""
    found: list[State] = []
    for source in node.src:
        extent = 1 if source is None else source.ne[state.axis]
        if extent not in (1, node.ne[state.axis]):
            return None
        found.append(state if extent > 1 else None)
    return tuple(found)


def agree(wanted: State, held: State) -> bool:
    """Whether a source that is held in one state is what a node wants."""
    if wanted is None or held is None:
        return wanted is held
    return wanted.axis == held.axis and joins(wanted.by, held.by)


def joins(a: Divides, b: Divides) -> bool:
    """Whether two cuts are the same, or can be made the same."""
    return a is b or a.joins(b)
