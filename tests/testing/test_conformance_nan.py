"""Which NaN a NaN becomes is a device's own choice where types are converted, and none where bits are moved."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ggplug.backend import Operand
from ggplug.ops.base import OPS, Array, Op
from ggplug.types import BF16, F16, F32, KERNEL_FLOATS, Type
from ggplug_testing import cases_of
from ggplug_testing.devices.reference import interpret
from ggplug_testing.judging.oracle import decoded, moves_bits
from ggplug_testing.reporting.report import Finding
from ggplug_testing.running.runner import run_op
from tests.mutation.kernels import FaultyKernels

CONVERTING = ("cpy", "dup", "get_rows", "set_rows")

Words = Callable[[Type, Array], Array]
"""``(type, bits of NaNs) -> other bits``."""

QUIET = {F32: 0x7FC00000, F16: 0x7E00, BF16: 0x7FC0}
INFINITY = {F32: 0x7F800000, F16: 0x7C00, BF16: 0x7F80}


def device(words: Words, *, moving: bool) -> FaultyKernels:
    """The reference device with other bits in the place of NaNs: where it moves bits, or where it converts."""

    def kernel(op: Op, dst: Operand, *src: Operand | None) -> None:
        interpret(op, dst, *src)
        kind = dst.tensor.type
        if kind in KERNEL_FLOATS and op.name in CONVERTING and moves_bits(dst.tensor) == moving:
            stored = dst.array().view(f"u{kind.block_bytes}")
            lost = np.isnan(decoded(dst.array(), dst.tensor))
            stored[lost] = words(kind, stored[lost])

    return FaultyKernels(kernel)


def found(other: FaultyKernels, *ops: str) -> list[Finding]:
    return [each for op in ops for each in run_op(other, OPS[op], cases=special(op))]


def special(op: str) -> list[object]:
    return [case for case in cases_of(OPS[op]) if "special" in case.label]  # type: ignore[return-value]


def other_sign(kind: Type, bits: Array) -> Array:
    return bits ^ (1 << 8 * kind.block_bytes - 1)


def one_nan(kind: Type, bits: Array) -> Array:
    return np.full_like(bits, QUIET[kind])


def other_payload(kind: Type, bits: Array) -> Array:
    return bits | 1


def all_ones(kind: Type, bits: Array) -> Array:
    return np.full_like(bits, (1 << 8 * kind.block_bytes) - 1)


def infinity(kind: Type, bits: Array) -> Array:
    return np.full_like(bits, INFINITY[kind])


def zero(kind: Type, bits: Array) -> Array:
    return np.zeros_like(bits)


@pytest.mark.parametrize("words", [other_sign, one_nan, other_payload, all_ones])
def test_any_nan_is_a_nan_where_types_are_converted(words: Words) -> None:
    bad = [str(each) for each in found(device(words, moving=False), *CONVERTING) if each.bad]
    assert not bad, bad


@pytest.mark.parametrize("words", [infinity, zero])
@pytest.mark.parametrize("op", CONVERTING)
def test_a_nan_has_to_stay_one(op: str, words: Words) -> None:
    assert any(each.bad for each in found(device(words, moving=False), op))


@pytest.mark.parametrize("words", [other_sign, one_nan, other_payload, infinity])
@pytest.mark.parametrize("op", ["cpy", "dup"])
def test_bits_that_are_moved_stay_as_they_are(op: str, words: Words) -> None:
    assert any(each.bad for each in found(device(words, moving=True), op))


@pytest.mark.parametrize("words", [infinity, zero])
def test_a_signalling_nan_stays_one_too(words: Words) -> None:
    """Its payload may lie in the bits that a narrower type has no place for."""

    def kernel(op: Op, dst: Operand, *src: Operand | None) -> None:
        interpret(op, dst, *src)
        x = src[0]
        if op.name == "dup" and x is not None and x.tensor.type is F32 and dst.tensor.type in (F16, BF16):
            raw = np.ascontiguousarray(x.array()).view(np.uint32)
            small = ((raw & 0x7FFFFFFF) > 0x7F800000) & (raw & 0x7FE000 == 0)
            stored = dst.array().view(np.uint16)
            stored[small] = words(dst.tensor.type, stored[small])

    assert any(each.bad for each in found(FaultyKernels(kernel), "dup"))
