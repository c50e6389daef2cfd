"""THE INTERFACE: what a hardware backend provides, and what it may rely on.

Five nouns, as in ggml, each an abstract class with few required methods.  What is optional has a working
default that its docstring states.

==================  ============================================================  ======================
:class:`Registration`  what a plugin hands over: a name and its devices              ggml_backend_reg
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
*Order.*  A stream executes what it is given in the order it was given.  Two streams of a device are not
ordered except through an :class:`Event`.

*Asynchrony.*  Methods with ``async`` in their name, and ``Plan.compute``, may return before the work is done.
A source array handed to ``set_async`` must stay as it is, and the target of ``get_async`` is not readable,
until the stream was synchronized.  ``Buffer.get``/``set``/``clear``/``copy_from`` are synchronous: they wait for
everything given before to any stream of their device, and are done when they return.
Claims (:mod:`ggplug.sharing`) keep them out of each other's way, and out of that of computations: what this module
provides claims a buffer before it calls ``_set``, ``_get`` or ``_free``.  A subclass that overrides ``memset``,
``copy_from``, ``set_2d`` or ``get_2d`` does so by ``with accessing(self):``; a plan that works in buffers while
``compute`` runs, or gives work on them to a queue, does so by ``with using(buffers):``.

*Memory.*  A tensor lies inside of its buffer, at an offset that :meth:`Buffer.check_place` allows, and a view inside of
its root; kernels may rely on it.  Offsets of views, and addresses of tensors in host memory, are multiples of their
type's ``alignment`` and of nothing more.  Memory that says :attr:`Buffer.is_read_only` is read like any other and never
written: whatever fills it or copies into it raises BufferUseError before a byte changes, and so does
:meth:`Plan.rebind` if one of the plan's nodes would write there.  Buffers and streams check what callers give them
(offsets, sizes, strides, targets of fetches) before they hand an address to native code.

*Ownership.*  Whoever allocated a buffer frees it, once, when nothing pending uses it; ``free`` waits for the
device.  A buffer whose memory is exported (zero-copy views) refuses to be freed.  Plans and events belong to who
made them.  Freeing twice is harmless; using a freed buffer raises BufferUseError.

*Threads.*  Registrations, devices, buffer types and buffers may be used by several threads at once.  A stream is
used by one thread at a time; streams of one device may be used by different threads at once.  What would have to wait
for itself raises BusyError: an abort callback or a signal handler that computes on the device that it interrupted.
See ``docs/threads-and-lifetimes.md``.

*Ids out of range.*  A node that is given ids out of range (also negative ones, also of 64 bits) reads and writes
nothing that is not its own.  The rows of its result that belong to such ids are zeros; set_rows leaves such rows out;
the node's other rows are computed as usual.  ``compute`` of a synchronous device, or the next ``synchronize``, raises
once the ComputeError that :func:`id_out_of_range` makes: it names the node, the id and the limit.  Of several faults it
is the first node's in the graph's order, and of these the first id's in the order of its tensor's elements, for any
number of threads.  Ids are not looked at where the node writes nothing because its result or its rows are empty.

*Errors.*  Every failure is a :class:`~ggplug.errors.GGPlugError`.  An asynchronous failure is raised by the next
``synchronize`` of the stream.  After a failed computation the results are undefined, but buffers, other tensors and
the stream stay usable, unless the error is a DeviceLostError.
"""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug.arrays import as_bytes, strided, whole_number
from ggplug.errors import (
    BufferUseError,
    ComputeError,
    GGPlugError,
    OutOfMemoryError,
    ParameterError,
    ShapeError,
    TypeMismatchError,
    UnsupportedOpError,
)
from ggplug.graph import Graph, Signature
from ggplug.ops.base import Op
from ggplug.sharing import NOTHING, accessing, alone, freeing, using
from ggplug.tensor import Epoch, Tensor
from ggplug.types import BufferUsage, DeviceKind

if TYPE_CHECKING:
    from ggplug.memory.allocation import Allocation

API_VERSION = 1
"""Version of this interface.  A plugin states the one it was written for as ``Registration.api_version``."""

API_VERSIONS = range(1, 2)
"""The versions that this core accepts."""

Bytes = npt.NDArray[np.uint8]

COPY_FIRST = "copy the tensor first, or load it into memory that may be written"
"""What to do about memory that may not be written."""


class Memory(NamedTuple):
    """Bytes of a device's memory; None where the device does not tell."""

    free: int | None
    total: int | None


