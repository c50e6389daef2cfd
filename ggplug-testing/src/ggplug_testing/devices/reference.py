"""The plain reference interpreter as a device: kernels are the ops' own references, on host memory.

Slow and exact: it reads sources as float64, computes, and rounds to the result's type after every node.  It shows
what a device is, and it is what recorded results are replayed on to check the references themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ggplug import host
from ggplug.backend import Buffer, BufferType, Capabilities, Decline, Device, Group, Memory, Operand, call_python
from ggplug.host import HostBufferType
from ggplug.ops.base import Op
from ggplug.ops.custom import PythonCall
from ggplug.types import BufferUsage, DeviceKind
from ggplug_testing.judging.oracle import can_interpret, compute_node, moves_bits


def interpret(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Computes one node with its op's reference and rounds the result to its type.

    Sources are read before anything is written, so the result may share bytes with any of them.
    """
    sources = [None if operand is None else operand.array() for operand in src]
    compute_node(dst.tensor, dst.array(), sources)


def match_reference(group: Group, name: str) -> Callable[..., None] | Decline:
    """:func:`interpret`, or why the references cannot compute a group; ``name`` is the device's."""
    node = group.node
    op = node.op
    if len(group) > 1:
        return Decline(f"{name} computes every node alone")
    if op is None or getattr(op, "reference", None) is None:
        return Decline(f"{name} has no reference for {op.name if op else 'leafs'}")
    if isinstance(op, PythonCall):
        return Decline(f"{name} calls no Python functions: they read and write host memory")
    if moves_bits(node):
        return interpret
    for tensor in node.src:
        reason = "" if tensor is None else can_interpret(tensor, written=False)
        if reason:
            return Decline(f"{name} cannot read the sources of {op.name}: {reason}")
    reason = can_interpret(node, written=True)
    return Decline(f"{name} cannot store the result of {op.name}: {reason}") if reason else interpret


class ReferenceDevice(Device):
    """A host device that computes every op with its reference."""

    kind = DeviceKind.CPU
    description = "NumPy references of the ops, in float64"
    capabilities = Capabilities(buffer_from_host=True)

    def __init__(self, name: str = "reference") -> None:
        self.name = name
        self._buffer_type = HostBufferType(name, self)

    def memory(self) -> Memory:
        return host.memory()

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    def match(self, group: Group) -> Any:
        if len(group) == 1 and isinstance(group.node.op, PythonCall):
            return call_python
        return match_reference(group, self.name)

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        return buffer_type.is_host

    def buffer_from_host(self, memory: Any, *, usage: BufferUsage = BufferUsage.ANY) -> Buffer:
        return self._buffer_type.wrap(memory, usage=usage)
