"""A kernel that another process compiles: by the place and the arguments of its factory, or by its LLVM code."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple, Protocol

from ggplug_cpu import features
from ggplug_cpu.features import Target
from ggplug_cpu.recorded import Compilable


class Reference(NamedTuple):
    """Where a kernel is made: the module (and its file), the factory's name there, and the factory's arguments."""

    module: str
    file: str
    name: str
    arguments: tuple[str | int | bool | None, ...]


class Keyed(Compilable, Protocol):
    """A kernel that knows what it is made from."""

    def source_key(self) -> str: ...


class FromSource(NamedTuple):
    """A kernel of this package, what it is compiled for, and the key of its source."""

    reference: Reference
    target: Target
    key: str

    def compiled(self) -> bytes:
        """The object file.  Raises LookupError where this process does not find the kernel, or finds another."""
        from ggplug_cpu.language import machine_code

        with features.forced(self.target):
            kernel = found(self.reference)
            if kernel.source_key() != self.key:
                raise LookupError("its source is another one in another process")
            return machine_code.compile_kernel(kernel, self.target)


class FromCode(NamedTuple):
    """The LLVM code of a kernel, the kernel's name, and what it is compiled for."""

    name: str
    code: str
    target: Target

    def compiled(self) -> bytes:
        """The object file.  Raises KernelCompileError."""
        from ggplug_cpu.language import machine_code

        return machine_code.object_file(self.name, self.code, self.target)


Job = FromSource | FromCode


def reference_of(factory: Any, arguments: tuple[str | int | bool | None, ...]) -> Reference | None:
    """The place of a kernel of this package for other processes; None where they cannot find it."""
    name = factory.function.__module__, factory.function.__qualname__
    module = sys.modules.get(name[0])
    file = getattr(module, "__file__", None)
    if file is None or getattr(module, name[1], None) is not factory:
        return None
    return Reference(name[0], file, name[1], arguments)


def found(reference: Reference) -> Keyed:
    """The kernel in this process.  Raises LookupError where it is another one."""
    try:
        module = importlib.import_module(reference.module)
        factory = getattr(module, reference.name)
    except Exception as error:
        raise LookupError(f"{reference.module}.{reference.name} cannot be imported: {error}") from error
    if getattr(module, "__file__", None) != reference.file:
        raise LookupError(f"{reference.module} is another file here")
    kernel: Keyed = factory(*reference.arguments)
    return kernel
