"""Loads a model from a file: chooses its class, the device of each weight, and which weights are packed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import ggplug as gg
import ggplug_models.architectures  # noqa: F401  (declares the families)
from ggplug import gguf
from ggplug.backend import BufferType, Device
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
from ggplug_models.networks.network import MOST_BLOCKS
from ggplug_models.weights.files import MappedFiles
from ggplug_models.weights.packing import PackedWeight, Packing
from ggplug_models.weights.placement import Placed, Placement
from ggplug_models.weights.rules import Chooses, Rule
from ggplug_models.weights.weights import digest_of_file

GROUP = "ggplug.architectures"
"""Group of entry points by which other distributions add architectures: the name of one, and its class."""


def load(
    path: str | os.PathLike[str],
    devices: Sequence[Device | str] | None = None,
    *,
    placement: Placement | Rule | Chooses | None = None,
    pack: bool = True,
    pack_growth: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Loads a model from a GGUF file.

    ``path``: a path, or a name such as ``hf:OWNER/REPOSITORY`` (:func:`ggplug_models.by_name.lookup.path_of`).

    ``devices``: names or objects, in order of preference; by default :func:`default_devices`.  No other device is used.
    ``placement``: the rules that choose the device that stores each weight and computes with it; by default the first
    device.  One rule, such as a :class:`~ggplug_models.LayerSplit`, or a function may stand for a
    :class:`~ggplug_models.Placement`; ``model.placement`` is the result.  ``pack``: whether weights are packed for
    products with many columns, on devices that support it (:mod:`.weights.packing`); ``model.packing`` lists the
    result.  ``pack_growth``: extra bytes that packed weights may take; by default only weights are packed that grow
    little.  ``progress(done, total)``: called with the bytes of weights that were read.

    Raises GGUFError, ModelError, ParameterError (a placement that is not valid), DeviceNotFoundError,
    OutOfMemoryError; for a name also ModelNotFoundError and DownloadError.
    """
    check_progress(progress)
    path = path_of(path)
    chosen = chosen_devices(devices)
    with gguf.GGUFReader(path) as reader:
        decided = decide(reader, chosen, placement, pack=pack, pack_growth=pack_growth)
        paths, digest = reader.paths, digest_of_file(reader)

    weights, metadata = gguf.load(path, decided.where, progress=progress)
    try:
        model = decided.model(weights, metadata, chosen)
        model.paths, model.digest = tuple(paths), digest
        if any(weight.buffer is not None and weight.buffer.is_read_only for weight in weights):
            model.files = MappedFiles(paths)
        return model
    except BaseException:
        weights.free()
        raise


class Decided(NamedTuple):
    """The decisions about a file's weights before they are read."""

    kind: type[Model]
    placement: Placed
    packing: tuple[PackedWeight, ...]

    @property
    def where(self) -> Callable[[str], Device | BufferType]:
        """The function from a weight's name to its device, or to the memory in which it is packed."""
        packed = {each.name: each.memory for each in self.packing if each.memory is not None}
        return lambda name: packed.get(name) or self.placement(name)

    def model(self, weights: Context, metadata: Mapping[str, Any], devices: Sequence[Device]) -> Model:
        """The model over weights that were placed so."""
        model = self.kind(weights, metadata, devices)
        model.placement, model.packing = self.placement, self.packing
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
    return Decided(cls, place, tuple(_packing(cls, reader, devices, place, packing)) if pack else ())


def _class_of(values: Values) -> type[Model]:
    """The class for the file's architecture, of this or another distribution.  Raises ModelError, PluginError."""
    name = values.text("general.architecture")
    named = () if name in ARCHITECTURES else (each for each in scan(GROUP) if each.name == name)
    installed = next(iter(named), None)  # the first one, if there are several
    if installed is not None:
        imported(installed, f"the class {installed.value} for the architecture {name!r}")
    return values.entry("general.architecture", ARCHITECTURES, "an architecture")


def _packing(
    cls: type[Model], reader: gguf.GGUFReader, devices: Sequence[Device], place: Placed, packing: Packing
) -> Sequence[PackedWeight]:
    """Decides for each weight whether it is packed, from the model's graph.  Does not read the weights."""
    if not any(device.extra_buffer_types for device in devices):
        return ()
    with Context("weights") as unplaced:
        for info in reader.tensors.values():
            unplaced.new_tensor(info.type, info.ne, info.name)
        with cls(unplaced, reader.metadata, devices) as model:
            graph = model.sample()
            return () if graph is None else packing.choose(unplaced, graph, place)


def chosen_devices(devices: Sequence[Device | str] | None) -> list[Device]:
    """The devices of a list of names or objects; the default ones for None or an empty list.  Raises ParameterError."""
    if devices is None:
        return default_devices()
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
