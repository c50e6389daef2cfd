"""Chooses which weights of a graph are split between the members of a combined device, and where."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from ggplug.backend import Decline
from ggplug.combined.cuts import Pieces, Split, State
from ggplug.combined.device import CombinedDevice
from ggplug.combined.memory import SplitBufferType
from ggplug.combined.states import Splitting, decide
from ggplug.graph import Graph
from ggplug.memory.planned import PlannedBuffer
from ggplug.ops import MulMat, MulMatId
from ggplug.tensor import Tensor


def split_weights(device: CombinedDevice, graph: Graph, weights: Iterable[Tensor]) -> dict[Tensor, SplitBufferType]:
    """The memory of each weight that is split; all others are mirrored, such as norms and tables of embeddings.

    ``graph``: of typical size, over ``weights`` without places.  A weight is split by columns if the columns of the
    other factor are split already, and otherwise by rows, so that a block of a model needs one sum after each pair of
    products.  It is mirrored if other ops read it, too, or if a member declines a product with its part.
    """
    readers = _readers(graph, set(weights))
    choice = _Choice(graph, readers, len(device.members))
    decide(graph, lambda leaf: None, splitting=choice)
    found: dict[Tensor, SplitBufferType] = {}
    for weight, state in choice.chosen.items():
        assert isinstance(state.by, Pieces)
        memory = device.split_memory(state.axis, state.by.chosen(device.proportions))
        if memory.refusal(weight) is None and _computes(device, weight, memory, readers[weight]):
            found[weight] = memory
    return found


class _Choice(Splitting):
    """The states of weights, chosen when the first product that reads one is decided."""

    def __init__(self, graph: Graph, readers: Collection[Tensor], members: int) -> None:
        self._graph, self._candidates, self._members = graph, readers, members
        self.chosen: dict[Tensor, Split] = {}

    def begin(self) -> None:
        self.chosen = {}

    def of(self, node: Tensor, have: Sequence[State]) -> State:
        weight = node.src[0] if isinstance(node.op, (MulMat, MulMatId)) else None
        if weight is None or weight not in self._candidates:
            return have[0] if have else None
        if weight not in self.chosen:
            other, kind = have[1], weight.type
            if other is not None and other.axis == 0 and other.by.fits(weight.ne[0] // kind.block_size):
                self.chosen[weight] = Split(0, other.by)
            elif weight.ne[1] >= self._members:
                self.chosen[weight] = Split(1, Pieces(weight.ne[1], self._members))
            else:
                return None
        return self.chosen[weight]


def _readers(graph: Graph, weights: Collection[Tensor]) -> dict[Tensor, list[Tensor]]:
    """The products that read a weight, for weights that nothing else reads."""
    found: dict[Tensor, list[Tensor]] = {}
    others: set[Tensor] = set()
    for node in graph.nodes:
        product = isinstance(node.op, (MulMat, MulMatId))
        for number, source in enumerate(node.src):
            if source is None or source.root not in weights:
                continue
            if product and number == 0 and source.op is None and math.prod(source.ne[1:]) > 1:
                found.setdefault(source, []).append(node)
            else:
                others.add(source.root)
    return {weight: nodes for weight, nodes in found.items() if weight not in others}


def _computes(device: CombinedDevice, weight: Tensor, memory: SplitBufferType, readers: Iterable[Tensor]) -> bool:
    """Whether the device computes all products with the weight there.  Allocates nothing."""
    weight.place(PlannedBuffer(memory, memory.alloc_size(weight)))
    try:
        return not any(isinstance(device.supports_op(node), Decline) for node in readers)
    finally:
        weight.place(None)
