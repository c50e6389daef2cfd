"""The device: the parts common to all vendors, over a :class:`~ggplug_simt.driver.Driver` and its library."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from ggplug import ops
from ggplug.backend import (
    UNGROUPED,
    BufferType,
    Capabilities,
    Decline,
    Device,
    Event,
    Group,
    Groups,
    Memory,
    Registration,
    check_parameters,
)
from ggplug.graph import Graph
from ggplug.patterns import Pattern
from ggplug.tensor import Tensor
from ggplug.types import DeviceKind
from ggplug_simt.driver import Driver
from ggplug_simt.library import FAULTS, SCRATCH, Launches
from ggplug_simt.limits import beyond
from ggplug_simt.memory import SimtBufferType, SimtHostBufferType
from ggplug_simt.programs import Programs
from ggplug_simt.runtime import Runtime
from ggplug_simt.stream import SimtBackend, SimtEvent

OFFLOADED = 32
"""Columns from which on copying weights to the device pays (GGML_OP_OFFLOAD_MIN_BATCH of ggml-cuda)."""


class SimtDevice(Device):
    """A device with its own memory, queues and programs.

    Listing devices makes no context: ``open_driver`` makes the driver when it is first needed.  A process that is
    forked after devices were listed cannot use them.
    """

    def __init__(
        self,
        name: str,
        *,
        description: str,
        kind: DeviceKind,
        total_memory: int,
        device_id: str | None = None,
        pinned: bool = False,
        registration: Registration | None = None,
    ) -> None:
        self.name = name
        self.description = description
        self.kind = kind
        self.device_id = device_id
        self.registration = registration
        self.capabilities = Capabilities(asynchronous=True, host_buffer=pinned, events=True)
        self.total_memory = total_memory
        self.runtime = Runtime(self, lambda: self.open_driver(), lambda: self.total_memory)
        self._buffer_type = SimtBufferType(self.runtime)
        self._host_buffer_type = SimtHostBufferType(self.runtime) if pinned else None

    @abstractmethod
    def open_driver(self) -> Driver:
        """The vendor's driver for this device; called once."""

    @property
    def driver(self) -> Driver:
        """The vendor's driver, opened at first use.

        Raises ComputeError if it does not start; the next use tries again.
        """
        return self.runtime.driver

    @property
    def programs(self) -> Programs:
        """The compiled programs."""
        return self.runtime.programs

    @property
    def used(self) -> int:
        """Bytes of the device's memory that buffers and streams of this process use."""
        return self.runtime.ledger.used

    @property
    def lost(self) -> str:
        """Why the device cannot be used any more; empty while it can."""
        return self.runtime.guard.lost

    # -- the interface -----------------------------------------------------------------------------

    def memory(self) -> Memory:
        self.runtime.ledger.give_dropped()
        free = self.driver.free_memory() if self.runtime.guard.opened is not None else None
        return Memory(self.total_memory - self.used if free is None else free, self.total_memory)

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    @property
    def host_buffer_type(self) -> BufferType | None:
        return self._host_buffer_type

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        return buffer_type is self._buffer_type

    @property
    def identity(self) -> str:
        """Also the driver and its version."""
        return f"{super().identity}\n{self.driver.identity}"

    @property
    def patterns(self) -> Sequence[Pattern]:
        return self.driver.library.patterns

    def match(self, group: Group) -> Launches | Decline:
        """The launches that compute a group, or the reason why it declines."""
        driver = self.driver
        found = driver.library.match(group)
        declined = None if isinstance(found, Decline) else beyond(driver.properties, found)
        return found if declined is None else declined

    def offload_op(self, node: Tensor) -> bool:
        """True on a GPU with its own memory, if enough columns use the weights that copying them pays."""
        return self.kind is DeviceKind.GPU and _columns(node) >= OFFLOADED

    def workspace(self, graph: Graph, groups: Groups = UNGROUPED) -> int:
        """Scratch memory of the largest group, and, if there are ids, the record of those out of range."""
        scratch, record = 0, 0
        for _, found in self.matches(graph, groups):
            positions = {each.position for launch in found.launches if launch.groups for each in launch.tensors}
            scratch = max(scratch, found.scratch, SCRATCH in positions)
            record = self.driver.library.record.itemsize if FAULTS in positions else record
        return scratch + record

    def init(self, **params: Any) -> SimtBackend:
        check_parameters(self, params)
        return SimtBackend(self, self.runtime)

    def event(self) -> Event:
        return SimtEvent(self, self.runtime)


def _columns(node: Tensor) -> int:
    """The number of columns that share the weights of a node (get_op_batch_size of ggml-cuda)."""
    if isinstance(node.op, ops.GetRows):
        return 0  # get_rows reads only a few of the rows that would be copied
    if isinstance(node.op, ops.MulMat):
        return node.ne[1]
    if isinstance(node.op, (ops.MulMatId, ops.Rotary)):
        return node.ne[2]
    return node.nrows