@dataclass(frozen=True)
class Capabilities:
    """What a device can do beyond the required (ggml_backend_dev_caps)."""

    asynchronous: bool = False
    """Streams run on by themselves."""
    host_buffer: bool = False
    """There is a pinned host buffer type for fast transfers."""
    buffer_from_host: bool = False
    """Memory that the caller owns can be used in place."""
    events: bool = False
    """Streams can wait for each other without the host."""


@dataclass(frozen=True)
class DeviceProps:
    """A device at a glance (ggml_backend_dev_props)."""

    name: str
    description: str
    kind: DeviceKind
    memory_free: int | None
    memory_total: int | None
    device_id: str | None
    capabilities: Capabilities


class Decline(NamedTuple):
    """A device's "no" with its reason.  False in a condition."""

    reason: str

    def __bool__(self) -> bool:
        return False


class Accept(NamedTuple):
    """A device's "yes".  True in a condition."""

    def __bool__(self) -> bool:
        return True


Support = Accept | Decline


# -- memory ----------------------------------------------------------------------------------------


class BufferType(ABC):
    """A kind of memory.  ``name`` is unique among a device's types; ``device`` is None for plain host memory.

    Subclasses provide ``_alloc``; the rest follows.
    """

    def __init__(self, name: str, device: Device | None) -> None:
        self.name = name
        self.device = device

    @abstractmethod
    def _alloc(self, size: int) -> Buffer:
        """Takes the memory, contents undefined; the size is checked already.  Raises OutOfMemoryError."""

    def alloc(self, size: int) -> Buffer:
        """A new buffer of ``size`` bytes, contents undefined.

        Raises OutOfMemoryError, also if ``size`` is beyond ``max_size``; ParameterError if it is negative,
        TypeMismatchError if it is no integer; BufferUseError if ``_alloc`` gave less than that.
        """
        size = whole_number(size, "the size of a buffer")
        if size < 0:
            raise ParameterError(f"{self.name}: a buffer cannot have {size} bytes", got=size)
        limit = self.max_size
        if limit is not None and size > limit:
            raise OutOfMemoryError(
                f"{self.name}: {size} bytes were asked for, one buffer has at most {limit}",
                device=self.device, requested=size, free=limit, remedy="spread the tensors over several buffers",
            )  # fmt: skip
        buffer = self._alloc(size)
        if buffer.size < size:
            raise BufferUseError(
                f"{self.name}: {size} bytes were asked for, the buffer has {buffer.size}", got=buffer.size, wanted=size
            )
        return buffer

    @property
    def alignment(self) -> int:
        """Bytes that the offset of every tensor is a multiple of that an allocator places (default 64).

        A power of two, at least 8, which is what the blocks of every type are content with.  See
        :meth:`Buffer.check_place` for what callers may ask for.
        """
        return 64

    @property
    def max_size(self) -> int | None:
        """Bytes of the largest possible buffer (default None: no limit beyond memory)."""
        return None

    @property
    def is_host(self) -> bool:
        """Whether buffers have an ``address`` that the host reads and writes in ggml's layout (default no)."""
        return False

    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes that a tensor takes in this memory (default its ``nbytes``); more for padded layouts."""
        return tensor.nbytes

    def __repr__(self) -> str:
        return f"<BufferType {self.name}>"


class Buffer(ABC):
    """One allocation.  Subclasses provide ``_set``, ``_get`` and ``_free``; the rest follows.

    ``address``: first byte in host memory, or None.  ``size``: bytes.  ``usage``: what it is for; weights attract
    the ops that read them.
    """

    def __init__(self, type: BufferType, size: int, address: int | None = None) -> None:
        self.type = type
        self.size = size
        self.address = address
        self.usage = BufferUsage.ANY
        self.freed = False
        self._exports: list[None] = []

    # Required

    @abstractmethod
    def _set(self, offset: int, data: Bytes) -> None:
        """Stores bytes; bounds are checked already."""

    @abstractmethod
    def _get(self, offset: int, out: Bytes) -> None:
        """Fetches bytes into a flat, contiguous array; it and the bounds are checked already."""

    @abstractmethod
    def _free(self) -> None:
        """Gives the memory back; called once."""

    # Optional

    @property
    def is_read_only(self) -> bool:
        """Whether these bytes may not be written (default no); a read-only memory map, for example.

        Tensors that lie here are read like all others.  Whatever would write here raises BufferUseError before
        anything is written: transfers, and plans when they are bound.  The answer does not change while a plan is
        bound.
        """
        return False

    def init_tensor(self, tensor: Tensor) -> None:
        """Called when a persistent tensor, or a view of one, got its place in this buffer (default: nothing).

        Intermediates have places that come and go with computations; nobody is told about them.
        """

    def set_tensor(self, tensor: Tensor, data: Any, start: int, offset: int = 0) -> None:
        """Stores bytes of a tensor that lies at ``start`` (default: as they are; repacking types override)."""
        self.set(start + offset, data)

    def get_tensor(self, tensor: Tensor, out: Bytes, start: int, offset: int = 0) -> None:
        """Fetches bytes of a tensor that lies at ``start`` (default: as they are)."""
        self.get(start + offset, out)

    def memset(self, offset: int, size: int, value: int) -> None:
        """Fills a range with a byte (default: stores from the host in pieces)."""
        with accessing(self):
            offset, size, value = self._check_fill(offset, size, value)
            piece = np.full(min(size, 1 << 24), value, np.uint8)
            for done in range(0, size, 1 << 24):
                self._set(offset + done, piece[: min(size - done, 1 << 24)])

    def copy_from(self, source: Buffer, source_offset: int, offset: int, size: int) -> None:
        """Copies bytes from another buffer, of any type (default: through the host)."""
        with accessing(self, source):
            offset, size = self._check_write(offset, size)
            source_offset, _ = source._check(source_offset, size)
            if source.address is not None:
                self._set(offset, source.bytes(source_offset, size))
            elif self.address is not None:
                source._get(source_offset, self.bytes(offset, size))
            else:
                staging = np.empty(size, np.uint8)
                source._get(source_offset, staging)
                self._set(offset, staging)

    def set_2d(self, offset: int, data: Bytes, row_bytes: int, rows: int, stride: int) -> None:
        """Stores ``rows`` packed rows of ``row_bytes`` bytes, ``stride`` bytes apart (default: row by row)."""
        packed = as_bytes(data)
        with accessing(self):
            offset, row_bytes, rows, stride = self._check_rows(offset, packed.size, row_bytes, rows, stride)
            self._check_write(offset, 0)
            for row in range(rows):
                self._set(offset + row * stride, packed[row * row_bytes : (row + 1) * row_bytes])

    def get_2d(self, offset: int, out: Bytes, row_bytes: int, rows: int, stride: int) -> None:
        """Fetches ``rows`` rows that lie ``stride`` bytes apart into packed ``out`` (default: row by row)."""
        packed = check_target(out)
        with accessing(self):
            offset, row_bytes, rows, stride = self._check_rows(offset, packed.size, row_bytes, rows, stride)
            for row in range(rows):
                self._get(offset + row * stride, packed[row * row_bytes : (row + 1) * row_bytes])

    def reset(self) -> None:
        """Called before the buffer's tensors are placed anew (default: nothing)."""

    # Provided

    def set(self, offset: int, data: Any) -> None:
        """Stores raw bytes at ``offset``.  Raises BufferUseError."""
        raw = as_bytes(data)
        with accessing(self):
            offset, size = self._check_write(offset, raw.size)
            if size:
                self._set(offset, raw)

    def get(self, offset: int, out: Bytes) -> None:
        """Fetches ``out.size`` bytes from ``offset`` into a contiguous, writable array of uint8.

        Raises BufferUseError, TypeMismatchError.
        """
        target = check_target(out)
        with accessing(self):
            offset, size = self._check(offset, target.size)
            if size:
                self._get(offset, target)

    def clear(self, value: int = 0) -> None:
        """Fills the whole buffer with a byte."""
        self.memset(0, self.size, value)

    def bytes(self, offset: int, size: int) -> Bytes:
        """A zero-copy view of host memory, read-only if that is.  The caller must not keep it: see :meth:`export`.

        Raises BufferUseError.
        """
        offset, size = self._check(offset, size)
        if self.address is None:
            raise BufferUseError(f"{self!r} has no host address; copy with get()")
        return host_bytes(self.address + offset, size, read_only=self.is_read_only)

    def check_place(self, tensor: Tensor, offset: int) -> int:
        """``offset`` as a plain int, if a tensor may lie there; :meth:`Tensor.place` asks.

        All ``alloc_size`` bytes of the tensor have to be inside of the buffer.  In host memory the address has to be
        a multiple of the alignment of the tensor's type, elsewhere the offset one of that of the buffer's type.
        Raises BufferUseError, also for a freed buffer; TypeMismatchError.
        """
        offset = whole_number(offset, f"the offset of {tensor!r}")
        size = max(tensor.nbytes, self.type.alloc_size(tensor))
        if self.freed or not 0 <= offset <= self.size - size:
            why = "was freed" if self.freed else f"does not have the bytes {offset} to {offset + size}"
            raise BufferUseError(
                f"{tensor!r} cannot be placed: {self!r} {why}", tensor=tensor, got=offset, wanted=self.size - size
            )
        if self.address is not None:
            alignment, place, what = tensor.type.alignment, self.address + offset, tensor.type.name
        else:
            alignment, place, what = self.type.alignment, offset, self.type.name
        if place % alignment:
            raise BufferUseError(
                f"{tensor!r} cannot be placed at byte {offset} of {self!r}: {what} needs a multiple of {alignment}",
                tensor=tensor, got=offset, wanted=alignment,
            )  # fmt: skip
        return offset

    def export(self) -> None:
        """Counts a zero-copy view that outlives the call; until :meth:`release`, ``free`` raises."""
        with accessing(self):
            self._check(0, 0)
            self._exports.append(None)

    def release(self) -> None:
        """Ends an export.  Waits for nothing: arrays go away anywhere, even within a computation."""
        self._exports.pop()

    def check_free(self) -> None:
        """Raises BufferUseError while zero-copy views of the buffer exist."""
        if self._exports:
            raise BufferUseError(
                f"{self!r} cannot be freed: {len(self._exports)} zero-copy view(s) of its memory are alive",
                remedy="delete the arrays first, or copy them",
            )

    def free(self) -> None:
        """Gives the memory back, after waiting for what uses it.  Freeing twice does nothing.

        Raises BufferUseError while exported, and BusyError if it is called from within what it would have to wait for.
        """
        if self.freed:
            return
        with freeing(self):
            if self.freed:
                return
            self.check_free()
            # In this order: a computation that begins after this looks at the epoch, and then at ``freed``.
            self.freed = True
            Epoch.advance()
            self._free()

    def _check(self, offset: int, size: int) -> tuple[int, int]:
        """Offset and size as plain ints, if these bytes can be read.  Raises BufferUseError, TypeMismatchError."""
        if self.freed:
            raise BufferUseError(f"{self!r} was freed")
        offset, size = whole_number(offset, "an offset"), whole_number(size, "a size")
        if offset < 0 or size < 0 or offset + size > self.size:
            raise BufferUseError(f"bytes {offset} to {offset + size} are outside of {self!r}", got=(offset, size))
        return offset, size

    def _check_write(self, offset: int, size: int) -> tuple[int, int]:
        """Likewise, if these bytes can be written."""
        found = self._check(offset, size)
        if self.is_read_only:
            raise BufferUseError(f"{self!r} may not be written", remedy=COPY_FIRST)
        return found

    def _check_fill(self, offset: int, size: int, value: int) -> tuple[int, int, int]:
        """Likewise, if they can be filled with this value.  Raises ParameterError if it is none of a byte."""
        value = whole_number(value, "a byte")
        if not 0 <= value <= 255:
            raise ParameterError(f"a byte is 0 to 255, got {value}", got=value)
        return *self._check_write(offset, size), value

    def _check_rows(
        self, offset: int, size: int, row_bytes: int, rows: int, stride: int
    ) -> tuple[int, int, int, int]:
        """Offset, bytes of a row, rows and stride as plain ints, if these rows can be read.

        ``size``: bytes on the host's side.  Raises BufferUseError, ShapeError, TypeMismatchError.
        """
        row_bytes, rows = whole_number(row_bytes, "the bytes of a row"), whole_number(rows, "the number of rows")
        stride = whole_number(stride, "a stride")
        if row_bytes < 0 or rows < 0 or stride < 0:
            raise BufferUseError(
                f"there are no {rows} rows of {row_bytes} bytes, {stride} apart", got=(row_bytes, rows, stride)
            )
        if size != rows * row_bytes:
            raise ShapeError(f"{rows} rows of {row_bytes} bytes are not {size} bytes", got=size)
        offset, _ = self._check(offset, (rows - 1) * stride + row_bytes if size else 0)
        return offset, row_bytes, rows, stride

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    def __repr__(self) -> str:
        state = ", freed" if self.freed else ", read-only" if self.is_read_only else ""
        return f"<Buffer {self.type.name}, {self.size} bytes, {self.usage.name.lower()}{state}>"


