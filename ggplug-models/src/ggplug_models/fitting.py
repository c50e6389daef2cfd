"""Fitting: which placement of a model the memory of the devices allows, and what each of them will hold.

The model is made over planned buffers, and the scheduler decides about the graphs of its largest steps, so that the
bytes are those of a loaded model.  No weight is read and no memory of a device is allocated.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import ggplug as gg
from ggplug import gguf
from ggplug.backend import Device
from ggplug.combined import CombinedDevice
from ggplug.combined.memory import shares
from ggplug.costs.chain import Layer, cheapest
from ggplug.costs.model import CostModel, cost_model
from ggplug.errors import OutOfMemoryError, ParameterError
from ggplug.gguf import GGUFReader
from ggplug.gguf.load import planned
from ggplug.graph import Graph
from ggplug.scheduler.fit import Budgets, Holding, budgets_of, distribute, too_large
from ggplug.scheduler.scheduler import Needed
from ggplug.types import DeviceKind, Type
from ggplug_models.by_name import lookup
from ggplug_models.checks.arguments import whole
from ggplug_models.deciding import chosen_devices, decide
from ggplug_models.fastest import Times, moves, on, times_of
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.encoder import Encoder
from ggplug_models.networks.model import Model
from ggplug_models.state.session import CACHE_TYPES, Session, cache_type_of
from ggplug_models.weights.placement import TENSOR, Placed, Placement
from ggplug_models.weights.rules import Chooses, ExpertsOn, LayerSplit, Rule, is_after_layers, is_expert, layer_of

LEAST_CONTEXT = 512
"""The smallest context that is proposed where a larger one does not fit."""


@dataclass(frozen=True)
class Fit:
    """A placement that fits, for :func:`.load`, and what each device will hold, in the devices' order.

    ``n_ctx``, ``n_seq``, ``cache_type``: what sessions have; of an encoder the tokens and the number of texts.
    """

    placement: Placement
    holdings: tuple[Holding, ...]
    n_ctx: int
    n_seq: int
    cache_type: str
    placed: Placed | None = None
    """The device of each weight and cache."""
    times: Times | None = None
    """With ``policy="cost"`` the predicted times of the largest steps."""
    moves: Sequence[Sequence[float]] = ()
    """By the devices of two adjacent layers, what the change takes in these steps."""
    compared: Sequence[tuple[str, float]] = ()
    """With ``policy="cost"`` the placements that were compared, this one first, and their predicted seconds."""


def fit(
    path: str | os.PathLike[str],
    devices: Sequence[Device | str] | None = None,
    budgets: Budgets = None,
    *,
    n_ctx: int | None = None,
    n_seq: int = 1,
    cache_type: str | Type = "f16",
    micro_batch: int = 512,
    placement: Placement | Rule | Chooses | None = None,
    pack: bool = True,
    pack_growth: int | None = None,
    n_copies: int | None = None,
    policy: str | CostModel = "ggml",
) -> Fit:
    """The placement of a model's weights that fits, and the bytes that each device will hold with it.

    ``devices``, ``pack``, ``pack_growth``, ``n_copies``: as for :func:`.load`.  ``budgets``: bytes that the devices may
    hold, by name or in their order; None: what is free now.  ``n_ctx``, ``n_seq``, ``cache_type``, ``micro_batch``: as
    for :class:`.Session`; for an encoder, the tokens of a text and the number of texts computed together.
    ``placement``: one to check; by default all weights on the first device, or, where they do not fit, experts of the
    last layers on the last device if it has host memory, or the last layers on the next devices.

    ``policy="cost"``: of the placements by layers, and that with experts on the last device, the one that is predicted
    to take the least time: for a prompt of a micro-batch and as many generated tokens, or for the texts of an encoder.
    Devices that were not measured before are measured now, for at most two seconds each (:mod:`ggplug.costs`).

    With the split mode ``"tensor"`` of a placement the members of the combined device hold what is said of each; its
    proportions are not changed to make it fit.

    The weights that stay in the file's map count as held.  Scratch memory of the CPU's threads does not.

    Raises OutOfMemoryError if nothing fits: ``missing`` says by how many bytes, ``holdings`` what was tried last, and
    the remedy what would fit.  Raises ParameterError, and as :func:`.load`.
    """
    chosen = chosen_devices(devices)
    n_seq = whole("n_seq", n_seq, 1)
    costs = None if policy == "ggml" else cost_model(policy)
    cache = cache_type_of(cache_type).name
    path = lookup.path_of(path, Capacity(chosen))
    given = budgets_of(chosen, budgets)
    asked = _Asked(path, chosen, given, n_ctx, n_seq, cache, micro_batch, pack, pack_growth, n_copies, costs)
    with gguf.GGUFReader(path) as reader:
        try:
            if placement is None and costs is not None and len(chosen) > 1:
                return asked.fastest(reader)
            return asked.fitted(reader, placement)
        except OutOfMemoryError as error:
            found = list(asked.smaller(reader, placement))
            error.remedy = "; ".join(found) or "use weights of a smaller type, or a device with more memory"
            raise


@dataclass(frozen=True)
class _Asked:
    """A question of :func:`fit`, with its parameters."""

    path: str | os.PathLike[str]
    devices: Sequence[Device]
    budgets: dict[Device, int | None]
    n_ctx: int | None
    n_seq: int
    cache_type: str
    micro_batch: int
    pack: bool
    pack_growth: int | None
    n_copies: int | None
    costs: CostModel | None = None

    def fastest(self, reader: GGUFReader) -> Fit:
        """The placement that fits and is predicted to take the least time.  Raises OutOfMemoryError."""
        _, layers = _units(reader)
        count = len(self.devices)
        alone = [self.measured(reader, on(self.devices, [number] * len(layers))) for number in range(count)]
        if any(each.times is None for each in alone):
            return self.fitted(reader, None)
        seconds = [each.times.layers for each in alone if each.times is not None]
        caches = [sum(each.cache for each in fit.holdings) // len(layers) for fit in alone]
        chain = [
            Layer([of[layer] for of in seconds], [nbytes + cache for cache in caches], alone[0].moves)
            for layer, nbytes in enumerate(layers)
        ]
        held = [fit.holdings[number] for number, fit in enumerate(alone)]
        limits = [None if h.budget is None else h.budget - h.compute - h.workspace for h in held]
        while (found := cheapest(chain, limits)) is not None:
            fit = self.measured(reader, on(self.devices, found[1]))
            if not any(each.missing for each in fit.holdings):
                fits = sorted([fit, *self._other_ways(reader)], key=_seconds)
                tried = {str(each.placement): _seconds(each) for each in (*fits, *alone)}
                return replace(fits[0], compared=tuple(tried.items()))
            # What devices hold besides the layers is not known before: this placement is left out, and the next may
            # hold less.
            for number, each in enumerate(fit.holdings):
                if each.missing:
                    mine = (layer for layer, at in zip(chain, found[1], strict=True) if at == number)
                    limits[number] = sum(layer.nbytes[number] for layer in mine) - 1
        return self.fitted(reader, None)

    def fitted(self, reader: GGUFReader, placement: Placement | Rule | Chooses | None) -> Fit:
        """The first placement that fits.  Raises OutOfMemoryError."""
        if placement is not None:
            found = self.measured(reader, Placement.of(placement))
            over = next((number for number, each in enumerate(found.holdings) if each.missing), None)
            if over is None:
                return found
            raise too_large(found.holdings, over)
        last: OutOfMemoryError | None = None
        for units, rules in self._ways(reader):
            try:
                return self._distributed(reader, units, rules)
            except OutOfMemoryError as error:
                last = error
        assert last is not None
        raise last

    def _other_ways(self, reader: GGUFReader) -> Iterator[Fit]:
        """The placements that fit and are not by layers."""
        *others, _ = self._ways(reader)
        for units, rules in others:
            with contextlib.suppress(OutOfMemoryError):
                yield self._distributed(reader, units, rules)

    def _distributed(self, reader: GGUFReader, units: Sequence[int], rules: _Rules) -> Fit:
        """The placement that fits with as few units on later devices as possible.  Raises OutOfMemoryError."""
        tried: dict[tuple[int, ...], Fit] = {}

        def measure(counts: Sequence[int]) -> list[Holding]:
            found = tried[tuple(counts)] = self.measured(reader, rules(counts))
            return list(found.holdings)

        counts, _ = distribute(units, len(self.devices), measure)
        return tried[tuple(counts)]

    def _ways(self, reader: GGUFReader) -> Iterator[tuple[list[int], _Rules]]:
        """The ways to place weights, layers last: the bytes of what can be moved to the next device, and the rules."""
        experts, layers = _units(reader)
        if any(experts) and len(self.devices) == 2 and self.devices[-1].buffer_type.is_host:
            yield experts, self._experts
        yield layers, self._layers

    def _experts(self, counts: Sequence[int]) -> Placement:
        return Placement(*([ExpertsOn(self.devices[-1].name, counts[-1])] if counts[-1] else []))

    def _layers(self, counts: Sequence[int]) -> Placement:
        return Placement(*([LayerSplit(counts)] if any(counts[1:]) else []))

    def measured(self, reader: GGUFReader, placement: Placement) -> Fit:
        """What the devices will hold with a placement, whether or not that fits."""
        devices, rules = placement.combined(self.devices)
        decided = decide(reader, devices, rules, pack=self.pack, pack_growth=self.pack_growth)
        weights = planned(reader, decided.where)
        held: Counter[tuple[Device, str]] = Counter()
        for buffer in weights.context.buffers:
            nbytes = weights.mapped.get(buffer, buffer.size)
            for device, kind, share in shares(buffer.type, nbytes):
                what = "mapped" if buffer in weights.mapped else "packed" if kind.has_own_layout else "weights"
                held[device, what] += share
        with weights.context, decided.model(weights.context, reader.metadata, devices) as model:
            model.n_copies = self.n_copies
            n_ctx, cache, needed, times, moves = self._computed(model)
        holdings = [
            Holding(
                device,
                **{kind: held[device, kind] for kind in ("weights", "packed", "mapped")},
                cache=cache[device],
                compute=sum(each.compute for each in _of(needed, device)),
                workspace=sum(each.workspace for each in _of(needed, device)),
                budget=self.budgets[device],
            )
            for device in self.devices
        ]
        about = n_ctx, self.n_seq, self.cache_type
        return Fit(placement, tuple(holdings), *about, decided.placement, times, moves)

    def _computed(self, model: Model) -> _Computed:
        """What the model's largest steps need."""
        if isinstance(model, Decoder):
            with Session(model, self.n_ctx, self.n_seq, self.cache_type, self.micro_batch, planned=True) as session:
                first, *others = session.largest()
                counts = [0] * (len(others) - 1) + [self.micro_batch] if others else []
                steps = [(first, 1), *zip(others, counts, strict=True)]
                return self._steps(model, steps, session.n_ctx, session.memory.held(), session.n_copies)
        if isinstance(model, Encoder):
            n_ctx = model.n_ctx if self.n_ctx is None else whole("n_ctx", self.n_ctx, 1, model.n_ctx)
            with model.locked():
                steps = [(model.build(*shape).graph, 1) for shape in model.largest(self.n_seq, n_ctx)]
                return self._steps(model, steps, n_ctx, Counter(), model.copies(model.devices_of_blocks))
        graph = model.sample()
        return self._steps(model, [] if graph is None else [(graph, 1)], 0, Counter())

    def _steps(
        self,
        model: Model,
        steps: Sequence[tuple[Graph, int]],
        n_ctx: int,
        cache: Mapping[Device, int],
        n_copies: int = 1,
    ) -> _Computed:
        """What steps need; with each the number of times that it counts in the predicted time.

        ``n_copies``: how many are computed at the same time, each in memory of its own.
        """
        scheduler = model.scheduler
        needed = {
            device: Needed(n_copies * each.compute, n_copies * each.workspace)
            for device, each in scheduler.needed([graph for graph, _ in steps]).items()
        }
        if self.costs is None or not steps or not self.costs.ready(scheduler.backends, scheduler.buffer_types):
            return _Computed(n_ctx, cache, needed)
        steps = [(graph, count) for graph, count in steps if count]
        for graph, _ in steps:
            scheduler.measure(graph, self.costs)
        times = times_of(scheduler, steps, model.hyperparameters.integer("block_count", 1), self.costs)
        return _Computed(n_ctx, cache, needed, times, moves(scheduler, times.passed, self.costs))

    def smaller(self, reader: GGUFReader, placement: Placement | Rule | Chooses | None) -> Iterator[str]:
        """What would fit, in words: without the placement, with a smaller type of the cache, with a shorter context."""
        if placement is not None and (found := self._fits(reader, None)):
            yield f"the placement {found.placement} fits"
        combined = isinstance(placement, Placement) and placement.split_mode == TENSOR
        if not combined and not any(device.buffer_type.is_host for device in self.devices):
            for cpu in gg.devices_by_kind(DeviceKind.CPU)[:1]:
                budgets = {**self.budgets, cpu: cpu.memory().free}
                if found := replace(self, devices=[*self.devices, cpu], budgets=budgets)._fits(reader, None):
                    yield f"with the device {cpu.name} too, the placement {found.placement} fits"
        if not self._holds_weights(reader):
            return
        for cache_type in CACHE_TYPES[CACHE_TYPES.index(self.cache_type) + 1 :]:
            if replace(self, cache_type=cache_type)._fits(reader, placement):
                yield f"a cache of {cache_type} fits"
                break
        shortest = replace(self, n_ctx=LEAST_CONTEXT)._fits(reader, placement)
        if shortest is None:
            return
        n_ctx = self.measured(reader, Placement.of(placement)).n_ctx // 2
        while n_ctx > LEAST_CONTEXT and not replace(self, n_ctx=n_ctx)._fits(reader, placement):
            n_ctx //= 2
        if n_ctx >= LEAST_CONTEXT:
            yield f"a context of {n_ctx} tokens fits"

    def _holds_weights(self, reader: GGUFReader) -> bool:
        """Whether all budgets together are as large as the weights."""
        budgets = list(self.budgets.values())
        return None in budgets or sum(each.nbytes for each in reader.tensors.values()) <= sum(filter(None, budgets))

    def _fits(self, reader: GGUFReader, placement: Placement | Rule | Chooses | None) -> Fit | None:
        """The placement that fits, or None if none does, or if the model cannot have such a cache or context."""
        try:
            return self.fitted(reader, placement)
        except (OutOfMemoryError, ParameterError):
            return None


