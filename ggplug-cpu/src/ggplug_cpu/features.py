"""Which instructions kernels may use: the host's, or fewer when ``GGPLUG_CPU_FEATURES`` says so.

``GGPLUG_CPU_FEATURES`` holds a level and, after it, any number of modifiers:

=============  =======================================================================
``native``     everything this CPU and this operating system offer (the default)
``avx512``     x86-64-v4: AVX-512 F, CD, BW, DQ, VL; no VNNI, no BF16, no AMX
``avx2``       x86-64-v3: AVX2, FMA, F16C
``generic``    the architecture's baseline: SSE2 on x86-64, NEON on AArch64
``+name``      switches one LLVM feature on (``avx512+avx512vnni``); the host must have it
``-name``      switches one off (``native-amx-tile``); names with dashes are no problem
=============  =======================================================================

Names that end in ``-emulated`` (``avx512+amx-emulated``) are pseudo-features: LLVM never sees them, kernels
can ask for them with :func:`has`.  They let the tests run a kernel's logic on a machine without the
instruction.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from ggplug.errors import ParameterError

ENVIRONMENT_VARIABLE = "GGPLUG_CPU_FEATURES"

#: Pseudo-features end like this: they are for kernels to ask about and never reach LLVM.
EMULATED_SUFFIX = "-emulated"

_V2 = ("cx16", "sahf", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")

#: level -> (LLVM's name of the CPU, the features it stands for); the psABI's x86-64 micro-architecture levels.
_X86_LEVELS: dict[str, tuple[str, tuple[str, ...]]] = {
    "generic": ("x86-64", ()),
    "avx2": ("x86-64-v3", _V3),
    "avx512": ("x86-64-v4", _V4),
}
#: What every CPU of the architecture has, and so every level.
_X86_BASELINE = ("64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2")
_ARM_BASELINE = ("fp-armv8", "neon")

#: What a feature presupposes, as in LLVM's X86.td: switching one off takes those that need it along.
_X86_NEEDS: dict[str, tuple[str, ...]] = {
    "sse3": ("sse2",),
    "ssse3": ("sse3",),
    "sse4.1": ("ssse3",),
    "sse4.2": ("sse4.1",),
    "avx": ("sse4.2",),
    "f16c": ("avx",),
    "fma": ("avx",),
    "avx2": ("avx",),
    "avxvnni": ("avx2",),
    "avxvnniint8": ("avx2",),
    "avxvnniint16": ("avx2",),
    "avxifma": ("avx2",),
    "avxneconvert": ("avx2",),
    "gfni": ("sse2",),
    "vaes": ("avx2", "aes"),
    "vpclmulqdq": ("avx", "pclmul"),
    "avx512f": ("avx2", "fma", "f16c"),
    "avx512bf16": ("avx512bw",),
    "avx512vbmi": ("avx512bw",),
    "avx512vbmi2": ("avx512bw",),
    "avx512bitalg": ("avx512bw",),
    "avx512fp16": ("avx512bw", "avx512dq", "avx512vl"),
}

# arch/x86/include/uapi/asm/prctl.h: ARCH_REQ_XCOMP_PERM, and the number of the tile data state component.
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18
_SYS_ARCH_PRCTL_X86_64 = 158


@dataclass(frozen=True)
class Target:
    """What code is generated for.

    ``level`` is the level that was asked for (``native``, ``avx512``, ``avx2``, ``generic``), ``cpu`` LLVM's name of
    the CPU, ``features`` LLVM's feature string, ``flags`` the names that are on, pseudo-features included.
    """

    level: str
    cpu: str
    features: str
    flags: frozenset[str]

    @functools.cached_property
    def key(self) -> str:
        """Sixteen hex digits that differ wherever the generated code may differ."""
        text = "|".join((platform.machine(), sys.platform, self.cpu, self.features, *sorted(self.flags)))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def vector_bytes(self) -> int:
        """Bytes of the widest float vector register: 64, 32 or 16."""
        if "avx512f" in self.flags:
            return 64
        return 32 if "avx2" in self.flags else 16

    def has(self, feature: str) -> bool:
        """Whether ``feature`` (LLVM's name, or a pseudo-feature) may be used."""
        return feature in self.flags

    def __str__(self) -> str:
        return f"{self.level} ({self.cpu})"


_forced: Target | None = None


def target() -> Target:
    """The target of this process: :func:`forced`'s, else what ``GGPLUG_CPU_FEATURES`` says.

    Raises :class:`~ggplug.errors.ParameterError` when the variable names a level or a feature that does not
    exist or that this machine lacks.
    """
    return _forced or parse(os.environ.get(ENVIRONMENT_VARIABLE, ""))


def has(feature: str) -> bool:
    """Whether kernels may use ``feature`` (LLVM's name such as ``avx512vnni``, or a pseudo-feature)."""
    return feature in target().flags


@contextlib.contextmanager
def forced(specification: str) -> Iterator[Target]:
    """Compile for another target inside a ``with`` block; for tests, which so need no process of their own.

    Kernels that were compiled before keep working; a kernel used inside the block is compiled for the forced target.
    The whole process is affected, other threads too.
    """
    global _forced
    before = _forced
    _forced = parse(specification)
    try:
        yield _forced
    finally:
        _forced = before


def choices() -> tuple[str, ...]:
    """The levels that ``GGPLUG_CPU_FEATURES`` may name on this machine."""
    host = host_features()
    levels = _X86_LEVELS if _is_x86() else {"generic": ("", ())}
    return (*(name for name, (_, needs) in levels.items() if set(needs) <= host), "native")


@functools.cache
def host_features() -> frozenset[str]:
    """LLVM's names of what this CPU and this operating system offer; AMX only where its use is permitted."""
    import llvmlite.binding as llvm

    try:
        found = {name for name, on in llvm.get_host_cpu_features().items() if on}
    except RuntimeError:  # LLVM cannot tell on this system: the baseline is always there
        found = set()
    found.update(_baseline())
    if "amx-tile" in found and not _amx_permitted():
        found = {name for name in found if not name.startswith("amx-")}
    return frozenset(found)


@functools.cache
def parse(specification: str) -> Target:
    """The target that ``specification`` (the value of ``GGPLUG_CPU_FEATURES``) describes on this machine."""
    level, modifiers = _split(specification)
    host = host_features()
    if level == "native":
        cpu, flags = _host_cpu(), set(host)
    elif _is_x86():
        cpu, needs = _X86_LEVELS[level]
        missing = sorted(set(needs) - host)
        if missing:
            raise _unavailable(specification, f"this CPU lacks {', '.join(missing)}")
        flags = {*_baseline(), *needs}
    else:
        cpu, flags = "generic", set(_baseline())
    for sign, name in modifiers:
        if sign == "-":
            flags = {flag for flag in flags if name not in _with_needs(flag)}
        elif name.endswith(EMULATED_SUFFIX) or name in host:
            flags |= _with_needs(name)
        else:
            raise _unavailable(specification, f"this CPU has no feature {name!r}")
    return Target(level, cpu, _llvm_features(flags), frozenset(flags))


def _split(specification: str) -> tuple[str, list[tuple[str, str]]]:
    """``avx512+avx512vnni-fma`` -> (``avx512``, [(``+``, ``avx512vnni``), (``-``, ``fma``)])."""
    text = specification.strip().lower()
    level = re.match(r"[a-z0-9]*", text).group()  # type: ignore[union-attr]  # the pattern matches any text
    rest = text[len(level) :]
    level = level or "native"
    if level != "native" and level not in (_X86_LEVELS if _is_x86() else ("generic",)):
        raise _unavailable(specification, f"there is no level {level!r}")
    return level, _modifiers(specification, rest)


def _modifiers(specification: str, text: str) -> list[tuple[str, str]]:
    """Split ``+a-b-c`` into signed names; a dash is part of a name when that makes the name a known one."""
    known = _known_features()
    found: list[tuple[str, str]] = []
    while text:
        sign, text = text[0], text[1:]
        parts = re.split(r"([+-])", text)
        # the longest run of dash-joined parts that is a known or emulated name
        for end in range(len(parts), 0, -2):
            name = "".join(parts[:end])
            if sign in "+-" and "+" not in name and (name in known or name.endswith(EMULATED_SUFFIX)):
                break
        else:
            raise _unavailable(specification, f"there is no feature {parts[0]!r}")
        found.append((sign, name))
        text = text[len(name) :]
    return found


def _with_needs(name: str) -> set[str]:
    """``name`` and all that it presupposes."""
    found = {name}
    if _is_x86() and not name.endswith(EMULATED_SUFFIX):
        needs = _X86_NEEDS.get(name, ())
        if not needs and name.startswith("avx512"):  # every other AVX-512 extension builds on its foundation
            needs = ("avx512f",)
        elif name.startswith("amx-") and name != "amx-tile":
            needs = ("amx-tile",)
        for need in needs:
            found |= _with_needs(need)
    return found


@functools.cache
def _known_features() -> frozenset[str]:
    import llvmlite.binding as llvm

    try:
        names = set(llvm.get_host_cpu_features())
    except RuntimeError:
        names = set()
    return frozenset(names | host_features() | set(_V4 if _is_x86() else ()))


def _llvm_features(flags: set[str]) -> str:
    """LLVM's feature string: everything it knows, on or off, so that the CPU's name decides nothing silently."""
    known = _known_features() | flags
    text = [("+" if name in flags else "-") + name for name in sorted(known) if not name.endswith(EMULATED_SUFFIX)]
    if _is_x86():
        # LLVM halves the vectors it makes of loops on several AVX-512 CPUs; kernels here are written for whole ones.
        text.append("-prefer-256-bit")
    return ",".join(text)


def _unavailable(specification: str, why: str) -> ParameterError:
    return ParameterError(
        f"{ENVIRONMENT_VARIABLE}={specification!r}: {why}",
        got=specification,
        wanted=choices(),
        remedy=f"on this machine it may be one of {', '.join(choices())}, followed by +feature or -feature",
    )


def _baseline() -> tuple[str, ...]:
    if _is_x86():
        return _X86_BASELINE
    return _ARM_BASELINE if platform.machine().lower() in ("aarch64", "arm64") else ()


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def _host_cpu() -> str:
    import llvmlite.binding as llvm

    return str(llvm.get_host_cpu_name())


def _amx_permitted() -> bool:
    """Ask Linux for the tile registers (it grants them a process at a time); elsewhere they stay unused."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    syscall = libc.syscall
    syscall.restype = ctypes.c_long
    syscall.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_long]
    return bool(syscall(_SYS_ARCH_PRCTL_X86_64, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0)