def host_bytes(address: int, size: int, *, read_only: bool = False) -> Bytes:
    """A uint8 array over host memory that somebody else keeps alive.  A read-only one cannot be made writable."""
    if size == 0:
        return np.empty(0, np.uint8)
    return np.asarray(_HostMemory(address, size, read_only))


class _HostMemory:
    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, address: int, size: int, read_only: bool) -> None:
        self.__array_interface__ = {"data": (address, read_only), "shape": (size,), "typestr": "|u1", "version": 3}


def check_target(out: Any) -> Bytes:
    """``out`` as a flat array, if bytes can be fetched into it: a contiguous uint8 array that may be written.

    For everything that fetches, before it gives an address away.  Raises TypeMismatchError, BufferUseError.
    """
    if not isinstance(out, np.ndarray) or out.dtype != np.uint8:
        got = out.dtype if isinstance(out, np.ndarray) else type(out).__name__
        raise TypeMismatchError(f"bytes are fetched into an array of uint8, got {got}", got=got, wanted=np.uint8)
    if not out.flags.c_contiguous or not out.flags.writeable:
        what = "is read-only" if out.flags.c_contiguous else f"has gaps (strides {out.strides})"
        raise BufferUseError(f"bytes cannot be fetched into an array that {what}", got=out)
    return out.reshape(-1)


