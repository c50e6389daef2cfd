"""Buffer types and buffers: kinds of memory, allocations, and access to their bytes.

Part of the interface, whose contract :mod:`ggplug.backend` states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.errors import BufferUseError, OutOfMemoryError, ParameterError, ShapeError, TypeMismatchError
from ggplug.sharing import accessing, freeing
from ggplug.system.copying import Uncopied, Unique
from ggplug.system.overriding import Overridable
from ggplug.types import BufferUsage
from ggplug.values.arrays import as_bytes, whole_number
from ggplug.values.described import Described, Named
from ggplug.values.revisions import Watchers

Bytes = npt.NDArray[np.uint8]

COPY_FIRST = "copy the tensor first, or load it into memory that may be written"
"""The remedy for writes to read-only memory."""

LEAST_ALIGNMENT = 8
"""Bytes: enough for every type."""

THROUGH_TENSORS = "use the whole tensor: its set, set_bytes, numpy and tobytes convert between the layouts"
"""The remedy for access to raw bytes of memory with a layout of its own."""


class BufferType(Overridable, Unique, ABC):
    """A kind of memory.  ``name`` is unique among a device's types; ``device`` is None for plain host memory.

    Subclasses provide ``_alloc``; the rest follows.
    """

    _INSTEAD = "use the buffer type of a device of that process"

    def __init__(self, name: str, device: Named | None) -> None:
        self.name = name
        self.device = device

    @abstractmethod
    def _alloc(self, size: int) -> Buffer:
        """Allocates ``size`` bytes, which were checked, with undefined contents.  Raises OutOfMemoryError."""

    def _alloc_zeroed(self, size: int) -> Buffer:
        """As :meth:`_alloc`, with zeros as contents (default: fills the buffer with them)."""
        buffer = self._alloc(size)
        try:
            buffer.clear()
        except BaseException:
            buffer.free()
            raise
        return buffer

    def alloc(self, size: int) -> Buffer:
        """A new buffer of ``size`` bytes with undefined contents.

        Raises OutOfMemoryError, also if ``size`` is beyond ``max_size``; ParameterError if it is negative,
        TypeMismatchError if it is no integer; BufferUseError if ``_alloc`` returned a smaller buffer, and for an
        :attr:`alignment` that is none.
        """
        return self._allocated(self._alloc, size)

    def alloc_zeroed(self, size: int) -> Buffer:
        """As :meth:`alloc`, with zeros as contents.

        Raises BufferUseError for memory with a layout of its own, whose bytes only tensors access.
        """
        if self.has_own_layout:
            raise BufferUseError(
                f"{self.name} has a layout of its own, and zeros in it are those of tensors",
                remedy="place tensors with alloc() and call their set_zero, or call ggplug.allocate(..., zeroed=True)",
            )
        return self._allocated(self._alloc_zeroed, size)

    def _allocated(self, allocate: Callable[[int], Buffer], size: int) -> Buffer:
        size = whole_number(size, "the size of a buffer")
        if size < 0:
            raise ParameterError(f"{self.name}: the size of a buffer must not be negative, got {size}", got=size)
        alignment = self.alignment
        if not (isinstance(alignment, int) and alignment >= LEAST_ALIGNMENT and not alignment & (alignment - 1)):
            raise BufferUseError(
                f"{self.name}.alignment must be a power of two, at least {LEAST_ALIGNMENT}, got {alignment!r:.100}",
                device=self.device,
                got=alignment,
            )
        limit = self.max_size
        if limit is not None and size > limit:
            raise OutOfMemoryError(
                f"{self.name}: cannot allocate {size} bytes, one buffer has at most {limit}",
                device=self.device,
                requested=size,
                free=limit,
                remedy="spread the tensors over several buffers",
            )
        buffer = allocate(size)
        if buffer.size < size:
            raise BufferUseError(
                f"{self.name}: _alloc() returned a buffer of {buffer.size} bytes instead of {size}",
                got=buffer.size,
                wanted=size,
            )
        return buffer

    @property
    def alignment(self) -> int:
        """Allocators place tensors at multiples of this number of bytes (default 64).

        A power of two, at least :data:`LEAST_ALIGNMENT`, which is enough for every type.  :meth:`Buffer.check_place`
        says which offsets callers may use.
        """
        return 64

    @property
    def max_size(self) -> int | None:
        """Bytes of the largest possible buffer (default None: limited only by memory)."""
        return None

    @property
    def is_host(self) -> bool:
        """Whether buffers have an ``address`` that the host reads and writes in ggml's layout (default no)."""
        return False

    @property
    def has_own_layout(self) -> bool:
        """Whether this memory stores tensors in another order of bytes than ggml's, as for packed weights (default no).

        Then bytes are accessed only by whole tensors, through :meth:`Buffer.set_tensor` and :meth:`Buffer.get_tensor`,
        which subclasses override; every other access raises BufferUseError.  Only leafs lie in such memory, never
        results, and :meth:`Device.match` declines every node for which it has no kernel for the layout.
        """
        return False

    def refusal(self, tensor: Described) -> str | None:
        """Why a tensor cannot lie in this memory; None if it can (default for every tensor).

        Memory with a layout of its own refuses tensors that the layout does not support.  :meth:`Buffer.check_place`
        calls it.
        """
        return None

    def alloc_size(self, tensor: Described) -> int:
        """Bytes that a tensor takes in this memory (default its ``nbytes``); more for padded layouts."""
        return tensor.nbytes

    def __repr__(self) -> str:
        return f"<BufferType {self.name}>"


