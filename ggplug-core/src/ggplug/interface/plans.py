"""Plans: graphs that a device prepared once, to compute them many times; and the places that they are bound to.

Part of the interface, whose contract :mod:`ggplug.backend` states.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ggplug.graph import Graph
from ggplug.nodes.groups import UNGROUPED, Groups
from ggplug.system.copying import Uncopied
from ggplug.system.overriding import Overridable
from ggplug.values.buffers import Buffer

Copy: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Two arrays of one shape and dtype: the second is copied to the first."""


class NodeTime(NamedTuple):
    """Start and end of a node in a traced computation, by ``time.perf_counter_ns``; a group's have its last node."""

    node: int
    start: int
    end: int


def node_times(rows: Iterable[tuple[int, int, int]]) -> list[NodeTime]:
    """The rows as node times, made without a call of Python for each: a token has hundreds of them."""
    return list(map(_node_time, rows))


_node_time: Callable[[tuple[int, int, int]], NodeTime] = partial(tuple.__new__, NodeTime)


class BufferOffsets(NamedTuple):
    """Where all tensors of a graph lie, as arrays: tensor ``i`` at byte ``offsets[i]`` of ``buffers[which[i]]``.

    ``i`` is a position in ``graph.tensors``.  The offset of a view is the sum of its root's offset and its own, so
    callers add nothing.  ``which`` is below 0 for results inside of groups, which have no bytes.
    """

    buffers: list[Buffer]
    which: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]


class Pending(Protocol):
    """A stream or an event: what a thread can wait for."""

    def synchronize(self) -> None: ...


if TYPE_CHECKING:  # only annotations name it

    class Begun(Protocol):
        """The record of a computation that has begun; implemented by :class:`ggplug.memory.Run`.

        ``thread``: the thread that computes.  It is set to 0 at last, in a ``finally``.
        """

        thread: int

        def end(self, *pending: Pending, progress: int) -> None:
            """All of it was submitted.  ``progress``: number of nodes; ``pending``: streams that may compute them."""

        def fail(self, error: BaseException, *pending: Pending) -> None:
            """The computation failed; ``pending``: streams that may still do submitted work."""


class Places(Protocol):
    """The places of a graph's tensors, to which a plan is bound; implemented by :class:`ggplug.memory.Allocation`.

    ``groups``: the groups that the places were made for.  Each method takes the graph of the places, or an equal one,
    and the groups that the plan computes: only results inside of these may have no bytes.
    """

    groups: Groups

    def check(self, graph: Graph, groups: Groups = UNGROUPED) -> None:
        """Raises unless the graph can be computed there (GraphError, TensorStateError, BufferUseError)."""

    def addresses(
        self, graph: Graph, held: set[Buffer] | None = None, groups: Groups = UNGROUPED
    ) -> npt.NDArray[np.int64]:
        """Host addresses of all tensors; adds the buffers that they lie in to ``held``.  Raises as :meth:`check`."""

    def places(self, graph: Graph, groups: Groups = UNGROUPED) -> BufferOffsets:
        """Buffers and offsets of all tensors, views included.  Raises as :meth:`check`."""

    def begin(self, graph: Graph) -> Begun:
        """Begins a computation in these places and returns its record, which the caller must end.  Raises BusyError."""


class Transfers:
    """Copies between arrays and host memory, which a plan makes together with a computation.

    ``inputs``: pairs of memory and an array that is copied there before it.  ``outputs``: pairs of an array and memory
    that is copied to it afterwards.  ``start``, ``end``: ``time.perf_counter_ns`` of the computation between them.
    """

    __slots__ = ("end", "inputs", "outputs", "start")

    def __init__(self, inputs: Sequence[Copy] = (), outputs: Sequence[Copy] = ()) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.start = self.end = 0


class Plan(Overridable, Uncopied, ABC):
    """A graph that a device prepared once, to compute it many times (ggml_backend_graph_plan).

    A plan depends on the graph's structure only; :meth:`rebind` gives it the places of the tensors.
    """

    _INSTEAD = "plan the graph again"

    @abstractmethod
    def rebind(self, graph: Graph, allocation: Places) -> None:
        """Binds the plan to the places of all tensors.

        ``graph`` is the planned graph or an equal one.  Raises GraphError for another graph, by
        ``graph.check_structure`` with the ``graph.structure`` of the planned one.  If the device has memory with a
        layout of its own, ``graph.check_layouts`` with the ``graph.layouts()`` of the planned graph raises
        BufferUseError: kernels for packed weights cannot read plain ones.

        The plan gets all places at once by ``allocation.addresses(graph, held, groups)`` (host memory) or
        ``allocation.places(graph, groups)`` (handles), with the groups that were planned: only results inside of these
        may have no place.  Both raise TensorStateError or BufferUseError for unplaced tensors, freed buffers, and
        read-only memory that a node would write.  A plan that finds the places in another way calls
        ``allocation.check(graph, groups)``.  If rebind raises, the plan stays bound as it was.

        Makes no Python call per node if kernels take addresses.  If they take objects, such as arrays of a library, it
        may make one object per tensor; computing the same graph in the same places again binds nothing.  The caller
        keeps graph and allocation alive while it computes; a plan need not.  Computations that were submitted earlier
        use the places that were bound then; a plan that cannot keep them waits for these computations.
        """

    @abstractmethod
    def compute(self) -> None:
        """Submits the computation to the stream.  May return before it is done.

        Makes no Python call per node, or one per launch where the runtime takes launches one by one.
        """

    def compute_with(self, transfers: Transfers) -> bool:
        """Copies inputs, computes, waits and copies outputs, or returns False and does nothing (the default).

        For plans that compute in host memory and can do so while no other thread accesses it: a step of a language
        model is then one call.
        """
        return False

    times_before_error: Sequence[NodeTime] = ()
    """Set by :meth:`compute_traced` before it raises, where the plan knows that: the times of the nodes that ran."""

    def compute_traced(self) -> list[NodeTime]:
        """Computes, waits, and returns the time of each node or group (default: one entry for all, with node -1).

        The default does not wait: a plan whose :meth:`compute` returns before all is computed has to override it.
        If it raises, :attr:`times_before_error` has the times until then, with that of the node that failed.
        """
        start = time.perf_counter_ns()
        self.compute()
        return [NodeTime(-1, start, time.perf_counter_ns())]

    def kernel_names(self) -> list[str]:
        """The names of the kernels in the order in which they run, for explanations and tests (default: empty).

        There is one name per execution of a kernel, so the list for several nodes is that of the single nodes, one
        after the other.  The device chooses the names; plans of :mod:`ggplug.discrete` use that of the kernel's
        function, or the ``repr`` of a kernel without ``__name__``.
        """
        return []

    def free(self) -> None:
        """Frees what the plan holds (default: nothing).

        Pending computations are not cancelled: the method waits for them, or keeps what they need until they are done.
        """
