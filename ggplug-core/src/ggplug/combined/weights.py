"""Chooses which weights and caches of a graph are split between the members of a combined device, and where."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ggplug.backend import BufferType, Decline, Device
from ggplug.combined.cuts import Pieces, Split, State
from ggplug.combined.device import CombinedDevice
from ggplug.combined.listed import Complete
from ggplug.combined.local import alone
from ggplug.combined.memory import SplitBufferType
from ggplug.combined.rules import answer_for
from ggplug.combined.states import Splitting, decide
from ggplug.errors import UnsupportedOpError
from ggplug.graph import Graph
from ggplug.memory.planned import PlannedBuffer
from ggplug.ops import MulMat, MulMatId, SetRows
from ggplug.tensor import Tensor

Packs = Callable[[Tensor, Sequence[Tensor], Device], BufferType | None]
"""Chooses the memory in which a member packs its part of a weight, from the nodes that read it; None: it packs none."""


def split_weights(
    device: CombinedDevice, graph: Graph, weights: Iterable[Tensor], packs: Packs | None = None
) -> dict[Tensor, SplitBufferType]:
    """The memory of each leaf that is split; all others are mirrored, such as norms and tables of embeddings.

    ``graph``: of typical size, over ``weights`` and caches without places.  A weight is split by columns if the columns
    of the other factor are split already, and otherwise by rows, so that a block of a model needs one sum after each
    pair of products.  It is mirrored if other ops read it, too, or if a member declines a product with its part.  A
    cache in which rows are stored is split by columns if these rows are split, and all nodes read its parts.
    """
    readers = _readers(graph, set(weights))
    choice = _Choice(graph, readers, len(device.members))
    decide(graph, lambda leaf: None, splitting=choice)
    found: dict[Tensor, SplitBufferType] = {}
    caches: dict[Tensor, SplitBufferType] = {}
    for leaf, state in choice.chosen.items():
        assert isinstance(state.by, Pieces)
        memory = device.split_memory(state.axis, state.by.chosen(device.proportions))
        if memory.refusal(leaf) is not None:
            continue
        if leaf not in readers:
            caches[leaf] = memory
        elif _computes(device, {leaf: memory}, readers[leaf]):
            found[leaf] = memory if packs is None else _packed(device, memory, leaf, readers[leaf], packs)
    reading = [node for node in graph.nodes if any(source is not None and source.root in caches for source in node.src)]
    return found | caches if caches and _computes(device, found | caches, reading, graph) else found


class _Choice(Splitting):
    """The states of weights and caches, chosen when the first node that reads one, or writes it, is decided."""

    def __init__(self, graph: Graph, readers: Collection[Tensor], members: int) -> None:
        self._graph, self._weights, self._members = graph, readers, members
        self._whole: set[Tensor] = set()
        self.chosen: dict[Tensor, Split] = {}

    def begin(self) -> None:
        self.chosen = {}

    def of(self, node: Tensor, have: Sequence[State]) -> State:
        leaf = node.src[0]
        if leaf is None or leaf in self.chosen:
            return self.chosen[leaf] if leaf is not None else None
        product = isinstance(node.op, (MulMat, MulMatId)) and leaf in self._weights
        if product or (isinstance(node.op, SetRows) and _is_cache(leaf) and leaf not in self._whole):
            columns = _columns(leaf, have[1])
            if columns is not None:
                self.chosen[leaf] = columns
            elif product and leaf.ne[1] >= self._members:
                self.chosen[leaf] = Split(1, Pieces(leaf.ne[1], self._members))
        return self.chosen.get(leaf, have[0])

    def give_up(self, leaf: Tensor) -> bool:
        self._whole.add(leaf)
        return leaf in self.chosen and leaf not in self._weights


def _columns(leaf: Tensor, other: State) -> Split | None:
    """The state of a leaf whose columns are cut as those of another source; None if they cannot be."""
    if other is None or other.axis or not other.by.fits(leaf.ne[0] // leaf.type.block_size):
        return None
    return Split(0, other.by)


def _is_cache(leaf: Tensor) -> bool:
    return leaf.op is None and leaf.view_src is None and leaf.buffer is None and not leaf.flags


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


def _computes(
    device: CombinedDevice, places: Mapping[Tensor, BufferType], nodes: Iterable[Tensor], graph: Graph | None = None
) -> bool:
    """Whether the device computes nodes with leafs there, and all of a graph in parts.  Allocates nothing."""
    for leaf, memory in places.items():
        leaf.place(PlannedBuffer(memory, memory.alloc_size(leaf)))
    try:
        if any(isinstance(device.supports_op(node), Decline) for node in nodes):
            return False
        if graph is not None:
            device.states(Complete(graph))
    except UnsupportedOpError:
        return False
    finally:
        for leaf in places:
            leaf.place(None)
    return True


def _packed(
    device: CombinedDevice, memory: SplitBufferType, weight: Tensor, readers: Sequence[Tensor], packs: Packs
) -> SplitBufferType:
    """The memory in which the members pack their parts of a weight; ``memory`` if none does."""
    kinds: list[BufferType] = []
    for number, member in enumerate(device.members):
        parts: dict[Tensor, Tensor] = {}
        nodes = []
        for node in readers:
            have: list[State] = [memory.state, *(None for _ in node.src[1:])]
            nodes.append(alone(node, answer_for(node, have), have, number, parts))
        kinds.append(packs(parts[weight], nodes, member) or member.buffer_type)
    packed = device.split_memory(memory.state.axis, memory.cuts, kinds)
    fits = packed.refusal(weight) is None and _computes(device, {weight: packed}, readers)
    return packed if fits else memory
