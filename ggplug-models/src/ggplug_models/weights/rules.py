"""The rules of a placement: by names of tensors, by layers, for experts, for the KV cache.

A rule names a device and says which tensors it is for.  Its text is that of the command line's option:
``--place PATTERN=DEVICE``, ``--experts-on DEVICE``, ``--layers-on DEVICE=LAYERS``, ``--cache-on DEVICE``, ``--split``.
:mod:`.placement` applies the rules to the tensors of a model.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import ClassVar, Self

from ggplug.backend import Device
from ggplug.errors import ParameterError
from ggplug_models.metadata.values import short, short_repr

Chooses = Callable[[str, Sequence[Device]], Device]
"""A function that chooses the device of a weight: ``chooses(tensor_name, devices)``."""

CACHE = "cache"
"""``cache.3`` is the name of what a session keeps for block 3, its keys and values or its state, for rules."""

_LAYER = re.compile(r"(?:(?:enc\.)?blk|cache)\.(\d+)(?:\.|$)")
_AFTER_THE_LAYERS = re.compile(r"(?:enc\.)?output|cls|pooler")
_EXPERTS = re.compile(r"\.ffn_\w+_(?:ch)?exps\.")


def layer_of(name: str) -> int | None:
    """The number of the layer that a tensor belongs to; None: to no layer."""
    found = _LAYER.match(name)
    return int(found[1]) if found else None


def is_after_layers(name: str) -> bool:
    """Whether a weight is used after the last layer."""
    return _AFTER_THE_LAYERS.match(name) is not None


def is_expert(name: str) -> bool:
    """Whether a weight belongs to experts, of which each token uses a few."""
    return _EXPERTS.search(name) is not None


class Rule(ABC):
    """Chooses a device for some of a model's tensors, by their names."""

    option: ClassVar[str]

    @abstractmethod
    def applied(self, n_layer: int, devices: Sequence[Device]) -> Callable[[str], Device | None]:
        """The function from a tensor's name to its device; None: the rule is not for this tensor.

        Raises ParameterError for a rule that does not fit the model or the devices.
        """

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self:
        """The rule that the value of the command line's option describes.  Raises ParameterError."""

    @property
    def label(self) -> str:
        """The rule as an option of the command line."""
        return f"{self.option} {self}"


class _OnDevice(Rule):
    """A rule for one device, and for some layers: a number means that many of the last ones; None means all.

    ``layers`` may also be a text, such as ``20`` for the last twenty, or ``0-3,7`` for those with these numbers.
    """

    needs_layers: ClassVar[bool] = False

    def __init__(self, device: Device | str, layers: int | str | None = None) -> None:
        self.device = device
        self.layers = layers
        self._ranges = None if layers is None else _ranges(self, layers)
        if layers is None and self.needs_layers:
            raise _refused(self, self, "layers are missing")

    @classmethod
    def parse(cls, text: str) -> Self:
        name, equals, layers = text.strip().partition("=")
        return cls(name.strip(), layers.strip() if equals else None)

    def has(self, layer: int, n_layer: int) -> bool:
        """Whether the rule is for this layer of ``n_layer``."""
        if self._ranges is None:
            return True
        if isinstance(self._ranges, int):
            return layer >= n_layer - self._ranges
        return any(first <= layer <= last for first, last in self._ranges)

    def applied(self, n_layer: int, devices: Sequence[Device]) -> Callable[[str], Device | None]:
        device = _named(self, self.device, devices)

        def place(name: str) -> Device | None:
            layer = layer_of(name)
            if not self.is_for(name):
                return None
            if layer is None:
                return device if self.has(n_layer, n_layer) else None
            return device if self.has(min(layer, n_layer - 1), n_layer) else None

        return place

    @abstractmethod
    def is_for(self, name: str) -> bool:
        """Whether the rule is for the tensor, if it is for its layer."""

    def __str__(self) -> str:
        return _name(self.device) + ("" if self.layers is None else f"={self.layers}")

    def __repr__(self) -> str:
        layers = "" if self.layers is None else f", {self.layers!r}"
        return f"{type(self).__name__}({_name(self.device)!r}{layers})"


class LayersOn(_OnDevice):
    """Layers on a device: the last ``layers`` with all that follows them (llama.cpp's ``-ngl``), or a text of numbers.

    The other layers lie on the first device that no such rule names.
    """

    option = "--layers-on"
    needs_layers = True

    def is_for(self, name: str) -> bool:
        return name.startswith(("blk.", "enc.blk.")) or (is_after_layers(name) and isinstance(self._ranges, int))


class ExpertsOn(_OnDevice):
    """The weights of experts on a device, of all layers or of some; what is small, and read for each token, is not."""

    option = "--experts-on"

    def is_for(self, name: str) -> bool:
        return is_expert(name)


class CacheOn(_OnDevice):
    """The KV cache, or the recurrent state, on a device, which then also computes attention.

    By default each block's lies on the device of the block.
    """

    option = "--cache-on"

    def is_for(self, name: str) -> bool:
        return name.startswith(f"{CACHE}.")


