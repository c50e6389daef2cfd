"""ggplug-cpu's features: what each system reports, what is switched on and off, and that code keeps to it."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding
import pytest
from llvmlite import ir
from paths import ROOT

pytest.importorskip("ggplug_cpu")

from ggplug.errors import KernelCompileError, ParameterError
from ggplug_cpu import detect, features
from ggplug_cpu.compiler import intrinsic, kernel
from ggplug_cpu.context import word
from ggplug_cpu.device import CpuDevice
from ggplug_cpu.instruction_sets import AARCH64, INSTRUCTION_SETS, X86_64, InstructionSet, of_this_machine

X86 = platform.machine().lower() in X86_64.machines

# The words AT_HWCAP and AT_HWCAP2 of Linux on these processors.
NEOVERSE_N2 = (0xEFFFFFFB, 0x773FF)
NEOVERSE_N1 = (0x10119FFF, 0)
CORTEX_A53 = (0x8FB, 0)

#: ``sysctl hw.optional`` on an Apple M2, in part; what is missing does not exist there.
APPLE_M2 = {
    "hw.optional.floatingpoint": 1,
    "hw.optional.AdvSIMD": 1,
    "hw.optional.armv8_crc32": 1,
    "hw.optional.arm.FEAT_LSE": 1,
    "hw.optional.arm.FEAT_LSE2": 1,
    "hw.optional.arm.FEAT_FP16": 1,
    "hw.optional.arm.FEAT_FHM": 1,
    "hw.optional.arm.FEAT_DotProd": 1,
    "hw.optional.arm.FEAT_BF16": 1,
    "hw.optional.arm.FEAT_I8MM": 1,
    "hw.optional.arm.FEAT_SHA1": 1,
    "hw.optional.arm.FEAT_SHA256": 1,
    "hw.optional.arm.FEAT_SHA512": 1,
    "hw.optional.arm.FEAT_SHA3": 1,
    "hw.optional.arm.FEAT_SSBS": 0,
    "hw.optional.arm.FEAT_SME": 0,
}

#: The numbers for which ``IsProcessorFeaturePresent`` says yes on a Snapdragon X, in part.
SNAPDRAGON_X = {29, 30, 31, 34, 43, 44, 45, 62, 66, 67, 68}


@pytest.fixture
def on_arm(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[str], features.Target]]:
    """Reads values of GGPLUG_CPU_FEATURES as on an AArch64 machine that has certain features."""

    def machine(found: set[str]) -> Callable[[str], features.Target]:
        monkeypatch.setattr(features, "of_this_machine", lambda: AARCH64)
        monkeypatch.setattr(features, "host_features", lambda: frozenset(found))
        monkeypatch.setattr(features, "_known_features", lambda: frozenset(AARCH64.extensions))
        return features.parse.__wrapped__

    return machine


# -- what systems report ----------------------------------------------------------------------------


def test_linux_reports_dot_and_matrix_products_in_the_auxiliary_vector() -> None:
    found = detect.from_auxiliary_vector(*NEOVERSE_N2)
    assert found >= {"neon", "lse", "dotprod", "i8mm", "bf16", "sve", "sve2", "fullfp16", "fp16fml", "rdm", "rand"}
    assert not found & {"sme", "f32mm", "ssbs"}
    found = detect.from_auxiliary_vector(*NEOVERSE_N1)
    assert found >= {"neon", "lse", "dotprod", "fullfp16", "rcpc", "ssbs"}
    assert not found & {"i8mm", "bf16", "sve", "fp16fml", "sha3"}
    assert detect.from_auxiliary_vector(*CORTEX_A53) == {"fp-armv8", "neon", "aes", "sha2", "crc"}


def test_the_names_of_bits_are_those_of_the_kernel() -> None:
    # single bits of arch/arm64/include/uapi/asm/hwcap.h
    for bit, name in ((20, "dotprod"), (22, "sve"), (34, "fprcvt"), (41, "sve2p2")):
        assert detect.from_auxiliary_vector(1 << bit, 0) == {name}
    for bit, name in ((1, "sve2"), (13, "i8mm"), (14, "bf16"), (23, "sme"), (37, "sme2"), (57, "sme-lutv2")):
        assert detect.from_auxiliary_vector(0, 1 << bit) == {name}
    assert detect.from_auxiliary_vector(1 << 9, 0) == set()  # half of fullfp16: scalars only
    assert detect.from_auxiliary_vector(1 << 9 | 1 << 10, 0) == {"fullfp16"}


def test_macos_reports_through_sysctl() -> None:
    found = detect.from_sysctl(lambda name: APPLE_M2.get(name, 0))
    assert found == {
        "fp-armv8",
        "neon",
        "crc",
        "lse",
        "lse2",
        "fullfp16",
        "fp16fml",
        "dotprod",
        "bf16",
        "i8mm",
        "sha2",
        "sha3",
    }


def test_windows_reports_through_numbers() -> None:
    found = detect.from_processor_features(SNAPDRAGON_X.__contains__)
    assert found == {"aes", "sha2", "crc", "lse", "lse2", "dotprod", "jsconv", "rcpc", "i8mm", "fullfp16", "bf16"}


@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_the_hosts_features_come_from_its_operating_system(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = dict(zip((16, 26), NEOVERSE_N2, strict=True))
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", dict)
    monkeypatch.setattr(detect, "of_this_machine", lambda: AARCH64)
    monkeypatch.setattr(detect, "_auxiliary_vector", words.__getitem__)
    monkeypatch.setattr(detect, "_sysctl", lambda name: APPLE_M2.get(name, 0))
    monkeypatch.setattr(detect, "_processor_feature", SNAPDRAGON_X.__contains__)
    found = detect.host_features.__wrapped__()
    assert found >= {"neon", "dotprod", "i8mm", "bf16", "fullfp16"}
    assert ("sve2" in found) == (system == "linux")


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "aarch64", reason="needs Linux on AArch64")
def test_the_host_has_what_the_kernel_lists() -> None:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        listed = next(line for line in file if line.startswith("Features")).split()
    marks = {"dotprod": "asimddp", "i8mm": "i8mm", "bf16": "bf16", "sve2": "sve2", "sve": "sve", "lse": "atomics"}
    assert {name for name in marks if name in detect.host_features()} == {n for n, m in marks.items() if m in listed}


def test_an_extension_whose_needs_are_hidden_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    # as under a virtual machine that hides single features: LLVM would switch F16C on again along with AVX-512
    names = {*X86_64.levels["avx512"][1], *X86_64.baseline}
    assert {"avx512f", "avx512bw", "f16c"} <= X86_64.complete(names)
    assert not {"avx512f", "avx512bw", "f16c"} & X86_64.complete(names - {"f16c"})
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", dict)
    monkeypatch.setattr(detect, "of_this_machine", lambda: AARCH64)
    monkeypatch.setattr(detect, "_of_arm", lambda: detect.from_auxiliary_vector(0xEFFFFFFB & ~(1 << 22), 0x773FF))
    found = detect.host_features.__wrapped__()
    assert "dotprod" in found
    assert not [name for name in found if name.startswith("sve")]


# -- the table of extensions ------------------------------------------------------------------------


@pytest.mark.parametrize("family", INSTRUCTION_SETS, ids=lambda family: family.name)
def test_the_table_knows_what_it_speaks_of(family: InstructionSet) -> None:
    known = set(family.extensions)
    for name, extension in family.extensions.items():
        assert set(extension.needs) <= known
        assert name not in set().union(*map(family.with_needs, extension.needs))
        assert not extension.slow_on or all(family.slow(cpu, [name]) == {name} for cpu in extension.slow_on)
    for _, names in family.levels.values():
        assert family.complete({*names, *family.baseline}) == {*names, *family.baseline}
        assert {*names, *family.baseline} <= known


@pytest.mark.parametrize("family", INSTRUCTION_SETS, ids=lambda family: family.name)
def test_llvm_knows_every_extension(family: InstructionSet) -> None:
    target = features.cross_target(family, "generic" if family is AARCH64 else "x86-64", family.extensions)
    code = f"""
    import llvmlite.binding as llvm
    llvm.initialize_all_targets()
    llvm.Target.from_triple({target.triple!r}).create_target_machine(features={target.features!r}).target_data
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stderr == ""  # "'x' is not a recognized feature for this target"


