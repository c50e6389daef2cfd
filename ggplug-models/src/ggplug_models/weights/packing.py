"""Chooses the weights of a model that are packed once, when they are loaded, for products with many columns.

A device offers memory for packed weights as an extra buffer type (``Device.extra_buffer_types``).  A weight is packed
if the device can compute every node that reads it from the packed weight, and at least one of these is a product with
many columns.  A weight is not packed if get_rows reads it too (tied embeddings), if another device reads it, or if
there is not enough free memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ggplug.backend import BufferType, Decline, Device
from ggplug.graph import Graph
from ggplug.memory.planned import PlannedBuffer
from ggplug.tensor import Tensor
from ggplug_models.checks.arguments import whole

LARGER = 16
"""Without ``pack_growth``, a weight is packed if it grows by at most 1/16.

The padding of panels takes less than that; types that are stored both as rows and as panels take more.
"""

MANY_COLUMNS = 16
"""Products with fewer columns read unpacked weights about as fast."""


@dataclass(frozen=True)
class PackedWeight:
    """Whether a weight is packed: ``memory`` is the buffer type of the packed weight; None: not packed, for ``reason``.

    ``nbytes``: size in the file.  ``packed_bytes``: size when packed; if it is not packed, the size it would have, or
    0.
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
            return f"{self.name}  {self.type}  {self.nbytes} bytes, not packed: {self.reason}"
        return f"{self.name}  {self.type}  {self.nbytes} bytes, packed in {self.memory.name}: {self.packed_bytes} bytes"


class Packing:
    """Chooses for each weight of a model whether it is packed.

    ``growth``: bytes by which all packed weights together may exceed the unpacked ones; 0 packs only weights that do
    not grow.  None packs weights that grow by at most 1 / :data:`LARGER`.  Raises ParameterError if it is no number.
    """

    def __init__(self, growth: int | None = None) -> None:
        self._growth = None if growth is None else whole("pack_growth", growth, 0, 1 << 63)
        self._free: dict[Device, int | None] = {}

    def choose(self, weights: Iterable[Tensor], graph: Graph, device_of: Callable[[str], Device]) -> list[PackedWeight]:
        """Decides for each of ``weights`` whether it is packed.

        ``weights``: leafs of ``graph`` without a place.  ``graph``: has a typical number of columns.  ``device_of``:
        the device of a weight, by name.
        """
        readers = _readers(graph)
        return [self._choose(weight, readers.get(weight, ()), device_of(weight.name)) for weight in weights]

    def of_part(
        self, found: list[PackedWeight], part: Tensor, readers: Sequence[Tensor], device: Device
    ) -> BufferType | None:
        """The memory in which a member of a combined device packs its part of a weight; ``found``: gets the result."""
        found.append(self._choose(part, readers, device))
        return found[-1].memory

    def _choose(self, weight: Tensor, readers: Iterable[Tensor], device: Device) -> PackedWeight:
        memory, taken, reason = None, 0, f"{device.name} does not support packed weights"
        for kind in device.extra_buffer_types:
            if not kind.has_own_layout or not device.supports_buffer_type(kind):
                continue
            found = kind.refusal(weight) or _unread(weight, readers, device, kind)
            if found is None:
                taken = kind.alloc_size(weight)
                found = self._too_large(device, taken, weight.nbytes)
            if found is None:
                memory, reason = kind, ""
                break
            reason = found
        return PackedWeight(weight.name, weight.type.name, device, memory, weight.nbytes, taken, reason)

    def _too_large(self, device: Device, taken: int, nbytes: int) -> str | None:
        """Why a weight is too large to be packed; if it is not, counts its memory as used and returns None."""
        growth = taken - nbytes
        if self._growth is None and LARGER * growth > nbytes:
            return f"packing takes {growth} more bytes, which pack_growth must allow"
        if self._growth is not None and growth > self._growth:
            return f"packing takes {growth} more bytes; pack_growth allows {self._growth} more"
        if device not in self._free:
            self._free[device] = device.memory().free
        free = self._free[device]
        if free is not None:
            if 2 * taken > free:  # the pages of the file and the computation need memory, too
                return f"the packed weight takes {taken} bytes, more than half of the {free} that are free"
            self._free[device] = free - taken
        if self._growth is not None:
            self._growth -= growth
        return None


def _readers(graph: Graph) -> Mapping[Tensor, list[Tensor]]:
    """The nodes that read a tensor or a view of it, by root tensor."""
    readers: dict[Tensor, list[Tensor]] = {}
    for node in graph.nodes:
        assert node.op is not None
        for source in () if node.op.is_view else node.src:
            if source is not None:
                readers.setdefault(source.root, []).append(node)
    return readers


def _unread(weight: Tensor, readers: Iterable[Tensor], device: Device, kind: BufferType) -> str | None:
    """Why the device cannot compute all ``readers`` from the packed weight; None if it can.  Allocates nothing."""
    nodes = list(readers)
    if all(node.size // max(node.ne[0], 1) < MANY_COLUMNS for node in nodes):
        return "no product with many columns reads the weight"
    weight.place(PlannedBuffer(kind, kind.alloc_size(weight)))
    try:
        answers = (device.supports_op(node) for node in nodes)
        return next((answer.reason for answer in answers if isinstance(answer, Decline)), None)
    finally:
        weight.place(None)