# -- devices ---------------------------------------------------------------------------------------


class Registration(ABC):
    """What a plugin's hook returns (ggml_backend_reg).

    ``name``: the backend's name, prefix of its devices' names.  ``version``: of the plugin.  ``api_version``: a
    literal, the :data:`API_VERSION` that the plugin was written for.
    """

    name: str
    version: str = "0"
    api_version: int

    @abstractmethod
    def devices(self) -> Sequence[Device]:
        """The devices there are, without taking a context or device memory.  Always the same objects.

        Where there is none because there is no hardware or no driver for it, it may raise DeviceNotFoundError with the
        reason, and with what to install as ``remedy``.  Nothing failed then: other backends are used without a word,
        and whoever asks for this one's devices, or asks the doctor, is told.
        """

    def get(self, name: str) -> Any:
        """An extra of this backend by name, or None (ggml_backend_reg_get_proc_address; default None)."""
        return None

    def __repr__(self) -> str:
        return f"<Registration {self.name} {self.version}>"


class Device(ABC):
    """One piece of hardware (ggml_backend_dev).

    Required: ``name``, ``description``, ``kind``, :meth:`memory`, :attr:`buffer_type`, and a way to run ops: either the
    ``kernels`` table, or :meth:`match` and an own :meth:`init`.
    """

    name: str
    description: str
    kind: DeviceKind
    registration: Registration | None = None
    device_id: str | None = None
    """PCI address or UUID; two backends that show the same physical device give the same id."""
    capabilities: Capabilities = Capabilities()

    kernels: ClassVar[Mapping[type[Op], Callable[..., None]]] = {}
    """For the smallest devices: op class -> ``kernel(op, dst, *src)`` over :class:`Operand`; see :class:`WalkPlan`."""

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
        """Everything about the device at a glance."""
        free, total = self.memory()
        return DeviceProps(
            self.name, self.description, self.kind, free, total, self.device_id, self.capabilities
        )

    def init(self, **params: Any) -> Backend:
        """A new stream (default: a :class:`Backend` that walks the graph over ``kernels``)."""
        return Backend(self, **params)

    def match(self, node: Tensor) -> Any:
        """What runs a node: a kernel of the device's own kind, or a :class:`Decline` with the reason.

        A pure function of the node's signature: op, parameters, types, extents, strides, and the buffer types of
        persistent sources.  ``supports_op`` and plans both ask it.  Default: looks the op's class and its bases up in
        ``kernels``.
        """
        for kind in type(node.op).__mro__:
            kernel = self.kernels.get(kind)
            if kernel is not None:
                return kernel
        return Decline(f"{self.name} has no kernel for {node.op.name if node.op else 'leafs'}")

    def supports_op(self, node: Tensor) -> Support:
        """Whether the device computes this node, or why not.  View ops are always supported."""
        if node.op is None or node.op.is_view:
            return Accept()
        found = self.match(node)
        return found if isinstance(found, Decline) else Accept()

    def matches(self, graph: Graph) -> Iterator[tuple[Tensor, Any]]:
        """Each node that computes something, with what :meth:`match` found for it: where a plan begins.

        Views and nodes without elements are left out.  Raises UnsupportedOpError for a node that the device declines.
        """
        for node in graph.nodes:
            assert node.op is not None
            if node.op.is_view or node.size == 0:
                continue
            found = answer_of(self, node, self.match)
            if isinstance(found, Decline):
                raise UnsupportedOpError(
                    f"{self.name} declines {node!r}: {found.reason}",
                    op=node.op, device=self, tensor=node, reason=found.reason,
                )  # fmt: skip
            yield node, found

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """Whether kernels of this device can work in that memory (default: only in the device's own)."""
        return buffer_type.device is self

    def offload_op(self, node: Tensor) -> bool:
        """Whether the node is worth copying its weights here for (default no)."""
        return False

    def buffer_from_host(self, memory: Any, *, usage: BufferUsage = BufferUsage.ANY) -> Buffer:
        """A buffer over memory that the caller keeps (anything with the buffer protocol, such as a memory map).

        Over read-only memory it is read-only, too.  ``capabilities.buffer_from_host`` tells whether a device has this
        (default: raises BufferUseError).
        """
        raise BufferUseError(f"{self.name} cannot use host memory in place", device=self)

    def event(self) -> Event:
        """A new event (default: one that streams honour by synchronizing)."""
        return Event(self)

    def __repr__(self) -> str:
        return f"<Device {self.name} ({self.kind.name}): {self.description}>"