def test_names_of_features_in_the_documentation_are_those_of_the_table() -> None:
    text = (ROOT / "docs" / "api-map.md").read_text(encoding="utf-8")
    names = set(re.findall(r"has\('([^']+)'\)", text))
    assert names >= {"dotprod", "i8mm", "sve", "sme", "fullfp16", "avx512vnni", "amx-int8"}
    other_families = {"v", "vsx", "vector"}  # RISC-V, POWER, z/Architecture
    assert names - other_families <= set(X86_64.extensions) | set(AARCH64.extensions)


# -- what GGPLUG_CPU_FEATURES says ------------------------------------------------------------------


def test_an_unknown_level_is_refused_with_the_levels_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(features.ENVIRONMENT_VARIABLE, "sse9")
    monkeypatch.setattr(features, "target", features.target.__wrapped__)
    with pytest.raises(ParameterError, match=r"no level 'sse9' \(on this machine it may be one of .*generic"):
        features.target()


@pytest.mark.skipif(not X86, reason="features of x86-64")
def test_levels_and_modifiers_switch_features_on_and_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert features.parse("generic").vector_bytes == 16
    assert not features.parse("generic").has("avx")
    if "avx2" not in features.choices():
        pytest.skip("needs AVX2")
    assert features.parse("avx2").flags >= {"avx2", "fma", "f16c"}
    assert not features.parse("avx2").has("avx512f")
    monkeypatch.setenv(features.ENVIRONMENT_VARIABLE, " avx2-fma+amx-emulated ")
    monkeypatch.setattr(features, "target", features.target.__wrapped__)
    assert features.has("amx-emulated")
    assert not features.has("fma")
    assert features.has("avx2")
    assert "emulated" not in features.target().features
    if "avx512" in features.choices():
        # AVX-512 presupposes FMA: it goes with it, as it would in LLVM
        assert not features.parse("avx512-fma").has("avx512f")
        assert not features.parse("avx512").has("avx512vnni")


