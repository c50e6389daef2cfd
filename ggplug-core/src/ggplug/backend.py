"""The interface of backends: what a backend provides, and what it may rely on.

There are five abstract classes, as in ggml, each with few required methods.  Every other method has a default that
works, and its docstring says what the default does.

==================  ============================================================  ======================
:class:`Registration`  what a plugin returns: a name and its devices                 ggml_backend_reg
:class:`Device`        one piece of hardware: what it is, what it can run            ggml_backend_dev
:class:`BufferType`    a kind of memory on a device                                  ggml_backend_buft
:class:`Buffer`        one allocation of that memory                                 ggml_backend_buffer
:class:`Backend`       a stream of work on a device: transfers, plans, events        ggml_backend
==================  ============================================================  ======================

The smallest device is a dictionary from op class to function::

    class Blas(Device):
        kernels = {MulMat: mul_mat}

The contract
------------
*Order.*  A stream executes work in the order in which it was submitted.  Two streams of a device are ordered only
through an :class:`Event`.

*Asynchrony.*  Methods with ``async`` in their name, and ``Plan.compute``, may return before the work is done.
Until the stream was synchronized, a source array passed to ``set_async`` must not change, and the target of
``get_async`` must not be read.  ``Buffer.get``/``set``/``clear``/``copy_from`` are synchronous: they wait for all work
submitted earlier to any stream of their device, and are done when they return.
Claims (:mod:`ggplug.sharing`) keep two of these calls, or a call and a computation, from using a buffer at the same
time: the classes of this module claim a buffer before they call ``_set``, ``_get`` or ``_free``.  A subclass that
overrides ``memset``, ``set_2d`` or ``get_2d`` claims it by ``with accessing(self):``, in ``copy_from`` by
``with accessing(self, source):``, and checks the buffer inside of that block.  A plan claims the buffers that it uses
while ``compute`` runs, or that it submits work on, by ``with using(buffers):``.

*Memory.*  A tensor lies inside of its buffer, at an offset that :meth:`Buffer.check_place` allows, and a view inside of
its root; kernels may rely on it.  Offsets of views, and addresses of tensors in host memory, are multiples of their
type's ``alignment``; a larger alignment is not promised.  A buffer with :attr:`Buffer.is_read_only` is read like any
other and never written: whatever fills it or copies into it raises BufferUseError before a byte changes, and so does
:meth:`Plan.rebind` if one of the plan's nodes would write there.  Buffers and streams check the arguments of callers
(offsets, sizes, strides, targets of fetches) before they pass an address to native code.

*Ownership.*  A buffer is freed by its owner (a context, an allocator, or the caller of ``alloc``), once; ``free``
waits for the device.  A buffer whose memory is exported (zero-copy views) refuses to be freed.  Plans and events are
freed by the caller of ``plan`` and ``event``.  Freeing twice is harmless; using a freed buffer raises BufferUseError.

*Threads.*  Registrations, devices, buffer types and buffers may be used by several threads at once.  A stream is
used by one thread at a time; streams of one device may be used by different threads at once.  A call that would have to
wait for itself raises BusyError: an abort callback or a signal handler that computes on the device that it interrupted.
See ``docs/threads-and-lifetimes.md``.

*Groups.*  A plan computes the groups of nodes that it was made for, each at the place of its last node.  The tensors
that a group reads keep their values until then.  Its kernel writes the last result and the other kept ones.  Results
that are not kept have no bytes; the kernel rounds them to their tensor's type, as single nodes would.  The last result
may lie in the bytes of a source that ``groups.inplace`` names.  A device can also compute each node of a group by
itself.

*Overlaps.*  Where an op writes into a source (cpy, set_rows) and another source of it shares bytes with what it writes,
the bytes that both have are undefined afterwards, except where each element is read from and written to the same
address; nothing else changes.  A kernel need not detect that.  To move rows within a tensor, copy them to another
tensor first.

*Copies that overlap.*  Source and target of a copy may overlap: in ``copy_from`` and ``copy_async``, and where an array
over the buffer's own memory is passed to ``set``, ``get``, ``set_async`` or ``get_async``.  The target then gets what
the source held before, as with C's ``memmove``.  ``set_2d`` and ``get_2d`` copy row by row: where rows overlap in a
buffer, the later one stays, and their array must not lie in the buffer.

*Ids out of range.*  A node whose ids are out of range (also negative, also of 64 bits) reads and writes no memory but
that of its own tensors.  The rows of its result that belong to such ids are zeros.  Where ids say to which row a source
row is written (set_rows, get_rows_back), such rows are left out.  The node's other rows are computed as usual.
``compute`` of a synchronous device, or the next ``synchronize``, raises once the ComputeError that
:func:`id_out_of_range` makes: it names the node, the id, its position and the limit.  If there are several, it is the
first in the graph's order, and within a node the first in the order of the ids' elements, for any number of threads.
Ids are not checked where the node writes nothing because its result or its rows are empty.

*Errors.*  Every failure is a :class:`~ggplug.errors.GGPlugError`.  An asynchronous failure is raised by the next
``synchronize`` of the stream.  After a failed computation the results are undefined, and what its nodes wrote into
persistent tensors (KV caches) is not undone.  Buffers, other tensors and the stream stay usable, unless the error is a
DeviceLostError.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, NamedTuple

from ggplug.errors import (
    BufferUseError,
    ComputeError,
    FreedError,
    GGPlugError,
    ParameterError,
    UnsupportedOpError,
    in_one_line,
    memory_errors_typed,
)
from ggplug.graph import Graph
from ggplug.interface.callables import call_python
from ggplug.interface.faults import (
    answer_of,
    beyond_limit,
    compute_error,
    first_out_of_range,
    id_out_of_range,
    limit_of_ids,
)
from ggplug.interface.grouping import check_groups, form_groups
from ggplug.interface.plan_cache import PlanCache
from ggplug.interface.plans import BufferOffsets, NodeTime, Places, Plan, Transfers, node_times
from ggplug.interface.walking import Operand, WalkPlan, call_kernel, kernel_name
from ggplug.nodes.groups import UNGROUPED, Group, Groups, signature_of
from ggplug.ops.base import Op
from ggplug.patterns import Pattern
from ggplug.sharing import one_thread_at_a_time
from ggplug.system.copying import Uncopied, Unique
from ggplug.system.overriding import Overridable
from ggplug.tensor import Tensor
from ggplug.types import BufferUsage, DeviceKind
from ggplug.values.arrays import BLOCK_AXIS, TensorLayout, as_bytes
from ggplug.values.buffers import COPY_FIRST, Buffer, BufferType, Bytes, check_target, host_bytes
from ggplug.values.described import Described

__all__ = [
    "API_VERSION",
    "API_VERSIONS",
    "BLOCK_AXIS",
    "COPY_FIRST",
    "UNGROUPED",
    "Accept",
    "Backend",
    "Buffer",
    "BufferOffsets",
    "BufferType",
    "Bytes",
    "Capabilities",
    "Decline",
    "Described",
    "Device",
    "DeviceProps",
    "Event",
    "Group",
    "Groups",
    "Memory",
    "NodeTime",
    "Operand",
    "Pattern",
    "Places",
    "Plan",
    "Registration",
    "Support",
    "TensorLayout",
    "Transfers",
    "WalkPlan",
    "answer_of",
    "as_bytes",
    "beyond_limit",
    "call_kernel",
    "call_python",
    "check_parameters",
    "check_target",
    "compute_error",
    "first_out_of_range",
    "forms_groups",
    "groups_of",
    "host_bytes",
    "id_out_of_range",
    "kernel_name",
    "limit_of_ids",
    "node_times",
    "signature_of",
]

API_VERSION = 2
"""Version of this interface.

