"""Padding, rolling, and stores into windows, as copies of ranges."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ggplug import ops
from ggplug.backend import Decline
from ggplug.ops.windows import Window
from ggplug.tensor import Extents, Tensor
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.choosing.nest import Shape, element_nest, words_of
from ggplug_cpu.choosing.places import reading, writing
from ggplug_cpu.ops.copy.choosers import copy_bytes, zero_bytes
from ggplug_cpu.ops.elementwise.kernels import elementwise, elementwise_parameters, scratch_bytes
from ggplug_cpu.parameters import Ref
from ggplug_cpu.tape import Entry

CopiedRange = tuple[int, int, int]
"""Along one dimension: the first element in y, the first in x, and how many elements are copied."""

#: Most entries of a node.
_MOST = 256


def pad(node: Tensor) -> Entries | Decline:
    """y = x with zeros around it, or with elements from its opposite side."""
    op, x = node.op, source_tensor(node, 0)
    assert isinstance(op, ops.Pad)
    if op.circular:
        along = [_around(-before, n, to) for before, n, to in zip(op.before, x.ne, node.ne, strict=True)]
        return _copies(node, along)
    if not x.size:
        return Entries((zero_bytes(node),))
    copied = _copies(node, [[(before, 0, n)] for before, n in zip(op.before, x.ne, strict=True)])
    assert isinstance(copied, Entries)
    (entry,) = copied.entries
    return Entries((zero_bytes(node), entry) if x.ne != node.ne else (entry,))


def roll(node: Tensor) -> Entries | Decline:
    """y = x, shifted circularly in each dimension."""
    op = node.op
    assert isinstance(op, ops.Roll)
    return _copies(node, [_around(-shift, n, n) for shift, n in zip(op.shifts, node.ne, strict=True)])


def pad_reflect_1d(node: Tensor) -> Entries:
    """Rows with reflections at both ends."""
    op, x = node.op, source_tensor(node, 0)
    assert isinstance(op, ops.PadReflect1d)
    size, step = node.type.block_bytes, x.nb[0]
    entries = [_copied(node, x.ne, op.p0 * size, 0, x.nb)]
    reflected = (-step, *x.nb[1:])
    if op.p0:
        entries.append(_copied(node, (op.p0, *x.ne[1:]), 0, op.p0 * step, reflected))
    if op.p1:
        place, start = (op.p0 + x.ne[0]) * size, (x.ne[0] - 2) * step
        entries.append(_copied(node, (op.p1, *x.ne[1:]), place, start, reflected))
    return _apart(entries)


def set_window(node: Tensor) -> Entries:
    """The window of a = b."""
    b = source_tensor(node, 1)
    offset, shape = _window(node)
    entry = copy_bytes(node.type, b.ne, shape, Shape(b.ne, b.nb), Ref(RESULT, offset), Ref(source(1)))
    return Entries((entry,))


def acc(node: Tensor) -> Entries:
    """The window of a += b."""
    b = source_tensor(node, 1)
    offset, shape = _window(node)
    nest = element_nest(b.ne, shape, shape, Shape.of(b))
    y_stride, a_stride, b_stride = nest.inner.strides
    places = (
        writing(Ref(RESULT, offset), node.type, y_stride),
        reading(Ref(RESULT, offset), node.type, a_stride),
        reading(Ref(source(1)), b.type, b_stride),
    )
    words = words_of(elementwise_parameters(2), nest, *places, constants=[])
    entry = Entry(elementwise("add(x0,x1)"), words, tasks(nest.elements))
    return Entries((entry,), scratch_bytes=scratch_bytes(2))


def _window(node: Tensor) -> tuple[int, Shape]:
    """(offset in bytes, shape) of the window that a node writes."""
    op, b, kind = node.op, source_tensor(node, 1), node.type
    assert isinstance(op, Window)

    def in_bytes(count: int) -> int:
        return count // kind.block_size * kind.block_bytes

    nb1, nb2, nb3 = map(in_bytes, op.strides)
    return in_bytes(op.offset), Shape(b.ne, (kind.block_bytes, nb1, nb2, nb3), kind.block_size)


def _around(start: int, n: int, count: int) -> list[CopiedRange]:
    """The ranges of ``count`` elements from ``start`` on, of ``n`` elements that repeat in both directions."""
    ranges, done = [], 0
    while done < count:
        at = (start + done) % n
        length = min(n - at, count - done)
        ranges.append((done, at, length))
        done += length
    return ranges


def _copies(node: Tensor, along: Iterable[list[CopiedRange]]) -> Entries | Decline:
    """The entries that copy all combinations of ranges of the four dimensions."""
    x, entries = source_tensor(node, 0), list[Entry]()
    for ranges in itertools.product(*along):
        if len(entries) == _MOST:
            return Decline(f"{node!r} repeats its source more than {_MOST} times")
        ne = tuple(length for _, _, length in ranges)
        to = sum(each[0] * stride for each, stride in zip(ranges, node.nb, strict=True))
        start = sum(each[1] * stride for each, stride in zip(ranges, x.nb, strict=True))
        entries.append(_copied(node, ne, to, start, x.nb))
    return _apart(entries)


def _copied(node: Tensor, ne: tuple[int, ...], to: int, start: int, nb: tuple[int, ...]) -> Entry:
    extents: Extents = (ne[0], ne[1], ne[2], ne[3])
    strides: Extents = (nb[0], nb[1], nb[2], nb[3])
    shapes = Shape(extents, node.nb), Shape(extents, strides)
    return copy_bytes(node.type, extents, *shapes, Ref(RESULT, to), Ref(source(0), start))


def _apart(entries: Iterable[Entry]) -> Entries:
    """Entries without barriers between them: they write different bytes."""
    return Entries(tuple(Entry(e.kernel, e.words, e.tasks, barrier_before=not i) for i, e in enumerate(entries)))


CHOOSERS = (
    Chooser(ops.Pad, "any > any", pad),
    Chooser(ops.PadReflect1d, "any > any", pad_reflect_1d),
    Chooser(ops.Roll, "any > any", roll),
    Chooser(ops.Set, "any any > any", set_window),
    Chooser(ops.Acc, "float float > float", acc),
)
