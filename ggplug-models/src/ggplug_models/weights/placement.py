"""Chooses the device that stores each weight; the scheduler computes a node on the device of its weights.

A split by layers (llama.cpp's ``--tensor-split`` with ``--split-mode layer``) keeps adjacent layers on one device, so
that only inputs, and the activations between two devices, are copied.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from ggplug.backend import Device
from ggplug.errors import ParameterError
from ggplug_models.checks.arguments import check_callable
from ggplug_models.metadata.values import short_repr

Placement = Callable[[str, Sequence[Device]], Device]
"""Chooses a device for a weight: ``placement(tensor_name, devices)``."""

WANTED = "a function that is called with a tensor's name and the devices and returns one of them"

_LAYER = re.compile(r"blk\.(\d+)\.")
_AFTER_THE_LAYERS = re.compile(r"output|cls|pooler")


def first(name: str, devices: Sequence[Device]) -> Device:
    """The placement of all weights on the first device."""
    return devices[0]


def over(placement: Placement, devices: Sequence[Device]) -> Callable[[str], Device]:
    """The function that returns the device of a weight by its name, from ``placement`` and these devices.

    Raises ParameterError if ``placement`` is not callable.  The function raises it if ``placement`` returns no device.
    """
    check_callable("placement", placement, f"{WANTED}, or a LayerSplit")

    def place(name: str) -> Device:
        found = placement(name, devices)
        if not isinstance(found, Device):
            raise ParameterError(
                f"placement must be {WANTED}; for {name!r} it returned {short_repr(found)}",
                got=found,
                wanted=Device,
                remedy=f"return one of devices: {', '.join(device.name for device in devices)}",
            )
        return found

    return place


def alternating(name: str, devices: Sequence[Device]) -> Device:
    """A placement that alternates between two devices, and so makes many copies, for tests of devices and schedulers.

    The first device has the layers with even numbers, the second all other weights.
    """
    found = _LAYER.match(name)
    return devices[(int(found[1]) if found else 1) % min(2, len(devices))]


class LayerSplit:
    """A placement that distributes a model's layers over its devices, in their order.

    ``proportions``: a number for each device, relative to each other: ``[3, 1]`` puts three quarters of the layers on
    the first device.  By default they are equal.  A device with 0 gets nothing; every other one gets at least one
    layer.  Embeddings are with the first layer, output and pooler with the last.

    >>> LayerSplit([24, 8]).layers(n_layer=4, n_devices=2)
    [3, 1]

    Raises ParameterError for proportions that are negative, not finite, not numbers, or all zero.
    """

    EVEN = "even"

    def __init__(self, proportions: Sequence[float] | None = None) -> None:
        self.proportions = None if proportions is None else tuple(map(_proportion, proportions))
        if self.proportions is not None and not any(self.proportions):
            raise ParameterError(
                f"the split {self} gives no layers to any device",
                got=self.proportions,
                remedy="give at least one device a positive number",
            )

    @property
    def shares(self) -> tuple[float, ...] | None:
        """The former name of ``proportions``."""
        return self.proportions

    @classmethod
    def parse(cls, text: str) -> LayerSplit:
        """The split that a text describes: ``"even"``, or proportions such as ``"2,1"``.  Raises ParameterError."""
        return cls() if text.strip().lower() == cls.EVEN else cls([_proportion(part) for part in text.split(",")])

    def layers(self, n_layer: int, n_devices: int) -> list[int]:
        """The number of layers of each device.

        Raises ParameterError if the numbers of proportions and of devices differ, or if there are fewer layers than
        devices that get some.
        """
        if self.proportions is not None and len(self.proportions) != n_devices:
            raise ParameterError(
                f"the split {self} has {_count(len(self.proportions), 'number')} for {_count(n_devices, 'device')}",
                got=len(self.proportions),
                wanted=n_devices,
                remedy=f"give one number for each device, or {self.EVEN!r}",
            )
        proportions = self.proportions if self.proportions is not None else (1.0,) * n_devices
        waiting = sum(each > 0 for each in proportions)
        if waiting > n_layer:
            raise ParameterError(
                f"{_count(n_layer, 'layer')} cannot be split between {waiting} devices",
                got=waiting,
                wanted=n_layer,
                remedy="use fewer devices, or give some of them the number 0",
            )
        largest = max(proportions)
        total = math.fsum(each / largest for each in proportions)
        counts, begin, so_far = [], 0, 0.0
        for each in proportions:
            end = begin
            if each > 0:
                # The boundary follows from the proportions, but leaves a layer for each device that has none yet.
                waiting -= 1
                so_far += each / largest
                end = math.floor(n_layer * so_far / total + 0.5)
                end = min(max(end, begin + 1), n_layer - waiting)
            counts.append(end - begin)
            begin = end
        return counts

    def over(self, n_layer: int, n_devices: int) -> Placement:
        """The placement of a model of ``n_layer`` layers on ``n_devices`` devices.  Raises ParameterError."""
        ends = list(accumulate(self.layers(n_layer, n_devices)))

        def place(name: str, devices: Sequence[Device]) -> Device:
            found = _LAYER.match(name)
            if found is not None:
                layer = min(int(found[1]), n_layer - 1)
            else:
                layer = n_layer - 1 if _AFTER_THE_LAYERS.match(name) else 0
            return devices[bisect_right(ends, layer)]

        return place

    def __str__(self) -> str:
        return self.EVEN if self.proportions is None else ",".join(f"{each:g}" for each in self.proportions)

    def __repr__(self) -> str:
        return f"LayerSplit({'' if self.proportions is None else list(self.proportions)})"


def _proportion(value: float | str) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not (math.isfinite(found) and found >= 0):
        raise ParameterError(
            f"a layer split has numbers of at least 0, got {value!r}",
            got=value,
            remedy="give one number for each device, such as 2,1; a device with 0 gets no layers",
        )
    return found


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