A plugin states the version that it was written for twice: as ``Registration.api_version``, and in the group of its
entry point, ``ggplug.backends.v2``.  ``docs/compatibility.md`` says what may change within a version.
"""

API_VERSIONS = range(2, 3)
"""The versions that this core accepts."""


class Memory(NamedTuple):
    """Bytes of a device's memory; None where the device does not report them."""

    free: int | None
    total: int | None


@dataclass(frozen=True)
class Capabilities:
    """What a device can do beyond the required (ggml_backend_dev_caps)."""

    asynchronous: bool = False
    """Streams are asynchronous: calls return before the work is done."""
    host_buffer: bool = False
    """There is a pinned host buffer type for fast transfers."""
    buffer_from_host: bool = False
    """Memory that the caller owns can be used in place."""
    events: bool = False
    """Streams can wait for each other without the host."""


@dataclass(frozen=True)
class DeviceProps:
    """The properties of a device (ggml_backend_dev_props)."""

    name: str
    description: str
    kind: DeviceKind
    memory_free: int | None
    memory_total: int | None
    device_id: str | None
    capabilities: Capabilities


class Decline(NamedTuple):
    """A device does not compute a group, and why.  False in a condition."""

    reason: str

    def __bool__(self) -> bool:
        return False


class Accept(NamedTuple):
    """A device computes a node.  True in a condition."""

    def __bool__(self) -> bool:
        return True


