"""Backward graphs: a graph and the nodes that compute gradients in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ggplug.errors import GradientError, GraphError, ShapeError
from ggplug.gradients.expansion import Expansion
from ggplug.gradients.rules import ones
from ggplug.graph import Graph
from ggplug.ops.inplace import add_inplace
from ggplug.tensor import Tensor
from ggplug.types import TensorFlag


def backward(
    graph: Graph,
    loss: Tensor | Iterable[Tensor] | None = None,
    wrt: Iterable[Tensor] | None = None,
    accumulators: Mapping[Tensor, Tensor] | None = None,
) -> Graph:
    """The backward graph of ``graph``; see :meth:`ggplug.Graph.backward`."""
    losses = _marked(graph, TensorFlag.LOSS, "loss") if loss is None else _tensors(loss)
    wanted = _marked(graph, TensorFlag.PARAM, "parameter") if wrt is None else _tensors(wrt)
    for tensor in (*losses, *wanted):
        if tensor not in graph:
            raise GraphError(f"{tensor!r} is not in {graph!r}", tensor=tensor)
    for each in losses:
        check_loss(each)
    made = Graph.listed(graph.tensors, graph.outputs, graph.name)
    expansion = Expansion(made, wanted)
    expansion.run({each: ones(each.ne) for each in losses})
    accumulators = dict(accumulators or {})
    gradients: dict[Tensor, Tensor] = {}
    for tensor in wanted:
        found = expansion.wanted(tensor)
        if tensor in accumulators:
            found = add_inplace(accumulators[tensor], found)
            made.expand(found)
        else:
            found.set_output()
        gradients[tensor] = found
    made.gradients, made.accumulators = gradients, accumulators
    made.outputs = [*graph.outputs, *gradients.values()]
    return made


def check_loss(loss: Tensor) -> None:
    """Raises ShapeError unless a loss is one number."""
    if loss.size != 1:
        raise ShapeError(f"a loss is one number, got {loss!r}", tensor=loss, remedy="use gg.sum or a mean")


def _tensors(given: Tensor | Iterable[Tensor]) -> Sequence[Tensor]:
    found = [given] if isinstance(given, Tensor) else list(given)
    for each in found:
        if not isinstance(each, Tensor):
            raise GradientError(f"gradients are of tensors, got {type(each).__name__}", got=each)
    return list(dict.fromkeys(found))


def _marked(graph: Graph, flag: TensorFlag, what: str) -> Sequence[Tensor]:
    found = [tensor for tensor in graph.tensors if tensor.flags & flag]
    if not found:
        raise GradientError(
            f"no tensor of {graph!r} is marked as a {what}",
            remedy=f"pass it, or use tensor.mark(TensorFlag.{flag.name})",
        )
    return found
