"""A discrete device that exists only in this process: for testing schedulers, allocators and models without hardware.

Its memory cannot be addressed by the host, so every byte has to be transferred, and each transfer is counted.  It can
run its work late, on another thread, or in any order that the contract allows; it can fail on the nth call and run
out of memory.  It computes with the ops' references, or with the kernels of a host device.
"""

from ggplug_testing.fake.acting import Activity, Kind, Total
from ggplug_testing.fake.device import FakeDevice, FakeRegistration
from ggplug_testing.fake.memory import POISON, FakeBuffer, FakeBufferType
from ggplug_testing.fake.queue import WorkQueue
from ggplug_testing.fake.stream import FakeBackend, FakeEvent, FakePlan

__all__ = [
    "POISON",
    "Activity",
    "FakeBackend",
    "FakeBuffer",
    "FakeBufferType",
    "FakeDevice",
    "FakeEvent",
    "FakePlan",
    "FakeRegistration",
    "Kind",
    "Total",
    "WorkQueue",
]
