"""The contract of extra buffer types: memory with a layout of its own, such as that of packed weights.

Nothing here knows a layout: what a buffer type refuses, and what the device declines, is asked.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ggplug.backend import UNGROUPED, Backend, BufferType, Device, Groups, groups_of
from ggplug.errors import BufferUseError, ShapeError, TypeMismatchError
from ggplug.graph import Graph
from ggplug.host import HOST, asarray
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
from ggplug.values.arrays import as_bytes, encode, strided
from ggplug_testing.cases.making import in_blocks
from ggplug_testing.contracts.clause import (
    NotOffered,
    alloc_for,
    clause,
    expect,
    expect_equal,
    expect_raises,
    pattern,
    step_between,
)
from ggplug_testing.contracts.holding import held
from ggplug_testing.judging.comparison import compare
from ggplug_testing.judging.expected import Expected
from ggplug_testing.judging.oracle import decoded

# One block type of each kind: nibbles, with minima, bytes, groups in blocks of 256, levels, powers of two as scales.
_STORED: tuple[Type, ...] = (*KERNEL_FLOATS, Q4_0, Q4_1, Q8_0, Q4_K, Q5_K, Q6_K, IQ4_NL, MXFP4)
_SHAPES = ((100, 33, 1), (256, 64, 1), (64, 5, 3))
"""Numbers in a row, rows and matrices of weights; rows are filled up to whole blocks."""
_COLUMNS = (1, 5, 40)


@clause
def extra_memory_keeps_weights(device: Device) -> None:
    """Extra buffer types give back the bytes that tensors were set to, of every type that they take;
    neighbours stay."""
    for kind in _extra(device):
        for type, (k, rows, matrices) in itertools.product(TYPES, _SHAPES):
            made = [new_tensor(type, (in_blocks(k, type), rows, matrices)) for _ in range(2)]
            if kind.refusal(made[0]) is not None:
                continue
            step = step_between(kind, made[0])
            with alloc_for(kind, made[0], 2) as buffer:
                for number, tensor in enumerate(made):
                    tensor.place(buffer, number * step)
                    buffer.init_tensor(tensor)
                for seed in (1, 2):
                    for number, tensor in enumerate(made):
                        tensor.set_bytes(pattern(tensor.nbytes, seed + number))
                for number, tensor in enumerate(made):
                    what = f"{tensor!r} in {kind.name}"
                    expect_equal(as_bytes(tensor.tobytes()), pattern(tensor.nbytes, 2 + number), what)
                _take_away(*made)


@clause
def products_with_weights_in_extra_memory_are_right(device: Device) -> None:
    """``mul_mat`` and ``mul_mat_id`` of weights in extra memory are right for few and many columns, or declined."""
    computed = False
    with device.init() as stream:
        for kind in _extra(device):
            for type, (k, rows, matrices) in itertools.product(_STORED, _SHAPES):
                with _weights(kind, type, k, rows, matrices) as w:
                    if w is None:
                        continue
                    for columns in _COLUMNS:
                        computed |= _right_or_declined(device, stream, mul_mat(w, _leaf(w.ne[0], columns, matrices)))
                    if matrices == 3:
                        ids = new_tensor("i32", (2, 7), "ids")
                        computed |= _right_or_declined(device, stream, mul_mat_id(w, _leaf(w.ne[0], 1, 7), ids))
    expect(computed, "extra memory is of use for some product")


@clause
def weights_in_extra_memory_can_be_set_anew(device: Device) -> None:
    """A product reads what weights in extra memory hold when it is computed, by the same plan and by another one."""
    for kind, w in _multiplied(device):
        graph = Graph(mul_mat(w, _leaf(w.ne[0], 5)))
        with device.init() as stream:
            for seed in (1, 2):
                w.set_bytes(_random(w, seed))
                _check(stream, graph, f"with weights in {kind.name}, set for the {seed}. time")
        w.set_bytes(_random(w, 3))
        with device.init() as stream:
            _check(stream, Graph(mul_mat(w, _leaf(w.ne[0], 5))), f"with weights in {kind.name}, set for the third time")


@clause
def groups_read_weights_in_extra_memory_rightly(device: Device) -> None:
    """A product with its bias and activation is right, or computed apart, where its weights lie in extra memory."""
    with device.init() as stream:
        for kind, w in _multiplied(device):
            y = add(mul_mat(w, _leaf(w.ne[0], 5)), _leaf(w.ne[1], 1))
            for last in (y, relu(y)):
                graph = Graph(last)
                if not all(map(device.supports_op, graph.nodes)):
                    continue
                groups, expected = groups_of(device, graph), Expected(graph, _values(graph))
                stream.compute(graph, _filled(device, graph, groups))
                stream.synchronize()
                found = compare(_result(last), expected[last], expected.allowed(last))
                expect(found, f"a group with weights in {kind.name}: {found.reason}")


@clause
def extra_memory_waits_for_held_streams(device: Device) -> None:
    """Setting a tensor in extra memory changes nothing that was given to a stream before."""
    for _, w in _multiplied(device):
        graph = Graph(mul_mat(w, _leaf(w.ne[0], 5)))
        node, before = graph.nodes[-1], Expected(graph, _values(graph))
        with device.init() as stream:
            allocation = _filled(device, graph)
            stream.compute(graph, allocation)
            stream.synchronize()
            raw = _random(w, 7)
            with held(stream) as aside:
                stream.compute(graph, allocation)
                setting = aside(lambda raw=raw, w=w: w.set_bytes(raw))  # type: ignore[misc]
                setting.returned(0.05)
            setting.join("setting a tensor in extra memory")
            stream.synchronize()
            found = compare(_result(node), before[node], before.allowed(node))
            expect(found, f"computed from weights that were set afterwards: {found.reason}")
            return


@clause
def extra_memory_that_was_freed_refuses_use(device: Device) -> None:
    """Setting and reading tensors in a freed buffer raises BufferUseError; before, parts are read at their place."""
    for kind, w in _multiplied(device):
        buffer, start, whole = w.buffer, w.offset, as_bytes(w.tobytes())
        assert buffer is not None
        part = np.empty(w.nb[1], np.uint8)
        buffer.get_tensor(w, part, start, w.nb[1])
        expect_equal(part, whole[w.nb[1] : 2 * w.nb[1]], f"a part of {w!r} in {kind.name}")
        buffer.free()
        with expect_raises(BufferUseError, f"reading a tensor in freed memory of {kind.name}"):
            buffer.get_tensor(w, np.empty(w.nbytes, np.uint8), start)
        with expect_raises(BufferUseError, f"setting a tensor in freed memory of {kind.name}"):
            buffer.set_tensor(w, whole, start)
        return


def _multiplied(device: Device) -> Iterator[tuple[BufferType, Tensor]]:
    """Weights in extra memory, 64 rows, one of each buffer type and type that a product is claimed for."""
    for kind in _extra(device):
        for type in _STORED:
            with _weights(kind, type, 64, 64, 1) as w:
                if w is not None and kind.has_own_layout and device.supports_op(mul_mat(w, _leaf(w.ne[0], 5))):
                    yield kind, w


@clause
def what_was_not_written_for_a_layout_is_declined(device: Device) -> None:
    """Other ops, and views, of a tensor in extra memory are declined, or right: none reads it as if it
    was plain."""
    with device.init() as stream:
        for kind in _extra(device):
            for type in _STORED:
                with _weights(kind, type, 64, 64, 1) as w:
                    for make in _OTHERS if w is not None else ():
                        try:
                            node = make(w)  # type: ignore[arg-type]
                        except (TypeMismatchError, ShapeError):  # block types are not added to, or transposed
                            continue
                        _right_or_declined(device, stream, node)


@clause
def views_of_weights_in_extra_memory_are_no_weights(device: Device) -> None:
    """A view of weights in extra memory is not read as weights of its shape are, nor these as the view, whichever is
    asked about first."""
    with device.init() as stream:
        for kind in _extra(device):
            for type in _STORED:
                with _weights(kind, type, 64, 64, 1) as w, _weights(kind, type, 64, 7, 1) as whole:
                    if w is None or whole is None:
                        continue
                    rows = view(w, w.ne[0], 7, offset=w.nb[1] * 3)
                    computed = set()
                    for columns, order in ((22, (whole, rows)), (23, (rows, whole))):  # asked nowhere else
                        nodes = [mul_mat(each, _leaf(w.ne[0], columns)) for each in order]
                        right = [_right_or_declined(device, stream, node) for node in nodes]
                        computed.add(right[order.index(whole)])
                    expect(len(computed) == 1, f"products with {whole!r} do not depend on what was asked before")


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
def extra_memory_shows_no_bytes(device: Device) -> None:
    """Raw access to memory with a layout of its own raises BufferUseError and changes nothing; so does setting a
    part of a tensor."""
    for kind in _extra(device):
        for type in _STORED:
            with _weights(kind, type, 64, 64, 1) as w:
                if w is None or not kind.has_own_layout:
                    continue
                _shows_no_bytes(kind, w)


def _shows_no_bytes(kind: BufferType, w: Tensor) -> None:
    buffer, before = w.buffer, w.tobytes()
    assert buffer is not None
    some, plain = np.zeros(64, np.uint8), HOST.alloc(64)
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
    for what, attempt in attempts.items():
        with expect_raises(BufferUseError, f"{what} of {kind.name}"):
            attempt()
        expect_equal(some, np.zeros(64, np.uint8), f"the target of {what}")
        expect_equal(as_bytes(w.tobytes()), as_bytes(before), f"{w!r} after {what} raised")
    rows = view(w, w.ne[0], 3, offset=w.nb[1] * 2)
    expect_equal(as_bytes(rows.tobytes()), as_bytes(before)[w.nb[1] * 2 :][: rows.nbytes], f"rows of {w!r}")


@clause
def only_leafs_that_were_placed_lie_in_extra_memory(device: Device) -> None:
    """Results, and tensors that the buffer type refuses, get no place in memory with a layout of its own."""
    for kind in _extra(device):
        if not kind.has_own_layout:
            continue
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
def plans_know_the_layout_of_weights(device: Device) -> None:
    """Equal graphs over plain weights and weights in extra memory share no plan, whichever is
    computed first."""
    for kind in _extra(device):
        for type in _STORED:
            with _weights(kind, type, 64, 64, 1) as w:
                if w is None or not kind.has_own_layout:
                    continue
                for columns in (2, 40):
                    if device.supports_op(mul_mat(w, _leaf(w.ne[0], columns))):
                        _check_plans(device, w, columns)


def _check_plans(device: Device, w: Tensor, columns: int) -> None:
    raw, packed = w.tobytes(), (w.buffer, w.offset)
    graph = Graph(mul_mat(w, _leaf(w.ne[0], columns)))
    with device.init() as stream, alloc_for(device.buffer_type, w) as plain:
        for name, buffer, offset in (("packed", *packed), ("plain", plain, 0), ("packed", *packed)):
            w.place(buffer, offset)
            if name == "plain":
                w.set_bytes(raw)
            _check(stream, graph, f"with {name} weights")
        for first, then in ((packed, (plain, 0)), ((plain, 0), packed)):
            w.place(*first)
            allocation = _filled(device, graph)
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


def _extra(device: Device) -> list[BufferType]:
    kinds = [kind for kind in device.extra_buffer_types if device.supports_buffer_type(kind)]
    if not kinds:
        raise NotOffered("there are no extra buffer types that the device computes in")
    return kinds


@contextlib.contextmanager
def _weights(kind: BufferType, type: Type, k: int, rows: int, matrices: int) -> Iterator[Tensor | None]:
    """Weights with random values in a buffer of this type; None if it takes no such tensor."""
    tensor = new_tensor(type, (in_blocks(k, type), rows, matrices), "w")
    if kind.refusal(tensor) is not None:
        yield None
        return
    buffer = alloc_for(kind, tensor)
    try:
        tensor.place(buffer)
        buffer.init_tensor(tensor)
        yield tensor.set_bytes(_random(tensor, type.id))
    finally:
        _take_away(tensor)
        buffer.free()


def _leaf(*ne: int) -> Tensor:
    return new_tensor("f32", ne)


def _take_away(*tensors: Tensor) -> None:
    for tensor in tensors:
        tensor.place(None)


def _random(leaf: Tensor, seed: int) -> Array:
    random = np.random.default_rng(seed)
    if leaf.type.dtype.kind == "i":
        return random.integers(0, 3, leaf.ne[::-1]).astype(leaf.type.dtype)
    return encode(random.standard_normal(leaf.ne[::-1]).astype(np.float32), leaf.type)


def _right_or_declined(device: Device, stream: Backend, node: Tensor) -> bool:
    """Checks a node unless the device declines it; whether it did not."""
    if not device.supports_op(node):
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


def _filled(device: Device, graph: Graph, groups: Groups = UNGROUPED) -> Allocation:
    """Places in the device's default memory, with those values."""
    allocation = GraphAllocator(device.buffer_type).allocate(graph, groups=groups)
    for leaf, raw in _values(graph).items():
        buffer, offset = allocation.where(graph, graph.index[leaf])
        buffer.set_tensor(leaf, raw, offset)
    return allocation


def _check(stream: Backend, graph: Graph, what: str) -> None:
    """Computes a graph whose weights lie where they do, and compares its only node with the oracle."""
    node = graph.nodes[-1]
    expected = Expected(graph, _values(graph))
    allocation = _filled(stream.device, graph)
    stream.compute(graph, allocation)
    stream.synchronize()
    found = compare(_result(node), expected[node], expected.allowed(node))
    expect(found, f"{what}: {found.reason}")


def _result(node: Tensor) -> Array:
    """A result as the oracle has it: four-dimensional, float64 or an integer type."""
    return decoded(strided(np.frombuffer(node.tobytes(), np.uint8), node), node)