class Event:
    """A mark in a stream that others can wait for (ggml_backend_event).

    The base class serves every device: recording notes the stream, and waiting synchronizes it.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._stream: Backend | None = None

    def record(self, stream: Backend) -> None:
        """Marks the end of what was given to ``stream`` so far (ggml_backend_event_record)."""
        self._stream = stream

    def wait(self, stream: Backend) -> None:
        """Makes ``stream`` wait, without the host where the device can (ggml_backend_event_wait).

        ``stream`` may belong to any device; an event that cannot make that one wait synchronizes instead.
        """
        self.synchronize()

    def synchronize(self) -> None:
        """Makes the caller wait (ggml_backend_event_synchronize).  An event never recorded does not wait."""
        if self._stream is not None:
            self._stream.synchronize()

    def free(self) -> None:
        """Gives the event back."""
        self._stream = None


# -- computing -------------------------------------------------------------------------------------


class NodeTime(NamedTuple):
    """When a node of a traced computation ran: ``time.perf_counter_ns`` values."""

    node: int
    start: int
    end: int


class Plan(ABC):
    """A graph made ready once, to be computed many times (ggml_backend_graph_plan).

    A plan depends on the graph's structure only; :meth:`rebind` tells it where the tensors lie.
    """

    @abstractmethod
    def rebind(self, graph: Graph, allocation: Allocation) -> None:
        """Takes over the places of all tensors.

        ``graph`` is the one planned or an equal one; for another graph this raises GraphError, which
        ``graph.check_structure`` does with the ``graph.structure`` that was planned.  ``allocation`` tells where its
        tensors lie, all at once through ``allocation.addresses(graph)`` (host memory) or ``allocation.places(graph)``
        (handles).  Both refuse places that the graph cannot be computed in: unplaced tensors, freed buffers, memory
        that a node would write and that may not be written (TensorStateError, BufferUseError).  A plan that finds the
        places in another way calls ``allocation.check(graph)``.  Then it stays bound to what it was bound to before.

        Costs no Python call per node.  The caller keeps graph and allocation alive as long as it computes; a plan need
        not.  A computation that was given to the stream before goes on with the places that it was given with; a plan
        that cannot do that waits for it.
        """

    @abstractmethod
    def compute(self) -> None:
        """Gives the computation to the stream.  May return before it is done.

        Costs no Python call per node, or one a launch where the runtime takes launches one by one.
        """

    def compute_traced(self) -> list[NodeTime]:
        """Computes, waits, and tells when each node ran (default: one entry for the whole, node -1)."""
        start = time.perf_counter_ns()
        self.compute()
        return [NodeTime(-1, start, time.perf_counter_ns())]

    def kernel_names(self) -> list[str]:
        """The kernels in the order in which they run, for explanations and tests (default: empty)."""
        return []

    def free(self) -> None:
        """Gives what the plan holds back (default: nothing)."""


class Backend:
    """A stream of work on a device (ggml_backend).

    The base class computes on the host: transfers are immediate, and plans walk the nodes over ``device.kernels``.
    A device with a queue of its own overrides the ``async`` methods, :meth:`synchronize` and :meth:`plan`.
    """

    PLANS = 64
    """How many plans :meth:`compute` keeps; the one used longest ago goes first."""

    _thread = 0
    """The thread that computes or frees now (:func:`ggplug.sharing.alone`)."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.name = device.name
        self._plans: OrderedDict[Signature, _Planned] = OrderedDict()

    # Transfers

    def set_async(self, buffer: Buffer, offset: int, data: Any) -> None:
        """Stores bytes in the order of the stream (default: now)."""
        buffer.set(offset, data)

    def get_async(self, buffer: Buffer, offset: int, out: Bytes) -> None:
        """Fetches bytes in the order of the stream (default: now)."""
        buffer.get(offset, out)

    def copy_async(
        self, source: Buffer, source_offset: int, target: Buffer, target_offset: int, size: int,
        source_stream: Backend | None = None,
    ) -> None:  # fmt: skip
        """Copies into ``target``, of this stream's device, in the order of this stream.

        ``source_stream`` is the stream that writes the source, if there is one: the copy comes after what was given
        to it.
        Default: waits for both streams and copies now.
        """
        if source_stream is not None:
            source_stream.synchronize()
        self.synchronize()
        target.copy_from(source, source_offset, target_offset, size)

    def synchronize(self) -> None:
        """Waits until everything given is done; raises what went wrong (default: nothing is ever pending)."""

    # Computing

    def plan(self, graph: Graph) -> Plan:
        """A new plan.  Raises UnsupportedOpError for a node that the device declines (default: a :class:`WalkPlan`)."""
        return WalkPlan(self, graph)

    def optimize(self, graph: Graph) -> Graph:
        """A graph with the same results that suits the device better (default: the same graph)."""
        return graph

    @alone
    def compute(self, graph: Graph, allocation: Allocation) -> None:
        """Plans once for all equal graphs, binds, and computes.

        Raises BusyError if another thread is in it, or if it is called from within itself.
        """
        signature = graph.signature()
        planned = self._plans.get(signature)
        if planned is None:
            planned = self._plans[signature] = _Planned(self.plan(graph))
            if len(self._plans) > self.PLANS:
                self._plans.popitem(last=False)[1].plan.free()
        else:
            self._plans.move_to_end(signature)
        if planned.allocation is not allocation or planned.epoch != Epoch.now or planned.graph() is not graph:
            planned.epoch = -1
            epoch = Epoch.now
            allocation.check(graph)
            planned.plan.rebind(graph, allocation)
            planned.graph, planned.allocation, planned.epoch = weakref.ref(graph), allocation, epoch
        computation = allocation.begin(graph)
        done = 0
        try:
            planned.plan.compute()
            done = len(graph.nodes)
        finally:
            computation.end(self, progress=done)

    @alone
    def free(self) -> None:
        """Waits, and gives plans and stream back.  Raises BusyError while another thread computes on the stream."""
        self.synchronize()
        for planned in self._plans.values():
            planned.plan.free()
        self._plans.clear()

    def __enter__(self) -> Backend:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    def __repr__(self) -> str:
        return f"<Backend {self.name}>"


