"""A runtime for programs on GPUs over a vendor's driver, and a library of programs in one C dialect.

A vendor package provides a :class:`Driver` and its :class:`Queue`, names the :class:`Library` that its compiler reads,
and lists its :class:`SimtDevice` objects in a :class:`SimtRegistration`.
"""

from ggplug_simt.device import SimtDevice
from ggplug_simt.driver import Binding, Compiled, Dispatch, Driver, Failure, LaunchSequence, Queue
from ggplug_simt.library import Launch, Launches, Library, TensorArgument, VendorProgram
from ggplug_simt.memory import SimtBuffer, SimtBufferType, SimtHostBufferType
from ggplug_simt.plan import SimtPlan
from ggplug_simt.properties import Properties
from ggplug_simt.registration import SimtRegistration
from ggplug_simt.stepwise import Bound, StepwiseQueue
from ggplug_simt.stream import SimtBackend, SimtEvent

__all__ = [
    "Binding",
    "Bound",
    "Compiled",
    "Dispatch",
    "Driver",
    "Failure",
    "Launch",
    "LaunchSequence",
    "Launches",
    "Library",
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
    "StepwiseQueue",
    "TensorArgument",
    "VendorProgram",
]
