"""Errors as plain data: a device's process encodes what it raises, and the client raises it again.

Tensors are sent as positions in the graph that both have, so that the client's error refers to the client's tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ggplug import errors
from ggplug.backend import Device
from ggplug.errors import ComputeError, DeviceLostError, GGPlugError, OutOfMemoryError, in_one_line
from ggplug.graph import Graph
from ggplug.tensor import Tensor

Encoded = tuple[str, str, dict[str, Any]]
"""The name of the class, the message and the fields; a tensor is a :class:`Position`."""


class Position(int):
    """The position of a tensor in the graph that the call was about."""


PLAIN = (int, float, str, bool, type(None))


def encode(error: BaseException, graph: Graph | None) -> Encoded:
    """What to send to the client; fields that are no plain values and no tensors of ``graph`` are left out."""
    if isinstance(error, MemoryError) and not isinstance(error, GGPlugError):
        error = OutOfMemoryError(in_one_line(error))
    elif not isinstance(error, GGPlugError):
        error = ComputeError(in_one_line(error))
    fields: dict[str, Any] = {}
    for name, value in error.fields.items():
        if isinstance(value, Tensor):
            if graph is not None and value in graph.index:
                fields[name] = Position(graph.index[value])
        elif isinstance(value, PLAIN) or (isinstance(value, tuple) and all(isinstance(each, PLAIN) for each in value)):
            fields[name] = value
    return type(error).__name__, error.message, fields


def decode(encoded: Encoded, device: Device, there: str, tensors: Sequence[Tensor] = ()) -> GGPlugError:
    """The error to raise.  ``there``: the device's name on its node, which the message may begin with."""
    kind, message, fields = encoded
    found = getattr(errors, kind, None) if kind in errors.__all__ else None
    cls = found if isinstance(found, type) and issubclass(found, GGPlugError) else ComputeError
    given = {
        name: tensors[value] if isinstance(value, Position) else value
        for name, value in fields.items()
        if not isinstance(value, Position) or value < len(tensors)
    }
    node = given.get("tensor")
    if isinstance(node, Tensor) and node.op is not None:
        given.setdefault("op", node.op)
    message = device.name + message.removeprefix(there) if message.startswith(there) else f"{device.name}: {message}"
    return cls(message, **{**given, "device": device})


def lost(device: Device, node: str, reason: str) -> DeviceLostError:
    """The error of every call on a device whose process, or machine, is gone."""
    return DeviceLostError(
        f"{device.name}: the device on node {node} was lost: {reason}; the contents of its buffers are lost too",
        device=device,
        node=node,
        reason=reason,
        remedy="load anew what was there: a new buffer or stream starts the device again, if its node still runs",
    )
