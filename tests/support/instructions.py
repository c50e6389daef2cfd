"""Which instructions kernels consist of, and which extensions of an instruction set these belong to.

Kernels are compiled for the current target, which :func:`ggplug_cpu.features.forced` may choose, so no processor
that has the instructions is needed.  As a program it prints what matrix products consist of::

    python tests/support/instructions.py
"""

from __future__ import annotations

import functools
import re
import struct
from collections import Counter
from collections.abc import Iterator

from ggplug import ops
from ggplug.backend import Decline, Group
from ggplug.tensor import Tensor, new_tensor
from ggplug_cpu import features
from ggplug_cpu.compiler import Kernel
from ggplug_cpu.language import machine_code
from ggplug_cpu.matching import match
from ggplug_cpu.simd import dots

WEIGHTS = ("f32", "f16", "bf16", "q8_0", "q4_0")
COLUMNS = {"one column": 1, "64 columns": 64}

#: Of AArch64 assembly: the extension that an instruction needs, by its name or its operands.
_ARM = {
    "dotprod": r"\t[us]dot\t",
    "i8mm": r"\t(?:[us]mmla|usmmla|usdot|sudot)\t",
    "bf16": r"\tbf(?:dot|mmla|mlal\w|cvt\w*)\t",
    "sve": r"\b[zp]\d+(?:\.[bhsdq]|/[mz])",
    "fullfp16": r"\tf(?!cvt)\w+\t(?:v\d+\.[48]h|h\d+, h\d+)",
    "lse": r"\t(?:ld(?:add|set|clr|eor|[us]max|[us]min)|swp|cas)\w*\t",
    "rcpc": r"\tldapr\w*\t",
    "rdm": r"\tsqrdml[as]h\t",
    "complxnum": r"\tfc(?:mla|add)\t",
    "sme": r"\t(?:smstart|smstop|zero|\w*mop[as])\b",
}

#: Names of iced that are not LLVM's without underscores, and what every x86-64 processor has.
_X86_NAMES = {"BMI1": "bmi", "PCLMULQDQ": "pclmul", "PREFETCHW": "prfchw", "SSE4_1": "sse4.1", "SSE4_2": "sse4.2"}
_X86_BASELINE = {"X64", "TSC", "PAUSE", "MULTIBYTENOP", "FPU", "CPUID", *(f"INTEL{n}86" for n in (80, 1, 2, 3, 4))}


def kernels_of(node: Tensor) -> tuple[Kernel, ...]:
    """The kernels that compute a node on the current target."""
    chosen = match(Group((node,)))
    assert not isinstance(chosen, Decline), chosen.reason
    entries = chosen.entries
    return tuple(dict.fromkeys(e for each in entries for e in (each.kernel, *each.words) if isinstance(e, Kernel)))


def products() -> Iterator[tuple[str, tuple[Kernel, ...]]]:
    """``(what, its kernels)`` of a matrix product with each type of weights, for one column and for many."""
    for weights in WEIGHTS:
        for name, columns in COLUMNS.items():
            node = ops.mul_mat(new_tensor(weights, (256, 512)), new_tensor("f32", (256, columns)))
            yield f"{weights}, {name}", kernels_of(node)


def instructions(kernel: Kernel) -> Counter[str]:
    """How often the assembly of a kernel has each instruction, by the assembler's names."""
    return Counter(re.findall(r"^\s+([a-z][\w.]*)\b", _assembly(kernel, features.target()), re.MULTILINE))


@functools.cache
def _assembly(kernel: Kernel, target: features.Target) -> str:
    return kernel.assembly()


def extensions(kernel: Kernel) -> set[str]:
    """LLVM's names of the extensions that a kernel's instructions belong to, beyond the oldest x86-64 and Arm."""
    target = features.target()
    if "neon" in target.flags:
        text = _assembly(kernel, target)
        return {name for name, pattern in _ARM.items() if re.search(pattern, text)}
    return set().union(*map(_of_x86, _machine_code(machine_code.compile_kernel(kernel, target))))


def _of_x86(code: bytes) -> set[str]:
    import iced_x86

    names = {number: name for name, number in vars(iced_x86.CpuidFeature).items() if isinstance(number, int)}
    found: set[str] = set()
    # LLVM writes tzcnt for bsf where the operand is not zero: the bytes are those of bsf with a prefix that processors
    # without tzcnt skip
    for instruction in iced_x86.Decoder(64, code, iced_x86.DecoderOptions.NO_MPFX_0FBC):
        assert instruction.code != iced_x86.Code.INVALID
        found.update(names[number] for number in instruction.cpuid_features())
    return {_X86_NAMES.get(name, name.lower().replace("_", "")) for name in found - _X86_BASELINE}


def _machine_code(file: bytes) -> Iterator[bytes]:
    """The contents of the sections of an ELF object file that hold instructions."""
    (start,) = struct.unpack_from("<Q", file, 40)
    size, count = struct.unpack_from("<HH", file, 58)
    for at in range(start, start + size * count, size):
        _, kind, flags, _, offset, length = struct.unpack_from("<IIQQQQ", file, at)
        if kind == 1 and flags & 4:  # SHT_PROGBITS, SHF_EXECINSTR
            yield file[offset : offset + length]


def main() -> None:
    names = [name for ways in dots.WAYS.values() for way in ways if way.rows < 16 for name in way.name.split()]
    counts = {what: sum(map(instructions, kernels), Counter()) for what, kernels in products()}
    shown = [name for name in dict.fromkeys([*names, "fmla"]) if any(count[name] for count in counts.values())]
    print(f"Instructions in the code of matrix products for {features.target()}:")
    print(f"{'':20}{''.join(f'{name:>12}' for name in shown)}")
    for what, count in counts.items():
        print(f"{what:20}{''.join(f'{count[name]:12}' for name in shown)}")


if __name__ == "__main__":
    main()
