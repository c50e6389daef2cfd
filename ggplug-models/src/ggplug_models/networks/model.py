"""The base class of models: hyperparameters, weights in the buffers of the devices, and a scheduler."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from ggplug.backend import BufferType, Device
from ggplug.errors import DuplicateNameError, FreedError, ParameterError
from ggplug.gguf.file_types import FILE_TYPE_KEY, FILE_TYPES
from ggplug.graph import Graph
from ggplug.scheduler import Pipeline, Scheduler
from ggplug.sharing import CLOSED, NOTHING, OPEN, Claim, locked
from ggplug.system.copying import Uncopied
from ggplug.tensor import Context
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.metadata.values import Values
from ggplug_models.state.session import Session
from ggplug_models.weights.files import MappedFiles
from ggplug_models.weights.packing import PackedWeight
from ggplug_models.weights.placement import Placed
from ggplug_models.weights.weights import Weights, digest_of


class Model(Uncopied):
    """A model's weights and the scheduler that computes with them.

    ``weights``: a :class:`~ggplug.Context` with the tensors of the file, under their names.
    ``metadata``: that of the file.  ``devices``: in order of preference; the last one should support all ops, as the
    CPU does.  A ``with`` block frees the model's memory at its end.

    Weights may be mapped from the file: read directly after it was truncated, as by ``weights["x"].numpy()``,
    they end the process.  Computing with the model raises ModelError instead; so does ``files.check()``.

    Several threads may use a model: computations are serialised by a lock (:meth:`locked`), which code must also hold
    when it uses the scheduler or the model's graphs.
    """

    _INSTEAD = "load it again with ggplug_models.load()"

    architecture: ClassVar[str] = ""

    needs: ClassVar[Collection[str]] = ()
    """Names, without that of a block, of tensors that all files have, although layers can do without: biases, mostly.

    They are those that llama.cpp requires.
    """

    varies: ClassVar[Collection[str]] = ()
    """Names, without that of a block, of tensors that only some blocks have, although layers ask all of them."""

    unread: ClassVar[Collection[str]] = ()
    """With what the names, without that of a block, of tensors begin that files have and the family does not need."""

    KIND: ClassVar[str] = ""
    """What the model is, in words, if it is no model of its own."""

    USE: ClassVar[str | None] = None
    """What it is used for then."""

    GRAPHS: ClassVar[int] = 64
    """Number of graphs that are kept with their schedules; the least recently used one is dropped first."""

    def __init__(self, weights: Context, metadata: Mapping[str, Any], devices: Sequence[Device]) -> None:
        self.weights = weights
        self.w = Weights(weights, self.architecture, self.needs, self.varies)
        """Looks up a weight and checks its extents: ``w("output.weight", n_embd, n_vocab)``."""
        self.metadata = metadata
        self.devices = tuple(devices)
        self.hyperparameters = Hyperparameters(metadata)
        self.freed = False
        self.placement: Placed | None = None
        """The device of each weight, and the rule that chose it.  None if :func:`.load` did not make the model."""
        self.packing: tuple[PackedWeight, ...] = ()
        """For each weight, whether it is packed, or why not.  Empty if the model was loaded without packing."""
        self.split: Mapping[str, BufferType] = {}
        """The memory of weights and caches that are split between the members of a combined device, by name."""
        self.paths: tuple[Path, ...] = ()
        """The files that it was loaded from."""
        self.files = MappedFiles(())
        """The files that weights are mapped from; checked before each computation."""
        self._calls = object()
        """A lock that calls hold together, and :meth:`free` alone."""
        # Nodes are computed on the device of their weights.
        self.scheduler = Scheduler(self.devices, op_offload=False, cache_size=self.GRAPHS)
        self.n_copies: int | None = None
        """How many steps are computed at the same time where several devices have layers.  None: one for each device;
        1: one after the other."""
        self.pipeline = Pipeline(self.scheduler)
        """Computes several steps at the same time."""

    @cached_property
    def digest(self) -> str:
        """A digest of the weights, which does not depend on devices, placement or packing; computed when it is first
        used."""
        return digest_of(self.weights)

    @property
    def n_params(self) -> int:
        """The number of parameters: the elements of all weights."""
        return sum(weight.size for weight in self.weights)

    @classmethod
    def cannot(cls, path: object, what: str) -> ParameterError:
        """The error for a file whose model is used for what it is not made for.  ``what``: "cannot generate text"."""
        return ParameterError(
            f"{path} is {cls.KIND or f'a {cls.architecture} model'}, which {what}", got=cls.architecture, remedy=cls.USE
        )

    @property
    def file_type(self) -> str | None:
        """The type, or the mixture of types, that the file's weights were quantised to, such as ``Q4_K_M``.

        None if the file does not name one, or its number is unknown.  Raises ModelError if it is no number.
        """
        number = Values(self.metadata).integer(FILE_TYPE_KEY, None, at_least=0)
        return next((name for name, each in FILE_TYPES.items() if each == number), None)

    def sample(self) -> Graph | None:
        """A graph of typical size over the model's weights, by which :mod:`.weights.packing` chooses those to pack.

        None, the default: none are packed.  The weights need not have places.
        """
        return None

    def copies(self, devices: Collection[Device]) -> int:
        """How many steps are computed at the same time, if the caches of the blocks are on these devices."""
        several = len(set(devices))
        return (self.n_copies or several) if several > 1 else 1

    def locked(self, *sessions: Session) -> Claim:
        """A ``with`` block that locks the model, from setting inputs to reading results; other threads wait.

        ``sessions``: of the model; they are not freed meanwhile.

        Raises BusyError if this thread has already locked it (in an abort callback that computes with the model),
        FreedError if the model or a session was freed, and ModelError if a file that its weights are mapped from was
        truncated.
        """
        return _ModelLock(self, (self, *sessions))

    turn = locked
    """The former name of :meth:`locked`."""

    def call(self) -> Claim:
        """A ``with`` block around a call that computes several times: :meth:`free` waits until it has ended.

        It does not lock the model: other threads may compute in between.  Raises FreedError if the model was freed.
        """
        return _ModelLock(self, (), (self._calls,), OPEN)

    def free(self) -> None:
        """Releases the weights and the scheduler's memory, after waiting for the calls of other threads.

        Raises BusyError in a callback of the model (``progress``), BufferUseError while arrays share its memory.
        """
        with locked(self, self._calls):
            if self.freed:
                return
            self.pipeline.free()
            self.scheduler.free()
            self.weights.free()
            self.files.close()
            self.freed = True

    def freed_error(self) -> FreedError:
        """The error for calls after :meth:`free`."""
        return FreedError(f"{self!r} was freed", thing=self, remedy="load it again")

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


class _ModelLock(Claim):
    """A claim on a model, or on it and sessions, none of which was freed: :meth:`Model.locked`, :meth:`Model.call`."""

    def __init__(
        self,
        model: Model,
        own: tuple[Model | Session, ...],
        shared: Collection[object] = NOTHING,
        kind: int = CLOSED,
    ) -> None:
        super().__init__(own, shared, kind)
        self._model = model
        self._needed = own or (model,)

    def __enter__(self) -> None:
        super().__enter__()
        try:
            for each in self._needed:
                if each.freed:
                    raise each.freed_error()
            self._model.files.check()
        except BaseException:
            self.__exit__()
            raise


class Architectures(MutableMapping[str, type[Model]]):
    """The model classes, by the value of ``general.architecture``; the modules of declared ones are imported on demand.

    Looking a class up imports its module, which registers it; listing the names imports nothing.
    """

    def __init__(self) -> None:
        self._modules: dict[str, str] = {}
        self._classes: dict[str, type[Model]] = {}

    def declare(self, modules: Mapping[str, str]) -> None:
        """Adds architectures, and the module of each."""
        self._modules |= modules

    def __getitem__(self, name: str) -> type[Model]:
        if name not in self._classes and name in self._modules:
            importlib.import_module(self._modules[name])
        return self._classes[name]

    def __setitem__(self, name: str, cls: type[Model]) -> None:
        self._classes[name] = cls

    def __delitem__(self, name: str) -> None:
        del self._classes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules | self._classes)

    def __len__(self) -> int:
        return len(self._modules | self._classes)

    def __contains__(self, name: object) -> bool:
        return name in self._modules or name in self._classes


M = TypeVar("M", bound=type[Model])

ARCHITECTURES = Architectures()
"""The architectures that files may have."""


def architecture(name: str) -> Callable[[M], M]:
    """Decorator that registers the model class of an architecture.  Raises DuplicateNameError if it has another."""

    def register(cls: M) -> M:
        there = ARCHITECTURES.get(name, cls)
        if (there.__module__, there.__qualname__) != (cls.__module__, cls.__qualname__):  # a module may be reloaded
            raise DuplicateNameError(
                f"the architecture {name!r} already has the class {there.__module__}.{there.__qualname__}"
            )
        cls.architecture = name
        ARCHITECTURES[name] = cls
        return cls

    return register
