"""Which device each weight of a model goes to; the scheduler then computes where the weights live.

Splitting a model by layers (llama.cpp's ``--tensor-split`` with ``--split-mode layer``) keeps neighbouring layers on
one device, so that only the activations between two of them, and the inputs, are copied.
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
    """The placement of everything on the first device."""
    return devices[0]


def over(placement: Placement, devices: Sequence[Device]) -> Callable[[str], Device]:
    """A placement on these devices, by the name alone.

    Raises ParameterError for what is none and, when it is called, for what it returned if that is no device.
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
    """A placement that copies as much as can be, for proofs of devices and schedulers.

    Even layers go to the first device, odd ones and everything outside of layers to the second, if there is one.
    """
    found = _LAYER.match(name)
    return devices[(int(found[1]) if found else 1) % min(2, len(devices))]


class LayerSplit:
    """A model's layers in consecutive runs, one for each of its devices, in their order.

    ``shares``: a number for each device; only their proportions count, so numbers of layers will do.  By default all
    shares are equal.  A device whose share is 0 gets nothing, every other one at least one layer.  Embeddings go
    with the first layer, output and pooler with the last.

    >>> LayerSplit([24, 8]).layers(n_layer=4, n_devices=2)
    [3, 1]

    Raises ParameterError for shares that are negative, not finite, no numbers, or all zero.
    """

    EVEN = "even"

    def __init__(self, shares: Sequence[float] | None = None) -> None:
        self.shares = None if shares is None else tuple(map(_share, shares))
        if self.shares is not None and not any(self.shares):
            raise ParameterError(
                f"the shares {self} leave every device without layers",
                got=self.shares,
                remedy="give at least one device a positive number",
            )

    @classmethod
    def parse(cls, text: str) -> LayerSplit:
        """From ``"even"``, or one number for each device as in ``"2,1"``.  Raises ParameterError."""
        return cls() if text.strip().lower() == cls.EVEN else cls([_share(part) for part in text.split(",")])

    def layers(self, n_layer: int, n_devices: int) -> list[int]:
        """How many layers each device gets.

        Raises ParameterError if there are not as many shares as devices, or more devices with a share than layers.
        """
        if self.shares is not None and len(self.shares) != n_devices:
            raise ParameterError(
                f"{_count(len(self.shares), 'share')} of the layers ({self}) for {_count(n_devices, 'device')}",
                got=len(self.shares),
                wanted=n_devices,
                remedy=f"give one share for each device, or {self.EVEN!r}",
            )
        shares = self.shares if self.shares is not None else (1.0,) * n_devices
        waiting = sum(share > 0 for share in shares)
        if waiting > n_layer:
            raise ParameterError(
                f"{_count(n_layer, 'layer')} cannot be split between {waiting} devices",
                got=waiting,
                wanted=n_layer,
                remedy="name fewer devices, or give some of them the share 0",
            )
        largest = max(shares)
        total = math.fsum(share / largest for share in shares)
        counts, given, sum_of_shares = [], 0, 0.0
        for share in shares:
            end = given
            if share > 0:
                # The boundary between two devices is where the shares say, as far as all that wait get a layer.
                waiting -= 1
                sum_of_shares += share / largest
                end = math.floor(n_layer * sum_of_shares / total + 0.5)
                end = min(max(end, given + 1), n_layer - waiting)
            counts.append(end - given)
            given = end
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
        return self.EVEN if self.shares is None else ",".join(f"{share:g}" for share in self.shares)

    def __repr__(self) -> str:
        return f"LayerSplit({'' if self.shares is None else list(self.shares)})"


def _share(given: float | str) -> float:
    try:
        share = float(given)
    except (TypeError, ValueError):
        share = math.nan
    if not (math.isfinite(share) and share >= 0):
        raise ParameterError(
            f"{given!r} is no share of a model's layers",
            got=given,
            remedy="give one number for each device, such as 2,1; 0 is no layers",
        )
    return share


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
