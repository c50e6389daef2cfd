"""A fault, and the device that has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from ggplug.backend import Device
from tests.mutation.seeding import SUBJECT, Seed, seeded

Part = Literal["kernels", "memory", "streams", "plans", "answers", "groups", "packing"]
PARTS: tuple[Part, ...] = ("kernels", "memory", "streams", "plans", "answers", "groups", "packing")
"""Of a backend, in the order in which they are shown."""

_PART_OF: dict[str, Part] = {
    f"{SUBJECT}.values": "kernels",
    f"{SUBJECT}.formulas": "kernels",
    f"{SUBJECT}.kernels": "kernels",
    f"{SUBJECT}.together": "groups",
    f"{SUBJECT}.panels": "packing",
    f"{SUBJECT}.memory": "memory",
    f"{SUBJECT}.device": "answers",
    f"{SUBJECT}.device SubjectStream": "streams",
    f"{SUBJECT}.device SubjectDevice.take": "memory",
    f"{SUBJECT}.device SubjectDevice.operand": "plans",
    f"{SUBJECT}.device SubjectDevice.array": "plans",
    "ggplug.discrete.queue": "streams",
    "ggplug.discrete.memory": "memory",
    "ggplug.discrete.plan": "plans",
    "ggplug.discrete.device": "streams",
    "ggplug.walking": "plans",
    "ggplug.backend": "answers",
    "ggplug.backend Device.groups": "groups",
    "ggplug.buffers": "packing",
    "ggplug_testing.fake": "streams",
    "ggplug_testing.fusing": "groups",
    "ggplug_testing.packing": "packing",
    "ggplug_testing.reference": "answers",
    "tests.mutation.kernels": "kernels",
    "tests.mutation.groups": "groups",
    "tests.mutation.memory": "memory",
    "tests.mutation.streams": "streams",
}
"""By module, and by what functions of one begin with."""


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
    def part(self) -> Part:
        """Which part of a backend it is in."""
        places = [f"{seed.module} {seed.function}" for seed in self.seeds] or [type(self.make()).__module__]
        return _PART_OF[max((each for each in _PART_OF if places[0].startswith(each)), key=len)]


WRITTEN: list[Fault] = []
"""The devices that were written with a fault; :func:`written` lists them here."""

T = TypeVar("T")


def written(device: Callable[..., Device]) -> Callable[..., Callable[[T], T]]:
    """Decorators that list ``device(what they decorate)`` as a fault: ``(its name, *what finds it)``."""

    def of(name: str, *found_by: str, **more: Any) -> Callable[[T], T]:
        def listed(what: T) -> T:
            WRITTEN.append(Fault(name, partial(device, what, **more), found_by))
            return what

        return listed

    return of