def test_a_feature_that_this_cpu_lacks_cannot_be_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_known_features", lambda: frozenset({"frobnicate"}))
    monkeypatch.setattr(features, "host_features", lambda: frozenset())
    with pytest.raises(ParameterError, match="this CPU has no feature 'frobnicate'"):
        features.parse.__wrapped__("generic+frobnicate")
    with pytest.raises(ParameterError, match="there is no feature 'nonsense'"):
        features.parse.__wrapped__("generic+nonsense")
    if X86:
        with pytest.raises(ParameterError, match="this CPU lacks avx"):
            features.parse.__wrapped__("avx2")


@pytest.mark.parametrize("name", of_this_machine().baseline)
def test_what_every_processor_of_the_architecture_has_cannot_be_switched_off(name: str) -> None:
    for level in ("native", "generic"):
        with pytest.raises(ParameterError, match=f"{name} cannot be switched off: .* baseline") as caught:
            features.parse(f"{level}-{name}")
        assert caught.value.got == f"{level}-{name}"
        assert "it may be one of" in str(caught.value)
        with pytest.raises(ParameterError, match="baseline"):
            features.parse(f"{level}-{name}+{name}")


NONSENSE = [
    "-",
    "+",
    "native-",
    "native+",
    "native--fma",
    "native+-emulated",
    "generic,-fma",
    "native -fma",
    "native;+fma",
    "native+neverheardof",
    "native-neverheardof",
    "native+prefer-256-bit",
    "x86-64-v4",
    "\0",
    "native\0-fma",
    "ＮＡＴＩＶＥ",
    "nätive",
    "native-ﬀ",
    "İ",
    "\udcff",
    "native+a+b-emulated",
    "native+" + "a" * 1900,
    "native+" + "-".join("ab" * 400),
    "native" + "+a-b" * 400,
    "native" + "-fma" * 100_000,
    "n" * 1_000_000,
]


@pytest.mark.parametrize("text", NONSENSE, ids=lambda text: ascii(text[:24]))
def test_text_that_describes_no_target_is_an_error_that_says_what_may_stand_there(text: str) -> None:
    with pytest.raises(ParameterError, match=r"on this machine it may be one of .*generic") as caught:
        features.parse(text)
    assert caught.value.got == text
    assert len(str(caught.value)) < 600


_EMIT_FOR_ALL = """
import llvmlite.binding as llvm
from ggplug.errors import ParameterError
from ggplug_cpu import features

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
code = "define <16 x float> @f(<16 x float> %a, <16 x float> %b) { %c = fmul <16 x float> %a, %b ret <16 x float> %c }"
host = features.host_features()
emitted = refused = 0
for text in [f"{level}{sign}{name}" for name in sorted(host) for level in ("native", "generic") for sign in "+-"]:
    try:
        target = features.parse(text)
    except ParameterError:
        refused += 1
        continue
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, codemodel="jitdefault", jit=True
    )
    module = llvm.parse_assembly(code)
    module.triple = target.triple
    emitted += bool(machine.emit_object(module))
print(emitted, refused, len(host))
"""


