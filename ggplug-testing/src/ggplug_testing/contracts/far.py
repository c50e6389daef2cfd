"""The contract where offsets take more than 31 or 32 bits: transfers and kernels behind many bytes of a buffer.

A buffer of that size is mostly left alone: a few of its pages are touched, so that it costs what these do where
memory is taken when it is used first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import numpy as np

from ggplug.backend import Backend, Buffer, Groups, forms_groups, groups_of
from ggplug.errors import GGPlugError, OutOfMemoryError
from ggplug.graph import Graph
from ggplug.memory import GraphAllocator
from ggplug.nodes.groups import UNGROUPED
from ggplug.ops.base import OPS, Op
from ggplug.ops.custom import PythonCall
from ggplug.ops.unary import neg, relu, sqr
from ggplug.ops.views import view
from ggplug.sketches import EXTENTS, Sizes, Sketch, maker, sketches
from ggplug.tensor import Extents, Spec, Tensor, contiguous_strides, new_tensor
from ggplug.types import Type
from ggplug.values.arrays import as_bytes
from ggplug_testing.cases.case import Layout, Leafs
from ggplug_testing.cases.chains import CHAINS, Context
from ggplug_testing.contracts.clause import (
    NotApplicable,
    NotOffered,
    alloc_for,
    expect,
    expect_equal,
    pattern,
    read,
)
from ggplug_testing.contracts.given import Given, clause
from ggplug_testing.contracts.sample import first_supported
from ggplug_testing.judging.expected import Expected
from ggplug_testing.judging.results import Judging
from ggplug_testing.running.placement import UNWRITTEN, Bytes, Placement, guard

FAR = (1 << 32, 1 << 31)
"""Offsets that 32 bits do not hold, and that 31 bits do not; the first for which there is a buffer is taken."""

BEHIND = 1 << 24
"""Bytes of the buffer from there on."""

_PAGE = 4096

MANY = (1 << 24) + 37
"""A number of elements that float32 cannot represent exactly."""

_MOST_ROWS = 8
"""Rows that lie far apart, each on a page of its own."""


def far_buffer(given: Given) -> tuple[Buffer, int]:
    """A large buffer, and the largest offset of :data:`FAR` in it.  Raises NotApplicable if no such buffer fits."""
    kind, free = given.kind, given.device.memory().free
    for far in FAR:
        size = far + BEHIND
        if (kind.max_size is None or size <= kind.max_size) and (free is None or size <= free):
            with suppress(OutOfMemoryError):
                return given.buffer(size=size), far
    limit = "" if kind.max_size is None else f", a buffer has at most {kind.max_size:,}"
    raise NotApplicable(f"there is no memory for a buffer of {FAR[-1] + BEHIND:,} bytes: {free or 0:,} are free{limit}")


@clause
def bytes_far_into_a_buffer_are_transferred_where_they_lie(given: Given) -> None:
    """Offsets, and rows that are apart, may be beyond 2**31 and 2**32 bytes, in every way to
    transfer bytes: ``set``, ``memset``, ``copy_from``, ``set_async``, ``copy_async``, ``set_2d``."""
    (buffer, far), stream, host = far_buffer(given), given.stream(), given.host(3, _PAGE)
    near, there = pattern(2 * _PAGE, 1), pattern(2 * _PAGE, 2)
    start = far - _PAGE  # half of a page before the border, the other half behind it
    buffer.set(0, near)
    buffer.set(start, there)

    def check(what: str) -> None:
        expect_equal(read(buffer, start, there.size), there, f"bytes around {far:,} after {what}")
        expect_equal(read(buffer, 0, near.size), near, f"the first bytes of the buffer after {what} at {far:,}")

    def put(what: str, offset: int, data: Bytes, act: Callable[[int], object]) -> None:
        """``act`` puts ``data`` so many bytes behind ``start``."""
        there[offset : offset + data.size] = data
        act(start + offset)
        stream.synchronize()
        check(what)

    check("set")
    piece = pattern(777, 4)
    for offset in (5, _PAGE - 300, _PAGE + 1233):
        put("set of a piece", offset, piece, lambda at: buffer.set(at, piece))
        put("memset", offset, np.full(501, 0x5A, np.uint8), lambda at: buffer.memset(at, 501, 0x5A))
        put("a copy from the host", offset, read(host, 7, 600), lambda at: buffer.copy_from(host, 7, at, 600))
        put("a copy within the buffer", offset, near[9:709], lambda at: buffer.copy_from(buffer, 9, at, 700))
        put("set_async", offset, piece, lambda at: stream.set_async(buffer, at, piece))
        put("copy_async", offset, near[70:633], lambda at: stream.copy_async(buffer, 70, buffer, at, 563))
        put("set_2d", offset, piece, lambda at: buffer.set_2d(at, piece, 111, 7, 111))
        fetched, found = np.empty(700, np.uint8), there[offset : offset + 700]
        stream.get_async(buffer, start + offset, fetched)
        stream.synchronize()
        expect_equal(fetched, found, f"bytes that a stream fetched at {start + offset:,}")
        host.copy_from(buffer, start + offset, 0, 700)
        expect_equal(read(host, 0, 700), found, f"bytes that the host copied from {start + offset:,}")
        buffer.get_2d(start + offset, fetched, 100, 7, 100)
        expect_equal(fetched, found, f"rows that were fetched at {start + offset:,}")
        for copy in (buffer.copy_from, lambda *where: stream.copy_async(where[0], where[1], buffer, *where[2:])):
            near[10:710] = found
            copy(buffer, start + offset, 10, 700)
            stream.synchronize()
            check(f"a copy of 700 bytes from {start + offset:,}")
    stride = far // 2 + 11
    rows = pattern(3 * 40, 5)
    buffer.set_2d(100, rows, 40, 3, stride)
    near[100:140], there[_PAGE + 122 : _PAGE + 162] = rows[:40], rows[80:]
    check(f"set_2d of rows {stride:,} bytes apart")
    expect_equal(read(buffer, 100 + stride, 40), rows[40:80], f"a row at {100 + stride:,}")
    fetched = np.empty(120, np.uint8)
    buffer.get_2d(100, fetched, 40, 3, stride)
    expect_equal(fetched, rows, f"rows that were fetched {stride:,} bytes apart")


@clause
def tensors_far_into_a_buffer_are_computed_with(given: Given) -> None:
    """``compute`` of every op, and of every chain in groups, reads sources and writes results beyond 2**31 and 2**32
    bytes."""
    computed = 0
    (buffer, far), stream = far_buffer(given), given.stream()
    buffer.set(0, guard(1 << 16))
    start, what = far + 3 * _PAGE, f"with all tensors {far:,} bytes into a buffer"
    for op, sketch in _sketched():
        leafs = Leafs(1)
        node = _made(op, sketch, EXTENTS, sketch.layouts(), leafs)
        if node is not None and all(map(given.device.supports_op, (graph := Graph(node)).nodes)):
            laid, near = (_Laid(graph, leafs, buffer, at) for at in (start, _PAGE))
            laid.expect_computed(stream, near, f"{op.name} {what}")
            computed += 1
    for name, chain in CHAINS.items() if forms_groups(given.device) else ():
        leafs = Leafs(2)
        graph = Graph(chain(Context(leafs)).set_output())
        if all(map(given.device.supports_op, graph.nodes)) and (groups := groups_of(given.device, graph)):
            laid, near = (_Laid(graph, leafs, buffer, at, groups) for at in (start, _PAGE))
            laid.expect_computed(stream, near, f"the group {name!r} {what}")
    if not computed:
        raise NotOffered("the device supports none of the ops that this clause computes")


@clause
def rows_that_are_far_apart_are_computed_with(given: Given) -> None:
    """``compute`` of every op reads, and writes, sources whose strides reach over more than 2**31 or 2**32 bytes."""
    computed = 0
    (buffer, far), stream = far_buffer(given), given.stream()
    for op, sketch in _sketched():
        for sizes, position in itertools.product(_SIZES, range(len(sketch.sources))):
            if op.indexes is not None and position == op.indexes.ids:
                continue  # ids are fetched to be looked at, mostly with what lies between them
            layouts: list[Layout] = ["packed"] * len(sketch.sources)
            leafs = Leafs(3)
            packed = _made(op, sketch, sizes, layouts, leafs)
            layouts[position] = "rows apart"
            apart = _made(op, sketch, sizes, layouts, _FarLeafs(far))
            if packed is None or apart is None or not all(map(given.device.supports_op, (graph := Graph(apart)).nodes)):
                continue
            source = apart.src[position]
            if source is not None and not source.is_contiguous():
                near = _Laid(Graph(packed), leafs, buffer, _PAGE)
                laid = _Laid(graph, leafs, buffer, 1 << 20, packed=packed, apart=source)
                what = f"{op.name} with rows of its source {position} that reach over {far:,} bytes"
                laid.expect_computed(stream, near, what)
                computed += 1
    if not computed:
        raise NotOffered("the device supports none of the ops that this clause computes")


@clause
def more_elements_than_float32_counts_are_computed(given: Given) -> None:
    """``compute`` takes rows of more than 2**24 elements."""
    x = new_tensor("f16", (MANY,))
    node = first_supported(given.device, neg(x), relu(x), sqr(x))
    assert node.op is not None
    some = np.random.default_rng(6).standard_normal(60_013).astype(np.float16)
    wanted = np.resize(np.asarray(node.op.reference(some.astype(np.float64)), np.float16), x.size)
    try:
        x.place(given.use(alloc_for(given.kind, x)))
        x.set_bytes(as_bytes(np.resize(some, x.size)))
        graph, stream = Graph(node), given.stream()
        stream.compute(graph, given.use(GraphAllocator(given.kind)).allocate(graph))
        stream.synchronize()
    except OutOfMemoryError as error:
        raise NotApplicable(f"there is no memory for {x.size:,} elements and a result") from error
    expect_equal(np.frombuffer(node.tobytes(), np.uint16), wanted.view(np.uint16), f"the bits of {node!r}")


# -- graphs of one op, and where their tensors lie -------------------------------------------------

_SIZES = (EXTENTS, {**EXTENTS, "b": 1, "c": 1, "m": 4})
"""The rows that lie apart are those of the last dimension that has several."""


def _sketched() -> Iterator[tuple[type[Op], Sketch]]:
    for op in OPS.values():
        if not issubclass(op, PythonCall):
            yield from ((op, sketch) for sketch in sketches(op) if sketch.view is None)


def _made(op: type[Op], sketch: Sketch, sizes: Sizes, layouts: Sequence[Layout], leafs: Leafs) -> Tensor | None:
    """A node of a sketch, or None where the op does not take such extents, or such sources."""
    try:
        return maker(op, sketch, sizes, layouts)(leafs)
    except GGPlugError:
        return None


class _Laid(Placement):
    """A graph with its tensors one after the other in a buffer, from ``start`` on.

    ``packed``: the graph's only node with sources, those of ``leafs``, that have no gaps; it determines the expected
    values.  ``apart``: the source with gaps, in which the other tensors lie.
    """

    def __init__(
        self,
        graph: Graph,
        leafs: Leafs,
        buffer: Buffer,
        start: int,
        groups: Groups = UNGROUPED,
        packed: Tensor | None = None,
        apart: Tensor | None = None,
    ) -> None:
        starts = {} if apart is None else {apart.root: _PAGE}
        super().__init__(
            graph, buffer.type, guarded=_PAGE // 16, shift=start, groups=groups, within=buffer, starts=starts
        )
        self._packed = graph if packed is None else Graph(packed)
        self._values = leafs.values
        if packed is None:
            self._sources = [(root, leafs.values[root]) for root in self.roots if root.op is None]
        else:
            pairs = zip(packed.src, graph.nodes[-1].src, strict=True)
            self._sources = [
                (tensor, leafs.values[leaf]) for leaf, tensor in pairs if leaf is not None and tensor is not None
            ]

    def expect_computed(self, stream: Backend, near: _Laid, what: str) -> None:
        """Raises what goes wrong here and not in ``near``; what goes wrong there too is for the op's own cases."""
        expected = Expected(self._packed, self._values)
        error = self._failure(stream, expected, what)
        if error is not None and near._failure(stream, expected, what) is None:
            raise error

    def _failure(self, stream: Backend, expected: Expected, what: str) -> Exception | None:
        kept = [node for node in _computing(self.graph) if node.root in self.roots]
        try:
            for tensor, raw in self._sources:
                self._put(tensor, raw)
            for node in kept:
                if node.root is node:
                    self._put(node, np.full(node.nbytes, UNWRITTEN, np.uint8))
            stream.compute(self.graph, self.allocation)
            stream.synchronize()
            for node, wanted in zip(_computing(self.graph), _computing(self._packed), strict=True):
                if node in kept:
                    found = Judging(expected).of(wanted, self._fetched(node))
                    expect(found, f"{what}: {found.reason}")
        except Exception as error:
            return error
        return None

    def _put(self, tensor: Tensor, raw: Bytes) -> None:
        done = 0
        for offset, size in self._rows(tensor):
            self.buffers[0].set(offset, raw[done : done + size])
            done += size

    def _fetched(self, tensor: Tensor) -> Bytes:
        return np.concatenate([read(self.buffers[0], offset, size) for offset, size in self._rows(tensor)])

    def _rows(self, tensor: Tensor) -> Iterator[tuple[int, int]]:
        """Offsets and sizes of what lies side by side of a tensor, in order."""
        _, first, size = self.region(tensor)
        if tensor.is_contiguous():
            yield first, size
            return
        for i3, i2, i1 in np.ndindex(tensor.ne[:0:-1]):
            offset = i1 * tensor.nb[1] + i2 * tensor.nb[2] + i3 * tensor.nb[3]
            yield first + offset, tensor.ne[0] // tensor.type.block_size * tensor.type.block_bytes


