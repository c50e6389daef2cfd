"""Plans: graphs made ready once, to be computed many times; and what they are bound to.

Part of the interface, whose contract :mod:`ggplug.backend` states.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ggplug.graph import Graph
from ggplug.nodes.groups import UNGROUPED, Groups
from ggplug.system.overriding import Overridable
from ggplug.values.buffers import Buffer


class NodeTime(NamedTuple):
    """When a node of a traced computation ran: ``time.perf_counter_ns`` values.  A group has the time of its last."""

    node: int
    start: int
    end: int


class BufferOffsets(NamedTuple):
    """Where all tensors of a graph lie, as arrays: tensor ``i`` at byte ``offsets[i]`` of ``buffers[which[i]]``.

    ``i`` counts ``graph.tensors``.  Offsets are those of the tensors themselves: a view's is its root's offset and the
    view's own together, so nothing is to be added.  ``which`` is below 0 for results inside of groups, which lie
    nowhere.
    """

    buffers: list[Buffer]
    which: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]


class Pending(Protocol):
    """Something that can be waited for: a stream or an event."""

    def synchronize(self) -> None: ...


if TYPE_CHECKING:  # what annotations alone name

    class Begun(Protocol):
        """The record of a computation that has begun: :class:`ggplug.memory.Run`."""

        def end(self, *pending: Pending, progress: int) -> None:
            """All of it was given to streams: those that may still be at it, and how many nodes that are."""

        def fail(self, error: BaseException, *pending: Pending) -> None:
            """It failed; ``pending``: streams that may still be at what was given to them."""


class Places(Protocol):
    """Where the tensors of a graph lie: what a plan is bound to.  :class:`ggplug.memory.Allocation` is one.

    ``groups``: the nodes that are computed together there.  Each method takes the graph for which the places were
    decided, or an equal one, and the groups that the plan computes: only results inside of these may have no bytes.
    """

    groups: Groups

    def check(self, graph: Graph, groups: Groups = UNGROUPED) -> None:
        """Raises unless the graph can be computed there (GraphError, TensorStateError, BufferUseError)."""

    def addresses(
        self, graph: Graph, held: set[Buffer] | None = None, groups: Groups = UNGROUPED
    ) -> npt.NDArray[np.int64]:
        """Host addresses of all tensors; ``held`` gets the buffers that they lie in.  Raises as :meth:`check`."""

    def places(self, graph: Graph, groups: Groups = UNGROUPED) -> BufferOffsets:
        """Buffers and offsets of all tensors, views included.  Raises as :meth:`check`."""

    def begin(self, graph: Graph) -> Begun:
        """The record of a computation that begins there now; it has to be ended.  Raises BusyError."""


class Plan(Overridable, ABC):
    """A graph made ready once, to be computed many times (ggml_backend_graph_plan).

    A plan depends on the graph's structure only; :meth:`rebind` tells it where the tensors lie.
    """

    @abstractmethod
    def rebind(self, graph: Graph, allocation: Places) -> None:
        """Takes over the places of all tensors.

        ``graph`` is the one planned or an equal one; for another graph this raises GraphError, which
        ``graph.check_structure`` does with the ``graph.structure`` that was planned.  Where the device has memory with
        a layout of its own, ``graph.check_layouts`` compares with the ``graph.layouts()`` that was planned: kernels for
        packed weights read no others (BufferUseError). ``allocation`` tells where its tensors lie, all at once through
        ``allocation.addresses(graph)`` (host memory) or ``allocation.places(graph)`` (handles). Both refuse places that
        the graph cannot be computed in: unplaced tensors, freed buffers, memory that a node would write and that may
        not be written (TensorStateError, BufferUseError). A plan that finds the places in another way calls
        ``allocation.check(graph)``. Each takes the groups that were planned: only results inside of these may be
        without a place.  Then it stays bound to what it was bound to before.

        Costs no Python call per node where places are numbers.  Where kernels are given objects (arrays of a library),
        it may make one a tensor: computing the same graph in the same places again binds nothing.  The caller keeps
        graph and allocation alive as long as it computes; a plan need not.  A computation that was given to the stream
        before goes on with the places that it was given with; a plan that cannot do that waits for it.
        """

    @abstractmethod
    def compute(self) -> None:
        """Gives the computation to the stream.  May return before it is done.

        Costs no Python call per node, or one a launch where the runtime takes launches one by one.
        """

    def compute_traced(self) -> list[NodeTime]:
        """Computes, waits, and tells when each node or group ran, once (default: one entry for the whole, node -1)."""
        start = time.perf_counter_ns()
        self.compute()
        return [NodeTime(-1, start, time.perf_counter_ns())]

    def kernel_names(self) -> list[str]:
        """The kernels in the order in which they run, for explanations and tests (default: empty).

        Each of a node's or group's kernels is named each time that it runs, so a plan of several nodes has the names
        that plans of the single nodes have, one after the other.  A name is what the device likes; plans of
        :mod:`ggplug.discrete` give that of the kernel's function, or the ``repr`` of a kernel without ``__name__``.
        """
        return []

    def free(self) -> None:
        """Gives what the plan holds back (default: nothing).

        Computations that are pending are not cancelled: it waits for them, or leaves them what they need.
        """
