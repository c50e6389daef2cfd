"""Kernels as AArch64 machine code, on a machine of any kind."""

from __future__ import annotations

from ggplug_cpu import features
from ggplug_cpu.compiler import Kernel
from ggplug_cpu.instruction_sets import AARCH64

#: Processors without and with the atomic instructions of Armv8.1 (LSE): loops of LDAXR and STLXR, or LDADDAL and SWPAL.
PROCESSORS: dict[str, tuple[str, ...]] = {"cortex-a53": (), "neoverse-n1": ("lse",)}


def aarch64_assembly(kernel: Kernel, processor: str) -> str:
    """The text that the compiler writes for ``kernel`` on one of :data:`PROCESSORS`."""
    with features.forced(features.cross_target(AARCH64, processor, PROCESSORS[processor])):
        return kernel.assembly()
