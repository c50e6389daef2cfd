"""Kernels for GPUs in one C dialect, and the device that launches them over a vendor's five primitives.

A vendor package provides a :class:`Driver` and its :class:`Queue`, and a :class:`SimtRegistration` that lists its
:class:`SimtDevice` objects.
"""

from ggplug_simt.device import SimtDevice
from ggplug_simt.driver import Bound, Compiled, Driver, Failure, Queue
from ggplug_simt.memory import SimtBuffer, SimtBufferType, SimtHostBufferType
from ggplug_simt.plan import SimtPlan
from ggplug_simt.profile import Profile, Properties, Tile
from ggplug_simt.registration import SimtRegistration
from ggplug_simt.stream import SimtBackend, SimtEvent

__all__ = [
    "Bound",
    "Compiled",
    "Driver",
    "Failure",
    "Profile",
    "Properties",
    "Queue",
    "SimtBackend",
    "SimtBuffer",
    "SimtBufferType",
    "SimtDevice",
    "SimtEvent",
    "SimtHostBufferType",
    "SimtPlan",
    "SimtRegistration",
    "Tile",
]
