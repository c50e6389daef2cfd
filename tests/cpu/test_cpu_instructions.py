"""Kernels consist of instructions that their target's features name, on processors that need not be at hand."""

from __future__ import annotations

import re
from collections import Counter

import pytest

pytest.importorskip("ggplug_cpu")

from instructions import extensions, instructions, kernels_of, products

from ggplug import ops
from ggplug.tensor import new_tensor
from ggplug_cpu import features, prebuild
from ggplug_cpu.features import Target
from ggplug_cpu.instruction_sets import AARCH64, X86_64

_AVX2, _AVX512 = X86_64.levels["avx2"][1], X86_64.levels["avx512"][1]
_NEOVERSE_N2 = ("dotprod", "i8mm", "bf16", "fullfp16", "fp16fml", "lse", "rcpc-immo", "rdm", "sve2")

#: Processors by their features; LLVM gets the names, and knows further features of them.
TARGETS = {
    "SSE2": features.cross_target(X86_64, "x86-64", ()),
    "AVX2 without FMA and F16C": features.cross_target(X86_64, "haswell", set(_AVX2) - {"fma", "f16c"}),
    "AVX2": features.cross_target(X86_64, "haswell", _AVX2),
    "AVX-512 without VNNI": features.cross_target(X86_64, "sapphirerapids", _AVX512),
    "AVX-512 with VNNI": features.cross_target(X86_64, "sapphirerapids", (*_AVX512, "avx512vnni")),
    "AVX-512 with BF16": features.cross_target(X86_64, "cooperlake", (*_AVX512, "avx512vnni", "avx512bf16")),
    "Cortex-A53": features.cross_target(AARCH64, "cortex-a53", ()),
    "Neoverse N1": features.cross_target(AARCH64, "neoverse-n1", ("dotprod", "fullfp16", "lse", "rcpc", "rdm")),
    "Neoverse N2": features.cross_target(AARCH64, "neoverse-n2", _NEOVERSE_N2),
    "Neoverse N2 without SVE": features.cross_target(AARCH64, "neoverse-n2", set(_NEOVERSE_N2) - {"sve2"}),
    "Neoverse N2 without I8MM": features.cross_target(AARCH64, "neoverse-n2", set(_NEOVERSE_N2) - {"i8mm"}),
}


def beyond(target: Target, names: set[str]) -> set[str]:
    """Those extensions that the target does not name."""
    return names - target.flags


def count(what: str) -> Counter[str]:
    """The instructions of a product, by its name in :func:`instructions.products`, on the current target."""
    return sum(map(instructions, dict(products())[what]), Counter())


@pytest.mark.parametrize("name", ["SSE2", "AVX2 without FMA and F16C"])
def test_kernels_keep_to_the_features_of_their_target(name: str) -> None:
    """Those that differ most between targets."""
    if "sse2" in TARGETS[name].flags:
        pytest.importorskip("iced_x86")
    nodes = [
        ops.mul_mat(new_tensor(weights, (256, 512)), new_tensor("f32", (256, columns)))
        for weights, columns in (("f16", 1), ("q4_0", 1), ("q8_0", 64))
    ]
    with features.forced(TARGETS[name]) as target:
        for kernel in dict.fromkeys(each for node in nodes for each in kernels_of(node)):
            assert not beyond(target, extensions(kernel)), kernel.name


@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
def test_all_likely_kernels_keep_to_the_features_of_their_target(name: str) -> None:
    if "sse2" in TARGETS[name].flags:
        pytest.importorskip("iced_x86")
    with features.forced(TARGETS[name]) as target:
        for kernel in prebuild.likely_kernels():
            assert not beyond(target, extensions(kernel)), kernel.name


def test_what_a_target_lacks_would_be_seen() -> None:
    """The other way round: with the features on, the instructions are there and are attributed to them."""
    many = ops.mul_mat(new_tensor("q8_0", (256, 512)), new_tensor("f32", (256, 64)))
    widened = ops.mul_mat(new_tensor("f16", (256, 512)), new_tensor("f32", (256, 1)))
    with features.forced(TARGETS["Neoverse N2"]):
        assert "i8mm" in set().union(*map(extensions, kernels_of(many)))
    pytest.importorskip("iced_x86")
    with features.forced(TARGETS["AVX2"]):
        assert {"avx2", "fma", "f16c"} <= set().union(*map(extensions, kernels_of(widened)))
    with features.forced(TARGETS["AVX-512 with VNNI"]):
        assert {"avx512f", "avx512vnni"} <= set().union(*map(extensions, kernels_of(many)))


def test_products_on_arm_use_what_the_processor_has() -> None:
    with features.forced(TARGETS["Neoverse N2"]):
        assert count("q4_0, one column")["sdot"]
        assert count("q8_0, 64 columns")["smmla"]
        assert count("bf16, 64 columns")["bfmmla"]
    with features.forced(TARGETS["Neoverse N2 without I8MM"]):
        assert not count("q8_0, 64 columns")["smmla"]
        assert count("q8_0, 64 columns")["sdot"]
    with features.forced(TARGETS["Cortex-A53"]):
        for what in ("q4_0, one column", "q8_0, 64 columns"):
            assert not {"sdot", "smmla", "usdot", "bfdot", "bfmmla"} & set(count(what))


@pytest.mark.parametrize(("cpu", "is_fast"), [("cooperlake", True), ("znver5", True), ("emeraldrapids", False)])
def test_products_of_bf16_use_the_instruction_where_it_is_fast(cpu: str, is_fast: bool) -> None:
    with features.forced(features.cross_target(X86_64, cpu, (*_AVX512, "avx512bf16"))):
        assert ("vdpbf16ps" in count("bf16, 64 columns")) == is_fast


def test_attention_widens_each_value_once_for_four_heads_that_share_it() -> None:
    q, k = new_tensor("f32", (64, 1, 4)), new_tensor("f16", (64, 256, 1))
    with features.forced(TARGETS["AVX-512 with VNNI"]):
        (kernel,) = kernels_of(ops.flash_attn_ext(q, k, k))
        mixing = [block for block in kernel.assembly().split(":\n") if re.search(r"vfmadd.*\{%k", block)]
    most = max(mixing, key=lambda block: block.count("vfmadd"))
    assert most.count("vfmadd") == 4 * most.count("vcvtph2ps") == 16
