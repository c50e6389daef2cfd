"""Loads a model from a file: its weights, to the devices that were chosen for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from ggplug import gguf
from ggplug.backend import Device
from ggplug.errors import ParameterError
from ggplug_models.checks.arguments import check_progress, whole
from ggplug_models.deciding import chosen_devices as chosen_devices
from ggplug_models.deciding import decide as decide
from ggplug_models.deciding import default_devices as default_devices
from ggplug_models.naming import path_of
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.denoiser import Denoiser
from ggplug_models.networks.model import Model
from ggplug_models.weights.files import MappedFiles
from ggplug_models.weights.placement import Placement
from ggplug_models.weights.rules import Chooses, Rule


def load(
    path: str | os.PathLike[str],
    devices: Sequence[Device | str] | None = None,
    *,
    placement: Placement | Rule | Chooses | None = None,
    split_mode: str | None = None,
    pack: bool = True,
    pack_growth: int | None = None,
    n_copies: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Loads a model from a GGUF file.

    ``path``: a path, or a name such as ``hf:OWNER/REPOSITORY`` (:func:`ggplug_models.naming.path_of`).

    ``devices``: names or objects, in order of preference; by default :func:`default_devices`.  No other device is used.
    ``placement``: the rules that choose the device that stores each weight and computes with it; by default the first
    device.  One rule, such as a :class:`~ggplug_models.LayerSplit`, or a function may stand for a
    :class:`~ggplug_models.Placement`; ``model.placement`` is the result.  ``split_mode``: with ``"tensor"`` each device
    has a part of each weight and all compute at once; with ``"layer"``, the default, each has weights of its own.
    ``pack``: whether weights are packed for products with many columns, on devices that support it
    (:mod:`.weights.packing`); ``model.packing`` lists the result.  ``pack_growth``: extra bytes that packed weights may
    take; by default only weights are packed that grow little.  ``n_copies``: how many micro-batches are computed at the
    same time where several devices have layers (:attr:`.Model.n_copies`); by default one for each device.
    ``progress(done, total)``: called with the bytes of weights that were read.

    Raises GGUFError, ModelError, ParameterError (a placement that is not valid), DeviceNotFoundError,
    OutOfMemoryError; for a name also ModelNotFoundError and DownloadError.
    """
    check_progress(progress)
    n_copies = None if n_copies is None else whole("n_copies", n_copies, 1)
    path = path_of(path, devices)
    chosen, placement = Placement.of(placement, split_mode).combined(chosen_devices(devices))
    with gguf.GGUFReader(path) as reader:
        decided = decide(reader, chosen, placement, pack=pack, pack_growth=pack_growth)
        paths = reader.paths

    weights, metadata = gguf.load(path, decided.where, progress=progress)
    try:
        model = decided.model(weights, metadata, chosen)
        model.paths, model.n_copies = tuple(paths), n_copies
        if any(weight.buffer is not None and weight.buffer.is_read_only for weight in weights):
            model.files = MappedFiles(paths)
        return model
    except BaseException:
        weights.free()
        raise


def load_language_model(
    path: str | os.PathLike[str], devices: Sequence[Device | str] | None = None, **how: Any
) -> Decoder:
    """As :func:`load`, for a language model.  Raises ParameterError for another kind of model."""
    loaded = load(path, devices, **how)
    if isinstance(loaded, Decoder):
        return loaded
    loaded.free()
    raise refuse(path, loaded)


def refuse(path: str | os.PathLike[str], model: Model) -> ParameterError:
    """The error for a model that does not generate text, or not token by token."""
    what = "generate text token by token" if isinstance(model, Denoiser) else "generate text"
    return model.cannot(path, f"cannot {what}")
