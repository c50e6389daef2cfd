"""Object code into memory: an address for every compiled kernel, without Numba.

A kernel may call the functions of :data:`SYMBOLS` and nothing else, so that it behaves alike in every process.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
from typing import Any

import llvmlite.binding as llvm

from ggplug.errors import KernelCompileError

#: The symbol of a kernel in its object file.
ENTRY = "ggplug_kernel"

# fmt: off
_MATH = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh", "erf",
    "erfc", "exp", "exp2", "expm1", "fabs", "floor", "fma", "fmax", "fmin", "fmod", "frexp", "hypot", "ldexp",
    "lgamma", "log", "log10", "log1p", "log2", "modf", "nearbyint", "nextafter", "pow", "remainder", "rint",
    "round", "sin", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc",
)
# fmt: on
_MEMORY = ("memcpy", "memmove", "memset", "memcmp")

#: Every function that kernels may call by name: libm's for float and double, and what LLVM makes of copies.
SYMBOLS = (*_MATH, *(name + "f" for name in _MATH), *_MEMORY)

_numbers = itertools.count()
# Machine code is never unloaded: threads may be running in it, and addresses are kept in tapes.
_loaded: list[Any] = []


def load(name: str, code: bytes) -> int:
    """Load the object file ``code`` of the kernel ``name``; returns the address of its entry.

    Raises :class:`~ggplug.errors.KernelCompileError` when it needs a symbol that is not in :data:`SYMBOLS`.
    """
    library = llvm.JITLibraryBuilder().add_object_img(code).add_jit_library(_runtime()).export_symbol(ENTRY)
    try:
        tracker = library.link(_engine(), f"{next(_numbers)} {name}")
    except RuntimeError as error:
        raise KernelCompileError(
            f"kernel {name} cannot be loaded: {error}",
            op=name,
            log=str(error),
            remedy="kernels may call libm and memcpy only: see SYMBOLS in ggplug_cpu/loader.py",
        ) from error
    _loaded.append(tracker)
    return int(tracker[ENTRY])


@functools.cache
def _engine() -> llvm.LLJIT:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    # errors come back as exceptions; LLVM would print them as well
    return llvm.create_lljit_compiler(machine, suppress_errors=True)


@functools.cache
def _runtime() -> str:
    """The JIT library that defines :data:`SYMBOLS`; its name."""
    library = llvm.JITLibraryBuilder()
    for name, address in _addresses().items():
        library.import_symbol(name, address)
    _loaded.append(library.link(_engine(), "runtime"))
    return "runtime"


def _addresses() -> dict[str, int]:
    found: dict[str, int] = {}
    libraries = (
        [ctypes.CDLL("ucrtbase"), ctypes.CDLL("vcruntime140")] if sys.platform == "win32" else [ctypes.CDLL(None)]
    )
    for name in SYMBOLS:
        for library in libraries:
            try:
                found[name] = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
                break
            except AttributeError:
                continue
    return found
