"""How the models of a server are loaded: what the options of ``ggplug serve`` say."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ggplug_models.commands.options import adapted, fitted, pool
from ggplug_models.loading import load
from ggplug_models.serve.batcher import Counts
from ggplug_models.serve.loaded import Loaded, loaded
from ggplug_models.serve.service import Opens
from ggplug_models.weights.placement import Placement


@dataclass(frozen=True)
class Opening:
    """How a server loads a model.

    ``adapters``, ``vectors``: LoRA adapters and control vectors, with their scales.  ``loading``: for :func:`.load`.
    ``computing``: for :func:`.loaded`.  ``report``: is called with what was placed where.
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
    report: Callable[[str], None] | None = None

    def of(self, path: str | os.PathLike[str], name: str) -> Opens:
        """What loads a model, by its path or its name as :func:`.load` takes it."""

        @contextmanager
        def opens(counts: Counts) -> Iterator[Loaded]:
            # Free memory, to which a model is fitted, differs from one time to the next.
            used, placement = fitted(
                path,
                self.devices,
                self.placement,
                self.policy,
                n_ctx=self.context,
                n_seq=self.slots,
                cache_type=self.cache_type,
                **self.loading,
            )
            with load(path, used, placement=placement, **self.loading) as model, ExitStack() as stack:
                adapters = adapted(stack, model, self.adapters, self.vectors)
                if self.report is not None:
                    self.report(repr(model))
                    if placement.rules:
                        self.report(str(model.placement))
                if self.pooling != "none":
                    pool(model, self.pooling)
                with loaded(
                    model,
                    name,
                    counts,
                    slots=self.slots,
                    context=self.context,
                    cache_type=self.cache_type,
                    adapters=adapters,
                    **self.computing,
                ) as found:
                    yield found

        return opens
