"""What the members of a combined device exchange: sums, parts, and results that one of them computed.

A backend brings an all-reduce of its own by the names that ggml uses.  Its ``Registration.get`` returns for
``"ggml_backend_comm_init"`` a function ``init(streams) -> comm``, which may return None; for
``"ggml_backend_comm_allreduce_tensor"`` a function ``allreduce(comm, operands) -> bool``, which replaces each
:class:`~ggplug.backend.Operand`, one for each stream, by the sum of all, in the order of the streams, or returns False
and does nothing; and for ``"ggml_backend_comm_free"`` a function ``free(comm)``.  Otherwise the host adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ggplug.backend import Backend, Operand
from ggplug.combined.cuts import Split
from ggplug.combined.memory import Part
from ggplug.combined.states import Exchange
from ggplug.tensor import Tensor
from ggplug.types import F32
from ggplug.values.arrays import decode, encode


class Exchanged(NamedTuple):
    """An exchange after a node.  ``tensors``: the members' results.  ``state``: of the parts that are joined."""

    kind: Exchange
    position: int
    node: Tensor
    tensors: tuple[Tensor, ...]
    state: Split | None

    @property
    def nbytes(self) -> int:
        """Bytes of the result, which each member has afterwards."""
        return self.node.nbytes


class AllReduce:
    """The all-reduce of the first member's backend, if it has one and accepts the streams."""

    def __init__(self, streams: Sequence[Backend]) -> None:
        registration = streams[0].device.registration
        self._get: Callable[[str], Any] = (lambda name: None) if registration is None else registration.get
        init = self._get("ggml_backend_comm_init")
        self._comm = None if init is None else init(streams)
        self._reduce = None if self._comm is None else self._get("ggml_backend_comm_allreduce_tensor")

    def __call__(self, operands: Sequence[Operand]) -> bool:
        """Whether the backend has replaced the operands by their sum."""
        return self._reduce is not None and bool(self._reduce(self._comm, operands))

    def free(self) -> None:
        """Frees what the backend keeps for it."""
        comm, self._comm, self._reduce = self._comm, None, None
        free = None if comm is None else self._get("ggml_backend_comm_free")
        if free is not None:
            free(comm)


def exchange(what: Exchanged, parts: Sequence[Part], reduce: AllReduce) -> None:
    """Gives each member the whole result.  ``parts``: the members' results; all have been computed."""
    node = what.node
    if what.kind is Exchange.SUM:
        operands = [Operand(tensor, part.buffer, part.offset) for tensor, part in zip(what.tensors, parts, strict=True)]
        if reduce(operands):
            return
        found = _sum([part.fetch() for part in parts], node)
    elif what.kind is Exchange.JOIN:
        assert what.state is not None
        found = what.state.joined([part.fetch() for part in parts], node.type, node.ne)
    else:
        found = parts[0].fetch()
        parts = parts[1:]
    for part in parts:
        part.buffer.set(part.offset, found)


def _sum(found: Sequence[Any], node: Tensor) -> Any:
    """The bytes of the sum of results, added one after the other."""
    total = decode(found[0], node) if node.type is not F32 else found[0].view(np.float32).copy()
    for each in found[1:]:
        total = total + (decode(each, node) if node.type is not F32 else each.view(np.float32))
    return total.view(np.uint8) if node.type is F32 else encode(total, node.type)
