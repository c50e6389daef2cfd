"""Fitting: which placement of a graph's weights the memory of devices allows, and what each device will hold.

Nothing is allocated on a device: tensors get places in planned buffers, and the scheduler decides as it will when the
graph is computed.  What devices will hold is what these decisions need, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ggplug.backend import Device
from ggplug.errors import OutOfMemoryError, ParameterError
from ggplug.graph import Graph
from ggplug.memory.contexts import allocate
from ggplug.nodes.hazards import Hazards
from ggplug.scheduler.scheduler import Scheduler
from ggplug.tensor import Context, Tensor
from ggplug.types import BufferUsage, TensorFlag

Budgets = Mapping[str, int | None] | Mapping[Device, int | None] | Sequence[int | None] | None
"""The bytes that devices may hold: by device or its name, or in their order.  None: what is free now."""


@dataclass(frozen=True)
class Holding:
    """The bytes that a device will hold.

    ``weights``: in its buffers; ``packed``: in memory with a layout of its own; ``mapped``: those that stay in the
    file's map.  ``cache``: what nodes write into and is kept.  ``compute``: buffers for intermediates.  ``workspace``:
    memory that plans reserve in addition.  ``budget``: what it may hold; None: any number.
    """

    device: Device
    weights: int = 0
    packed: int = 0
    mapped: int = 0
    cache: int = 0
    compute: int = 0
    workspace: int = 0
    budget: int | None = None

    @property
    def allocated(self) -> int:
        """The bytes in buffers of the device."""
        return self.weights + self.packed + self.cache + self.compute + self.workspace

    @property
    def total(self) -> int:
        """All bytes, with those of the file's map."""
        return self.allocated + self.mapped

    @property
    def missing(self) -> int:
        """The bytes by which the budget is too small; 0 if it is large enough."""
        return 0 if self.budget is None else max(self.total - self.budget, 0)


@dataclass(frozen=True)
class GraphFit:
    """A placement that fits: the device of each weight, and what each device will hold, in the devices' order."""

    places: Mapping[Tensor, Device]
    holdings: tuple[Holding, ...]


def fit_placement(graph: Graph, devices: Sequence[Device], budgets: Budgets = None) -> GraphFit:
    """The placement of a graph's weights that fits: as many as possible on the first device, then on the next.

    Weights are the leafs that have no place and are no inputs; those that nodes write into count as cache.  They are
    placed in the order in which the graph reads them.  The last device should support all ops.  Nothing is allocated,
    and no tensor keeps a place.  Raises OutOfMemoryError, with the bytes that are missing, PlacementError and
    ParameterError.
    """
    if isinstance(devices, str) or not isinstance(devices, Sequence) or not devices:
        raise ParameterError(f"devices must be a list of devices, got {devices!r:.100}", got=devices)
    for each in devices:
        if not isinstance(each, Device):
            raise ParameterError(
                f"{each!r:.100} is no device", got=each, remedy="gg.device(name) finds a device by its name"
            )
    chosen = budgets_of(devices, budgets)
    leafs = _weights(graph)
    written = Hazards(graph).written
    sizes = [max(device.buffer_type.alloc_size(leaf) for device in devices) for leaf in leafs]

    def measure(counts: Sequence[int]) -> list[Holding]:
        contexts = [(Context("weights"), Context("cache")) for _ in devices]
        for leaf, (weights, cache) in zip(
            leafs, (each for each, n in zip(contexts, counts, strict=True) for _ in range(n)), strict=True
        ):
            context = cache if graph.index[leaf] in written else weights
            context.tensors.append(leaf)  # a graph may have several of one name
        try:
            for device, (weights, cache) in zip(devices, contexts, strict=True):
                allocate(weights, device, BufferUsage.WEIGHTS, planned=True)
                allocate(cache, device, planned=True)
            with Scheduler(devices, op_offload=False) as scheduler:
                needed = scheduler.needed([graph])
            return [
                Holding(
                    device,
                    weights=sum(buffer.size for buffer in weights.buffers),
                    cache=sum(buffer.size for buffer in cache.buffers),
                    compute=needed[device].compute,
                    workspace=needed[device].workspace,
                    budget=chosen[device],
                )
                for device, (weights, cache) in zip(devices, contexts, strict=True)
            ]
        finally:
            for leaf in leafs:
                leaf.place(None)

    counts, holdings = distribute(sizes, len(devices), measure)
    owners = [device for device, count in zip(devices, counts, strict=True) for _ in range(count)]
    return GraphFit(dict(zip(leafs, owners, strict=True)), tuple(holdings))