class _Planned:
    """A plan that :meth:`Backend.compute` keeps, and what it is bound to."""

    __slots__ = ("allocation", "epoch", "graph", "plan")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.graph: Callable[[], Graph | None] = lambda: None
        self.allocation: Allocation | None = None
        self.epoch = -1


class Operand(NamedTuple):
    """A tensor and its bytes, as :class:`WalkPlan` hands it to a kernel."""

    tensor: Tensor
    buffer: Buffer
    offset: int

    def array(self) -> npt.NDArray[Any]:
        """A zero-copy, strided, four-dimensional array in NumPy order (``ne`` reversed).

        Plain types have their dtype; of block types the innermost axis counts blocks.
        """
        return strided(self.buffer.bytes(self.offset, self.tensor.nbytes), self.tensor)


class _Call(NamedTuple):
    position: int
    kernel: Callable[..., None]
    node: Tensor
    operands: list[Operand | None]


class WalkPlan(Plan):
    """Calls ``kernel(op, dst, *src)`` for node after node; views and empty tensors are skipped.

    ``dst`` and ``src`` are :class:`Operand` (None for absent sources).  The plan of the smallest backends.  Kernels of
    ops with ids write zeros (or nothing, where the op writes into a source) for those out of range; the plan raises the
    error.
    """

    def __init__(self, stream: Backend, graph: Graph) -> None:
        self.stream = stream
        self._structure = graph.structure
        self._steps: list[tuple[int, Callable[..., None]]] = [
            (graph.index[node], kernel) for node, kernel in stream.device.matches(graph)
        ]
        self._bound: tuple[list[_Call], frozenset[Buffer]] = [], NOTHING

    def rebind(self, graph: Graph, allocation: Allocation) -> None:
        self._structure = graph.check_structure(self._structure, "the plan")
        buffers, which, offsets = allocation.places(graph)
        bound = [
            Operand(tensor, buffers[number], offset)
            for tensor, number, offset in zip(graph.tensors, which.tolist(), offsets.tolist(), strict=True)
        ]
        calls: list[_Call] = []
        for position, kernel in self._steps:
            sources = [None if source < 0 else bound[source] for source in graph.sources[position]]
            calls.append(_Call(position, kernel, graph.tensors[position], [bound[position], *sources]))
        self._bound = calls, frozenset(each.buffer for call in calls for each in call.operands if each is not None)

    def compute(self) -> None:
        self._run(lambda position: None)

    def compute_traced(self) -> list[NodeTime]:
        times: list[NodeTime] = []
        start = time.perf_counter_ns()

        def note(position: int) -> None:
            nonlocal start
            end = time.perf_counter_ns()
            times.append(NodeTime(position, start, end))
            start = end

        self._run(note)
        return times

    def _run(self, computed: Callable[[int], None]) -> None:
        """Calls the kernels, and ``computed`` with each node's position; others leave the buffers alone meanwhile."""
        calls, buffers = self._bound
        # NaN, infinities and what overflows are values like others: kernels that use NumPy need not silence it.
        with using(buffers), np.errstate(all="ignore"):
            for buffer in buffers:
                buffer._check(0, 0)
            for position, kernel, node, operands in calls:
                call_kernel(self.stream.device, kernel, node, operands)
                computed(position)

    def kernel_names(self) -> list[str]:
        return [getattr(kernel, "__name__", repr(kernel)) for _, kernel in self._steps]


