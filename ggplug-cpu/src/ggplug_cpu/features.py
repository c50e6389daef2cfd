"""The instructions that kernels may use: the host's, or those that ``GGPLUG_CPU_FEATURES`` selects.

``GGPLUG_CPU_FEATURES`` holds a level and, after it, any number of modifiers:

=============  =======================================================================
``native``     everything this CPU and this operating system offer (the default)
``avx512``     x86-64-v4: AVX-512 F, CD, BW, DQ, VL; no VNNI, no BF16, no AMX
``avx2``       x86-64-v3: AVX2, FMA, F16C
``generic``    the architecture's baseline: SSE2 on x86-64, NEON on AArch64
``+name``      switches one LLVM feature on (``avx512+avx512vnni``), and what it needs;
               the host must have it
``-name``      switches one off (``native-amx-tile``), and what needs it; names with
               dashes are no problem.  The architecture's baseline stays on
=============  =======================================================================

Names that end in ``-emulated`` (``avx512+amx-emulated``) are pseudo-features: LLVM never sees them, kernels
can ask for them with :func:`has`.  They let the tests run a kernel's logic on a machine without the
instruction.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ggplug.errors import ParameterError
from ggplug_cpu.detect import host_features
from ggplug_cpu.instruction_sets import InstructionSet, of_this_machine

ENVIRONMENT_VARIABLE = "GGPLUG_CPU_FEATURES"

#: The suffix of pseudo-features: kernels ask for them, LLVM never sees them.
EMULATED_SUFFIX = "-emulated"

#: Most characters of the variable's value; all features of a processor, each with its sign, are fewer.
_LONGEST = 2000
#: Most characters of a wrong value that a message shows.
_MESSAGE_CHARACTERS = 80


@dataclass(frozen=True)
class Target:
    """The processor and system for which code is generated.

    ``level`` is the requested level (``native``, ``avx512``, ``avx2``, ``generic``), ``cpu`` LLVM's name of
    the CPU, ``features`` LLVM's feature string, ``flags`` the names that are on, pseudo-features included, ``triple``
    LLVM's name of architecture and system.  ``slow`` are those of ``flags`` that are slow on this CPU: kernels may use
    them, but choosers prefer kernels without them.
    """

    level: str
    cpu: str
    features: str
    flags: frozenset[str]
    triple: str
    slow: frozenset[str] = frozenset()

    @functools.cached_property
    def key(self) -> str:
        """Sixteen hex digits that differ wherever the generated code may differ."""
        text = "|".join((self.triple, self.cpu, self.features, *sorted(self.flags)))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def vector_bytes(self) -> int:
        """Bytes of the widest float vector register: 64, 32 or 16."""
        if "avx512f" in self.flags:
            return 64
        return 32 if "avx2" in self.flags else 16

    @property
    def runs_here(self) -> bool:
        """Whether code for this target runs on this machine; :func:`cross_target` makes other targets."""
        import llvmlite.binding as llvm

        return bool(self.triple == llvm.get_process_triple())

    def has(self, feature: str) -> bool:
        """Whether ``feature`` (LLVM's name, or a pseudo-feature) may be used."""
        return feature in self.flags

    def __str__(self) -> str:
        return f"{self.level} ({self.cpu})"


_forced: Target | None = None


@functools.cache  # each computation asks for it
def target() -> Target:
    """The target of this process: that of :func:`forced`, or else of ``GGPLUG_CPU_FEATURES``, which is read once.

    Raises :class:`~ggplug.errors.ParameterError` when the variable names a level or a feature that does not
    exist or that this machine lacks.
    """
    return _forced or parse(os.environ.get(ENVIRONMENT_VARIABLE, ""))


def has(feature: str) -> bool:
    """Whether kernels may use ``feature`` (LLVM's name such as ``avx512vnni``, or a pseudo-feature)."""
    return feature in target().flags


@contextlib.contextmanager
def forced(specification: str | Target) -> Iterator[Target]:
    """Compile for another target inside a ``with`` block; for tests, which then need no separate process.

    ``specification``: a value of ``GGPLUG_CPU_FEATURES``, or a target such as :func:`cross_target` makes.  Kernels that
    were compiled before keep working; a kernel used inside the block is compiled for the forced target.  The whole
    process is affected, other threads too.
    """
    global _forced
    before = _forced
    _forced = parse(specification) if isinstance(specification, str) else specification
    target.cache_clear()
    try:
        yield _forced
    finally:
        _forced = before
        target.cache_clear()


def has_many_registers() -> bool:
    """Whether the target has 32 vector registers, not 16: AVX-512, and every architecture but x86."""
    return has("avx512f") or not has("sse2")


def limit(specification: str) -> None:
    """Limits kernels that are used from now on, in this process and those that it starts.

    ``specification``: a value of ``GGPLUG_CPU_FEATURES``.  Raises ParameterError as :func:`parse` does.
    """
    parse(specification)
    os.environ[ENVIRONMENT_VARIABLE] = specification
    target.cache_clear()


def choices() -> tuple[str, ...]:
    """The levels that ``GGPLUG_CPU_FEATURES`` may name on this machine."""
    host = host_features()
    levels = of_this_machine().levels
    return (*(name for name, (_, needs) in levels.items() if set(needs) <= host), "native")


@functools.cache
def parse(specification: str) -> Target:
    """The target that ``specification`` (the value of ``GGPLUG_CPU_FEATURES``) describes on this machine.

    Modifiers apply one after the other.  Raises ParameterError for a target that this machine cannot run.
    """
    import llvmlite.binding as llvm

    level, modifiers = _split(specification)
    host, family = host_features(), of_this_machine()
    if level == "native":
        cpu, flags = str(llvm.get_host_cpu_name()), set(host)
    else:
        cpu, needs = family.levels[level]
        missing = sorted(set(needs) - host)
        if missing:
            raise _unavailable(specification, f"this CPU lacks {', '.join(missing)}")
        flags = {*family.baseline, *needs}
    for sign, name in modifiers:
        if sign == "-":
            if name in family.baseline:
                why = f"{name} cannot be switched off: it belongs to the baseline of {family.name}"
                raise _unavailable(specification, why)
            flags = {flag for flag in flags if name not in family.with_needs(flag)}
        elif name.endswith(EMULATED_SUFFIX) or name in host:
            flags |= family.with_needs(name)
        else:
            raise _unavailable(specification, f"this CPU has no feature {_shortened(name)}")
    text = _llvm_features(family, flags, _known_features())
    return Target(level, cpu, text, frozenset(flags), llvm.get_process_triple(), family.slow(cpu, flags))


def cross_target(family: InstructionSet, cpu: str, names: Iterable[str]) -> Target:
    """The target of Linux on another processor, to inspect the generated code: its kernels cannot run here.

    ``cpu``: LLVM's name of the processor.  ``names``: the features it has, beyond the baseline.
    """
    flags = {*family.baseline}.union(*map(family.with_needs, names))
    text = _llvm_features(family, flags, family.extensions)
    triple = f"{family.machines[0]}-unknown-linux-gnu"
    return Target(cpu, cpu, text, frozenset(flags), triple, family.slow(cpu, flags))


def _split(specification: str) -> tuple[str, list[tuple[str, str]]]:
    """``avx512+avx512vnni-fma`` -> (``avx512``, [(``+``, ``avx512vnni``), (``-``, ``fma``)])."""
    text = specification.strip().lower()
    if len(text) > _LONGEST:
        raise _unavailable(specification, f"it has {len(text)} characters, at most {_LONGEST} are read")
    level = re.match(r"[a-z0-9]*", text).group()  # type: ignore[union-attr]  # the pattern matches any text
    rest = text[len(level) :]
    level = level or "native"
    if level != "native" and level not in of_this_machine().levels:
        raise _unavailable(specification, f"this machine has no level {_shortened(level)}")
    return level, _modifiers(specification, rest)


def _modifiers(specification: str, text: str) -> list[tuple[str, str]]:
    """Split ``+a-b-c`` into signed names; a dash is part of a name when that makes the name a known one."""
    known = _known_features()
    found: list[tuple[str, str]] = []
    while text:
        sign, text = text[0], text[1:]
        if sign not in "+-":
            raise _unavailable(specification, f"there is {_shortened(sign + text)} in the place of + or -")
        parts = text.partition("+")[0].split("-")
        # the longest run of dash-joined parts that is a known or emulated name
        for end in range(len(parts), 0, -1):
            name = "-".join(parts[:end])
            if name in known or (name.endswith(EMULATED_SUFFIX) and name != EMULATED_SUFFIX):
                break
        else:
            raise _unavailable(specification, f"there is no feature {_shortened(parts[0])}")
        found.append((sign, name))
        text = text[len(name) :]
    return found


@functools.cache
def _known_features() -> frozenset[str]:
    """Names that ``GGPLUG_CPU_FEATURES`` may hold on this machine."""
    import llvmlite.binding as llvm

    try:
        names = set(llvm.get_host_cpu_features())
    except RuntimeError:
        names = set()
    return frozenset(names | host_features() | set(of_this_machine().extensions))


def _llvm_features(family: InstructionSet, flags: set[str], known: Iterable[str]) -> str:
    """LLVM's feature string: every feature that LLVM knows, on or off, so that none follows from the CPU's name."""
    names = sorted({*known, *flags})
    text = [("+" if name in flags else "-") + name for name in names if not name.endswith(EMULATED_SUFFIX)]
    if "sse2" in family.baseline:
        # On several AVX-512 CPUs LLVM vectorises loops at half the register width; these kernels need the full width.
        text.append("-prefer-256-bit")
    return ",".join(text)


def _shortened(text: str) -> str:
    """The beginning of a wrong value, for a message."""
    return repr(text) if len(text) <= _MESSAGE_CHARACTERS else f"{text[:_MESSAGE_CHARACTERS]!r}..."


def _unavailable(specification: str, why: str) -> ParameterError:
    return ParameterError(
        f"{ENVIRONMENT_VARIABLE}={_shortened(specification)}: {why}",
        got=specification,
        wanted=choices(),
        remedy=f"on this machine it may be one of {', '.join(choices())}, followed by +feature or -feature",
    )
