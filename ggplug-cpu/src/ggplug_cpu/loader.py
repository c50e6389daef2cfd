"""Loads object code into memory and returns the addresses of kernels.

A kernel may call only the functions of :data:`SYMBOLS`, so it behaves the same in every process.
"""

# llvmlite is untyped
# mypy: allow-untyped-calls, disable-error-code="attr-defined"

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
import struct
import sys
from typing import Any

import llvmlite.binding as llvm

from ggplug.errors import KernelCompileError, OutOfMemoryError

#: The symbol of a kernel in its object file.
ENTRY = "ggplug_kernel"

_FUNCTIONS = """
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs floor fma fmax
fmin fmod frexp hypot ldexp lgamma log log10 log1p log2 modf nearbyint nextafter pow remainder rint round sin
sinh sqrt tan tanh tgamma trunc
"""
_MATH = tuple(_FUNCTIONS.split())
_MEMORY = ("memcpy", "memmove", "memset", "memcmp")

#: Every function that kernels may call by name: libm's for float and double, and those to which LLVM compiles copies.
SYMBOLS = (*_MATH, *(name + "f" for name in _MATH), *_MEMORY)

#: Bytes of addresses that loading a kernel may take in addition to its code.
_RESERVE = 8 << 20

_numbers = itertools.count()
# Machine code is never unloaded: threads may be running in it, and addresses are kept in tapes.
_loaded: list[Any] = []


def load(name: str, code: bytes) -> int:
    """Load the object file ``code`` of the kernel ``name``; returns the address of its entry.

    Raises :class:`~ggplug.errors.KernelCompileError` when it needs a symbol that is not in :data:`SYMBOLS`, or is no
    object file of a kernel; :class:`~ggplug.errors.OutOfMemoryError`.
    """
    known = _addresses()
    try:
        needed = undefined_symbols(code)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise _unloadable(name, f"it is no object file ({error})") from error
    if needed is None:
        needed = sorted(known)
    elif not known.keys() >= set(needed):
        raise _unloadable(name, f"it calls {', '.join(sorted(set(needed) - known.keys()))}")
    check_memory(name, _RESERVE + 4 * len(code))
    library = llvm.JITLibraryBuilder().add_object_img(code).export_symbol(ENTRY)
    for symbol in needed:
        library.import_symbol(symbol, known[symbol])
    try:
        tracker = library.link(_engine(), f"{next(_numbers)} {name}")
    except RuntimeError as error:
        raise _unloadable(name, str(error)) from error
    _loaded.append(tracker)
    return int(tracker[ENTRY])


def check_memory(name: str, size: int) -> None:
    """Raises OutOfMemoryError unless the process can still map so many bytes: LLVM would end it.

    ``name``: the kernel that LLVM works on.
    """
    try:
        mmap.mmap(-1, size).close()
    except OSError as error:
        what = f"kernel {name}: the process can map no {size} bytes more, which LLVM may need"
        raise OutOfMemoryError(what, requested=size) from error


def _unloadable(name: str, why: str) -> KernelCompileError:
    return KernelCompileError(
        f"kernel {name} cannot be loaded: {why}",
        op=name,
        log=why,
        remedy="kernels may call libm and memcpy only: see SYMBOLS in ggplug_cpu/loader.py",
    )


@functools.cache
def _engine() -> llvm.LLJIT:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    # RuntimeDyld may place the sections of an object file further apart than branches of other processors reach
    x86 = machine.triple.startswith("x86_64")
    # errors come back as exceptions; LLVM would print them as well
    return llvm.create_lljit_compiler(machine, use_jit_link=not x86, suppress_errors=True)


@functools.cache
def _addresses() -> dict[str, int]:
    found: dict[str, int] = {}
    libraries = (
        [ctypes.CDLL("ucrtbase"), ctypes.CDLL("vcruntime140")] if sys.platform == "win32" else [ctypes.CDLL(None)]
    )
    for name in SYMBOLS:
        for library in libraries:
            function = getattr(library, name, None)
            if function is not None:
                found[name] = ctypes.cast(function, ctypes.c_void_p).value or 0
                break
    return found


# -- ELF --------------------------------------------------------------------------------------------

# From the ELF-64 specification: the file header's e_shoff, e_shentsize, e_shnum; a section header; a symbol.
_ELF_HEADER = struct.Struct("<40xQ10xHH2x")
_ELF_SECTION = struct.Struct("<IIQQQQIIQQ")
_ELF_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE = 2
_LOCAL = 0


def undefined_symbols(code: bytes) -> list[str] | None:
    """The undefined symbols of the object file ``code``; None where the format is not little-endian ELF-64."""
    if code[:6] != b"\x7fELF\x02\x01":
        return None
    offset, size, count = _ELF_HEADER.unpack_from(code)
    sections = [_ELF_SECTION.unpack_from(code, offset + size * i) for i in range(count)]
    names: list[str] = []
    for section in sections:
        if section[1] != _SYMBOL_TABLE:
            continue
        start, length = section[4:6]
        strings = sections[section[6]][4]
        for name, info, _, defined_in, _, _ in _ELF_SYMBOL.iter_unpack(code[start : start + length]):
            if defined_in == 0 and info >> 4 != _LOCAL:
                names.append(code[strings + name : code.index(b"\0", strings + name)].decode())
    return names
