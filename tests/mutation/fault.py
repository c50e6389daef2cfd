"""A fault, and the device that has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ggplug.backend import Device
from tests.mutation.seeding import Seed, seeded


class Fault(NamedTuple):
    """A fault: ``make`` gives a device that has it while the block of :meth:`device` lasts.

    ``found_by``: ops, clauses, ``"graph"`` or ``"groups"``, each of which finds it.  ``seeds``: what is changed in the
    source of the device.  ``missed``: why the suite does not find it, if it does not.
    """

    name: str
    make: Callable[[], Device]
    found_by: tuple[str, ...]
    seeds: tuple[Seed, ...] = ()
    missed: str = ""

    @contextmanager
    def device(self) -> Iterator[Device]:
        """A device that has the fault."""
        with seeded(*self.seeds):
            yield self.make()