Support = Accept | Decline


# -- devices ---------------------------------------------------------------------------------------


class Registration(Overridable, Unique, ABC):
    """What a plugin's hook returns (ggml_backend_reg).

    ``name``: the backend's name, prefix of its devices' names.  ``version``: of the plugin.  ``api_version``: a
    literal, the :data:`API_VERSION` that the plugin was written for.
    """

    _INSTEAD = "load the plugin in that process"

    name: str
    version: str = "0"
    api_version: int

    @abstractmethod
    def devices(self) -> Sequence[Device]:
        """The devices of this machine; creates no context and takes no device memory.  Always the same objects.

        Without hardware or driver it may raise DeviceNotFoundError with the reason, and with what to install as
        ``remedy``.  That counts as no failure: other backends are used without a warning.  Looking up a device of this
        backend raises the error, and ``ggplug doctor`` shows it.
        """

    def get(self, name: str) -> Any:
        """An extra of this backend by name, or None (ggml_backend_reg_get_proc_address; default None).

        ``"cache"``: files with compiled kernels, for ``ggplug cache``.  ``"machines"``: ``machines(devices) -> list``,
        the other machines of some devices, on which ``ggplug serve --replicas`` starts copies of a model
        (:class:`ggplug_models.serve.http.replicas.Machine`).  The other two are for the conformance suite,
        which otherwise checks waiting and failing only by long computations.  ``"stall"``: ``stall(stream) ->
        release``; the stream does none of the work submitted from now on until any thread calls ``release()``; other
        streams continue.  It returns None for a stream that it cannot stop.  ``"failing_node"``: ``failing_node() ->
        (node, values)``, a node whose computation fails on the device and leaves it usable, and arrays for its leafs.
        By default the suite takes a node with an id out of range.
        """
        return None

    def __repr__(self) -> str:
        return f"<Registration {self.name} {self.version}>"


