"""Converters: rows of every type to contiguous f32 and back; see :mod:`.rows`.

Every op can read and write a type that has a pair of converters here.
"""

from __future__ import annotations

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, kernel
from ggplug_cpu.parts import quantize
from ggplug_cpu.parts.rows import Conversion

_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "i32": 4}


@kernel
def read_plain(elem: str) -> Body:
    """f32, f16 or bf16, at any stride, to contiguous f32; stride 0 repeats one element.

    No element is read if there are none.
    """
    F, step, size = simd.vec("f32"), simd.width("f32"), _BYTES[elem]
    load, load_first = simd.load_as_f32(elem, F), simd.load_first_as_f32(elem, F)
    load_one, splat = simd.LOADS[elem], simd.splat(F)

    def body(floats: int, params: Conversion) -> None:
        x, stride, n = params.address, params.stride, params.count
        whole = n - n % step
        if stride == size:
            for i in range(0, whole, step):
                simd.store(floats + 4 * i, load(x + size * i))
            if whole < n:
                simd.store_first(floats + 4 * whole, load_first(x + size * whole, n - whole), n - whole)
        elif stride == 0 and n > 0:
            value = splat(load_one(x))
            for i in range(0, whole, step):
                simd.store(floats + 4 * i, value)
            if whole < n:
                simd.store_first(floats + 4 * whole, value, n - whole)
        else:
            for i in range(n):
                simd.store_f32(floats + 4 * i, load_one(x + stride * i))

    return body


@kernel
def write_plain(elem: str) -> Body:
    """Contiguous f32 to f32, f16 or bf16 at any stride, rounded to nearest even."""
    F, step, size = simd.vec("f32"), simd.width("f32"), _BYTES[elem]
    load, load_first = simd.load(F), simd.load_first(F)
    store, store_first, store_one = simd.store_as(elem), simd.store_first_as(elem), simd.STORES[elem]

    def body(floats: int, params: Conversion) -> None:
        y, stride, n = params.address, params.stride, params.count
        if stride == size:
            whole = n - n % step
            for i in range(0, whole, step):
                store(y + size * i, load(floats + 4 * i))
            if whole < n:
                store_first(y + size * whole, load_first(floats + 4 * whole, n - whole), n - whole)
        else:
            for i in range(n):
                store_one(y + stride * i, simd.load_f32(floats + 4 * i))

    return body


@kernel
def read_integers(elem: str) -> Body:
    """Integers at any stride to contiguous f32."""
    load = simd.LOADS[elem]

    def body(floats: int, params: Conversion) -> None:
        x, stride, n = params.address, params.stride, params.count
        for i in range(n):
            simd.store_f32(floats + 4 * i, load(x + stride * i))

    return body


@kernel
def write_integers(elem: str) -> Body:
    """Contiguous f32 to 32-bit integers at any stride: truncated, clamped to their range, 0 for NaN."""
    store = simd.STORES[elem]

    def body(floats: int, params: Conversion) -> None:
        y, stride, n = params.address, params.stride, params.count
        for i in range(n):
            store(y + stride * i, simd.saturated_i32(simd.load_f32(floats + 4 * i)))

    return body


@kernel
def read_blocks(type_name: str) -> Body:
    """Contiguous quantised blocks to contiguous f32."""
    dequantize = quantize.dequantize_row(type_name)

    def body(floats: int, params: Conversion) -> None:
        dequantize(floats, params.address, params.count)

    return body


@kernel
def write_blocks(type_name: str) -> Body:
    """Contiguous f32 to contiguous quantised blocks, rounded as in ggml's reference."""
    quantise = quantize.quantize_row(type_name)

    def body(floats: int, params: Conversion) -> None:
        quantise(params.address, floats, params.count)

    return body