class Buffer(Overridable, Uncopied, ABC):
    """One allocation.  Subclasses provide ``_set``, ``_get`` and ``_free``; the rest follows.

    ``address``: first byte in host memory, or None.  ``size``: bytes.  ``watchers``: revisions of graphs with tensors
    in this buffer, which are advanced when it is freed.  ``unset``: ranges of tensors that an allocator placed here and
    that have no value yet; false if there are none.
    """

    _INSTEAD = "copy the values of its tensors, with numpy()"

    def __init__(self, type: BufferType, size: int, address: int | None = None) -> None:
        from ggplug.values.unset import Unset  # needed where memory is allocated

        self.type = type
        self.size = size
        self.address = address
        self.freed = False
        self._given_back = False
        self.watchers = Watchers()
        self.unset = Unset()
        self._usage = BufferUsage.ANY
        self._exports: list[None] = []

    # Required

    @abstractmethod
    def _set(self, offset: int, data: Bytes) -> None:
        """Stores bytes; the caller has checked the bounds."""

    @abstractmethod
    def _get(self, offset: int, out: Bytes) -> None:
        """Fetches bytes into a flat, contiguous array; the caller has checked it and the bounds."""

    @abstractmethod
    def _free(self) -> None:
        """Frees the memory; called once, and again if it raised and ``free`` is repeated."""

    # Optional

    @property
    def is_read_only(self) -> bool:
        """Whether the buffer cannot be written (default no), as with a read-only memory map.

        Tensors in it are read like all others.  Transfers that would write, and binding a plan that would, raise
        BufferUseError before a byte changes.  The value must not change while a plan is bound.
        """
        return False

    def init_tensor(self, tensor: Described) -> None:
        """Called when a persistent tensor, or a view of one, was placed in this buffer (default: does nothing).

        It is not called for intermediates, whose places change with every computation.
        """

    def set_tensor(self, tensor: Described, data: Any, start: int, offset: int = 0) -> None:
        """Stores bytes of a tensor that lies at ``start`` (default: without conversion).

        Memory with a layout of its own overrides this and :meth:`get_tensor`.
        """
        self.set(start + offset, data)

    def get_tensor(self, tensor: Described, out: Bytes, start: int, offset: int = 0) -> None:
        """Fetches bytes of a tensor that lies at ``start`` (default: without conversion)."""
        self.get(start + offset, out)

    def memset(self, offset: int, size: int, value: int) -> None:
        """Fills a range with a byte (default: stores arrays from the host)."""
        with accessing(self):
            offset, size, value = self.check_fill(offset, size, value)
            piece = np.full(min(size, 1 << 24), value, np.uint8)
            for done in range(0, size, 1 << 24):
                self._set(offset + done, piece[: min(size - done, 1 << 24)])

    def copy_from(self, source: Buffer, source_offset: int, offset: int, size: int) -> None:
        """Copies bytes from another buffer, of any type, or within this one (default: through the host).

        The two ranges may overlap: the target gets what the source held before.
        """
        with accessing(self, source):
            # The source is checked first, so that a refused copy does not count as a write.
            source_offset, size = source.check_read(source_offset, size)
            offset, _ = self.check_write(offset, size)
            if source.address is not None:
                self._set(offset, host_bytes(source.address + source_offset, size, read_only=True))
            elif self.address is not None:
                source._get(source_offset, host_bytes(self.address + offset, size))
            else:
                staging = np.empty(size, np.uint8)
                source._get(source_offset, staging)
                self._set(offset, staging)

    def set_2d(self, offset: int, data: Bytes, row_bytes: int, rows: int, stride: int) -> None:
        """Stores ``rows`` contiguous rows of ``row_bytes`` bytes, ``stride`` bytes apart (default: row by row).

        If the stride is less than a row, each row overwrites the end of the one before.
        """
        packed = as_bytes(data)
        with accessing(self):
            offset, row_bytes, rows, stride = self.check_write_rows(offset, packed.size, row_bytes, rows, stride)
            for row in range(rows):
                self._set(offset + row * stride, packed[row * row_bytes : (row + 1) * row_bytes])

    def get_2d(self, offset: int, out: Bytes, row_bytes: int, rows: int, stride: int) -> None:
        """Fetches ``rows`` rows that lie ``stride`` bytes apart into contiguous ``out`` (default: row by row)."""
        packed = check_target(out)
        with accessing(self):
            offset, row_bytes, rows, stride = self.check_rows(offset, packed.size, row_bytes, rows, stride)
            for row in range(rows):
                self._get(offset + row * stride, packed[row * row_bytes : (row + 1) * row_bytes])

    def reset(self) -> None:
        """Called before the buffer's tensors are placed again (default: does nothing)."""

    # Provided

    @property
    def usage(self) -> BufferUsage:
        """The use of the buffer; the scheduler computes nodes where their weights lie."""
        return self._usage

    @usage.setter
    def usage(self, usage: BufferUsage) -> None:
        self.watchers.advance()  # before the change, too: as in Tensor.place
        self._usage = usage
        self.watchers.advance()

    def set(self, offset: int, data: Any) -> None:
        """Stores raw bytes at ``offset``.  Raises BufferUseError."""
        raw = as_bytes(data)
        with accessing(self):
            offset, size = self.check_write(offset, raw.size)
            if size:
                self._set(offset, raw)

    def get(self, offset: int, out: Bytes) -> None:
        """Fetches ``out.size`` bytes from ``offset`` into a contiguous, writable array of uint8.

        Raises BufferUseError, TypeMismatchError.
        """
        target = check_target(out)
        with accessing(self):
            offset, size = self.check_read(offset, target.size)
            if size:
                self._get(offset, target)

    def clear(self, value: int = 0) -> None:
        """Fills the whole buffer with a byte."""
        self.memset(0, self.size, value)

    def bytes(self, offset: int, size: int) -> Bytes:
        """A zero-copy view of host memory, read-only if that is.  To keep it, call :meth:`export`.

        Raises BufferUseError.
        """
        offset, size = self.check_read(offset, size)
        if self.address is None:
            raise BufferUseError(f"{self!r} has no host address; copy with get()")
        if self.unset:
            self.fill(offset, size)
        return host_bytes(self.address + offset, size, read_only=self.is_read_only)

    @property
    def keeper(self) -> object | None:
        """The object that keeps host memory alive for arrays that outlive the buffer (default None: there is none)."""
        return None

    def check_place(self, tensor: Described, offset: int) -> int:
        """``offset`` as a plain int, if the tensor may lie there; :meth:`Tensor.place` calls it.

        All ``alloc_size`` bytes of the tensor must be inside of the buffer.  In host memory the address must be a
        multiple of the alignment of the tensor's type; in device memory the offset must be a multiple of the alignment
        of the buffer's type.  Raises BufferUseError, also for a freed buffer and for a tensor that the memory refuses;
        TypeMismatchError.
        """
        offset = whole_number(offset, f"the offset of {tensor!r}")
        refusal = self.type.refusal(tensor)
        if refusal is not None:
            raise BufferUseError(
                f"{tensor!r} cannot be placed in {self.type.name}: {refusal}",
                tensor=tensor,
                remedy="place it in the device's default memory",
            )
        size = max(tensor.nbytes, self.type.alloc_size(tensor))
        if self.freed or not 0 <= offset <= self.size - size:
            why = "was freed" if self.freed else f"does not have the bytes {offset} to {offset + size}"
            raise BufferUseError(
                f"{tensor!r} cannot be placed: {self!r} {why}", tensor=tensor, got=offset, wanted=self.size - size
            )
        if self.address is not None and not self.type.has_own_layout:
            alignment, place, what = tensor.type.alignment, self.address + offset, tensor.type.name
        else:
            alignment, place, what = self.type.alignment, offset, self.type.name
        if place % alignment:
            raise BufferUseError(
                f"{tensor!r} cannot be placed at byte {offset} of {self!r}: {what} must be a multiple of {alignment}",
                tensor=tensor,
                got=offset,
                wanted=alignment,
            )
        return offset

    def export(self) -> None:
        """Registers a zero-copy view that outlives the call; ``free`` raises until :meth:`release`."""
        with accessing(self):
            self.check_read(0, 0)
            self._exports.append(None)

    def release(self) -> None:
        """Ends an export.  Does not wait, because arrays may be deleted at any time, even within a computation."""
        self._exports.pop()

    def check_free(self) -> None:
        """Raises BufferUseError while zero-copy views of the buffer exist."""
        if self._exports:
            raise BufferUseError(
                f"{self!r} cannot be freed: {len(self._exports)} zero-copy view(s) of its memory are alive",
                remedy="delete the arrays first, or copy them",
            )

    def free(self) -> None:
        """Frees the memory, after waiting for computations and accesses.  Freeing twice does nothing.

        If an interrupt ends it, it can be repeated.  Raises BufferUseError while exported, and BusyError if it is
        called from within a computation that it would wait for.
        """
        if self._given_back:
            return
        with freeing(self):
            if self._given_back:
                return
            if not self.freed:
                self.check_free()
                # In this order: a computation that begins later checks its graph's revision, then ``freed``.
                self.freed = True
            self.watchers.advance()
            self._free()
            self._given_back = True

    def check_there(self) -> None:
        """Raises BufferUseError if the buffer was freed."""
        if self.freed:
            raise BufferUseError(f"{self!r} was freed")

    def check_read(self, offset: int, size: int) -> tuple[int, int]:
        """Offset and size as plain ints, if these bytes can be read.  Raises BufferUseError, TypeMismatchError."""
        self.check_there()
        if self.type.has_own_layout:
            raise BufferUseError(f"{self!r} has no bytes in ggml's layout", remedy=THROUGH_TENSORS)
        offset, size = whole_number(offset, "an offset"), whole_number(size, "a size")
        if offset < 0 or size < 0 or offset + size > self.size:
            raise BufferUseError(f"bytes {offset} to {offset + size} are outside of {self!r}", got=(offset, size))
        return offset, size

    def check_write(self, offset: int, size: int) -> tuple[int, int]:
        """Offset and size as plain ints, if these bytes can be written; marks tensors there as set, as :meth:`fill`.

        Call it only if the bytes are then written.  ``check_write(offset, 0)`` checks without marking anything.
        """
        found = self.check_read(offset, size)
        if self.is_read_only:
            raise BufferUseError(f"{self!r} is read-only", remedy=COPY_FIRST)
        if self.unset:
            self.fill(*found)
        return found

    def fill(self, offset: int, size: int) -> None:
        """Marks the tensors in a range as set, because it is written or a write was submitted.

        The methods of a buffer that write call it; code that writes in another way must call it.
        """
        if size:
            self.unset.remove(offset, offset + size)

    def check_fill(self, offset: int, size: int, value: int) -> tuple[int, int, int]:
        """As :meth:`check_write`, for filling with a value; returns offset, size and value as plain ints.

        Raises ParameterError if the value is no byte.
        """
        value = whole_number(value, "a byte")
        if not 0 <= value <= 255:
            raise ParameterError(f"the value of a byte must be 0 to 255, got {value}", got=value)
        return *self.check_write(offset, size), value

    def check_rows(self, offset: int, size: int, row_bytes: int, rows: int, stride: int) -> tuple[int, int, int, int]:
        """Offset, bytes of a row, rows and stride as plain ints, if these rows can be read.

        ``size``: bytes of the array in host memory.  Raises BufferUseError, ShapeError, TypeMismatchError.
        """
        row_bytes, rows = whole_number(row_bytes, "the bytes of a row"), whole_number(rows, "the number of rows")
        stride = whole_number(stride, "a stride")
        if row_bytes < 0 or rows < 0 or stride < 0:
            raise BufferUseError(
                f"numbers of rows, row_bytes and stride must not be negative, got {rows}, {row_bytes}, {stride}",
                got=(row_bytes, rows, stride),
            )
        if size != rows * row_bytes:
            raise ShapeError(f"the array has {size} bytes, {rows} rows of {row_bytes} bytes do not fit it", got=size)
        offset, _ = self.check_read(offset, (rows - 1) * stride + row_bytes if size else 0)
        return offset, row_bytes, rows, stride

    def check_write_rows(
        self, offset: int, size: int, row_bytes: int, rows: int, stride: int
    ) -> tuple[int, int, int, int]:
        """As :meth:`check_rows`, for rows that are written; marks tensors as set, as :meth:`check_write` does."""
        found = offset, row_bytes, rows, stride = self.check_rows(offset, size, row_bytes, rows, stride)
        self.check_write(offset, 0)
        for row in range(rows if self.unset else 0):
            self.fill(offset + row * stride, row_bytes)
        return found

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    def __repr__(self) -> str:
        state = ", freed" if self.freed else ", read-only" if self.is_read_only else ""
        return f"<Buffer {self.type.name}, {self.size} bytes, {self.usage.name.lower()}{state}>"


