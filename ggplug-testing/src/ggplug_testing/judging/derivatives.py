"""Gradient rules compared with differences of the ops' references, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ggplug.errors import GradientError
from ggplug.gradients import Expansion
from ggplug.graph import Graph
from ggplug.ops import transpose
from ggplug.ops.base import OPS, Array, Op
from ggplug.tensor import Spec, Tensor
from ggplug.types import F32, FLOATS
from ggplug_testing.cases import Case, Leafs, cases_of
from ggplug_testing.judging.expected import shown
from ggplug_testing.judging.oracle import evaluate, first_fault

_STEPS = (1e-5, 1e-6, 1e-7, 1e-8)
"""Differences over these steps; the later ones where a kink or a pole is near."""

_ROUNDED = 2.0**-50
"""How far numbers are off, relative to their sizes: those of a source that are moved, and those of a result."""

_FEW = 4000
"""Numbers of the sources and the result of a case, so that it takes milliseconds."""


class Slope(NamedTuple):
    """How much a result, weighted with random numbers, changes in a random direction of one of its sources.

    ``wanted``: by differences; ``got``: by the gradient; ``allowed``: how far these may be apart.
    """

    case: Case
    source: str
    wanted: float
    got: float
    allowed: float

    @property
    def right(self) -> bool:
        return abs(self.wanted - self.got) <= self.allowed

    def __str__(self) -> str:
        return f"{self.case}, {self.source}: by differences {self.wanted:.9g}, by the rule {self.got:.9g}"


def gradient_cases(op: type[Op], *, thorough: bool = False) -> list[Case]:
    """Cases of an op for its gradient rule: some small ones, or all that are ``thorough`` but for special values."""
    found = []
    for case in cases_of(op, thorough=thorough):
        node = case.make(Leafs(0))
        if isinstance(node, Tensor) and not case.label.startswith("special") and node.size:
            sizes = [each.root.size for each in (node, *node.src) if each is not None]
            if 0 not in sizes and sum(sizes) <= (25 * _FEW if thorough else _FEW):
                found.append(case)
    return found if thorough else found[:: max(1, len(found) // 8)]


def slopes(case: Case, *, turned: bool = False) -> Iterator[Slope]:
    """A slope for each source of a case's op that gets a gradient; none of cases with ids out of range.

    ``turned``: the rule gets the gradient of the result as a transposed view.
    """
    leafs = Leafs(case.seed)
    node = case.make(leafs)
    assert isinstance(node, Tensor)
    whole = Graph(node)
    before = evaluate(whole, leafs.values)
    if first_fault(whole, before) is not None:
        return
    position = max(number for number, each in enumerate(whole.nodes) if each.op and each.op.name == case.op)
    tested, nodes = whole.nodes[position], whole.nodes[position:]
    assert tested.op is not None
    random = np.random.default_rng(case.seed)
    graph = Graph.part(nodes)
    values: dict[Tensor, Array] = {}
    for root in {each.root: each for each in graph.leafs}:
        known = leafs.values[root] if root in leafs.values and root.type not in FLOATS else before.exact(root)
        # Numbers of few bits are moved a little, so that none lies on a kink, such as a whole number.
        narrow = root.type in FLOATS and root.type is not F32
        away = random.choice((-1e-3, 1e-3), known.shape) * random.uniform(0.5, 1, known.shape)
        values[root] = known * (1 + away) if narrow else known
    result = evaluate(graph, values, wide=FLOATS).exact(node)
    ne = (*node.ne[1::-1], *node.ne[2:]) if turned else node.ne
    seed = Tensor(Spec(F32, ne, max(node.rank, 2) if turned else node.rank))
    dy = transpose(seed) if turned else seed
    weights = np.where(np.isfinite(result), random.standard_normal(result.shape), 0)
    values[seed] = weights.swapaxes(2, 3) if turned else weights
    for name, source in zip(tested.op.sources, tested.src, strict=True):
        if source is None or source.type not in FLOATS:
            continue
        backward = Graph.part(nodes)
        gradient = _gradient(backward, source, {node: dy})
        if gradient is None:
            continue
        found = evaluate(backward, values, wide=FLOATS).exact(gradient).reshape(source.ne[::-1])
        if not np.isfinite(result).all():  # where a result is NaN, its gradient is NaN, though its weight is zero
            found = np.where(np.isfinite(found), found, 0)
        direction = random.standard_normal(values[source.root].shape)
        terms = found * shown(direction, source)
        for step in _STEPS:
            ends = [
                evaluate(graph, {**values, source.root: values[source.root] + way * direction}, wide=FLOATS).exact(node)
                for way in (step, -step)
            ]
            with np.errstate(invalid="ignore"):
                moved = weights * np.where(np.isfinite(result), ends[0] - ends[1], 0) / (2 * step)
                sizes = weights * result, weights, found * shown(values[source.root], source)
            size = sum(float(np.abs(each).sum(where=np.isfinite(each))) for each in sizes)
            allowed = 1e-6 * float(np.abs(terms).sum()) + 16 * _ROUNDED * size / step
            slope = Slope(case, name, float(moved.sum()), float(terms.sum()), allowed)
            if slope.right:
                break
        yield slope


def _gradient(graph: Graph, source: Tensor, seeds: dict[Tensor, Tensor]) -> Tensor | None:
    """The gradient of a source, added to the graph; None where it is always zero, and where the rule has none."""
    try:
        expansion = Expansion(graph, [source])
        expansion.run(seeds)
    except GradientError:
        return None
    return None if expansion.of(source) is None else expansion.wanted(source)


def wrong_slopes(op: type[Op] | str, *, thorough: bool = False) -> list[Slope]:
    """The slopes of an op's cases that differ from the differences: none of an op whose gradient rule is right."""
    cls = OPS[op] if isinstance(op, str) else op
    return [slope for case in gradient_cases(cls, thorough=thorough) for slope in slopes(case) if not slope.right]