def _computing(graph: Graph) -> list[Tensor]:
    return [node for node in graph.nodes if node.op is not None and not node.op.is_view]


class _FarLeafs(Leafs):
    """Leafs of which those with ``rows apart`` reach over so many bytes; their values are never made."""

    def __init__(self, far: int) -> None:
        super().__init__(0)
        self._far = far

    def _lay(self, type: Type, ne: Extents, rank: int, layout: Layout) -> Tensor:
        if layout != "rows apart":
            return super()._lay(type, ne, rank, layout)
        nb = list(contiguous_strides(type, ne))
        dim = max((dim for dim in (1, 2, 3) if ne[dim] > 1), default=0)
        if not dim or ne[dim] > _MOST_ROWS:
            return super()._lay(type, ne, rank, "packed")
        unit = math.lcm(type.block_bytes, 64)
        apart, gaps = nb[dim], ne[dim] - 1
        nb[dim] = -(-self._far // gaps // unit) * unit
        nb[dim + 1 :] = [nb[dim] * ne[dim]] * (3 - dim)
        count = (nb[dim] * gaps + apart) // type.block_bytes * type.block_size
        root = Tensor(Spec(type, (count, 1, 1, 1), 1))
        return view(root, *ne[: max(rank, 1)], nb=tuple(nb[1:]))
