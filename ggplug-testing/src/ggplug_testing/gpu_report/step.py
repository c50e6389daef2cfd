"""The nouns of a report."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ggplug import registry
from ggplug.backend import Device, Registration
from ggplug.errors import DeviceNotFoundError, DuplicateNameError
from ggplug_simt.device import SimtDevice

if TYPE_CHECKING:
    from ggplug_testing.gpu_report.folder import Folder

Answer: TypeAlias = Mapping[str, Any]
"""What a step found, as plain data that JSON can hold; all keys are optional.

``passed``: how many cases did.  ``failed`` and ``declined``: lists of ``{"case", "reason"}``.  ``figures``: numbers
by names that end with their unit, such as ``milliseconds``.  ``facts``: anything by name.
"""


class Step(NamedTuple):
    """Something to prove or to measure; the name is unique in its part."""

    name: str
    run: Callable[[], Answer]


def _nothing(device: SimtDevice) -> Mapping[str, Any]:
    return {}


def _no_steps(device: SimtDevice) -> Iterable[Step]:
    return ()


@dataclass(frozen=True)
class Door:
    """What a vendor's package provides for a report.

    ``program``: the module that was started; the report starts it again for each part.  ``find(name)``: devices, among
    them the one of that name if one is given; raises GGPlugError if there is none.  ``facts(device)``: what only the
    vendor's package knows.  ``figures(device)``: what its library reaches, to be compared with ours.
    """

    program: str
    find: Callable[[str | None], Sequence[Device]]
    facts: Callable[[SimtDevice], Mapping[str, Any]] = _nothing
    figures: Callable[[SimtDevice], Iterable[Step]] = _no_steps

    def devices(self, name: str | None = None) -> list[SimtDevice]:
        """The devices to report on: all that run the kernels of ggplug_simt, or the one of that name.

        Raises what ``find`` raises, and DeviceNotFoundError if there is none.
        """
        found = [device for device in self.find(name) if name is None or device.name.casefold() == name.casefold()]
        chosen = [device for device in found if isinstance(device, SimtDevice)]
        if not chosen:
            others = f"{name} does not run" if found else f"there is no {name} to run"
            what = "no device runs" if name is None else others
            remedy = "`ggplug doctor` lists what there is"
            raise DeviceNotFoundError(f"{what} the kernels of ggplug_simt", got=name, remedy=remedy)
        return chosen


def registered(registration: Registration) -> Sequence[Device]:
    """The devices of a backend that need not be installed: it is registered by hand.  Raises what listing them does."""
    found = registration.devices()
    with contextlib.suppress(DuplicateNameError):  # it is installed
        registry.register(registration)
    return found


class Subject(NamedTuple):
    """What a part is about."""

    device: SimtDevice
    folder: Folder
    door: Door


def finite(value: float) -> float | None:
    """The number, or None for what JSON cannot hold."""
    return float(value) if math.isfinite(value) else None
