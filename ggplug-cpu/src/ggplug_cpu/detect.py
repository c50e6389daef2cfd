"""Detects the instruction set extensions of this machine.

On x86-64 LLVM asks the processor by an instruction that every program may run.  On Arm only the operating system may
ask; it reports the extensions: Linux in the auxiliary vector, macOS through ``sysctl``, Windows through
``IsProcessorFeaturePresent``.  LLVM reads some of these, but its list lacks what came after ARMv8.1 (dot products,
matrix products of int8 and bf16).
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any

from ggplug_cpu.instruction_sets import AARCH64, X86_64, Extension, of_this_machine

# include/uapi/linux/auxvec.h: types of entries of the auxiliary vector.
_AT_HWCAP, _AT_HWCAP2 = 16, 26

# arch/arm64/include/uapi/asm/hwcap.h, the names as in /proc/cpuinfo: bit 0, 1, ... of each word
_HWCAP = """\
    fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 sm3 sm4
    asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs sb paca pacg gcs cmpbr fprcvt f8mm8 f8mm4 svef16mm
    sveeltperm sveaes2 svebfscale sve2p2 sme2p2 smesbitperm smeaes smesfexpa smestmop smesmop4
"""
_HWCAP2 = """\
    dcpodp sve2 sveaes svepmull svebitperm svesha3 svesm4 flagm2 frint svei8mm svef32mm svef64mm svebf16 i8mm bf16 dgh
    rng bti mte ecv afp rpres mte3 sme smei16i64 smef64f64 smei8i32 smef16f32 smeb16f32 smef32f32 smefa64 wfxt ebf16
    sveebf16 cssc rprfm sve2p1 sme2 sme2p1 smei16i32 smebi32i32 smeb16b16 smef16f16 mops hbc sveb16b16 lrcpc3 lse128
    fpmr lut faminmax f8cvt f8fma f8dp4 f8dp2 f8e4m3 f8e5m2 smelutv2 smef8f16 smef8f32 smesf8fma smesf8dp4 smesf8dp2
    poe
"""

# arch/x86/include/uapi/asm/prctl.h: ARCH_REQ_XCOMP_PERM, and the number of the tile data state component.
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18
_SYS_ARCH_PRCTL_X86_64 = 158


@functools.cache
def host_features() -> frozenset[str]:
    """LLVM's names of the extensions that this CPU and this operating system offer; AMX only where its use is
    permitted.
    """
    import llvmlite.binding as llvm

    family = of_this_machine()
    try:
        found = {name for name, on in llvm.get_host_cpu_features().items() if on}
    except RuntimeError:  # LLVM does not know on this system; the baseline always exists
        found = set()
    found.update(family.baseline)
    if family is AARCH64:
        found |= _of_arm()
    if family is X86_64 and "amx-tile" in found and not _amx_permitted():
        found = {name for name in found if not name.startswith("amx-")}
    return frozenset(family.complete(found))


def _of_arm() -> set[str]:
    """The extensions that the operating system reports for an Arm processor."""
    if sys.platform.startswith(("linux", "android")):
        return from_auxiliary_vector(_auxiliary_vector(_AT_HWCAP), _auxiliary_vector(_AT_HWCAP2))
    if sys.platform == "darwin":
        return from_sysctl(_sysctl)
    if sys.platform == "win32":
        return from_processor_features(_processor_feature)
    return set()


# -- reports of each operating system, as LLVM's names ---------------------------------------------------------


def from_auxiliary_vector(hwcap: int, hwcap2: int) -> set[str]:
    """LLVM's names of the extensions that Linux reports in the words ``AT_HWCAP`` and ``AT_HWCAP2`` on AArch64."""
    words = ((hwcap, _HWCAP), (hwcap2, _HWCAP2))
    reported = {name for bits, names in words for bit, name in enumerate(names.split()) if bits >> bit & 1}
    return _those(lambda extension: extension.linux, reported.__contains__)


def from_sysctl(ask: Callable[[str], int]) -> set[str]:
    """LLVM's names of the extensions that macOS reports; ``ask`` returns the value of a name, 0 where there is none."""
    return _those(lambda extension: extension.darwin, lambda name: ask(f"hw.optional.{name}") != 0)


def from_processor_features(ask: Callable[[int], bool]) -> set[str]:
    """LLVM's names of the extensions that Windows reports; ``ask`` is ``IsProcessorFeaturePresent``."""
    return _those(lambda extension: extension.windows, ask)


def _those(marks: Callable[[Extension], tuple[Any, ...]], reported: Callable[[Any], bool]) -> set[str]:
    """The extensions of Arm's processors all of whose ``marks`` are ``reported``."""
    found = ((name, marks(extension)) for name, extension in AARCH64.extensions.items())
    return {name for name, wanted in found if wanted and all(map(reported, wanted))}


# -- asking the system ------------------------------------------------------------------------------


def _auxiliary_vector(kind: int) -> int:
    getauxval = getattr(ctypes.CDLL(None), "getauxval", None)
    if getauxval is None:
        return 0
    getauxval.restype = ctypes.c_ulong
    getauxval.argtypes = [ctypes.c_ulong]
    return int(getauxval(kind))


def _sysctl(name: str) -> int:
    value = ctypes.c_int64(0)
    size = ctypes.c_size_t(ctypes.sizeof(value))
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return 0 if failed else value.value  # a 32-bit value fills the lower half: little-endian


def _processor_feature(number: int) -> bool:
    return bool(ctypes.WinDLL("kernel32").IsProcessorFeaturePresent(number))  # type: ignore[attr-defined,unused-ignore]


def _amx_permitted() -> bool:
    """Requests the tile registers from Linux, which grants them per process; False on other systems."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    syscall = libc.syscall
    syscall.restype = ctypes.c_long
    syscall.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_long]
    return bool(syscall(_SYS_ARCH_PRCTL_X86_64, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0)
