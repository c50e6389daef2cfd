"""A fault, and the device that has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ggplug.backend import Device
from tests.mutation.seeding import SUBJECT, Seed, seeded

_DEVICE = f"{SUBJECT}.device"
PARTS: dict[str, tuple[str, ...]] = {
    "kernels": (f"{SUBJECT}.values", f"{SUBJECT}.formulas", f"{SUBJECT}.kernels", "tests.mutation.kernels"),
    "memory": (f"{SUBJECT}.memory", f"{_DEVICE} SubjectDevice.take", "ggplug.discrete.memory", "tests.mutation.memory"),
    "streams": (
        f"{_DEVICE} SubjectStream",
        "ggplug.discrete.queue",
        "ggplug_testing.fake",
        "tests.mutation.streams",
    ),
    "plans": (
        f"{_DEVICE} SubjectDevice.operand",
        f"{_DEVICE} SubjectDevice.array",
        "ggplug.discrete.plan",
        "ggplug.interface.walking",
    ),
    "answers": (_DEVICE, "ggplug.backend", "ggplug_testing.devices.reference"),
    "groups": (
        f"{SUBJECT}.together",
        "ggplug.backend Device.groups",
        "ggplug_testing.devices.fusing",
        "tests.mutation.groups",
    ),
    "packing": (f"{SUBJECT}.panels", "ggplug.values.buffers", "ggplug_testing.devices.packing"),
}
"""Of a backend, in the order in which they are shown, and what begins the module and function of faults in them."""


class Fault(NamedTuple):
    """A fault: ``make`` gives a device that has it while the block of :meth:`device` lasts.

    ``found_by``: ops, clauses, ``"graph"`` or ``"groups"``, each of which finds it.  ``seeds``: what is changed in the
    source of the device.  ``missed``: why the suite does not find it, if it does not.
    """

    name: str
    make: Callable[[], Device]
    found_by: tuple[str, ...] = ()
    seeds: tuple[Seed, ...] = ()
    missed: str = ""

    @contextmanager
    def device(self) -> Iterator[Device]:
        """A device that has the fault."""
        with seeded(*self.seeds):
            yield self.make()

    @property
    def part(self) -> str:
        """Which part of a backend it is in."""
        places = [f"{seed.module} {seed.function}" for seed in self.seeds] or [type(self.make()).__module__]
        fits = [
            (len(each), part) for part, prefixes in PARTS.items() for each in prefixes if places[0].startswith(each)
        ]
        return max(fits)[1]


WRITTEN: list[Fault] = []
"""The devices that were written with a fault; :func:`written` lists them here."""

T = TypeVar("T")


def by_hand(device: Callable[..., Device]) -> Callable[..., Callable[[T], T]]:
    """Decorators that list ``device(what they decorate)`` as a fault: ``(its name, *what finds it)``."""

    def of(name: str, *found_by: str, **more: Any) -> Callable[[T], T]:
        def listed(what: T) -> T:
            WRITTEN.append(Fault(name, partial(device, what, **more), found_by))
            return what

        return listed

    return of
