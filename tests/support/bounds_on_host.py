"""A process in which a GPU's kernels die if they touch a byte outside of their tensors.

``python bounds_on_host.py begin|end``: each tensor lies in memory of its own that begins, or ends, at a page that may
not be touched, and all cases of all ops are computed by the CUDA programs on the processor.  Prints what failed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import sys
from typing import Any

import numpy as np
from cuda_on_host import HostDevice, HostDriver

from ggplug.backend import BufferType
from ggplug.ops.base import OPS
from ggplug_simt import SimtBuffer, SimtBufferType
from ggplug_testing.running import runner

PAGE = mmap.PAGESIZE
NOTHING, READ_AND_WRITE = 0, 3  # PROT_*
libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class FencedDriver(HostDriver):
    def __init__(self, side: str) -> None:
        super().__init__()
        self.side = side
        self.maps: dict[int, mmap.mmap] = {}

    def allocate(self, size: int) -> Any:
        inside = -(-size // PAGE) * PAGE
        mapped = mmap.mmap(-1, inside + 2 * PAGE)
        first = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        for fence in (first, first + PAGE + inside):
            assert libc.mprotect(fence, PAGE, NOTHING) == 0
        begin = PAGE if self.side == "begin" else PAGE + inside - size
        taken = np.frombuffer(mapped, np.uint8, size, begin)
        self.maps[taken.ctypes.data] = mapped
        return taken

    def free(self, handle: Any) -> None:
        del self.maps[handle.ctypes.data]


class TightType(SimtBufferType):
    """Buffers of one tensor each, not a byte longer."""

    alignment = 1
    max_size = 1  # so that the suite gives each tensor a buffer of its own

    def alloc(self, size: int) -> SimtBuffer:
        return self._alloc(size)


class FencedDevice(HostDevice):
    def __init__(self, side: str) -> None:
        super().__init__()
        self.side = side
        self._buffer_type = TightType(self.runtime)

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    def open_driver(self) -> FencedDriver:
        return FencedDriver(self.side)


def main(side: str) -> int:
    faulthandler.enable()
    runner.GUARDED = 0  # the fence takes the place of guard bytes
    device = FencedDevice(side)
    passed, bad = 0, 0
    for name, op in sorted(OPS.items()):
        if op.is_view or "." in name:
            continue
        print(name, file=sys.stderr, flush=True)  # who it was, if this process dies
        for finding in runner.run_op(device, op):
            passed += finding.verdict == "passed"
            if finding.bad:
                bad += 1
                print(finding)
    print(f"{passed} passed")
    return bad


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1]) else 0)
