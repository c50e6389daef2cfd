"""CUDA programs of ``ggplug_simt``, run by the processor, and the parameters that their kernels take."""

from __future__ import annotations

import functools
import importlib.util
import re
from typing import NamedTuple

import numpy as np
from cuda_on_host import HostProgram

Size = tuple[int, int, int]

_MEMBERS = {
    "tensor": np.dtype([("offset", "i8"), ("nb", "i8", 4), ("ne", "i4", 4)]),
    "int": np.dtype("i4"),
    "float": np.dtype("f4"),
    "int64_t": np.dtype("i8"),
}


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


def can_run() -> bool:
    """Whether there is a compiler."""
    return importlib.util.find_spec("ziglang") is not None


@functools.cache
def program(text: str) -> HostProgram | None:
    """A program as the processor runs it; None without a compiler.  Raises DoesNotCompile."""
    return HostProgram(text) if can_run() else None


def run(program: HostProgram, grid: Size, block: Size, addresses: list[int], struct: bytes) -> None:
    """Runs the kernel of a program to its end; ``addresses``: where its pointers point to, on the host."""
    assert grid[1:] == block[1:] == (1, 1)
    given = np.frombuffer(struct, np.uint8).copy()
    pointers = np.array(addresses, np.uintp)
    parameters = np.array([*(pointers.ctypes.data + 8 * np.arange(pointers.size)), given.ctypes.data], np.uintp)
    program.launch(grid[0], block[0], parameters.ctypes.data)
