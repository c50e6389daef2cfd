"""What every model has: hyperparameters, weights in the buffers of its devices, and a scheduler."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import ggplug as gg
from ggplug import gguf
from ggplug.backend import Device
from ggplug.errors import FreedError, ModelError, ParameterError
from ggplug.graph import Graph
from ggplug.scheduler import Scheduler
from ggplug.sharing import CLOSED, NOTHING, OPEN, Claim, turn
from ggplug.tensor import Context, Tensor
from ggplug.types import DeviceKind
from ggplug_models.hyperparameters import Hyperparameters
from ggplug_models.packing import GROWTH, PackedWeight, Packing
from ggplug_models.placement import LayerSplit, Placement


class Model:
    """A model's weights and the scheduler that computes with them.

    ``devices``: in order of preference; a device that can run any op (the CPU) belongs at the end.  ``weights``: a
    :class:`~ggplug.Context` by the tensors' names in the file.  As a context manager the model frees its memory at
    the end.

    Several threads may use a model: what computes takes turns (:meth:`turn`), and gets its own results.  Its scheduler
    and the graphs that it keeps are used inside a turn.
    """

    architecture: ClassVar[str] = ""

    GRAPHS: ClassVar[int] = 64
    """Graphs of different shapes that are kept for reuse, with their schedules; the one used longest ago goes first."""

    def __init__(self, weights: Context, metadata: Mapping[str, Any], devices: Sequence[Device]) -> None:
        self.weights = weights
        self.metadata = metadata
        self.devices = tuple(devices)
        self.hyperparameters = Hyperparameters(metadata)
        self.freed = False
        self.packing: tuple[PackedWeight, ...] = ()
        """What became of each weight when it was loaded: packed, or why not.  Empty if nothing was to be packed."""
        self._calls = object()
        """What calls share, and :meth:`free` has for itself."""
        # A weight that was placed is computed with where it lies.
        self.scheduler = Scheduler(self.devices, op_offload=False, cache_size=self.GRAPHS)

    def weight(self, name: str, *ne: int) -> Tensor:
        """A weight by name; ``ne`` are the extents that it must have.  Raises ModelError."""
        tensor = self.weights.get(name)
        if tensor is None:
            raise ModelError(f"the file has no tensor {name!r}, which {self.architecture} needs")
        wanted = ne + (1,) * (4 - len(ne))
        if tensor.ne != wanted:
            raise ModelError(
                f"tensor {name!r} has ne {tensor.ne}, the metadata asks for {wanted}", tensor=tensor, wanted=wanted
            )
        return tensor

    def sample(self) -> Graph | None:
        """A graph of a size that the model often computes, over its weights; it tells which of them are worth packing.

        None, as by default: none of them.  The weights need not have places.
        """
        return None

    def turn(self) -> Claim:
        """For a ``with`` block from setting inputs to reading results: other threads wait for it with theirs.

        Raises BusyError inside another one of the same thread (an abort callback that computes with the model), and
        FreedError if the model was freed.
        """
        return _Turn(self)

    def call(self) -> Claim:
        """For a ``with`` block around a whole call that takes several turns: :meth:`free` waits until it has ended.

        Other threads take their turns in between.  Raises FreedError if the model was freed.
        """
        return _Turn(self, whole=True)

    def free(self) -> None:
        """Gives weights and compute memory back, after waiting for other threads' calls to end.

        Raises BusyError within a call of the model (``progress``), BufferUseError while arrays share its memory.
        """
        with turn(self, self._calls):
            if self.freed:
                return
            self.scheduler.free()
            self.weights.free()
            self.freed = True

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    def __repr__(self) -> str:
        name = self.metadata.get("general.name", "")
        where = ", ".join(device.name for device in self.devices)
        packed = sum(each.packed_bytes for each in self.packing if each.memory is not None)
        size = f"{self.weights.nbytes / 2**20:.1f} MiB of weights"
        of_them = f" ({packed / 2**20:.1f} MiB packed)" if packed else ""
        return f"<{type(self).__name__} {name!r}: {size}{of_them}, on {where}>"


class _Turn(Claim):
    """A turn, or a whole call, with a model that was not freed."""

    DEPTH = 2

    def __init__(self, model: Model, *, whole: bool = False) -> None:
        super().__init__(() if whole else (model,), (model._calls,) if whole else NOTHING, OPEN if whole else CLOSED)
        self._model = model

    def __enter__(self) -> None:
        super().__enter__()
        if self._model.freed:
            self.__exit__()
            raise FreedError(f"{self._model!r} was freed", thing=self._model, remedy="load it again")


M = TypeVar("M", bound=type[Model])

ARCHITECTURES: dict[str, type[Model]] = {}
"""Model class by the value of ``general.architecture``."""


def architecture(name: str) -> Callable[[M], M]:
    """Registers a model class for an architecture."""

    def register(cls: M) -> M:
        cls.architecture = name
        ARCHITECTURES[name] = cls
        return cls

    return register


def load(
    path: str | os.PathLike[str],
    devices: Sequence[Device | str] | None = None,
    *,
    placement: Placement | LayerSplit | None = None,
    pack: bool = True,
    pack_growth: int = GROWTH,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Opens a GGUF model.

    ``devices``: in order of preference, by name or object; by default :func:`default_devices`.  A device that is
    named never falls back to another one.  ``placement``: chooses the device of each weight, and so where it is
    computed with (default: the first device); :class:`~ggplug_models.LayerSplit` spreads the layers over all of them.
    ``pack``: whether devices that can keep packed weights do (:mod:`ggplug_models.packing`), so that products with many
    columns need not pack them each time; ``model.packing`` tells of each weight.  ``pack_growth``: bytes by which that
    may make the model larger.  ``progress(done, total)``: bytes of weights read.

    Raises GGUFError, ModelError, ParameterError (a split that does not fit), DeviceNotFoundError, OutOfMemoryError.
    """
    chosen = default_devices() if devices is None else _chosen(devices)
    with gguf.GGUFReader(path) as reader:
        hyperparameters = Hyperparameters(reader.metadata)
    name = hyperparameters.architecture
    cls = ARCHITECTURES.get(name)
    if cls is None:
        raise ModelError(
            f"{os.fspath(path)}: architecture {name!r} is not supported", got=name,
            remedy=f"supported: {', '.join(sorted(ARCHITECTURES))}",
        )  # fmt: skip
    chooses = placement
    if isinstance(chooses, LayerSplit):
        chooses = chooses.over(hyperparameters.integer("block_count"), len(chosen))

    def place(tensor_name: str) -> Device:
        return chooses(tensor_name, chosen) if chooses else chosen[0]

    packing = _packing(cls, path, chosen, place, Packing(pack_growth)) if pack else ()
    packed = {each.name: each.memory for each in packing if each.memory is not None}

    weights, metadata = gguf.load(path, lambda tensor: packed.get(tensor) or place(tensor), progress=progress)
    try:
        model = cls(weights, metadata, chosen)
        model.packing = tuple(packing)
        return model
    except BaseException:
        weights.free()
        raise


def _packing(
    cls: type[Model], path: str | os.PathLike[str], devices: Sequence[Device], place: Callable[[str], Device],
    packing: Packing,
) -> Sequence[PackedWeight]:  # fmt: skip
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
            f"devices are a list of names or Device objects, got {devices!r}", got=devices,
            remedy=f"load(path, [{devices!r}])" if isinstance(devices, (str, Device)) else None,
        )  # fmt: skip
    chosen = [gg.device(each) if isinstance(each, str) else each for each in devices]
    for each in chosen:
        if not isinstance(each, Device):
            raise ParameterError(f"{each!r} is neither a device nor the name of one", got=each)
    return chosen or default_devices()


def default_devices() -> list[Device]:
    """The best device that there is; if its memory is its own, the CPU after it, for what it does not do.

    Raises DeviceNotFoundError if there is none.
    """
    best = gg.init_best().device
    others = [] if best.buffer_type.is_host else [d for d in gg.devices_by_kind(DeviceKind.CPU) if d is not best]
    return [best, *others[:1]]
