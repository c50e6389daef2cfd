"""Devices with one fault each, as real ones have had.  The suite is worth as much as it finds of these.

``FAULTS`` lists what somebody made by hand: devices that were written with a fault, and the changes of source in
``data/byhand.txt``.  :func:`.trial.every_fault` adds the mechanical changes of :mod:`.subject`, a device that conforms,
and of the kit under it.  All of them together are what ``python -m tests.mutation.score`` puts the suite to.
"""

from __future__ import annotations

from tests.mutation import groups, kernels, memory, streams  # noqa: F401  # which list what is written in them
from tests.mutation.fault import WRITTEN, Fault
from tests.mutation.lists import by_hand

FAULTS: tuple[Fault, ...] = (*WRITTEN, *by_hand())
"""All that were made by hand."""