def test_llvm_makes_code_for_each_feature_switched_on_and_off() -> None:
    done = subprocess.run([sys.executable, "-c", _EMIT_FOR_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    emitted, refused, count = map(int, done.stdout.split())
    baseline = len(of_this_machine().baseline)
    assert (emitted, refused) == (4 * count - 2 * baseline, 2 * baseline)


def test_targets_with_other_features_have_other_keys() -> None:
    keys = {features.parse(text).key for text in ("generic", "generic+a-emulated", "generic+b-emulated", "native")}
    assert len(keys) == 4
    assert features.parse("generic").key == features.parse(" GENERIC ").key


def test_on_arm_what_needs_a_feature_goes_with_it(on_arm: Callable[..., Callable[[str], features.Target]]) -> None:
    parse = on_arm(AARCH64.complete(detect.from_auxiliary_vector(*NEOVERSE_N2)))
    assert parse("native").flags >= {"dotprod", "i8mm", "bf16", "sve2", "sve-aes", "fullfp16"}
    without = parse("native-sve")
    assert not [name for name in without.flags if name.startswith("sve")]
    assert "-sve,-sve-aes" in without.features
    assert "-sve2," in without.features
    assert without.flags >= {"dotprod", "i8mm", "bf16", "fullfp16"}
    assert not parse("native-fullfp16").flags & {"fullfp16", "fp16fml", "sve", "sve2"}
    for name in ("dotprod", "i8mm", "bf16", "sve2"):
        assert parse("native").flags - parse(f"native-{name}").flags >= {name}
        assert parse(f"native-{name}").flags >= {"dotprod", "i8mm", "bf16", "sve"} - {name}
    assert parse("generic").flags == {"neon", "fp-armv8"}
    assert parse("generic+sve2").flags == {"neon", "fp-armv8", "fullfp16", "sve", "sve2"}


def test_on_arm_a_feature_that_the_processor_lacks_cannot_be_switched_on(
    on_arm: Callable[..., Callable[[str], features.Target]],
) -> None:
    parse = on_arm(AARCH64.complete(detect.from_auxiliary_vector(*CORTEX_A53)))
    with pytest.raises(ParameterError, match="this CPU has no feature 'dotprod'"):
        parse("generic+dotprod")
    with pytest.raises(ParameterError, match="this machine has no level 'avx2'"):
        parse("avx2")


# -- code for other processors ----------------------------------------------------------------------


@intrinsic("f32(i64, i64)")
def number(builder: Any, base: Any, index: Any) -> Any:
    pointer = builder.inttoptr(base, ir.FloatType().as_pointer())
    return builder.load(builder.gep(pointer, [index], source_etype=ir.FloatType()), align=4)


@intrinsic("void(i64, i64, f32)")
def put(builder: Any, base: Any, index: Any, value: Any) -> None:
    pointer = builder.inttoptr(base, ir.FloatType().as_pointer())
    builder.store(value, builder.gep(pointer, [index], source_etype=ir.FloatType()), align=4)


@kernel
def squares() -> Callable[[int, int], None]:
    """y = x * x, a loop that LLVM makes vectors of."""

    def body(ctx: int, params: int) -> None:
        x, y = word(params, 0), word(params, 1)
        for i in range(word(params, 2)):
            put(y, i, number(x, i) * number(x, i))

    return body


def test_code_for_another_processor_can_be_looked_at_and_not_run() -> None:
    for family, cpu, register in ((X86_64, "x86-64", "xmm"), (AARCH64, "cortex-a53", r"v\d+\.4s")):
        with features.forced(features.cross_target(family, cpu, ())):
            assert re.search(register, squares().assembly())
    foreign = features.cross_target(AARCH64 if X86 else X86_64, "generic", ())
    with features.forced(foreign), pytest.raises(KernelCompileError, match="cannot run here"):
        squares().address()


def test_the_name_of_a_processor_brings_no_instruction_that_is_switched_off() -> None:
    names = AARCH64.complete(detect.from_auxiliary_vector(*NEOVERSE_N2))
    scalable = re.compile(r"\bz\d+\.[bhsd]\b")
    with features.forced(features.cross_target(AARCH64, "neoverse-v1", names)):
        assert scalable.search(squares().assembly())
    names = {name for name in names if "sve" not in AARCH64.with_needs(name)}
    with features.forced(features.cross_target(AARCH64, "neoverse-v1", names)):
        assert not scalable.search(squares().assembly())


def test_the_device_names_the_instructions_it_was_compiled_with() -> None:
    names = AARCH64.complete(detect.from_auxiliary_vector(*NEOVERSE_N2))
    with features.forced(features.cross_target(AARCH64, "neoverse-n2", names)):
        assert "(neon, sve2, dotprod, i8mm, bf16, fp16)" in CpuDevice().description
    with features.forced(features.cross_target(AARCH64, "cortex-a53", ())):
        assert "(neon)" in CpuDevice().description


def test_inline_assembly_compiles(tmp_path: Path) -> None:
    """In a process of its own: LLVM ends the process where it lacks its parser of assembly."""
    code = """
    from llvmlite import ir
    from ggplug_cpu.compiler import intrinsic, kernel

    @intrinsic("void()")
    def nothing(builder):
        builder.asm(ir.FunctionType(ir.VoidType(), []), "nop", "", [], side_effect=True)

    @kernel
    def idle():
        def body(ctx, params):
            nothing()
        return body

    assert "nop" in idle().assembly()
    """
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(code))
    subprocess.run([sys.executable, str(program)], check=True)
