"""The expected values of a graph: the oracle's values, and the tolerance of each result.

The distance of a single node is its op's rule (:mod:`ggplug_testing.precision`).  What the nodes before it add is found
by moving their results as far as their own rules allow, and looking at what that does to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.graph import Graph
from ggplug.ops.base import Array
from ggplug.tensor import Tensor
from ggplug.types import F32, Type
from ggplug_testing.judging.comparison import Allowed, power
from ggplug_testing.judging.oracle import Evaluation, evaluate, nearest
from ggplug_testing.precision import DEVIATIONS, FLUSHED, UNIT, mean_square, rule_of, tolerance

Bytes = npt.NDArray[np.uint8]


class Expected:
    """The values of a graph, and the bounds of each node.

    ``values``: the bytes of the graph's leafs.  ``wide=False`` rounds F32 results on the way, which is for results that
    have to agree in every bit.  Raises what :func:`~ggplug_testing.judging.oracle.evaluate` raises.
    """

    def __init__(self, graph: Graph, values: Mapping[Tensor, Any], *, wide: bool = True) -> None:
        self.graph = graph
        self._written = {node.root for node in graph.nodes if node.op is not None and node.op.writes}
        self._results: dict[Tensor, Array] = {}
        self._tolerances: dict[Tensor, Array] = {}
        self._drifts: dict[Tensor, Array] = {}
        self._allowed: dict[Tensor, Allowed] = {}
        self.values: Evaluation = evaluate(graph, values, wide=wide, watching=self._record)
        if self._is_chain():
            self._move(values)

    def __getitem__(self, node: Tensor) -> Array:
        """A tensor's values at the end, rounded to its type; see :class:`~ggplug_testing.judging.oracle.Evaluation`."""
        return self.values[node]

    def allowed(self, node: Tensor) -> Allowed:
        """The bounds of a node's elements."""
        found = self._allowed.get(node)
        if found is None:  # a case is judged once for each place that its result may have
            found = self._allowed[node] = self._bounds(node)
        return found

    def _bounds(self, node: Tensor) -> Allowed:
        want = self.values[node]
        if want.dtype.kind != "f":
            return Allowed(want, want)
        exact = self._result(self.values, node)
        off, drift = self._tolerance(node), self.drift(node)
        around = off + drift
        if node.type.is_quantized:
            return _in_blocks(node.type, want, around)
        spread = node.root.op is not None and rule_of(node.root).spread
        if node.type is not F32 or not (spread or drift.any()):
            return within(node.type, exact, around)
        return within(node.type, exact, around, np.square(off / DEVIATIONS if spread else off) + drift * drift)

    def allowed_in_source(self, source: Tensor) -> Allowed:
        """What the elements of a source that a node writes, too, may be: each as far off as the largest.

        32 roundings of that, as for ops without a rule.
        """
        exact = self.values.exact(source)
        largest = np.abs(exact).max(initial=0, where=np.isfinite(exact))
        return within(source.type, exact, np.full(exact.shape, 32 * UNIT * largest))

    def drift(self, node: Tensor) -> Array:
        """How far the errors of other nodes may move a node."""
        drift = self._drifts.get(node)
        return np.zeros(node.ne[::-1]) if drift is None else drift

    def _tolerance(self, node: Tensor) -> Array:
        found = self._tolerances.get(node.root)
        return np.zeros(node.ne[::-1]) if found is None or node.root in self._written else shown(found, node)

    def _record(self, node: Tensor, sources: Sequence[Array | None], result: Array) -> Array:
        if result.dtype.kind == "f":
            self._tolerances[node] = tolerance(node, result, sources)
            self._results[node] = result
        return result

    def _result(self, values: Evaluation, node: Tensor, results: Mapping[Tensor, Array] | None = None) -> Array:
        """A tensor's values before they were rounded to its type, as far as they are known."""
        found = (self._results if results is None else results).get(node.root)
        return values.exact(node) if found is None or node.root in self._written else shown(found, node)

    def _is_chain(self) -> bool:
        """Whether a node reads, through views or not, what another one has computed, with a tolerance."""
        moved = {node.root for node, each in self._tolerances.items() if each.any()}
        return any(source is not None and source.root in moved for node in self.graph.nodes for source in node.src)

    def _move(self, values: Mapping[Tensor, Any]) -> None:
        """Moves every result by its tolerance, each element up or down, and once the other way round."""
        random = np.random.default_rng(len(self.graph.nodes))
        free = any(np.isinf(each).any() for each in self._tolerances.values())  # elements may be anything
        ways = {node: random.choice((-1.0, 1.0), each.shape) * each for node, each in self._tolerances.items()}

        def evaluated(sign: float) -> tuple[Evaluation, dict[Tensor, Array]]:
            """The graph with all results moved, and these results before they were."""
            results: dict[Tensor, Array] = {}

            def moved(node: Tensor, sources: Sequence[Array | None], result: Array) -> Array:
                results[node] = result
                with np.errstate(all="ignore"):
                    return result + sign * ways[node] if node in ways else result

            return evaluate(self.graph, values, watching=moved), results

        for found, results in map(evaluated, (1.0, -1.0)):
            for node in self.graph.nodes:
                if self.values[node].dtype.kind != "f":
                    continue
                with np.errstate(all="ignore"):
                    off = np.abs(self._result(found, node, results) - self._result(self.values, node))
                off = np.where(np.isfinite(off) | (free & ~np.isnan(off)), off, 0.0)
                self._drifts[node] = np.maximum(off, self.drift(node))
        for node, drift in self._drifts.items():
            # What moved an element little by chance may move it as much as the others; and no way was the worst one.
            usual = np.mean(np.square(drift), where=np.isfinite(drift)) if drift.any() else 0.0
            self._drifts[node] = 2 * (drift + math.sqrt(float(usual)))


