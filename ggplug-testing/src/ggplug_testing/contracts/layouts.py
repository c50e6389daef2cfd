"""The contract of extra buffer types: memory with a layout of its own, such as that of packed weights.

Nothing here knows a layout: buffer types say what they refuse, and devices what they decline.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ggplug.backend import UNGROUPED, Backend, BufferType, Groups, groups_of
from ggplug.errors import BufferUseError, ShapeError, TypeMismatchError
from ggplug.graph import Graph
from ggplug.host import asarray
from ggplug.memory import Allocation, GraphAllocator, allocate_graph
from ggplug.ops.base import Array
from ggplug.ops.copy import cont, cpy
from ggplug.ops.elementwise import add
from ggplug.ops.matrix import mul_mat, mul_mat_id
from ggplug.ops.rows import get_rows, set_rows
from ggplug.ops.unary import relu
from ggplug.ops.views import reshape, transpose, view
from ggplug.tensor import Tensor, new_tensor
from ggplug.types import IQ4_NL, KERNEL_FLOATS, MXFP4, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K, Q8_0, TYPES, Type
from ggplug.values.arrays import as_bytes, encode
from ggplug_testing.cases.making import in_blocks
from ggplug_testing.contracts.buffers import keep_values
from ggplug_testing.contracts.clause import (
    NotOffered,
    alloc_for,
    expect,
    expect_all_raise,
    expect_equal,
    expect_raises,
)
from ggplug_testing.contracts.given import Given, clause
from ggplug_testing.contracts.holding import held
from ggplug_testing.contracts.sample import check_expected
from ggplug_testing.judging.expected import Expected
from ggplug_testing.judging.oracle import read_values

# One block type of each kind: nibbles, with minima, bytes, groups in blocks of 256, levels, powers of two as scales.
_STORED: tuple[Type, ...] = (*KERNEL_FLOATS, Q4_0, Q4_1, Q8_0, Q4_K, Q5_K, Q6_K, IQ4_NL, MXFP4)
_SQUARE = (64, 64, 1)
_SHAPES = ((100, 33, 1), (256, 64, 1), (64, 5, 3))
"""Numbers in a row, rows and matrices of weights; rows are filled up to whole blocks."""
_COLUMNS = (1, 5, 40)


@clause
def extra_memory_keeps_weights(given: Given) -> None:
    """Extra buffer types return the bytes that tensors were set to (``set_tensor``, ``get_tensor``), of every type
    that they take; neighbours stay."""
    for kind, type, shape in itertools.product(_extra(given), TYPES, _SHAPES):
        made = [_unplaced(type, shape) for _ in range(2)]
        if kind.refusal(made[0]) is None:
            with alloc_for(kind, made[0], 2) as buffer:
                keep_values(made, buffer, kind.name)


@clause
def products_with_weights_in_extra_memory_are_right(given: Given) -> None:
    """``compute`` is right for ``mul_mat`` and ``mul_mat_id`` of weights in extra memory, with few and many columns, or
    they are declined."""
    computed, stream = False, given.stream()
    for _, w in _weights(given, *_SHAPES):
        for columns in _COLUMNS:
            computed |= _right_or_declined(stream, mul_mat(w, _leaf(w.ne[0], columns, w.ne[2])))
        if w.ne[2] == 3:
            ids = new_tensor("i32", (2, 7), "ids")
            computed |= _right_or_declined(stream, mul_mat_id(w, _leaf(w.ne[0], 1, 7), ids))
    expect(computed, "extra memory is of use for some product")


@clause
def weights_in_extra_memory_can_be_set_anew(given: Given) -> None:
    """A product reads what ``set_tensor`` has stored in extra memory when it is computed, by the same plan and by
    another one."""
    for kind, w in _multiplied(given):
        graph = Graph(mul_mat(w, _leaf(w.ne[0], 5)))
        with given.device.init() as stream:
            for seed in (1, 2):
                w.set_bytes(_random(w, seed))
                _check(stream, graph, f"with weights in {kind.name}, set for the {seed}. time")
        w.set_bytes(_random(w, 3))
        with given.device.init() as stream:
            _check(stream, Graph(mul_mat(w, _leaf(w.ne[0], 5))), f"with weights in {kind.name}, set for the third time")


@clause
def groups_read_weights_in_extra_memory_rightly(given: Given) -> None:
    """``compute`` of a product with its bias and activation is right, in a group or apart, where its weights lie in
    extra memory."""
    stream = given.stream()
    for kind, w in _multiplied(given):
        y = add(mul_mat(w, _leaf(w.ne[0], 5)), _leaf(w.ne[1], 1))
        for last in (y, relu(y)):
            graph = Graph(last)
            if all(map(given.device.supports_op, graph.nodes)):
                _check(stream, graph, f"a group with weights in {kind.name}", groups_of(given.device, graph))


@clause
def extra_memory_waits_for_held_streams(given: Given) -> None:
    """Setting a tensor in extra memory (``set_tensor``) changes nothing that was submitted to a stream before."""
    for _, w in itertools.islice(_multiplied(given), 1):
        graph, stream, raw = Graph(mul_mat(w, _leaf(w.ne[0], 5))), given.stream(), _random(w, 7)
        expected, allocation = Expected(graph, _values(graph)), _filled(stream, graph)
        stream.compute(graph, allocation)
        stream.synchronize()
        with held(stream) as aside:
            stream.compute(graph, allocation)
            setting = aside(lambda: w.set_bytes(raw))  # noqa: B023
            setting.returned(0.05)
        setting.join("setting a tensor in extra memory")
        stream.synchronize()
        check_expected(expected, _result(graph), "computed from weights that were set afterwards")


@clause
def extra_memory_that_was_freed_refuses_use(given: Given) -> None:
    """Setting and reading tensors in a freed buffer (``set_tensor``, ``get_tensor``) raises BufferUseError; before,
    parts are read at their place."""
    for kind, w in itertools.islice(_multiplied(given), 1):
        buffer, start, whole = _buffer(w), w.offset, as_bytes(w.tobytes())
        part = np.empty(w.nb[1], np.uint8)
        buffer.get_tensor(w, part, start, w.nb[1])
        expect_equal(part, whole[w.nb[1] : 2 * w.nb[1]], f"a part of {w!r} in {kind.name}")
        buffer.free()
        with expect_raises(BufferUseError, f"reading a tensor in freed memory of {kind.name}"):
            buffer.get_tensor(w, np.empty(w.nbytes, np.uint8), start)
        with expect_raises(BufferUseError, f"setting a tensor in freed memory of {kind.name}"):
            buffer.set_tensor(w, whole, start)


@clause
def what_was_not_written_for_a_layout_is_declined(given: Given) -> None:
    """``supports_op`` declines other ops, and views, of a tensor in extra memory, or they are right: none reads it as
    if it was plain."""
    stream = given.stream()
    for _, w in _weights(given):
        for make in _OTHERS:
            try:
                node = make(w)
            except (TypeMismatchError, ShapeError):  # block types are not added to, or transposed
                continue
            _right_or_declined(stream, node)


_OTHERS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda w: get_rows(w, new_tensor("i32", 5, "ids")),
    lambda w: mul_mat(view(w, w.ne[0], 7, offset=w.nb[1] * 3), _leaf(w.ne[0], 20)),
    lambda w: mul_mat(reshape(w, w.ne[0], 16, 4), _leaf(w.ne[0], 20, 4)),
    lambda w: mul_mat(reshape(w, *w.ne[:2]), _leaf(w.ne[0], 2)),
    lambda w: mul_mat(_leaf(w.ne[0], 20), w),
    lambda w: add(w, _leaf(*w.ne[:2])),
    lambda w: add(_leaf(*w.ne[:2]), w),
    lambda w: cont(w),
    lambda w: cont(transpose(w)),
    lambda w: cpy(w, new_tensor("f32", w.ne[:2])),
    lambda w: cpy(_leaf(*w.ne[:2]), w),
    lambda w: set_rows(w, _leaf(w.ne[0], 3), new_tensor("i64", 3, "ids")),
)
"""Nodes that read, or write, a matrix with 64 rows otherwise than as the weights of a product."""


@clause
def views_of_weights_in_extra_memory_are_no_weights(given: Given) -> None:
    """``match`` takes no view of weights in extra memory for weights of its shape, nor these for the view, whichever it
    gets first."""
    stream = given.stream()
    for kind, w in _weights(given):
        for _, whole in _weights(given, (64, 7, 1), kinds=[kind], types=[w.type]):
            rows = view(w, w.ne[0], 7, offset=w.nb[1] * 3)
            computed = set()
            for columns, order in ((22, (whole, rows)), (23, (rows, whole))):  # in no other clause
                right = [_right_or_declined(stream, mul_mat(each, _leaf(w.ne[0], columns))) for each in order]
                computed.add(right[order.index(whole)])
            expect(len(computed) == 1, f"products with {whole!r} do not depend on earlier products")


@clause
def extra_memory_shows_no_bytes(given: Given) -> None:
    """Raw access (``get``, ``set``, ``memset``, ``copy_from``) to memory with a layout of its own raises
    BufferUseError and changes nothing; so does setting a part of a tensor."""
    for kind, w in _weights(given):
        if kind.has_own_layout:
            _shows_no_bytes(given, kind, w)


def _shows_no_bytes(given: Given, kind: BufferType, w: Tensor) -> None:
    buffer, before = _buffer(w), as_bytes(w.tobytes())
    some, plain = np.zeros(64, np.uint8), given.host(size=64)
    plain.set(0, some)
    attempts: dict[str, Callable[[], Any]] = {
        "get": lambda: buffer.get(0, some),
        "set": lambda: buffer.set(0, some),
        "bytes": lambda: buffer.bytes(0, 64),
        "memset": lambda: buffer.memset(0, 64, 0),
        "clear": lambda: buffer.clear(),
        "copy_from into it": lambda: buffer.copy_from(plain, 0, 0, 64),
        "copy_from out of it": lambda: plain.copy_from(buffer, 0, 0, 64),
        "set_2d": lambda: buffer.set_2d(0, some, 32, 2, 32),
        "get_2d": lambda: buffer.get_2d(0, some, 32, 2, 32),
        "export": lambda: buffer.export(),
        "asarray": lambda: asarray(w),
        "a part of set_bytes": lambda: w.set_bytes(some, w.nbytes - 64),
        "set_bytes of a view": lambda: view(w, w.ne[0], 1, offset=w.nb[1]).set_bytes(some[: w.nb[1]]),
    }
    expect(not kind.is_host, f"{kind.name} has a layout of its own, so it is no host memory")

    def unchanged(what: str) -> None:
        expect_equal(some, np.zeros(64, np.uint8), f"the target of {what}")
        expect_equal(as_bytes(w.tobytes()), before, f"{w!r} after {what} raised")

    expect_all_raise(BufferUseError, {f"{what} of {kind.name}": each for what, each in attempts.items()}, unchanged)
    rows = view(w, w.ne[0], 3, offset=w.nb[1] * 2)
    expect_equal(as_bytes(rows.tobytes()), before[w.nb[1] * 2 :][: rows.nbytes], f"rows of {w!r}")


@clause
def only_leafs_that_were_placed_lie_in_extra_memory(given: Given) -> None:
    """Results, and tensors that the buffer type refuses, get no place in memory with a layout of its own."""
    for kind in filter(lambda kind: kind.has_own_layout, _extra(given)):
        node = add(_leaf(64, 64), _leaf(64, 64))
        gaps = [new_tensor(type, (64, 4)) for type in TYPES if in_blocks(1, type) <= 64]
        with kind.alloc(1 << 20) as buffer:
            for tensor in (node, *(each for each in gaps if kind.refusal(each) is not None)):
                with expect_raises(BufferUseError, f"a place for {tensor!r} in {kind.name}"):
                    tensor.place(buffer)
                expect(tensor.buffer is None, f"{tensor!r} has no place")
        with expect_raises(BufferUseError, f"a graph laid out in {kind.name}"):
            allocate_graph(Graph(node), kind)


@clause
def plans_know_the_layout_of_weights(given: Given) -> None:
    """Equal graphs over plain weights and weights in extra memory share no ``plan``, whichever is
    computed first."""
    for kind, w in _weights(given):
        for columns in (2, 40) if kind.has_own_layout else ():
            if given.device.supports_op(mul_mat(w, _leaf(w.ne[0], columns))):
                _check_plans(given, w, columns)


def _check_plans(given: Given, w: Tensor, columns: int) -> None:
    raw, packed = w.tobytes(), (_buffer(w), w.offset)
    graph = Graph(mul_mat(w, _leaf(w.ne[0], columns)))
    with given.device.init() as stream, alloc_for(given.kind, w) as memory:
        plain = (memory, 0)
        for name, place in (("packed", packed), ("plain", plain), ("packed", packed)):
            w.place(*place)
            if name == "plain":
                w.set_bytes(raw)
            _check(stream, graph, f"with {name} weights")
        for first, then in ((packed, plain), (plain, packed)):
            w.place(*first)
            allocation = _filled(stream, graph)
            plan = stream.plan(graph)
            plan.rebind(graph, allocation)
            w.place(*then)
            try:
                plan.rebind(graph, allocation)
            except BufferUseError:
                pass
            else:
                plan.compute()
                stream.synchronize()
                expect(False, f"a plan for other memory than {w!r} lies in must not be bound to it")
            finally:
                plan.free()
        w.place(*packed)


# -- what the clauses share ------------------------------------------------------------------------


def _extra(given: Given) -> list[BufferType]:
    kinds = [kind for kind in given.device.extra_buffer_types if given.device.supports_buffer_type(kind)]
    if not kinds:
        raise NotOffered("the device computes in no extra buffer type")
    return kinds


def _unplaced(type: Type, shape: tuple[int, int, int]) -> Tensor:
    return new_tensor(type, (in_blocks(shape[0], type), *shape[1:]), "w")


def _weights(
    given: Given,
    *shapes: tuple[int, int, int],
    kinds: Sequence[BufferType] | None = None,
    types: Sequence[Type] = _STORED,
) -> Iterator[tuple[BufferType, Tensor]]:
    """Weights with random values in extra memory, of each buffer type and type that it takes, one after the other."""
    for kind, type, shape in itertools.product(kinds or _extra(given), types, shapes or (_SQUARE,)):
        tensor = _unplaced(type, shape)
        if kind.refusal(tensor) is None:
            with alloc_for(kind, tensor) as buffer:
                try:
                    tensor.place(buffer)
                    buffer.init_tensor(tensor)
                    yield kind, tensor.set_bytes(_random(tensor, type.id))
                finally:
                    tensor.place(None)


def _multiplied(given: Given) -> Iterator[tuple[BufferType, Tensor]]:
    """Weights in extra memory, 64 rows, one of each buffer type and type that a product is claimed for."""
    for kind, w in _weights(given):
        if kind.has_own_layout and given.device.supports_op(mul_mat(w, _leaf(w.ne[0], 5))):
            yield kind, w


def _buffer(tensor: Tensor) -> Any:
    assert tensor.buffer is not None
    return tensor.buffer


def _leaf(*ne: int) -> Tensor:
    return new_tensor("f32", ne)


def _random(leaf: Tensor, seed: int) -> Array:
    random = np.random.default_rng(seed)
    if leaf.type.dtype.kind == "i":
        return random.integers(0, 3, leaf.ne[::-1]).astype(leaf.type.dtype)
    return encode(random.standard_normal(leaf.ne[::-1]).astype(np.float32), leaf.type)


def _right_or_declined(stream: Backend, node: Tensor) -> bool:
    """Checks a node unless the device declines it; whether it did not."""
    if not stream.device.supports_op(node):
        return False
    written = node.view_src
    before = None if written is None else written.tobytes()
    _check(stream, Graph(node), f"{node!r}")
    if written is not None and before is not None:
        written.set_bytes(np.frombuffer(before, np.uint8))
    return True


def _values(graph: Graph) -> dict[Tensor, Array]:
    """Raw bytes for the leafs that have no place of their own."""
    leafs = [leaf for leaf in graph.leafs if leaf.view_src is None and leaf.buffer is None]
    return {leaf: as_bytes(_random(leaf, 100 + number)) for number, leaf in enumerate(leafs)}


def _filled(stream: Backend, graph: Graph, groups: Groups = UNGROUPED) -> Allocation:
    """Places in the device's default memory, with those values."""
    allocation = GraphAllocator(stream.device.buffer_type).allocate(graph, groups=groups)
    for leaf, raw in _values(graph).items():
        buffer, offset = allocation.where(graph, graph.index[leaf])
        buffer.set_tensor(leaf, raw, offset)
    return allocation


def _check(stream: Backend, graph: Graph, what: str, groups: Groups = UNGROUPED) -> None:
    """Computes a graph whose weights lie where they do, and compares its last node with the oracle."""
    allocation = _filled(stream, graph, groups)
    expected = Expected(graph, _values(graph))
    stream.compute(graph, allocation)
    stream.synchronize()
    check_expected(expected, _result(graph), what)


def _result(graph: Graph) -> Array:
    """A result as the oracle has it: four-dimensional, float64 or an integer type."""
    node = graph.nodes[-1]
    return read_values(node, np.frombuffer(node.tobytes(), np.uint8))
