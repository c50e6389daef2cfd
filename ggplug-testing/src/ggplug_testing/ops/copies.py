"""Copies: into other tensors, types and shapes, side by side, repeated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ggplug import ops
from ggplug.ops.base import Op
from ggplug.ops.views import reshape, view
from ggplug.tensor import Tensor
from ggplug.types import BF16, F16, F32, F64, I8, I16, I32, I64, INTEGERS, KERNEL_FLOATS, Q8_0, Type
from ggplug_testing.cases.case import ENCODED, LAYOUTS, LENGTHS, QUANTIZED, ROWWISE, Case, Layout, Leafs, node
from ggplug_testing.cases.making import Make, array, bits, case, in_blocks, laid, leaf, spell, whole_blocks
from ggplug_testing.cases.special import FLOAT_WORDS, HALF_WORDS, LONG, WHOLE_ROWS, blocks, words
from ggplug_testing.description import CaseOf, describe
from ggplug_testing.drawing import ANY, ANYTHING, EVERY, ONCE, WHOLE, Draw, Drawn, Ne
from ggplug_testing.judging.comparison import Agreement
from ggplug_testing.precision.rule import MOVES

_NE = (64, 5, 3, 2)
_PERMUTED: tuple[tuple[Layout, Layout], ...] = (("permuted", "packed"), ("packed", "transposed"))
_PACKED_OR_NOT: tuple[Layout, ...] = ("packed", "permuted")


def _layouts(type: Type) -> tuple[Layout, ...]:
    return ROWWISE if type.is_quantized else LAYOUTS


def _any_bytes_cases(op: type[Op]) -> Iterator[Case]:
    """Blocks of any bytes, also those that no numbers are rounded to: between equal types every bit stays."""
    for type in QUANTIZED:
        ne = (2 * type.block_size, 3, 4)
        for layout in _PACKED_OR_NOT:
            label = f"any bytes of {type.name}" + ("" if layout == "packed" else f" {layout}")
            yield Case(op.name, label, partial(_moved_bytes, op, type, ne, layout), "bits", every_type=True)


def _moved_bytes(op: type[Op], type: Type, ne: tuple[int, ...], layout: Layout, leafs: Leafs) -> Tensor:
    x = leafs.any_bytes(type, *ne, layout=layout)
    if op is ops.Cpy:
        return node(op, x, leafs.any_bytes(type, *ne))
    if op is ops.Concat:
        return node(op, x, leafs.any_bytes(type, *ne), dim=1)
    return node(op, x, ne=(*ne[:2], 2 * ne[2])) if op is ops.Repeat else node(op, x)


def _bits_special(op: type[Op], case: CaseOf) -> Iterator[Case]:
    """Bits of every kind, between equal types."""

    def moved(leafs: Leafs, type: Type) -> Tensor:
        size = type.block_bytes
        drawn = leafs.random.integers(0, 256, (5, 21 * size), np.uint8).view(f"u{size}")
        # In F32 the first is a signalling NaN.
        drawn[:, 0] = 0x7F800001 >> 16 if size == 2 else 0x7F800001
        x = leafs.bits(type, drawn)
        if op is ops.Cpy:
            return node(op, x, leafs.tensor(type, 21, 5))
        if op is ops.Concat:
            return node(op, x, x, dim=1)
        return node(op, x, ne=(42, 5)) if op is ops.Repeat else node(op, x)

    for type in (F32, F16, BF16, F64, I16):
        yield case(f"bits of {type.name}", lambda leafs, t=type: moved(leafs, t), "bits")


def _integers(type: Type) -> Make:
    """The limits of all types of integers, as far as this one has them, and what lies between two numbers of F32."""
    limits = [sign * 2**bits + delta for bits in (7, 15, 24, 31, 40) for sign in (1, -1) for delta in (-1, 0, 1)]
    own = np.iinfo(type.dtype)
    fitting = [number for number in (0, own.min, own.max, *limits) if own.min <= number <= own.max]
    return array(type, np.resize(np.array(fitting, type.dtype), (2, LONG)))


def _converted_special(op: type[Op], case: CaseOf) -> Iterator[Case]:
    """``dup``, and ``cpy`` between the same types."""

    def converted(label: str, x: Make, type: Type, agreement: Agreement = "bits") -> Case:
        def make(leafs: Leafs) -> Tensor:
            source = x(leafs)
            if op is ops.Dup:
                return node(op, source, type=type.name)
            return node(op, source, leafs.tensor(type, *source.ne[: source.rank]))

        return case(label, make, agreement)

    for target in (F16, BF16):
        yield converted(f"f32 to {target.name}", bits(F32, words()), target)
    yield converted("f16 to f32", bits(F16, np.resize(HALF_WORDS, (2, LONG))), F32)
    yield converted("bf16 to f32", bits(BF16, np.resize(FLOAT_WORDS >> 16, (2, LONG))), F32)
    for block in ENCODED:
        yield converted(f"f32 to {block.name}", array(F32, blocks(block)), block)
        yield converted(f"{block.name} to f32", array(block, blocks(block)), F32, "values")
    for source in KERNEL_FLOATS:
        yield converted(f"{source.name} to i32", array(source, WHOLE_ROWS), I32)
    yield converted("q8_0 to i32", array(Q8_0, blocks(Q8_0)), I32)
    for source in INTEGERS:
        for other in (F32, *INTEGERS):
            if other is not source:
                yield converted(f"{source.name} to {other.name}", _integers(source), other)
    for target in (I8, I16, I64):
        yield converted(f"f32 to {target.name}", array(F32, WHOLE_ROWS), target)
    # Between two numbers, halfway between them, and beyond the largest f16; f32, by way of which, makes ties of some.
    near = [2**30 + 2**22 + 1, -(2**30) - 2**22 - 33, 2**30 + 3 * 2**22 - 1, 2**31 - 1, 2**24 + 2**16 + 1]
    whole = np.array([257, -259, 771, 2049, -2051, 4095, 65519, 65520, -70001, 2**24 - 1, 1, 0, *near], np.int32)
    for target in (F16, BF16):
        yield converted(f"i32 to {target.name}", array(I32, np.resize(whole, (2, LONG))), target)


def _convertible(c: Draw, from_name: str, to_name: str) -> tuple[Type, Type, Sequence[str]]:
    """Two types, one of them the one that the case aims at, often the same; and values of the first for the second."""
    aimed = from_name if c.aims_at(from_name) else to_name
    other = to_name if aimed == from_name else from_name
    first = c.type(aimed, EVERY)
    same = c.pick("same type", (True, False))
    second = first if same else c.type(other, (*KERNEL_FLOATS, *QUANTIZED, I32))
    if first is not second:
        c.promised = False  # which conversions there are is up to the device
    x, y = (first, second) if aimed == from_name else (second, first)
    # Of types of integers but I32 there is only one answer for integers.
    return x, y, ("integers", "constant") if x is not y and y in WHOLE and y is not I32 else ANYTHING


def regrouped(c: Draw, ne: Ne, *types: Type) -> Ne:
    """Other extents for as many elements."""
    how = c.pick("regrouped", ("not", "flat", "swapped", "folded"), (5, 1, 1, 1))
    block = math.lcm(*(t.block_size for t in types))
    if how == "flat":
        return (math.prod(ne), 1, 1, 1)
    if how == "swapped" and ne[1] % block == 0:
        return (ne[1], ne[0], ne[2], ne[3])
    if how == "folded":
        return (ne[0], ne[1] * ne[2], ne[3], 1)
    return ne


# -- into another tensor ---------------------------------------------------------------------------


def cpy_cases(op: type[Op]) -> Iterator[Case]:
    """Copies between types, with layouts of source and destination, to other shapes, and to a part of a tensor."""

    def pair(label: str, types: Any, nes: Any, layouts: Any = ("packed", "packed")) -> Case:
        return case(op, label, *map(leaf, types, nes, layouts))

    for length in LENGTHS:
        yield pair(f"rows of {length}", (F32, F32), ((length, 3), (length, 3)))
    pairs = [(x, y) for x in KERNEL_FLOATS for y in (*KERNEL_FLOATS, I32, *ENCODED)]
    pairs += [(q, F32) for q in QUANTIZED] + [(t, t) for t in (*INTEGERS, *QUANTIZED)]
    for types in pairs:
        name = f"{types[0].name} into {types[1].name}"
        ne = whole_blocks(_NE, *types)
        yield pair(name, types, (ne, ne))
        if types[1] in QUANTIZED and types[0] in (F16, BF16):
            continue  # layouts as from F32
        for layout in _layouts(types[0])[1:]:
            yield pair(f"{name}, source {layout}", types, (ne, ne), (layout, "packed"))
        for layout in _layouts(types[1])[1:]:
            yield pair(f"{name}, target {layout}", types, (ne, ne), ("packed", layout))
    for layouts in (("permuted", "permuted"), ("transposed", "window"), ("window", "transposed")):
        yield pair(f"{layouts[0]} into {layouts[1]}", (F32, F16), (_NE, _NE), layouts)
    yield pair("into another shape", (F32, F32), ((12, 5, 4), (20, 3, 4)))
    yield pair("permuted into another shape", (F32, F16), ((12, 5, 4), (240,)), ("permuted", "packed"))
    for block in QUANTIZED:
        n = block.block_size
        yield pair(f"{block.name} into shorter rows", (block, F32), ((2 * n, 4), (n // 2, 16)))
        yield pair(f"{block.name} permuted into shorter rows", (block, F16), ((n, 4, 3), (n // 2, 24)), _PERMUTED[0])
        yield pair(f"{block.name} into columns", (block, F32), ((2 * n, 6), (24, n // 2)), _PERMUTED[1])
        for layouts in (("permuted", "rows apart"), ("window", "permuted")):
            label = f"{block.name} {layouts[0]} into longer rows, {layouts[1]}"
            yield pair(label, (block, block), ((2 * n, 3, 4), (4 * n, 3, 2)), layouts)
    for block in ENCODED:
        n = block.block_size
        yield pair(f"{block.name} from shorter rows", (F32, block), ((n // 2, 24), (3 * n, 4)))
        yield pair(f"{block.name} from permuted shorter rows", (F32, block), ((n // 2, 4, 6), (3 * n, 4)), _PERMUTED[0])
    for target in (*KERNEL_FLOATS, *ENCODED[:2]):
        ne = whole_blocks((33, 4), target)
        # F32 gets some that lie between its numbers, the others what F32 holds.
        x = leaf(I32, ne) if target is F32 else leaf(I32, ne, low=-60000, high=60000)
        yield case(op, f"i32 into {target.name}", x, leaf(target, ne))
    yield Case(op.name, "into a part, read as a whole", lambda leafs: _into_part(op, leafs))


def _into_part(op: type[Op], leafs: Leafs) -> Any:
    """The KV cache of a model without set_rows: a copy into a window, then a use of the whole cache."""
    cache = leafs.tensor(F16, 32, 9)
    window = view(cache, 32, 3, nb=cache.nb[1:], offset=4 * cache.nb[1])
    written = node(op, leafs.tensor(F32, 32, 3), window)
    return [written, node(ops.Dup, view(cache, 32, 9), type="f32")]


def _draw_cpy(c: Draw, op: type[Op]) -> Drawn:
    x, dst, kinds = _convertible(c, "x", "dst")
    ne = c.shape(x, dst)
    other = regrouped(c, ne, x, dst)
    return Drawn([c.source("x", x, ne, ANY, kinds), c.source("dst", dst, other, ONCE, ANYTHING)])


describe(
    ops.Cpy,
    cases=[cpy_cases, _any_bytes_cases],
    special=[_bits_special, _converted_special],
    draw=_draw_cpy,
    rule=MOVES,
)


# -- into a new tensor -----------------------------------------------------------------------------


def cont_cases(op: type[Op]) -> Iterator[Case]:
    """All types and layouts, other shapes, a view of something that was computed."""
    yield from _every_type(op)
    for length in LENGTHS:
        yield case(op, f"transposed, rows of {length}", leaf(F32, (length, 5), "transposed"))
    yield case(op, "into another shape", leaf(F32, (12, 5, 4), "permuted"), ne=(60, 4))
    yield Case(op.name, "of a view of a result", lambda leafs: _of_result(op, leafs))


def _every_type(op: type[Op]) -> Iterator[Case]:
    for type in (*KERNEL_FLOATS, *INTEGERS, *QUANTIZED):
        ne = whole_blocks(_NE, type)
        yield from laid(op, ne, [type], _layouts(type))


def _of_result(op: type[Op], leafs: Leafs) -> Tensor:
    computed = node(ops.Dup, leafs.tensor(F32, 24, 5, layout="transposed"))
    folded = reshape(computed, 8, 3, 5)
    return node(op, view(folded, 4, 2, 5, nb=folded.nb[1:], offset=folded.nb[1]))


def _draw_cont(c: Draw, op: type[Op]) -> Drawn:
    kind = c.type("x", EVERY)
    ne = c.shape(kind)
    other = regrouped(c, ne, kind)
    x = c.source("x", kind, ne, ANY, ANYTHING)
    return Drawn([x], {"ne": () if other == ne else other})


describe(ops.Cont, cases=[cont_cases, _any_bytes_cases], special=[_bits_special], draw=_draw_cont, rule=MOVES)


def dup_cases(op: type[Op]) -> Iterator[Case]:
    """All types and layouts, and conversions from each type into each."""
    yield from _every_type(op)
    for source in (*KERNEL_FLOATS, *QUANTIZED):
        for target in (*KERNEL_FLOATS, I32, *ENCODED):
            if source is not target and not (source.is_quantized and target.is_quantized):
                ne = whole_blocks(_NE, source, target)
                for layout in _PACKED_OR_NOT:
                    label = f"{spell(source, ne, layout)} to {target.name}"
                    yield case(op, label, leaf(source, ne, layout), type=target.name)
    yield case(op, "i32 to f32", leaf(I32, (33, 4)), type="f32")


def _draw_dup(c: Draw, op: type[Op]) -> Drawn:
    kind, to, kinds = _convertible(c, "x", "to")
    x = c.source("x", kind, c.shape(kind, to), ANY, kinds)
    return Drawn([x], {"type": "" if kind is to else to.name})


describe(
    ops.Dup,
    cases=[dup_cases, _any_bytes_cases],
    special=[_bits_special, _converted_special],
    draw=_draw_dup,
    rule=MOVES,
)


# -- side by side, and repeated --------------------------------------------------------------------


def concat_cases(op: type[Op]) -> Iterator[Case]:
    """Along each dimension, layouts of both sides, types, with nothing."""

    def pair(label: str, type: Type, dim: int, more: int, layouts: Any = ("packed", "packed"), first: int = 64) -> Case:
        ne = [in_blocks(first, type), 4, 3, 2]
        other = [more if i == dim else n for i, n in enumerate(ne)]
        return case(op, label, leaf(type, ne, layouts[0]), leaf(type, other, layouts[1]), dim=dim)

    for dim in range(4):
        for type in (*KERNEL_FLOATS, *INTEGERS, *QUANTIZED):
            yield pair(f"{type.name} along {dim}", type, dim, in_blocks(64, type) if dim == 0 else 5)
        for layout in LAYOUTS[1:]:
            yield pair(f"a {layout} along {dim}", F32, dim, 7, (layout, "packed"))
            yield pair(f"b {layout} along {dim}", F32, dim, 7, ("packed", layout))
    for length in LENGTHS[:12]:
        yield pair(f"rows of {length} and 3", F32, 0, 3, first=length)


def _draw_concat(c: Draw, op: type[Op]) -> Drawn:
    kind = c.type(c.target[0], EVERY)
    dim = c.pick("dim", (0, 1, 2, 3))
    a, other = c.shape(kind), c.shape(kind, what="m")
    b = [m if i == dim else n for i, (n, m) in enumerate(zip(a, other, strict=True))]
    return Drawn([c.source("a", kind, a, ANY, ANYTHING), c.source("b", kind, b, ANY, ANYTHING)], {"dim": dim})


describe(ops.Concat, cases=[concat_cases, _any_bytes_cases], special=[_bits_special], draw=_draw_concat, rule=MOVES)


def repeat_cases(op: type[Op]) -> Iterator[Case]:
    """Tensors repeated along no dimension, along each one, and along all together; types, layouts."""

    def repeated(type: Type, x: tuple[int, ...], ne: tuple[int, ...], layout: Layout = "packed") -> Case:
        return case(op, f"{spell(type, x, layout)} to {'x'.join(map(str, ne))}", leaf(type, x, layout), ne=ne)

    for type in (*KERNEL_FLOATS, I16, I32):
        for times in ((1, 1, 1, 1), (2, 1, 1, 1), (1, 3, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2), (2, 3, 2, 2)):
            base = (17, 3, 2, 2)
            yield repeated(type, base, tuple(n * t for n, t in zip(base, times, strict=True)))
    for type in QUANTIZED:
        for count, layout in ((1, LAYOUTS[0]), (3, LAYOUTS[2])):
            n = count * type.block_size
            yield repeated(type, (n, 2, 3), (3 * n, 4, 3, 2), layout)
    for layout in LAYOUTS[1:]:
        yield case(op, layout, leaf(F32, (9, 4, 3), layout), ne=(18, 4, 6, 2))
    for length in LENGTHS[:12]:
        yield case(op, f"an element to rows of {length}", leaf(F32, (1, 3)), ne=(length, 3))
    yield case(op, "to nothing", leaf(F32, (4, 3)), ne=(4, 0))


def _draw_repeat(c: Draw, op: type[Op]) -> Drawn:
    kind = c.type("x", EVERY)
    ne = c.shape(kind)
    times = [c.pick(f"times{i}", (1, 2, 3), (3, 1, 1)) for i in range(4)]
    x = c.source("x", kind, ne, ANY, ANYTHING)
    return Drawn([x], {"ne": tuple(n * t for n, t in zip(ne, times, strict=True))})


describe(ops.Repeat, cases=[repeat_cases, _any_bytes_cases], special=[_bits_special], draw=_draw_repeat, rule=MOVES)