def shown(of_root: Array, tensor: Tensor) -> Array:
    """A tensor's values, from the float64 values of its root, which is a result and so contiguous."""
    if tensor.root is tensor:
        return of_root
    kind = tensor.type
    innermost, *outer = (8 * stride // kind.block_bytes for stride in tensor.nb)
    strides = (*(kind.block_size * stride for stride in reversed(outer)), innermost)
    start = 8 * kind.block_size * (tensor.view_offset // kind.block_bytes)
    return np.ndarray(tensor.ne[::-1], np.float64, np.ascontiguousarray(of_root).data, start, strides).copy()


def within(type: Type, exact: Array, around: Array, squares: Array | None = None) -> Allowed:
    """The numbers of a plain type that are nearest to the ends of ``exact - around`` to ``exact + around``.

    Numbers that are not finite are themselves.  ``squares``: the square errors that are expected of the elements.
    """
    with np.errstate(all="ignore"):
        flushed = np.where(around > 0, FLUSHED, 0.0)
        low = nearest(np.where(np.isfinite(exact), exact - around - flushed, exact), type)
        high = nearest(np.where(np.isfinite(exact), exact + around + flushed, exact), type)
    if squares is None:
        return Allowed(low, high)
    rounded = nearest(exact, type)
    finite = np.isfinite(rounded) & np.isfinite(around)
    want = rounded[finite]
    wanted = power(want)
    limit = mean_square(want.size) * float(np.sum(squares[finite])) / wanted if wanted else math.inf
    return Allowed(low, high, limit)


def _in_blocks(type: Type, want: Array, around: Array) -> Allowed:
    """The bounds of numbers of a block type: a few of them may be off by one step of the type."""
    if not around.any():
        return Allowed(want, want)
    want = np.where(np.isfinite(want), want, 0)
    bits = type.block_bytes * 8 // type.block_size
    blocks = np.abs(want).reshape(-1, type.block_size)
    steps = np.broadcast_to(3 * blocks.max(axis=-1, keepdims=True) / 2 ** (bits - 1), blocks.shape).reshape(want.shape)
    # An element is that near to a tie with the chance around / step, and so is the largest of its block.
    squares = float(np.sum(np.minimum(4 * around, steps) * steps) + 2 * np.max(steps) ** 2)
    wanted = power(want)
    return Allowed(want - steps, want + steps, squares / wanted if wanted else math.inf)
