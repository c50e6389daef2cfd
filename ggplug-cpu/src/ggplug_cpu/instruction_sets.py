"""The instruction set extensions of each family of processors: the extensions that each needs, and how systems report
it.

Names are LLVM's (``llc -mattr=help``).  ``needs`` is at least what LLVM switches on along with an extension
(``X86.td``, ``AArch64Features.td``): without it the extension cannot stay on.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Extension:
    """One extension of an instruction set.

    ``needs``: the extensions that it requires.  The other fields say how an operating system reports it; the processor
    has the extension if all of these are reported: ``linux``, names in the auxiliary vector (as in ``/proc/cpuinfo``);
    ``darwin``, names below ``hw.optional.`` of ``sysctl``; ``windows``, numbers for ``IsProcessorFeaturePresent``.
    All are empty on x86-64, where LLVM asks the processor itself.  ``slow_on``: LLVM's names of the processors that
    have the extension but are faster with the older instructions.
    """

    needs: tuple[str, ...] = ()
    linux: tuple[str, ...] = ()
    darwin: tuple[str, ...] = ()
    windows: tuple[int, ...] = ()
    slow_on: tuple[str, ...] = ()


@dataclass(frozen=True)
class InstructionSet:
    """A family of processors.

    ``machines``: what ``platform.machine()`` calls it.  ``extensions``: by LLVM's names.  ``baseline``: what every
    processor of the family has.  ``levels``: name -> (LLVM's name of a processor, the extensions beyond the baseline).
    """

    name: str
    machines: tuple[str, ...]
    baseline: tuple[str, ...]
    levels: Mapping[str, tuple[str, tuple[str, ...]]]
    extensions: Mapping[str, Extension]

    def with_needs(self, name: str) -> set[str]:
        """``name`` and all extensions that it needs; a name that is not in the table needs none."""
        found = {name}
        for need in self.extensions.get(name, Extension()).needs:
            found |= self.with_needs(need)
        return found

    def complete(self, names: Collection[str]) -> set[str]:
        """Those of ``names`` whose needs are among them too: LLVM would switch on what is missing for the others."""
        there = set(names)
        return {name for name in there if self.with_needs(name) <= there}

    def slow(self, cpu: str, names: Collection[str]) -> frozenset[str]:
        """Those of ``names`` that are slow on the processor of this name."""
        return frozenset(name for name in names if cpu in self.extensions.get(name, Extension()).slow_on)


# -- x86-64 -----------------------------------------------------------------------------------------

_V2 = ("cx16", "sahf", "popcnt", "crc32", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")

_X86_NEEDS: dict[str, tuple[str, ...]] = {
    "64bit": (),
    "cmov": (),
    "cx8": (),
    "fxsr": (),
    "mmx": (),
    "sse": (),
    "sse2": ("sse",),
    "sse3": ("sse2",),
    "ssse3": ("sse3",),
    "sse4.1": ("ssse3",),
    "sse4.2": ("sse4.1",),
    "sse4a": ("sse3",),
    "crc32": (),
    "popcnt": (),
    "cx16": ("cx8",),
    "sahf": (),
    "lzcnt": (),
    "bmi": (),
    "bmi2": (),
    "adx": (),
    "movbe": (),
    "xsave": (),
    "xsaveopt": ("xsave",),
    "xsavec": ("xsave",),
    "xsaves": ("xsave",),
    "aes": ("sse2",),
    "pclmul": ("sse2",),
    "sha": ("sse2",),
    "gfni": ("sse2",),
    "kl": ("sse2",),
    "widekl": ("kl",),
    "avx": ("sse4.2",),
    "f16c": ("avx",),
    "fma": ("avx",),
    "fma4": ("avx", "sse4a"),
    "xop": ("fma4",),
    "vpclmulqdq": ("avx", "pclmul"),
    "sm3": ("avx",),
    "avx2": ("avx",),
    "vaes": ("avx2", "aes"),
    "sha512": ("avx2",),
    "sm4": ("avx2",),
    "avxvnni": ("avx2",),
    "avxvnniint8": ("avx2",),
    "avxvnniint16": ("avx2",),
    "avxifma": ("avx2",),
    "avxneconvert": ("avx2",),
    "avx512f": ("avx2", "fma", "f16c"),
    "avx512cd": ("avx512f",),
    "avx512bw": ("avx512f",),
    "avx512dq": ("avx512f",),
    "avx512vl": ("avx512f",),
    "avx512ifma": ("avx512f",),
    "avx512vnni": ("avx512f",),
    "avx512vpopcntdq": ("avx512f",),
    "avx512vp2intersect": ("avx512f",),
    "avx512bf16": ("avx512bw",),
    "avx512vbmi": ("avx512bw",),
    "avx512vbmi2": ("avx512bw",),
    "avx512bitalg": ("avx512bw",),
    "avx512fp16": ("avx512bw", "avx512dq", "avx512vl"),
    "avx10.1": (
        "avx512cd",
        "avx512vbmi",
        "avx512ifma",
        "avx512vnni",
        "avx512bf16",
        "avx512vpopcntdq",
        "avx512vbmi2",
        "avx512bitalg",
        "avx512fp16",
    ),
    "avx10.2": ("avx10.1",),
    "amx-tile": (),
    "amx-int8": ("amx-tile",),
    "amx-bf16": ("amx-tile",),
    "amx-fp16": ("amx-tile",),
    "amx-complex": ("amx-tile",),
    "amx-fp8": ("amx-tile",),
    "amx-tf32": ("amx-tile",),
    "amx-movrs": ("amx-tile",),
    "amx-avx512": ("amx-tile", "avx10.2"),
}

# Cores with AMX do a quarter as many vdpbf16ps as vfmadd231ps in the same time, which is half of the products; a guest
# may see the one and not AMX.  (AMD's, and Cooper Lake's, do as many of both.)
_X86_SLOW = {"avx512bf16": ("sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d")}

X86_64 = InstructionSet(
    name="x86-64",
    machines=("x86_64", "amd64"),
    baseline=("64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2"),
    levels={  # the psABI's micro-architecture levels
        "generic": ("x86-64", ()),
        "avx2": ("x86-64-v3", _V3),
        "avx512": ("x86-64-v4", _V4),
    },
    extensions={name: Extension(needs, slow_on=_X86_SLOW.get(name, ())) for name, needs in _X86_NEEDS.items()},
)


# -- AArch64 ----------------------------------------------------------------------------------------

# Only extensions for user programs: none of system registers, traps or page tables.
_AARCH64: dict[str, Extension] = {
    "fp-armv8": Extension((), ("fp",), ("floatingpoint",)),
    "neon": Extension(("fp-armv8",), ("asimd",), ("AdvSIMD",)),
    "aes": Extension(("neon",), ("aes", "pmull"), ("arm.FEAT_AES", "arm.FEAT_PMULL"), (30,)),
    "sha2": Extension(("neon",), ("sha1", "sha2"), ("arm.FEAT_SHA1", "arm.FEAT_SHA256"), (30,)),
    "sha3": Extension(("neon", "sha2"), ("sha3", "sha512"), ("arm.FEAT_SHA3", "arm.FEAT_SHA512"), (64, 65)),
    "sm4": Extension(("neon",), ("sm3", "sm4")),
    "crc": Extension((), ("crc32",), ("armv8_crc32",), (31,)),
    "lse": Extension((), ("atomics",), ("arm.FEAT_LSE",), (34,)),
    "lse2": Extension((), ("uscat",), ("arm.FEAT_LSE2",), (62,)),
    "lse128": Extension(("lse",), ("lse128",)),
    "rdm": Extension(("neon",), ("asimdrdm",), ("arm.FEAT_RDM",)),
    "rcpc": Extension((), ("lrcpc",), ("arm.FEAT_LRCPC",), (45,)),
    "rcpc-immo": Extension(("rcpc",), ("ilrcpc",), ("arm.FEAT_LRCPC2",)),
    "rcpc3": Extension(("rcpc-immo",), ("lrcpc3",)),
    "fullfp16": Extension(("fp-armv8",), ("fphp", "asimdhp"), ("arm.FEAT_FP16",), (67,)),
    "fp16fml": Extension(("fullfp16", "neon"), ("asimdfhm",), ("arm.FEAT_FHM",)),
    "dotprod": Extension(("neon",), ("asimddp",), ("arm.FEAT_DotProd",), (43,)),
    "i8mm": Extension(("neon",), ("i8mm",), ("arm.FEAT_I8MM",), (66,)),
    "bf16": Extension(("neon",), ("bf16",), ("arm.FEAT_BF16",), (68,)),
    "jsconv": Extension(("fp-armv8",), ("jscvt",), ("arm.FEAT_JSCVT",), (44,)),
    "complxnum": Extension(("neon",), ("fcma",), ("arm.FEAT_FCMA",)),
    "fptoint": Extension(("fp-armv8",), ("frint",), ("arm.FEAT_FRINTTS",)),
    "flagm": Extension((), ("flagm",), ("arm.FEAT_FlagM",)),
    "altnzcv": Extension(("flagm",), ("flagm2",), ("arm.FEAT_FlagM2",)),
    "pauth": Extension((), ("paca", "pacg"), ("arm.FEAT_PAuth",)),
    "bti": Extension((), ("bti",), ("arm.FEAT_BTI",)),
    "mte": Extension((), ("mte",), ("arm.FEAT_MTE",)),
    "dit": Extension((), ("dit",), ("arm.FEAT_DIT",)),
    "sb": Extension((), ("sb",), ("arm.FEAT_SB",)),
    "ssbs": Extension((), ("ssbs",), ("arm.FEAT_SSBS",)),
    "rand": Extension((), ("rng",)),
    "ccpp": Extension((), ("dcpop",), ("arm.FEAT_DPB",)),
    "ccdp": Extension(("ccpp",), ("dcpodp",), ("arm.FEAT_DPB2",)),
    "wfxt": Extension((), ("wfxt",), ("arm.FEAT_WFxT",)),
    "cssc": Extension((), ("cssc",), ("arm.FEAT_CSSC",)),
    "hbc": Extension((), ("hbc",), ("arm.FEAT_HBC",)),
    "mops": Extension((), ("mops",)),
    "gcs": Extension((), ("gcs",)),
    "cmpbr": Extension((), ("cmpbr",)),
    "fprcvt": Extension(("fp-armv8",), ("fprcvt",)),
    "faminmax": Extension(("neon",), ("faminmax",)),
    "lut": Extension(("neon",), ("lut",)),
    "fp8": Extension(("neon",), ("fpmr", "f8cvt")),
    "fp8fma": Extension(("fp8",), ("f8fma",)),
    "fp8dot4": Extension(("fp8",), ("f8dp4",)),
    "fp8dot2": Extension(("fp8",), ("f8dp2",)),
    "f8f32mm": Extension(("neon", "fp8"), ("f8mm8",)),
    "f8f16mm": Extension(("neon", "fp8"), ("f8mm4",)),
    "sve": Extension(("fullfp16",), ("sve",), ("arm.FEAT_SVE",), (46,)),
    "f32mm": Extension(("sve",), ("svef32mm",), (), (58,)),
    "f64mm": Extension(("sve",), ("svef64mm",), (), (59,)),
    "sve-f16f32mm": Extension(("sve",), ("svef16mm",)),
    "sve2": Extension(("sve",), ("sve2",), ("arm.FEAT_SVE2",), (47,)),
    "sve2p1": Extension(("sve2",), ("sve2p1",), (), (48,)),
    "sve2p2": Extension(("sve2p1",), ("sve2p2",)),
    "sve-aes": Extension(("sve2", "aes"), ("sveaes", "svepmull"), (), (49, 50)),
    "sve-aes2": Extension((), ("sveaes2",)),
    "sve-sha3": Extension(("sve2", "sha3"), ("svesha3",), (), (55,)),
    "sve-sm4": Extension(("sve2", "sm4"), ("svesm4",), (), (56,)),
    "sve-bitperm": Extension(("sve2",), ("svebitperm",), (), (51,)),
    "sve-b16b16": Extension((), ("sveb16b16",), (), (54,)),
    "sve-bfscale": Extension((), ("svebfscale",)),
    "sme": Extension(("bf16", "fullfp16"), ("sme",), ("arm.FEAT_SME",), (70,)),
    "sme-f64f64": Extension(("sme",), ("smef64f64",), ("arm.FEAT_SME_F64F64",)),
    "sme-i16i64": Extension(("sme",), ("smei16i64",), ("arm.FEAT_SME_I16I64",)),
    "sme-fa64": Extension(("sme", "sve2"), ("smefa64",)),
    "sme2": Extension(("sme",), ("sme2",), ("arm.FEAT_SME2",), (71,)),
    "sme2p1": Extension(("sme2",), ("sme2p1",), ("arm.FEAT_SME2p1",), (72,)),
    "sme2p2": Extension(("sme2p1",), ("sme2p2",), (), (73,)),
    "sme-f16f16": Extension(("sme2",), ("smef16f16",), ("arm.FEAT_SME_F16F16",)),
    "sme-b16b16": Extension(("sme2", "sve-b16b16"), ("smeb16b16",), ("arm.FEAT_SME_B16B16",)),
    "sme-lutv2": Extension(("sme2",), ("smelutv2",)),
    "sme-f8f32": Extension(("sme2", "fp8"), ("smef8f32",)),
    "sme-f8f16": Extension(("sme2", "fp8"), ("smef8f16",)),
}

AARCH64 = InstructionSet(
    name="aarch64",
    machines=("aarch64", "arm64"),
    baseline=("fp-armv8", "neon"),
    levels={"generic": ("generic", ())},
    extensions=_AARCH64,
)

#: Any other family of processors: LLVM's generic code for it.
OTHER = InstructionSet(platform.machine(), (), (), {"generic": ("generic", ())}, {})

INSTRUCTION_SETS = (X86_64, AARCH64)


def of_this_machine() -> InstructionSet:
    """The instruction set of the processor that this Python runs on."""
    machine = platform.machine().lower()
    return next((each for each in INSTRUCTION_SETS if machine in each.machines), OTHER)
