"""Vectors for kernels: types, memory, arithmetic, conversions, dot products, tiles.

A kernel's factory chooses vector types by name, and functions of these types; its body calls the others directly::

    from ggplug_cpu import simd
    from ggplug_cpu.compiler import Body, kernel
    from ggplug_cpu.parameters import Parameters, destination, integer, real, source

    class ScaledRow(Parameters):
        y = destination()
        x = source()
        n = integer()
        factor = real()

    @kernel
    def scale_row(type_name: str) -> Body:        # f32, f16 or bf16
        F = simd.vec("f32")                       # the target's widest: f32x16, f32x8 or f32x4
        step, size = simd.width("f32"), simd.elem_bytes(type_name)
        load, load_first = simd.load_as_f32(type_name, F), simd.load_first_as_f32(type_name, F)
        store, store_first = simd.store_as(type_name), simd.store_first_as(type_name)

        def body(ctx: int, p: ScaledRow) -> None:
            n, x, y, factor = p.n, p.x.address, p.y.address, p.factor
            whole = n - n % step
            for i in range(0, whole, step):
                store(y + size * i, simd.mul(load(x + size * i), factor))
            if whole < n:
                rest = load_first(x + size * whole, n - whole)
                store_first(y + size * whole, simd.mul(rest, factor), n - whole)

        return body

* :mod:`.lanes`: names and widths of vector types
* :mod:`.memory`: loads and stores of vectors, of their first lanes, of single numbers; prefetch
* :mod:`.operators`: arithmetic, comparisons, masks, reductions, lanes
* :mod:`.halves`: f16 and bf16
* :mod:`.transcendental`: exp, log, tanh, sigmoid, erf
* :mod:`.dots`: int8, int16 and bf16 dot products
* :mod:`.tiles`: AMX
* :mod:`.values`: LLVM code by Python's operators, for everything else

Everything is correct on every CPU that LLVM compiles for; :mod:`ggplug_cpu.features` decides what is fast.
"""

from typing import Any

from .dots import dot_bf16, dot_i8, dot_i16, dot_u8i8
from .halves import narrow_bf16, narrow_f16, widen_bf16, widen_f16
from .lanes import count_of, elem_bytes, elem_of, vec, width
from .memory import (
    LOADS,
    STORES,
    copy_bytes,
    fill_bytes,
    load,
    load_as_f32,
    load_bf16,
    load_f16,
    load_f32,
    load_f64,
    load_first,
    load_first_as_f32,
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    prefetch,
    prefetch_second,
    saturated_i32,
    store,
    store_as,
    store_bf16,
    store_f16,
    store_f32,
    store_f64,
    store_first,
    store_first_as,
    store_i8,
    store_i16,
    store_i32,
    store_i64,
)
from .operators import (
    absolute,
    add,
    all_lanes,
    any_lane,
    bitcast,
    ceil,
    concat,
    convert,
    convert_unsigned,
    copysign,
    div,
    equal,
    first_lanes,
    floor,
    fma,
    greater,
    greater_equal,
    high_half,
    hmax,
    hmin,
    hsum,
    iota,
    lane,
    less,
    less_equal,
    low_half,
    maximum,
    minimum,
    mul,
    round_away,
    round_even,
    select,
    shift_right_unsigned,
    shuffle,
    splat,
    sqrt,
    sub,
    truncate,
    unequal,
    zero,
)
from .tiles import (
    has_tiles,
    tile_configure,
    tile_dot_bf16,
    tile_dot_i8,
    tile_load,
    tile_release,
    tile_store,
    tile_zero,
)
from .transcendental import erf, exp, log, sigmoid, tanh

#: A vector that a kernel computes; only the compiler of kernels knows which.
Vector = Any

__all__ = [
    "LOADS",
    "STORES",
    "Vector",
    "absolute",
    "add",
    "all_lanes",
    "any_lane",
    "bitcast",
    "ceil",
    "concat",
    "convert",
    "convert_unsigned",
    "copy_bytes",
    "copysign",
    "count_of",
    "div",
    "dot_bf16",
    "dot_i8",
    "dot_i16",
    "dot_u8i8",
    "elem_bytes",
    "elem_of",
    "equal",
    "erf",
    "exp",
    "fill_bytes",
    "first_lanes",
    "floor",
    "fma",
    "greater",
    "greater_equal",
    "has_tiles",
    "high_half",
    "hmax",
    "hmin",
    "hsum",
    "iota",
    "lane",
    "less",
    "less_equal",
    "load",
    "load_as_f32",
    "load_bf16",
    "load_f16",
    "load_f32",
    "load_f64",
    "load_first",
    "load_first_as_f32",
    "load_i8",
    "load_i16",
    "load_i32",
    "load_i64",
    "load_u8",
    "load_u16",
    "load_u32",
    "log",
    "low_half",
    "maximum",
    "minimum",
    "mul",
    "narrow_bf16",
    "narrow_f16",
    "prefetch",
    "prefetch_second",
    "round_away",
    "round_even",
    "saturated_i32",
    "select",
    "shift_right_unsigned",
    "shuffle",
    "sigmoid",
    "splat",
    "sqrt",
    "store",
    "store_as",
    "store_bf16",
    "store_f16",
    "store_f32",
    "store_f64",
    "store_first",
    "store_first_as",
    "store_i8",
    "store_i16",
    "store_i32",
    "store_i64",
    "sub",
    "tanh",
    "tile_configure",
    "tile_dot_bf16",
    "tile_dot_i8",
    "tile_load",
    "tile_release",
    "tile_store",
    "tile_zero",
    "truncate",
    "unequal",
    "vec",
    "widen_bf16",
    "widen_f16",
    "width",
    "zero",
]