def call_kernel(
    device: Device, kernel: Callable[..., None], node: Tensor, operands: Sequence[Operand | None]
) -> None:
    """Calls ``kernel(op, dst, *src)`` on host memory; then raises ComputeError if an id of the node is out of range.

    Raises what the kernel raised, as a typed error.
    """
    try:
        kernel(node.op, *operands)
    except GGPlugError:
        raise
    except Exception as error:
        raise compute_error(device, node, error) from error
    op = node.op
    if op is not None and op.indexes is not None:
        ids = operands[1 + op.indexes.ids]
        assert ids is not None
        got = first_out_of_range(node, ids.array())
        if got is not None:
            raise id_out_of_range(device, node, got)


def first_out_of_range(node: Tensor, ids: npt.NDArray[Any]) -> int | None:
    """Of a node's ids, in NumPy order, the first that is out of range; None if there is none."""
    outside = ids[(ids < 0) | (ids >= limit_of_ids(node))]
    return int(outside[0]) if outside.size else None


def limit_of_ids(node: Tensor) -> int:
    """What the ids of a node have to stay below."""
    assert node.op is not None
    assert node.op.indexes is not None
    indexed = node.src[node.op.indexes.of]
    assert indexed is not None
    return indexed.ne[node.op.indexes.dim]