def _of(needed: Mapping[Device, Needed], device: Device) -> Iterator[Needed]:
    """What a device needs for what it computes alone, and as a member of a combined device."""
    for each, what in needed.items():
        if each is device or (isinstance(each, CombinedDevice) and device in each.members):
            yield what


class _Computed(NamedTuple):
    """The context length; the cache and what the largest graphs need, by device; and the predicted times."""

    n_ctx: int
    cache: Mapping[Device, int]
    needed: Mapping[Device, Needed]
    times: Times | None = None
    moves: Sequence[Sequence[float]] = ()


def _units(reader: GGUFReader) -> tuple[list[int], list[int]]:
    """The bytes of each layer's experts, and those of all its weights; the last layer's with what follows it."""
    tensors = reader.tensors.values()
    n_layer = max((layer_of(info.name) or 0 for info in tensors), default=0) + 1
    experts, layers = [0] * n_layer, [0] * n_layer
    for info in tensors:
        layer = layer_of(info.name)
        if layer is not None:
            experts[layer] += info.nbytes if is_expert(info.name) else 0
        elif is_after_layers(info.name):
            layer = n_layer - 1
        if layer is not None:
            layers[layer] += info.nbytes
    return experts, layers


def _seconds(fit: Fit) -> float:
    """The predicted time."""
    return math.inf if fit.times is None else fit.times.total


_Rules = Callable[[Sequence[int]], Placement]
"""The placement for numbers of units, by device."""


class Capacity:
    """What devices can hold: a :class:`.Judge` of the files of a named model."""

    def __init__(self, devices: Sequence[Device | str] | None) -> None:
        self._given = devices

    @cached_property
    def _devices(self) -> list[Device]:
        return chosen_devices(self._given)

    @property
    def names(self) -> str:
        return " and ".join(device.name for device in self._devices)

    def holds(self, nbytes: int, path: Callable[[], Path]) -> bool:
        free = [device.memory().free for device in self._devices]
        if None not in free and nbytes > sum(filter(None, free)):
            return False
        try:
            fit(path(), self._devices)
        except OutOfMemoryError:
            return False
        return True
