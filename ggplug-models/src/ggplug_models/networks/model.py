"""What every model has: hyperparameters, weights in the buffers of its devices, and a scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar

from ggplug.backend import Device
from ggplug.errors import DuplicateNameError, FreedError
from ggplug.graph import Graph
from ggplug.scheduler import Scheduler
from ggplug.sharing import CLOSED, NOTHING, OPEN, Claim, turn
from ggplug.tensor import Context
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.weights.files import MappedFiles
from ggplug_models.weights.packing import PackedWeight
from ggplug_models.weights.weights import Weights, digest_of_tensors


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
        self.w = Weights(weights, self.architecture)
        """The same by name, checked: ``w("output.weight", n_embd, n_vocab)``."""
        self.metadata = metadata
        self.devices = tuple(devices)
        self.hyperparameters = Hyperparameters(metadata)
        self.freed = False
        self.packing: tuple[PackedWeight, ...] = ()
        """What became of each weight when it was loaded: packed, or why not.  Empty if nothing was to be packed."""
        self.files = MappedFiles(())
        """The files that weights lie in; checked before each turn."""
        self._calls = object()
        """What calls share, and :meth:`free` has for itself."""
        # A weight that was placed is computed with where it lies.
        self.scheduler = Scheduler(self.devices, op_offload=False, cache_size=self.GRAPHS)

    @cached_property
    def digest(self) -> str:
        """What tells the weights from others: the same for the same weights, whatever devices hold them and however.

        :func:`.load` makes it from the file; else it is made when it is first needed.
        """
        return digest_of_tensors(self.weights)

    def sample(self) -> Graph | None:
        """A graph of a size that the model often computes, over its weights; it tells which of them are worth packing.

        None, as by default: none of them.  The weights need not have places.
        """
        return None

    def turn(self) -> Claim:
        """For a ``with`` block from setting inputs to reading results: other threads wait for it with theirs.

        Raises BusyError inside another one of the same thread (an abort callback that computes with the model),
        FreedError if the model was freed, and ModelError if a file that its weights are mapped from was cut.
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
            self.files.close()
            self.freed = True

    def __enter__(self) -> Self:
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

    def __init__(self, model: Model, *, whole: bool = False) -> None:
        super().__init__(() if whole else (model,), (model._calls,) if whole else NOTHING, OPEN if whole else CLOSED)
        self._model = model

    def __enter__(self) -> None:
        super().__enter__()
        try:
            if self._model.freed:
                raise FreedError(f"{self._model!r} was freed", thing=self._model, remedy="load it again")
            self._model.files.check()
        except BaseException:
            self.__exit__()
            raise


M = TypeVar("M", bound=type[Model])

ARCHITECTURES: dict[str, type[Model]] = {}
"""Model class by the value of ``general.architecture``."""


def architecture(name: str) -> Callable[[M], M]:
    """Registers a model class for an architecture.  Raises DuplicateNameError for one that another class has."""

    def register(cls: M) -> M:
        there = ARCHITECTURES.get(name, cls)
        if (there.__module__, there.__qualname__) != (cls.__module__, cls.__qualname__):  # a module may be reloaded
            raise DuplicateNameError(f"the architecture {name!r} has a class: {there.__module__}.{there.__qualname__}")
        cls.architecture = name
        ARCHITECTURES[name] = cls
        return cls

    return register