class Device(Overridable, Unique, ABC):
    """One piece of hardware (ggml_backend_dev).

    Required: ``name``, ``description``, ``kind``, :meth:`memory`, :attr:`buffer_type`, and kernels: either the
    table ``kernels``, or :meth:`match` and :meth:`init`.
    """

    _INSTEAD = "send its name, and call ggplug.device(name) there"

    name: str
    description: str
    kind: DeviceKind
    registration: Registration | None = None
    device_id: str | None = None
    """PCI address or UUID; two backends that show the same physical device give the same id."""
    capabilities: Capabilities = Capabilities()

    kernels: ClassVar[Mapping[type[Op] | Pattern, Callable[..., None]]] = {}
    """Op class or pattern -> a Python function over :class:`Operand`, as :class:`WalkPlan` calls it."""

    CHOICES: ClassVar[int] = 1 << 14
    """How many results of :meth:`match` are kept."""

    @abstractmethod
    def memory(self) -> Memory:
        """Free and total bytes now."""

    @property
    @abstractmethod
    def buffer_type(self) -> BufferType:
        """The default memory of this device; always the same object."""

    @property
    def host_buffer_type(self) -> BufferType | None:
        """Pinned host memory for fast transfers (default None)."""
        return None

    @property
    def extra_buffer_types(self) -> Sequence[BufferType]:
        """Further kinds of memory, such as repacked weights (default none)."""
        return ()

    def props(self) -> DeviceProps:
        """The device's properties in one object."""
        free, total = self.memory()
        return DeviceProps(self.name, self.description, self.kind, free, total, self.device_id, self.capabilities)

    def init(self, **params: Any) -> Backend:
        """A new stream (default: a :class:`Backend` that walks the graph over ``kernels``, and takes no parameters).

        Raises ParameterError for parameters that the device does not have.
        """
        check_parameters(self, params)
        return Backend(self)

    def match(self, group: Group) -> Any:
        """The kernel for a group, of any type that the device's plans understand, or a :class:`Decline` with a reason.

        Depends only on :func:`signature_of` the group and on :attr:`variant`: :meth:`chosen` calls it once for each,
        and uses the kernel for all groups with that signature.  A group is one node unless :meth:`groups` formed
        larger ones.  Default: looks up the class of the node's op and its bases (``Op.kinds``) in ``kernels``, or for
        several nodes the pattern.
        """
        op = group.node.op
        if len(group) == 1:
            for kind in op.kinds if op else ():
                kernel = self.kernels.get(kind)
                if kernel is not None:
                    return kernel
            return Decline(f"{self.name} has no kernel for {op.name if op else 'leafs'}")
        for pattern in self.patterns:
            if pattern in self.kernels and pattern.names(group) is not None:
                return self.kernels[pattern]
        return Decline(f"{self.name} has no kernel for {' '.join(n.op.name for n in group.nodes if n.op)} together")

    @property
    def variant(self) -> Any:
        """What :meth:`match` depends on besides the group, hashable, such as disabled instructions (default None).

        Each computation asks for it: where it has changed, schedules and plans are made anew.
        """
        return None

    def chosen(self, group: Group) -> Any:
        """The result of :meth:`match` for a group, kept for all groups with the same signature.

        ``supports_op``, ``groups``, plans and schedulers all call this.  Raises ComputeError if ``match`` returns None
        or raises an exception that is no GGPlugError.
        """
        known = self.__dict__.get("_chosen")
        if known is None:
            known = self.__dict__.setdefault("_chosen", {})
        key = self.variant, signature_of(group)
        found = known.get(key)
        if found is None:
            if len(known) >= self.CHOICES:
                known.clear()
            found = known[key] = answer_of(self, group, self.match)
        return found

    @property
    def identity(self) -> str:
        """What times depend on that were measured on this device: versions, hardware, driver, instructions, threads.

        The cost model keeps times by it (default: name and version of the backend, name, description and id).
        """
        backend = self.registration
        version = "" if backend is None else f"{backend.name} {backend.version}"
        return "\n".join((version, self.name, self.description, self.device_id or ""))

    @property
    def patterns(self) -> Sequence[Pattern]:
        """The chains of ops that the device may compute as a group, the preferred ones first.

        :meth:`match` can still decline a group.  Default: the patterns in ``kernels``.
        """
        return [pattern for pattern in self.kernels if isinstance(pattern, Pattern)]

    def groups(self, graph: Graph, leaving: Collection[int] = ()) -> Groups:
        """The groups of a graph, or of a part of one, that this device forms.  Called before memory is laid out.

        ``leaving``: positions of results that are needed outside of the part; they have to be written.  Default: the
        groups that :attr:`patterns` form and :meth:`match` accepts; :mod:`ggplug.interface.grouping` has the rules.
        """
        patterns = self.patterns
        if not patterns:
            return UNGROUPED
        return form_groups(graph, patterns, self._declined, leaving, self.__dict__.setdefault("_tried", {}))

    def _declined(self, group: Group) -> str | None:
        found = self.chosen(group)
        return found.reason if isinstance(found, Decline) else None

    def supports_op(self, node: Tensor) -> Support:
        """Whether the device computes this node, or why not.  View ops are always supported."""
        if node.op is None or node.op.is_view:
            return Accept()
        found = self.chosen(Group((node,)))
        return found if isinstance(found, Decline) else Accept()

    def matches(self, graph: Graph, groups: Groups = UNGROUPED) -> Iterator[tuple[Group, Any]]:
        """Each group of a graph with its kernel, in the order of the groups' last nodes; plans are made from it.

        Views and nodes without elements are left out.  Raises GraphError for nodes that cannot be a group
        (:func:`~ggplug.interface.grouping.check_groups`), UnsupportedOpError for a group that the device declines.
        """
        check_groups(graph, groups)
        for group in groups.of(graph):
            found = self.chosen(group)
            if isinstance(found, Decline):
                raise UnsupportedOpError(
                    f"{self.name} declines {group!r}: {found.reason}",
                    op=group.node.op,
                    device=self,
                    tensor=group.node,
                    reason=found.reason,
                )
            yield group, found

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """Whether kernels of this device can work in that memory (default: only in the device's own)."""
        return buffer_type.device is self

    def workspace(self, graph: Graph, groups: Groups = UNGROUPED) -> int:
        """Bytes that a plan of these groups reserves in the device's memory besides its buffers (default 0).

        Streams keep what an earlier plan reserved.  :func:`ggplug.fit_placement` counts it; nothing is allocated.
        """
        return 0

    def details(self, graph: Graph) -> Sequence[str]:
        """Lines for explanations: how the device computes a graph, besides the kernels of nodes (default none)."""
        return ()

    def offload_op(self, node: Tensor) -> bool:
        """Whether this device should compute the node even if its weights must be copied to it (default no)."""
        return False

    def buffer_from_host(self, memory: Any, *, usage: BufferUsage = BufferUsage.ANY) -> Buffer:
        """A buffer over memory that the caller owns (anything with the buffer protocol, such as a memory map).

        Over read-only memory the buffer is read-only.  ``capabilities.buffer_from_host`` says whether a device
        provides this (default: raises BufferUseError).
        """
        raise BufferUseError(f"{self.name} cannot use host memory in place", device=self)

    def event(self) -> Event:
        """A new event (default: waiting for it synchronizes the stream that recorded it)."""
        return Event(self)

    def __repr__(self) -> str:
        return f"<Device {self.name} ({self.kind.name}): {self.description}>"


