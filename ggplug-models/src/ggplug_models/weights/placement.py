"""Chooses the device that stores each weight and each block's cache; a node is computed on the device of its weights.

A :class:`Placement` is a list of rules (:mod:`.rules`).  Of the rules that are for a tensor the first one decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ggplug.backend import Device
from ggplug.combined import CombinedDevice
from ggplug.errors import ParameterError
from ggplug_models.checks.arguments import check_callable
from ggplug_models.metadata.values import short, short_repr
from ggplug_models.weights.rules import (
    CACHE,
    CacheOn,
    Chooses,
    ExpertsOn,
    LayersOn,
    LayerSplit,
    Place,
    Rule,
    layer_of,
)

LAYER, TENSOR = "layer", "tensor"
"""The split modes: each weight on one device, or a part of it on each device."""

SPLIT_MODE = "--split-mode"
"""The option of the command line for the split mode."""

WANTED = "a function that is called with a tensor's name and the devices and returns one of them"


def alternating(name: str, devices: Sequence[Device]) -> Device:
    """A placement that alternates between two devices, and so makes many copies, for tests of devices and schedulers.

    The first device has the layers with even numbers, the second all other weights.
    """
    layer = layer_of(name)
    return devices[(1 if layer is None else layer) % min(2, len(devices))]


class Placement:
    """Rules that choose the device of each weight, and of the cache of each block.

    ``rules``: of those that are for a tensor, the first one decides; a function ``(tensor_name, devices)`` may be one,
    and decides all that rules before it leave.  Weights that no rule is for lie on the first device, or, with
    :class:`LayersOn`, on the first one that no such rule names.  A block's cache lies on the device of its weights.

    >>> Placement(Place(r"ffn_.*_exps", "CPU"), LayersOn("OpenCL0", 20))
    Placement(Place('ffn_.*_exps', 'CPU'), LayersOn('OpenCL0', 20))

    ``split_mode``: ``"layer"`` places each weight on one device.  ``"tensor"`` combines the devices to one that
    computes with all of them at once (:class:`ggplug.combined.CombinedDevice`); the only rule is then a
    :class:`LayerSplit`, whose proportions are those of each weight.

    Raises ParameterError for what is no rule, and for another mode.
    """

    def __init__(self, *rules: Rule | Chooses, split_mode: str = LAYER) -> None:
        if split_mode not in (LAYER, TENSOR):
            raise ParameterError(
                f"the split mode is {LAYER!r} or {TENSOR!r}, not {short_repr(split_mode)}", got=split_mode
            )
        self.split_mode = split_mode
        for rule in rules:
            if not isinstance(rule, Rule):
                check_callable("placement", rule, f"{WANTED}, a Placement, or a LayerSplit")
        self.rules = rules

    @classmethod
    def of(cls, placement: Placement | Rule | Chooses | None, split_mode: str | None = None) -> Placement:
        """A placement of what ``load`` accepts: a placement, one rule, a function, or None for no rules.

        ``split_mode``: None: that of the placement.
        """
        if isinstance(placement, Placement):
            return placement if split_mode is None else cls(*placement.rules, split_mode=split_mode)
        return cls(*(() if placement is None else (placement,)), split_mode=split_mode or LAYER)

    @classmethod
    def parse(cls, options: Iterable[tuple[str, str]]) -> Placement:
        """The placement of options of the command line and their values: ``[("--experts-on", "CPU")]``.

        Raises ParameterError.
        """
        kinds: tuple[type[Rule], ...] = (Place, CacheOn, ExpertsOn, LayersOn, LayerSplit)
        of = {kind.option: kind for kind in kinds}
        given = list(options)
        for each in given:
            if not isinstance(each, tuple) or len(each) != 2 or each[0] not in {*of, SPLIT_MODE}:
                raise ParameterError(
                    f"{each!r:.100} is no option that places weights, with its value",
                    got=each,
                    wanted=(*of, SPLIT_MODE),
                    remedy='write pairs such as ("--experts-on", "CPU")',
                )
        modes = [text for option, text in given if option == SPLIT_MODE]
        rules = (of[option].parse(text) for option, text in given if option != SPLIT_MODE)
        return cls(*rules, split_mode=modes[-1] if modes else LAYER)

    def combined(self, devices: Sequence[Device]) -> tuple[Sequence[Device], Placement]:
        """The devices of a model, and the placement on them.

        With the mode ``"tensor"`` the first one is the combined device; the others compute what it declines.  Raises
        ParameterError for other rules than one :class:`LayerSplit`, and for fewer than two devices.
        """
        if self.split_mode == LAYER:
            return devices, self
        split = self.rules[0] if self.rules else LayerSplit()
        if len(self.rules) > 1 or not isinstance(split, LayerSplit):
            raise ParameterError(
                f"{SPLIT_MODE} {TENSOR} splits all weights, so it can be combined only with {LayerSplit.option}, not "
                f"with {' '.join(map(_label, self.rules))}",
                got=self.rules,
            )
        proportions = split.proportions or (1.0,) * len(devices)
        if len(proportions) != len(devices):
            raise ParameterError(
                f"the split {split} has {counted(len(proportions), 'number')} for {counted(len(devices), 'device')}",
                got=proportions,
                wanted=len(devices),
            )
        members = [(device, each) for device, each in zip(devices, proportions, strict=True) if each]
        if len(members) < 2:
            raise ParameterError(
                f"{SPLIT_MODE} {TENSOR} needs at least two devices with a part of the weights, got "
                f"{', '.join(device.name for device, _ in members)}",
                got=devices,
                remedy="name each of them with --device; those that the split gives 0 do not count",
            )
        device = CombinedDevice([member for member, _ in members], [each for _, each in members])
        # The last device should support every op.
        return [device, *sorted(devices, key=lambda each: each.buffer_type.is_host)], Placement()

    def over(self, weights: Mapping[str, int], n_layer: int, devices: Sequence[Device], *, caches: bool) -> Placed:
        """The decisions for a model's tensors.

        ``weights``: their bytes by name.  ``caches``: whether sessions keep something for the blocks.  Raises
        ParameterError for a rule that decides nothing, or that does not fit the model or the devices.
        """
        rules = [_applied(rule, n_layer, devices) for rule in self.rules]
        named = {_named(rule) for rule in self.rules if isinstance(rule, LayersOn)}
        other = next((each for each in devices if each.name.casefold() not in named), devices[0])
        used = set()
        found: dict[str, Decision] = {}
        for name in (*weights, *(f"{CACHE}.{number}" for number in range(n_layer if caches else 0))):
            for number, (label, place) in enumerate(rules):
                device = place(name)
                if device is not None:
                    used.add(number)
                    found[name] = Decision(label, device)
                    break
            else:
                if name in weights:
                    found[name] = Decision("otherwise", other)
        for number, rule in enumerate(self.rules):
            if isinstance(rule, Rule) and number not in used:
                raise _unused(rule, rules[number][1], weights, found)
        return Placed(found, weights)

    @property
    def options(self) -> list[str]:
        """The options of the command line that say the same, as words."""
        mode = [] if self.split_mode == LAYER else [SPLIT_MODE, self.split_mode]
        return [*mode, *(text for rule in self.rules for text in _label(rule).split(" ", 1))]

    def __str__(self) -> str:
        return " ".join(self.options) or "all weights on the first device"

    def __repr__(self) -> str:
        mode = [] if self.split_mode == LAYER else [f"split_mode={self.split_mode!r}"]
        return f"Placement({', '.join([*map(repr, self.rules), *mode])})"


class Decision(NamedTuple):
    """The device of a tensor, and the rule that chose it."""

    rule: str
    device: Device


class Placed:
    """The device of each tensor of a model, and the rule that chose it.  Printing it gives a line for each rule."""

    def __init__(self, decisions: Mapping[str, Decision], nbytes: Mapping[str, int]) -> None:
        self.decisions = decisions
        self._nbytes = nbytes

    def __call__(self, name: str) -> Device:
        """The device of a weight, by name."""
        return self.decisions[name].device

    def cache(self, block: int) -> Device | None:
        """The device that a rule chose for the cache of a block; None: that of the block's weights."""
        found = self.decisions.get(f"{CACHE}.{block}")
        return None if found is None else found.device

    def __str__(self) -> str:
        names: dict[Decision, list[str]] = {}
        for name, decision in self.decisions.items():
            names.setdefault(decision, []).append(name)
        return "\n".join(f"{rule}: {self._described(each)} on {device.name}" for (rule, device), each in names.items())

    def _described(self, names: Sequence[str]) -> str:
        """The numbers of weights and caches, their layers, and the bytes of the weights."""
        weights = [name for name in names if name in self._nbytes]
        what = []
        if weights:
            what.append(f"{counted(len(weights), 'weight')}, {sum(map(self._nbytes.__getitem__, weights))} bytes")
        if len(weights) < len(names):
            what.append(counted(len(names) - len(weights), "cache"))
        layers = ranges({layer for name in names if (layer := layer_of(name)) is not None})
        return " and ".join(what) + ("" if layers == NONE else f", of layers {layers},")


