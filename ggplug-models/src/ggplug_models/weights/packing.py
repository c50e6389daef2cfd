"""Which weights of a model are packed when they are loaded, once, instead of at each product with many columns.

A device offers memory for packed weights as an extra buffer type (``Device.extra_buffer_types``).  A weight goes there
if the device computes every node of the model that reads it with the weight there, and products of many columns are
among them.  A weight that get_rows reads as well (tied embeddings), that another device multiplies with, or for which
there is no room, stays plain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ggplug.backend import BufferType, Decline, Device
from ggplug.errors import GGPlugError, ParameterError
from ggplug.graph import Graph
from ggplug.tensor import Tensor

LARGER = 16
"""A weight grows by at most one such part of itself, unless ``load`` is told otherwise.

Filling up panels takes less; panels that lie beside the rows take more.
"""

MANY_COLUMNS = 16
"""Products with fewer columns read a weight about as fast plain."""


@dataclass(frozen=True)
class PackedWeight:
    """What became of a weight: ``memory`` is the buffer type that it is packed in; if None, ``reason`` says why.

    ``nbytes``: as it lies in the file.  ``packed_bytes``: packed; of one that is not packed what it would take, or 0.
    """

    name: str
    type: str
    device: Device
    memory: BufferType | None
    nbytes: int
    packed_bytes: int
    reason: str

    def __str__(self) -> str:
        if self.memory is None:
            return f"{self.name}  {self.type}  {self.nbytes} bytes, plain: {self.reason}"
        return f"{self.name}  {self.type}  {self.nbytes} bytes, {self.packed_bytes} in {self.memory.name}"


class Packing:
    """Chooses for each weight of a model whether it is packed.

    ``growth``: bytes by which packed weights may exceed the plain ones, together; 0 packs only what grows by nothing.
    None packs what grows by next to nothing (:data:`LARGER`).  Raises ParameterError if it is negative.
    """

    def __init__(self, growth: int | None = None) -> None:
        if growth is not None and growth < 0:
            raise ParameterError(f"packing cannot make a model larger by {growth} bytes", got=growth)
        self._growth = growth
        self._room: dict[Device, int | None] = {}

    def choose(self, weights: Iterable[Tensor], graph: Graph, device_of: Callable[[str], Device]) -> list[PackedWeight]:
        """What becomes of each of ``weights``, leafs of ``graph`` without a place; ``device_of`` their names' devices.

        ``graph`` has as many columns as the model mostly computes.
        """
        readers = _readers(graph)
        return [self._choose(weight, readers.get(weight, ()), device_of(weight.name)) for weight in weights]

    def _choose(self, weight: Tensor, readers: Iterable[Tensor], device: Device) -> PackedWeight:
        memory, taken, reason = None, 0, f"{device.name} has no memory for packed weights"
        for kind in device.extra_buffer_types:
            if not kind.has_own_layout or not device.supports_buffer_type(kind):
                continue
            found = kind.refusal(weight) or _unread(weight, readers, device, kind)
            if found is None:
                taken = kind.alloc_size(weight)
                found = self._no_room(device, taken, weight.nbytes)
            if found is None:
                memory, reason = kind, ""
                break
            reason = found
        return PackedWeight(weight.name, weight.type.name, device, memory, weight.nbytes, taken, reason)

    def _no_room(self, device: Device, taken: int, nbytes: int) -> str | None:
        growth = taken - nbytes
        if self._growth is None and LARGER * growth > nbytes:
            return f"packed it takes {growth} bytes more, which pack_growth has to allow"
        if self._growth is not None and growth > self._growth:
            return f"packed it takes {growth} bytes more, of {self._growth} that packing may still add"
        if device not in self._room:
            self._room[device] = device.memory().free
        room = self._room[device]
        if room is not None:
            if 2 * taken > room:  # the file's pages and the computation want their share
                return f"packed it takes {taken} of the {room} bytes that are free"
            self._room[device] = room - taken
        if self._growth is not None:
            self._growth -= growth
        return None


def _readers(graph: Graph) -> Mapping[Tensor, list[Tensor]]:
    """By root, the nodes that read it, itself or a view."""
    readers: dict[Tensor, list[Tensor]] = {}
    for node in graph.nodes:
        assert node.op is not None
        for source in () if node.op.is_view else node.src:
            if source is not None:
                readers.setdefault(source.root, []).append(node)
    return readers


def _unread(weight: Tensor, readers: Iterable[Tensor], device: Device, kind: BufferType) -> str | None:
    """Why not every reader of a weight computes with it in this memory; asks with the weight there, unset."""
    nodes = list(readers)
    if all(node.size // max(node.ne[0], 1) < MANY_COLUMNS for node in nodes):
        return "no product with many columns reads it"
    try:
        buffer = kind.alloc(kind.alloc_size(weight))
    except GGPlugError as error:
        return error.message
    with buffer:
        weight.place(buffer)
        try:
            for node in nodes:
                answer = device.supports_op(node)
                if isinstance(answer, Decline):
                    return answer.reason
        finally:
            weight.place(None)
    return None
