"""Buffers in host memory, and tensors and arrays that share it without copying.

Plain host memory belongs to no device; every device whose ``supports_buffer_type`` accepts it can compute in it.
"""

from __future__ import annotations

import copyreg
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.backend import Buffer, BufferType, Bytes, Device, Memory
from ggplug.errors import BufferUseError, OutOfMemoryError, ParameterError, TensorStateError, TypeMismatchError
from ggplug.sharing import accessing
from ggplug.tensor import Spec, Tensor, extents
from ggplug.types import BF16, F16, F32, I8, I16, I32, I64, BufferUsage, TensorFlag, Type, as_type
from ggplug.values.arrays import as_array, as_bytes, as_values, strided

ALIGNMENT = 64
"""Bytes of a cache line, and of the widest vector registers."""

_BY_DTYPE: dict[str, Type] = {
    "float64": F32,
    "float32": F32,
    "float16": F16,
    "int8": I8,
    "int16": I16,
    "int32": I32,
    "int64": I64,
}


class HostBuffer(Buffer):
    """Bytes in this process's memory, a contiguous array of uint8; ``owner`` keeps them alive.

    The buffer is read-only if ``memory`` is, or if ``owner`` is a read-only array.  If the array is made read-only
    later, ``set`` and other writes raise from then on, and computations when their memory is bound next.  Raises
    TypeMismatchError, ParameterError.
    """

    def __init__(self, type: BufferType, memory: Bytes, owner: Any = None) -> None:
        if not isinstance(memory, np.ndarray) or memory.dtype != np.uint8:
            raise TypeMismatchError(f"a host buffer is made of an array of uint8, got {memory!r}", got=memory)
        if memory.ndim != 1 or not memory.flags.c_contiguous:
            raise ParameterError(f"only contiguous memory can be used in place; the strides are {memory.strides}")
        super().__init__(type, memory.size, memory.ctypes.data if memory.size else 0)
        self._memory: Bytes | None = memory
        self._owner = owner

    @property
    def keeper(self) -> object | None:
        return self._memory

    def _set(self, offset: int, data: Bytes) -> None:
        assert self._memory is not None
        self._memory[offset : offset + data.size] = data

    def _get(self, offset: int, out: Bytes) -> None:
        assert self._memory is not None
        out[...] = self._memory[offset : offset + out.size]

    def memset(self, offset: int, size: int, value: int) -> None:
        with accessing(self):
            offset, size, value = self.check_fill(offset, size, value)
            assert self._memory is not None
            self._memory[offset : offset + size] = value

    def _free(self) -> None:
        self._memory = None
        self._owner = None

    @property
    def is_read_only(self) -> bool:
        memory, owner = self._memory, self._owner
        if memory is None:
            return False
        return not memory.flags.writeable or (isinstance(owner, np.ndarray) and not owner.flags.writeable)


class HostBufferType(BufferType):
    """Ordinary memory of this process, for tensors in ggml's own layout."""

    def __init__(self, name: str = "host", device: Device | None = None) -> None:
        super().__init__(name, device)

    @property
    def alignment(self) -> int:
        return ALIGNMENT

    @property
    def is_host(self) -> bool:
        return True

    def _alloc(self, size: int) -> HostBuffer:
        return self._over(np.empty, size)

    def _alloc_zeroed(self, size: int) -> Buffer:
        if type(self)._alloc is not HostBufferType._alloc:  # a subclass makes its own buffers
            return super()._alloc_zeroed(size)
        # The system gives zeros page by page, when a page is first accessed.
        return self._over(np.zeros, size)

    def _over(self, allocated: Callable[[int, type[np.uint8]], Bytes], size: int) -> HostBuffer:
        if size > _ASSUMED:  # reading the size of free memory takes longer than allocating most buffers
            free, total = memory()
            if total is not None and size > total:
                raise OutOfMemoryError(
                    f"{self.name}: cannot allocate {size} bytes, the machine has {total}", requested=size, free=free
                )
        try:
            block = allocated(size + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError):  # ValueError: more than there are addresses
            free = memory().free
            raise OutOfMemoryError(
                f"{self.name}: cannot allocate {size} bytes ({free} free)", requested=size, free=free
            ) from None
        start = -block.ctypes.data % ALIGNMENT
        return HostBuffer(self, block[start : start + size])

    def wrap(self, data: Any, *, usage: BufferUsage = BufferUsage.ANY) -> HostBuffer:
        """A buffer over memory of the caller: an array, a memory map or anything with the buffer protocol.

        Nothing is copied, and the buffer keeps the object alive.  While it is used in place, NumPy refuses to resize
        it, and Python to close it (a memory map, shared memory) or to release it; only
        ``array.resize(..., refcheck=False)`` frees the memory nevertheless.  Over read-only memory the buffer is
        read-only.

        Raises ParameterError if the memory is not contiguous; TypeMismatchError for objects whose memory cannot be used
        in place: lists, arrays of Python objects, arrays of another device.
        """
        array = as_array(_memory_of(data))
        if not array.flags.c_contiguous:
            raise ParameterError("only contiguous memory can be used in place", got=array.strides)
        buffer = HostBuffer(self, as_bytes(array), data)
        buffer.usage = usage
        return buffer


def _memory_of(data: Any) -> Any:
    """``data``, if an array can be made of it without copying.  Raises TypeMismatchError."""
    if isinstance(data, np.ndarray) or hasattr(data, "__array_interface__") or hasattr(data, "__dlpack__"):
        return data
    try:
        return memoryview(data)
    except (TypeError, ValueError, BufferError) as error:  # no buffer; closed; released
        raise TypeMismatchError(
            f"a {type(data).__name__} has no memory that can be used in place: {error}",
            got=type(data),
            remedy="make an array of it",
        ) from None


