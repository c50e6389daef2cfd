"""Loads a model from a file: chooses its class, the device of each weight, and which weights are packed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ggplug as gg
import ggplug_models.architectures  # noqa: F401  (registers the families)
from ggplug import gguf
from ggplug.backend import Device
from ggplug.errors import ParameterError
from ggplug.registry.discover import scan
from ggplug.registry.entry_points import imported
from ggplug.tensor import Context
from ggplug.types import DeviceKind
from ggplug_models.by_name.lookup import path_of
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
"""Group of entry points by which other distributions add architectures: the name of one, and its class."""


def load(
    path: str | os.PathLike[str],
    devices: Sequence[Device | str] | None = None,
    *,
    placement: Placement | LayerSplit | None = None,
    pack: bool = True,
    pack_growth: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Loads a model from a GGUF file.

    ``path``: a path, or a name such as ``hf:OWNER/REPOSITORY`` (:func:`ggplug_models.by_name.lookup.path_of`).

    ``devices``: names or objects, in order of preference; by default :func:`default_devices`.  No other device is used.
    ``placement``: chooses the device that stores each weight and computes with it; by default the first device, or a
    :class:`~ggplug_models.LayerSplit`, which distributes the layers.  ``pack``: whether weights are packed for products
    with many columns, on devices that support it (:mod:`.weights.packing`); ``model.packing`` lists the result.
    ``pack_growth``: extra bytes that packed weights may take; by default only weights are packed that grow little.
    ``progress(done, total)``: called with the bytes of weights that were read.

    Raises GGUFError, ModelError, ParameterError (a split or a placement that is not valid), DeviceNotFoundError,
    OutOfMemoryError; for a name also ModelNotFoundError and DownloadError.
    """
    check_progress(progress)
    path = path_of(path)
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
    """The class for the file's architecture, of this or another distribution.  Raises ModelError, PluginError."""
    name = values.text("general.architecture")
    named = () if name in ARCHITECTURES else (each for each in scan(GROUP) if each.name == name)
    installed = next(iter(named), None)  # the first one, if there are several
    if installed is not None:
        imported(installed, f"the class {installed.value} for the architecture {name!r}")
    return values.entry("general.architecture", ARCHITECTURES, "an architecture")


def _packing(
    cls: type[Model],
    path: str | os.PathLike[str],
    devices: Sequence[Device],
    place: Callable[[str], Device],
    packing: Packing,
) -> Sequence[PackedWeight]:
    """Decides for each weight whether it is packed, from the model's graph.  Does not read the weights."""
    if not any(device.extra_buffer_types for device in devices):
        return ()
    with gguf.GGUFReader(path) as reader, Context(os.fspath(path)) as unplaced:
        for info in reader.tensors.values():
            unplaced.new_tensor(info.type, info.ne, info.name)
        with cls(unplaced, reader.metadata, devices) as model:
            graph = model.sample()
            return () if graph is None else packing.choose(unplaced, graph, place)


def _chosen(devices: Sequence[Device | str]) -> list[Device]:
    """The devices of a list of names or objects; the default ones if it is empty.  Raises ParameterError."""
    if isinstance(devices, (str, Device)) or not isinstance(devices, Iterable):
        raise ParameterError(
            f"devices must be a list of names or Device objects, got {devices!r}",
            got=devices,
            remedy=f"load(path, [{devices!r}])" if isinstance(devices, (str, Device)) else None,
        )
    chosen = [gg.device(each) if isinstance(each, str) else each for each in devices]
    for each in chosen:
        if not isinstance(each, Device):
            raise ParameterError(f"devices has {each!r}, which is neither a Device nor the name of one", got=each)
    return chosen or default_devices()


def load_language_model(
    path: str | os.PathLike[str], devices: Sequence[Device | str] | None = None, **how: Any
) -> Decoder:
    """As :func:`load`, for a language model.  Raises ParameterError for another kind of model."""
    loaded = load(path, devices, **how)
    if isinstance(loaded, Decoder):
        return loaded
    loaded.free()
    raise ParameterError(
        f"{path} is a {loaded.architecture} model, which cannot generate text", got=loaded.architecture
    )


def default_devices() -> list[Device]:
    """The best device; if it does not use host memory, also a CPU, for operations that the device does not support.

    Raises DeviceNotFoundError if there is no device.
    """
    best = gg.init_best().device
    others = [] if best.buffer_type.is_host else [d for d in gg.devices_by_kind(DeviceKind.CPU) if d is not best]
    return [best, *others[:1]]