def host_bytes(address: int, size: int, *, read_only: bool = False) -> Bytes:
    """A uint8 array over host memory that the caller keeps alive.  A read-only one cannot be made writable."""
    if size == 0:
        return np.empty(0, np.uint8)
    return np.asarray(_HostMemory(address, size, read_only))


class _HostMemory:
    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, address: int, size: int, read_only: bool) -> None:
        self.__array_interface__ = {"data": (address, read_only), "shape": (size,), "typestr": "|u1", "version": 3}


def check_target(out: Any) -> Bytes:
    """``out`` as a flat array, if bytes can be fetched into it: a contiguous, writable uint8 array.

    Code that fetches calls it before it passes an address to native code.  Raises TypeMismatchError, BufferUseError.
    """
    if not isinstance(out, np.ndarray) or out.dtype != np.uint8:
        got = out.dtype if isinstance(out, np.ndarray) else type(out).__name__
        raise TypeMismatchError(f"the target of a fetch must be an array of uint8, got {got}", got=got, wanted=np.uint8)
    if not out.flags.c_contiguous or not out.flags.writeable:
        what = "is read-only" if out.flags.c_contiguous else f"has gaps (strides {out.strides})"
        raise BufferUseError(f"bytes cannot be fetched into an array that {what}", got=out)
    return out.reshape(-1)


def check_whole(buffer: Buffer, tensor: Described, raw: Bytes, offset: int) -> None:
    """Raises BufferUseError unless these are all bytes of a leaf that lies packed in a buffer."""
    if tensor.view_src is not None or offset or raw.size != tensor.nbytes:
        raise BufferUseError(
            f"{tensor!r} lies packed in {buffer!r}: {raw.size} bytes at offset {offset} cannot be set on their own",
            tensor=tensor,
            remedy=f"set the whole of {tensor.root!r} at once",
        )