class Place(Rule):
    """The tensors whose names match a regular expression, anywhere in the name, on a device (llama.cpp's ``-ot``).

    ``cache.3`` is the name of what a session keeps for block 3.  Raises ParameterError for a pattern that is no regular
    expression.
    """

    option = "--place"

    def __init__(self, pattern: str, device: Device | str) -> None:
        self.pattern = pattern
        self.device = device
        try:
            self._search = re.compile(pattern).search
        except (re.error, TypeError, OverflowError, RecursionError) as error:
            raise _refused(self, pattern, f"{short_repr(pattern)} is no regular expression: {error}") from None

    @classmethod
    def parse(cls, text: str) -> Self:
        pattern, equals, device = text.rpartition("=")
        if not equals or not pattern or not device.strip():
            raise ParameterError(
                f"{cls.option} needs a pattern and a device, got {short_repr(text)}",
                got=text,
                remedy=r"write PATTERN=DEVICE, such as blk\.\d+\.ffn_.*_exps=CPU",
            )
        return cls(pattern, device.strip())

    def applied(self, n_layer: int, devices: Sequence[Device]) -> Callable[[str], Device | None]:
        device = _named(self, self.device, devices)
        return lambda name: device if self._search(name) else None

    def __str__(self) -> str:
        return f"{self.pattern}={_name(self.device)}"

    def __repr__(self) -> str:
        return f"Place({self.pattern!r}, {_name(self.device)!r})"


class LayerSplit(Rule):
    """A rule that distributes a model's layers over its devices, in their order (llama.cpp's ``--tensor-split``).

    Adjacent layers stay on one device, so that only inputs, and the activations between two devices, are copied.

    ``proportions``: a number for each device, relative to each other: ``[3, 1]`` puts three quarters of the layers on
    the first device.  By default they are equal.  A device with 0 gets nothing; every other one gets at least one
    layer.  Embeddings are with the first layer, output and pooler with the last.

    >>> LayerSplit([24, 8]).layers(n_layer=4, n_devices=2)
    [3, 1]

    Raises ParameterError for proportions that are negative, not finite, not numbers, or all zero.
    """

    option = "--split"
    EVEN = "even"

    def __init__(self, proportions: Sequence[float] | None = None) -> None:
        self.proportions = None if proportions is None else tuple(map(_proportion, proportions))
        if self.proportions is not None and not any(self.proportions):
            raise ParameterError(
                f"the split {short(str(self))} gives no layers to any device",
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
                f"the split {short(str(self))} has {_count(len(self.proportions), 'number')} "
                f"for {_count(n_devices, 'device')}",
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

    def over(self, n_layer: int, n_devices: int) -> Chooses:
        """The function that chooses the devices of a model of ``n_layer`` layers.  Raises ParameterError."""
        ends = list(accumulate(self.layers(n_layer, n_devices)))

        def place(name: str, devices: Sequence[Device]) -> Device:
            layer = layer_of(name)
            if layer is None:
                layer = n_layer - 1 if is_after_layers(name) else 0
            return devices[bisect_right(ends, min(layer, n_layer - 1))]

        return place

    def applied(self, n_layer: int, devices: Sequence[Device]) -> Callable[[str], Device | None]:
        chooses = self.over(n_layer, len(devices))
        return lambda name: None if name.startswith(f"{CACHE}.") else chooses(name, devices)

    def __str__(self) -> str:
        return self.EVEN if self.proportions is None else ",".join(f"{each:g}" for each in self.proportions)

    def __repr__(self) -> str:
        return f"LayerSplit({'' if self.proportions is None else list(self.proportions)})"


def _proportion(value: float | str) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not (math.isfinite(found) and found >= 0):
        raise ParameterError(
            f"a layer split has numbers of at least 0, got {short_repr(value)}",
            got=value,
            remedy="give one number for each device, such as 2,1; a device with 0 gets no layers",
        )
    return found


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _name(device: Device | str) -> str:
    return device.name if isinstance(device, Device) else str(device)


def _named(rule: Rule, device: Device | str, devices: Sequence[Device]) -> Device:
    """The device that a rule names, of those that the model uses.  Raises ParameterError."""
    for each in devices:
        if each is device or each.name.casefold() == _name(device).casefold():
            return each
    known = ", ".join(each.name for each in devices)
    raise ParameterError(
        f"{short(rule.label)} names {short_repr(_name(device))}, which is none of the model's devices: {known}",
        got=device,
        wanted=known,
        remedy="name all devices of the model, the preferred one first",
    )


def _ranges(rule: Rule, layers: int | str) -> int | list[tuple[int, int]]:
    """How many of the last layers, or the first and last numbers of ranges.  Raises ParameterError."""
    text = str(layers).strip()
    if re.fullmatch(r"0*[1-9]\d{0,8}", text) and not isinstance(layers, bool):
        return int(text)
    found = []
    for part in text.split(","):
        numbers = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
        if text == "0" or numbers is None or int(numbers[2] or numbers[1]) < int(numbers[1]):
            raise _refused(rule, layers, f"{short_repr(layers)} are no layers")
        found.append((int(numbers[1]), int(numbers[2] or numbers[1])))
    return found


def _refused(rule: Rule, got: object, why: str) -> ParameterError:
    remedy = "give a number for that many of the last layers, or numbers of layers such as 0-3,7"
    return ParameterError(f"{rule.option}: {why}", got=got, remedy=None if isinstance(rule, Place) else remedy)
