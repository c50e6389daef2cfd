"""How the models of a server are loaded: what the options of ``ggplug serve`` say."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ggplug.backend import Device
from ggplug.errors import DeviceLostError
from ggplug.registry import device
from ggplug_models.commands.options import adapted, fitted, pool
from ggplug_models.fitting import fit
from ggplug_models.loading import load
from ggplug_models.networks.network import Network
from ggplug_models.serve.loaded import loaded
from ggplug_models.serve.service import About, Opens, Service
from ggplug_models.weights.placement import Placement


@dataclass(frozen=True)
class Opening:
    """How a server loads a model.

    ``adapters``, ``vectors``: LoRA adapters and control vectors, with their scales.  ``loading``: for :func:`.load`.
    ``computing``: for :func:`.loaded`.  ``replays``: whether texts go on after a device was lost, on those that are
    left.  ``report``: is called with what was placed where.
    """

    devices: list[str] | None
    placement: Placement
    adapters: Sequence[tuple[Path, float]]
    vectors: Sequence[tuple[Path, float]]
    policy: str
    loading: Mapping[str, Any]
    pooling: str | None
    cache_type: str
    context: int | None
    slots: int
    computing: Mapping[str, Any]
    replays: bool = False
    report: Callable[[str], None] | None = None

    def of(self, path: str | os.PathLike[str], name: str) -> Opens:
        """What loads a model, by its path or its name as :func:`.load` takes it."""

        @contextmanager
        def model() -> Iterator[Network]:
            # Free memory, to which a model is fitted, differs from one time to the next; devices may be lost.
            used, placement = self._fitted(path)
            with load(path, used, placement=placement, **self.loading) as model, ExitStack() as stack:
                adapted(stack, model, (), self.vectors)
                if self.report is not None:
                    self.report(repr(model))
                    if placement.rules:
                        self.report(str(model.placement))
                if self.pooling != "none":
                    pool(model, self.pooling)
                yield model

        return lambda counts: loaded(
            model,
            name,
            counts,
            slots=self.slots,
            context=self.context,
            cache_type=self.cache_type,
            adapters=self.adapters,
            replays=self.replays,
            **self.computing,
        )

    def _fitted(self, path: str | os.PathLike[str]) -> tuple[Sequence[Device | str], Placement]:
        """The devices and the placement of the options; without lost devices one that fits those that are left."""
        how = {"n_ctx": self.context, "n_seq": self.slots, "cache_type": self.cache_type, **self.loading}
        if self.replays and self.devices is not None:
            left = [name for name in self.devices if not _is_lost(name)]
            if left and left != self.devices:
                return left, fit(path, left, **how).placement
        return fitted(path, self.devices, self.placement, self.policy, **how)


@dataclass(frozen=True)
class Offer:
    """A model and the options of its service.

    ``path``: a path, or a name such as ``hf:OWNER/REPOSITORY``.  ``name``, ``about``, ``waiting``, ``idle``: see
    :class:`.Service`.
    """

    path: str | os.PathLike[str]
    name: str
    opening: Opening
    about: About
    waiting: int
    idle: float | None

    def service(self) -> Service:
        """The service, whose model is not loaded yet."""
        return Service(
            self.name,
            self.opening.of(self.path, self.name),
            slots=self.opening.slots,
            waiting=self.waiting,
            about=self.about,
            idle=self.idle,
        )


def _is_lost(name: str) -> bool:
    try:
        device(name).buffer_type.alloc(1).free()
    except DeviceLostError:
        return True
    return False
