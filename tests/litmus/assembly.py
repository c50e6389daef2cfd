"""Kernels as AArch64 machine code, on a machine of any kind."""

from __future__ import annotations

import platform
from typing import Any
from unittest import mock

import llvmlite.binding as llvm
from llvmlite import ir

from ggplug_cpu import context, features, frontend
from ggplug_cpu.compiler import Kernel

#: Processors without and with the atomic instructions of Armv8.1 (LSE): loops of LDAXR and STLXR, or LDADDAL and SWPAL.
PROCESSORS = {"cortex-a53": "", "neoverse-n1": "+lse"}


def aarch64_assembly(kernel: Kernel, processor: str) -> str:
    """The text that the compiler writes for ``kernel`` on one of :data:`PROCESSORS`."""
    # Numba asks once what its host is: before it is told otherwise
    frontend.inspect_kernel(kernel, features.target(), "llvm")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    flags = PROCESSORS[processor]
    target = features.Target("native", processor, flags, frozenset(["neon", *flags.split("+")[1:]]))
    with (
        mock.patch.object(llvm, "get_process_triple", return_value="aarch64-unknown-linux-gnu"),
        mock.patch.object(platform, "machine", return_value="aarch64"),
        # llvmlite has parsers of inline assembly, which reads the clock, for the host alone
        mock.patch.object(context._processor_ticks, "function", _no_clock),
    ):
        return frontend.inspect_kernel(kernel, target, "assembly")


def _no_clock(builder: Any) -> Any:
    return ir.Constant(ir.IntType(64), 0)
