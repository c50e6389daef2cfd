"""Half-width floats: IEEE binary16 (f16) and bfloat16 (bf16), whose bits are in ``i16`` lanes.

Narrowing rounds to nearest, ties to even.  NaNs follow ggml: in f16 every NaN becomes ``sign | 0x7E00``; in bf16 a NaN
keeps its upper bits and becomes quiet with ``| 0x40``.  f16 uses the CPU's conversions where it has them (F16C,
AVX-512, AArch64); bf16 uses Arm's, but not x86's, which takes subnormal numbers as zero.
"""

from __future__ import annotations

from .. import features
from .lanes import count_of, is_vec
from .values import BF16, F16, F32, I16, I32, Value, call, emitted, joined, vector


def has_f16_conversion() -> bool:
    """Whether the target converts between f16 and f32 in one instruction."""
    return features.has("f16c") or features.has("avx512f") or not features.has("sse2")


def emit_widen_f16(bits: Value) -> Value:
    """f16 bits (``i16``, scalar or vector) to f32; exact."""
    if has_f16_conversion():
        return bits.bitcast(_like(F16, bits)).convert(F32)
    wide = bits.zext(I32)
    size = (wide & 0x7FFF) << 13
    # the exponent biases differ by 112; the product also makes subnormal numbers normal
    number = (size.bitcast(_like(F32, bits)) * 2.0**112).bits()
    special = size | 0x7F800000
    return ((size < 0x7C00 << 13).select(number, special) | (wide & 0x8000) << 16).bitcast(_like(F32, bits))


def emit_narrow_f16(x: Value) -> Value:
    """f32 to f16 bits (``i16``)."""
    bits = x.bits()
    sign = (bits.lshr(16) & 0x8000).convert(I16)
    if has_f16_conversion():
        narrow = x.convert(F16).bits()
    else:
        size = bits & 0x7FFFFFFF
        rebased = size - (112 << 23)
        normal = (rebased + 0xFFF + (rebased.lshr(13) & 1)) >> 13
        # The last bit of 0.5 is that of f16's subnormal numbers, so this sum rounds like them.
        subnormal = (x.abs() + 0.5).bits() - 0x3F000000
        narrow = (size < 0x38800000).select(subnormal, normal.minimum(0x7C00)).convert(I16) | sign
    return x.unequal(x).select(sign | 0x7E00, narrow)


def emit_widen_bf16(bits: Value) -> Value:
    """bf16 bits (``i16``, scalar or vector) to f32; exact."""
    return (bits.zext(I32) << 16).bitcast(_like(F32, bits))


def emit_narrow_bf16(x: Value) -> Value:
    """f32 to bf16 bits (``i16``)."""
    if features.has("bf16"):  # Arm's
        return x.convert(BF16).bitcast(_like(I16, x))
    bits = x.bits()
    rounded = (bits + 0x7FFF + (bits.lshr(16) & 1)).lshr(16)
    return x.unequal(x).select(bits.lshr(16) | 0x40, rounded).convert(I16)


def emit_narrow_bf16_for_dot(x: Value) -> Value:
    """f32 lanes as bf16 bits, for dot products only: like these, AVX512-BF16 takes subnormal numbers as zero."""
    if not features.has("avx512bf16") or x.count % 16:
        return emit_narrow_bf16(x)
    parts = [x.part(first, 16) for first in range(0, x.count, 16)]
    name = "llvm.x86.avx512bf16.cvtneps2bf16.512"
    narrow = [call(x.b, name, vector(BF16, 16), part).bitcast(vector(I16, 16)) for part in parts]
    return joined(narrow)


def _like(element: object, value: Value) -> object:
    return vector(element, value.count) if value.count > 1 else element


def _widening(v: str) -> str | None:
    return f"f32x{count_of(v)}({v})" if is_vec(v) and v.startswith("i16x") else "f32(i16)" if v[0] == "i" else None


def _narrowing(v: str) -> str | None:
    return f"i16x{count_of(v)}({v})" if is_vec(v) and v.startswith("f32x") else "i16(f32)" if v[0] == "f" else None


@emitted(_widening)
def widen_f16(bits: Value) -> Value:
    """f16 bits (``i16``, one or a vector) as f32; exact."""
    return emit_widen_f16(bits)


@emitted(_narrowing)
def narrow_f16(x: Value) -> Value:
    """f32 (one or a vector) as f16 bits (``i16``): nearest, ties to even; NaN becomes ``sign | 0x7E00``."""
    return emit_narrow_f16(x)


@emitted(_widening)
def widen_bf16(bits: Value) -> Value:
    """bf16 bits (``i16``, one or a vector) as f32; exact."""
    return emit_widen_bf16(bits)


@emitted(_narrowing)
def narrow_bf16(x: Value) -> Value:
    """f32 (one or a vector) as bf16 bits (``i16``): nearest, ties to even; NaN is made quiet with ``| 0x40``."""
    return emit_narrow_bf16(x)