class Event(Overridable, Uncopied):
    """A mark in a stream that others can wait for (ggml_backend_event).

    The base class serves every device: recording notes the stream, and waiting synchronizes it, so that it raises what
    the stream's ``synchronize`` raises.  Where ``capabilities.events`` is true, only the stream itself raises that.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._stream: Backend | None = None

    def record(self, stream: Backend) -> None:
        """Marks the end of the work submitted to ``stream`` so far (ggml_backend_event_record)."""
        self._stream = stream

    def wait(self, stream: Backend) -> None:
        """Makes ``stream`` wait for the mark, without the host if the device can do that (ggml_backend_event_wait).

        ``stream`` may belong to any device; where the event cannot make it wait, the host waits.
        """
        self.synchronize()

    def synchronize(self) -> None:
        """Waits for the mark (ggml_backend_event_synchronize); returns at once if nothing was recorded."""
        if self._stream is not None:
            self._stream.synchronize()

    def free(self) -> None:
        """Frees the event.  Streams that already wait for it continue to wait until the work before it is done."""
        self._stream = None


# -- computing -------------------------------------------------------------------------------------


class Backend(Overridable, Uncopied):
    """A stream of work on a device (ggml_backend).

    The base class computes on the host: transfers are immediate, and plans call ``device.kernels`` node by node.
    A device with a queue of its own overrides the ``async`` methods, :meth:`synchronize` and :meth:`plan`.
    """

    _INSTEAD = "make another one with device.init()"

    PLANS = 64
    """How many plans :meth:`compute` keeps; the one used longest ago goes first."""

    _entered_by = 0
    """The thread that computes or frees now (:func:`ggplug.sharing.one_thread_at_a_time`)."""

    freed = False
    """Whether the stream was freed; it then refuses to compute."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.name = device.name
        self._plans = PlanCache(self.PLANS, device)

    time_limit: float | None = None
    """Seconds that a computation may take; None: any time.  See :meth:`set_time_limit`."""

    def set_time_limit(self, seconds: float | None) -> None:
        """Sets how many seconds a computation of a plan on this stream may take; None: any time.

        One that takes longer is aborted where the device can do that, and raises TimeLimitError, which names the
        device, the node and the kernel; what the computation writes is undefined then.  The CPU device looks at the
        clock about every 50 ms, within kernels too; plans that call Python kernels look between two of them.  If a
        kernel of a queue does not return, waiting for it ends with the error, and the kernel goes on.  Devices that
        cannot abort what was submitted, such as GPUs, compute to the end.  The time begins when the device begins the
        computation, not while it waits for earlier work.  After the error the stream stays usable, and work that was
        submitted behind the computation is done.  What took longer and was not aborted is
        reported by the scheduler (:meth:`.Scheduler.set_time_limit`), not by a plan that is computed without one.

        Raises ParameterError unless it is a positive number.
        """
        found = None
        if seconds is not None:
            try:
                found = float(seconds) if isinstance(seconds, Real) and not isinstance(seconds, bool) else math.nan
            except OverflowError:
                found = math.inf
            if not 0 < found < math.inf:
                raise ParameterError(
                    f"the time limit must be a positive number of seconds or None, got {seconds!r:.50}", got=seconds
                )
        self.time_limit = found

    def set_limits_of(self, other: Backend) -> None:
        """Has computations of this stream end as those of ``other`` do, a stream of the same device: with the same time
        limit, and the same abort callback where streams have one."""
        if self.time_limit != other.time_limit:
            self.set_time_limit(other.time_limit)

    # Transfers

    def set_async(self, buffer: Buffer, offset: int, data: Any) -> None:
        """Stores bytes in the order of the stream (default: now)."""
        buffer.set(offset, data)

    def get_async(self, buffer: Buffer, offset: int, out: Bytes) -> None:
        """Fetches bytes in the order of the stream (default: now)."""
        buffer.get(offset, out)

    def copy_async(
        self,
        source: Buffer,
        source_offset: int,
        target: Buffer,
        target_offset: int,
        size: int,
        source_stream: Backend | None = None,
    ) -> None:
        """Copies into ``target``, a buffer of this stream's device, in the order of this stream.

        ``source_stream`` is the stream that writes the source, if there is one: the copy happens after all work
        submitted to it.  Source and target may overlap: the target gets what the source held before.
        A later ``Buffer.set`` or ``Buffer.free`` of the source, whose device may be another one, changes nothing of
        what is copied.  What is submitted to other streams later may, unless they wait for an event of this one.
        Default: waits for both streams and copies now.
        """
        if source_stream is not None:
            source_stream.synchronize()
        self.synchronize()
        target.copy_from(source, source_offset, target_offset, size)

    def synchronize(self) -> None:
        """Waits until all submitted work is done; raises its first error (default: work is never pending)."""

    # Computing

    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        """A new plan, which computes the nodes in these groups (default: a :class:`WalkPlan`).

        Raises what :meth:`Device.matches` raises: GraphError for nodes that cannot be a group, UnsupportedOpError for a
        group that the device declines.
        """
        return WalkPlan(self, graph, groups)

    def optimize(self, graph: Graph) -> Graph:
        """A graph with the same results that suits the device better (default: the same graph)."""
        return graph

    @memory_errors_typed
    @one_thread_at_a_time
    def compute(self, graph: Graph, allocation: Places) -> None:
        """Computes a graph with a plan that is kept for all equal graphs.

        Raises BusyError if another thread uses the stream, or if it is called from within itself; FreedError.
        """
        self._check_open()
        plan = self._plans.bound(graph, allocation, self.plan)
        run = allocation.begin(graph)
        try:
            plan.compute()
            run.end(self, progress=len(graph.nodes))
        except BaseException as error:
            run.fail(error, self)
            raise
        finally:
            run.thread = 0

    def _check_open(self) -> None:
        """Raises FreedError if the stream was freed."""
        if self.freed:
            raise FreedError(f"{self!r} was freed", thing=self, remedy="make a new one with device.init()")

    @one_thread_at_a_time
    def free(self) -> None:
        """Waits until all submitted work is done, then frees the stream and its plans.

        Raises the error of the work, as :meth:`synchronize` does, after the stream was freed.  Raises BusyError, and
        frees nothing, while another thread computes on the stream.
        """
        failed: GGPlugError | None = None
        try:
            self.synchronize()
        except GGPlugError as error:
            failed = error
        self._plans.free()
        self.freed = True
        if failed is not None:
            raise failed

    def __enter__(self) -> Backend:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    def __repr__(self) -> str:
        return f"<Backend {self.name}>"


