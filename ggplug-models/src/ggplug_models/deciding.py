"""Decides about a file before its weights are read: its class, where weights lie, and which are packed or split."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import ggplug as gg
import ggplug_models.architectures  # noqa: F401  (declares the families)
from ggplug import gguf
from ggplug.backend import BufferType, Device
from ggplug.combined import CombinedDevice
from ggplug.combined.weights import split_weights
from ggplug.errors import ParameterError
from ggplug.registry.discover import scan
from ggplug.registry.entry_points import imported
from ggplug.tensor import Context
from ggplug.types import DeviceKind
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.metadata.values import Values, short_repr
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import ARCHITECTURES, Model
from ggplug_models.networks.network import MOST_BLOCKS
from ggplug_models.weights.packing import PackedWeight, Packing
from ggplug_models.weights.placement import Placed, Placement
from ggplug_models.weights.rules import Chooses, Rule

GROUP = "ggplug.architectures"
"""Group of entry points by which other distributions add architectures: the name of one, and its class."""


class Decided(NamedTuple):
    """The decisions about a file's weights before they are read."""

    kind: type[Model]
    placement: Placed
    packing: tuple[PackedWeight, ...]
    split: Mapping[str, BufferType]
    """The memory of weights and caches that are split between the members of a combined device, by name."""

    @property
    def where(self) -> Callable[[str], Device | BufferType]:
        """The function from a weight's name to its device, or to the memory in which it is packed or split."""
        own = {each.name: each.memory for each in self.packing if each.memory is not None} | dict(self.split)
        return lambda name: own.get(name) or self.placement(name)

    def model(self, weights: Context, metadata: Mapping[str, Any], devices: Sequence[Device]) -> Model:
        """The model over weights that were placed so."""
        model = self.kind(weights, metadata, devices)
        model.placement, model.packing, model.split = self.placement, self.packing, self.split
        return model


def decide(
    reader: gguf.GGUFReader,
    devices: Sequence[Device],
    placement: Placement | Rule | Chooses | None = None,
    *,
    pack: bool = True,
    pack_growth: int | None = None,
) -> Decided:
    """Decides the class of a file's model, the device of each weight, and which are packed; see :func:`load`."""
    packing = Packing(pack_growth)
    hyperparameters = Hyperparameters(reader.metadata)
    cls = _class_of(Values(hyperparameters.values, where=os.fspath(reader.paths[0])))
    nbytes = {info.name: info.nbytes for info in reader.tensors.values()}
    n_layer = hyperparameters.integer("block_count", 0, at_most=MOST_BLOCKS)
    place = Placement.of(placement).over(nbytes, n_layer, devices, caches=issubclass(cls, Decoder))
    return Decided(cls, place, *_own_memory(cls, reader, devices, place, packing if pack else None))


def _class_of(values: Values) -> type[Model]:
    """The class for the file's architecture, of this or another distribution.  Raises ModelError, PluginError."""
    name = values.text("general.architecture")
    named = () if name in ARCHITECTURES else (each for each in scan(GROUP) if each.name == name)
    installed = next(iter(named), None)  # the first one, if there are several
    if installed is not None:
        imported(installed, f"the class {installed.value} for the architecture {name!r}")
    others = f"others are named by entry points of {GROUP}, or in ggplug_models.architectures.MODULES"
    return values.entry("general.architecture", ARCHITECTURES, "an architecture", others)


def _own_memory(
    cls: type[Model], reader: gguf.GGUFReader, devices: Sequence[Device], place: Placed, packing: Packing | None
) -> tuple[tuple[PackedWeight, ...], dict[str, BufferType]]:
    """Decides from the model's graph for each weight whether it is packed, and whether it is split between devices.

    Does not read the weights.
    """
    combined = [device for device in devices if isinstance(device, CombinedDevice)]
    if not combined and (packing is None or not any(device.extra_buffer_types for device in devices)):
        return (), {}
    with Context("weights") as unplaced:
        for info in reader.tensors.values():
            unplaced.new_tensor(info.type, info.ne, info.name)
        with cls(unplaced, reader.metadata, devices) as model:
            graph = model.sample()
            if graph is None:
                return (), {}
            whole = [weight for weight in unplaced if place(weight.name) not in combined]
            packed = [] if packing is None else packing.choose(whole, graph, place)
            split: dict[str, BufferType] = {}
            for device in combined:
                weights = [weight for weight in unplaced if place(weight.name) is device]
                packs = None if packing is None else partial(packing.of_part, packed)
                split |= {leaf.name: memory for leaf, memory in split_weights(device, graph, weights, packs).items()}
            return tuple(packed), split


def chosen_devices(devices: Sequence[Device | str] | None) -> list[Device]:
    """The devices of a list of names or objects; the default ones for None or an empty list.  Raises ParameterError."""
    if devices is None:
        return default_devices()
    if isinstance(devices, (str, Device)) or not isinstance(devices, Iterable):
        raise ParameterError(
            f"devices must be a list of names or Device objects, got {short_repr(devices)}",
            got=devices,
            remedy=f"load(path, [{devices!r}])" if isinstance(devices, (str, Device)) else None,
        )
    chosen = [gg.device(each) if isinstance(each, str) else each for each in devices]
    for each in chosen:
        if not isinstance(each, Device):
            raise ParameterError(
                f"devices has {short_repr(each)}, which is neither a Device nor the name of one", got=each
            )
    return chosen or default_devices()


def default_devices() -> list[Device]:
    """The best device; if it does not use host memory, also a CPU, for operations that the device does not support.

    Raises DeviceNotFoundError if there is no device.
    """
    best = gg.init_best().device
    others = [] if best.buffer_type.is_host else [d for d in gg.devices_by_kind(DeviceKind.CPU) if d is not best]
    return [best, *others[:1]]
