"""Dot products of short numbers, summed in 32-bit lanes: four int8, two int16 or two bf16 a lane.

Each uses the instruction made for it where the target has one (VNNI, AVX512-BF16) and is made of others elsewhere.
The integer ones are exact everywhere; the bf16 one rounds a little differently (see there).
"""

from __future__ import annotations

from collections.abc import Callable

from .. import features
from .halves import emit_narrow_bf16
from .lanes import count_of, is_vec, split
from .values import BF16, F32, I16, I32, Value, call, emitted, joined, vector


def has_int8_dot(count: int) -> bool:
    """Whether four int8 products are added to each of ``count`` int32 lanes by one instruction."""
    if count == 16:
        return features.has("avx512vnni")
    return count in (4, 8) and (features.has("avxvnni") or (features.has("avx512vnni") and features.has("avx512vl")))


def has_bf16_dot(count: int) -> bool:
    """Whether two bf16 products are added to each of ``count`` f32 lanes by one instruction."""
    return features.has("avx512bf16") and (count == 16 or (count in (4, 8) and features.has("avx512vl")))


def emit_dot_u8i8(acc: Value, unsigned: Value, signed: Value) -> Value:
    """``acc[i] += sum of unsigned[4i + j] * signed[4i + j]``, j from 0 to 3; wraps, never saturates."""
    n = acc.count
    if has_int8_dot(n):
        bits = {4: 128, 8: 256, 16: 512}[n]
        return call(acc.b, f"llvm.x86.avx512.vpdpbusd.{bits}", acc.type, acc, unsigned, signed)
    pairs = vector(I16, 2 * n)
    u, s = unsigned.bitcast(pairs), signed.bitcast(pairs)
    return _by_pairs(acc, (u & 0xFF, u.lshr(8)), ((s << 8) >> 8, s >> 8))


def emit_dot_i8(acc: Value, a: Value, b: Value) -> Value:
    """``acc[i] += sum of a[4i + j] * b[4i + j]``, both signed."""
    # Not by way of unsigned a + 128: flipping the sign bits of a splat that VNNI then reads hangs LLVM 22.
    pairs = vector(I16, 2 * acc.count)
    x, y = a.bitcast(pairs), b.bitcast(pairs)
    return _by_pairs(acc, ((x << 8) >> 8, x >> 8), ((y << 8) >> 8, y >> 8))


def _by_pairs(acc: Value, left: tuple[Value, Value], right: tuple[Value, Value]) -> Value:
    """Bytes 0 and 2, then 1 and 3 of each lane, widened in place: no lane is crossed and no sum saturates.

    (The instruction of AVX2 that multiplies unsigned by signed bytes does saturate.)
    """
    for x, y in zip(left, right, strict=True):
        acc = emit_dot_i16(acc, x, y)
    return acc


def emit_dot_i16(acc: Value, a: Value, b: Value) -> Value:
    """``acc[i] += a[2i] * b[2i] + a[2i + 1] * b[2i + 1]``."""
    n = acc.count
    name = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}.get(n)
    needs = {4: "sse2", 8: "avx2", 16: "avx512bw"}.get(n)
    if name and needs and features.has(needs):
        return acc + call(acc.b, f"llvm.x86.{name}", acc.type, a, b)
    low, high = ([Value(acc.b, v.ir).shuffle(range(j, 2 * n, 2)).convert(I32) for j in (0, 1)] for v in (a, b))
    return acc + low[0] * high[0] + low[1] * high[1]


def emit_dot_bf16(acc: Value, a: Value, b: Value) -> Value:
    """``acc[i] += a[2i] * b[2i] + a[2i + 1] * b[2i + 1]``; ``a`` and ``b`` are bf16 bits in i16 lanes."""
    n = acc.count
    if has_bf16_dot(n):
        lanes = vector(BF16, 2 * n)
        name = {4: "128", 8: "256", 16: "512"}[n]
        return call(acc.b, f"llvm.x86.avx512bf16.dpbf16ps.{name}", acc.type, acc, a.bitcast(lanes), b.bitcast(lanes))
    lanes = vector(I32, n)
    x, y = a.bitcast(lanes), b.bitcast(lanes)
    floats = vector(F32, n)
    odd = (x & -65536).bitcast(floats).fma((y & -65536).bitcast(floats), acc)
    return (x << 16).bitcast(floats).fma((y << 16).bitcast(floats), odd)


def emit_narrow_bf16_for_dot(x: Value) -> Value:
    """f32 lanes as bf16 bits, for :func:`emit_dot_bf16` only: like it, AVX512-BF16 takes subnormal numbers as zero."""
    if not features.has("avx512bf16") or x.count % 16:
        return emit_narrow_bf16(x)
    parts = [x.part(first, 16) for first in range(0, x.count, 16)]
    name = "llvm.x86.avx512bf16.cvtneps2bf16.512"
    narrow = [call(x.b, name, vector(BF16, 16), part).bitcast(vector(I16, 16)) for part in parts]
    return joined(narrow)


def _rule(acc_elem: str, elem: str, times: int) -> Callable[[str, str, str], str | None]:
    def rule(acc: str, a: str, b: str) -> str | None:
        if not is_vec(acc) or a != b or split(acc)[0] != acc_elem or a != f"{elem}x{times * count_of(acc)}":
            return None
        return f"{acc}({acc}, {a}, {b})"

    return rule


@emitted(_rule("i32", "i8", 4))
def dot_u8i8(acc: Value, unsigned: Value, signed: Value) -> Value:
    """``acc[i] + sum of unsigned[4i + j] * signed[4i + j]``, j from 0 to 3: int8 lanes, the first read as 0 to 255.

    Exact: sums wrap at 32 bits and never saturate.
    """
    return emit_dot_u8i8(acc, unsigned, signed)


@emitted(_rule("i32", "i8", 4))
def dot_i8(acc: Value, a: Value, b: Value) -> Value:
    """``acc[i] + sum of a[4i + j] * b[4i + j]``, j from 0 to 3, of signed int8 lanes.  Exact.

    It takes eight instructions: where speed matters, add 128 to one side beforehand and use :func:`dot_u8i8`.
    """
    return emit_dot_i8(acc, a, b)


@emitted(_rule("i32", "i16", 2))
def dot_i16(acc: Value, a: Value, b: Value) -> Value:
    """``acc[i] + a[2i] * b[2i] + a[2i + 1] * b[2i + 1]`` of int16 lanes.  Exact but for two products of -32768."""
    return emit_dot_i16(acc, a, b)


@emitted(_rule("f32", "i16", 2))
def dot_bf16(acc: Value, a: Value, b: Value) -> Value:
    """``acc[i] + a[2i] * b[2i] + a[2i + 1] * b[2i + 1]`` of bf16 bits in int16 lanes.

    AVX512-BF16 rounds after each of two fused steps and takes subnormal numbers as zero; elsewhere it is two
    :func:`fma`.
    """
    return emit_dot_bf16(acc, a, b)
