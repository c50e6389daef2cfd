"""The contract of binding: a plan takes over the place of each tensor, however little the places have changed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from ggplug.graph import Graph
from ggplug.memory import PERSISTENT, Allocation
from ggplug.ops.base import Array
from ggplug.ops.elementwise import div, sub
from ggplug.ops.matrix import mul_mat
from ggplug.tensor import Tensor
from ggplug_testing.contracts.clause import NotOffered, alloc_for, step_between
from ggplug_testing.contracts.given import Given, clause
from ggplug_testing.contracts.sample import WIDTH, BinaryOp, check_values, numbers, square
from ggplug_testing.judging.oracle import evaluate
from ggplug_testing.running.placement import UNWRITTEN

_STEPS: tuple[BinaryOp, ...] = (sub, mul_mat, div)
"""Ops for which it matters which source is the first."""

_FAR = 1e-3
"""Further off than any device that computes right, and far less than where two leafs are exchanged."""

_Place = tuple[int, int]
"""One of two buffers, and the place in it."""


def _steps(given: Given) -> list[BinaryOp]:
    found = [step for step in _STEPS if given.device.supports_op(step(square(), square()))]
    if not found:
        raise NotOffered(f"{given.device.name} supports none of the ops for which the order of sources matters")
    return found


def _tensors(step: BinaryOp) -> list[Tensor]:
    """Three leafs, and four nodes: the last one is another one if any two leafs are exchanged."""
    a, b, c = (square(name) for name in "abc")
    first, second = step(a, b), step(b, c)
    third = step(second, c)
    return [a, b, c, first, second, third, step(first, third).set_output()]


_COUNT = 7
"""So many tensors."""


def _arrangements() -> Iterator[list[_Place]]:
    """A place for each tensor; each arrangement has much in common with the one before."""
    places = [(0, n) for n in range(_COUNT)]
    for order in permutations(range(3)):
        yield [places[n] for n in order] + places[3:]
    for one, other in ((0, 1), (1, 0), (1, 1)):
        yield [(one, 0), (other, 1), (0, 2), *places[3:]]
    yield [(1, 0), (0, 0), *places[2:]]
    yield [(0, 0), (1, 0), *places[2:]]
    yield places[:3] + places[:2:-1]
    yield places[1:] + places[:1]
    yield [(1, n) for n in range(_COUNT)]


class _Memory:
    """Two buffers of a device with as many places each as there are tensors."""

    def __init__(self, given: Given) -> None:
        self._step = step_between(given.kind, square())
        self._buffers = [given.use(alloc_for(given.kind, square(), _COUNT)) for _ in range(2)]
        random = np.random.default_rng(1)
        self._values = [numbers(random, square(), 0.5, 2) for _ in range(3)]

    def arranged(self, tensors: list[Tensor], places: list[_Place], *, placed: bool) -> tuple[Graph, Allocation]:
        """A graph of these tensors, leafs set, and where it is computed.

        ``placed``: leafs have places of their own.
        """
        graph, found = Graph(tensors[-1]), {}
        unwritten = np.full(square().nbytes, UNWRITTEN, np.uint8)
        for tensor, raw, (number, n) in zip(tensors, [*self._values, *[unwritten] * 4], places, strict=True):
            found[graph.index[tensor]] = number, n * self._step
            self._buffers[number].set(n * self._step, raw)
            if placed and tensor.op is None:
                tensor.place(self._buffers[number], n * self._step)
                found[graph.index[tensor]] = PERSISTENT, 0
        slots, offsets = zip(*(found[position] for position in range(_COUNT)), strict=True)
        return graph, Allocation(graph, self._buffers, slots, offsets)

    def check(self, graph: Graph, tensors: list[Tensor], places: list[_Place]) -> None:
        """Raises ContractError unless the last tensor is right."""
        number, n = places[-1]
        got: Array = np.empty(WIDTH * WIDTH, np.float32)
        self._buffers[number].get(n * self._step, got.view(np.uint8))
        want = evaluate(graph, dict(zip(tensors, self._values, strict=False)))[tensors[-1]]
        check_values(graph, got, want, f"computed with tensors in the places {places}", _FAR)


@clause
def a_plan_takes_the_place_of_each_tensor(given: Given) -> None:
    """``rebind`` finds that tensors of an equal graph have exchanged their places, within a buffer or between two."""
    for step in _steps(given):
        memory, stream = _Memory(given), given.stream()
        plan = given.plan(stream, Graph(_tensors(step)[-1]))
        for places in _arrangements():
            tensors = _tensors(step)
            graph, allocation = memory.arranged(tensors, places, placed=False)
            plan.rebind(graph, allocation)
            plan.compute()
            stream.synchronize()
            memory.check(graph, tensors, places)


@clause
def a_plan_takes_the_place_of_each_leaf(given: Given) -> None:
    """``compute`` reads each leaf where that lies, also if leafs have exchanged their places since."""
    for step in _steps(given):
        memory, stream, same = _Memory(given), given.stream(), _tensors(step)
        for places in _arrangements():
            for tensors in (_tensors(step), same):
                graph, allocation = memory.arranged(tensors, places, placed=True)
                stream.compute(graph, allocation)
                stream.synchronize()
                memory.check(graph, tensors, places)
        for leaf in same[:3]:
            leaf.place(None)