_ASSUMED = 1 << 20
"""Bytes that every machine is assumed to have."""

HOST = HostBufferType()
"""Host memory that belongs to no device."""


def memory() -> Memory:
    """Free and total bytes of the machine's memory, or None where the system does not report them."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields: dict[str, int] = {}
            for line in file:  # both are among the first of fifty lines
                name, _, value = line.partition(":")
                if name in ("MemAvailable", "MemTotal"):
                    fields[name] = int(value.split()[0]) * 1024
                    if len(fields) == 2:
                        break
        free, total = fields["MemAvailable"], fields["MemTotal"]
        return Memory(free, total)
    except (OSError, LookupError, ValueError):
        pass
    if sys.platform == "win32":
        return _windows_memory()
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total = page * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return Memory(None, None)
    return Memory(None, total)


def _windows_memory() -> Memory:
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = [("length", ctypes.c_uint32), ("load", ctypes.c_uint32)] + [
            (name, ctypes.c_uint64) for name in ("total", "free", "t2", "f2", "t3", "f3", "extended")
        ]

    status = Status(length=ctypes.sizeof(Status))
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):  # type: ignore[attr-defined,unused-ignore]
        return Memory(None, None)
    return Memory(status.free, status.total)


def tensor(values: Any, type: Type | str | None = None, *, name: str = "", copy: bool = True) -> Tensor:
    """A persistent tensor in host memory with these values.

    ``values``: as for :meth:`Tensor.set`; its shape becomes the tensor's.  ``type``: by default the array's own, F32
    for float64, and I32 for Python's integers.  ``copy=False``: the tensor shares memory with a contiguous array of
    that very type, so later changes of the array change the tensor; over a read-only array the tensor is read-only.
    Raises ShapeError, TypeMismatchError; BufferUseError if the array's address is no multiple of its elements' size.
    """
    array = as_values(values)
    kind = _default_type(array, values) if type is None else as_type(type)
    ne, rank = extents(array.shape[::-1], what="the shape of the values")
    made = Tensor(Spec(kind, ne, rank), name=name)
    if not copy:
        shared = array.dtype == kind.dtype and not kind.is_quantized and kind is not BF16 and array.flags.c_contiguous
        if not shared:
            raise TypeMismatchError(
                f"copy=False needs a contiguous array of {kind.name}, got {array.dtype} with strides {array.strides}",
                got=array.dtype,
                wanted=kind,
            )
        made.place(HOST.wrap(array))
        return made
    made.place(HOST.alloc(made.nbytes))
    return made.set(array)


def _default_type(array: npt.NDArray[Any], values: Any) -> Type:
    from_array = isinstance(values, (np.ndarray, np.generic)) or hasattr(values, "__dlpack__")
    if array.dtype == np.int64 and not from_array:
        return I32
    kind = _BY_DTYPE.get(array.dtype.name)
    if kind is None:
        raise TypeMismatchError(f"no default type for {array.dtype} values: pass type=...", got=array.dtype)
    return kind


def _reduced(tensor: Tensor) -> Any:
    """What ``copy`` and ``pickle`` make a tensor of: if it is a leaf with values in host memory, a copy of it there."""
    buffer = tensor.buffer
    if tensor.op is not None or buffer is None or buffer.address is None or buffer.type.has_own_layout:
        return tensor.__reduce_ex__(0)
    if tensor.offset in buffer.unset:
        raise TensorStateError(f"{tensor!r} cannot be copied: it has no value", tensor=tensor, remedy="set it before")
    spec = Spec(tensor.type, tensor.ne, tensor.rank, tensor.nb)
    return _copied, (spec, tensor.name, tensor.flags, tensor.tobytes())


def _copied(spec: Spec, name: str, flags: int, data: bytes) -> Tensor:
    made = Tensor(spec, name=name).mark(TensorFlag(flags))
    made.place(HOST.alloc(made.nbytes))
    return made.set_bytes(data)


copyreg.pickle(Tensor, _reduced)


def asarray(tensor: Tensor) -> npt.NDArray[Any]:
    """A zero-copy array of a tensor in host memory, in ``tensor.shape``, with the tensor's strides.

    The buffer cannot be freed while the array exists.  The array is read-only if the memory is.  BF16 becomes uint16,
    its bits; block types become a four-dimensional array of blocks.  Raises BufferUseError if the bytes are not in host
    memory, TensorStateError if the tensor has none.
    """
    raw = tensor.access(lambda buffer, offset: _exported(tensor, buffer, offset))
    array = strided(raw, tensor)
    if tensor.type.is_quantized:
        return array
    return array.reshape(tensor.shape) if tensor.is_contiguous() else array[(0,) * (4 - tensor.rank)]


def _exported(tensor: Tensor, buffer: Buffer, offset: int) -> Bytes:
    if buffer.address is None or buffer.type.has_own_layout:
        why = "is in a layout of its own" if buffer.type.has_own_layout else "is not in host memory"
        raise BufferUseError(f"{tensor!r} {why}: copy it with numpy()", tensor=tensor, remedy="copy it with numpy()")
    buffer.get(offset, np.empty(0, np.uint8))  # waits for pending work
    raw = buffer.bytes(offset, tensor.nbytes)
    buffer.export()
    weakref.finalize(_owner_of(raw), buffer.release)
    return raw


def _owner_of(array: npt.NDArray[Any]) -> Any:
    """The last object in an array's chain of bases, which exists as long as any view of it."""
    base: Any = array
    while getattr(base, "base", None) is not None:
        base = base.base
    return base
