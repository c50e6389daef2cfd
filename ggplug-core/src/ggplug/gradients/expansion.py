"""The backward pass: from the gradients of some tensors of a graph to those of others, node by node in reverse.

A gradient is added to the graph as soon as it is known, so that what it reads is needed no longer than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ggplug.errors import GradientError
from ggplug.gradients.overwritten import check_overwritten
from ggplug.gradients.recomputed import Repeated, in_order, nodes_before, repeated
from ggplug.gradients.rules import Formula, Into, Missing, rule_of, shaped, wide, zeros
from ggplug.graph import Graph
from ggplug.ops.base import apply
from ggplug.ops.elementwise import add
from ggplug.ops.windows import Acc
from ggplug.tensor import Tensor
from ggplug.types import FLOATS


class Expansion:
    """The backward pass of a graph, to which it adds the nodes that compute gradients.

    ``wrt``: the tensors whose gradients are wanted.  Raises GradientError if one of them is no float.
    """

    def __init__(self, graph: Graph, wrt: Iterable[Tensor]) -> None:
        self.graph = graph
        self._wrt = frozenset(wrt)
        self._needed = set(self._wrt)
        self._sums: dict[Tensor, Tensor] = {}
        """The gradient of each tensor, as far as it is known; windows of it are apart."""
        self._windows: dict[Tensor, Tensor] = {}
        """Of a tensor whose views have gradients, zeros into which they were added; only the next one reads them."""
        self._known = set(graph.nodes)
        """The nodes that were passed, or will be."""
        for tensor in self._wrt:
            if tensor.type not in FLOATS:
                raise GradientError(
                    f"{tensor!r} is no float, so it has no gradient",
                    tensor=tensor,
                    remedy="use gg.cast, or leave it out",
                )

    def run(self, seeds: Mapping[Tensor, Tensor]) -> None:
        """Adds the gradients of all tensors that are needed, given those of the results.

        Raises GradientError if a rule is missing, if a gradient would pass a quantised tensor, or if bytes that a
        gradient depends on are overwritten.
        """
        nodes = list(self.graph.nodes)
        for tensor, dy in seeds.items():
            self._add(tensor, dy)
        self._back_through(nodes)
        check_overwritten(self.graph, len(nodes), self._needed)

    def of(self, tensor: Tensor) -> Tensor | None:
        """The gradient of a tensor; None if no result depends on it, or it was not needed."""
        window = self._windows.pop(tensor, None)
        if window is not None:
            self._add(tensor, window)
        return self._sums.get(tensor)

    def wanted(self, tensor: Tensor) -> Tensor:
        """The gradient of one of the ``wrt``, in its shape; zeros if no result depends on it."""
        found = self.of(tensor)
        found = zeros(tensor.ne) if found is None else found
        if found.rank != tensor.rank:
            found = shaped(found, tensor.ne[: tensor.rank])
        self.graph.expand(found)
        return found

    def _add(self, tensor: Tensor, part: Tensor | Into) -> None:
        """Adds a part to the gradient of a tensor."""
        if isinstance(part, Into):
            before = self._windows.get(tensor)
            target = zeros(tensor.ne) if before is None else before
            self._windows[tensor] = known = apply(Acc(part.strides, part.offset), (target, wide(part.dy)))
        else:
            before = self._sums.get(tensor)
            self._sums[tensor] = known = wide(part) if before is None else add(before, part)
        if known.ne != tensor.ne:
            raise GradientError(
                f"a rule made a gradient with the extents {known.ne} for {tensor!r}", tensor=tensor, got=known.ne
            )
        self.graph.expand(known)

    def _back_through(self, nodes: Sequence[Tensor]) -> None:
        """Passes these nodes, which are in the order of computation, from the last to the first."""
        needed = self._needed
        for node in nodes:
            if (node.type in FLOATS or node.type.is_quantized) and not needed.isdisjoint(node.src):
                needed.add(node)
        calls = repeated([node for node in nodes if node in needed], self._wrt, self._known)
        self._known.update(node for call in calls.values() for node in call.nodes)
        for part in reversed(in_order(nodes, calls) if calls else nodes):
            if isinstance(part, Repeated):
                own = ((result, new) for result, new in part.results.items() if calls[result] is part)
                self._pass_new(part.nodes, [(new, self.of(result)) for result, new in own])
            elif part in needed and not needed.isdisjoint(part.src):
                dy = self.of(part)
                if dy is not None:
                    self._pass(part, dy)

    def _pass(self, node: Tensor, dy: Tensor) -> None:
        """Adds to the gradients of a node's sources what the rule of its op makes of its own, ``dy``."""
        op = node.op
        assert op is not None
        if node.type.is_quantized:
            raise GradientError(f"no gradient passes {node!r}: numbers in blocks have none", op=op, tensor=node)
        rule = rule_of(type(op))
        if rule is None:
            raise GradientError(
                f"the op {op.name} has no gradient rule, so no gradient passes {node!r}",
                op=op,
                tensor=node,
                remedy="ggplug.gradients.gradient and formula mark rules of ops",
            )
        if rule.formula is not None:
            self._pass_formula(rule.formula, node, dy)
            return
        assert rule.gradient is not None
        for source, part in zip(node.src, rule.gradient(node, dy), strict=True):
            if source is None or part is None or source not in self._needed:
                continue
            if isinstance(part, Missing):
                raise GradientError(f"{op.name} has no gradient of {source!r}: {part.reason}", op=op, tensor=source)
            self._add(source, part())

    def _pass_formula(self, formula: Formula, node: Tensor, dy: Tensor) -> None:
        sources = [wide(each) if each is not None and each.type in FLOATS else each for each in node.src]
        result = formula(node.op, *sources)
        nodes = nodes_before([result], self._known)
        self._known.update(nodes)
        self._pass_new(nodes, [(result, dy)])

    def _pass_new(self, nodes: Sequence[Tensor], gradients: Iterable[tuple[Tensor, Tensor | None]]) -> None:
        """Passes new nodes, given the gradients of their results; none if no result has one."""
        given = [(result, dy) for result, dy in gradients if dy is not None]
        for result, dy in given:
            self._add(result, dy)
        if given:
            self._back_through(nodes)