def _weights(graph: Graph) -> list[Tensor]:
    """The leafs without a place that are no inputs, in the order in which nodes read them."""
    inputs = int(TensorFlag.INPUT)
    found: dict[Tensor, None] = {}
    for node in graph.nodes:
        for source in node.src:
            if source is not None and source.root.op is None and source.root.buffer is None:
                found[source.root] = None
    return [leaf for leaf in found if not leaf.flags & inputs]


def budgets_of(devices: Sequence[Device], budgets: Budgets) -> dict[Device, int | None]:
    """The budget of each device.  Raises ParameterError for a device that is not in the list, or another number."""
    if budgets is None:
        budgets = {}
    if not isinstance(budgets, Mapping):
        if isinstance(budgets, str) or not isinstance(budgets, Sequence):
            raise ParameterError(f"budgets must be a list, or a dict by device, got {budgets!r:.100}", got=budgets)
        if len(budgets) != len(devices):
            raise ParameterError(
                f"{len(devices)} devices need as many budgets, got {len(budgets)}", got=budgets, wanted=len(devices)
            )
        budgets = dict(zip(devices, budgets, strict=True))
    known = {device.name.casefold() for device in devices}
    given = {}
    for each, size in budgets.items():
        name = each.name if isinstance(each, Device) else str(each)
        given[name.casefold()] = size
        if name.casefold() not in known:
            listed = ", ".join(device.name for device in devices)
            raise ParameterError(
                f"{name!r:.100} has a budget but is none of the devices: {listed}", got=each, wanted=listed
            )
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 0):
            raise ParameterError(f"a budget is a number of bytes or None, got {size!r:.50}", got=size)
    return {
        device: given[device.name.casefold()] if device.name.casefold() in given else device.memory().free
        for device in devices
    }


def distribute(
    sizes: Sequence[int], n_devices: int, measure: Callable[[Sequence[int]], list[Holding]]
) -> tuple[list[int], list[Holding]]:
    """How many of some units, in their order, each device takes, and what the devices then hold.

    ``sizes``: bytes that a device holds less without the unit.  ``measure(counts)``: what the devices hold.  Begins
    with all units on the first device, and moves them on from each device whose budget is too small, the last ones
    first.  Raises OutOfMemoryError if the last device cannot hold what is left.
    """
    counts = [len(sizes), *(0 for _ in range(n_devices - 1))]
    while True:
        holdings = measure(counts)
        over = next((number for number, each in enumerate(holdings) if each.missing), None)
        if over is None:
            return _filled(counts, holdings, sizes, measure)
        if over == n_devices - 1 or not counts[over]:
            raise too_large(holdings, over)
        end, moved, freed = sum(counts[: over + 1]), 0, 0
        while moved < counts[over] and freed < holdings[over].missing:
            moved += 1
            freed += sizes[end - moved]
        counts[over] -= moved
        counts[over + 1] += moved


def _filled(
    counts: list[int], holdings: list[Holding], sizes: Sequence[int], measure: Callable[[Sequence[int]], list[Holding]]
) -> tuple[list[int], list[Holding]]:
    """The counts after units that fit on an earlier device were moved back: caches and results were moved with them."""
    for number in range(len(counts) - 1):
        while counts[number + 1]:
            unit, budget = sum(counts[: number + 1]), holdings[number].budget
            if budget is not None and holdings[number].total + sizes[unit] > budget:
                break
            tried = list(counts)
            tried[number], tried[number + 1] = tried[number] + 1, tried[number + 1] - 1
            found = measure(tried)
            if any(each.missing for each in found):
                break
            counts, holdings = tried, found
    return counts, holdings


def too_large(holdings: Sequence[Holding], over: int) -> OutOfMemoryError:
    """The error for what does not fit: the last placement that was tried, and the device whose budget is too small."""
    each = holdings[over]
    return OutOfMemoryError(
        f"nothing fits: {each.device.name} would hold {each.total} bytes, {each.missing} more than the {each.budget} "
        "that it may hold",
        device=each.device,
        requested=each.total,
        free=each.budget,
        missing=each.missing,
        holdings=tuple(holdings),
    )
