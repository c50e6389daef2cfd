"""PoCL on processors that are newer than its compiler.

PoCL takes the processor's name from LLVM.  An LLVM that doesn't know the processor calls it ``generic``, a name that
its C front end then refuses ("unknown target CPU 'generic'"), so no kernel compiles.  The
processor's feature flags are known, so this module sets the name of an older processor with these features.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from pathlib import Path
from typing import Any

log = logging.getLogger("ggplug")

# What a processor must have, and its name: LLVM's names of what the x86-64 psABI calls v4, v3 and v2.
_NAMES = (
    ({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}, b"skylake-avx512"),
    ({"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"}, b"haswell"),
    ({"sse4_2", "popcnt"}, b"nehalem"),
)
_UNKNOWN = b"generic\0"
_SEARCHED = 4096  # bytes of a device's description that are searched for its processor's name

_kept: list[Any] = []


def name_processor(handle: Any) -> bytes | None:
    """Sets the processor's name of a PoCL device if PoCL doesn't know it; returns the new name, or None.

    Only for PoCL on x86-64 Linux, which is where it is installed from PyPI.
    """
    pocl = "portable computing language" in handle.platform.name.lower()
    if not pocl or not sys.platform.startswith("linux") or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    flags = _flags()
    name = next((name for needed, name in _NAMES if needed <= flags), b"x86-64")
    try:
        with open("/proc/self/mem", "rb", 0) as memory:
            field = _find(memory, handle.int_ptr)
    except OSError:
        return None
    if field is None:
        return None
    text = ctypes.create_string_buffer(name)
    _kept.append(text)  # PoCL keeps the pointer as long as the process lives
    ctypes.c_void_p.from_address(field).value = ctypes.addressof(text)
    log.info("OpenCL: PoCL doesn't know the processor of %s; it compiles for %s", handle.name, name.decode())
    return name


def _find(memory: Any, device: int) -> int | None:
    """The address of the pointer to ``generic`` in a device's description.

    Reads through the kernel, so that an invalid pointer is an error and no crash.
    """
    memory.seek(device)
    words = memoryview(memory.read(_SEARCHED)).cast("Q")
    for n, pointer in enumerate(words):
        if not 4096 <= pointer < 1 << 47:
            continue
        try:
            memory.seek(pointer)
            if memory.read(len(_UNKNOWN)) == _UNKNOWN:
                return device + 8 * n
        except OSError:
            continue
    return None


def _flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return set()
    return next((set(line.split(":", 1)[1].split()) for line in text.splitlines() if line.startswith("flags")), set())
