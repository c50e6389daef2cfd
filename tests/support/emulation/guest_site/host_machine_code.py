"""What ``ggplug_cpu.language.machine_code`` offers, asked of the host; compiled here where the host has no answer."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from multiprocessing.connection import Client
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import ggplug_cpu

if TYPE_CHECKING:
    from ggplug_cpu.compiler import Kernel
    from ggplug_cpu.features import Target

_ADDRESS = os.environ["GGPLUG_COMPILER"]
#: The thread team's kernels, which every computation needs: so each session sees the guest's own compiler at work.
_LEFT_TO_THE_GUEST = "ggplug_cpu.walker"


def compile_kernel(kernel: Kernel, target: Target) -> bytes:
    """The object file of ``kernel`` for ``target``."""
    code = _from_host("object", kernel, target)
    return _own_compiler().compile_kernel(kernel, target) if code is None else code


def llvm_code(kernel: Kernel, target: Target) -> str:
    """The LLVM code of ``kernel``, not optimised."""
    code = _from_host("code", kernel, target)
    return _own_compiler().llvm_code(kernel, target) if code is None else code


def object_file(name: str, code: str, target: Target) -> bytes:
    """The object file of LLVM code."""
    found = _asked("object_file", name, code, (), target)
    return _own_compiler().object_file(name, code, target) if found is None else found


def inspect_kernel(kernel: Kernel, target: Target, what: str) -> str:
    """The optimised code of ``kernel`` as text: ``what`` is ``assembly`` or ``llvm``."""
    text = _from_host(what, kernel, target)
    return _own_compiler().inspect_kernel(kernel, target, what) if text is None else text


def _from_host(what: str, kernel: Kernel, target: Target) -> bytes | str | None:
    """None where the host cannot find the kernel's factory by its name, or cannot compile the kernel."""
    module, name = kernel.factory.function.__module__, kernel.factory.function.__qualname__
    if module in (_LEFT_TO_THE_GUEST, "__main__") or getattr(sys.modules[module], name, None) is not kernel.factory:
        return None
    return _asked(what, module, name, kernel.arguments, target)


def _asked(*job: object) -> bytes | str | None:
    with Client(_ADDRESS, "AF_UNIX") as connection:
        connection.send(job)
        return connection.recv()


@functools.cache
def _own_compiler() -> ModuleType:
    """The real module."""
    path = Path(ggplug_cpu.__file__).with_name("language") / "machine_code.py"
    spec = importlib.util.spec_from_file_location("ggplug_cpu.language.machine_code_of_guest", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
