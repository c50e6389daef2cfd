"""CUDA programs of ``ggplug_simt``, run for real by an OpenCL device that is a processor.

A program's text is its dialect's header and what is the same in both dialects.  So the one header is replaced by the
other, and the OpenCL compiler takes the rest as it is.  The memory of the stand-in's devices is the host's, which such
an OpenCL device reads and writes in place.
"""

from __future__ import annotations

import functools
import re
import threading
import warnings
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cupy_stand_in.errors import Fault
from ggplug_simt.source import part

try:
    import pyopencl as cl

    from ggplug_opencl.driver import OPTIONS
    from ggplug_opencl.pocl import name_processor
except ImportError:
    cl = None

Size = tuple[int, int, int]

_lock = threading.Lock()

_MEMBERS = {
    "tensor": np.dtype([("offset", "i8"), ("nb", "i8", 4), ("ne", "i4", 4)]),
    "int": np.dtype("i4"),
    "float": np.dtype("f4"),
    "int64_t": np.dtype("i8"),
}


class Refused(Exception):
    """A program does not compile; its text is the compiler's log."""


class Signature(NamedTuple):
    """A kernel's parameters: pointers, and then a struct of so many bytes."""

    pointers: int
    bytes: int


@functools.cache
def signature(text: str) -> Signature:
    """The parameters of a program's kernel, as its text declares them."""
    declared = re.search(r"^#define PARAMETERS (.*), const arguments args$", text, re.M)
    struct = re.search(r"^typedef struct \{\n([^{}]*)\} arguments;$", text, re.M)
    assert declared, "the program has no PARAMETERS"
    assert struct, "the program has no arguments struct"
    members = [line.strip(" ;").split() for line in struct[1].splitlines()]
    layout = np.dtype([(name, _MEMBERS[kind]) for kind, name in members], align=True)
    return Signature(declared[1].count("*"), layout.itemsize)


@functools.cache
def opencl() -> tuple[Any, Any] | None:
    """Context and queue of the first OpenCL device that is a processor; None without one."""
    if cl is None:
        return None
    try:
        found = [d for p in cl.get_platforms() for d in p.get_devices() if d.type & cl.device_type.CPU]
    except cl.Error:
        return None
    if not found:
        return None
    name_processor(found[0])
    context = cl.Context(found[:1])
    return context, cl.CommandQueue(context)


@functools.cache
def program(text: str) -> Any:
    """The OpenCL program for a CUDA program's text; None where there is no OpenCL.  Raises Refused."""
    found = opencl()
    if found is None:
        return None
    header = part("dialect/cuda.h")
    assert text.count(header) == 1, "the program is not in the CUDA dialect"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        try:
            return cl.Program(found[0], text.replace(header, part("dialect/opencl.h"))).build(options=OPTIONS)
        except cl.Error as error:
            raise Refused(str(error)) from error


@functools.cache
def kernel(text: str, name: str) -> Any:
    """A kernel of a program; None where there is no OpenCL."""
    found = program(text)
    return found and cl.Kernel(found, name)


def wrapped(memory: npt.NDArray[np.uint8]) -> Any:
    """Host memory as an OpenCL buffer that is this memory."""
    found = opencl()
    assert found is not None
    return cl.Buffer(found[0], cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=memory)


def run(kernel: Any, grid: Size, block: Size, buffers: list[Any], struct: bytes) -> None:
    """Runs a kernel of a program to its end."""
    found = opencl()
    assert found is not None
    try:
        with _lock:  # a kernel keeps its arguments
            kernel.set_args(*buffers, np.frombuffer(struct, np.uint8))
            cl.enqueue_nd_range_kernel(found[1], kernel, tuple(g * b for g, b in zip(grid, block, strict=True)), block)
            found[1].finish()
    except cl.Error as error:
        raise Fault(f"{kernel.function_name}: {error}") from error