NONE = "none"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges, in order: ``0-2, 5``; ``none`` if there are none."""
    held = sorted(numbers)
    parts = np.split(held, np.flatnonzero(np.diff(held) > 1) + 1) if held else []
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts) or NONE


def counted(number: int, noun: str) -> str:
    """``1 layer``, ``2 layers``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _label(rule: Rule | Chooses) -> str:
    return rule.label if isinstance(rule, Rule) else "the function"


def _named(rule: LayersOn) -> str:
    return (rule.device.name if isinstance(rule.device, Device) else rule.device).casefold()


def _applied(
    rule: Rule | Chooses, n_layer: int, devices: Sequence[Device]
) -> tuple[str, Callable[[str], Device | None]]:
    """The text of a rule, and the function from a tensor's name to the device that the rule chooses."""
    if isinstance(rule, Rule):
        return rule.label, rule.applied(n_layer, devices)

    def place(name: str) -> Device | None:
        if name.startswith(f"{CACHE}."):
            return None
        found = rule(name, devices)
        if not any(found is each for each in devices):
            raise ParameterError(
                f"placement must be {WANTED}; for {name!r} it returned {short_repr(found)}",
                got=found,
                wanted=Device,
                remedy=f"return one of devices: {', '.join(device.name for device in devices)}",
            )
        return found

    return _label(rule), place


def _unused(
    rule: Rule, place: Callable[[str], Device | None], weights: Mapping[str, int], found: Mapping[str, Decision]
) -> ParameterError:
    """The error for a rule that decides nothing."""
    before = {decision.rule for name, decision in found.items() if place(name) is not None}
    if before:
        why, remedy = (
            f"{', '.join(map(short, sorted(before)))} decided about all its tensors",
            "name the rules in another order",
        )
    else:
        from difflib import get_close_matches

        wanted = re.sub(r"\\d[+*]?", "0", str(rule)).replace("\\", "").replace(".*", "")
        near = get_close_matches(wanted.rpartition("=")[0], list(weights), 3, 0.3)
        why = "no tensor of the model matches" + (f"; similar names are {', '.join(near)}" if near else "")
        remedy = "ggplug gguf lists the names of a file's tensors"
    return ParameterError(f"{short(rule.label)} decides nothing: {why}", got=rule, remedy=remedy)