def id_out_of_range(device: Device, node: Tensor, got: int) -> ComputeError:
    """The error of a node that was given the id ``got``; its op says what the ids choose from (``Op.indexes``)."""
    op = node.op
    assert op is not None
    assert op.indexes is not None
    ids, of, dim = op.indexes
    limit = limit_of_ids(node)
    consequence = "that row was left out" if op.writes else "its row of the result is zeros"
    return ComputeError(
        f"{device.name}: {node!r} was given the id {got} in {op.sources[ids]!r}; ids must be at least 0 and less than "
        f"{limit}, ne{dim} of {op.sources[of]!r}; {consequence}",
        op=op, device=device, tensor=node, got=got, wanted=limit,
    )  # fmt: skip


def answer_of(device: Device, node: Tensor, question: Callable[[Tensor], Any]) -> Any:
    """What ``device.match`` or ``device.supports_op`` says of a node.

    Raises ComputeError if it raises anything but a GGPlugError, or returns None.
    """
    try:
        answer = question(node)
    except GGPlugError:
        raise
    except Exception as error:
        raise compute_error(device, node, error) from error
    if answer is None:
        raise ComputeError(
            f"{device.name} says nothing of {node!r}: match() must return a kernel or a Decline",
            device=device, op=node.op, tensor=node,
        )  # fmt: skip
    return answer


def compute_error(device: Device, node: Tensor, error: BaseException) -> GGPlugError:
    """The typed error for whatever a kernel raised."""
    if isinstance(error, MemoryError):
        return OutOfMemoryError(f"{device.name} ran out of memory in {node!r}: {error}", device=device, op=node.op)
    return ComputeError(f"{device.name} failed in {node!r}: {error}", device=device, op=node.op, tensor=node)
