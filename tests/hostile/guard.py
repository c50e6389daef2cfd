"""Memory that notices what kernels do outside of their tensors.

Host memory lies between pages that nobody may touch, so that an access behind its end, or before its beginning, ends
the process.  Memory of other devices has borders of known bytes, which are looked at afterwards.
"""

from __future__ import annotations

import ctypes
import mmap
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.backend import Buffer, BufferType
from ggplug.host import HostBufferType

Bytes = npt.NDArray[np.uint8]

PAGE = mmap.PAGESIZE
BORDER = 512
"""Bytes before and after a tensor in a device's own memory: more than a group of work items writes at once."""

_PROT_NONE, _PROT_READ = 0, 1

WHERE = ("end", "start", "inside", "odd")
"""Where a tensor lies in guarded memory: flush with the end, with the beginning, or inside of a larger buffer.

``odd`` is inside, and a persistent tensor is placed there at an offset that is not aligned, if that is taken."""

READ_ONLY = ("array", "bytes", "map")
"""Memory that may not be written: a read-only array (over protected pages), ``bytes``, a read-only memory map."""


def _protect(address: int, size: int, protection: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_int(protection)):
        raise OSError(ctypes.get_errno(), "mprotect failed")


def guarded(size: int) -> Bytes:
    """At least ``size`` bytes, a whole number of pages, between two pages that cannot be touched."""
    pages = max(1, -(-size // PAGE))
    memory = np.frombuffer(mmap.mmap(-1, (pages + 2) * PAGE), np.uint8)
    address = memory.ctypes.data
    _protect(address, PAGE, _PROT_NONE)
    _protect(address + (pages + 1) * PAGE, PAGE, _PROT_NONE)
    return memory[PAGE : (pages + 1) * PAGE]


class Place:
    """Bytes for one tensor: ``buffer`` and ``offset``, and what lies around them."""

    buffer: Buffer
    offset: int
    _pattern: int
    """What fills the bytes around the tensor."""

    def at(self) -> tuple[Buffer, int]:
        """Buffer and offset."""
        return self.buffer, self.offset

    def get(self) -> Bytes:
        """The bytes of the tensor now."""
        raise NotImplementedError

    def odd(self, by: int = 1) -> int:
        """Moves the bytes to an odd offset, or back; by how many bytes."""
        raise NotImplementedError

    def around(self) -> tuple[Bytes, Bytes]:
        """The bytes before the tensor and behind it."""
        raise NotImplementedError

    def stray(self) -> str:
        """What was changed outside of the tensor, or an empty string."""
        before, behind = self.around()
        for name, part in (("before the beginning", before[::-1]), ("behind the end", behind)):
            changed = np.flatnonzero(part != self._pattern)
            if changed.size:
                return f"{changed.size} bytes {name} were written, the nearest {int(changed[0])} bytes away"
        return ""

    def free(self) -> None:
        """Gives the memory back."""
        self.buffer.free()


class HostPlace(Place):
    """Bytes between guard pages; ``read_only`` is one of :data:`READ_ONLY` or empty."""

    def __init__(self, wrap: Any, raw: Bytes, where: str, pattern: int, read_only: str = "") -> None:
        size = raw.size
        inside = where in ("inside", "odd")
        self._pages = guarded(size + (3 * 64 if inside else 0))
        self._pages[:] = pattern
        self._pattern = pattern
        self._start = 64 * (1 + size % 2) if inside else 0 if where == "start" else self._pages.size - size
        self._bytes = self._pages[self._start : self._start + size]
        self._bytes[:] = raw
        self._size = size
        self._fixed = bool(read_only) or not inside
        self.offset = self._start if inside else 0
        memory: Any = self._pages if inside else self._bytes
        if read_only == "array":
            _protect(self._pages.ctypes.data, self._pages.size, _PROT_READ)
            memory = memory.view()
            memory.flags.writeable = False
        elif read_only == "bytes":
            memory = memory.tobytes()
            self._bytes = np.frombuffer(memory, np.uint8)[self.offset : self.offset + size]
        elif read_only == "map":
            memory = _read_only_map(memory)
            self._bytes = np.frombuffer(memory, np.uint8)[self.offset : self.offset + size]
        self.buffer = wrap(memory)

    def get(self) -> Bytes:
        return self._bytes.copy()

    def odd(self, by: int = 1) -> int:
        if self._fixed:
            return 0
        content = self.get()
        self._bytes[:] = self._pattern
        self._start += by
        self.offset += by
        self._bytes = self._pages[self._start : self._start + self._size]
        self._bytes[:] = content
        return by

    def around(self) -> tuple[Bytes, Bytes]:
        return self._pages[: self._start], self._pages[self._start + self._size :]


def _read_only_map(content: Bytes) -> mmap.mmap:
    with tempfile.TemporaryFile() as file:
        file.write(content.tobytes() or b"\0")
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class DevicePlace(Place):
    """Bytes in a device's own memory between borders of a known pattern."""

    def __init__(self, kind: BufferType, raw: Bytes, where: str, pattern: int) -> None:
        alignment = kind.alignment
        self.offset = -(-BORDER // alignment) * alignment
        self._size = raw.size
        # "end": the buffer ends where the tensor does, as far as the device allows it.
        behind = 0 if where == "end" else BORDER
        if where == "start":
            self.offset = 0
        content = np.full(max(self.offset + raw.size + behind, 1), pattern, np.uint8)
        content[self.offset : self.offset + raw.size] = raw
        self._pattern = pattern
        self.buffer = kind.alloc(content.size)
        self.buffer.set(0, content)

    def _all(self) -> Bytes:
        content = np.empty(self.buffer.size, np.uint8)
        self.buffer.get(0, content)
        return content

    def get(self) -> Bytes:
        return self._all()[self.offset : self.offset + self._size]

    def odd(self, by: int = 1) -> int:
        content = self.get()
        self.buffer.memset(self.offset, self._size, self._pattern)
        self.offset += by
        self.buffer.set(self.offset, content)
        return by

    def around(self) -> tuple[Bytes, Bytes]:
        content = self._all() if self._size else np.empty(0, np.uint8)
        return content[: self.offset], content[self.offset + self._size :]


class GuardedMemory(HostBufferType):
    """Host memory of which every buffer ends at a page that cannot be touched: for what an allocator lays out."""

    def _alloc(self, size: int) -> Any:
        pages = guarded(size)
        start = (pages.size - size) // self.alignment * self.alignment
        return self.wrap(pages[start : start + size])