def check_parameters(device: Device, params: Collection[str], known: Sequence[str] = ()) -> None:
    """Raises ParameterError if ``params`` has a name that is not in ``known``; for :meth:`Device.init`."""
    unknown = [name for name in params if name not in known]
    if unknown:
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise ParameterError(
            f"streams of {device.name} have no parameter {unknown[0]!r:.100}; {has}",
            device=device,
            got=unknown[0],
            wanted=tuple(known),
        )


def forms_groups(device: Device) -> bool:
    """Whether a device may compute several nodes as a group; the scheduler asks only such devices for groups.

    Raises ComputeError if reading its patterns fails.
    """
    if type(device).groups is not Device.groups:
        return True
    try:
        return bool(device.patterns)
    except GGPlugError:
        raise
    except Exception as error:
        raise ComputeError(
            f"{device.name}: reading its patterns failed: {in_one_line(error)}", device=device
        ) from error


def groups_of(device: Device, graph: Graph, leaving: Collection[int] = ()) -> Groups:
    """The checked result of ``device.groups`` for a graph.

    Raises ComputeError if the method raises anything but a GGPlugError, or returns no :class:`Groups`; GraphError if
    the groups break a rule (:func:`~ggplug.interface.grouping.check_groups`).
    """
    try:
        answer = device.groups(graph, leaving)
    except GGPlugError:
        raise
    except Exception as error:
        message = f"{device.name} failed to form groups of {graph!r}: {in_one_line(error)}"
        raise ComputeError(message, device=device) from error
    if not isinstance(answer, Groups):
        raise ComputeError(f"{device.name}: groups() must return Groups, got {answer!r}", device=device, got=answer)
    check_groups(graph, answer, leaving=leaving)
    return answer
