"""From a file to a model: which architecture, which device for each weight, which weights are packed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ggplug as gg
import ggplug_models.architectures  # noqa: F401  (registers the families)
from ggplug import gguf
from ggplug.backend import Device
from ggplug.errors import ParameterError, PluginError
from ggplug.registry.discover import scan
from ggplug.registry.isolation import FaultError, within
from ggplug.registry.records import reason_of
from ggplug.tensor import Context
from ggplug.types import DeviceKind
from ggplug_models.checks.arguments import check_progress
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.metadata.values import Values
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import ARCHITECTURES, Model
from ggplug_models.weights.files import MappedFiles
from ggplug_models.weights.packing import PackedWeight, Packing
from ggplug_models.weights.placement import LayerSplit, Placement, first, over
from ggplug_models.weights.weights import digest_of_file

GROUP = "ggplug.architectures"
"""Entry points of this group name the classes of other distributions, by architecture."""


def load(
    path: str | os.PathLike[str],
    devices: Sequence[Device | str] | None = None,
    *,
    placement: Placement | LayerSplit | None = None,
    pack: bool = True,
    pack_growth: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Opens a GGUF model.

    ``devices``: in order of preference, by name or object; by default :func:`default_devices`.  A device that is
    named never falls back to another one.  ``placement``: chooses the device of each weight, and so where it is
    computed with (default: the first device); :class:`~ggplug_models.LayerSplit` spreads the layers over all of them.
    ``pack``: whether devices that can keep packed weights do (:mod:`.weights.packing`), so that products with many
    columns need not pack them each time; ``model.packing`` tells of each weight.  ``pack_growth``: bytes by which that
    may make the model larger; by default only weights are packed that stay about as large.  ``progress(done, total)``:
    bytes of weights read.

    Raises GGUFError, ModelError, ParameterError (a split that does not fit, a placement that returns no device),
    DeviceNotFoundError, OutOfMemoryError.
    """
    check_progress(progress)
    chosen = default_devices() if devices is None else _chosen(devices)
    with gguf.GGUFReader(path) as reader:
        hyperparameters = Hyperparameters(reader.metadata)
        paths, digest = reader.paths, digest_of_file(reader)
    values = Values(hyperparameters.values, where=os.fspath(path))
    cls = _class_of(values)
    if isinstance(placement, LayerSplit):
        placement = placement.over(hyperparameters.integer("block_count"), len(chosen))
    place = over(first if placement is None else placement, chosen)
    packing = _packing(cls, path, chosen, place, Packing(pack_growth)) if pack else ()
    packed = {each.name: each.memory for each in packing if each.memory is not None}

    weights, metadata = gguf.load(path, lambda tensor: packed.get(tensor) or place(tensor), progress=progress)
    try:
        model = cls(weights, metadata, chosen)
        model.packing, model.digest = tuple(packing), digest
        if any(weight.buffer is not None and weight.buffer.is_read_only for weight in weights):
            model.files = MappedFiles(paths)
        return model
    except BaseException:
        weights.free()
        raise


def _class_of(values: Values) -> type[Model]:
    """The class for a file's architecture, which another distribution may bring.  Raises ModelError, PluginError."""
    name = values.text("general.architecture")
    named = () if name in ARCHITECTURES else (each for each in scan(GROUP) if each.name == name)
    installed = next(iter(named), None)  # of several the first counts
    if installed is not None and installed.entry_point is not None:
        try:
            within(0, name, installed.entry_point.load)
        except FaultError as error:
            reason = reason_of(error.cause)
            raise PluginError(
                f"the architecture {name!r} ({installed.value}) of {installed.distribution} does not load: {reason}",
                entry_point=name,
                distribution=installed.distribution,
                version=installed.version,
                stage="installed",
                reason=reason,
            ) from error.cause
    return values.entry("general.architecture", ARCHITECTURES, "an architecture")


def _packing(
    cls: type[Model],
    path: str | os.PathLike[str],
    devices: Sequence[Device],
    place: Callable[[str], Device],
    packing: Packing,
) -> Sequence[PackedWeight]:
    """What becomes of each weight, by the graph that the model would compute.  Nothing of the weights is read."""
    if not any(device.extra_buffer_types for device in devices):
        return ()
    with gguf.GGUFReader(path) as reader, Context(os.fspath(path)) as unplaced:
        for info in reader.tensors.values():
            unplaced.new_tensor(info.type, info.ne, info.name)
        with cls(unplaced, reader.metadata, devices) as model:
            graph = model.sample()
            return () if graph is None else packing.choose(unplaced, graph, place)


def _chosen(devices: Sequence[Device | str]) -> list[Device]:
    """Devices by name or object.  Raises ParameterError for what is no list of them, or an empty one."""
    if isinstance(devices, (str, Device)) or not isinstance(devices, Iterable):
        raise ParameterError(
            f"devices are a list of names or Device objects, got {devices!r}",
            got=devices,
            remedy=f"load(path, [{devices!r}])" if isinstance(devices, (str, Device)) else None,
        )
    chosen = [gg.device(each) if isinstance(each, str) else each for each in devices]
    for each in chosen:
        if not isinstance(each, Device):
            raise ParameterError(f"{each!r} is neither a device nor the name of one", got=each)
    return chosen or default_devices()


def load_language_model(
    path: str | os.PathLike[str], devices: Sequence[Device | str] | None = None, **how: Any
) -> Decoder:
    """As :func:`load`, for a model that writes texts.  Raises ParameterError for another one."""
    loaded = load(path, devices, **how)
    if isinstance(loaded, Decoder):
        return loaded
    loaded.free()
    raise ParameterError(f"{path} is a {loaded.architecture} model, which writes no texts", got=loaded.architecture)


def default_devices() -> list[Device]:
    """The best device that there is; if its memory is its own, the CPU after it, for what it does not do.

    Raises DeviceNotFoundError if there is none.
    """
    best = gg.init_best().device
    others = [] if best.buffer_type.is_host else [d for d in gg.devices_by_kind(DeviceKind.CPU) if d is not best]
    return [best, *others[:1]]
