"""Cases of copies: into other tensors, types and shapes, side by side, repeated."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ggplug.ops.base import Op
from ggplug.ops.copy import Concat, Cont, Cpy, Dup, Repeat
from ggplug.ops.views import reshape, view
from ggplug.types import BF16, F16, F32, I16, I32, INTEGERS, KERNEL_FLOATS, Type
from ggplug_testing.cases.case import (
    ENCODED,
    LAYOUTS,
    LENGTHS,
    QUANTIZED,
    ROWWISE,
    Case,
    Layout,
    Leafs,
    generates,
    in_blocks,
    node,
    spell,
    whole_blocks,
)

_NE = (64, 5, 3, 2)
_TURNED: tuple[tuple[Layout, Layout], ...] = (("permuted", "packed"), ("packed", "transposed"))
_PACKED_OR_NOT: tuple[Layout, ...] = ("packed", "permuted")


def _layouts(type: Type) -> tuple[Any, ...]:
    return ROWWISE if type.is_quantized else LAYOUTS


@generates(Cpy)
def cpy_cases(cls: type[Op]) -> Iterator[Case]:
    """Between all types, layouts of both sides, other shapes, into a part of a tensor."""

    def case(label: str, types: Any, nes: Any, layouts: Any = ("packed", "packed")) -> Case:
        def make(leafs: Leafs) -> Any:
            x = leafs.tensor(types[0], *nes[0], layout=layouts[0])
            return node(cls, x, leafs.tensor(types[1], *nes[1], layout=layouts[1]))

        return Case(cls.name, label, make)

    for length in LENGTHS:
        yield case(f"rows of {length}", (F32, F32), ((length, 3), (length, 3)))
    pairs = [(x, y) for x in KERNEL_FLOATS for y in (*KERNEL_FLOATS, I32, *ENCODED)]
    pairs += [(q, F32) for q in QUANTIZED] + [(t, t) for t in (*INTEGERS, *QUANTIZED)]
    for types in pairs:
        name = f"{types[0].name} into {types[1].name}"
        ne = whole_blocks(_NE, *types)
        yield case(name, types, (ne, ne))
        if types[1] in QUANTIZED and types[0] in (F16, BF16):
            continue  # layouts as from F32
        for layout in _layouts(types[0])[1:]:
            yield case(f"{name}, source {layout}", types, (ne, ne), (layout, "packed"))
        for layout in _layouts(types[1])[1:]:
            yield case(f"{name}, target {layout}", types, (ne, ne), ("packed", layout))
    for layouts in (("permuted", "permuted"), ("transposed", "window"), ("window", "transposed")):
        yield case(f"{layouts[0]} into {layouts[1]}", (F32, F16), (_NE, _NE), layouts)
    yield case("into another shape", (F32, F32), ((12, 5, 4), (20, 3, 4)))
    yield case("permuted into another shape", (F32, F16), ((12, 5, 4), (240,)), ("permuted", "packed"))
    for block in QUANTIZED:
        n = block.block_size
        yield case(f"{block.name} into shorter rows", (block, F32), ((2 * n, 4), (n // 2, 16)))
        yield case(f"{block.name} permuted into shorter rows", (block, F16), ((n, 4, 3), (n // 2, 24)), _TURNED[0])
        yield case(f"{block.name} into columns", (block, F32), ((2 * n, 6), (24, n // 2)), _TURNED[1])
        for turned in (("permuted", "rows apart"), ("window", "permuted")):
            label = f"{block.name} {turned[0]} into longer rows, {turned[1]}"
            yield case(label, (block, block), ((2 * n, 3, 4), (4 * n, 3, 2)), turned)
    for block in ENCODED:
        n = block.block_size
        yield case(f"{block.name} from shorter rows", (F32, block), ((n // 2, 24), (3 * n, 4)))
        yield case(f"{block.name} from permuted shorter rows", (F32, block), ((n // 2, 4, 6), (3 * n, 4)), _TURNED[0])
    for target in (*KERNEL_FLOATS, *ENCODED[:2]):
        yield Case(cls.name, f"i32 into {target.name}", lambda leafs, t=target: _of_integers(cls, leafs, t))  # type: ignore[misc]
    yield Case(cls.name, "into a part, read as a whole", lambda leafs: _into_part(cls, leafs))


def _of_integers(cls: type[Op], leafs: Leafs, target: Type) -> Any:
    """A copy of integers into ``target``; f32 gets some that lie between its numbers, the others what f32 holds."""
    ne = whole_blocks((33, 4), target)
    x = leafs.tensor(I32, *ne) if target is F32 else leafs.tensor(I32, *ne, low=-60000, high=60000)
    return node(cls, x, leafs.tensor(target, *ne))


def _into_part(cls: type[Op], leafs: Leafs) -> Any:
    """The KV cache of a model without set_rows: a copy into a window, then a use of the whole cache."""
    cache = leafs.tensor(F16, 32, 9)
    window = view(cache, 32, 3, nb=cache.nb[1:], offset=4 * cache.nb[1])
    written = node(cls, leafs.tensor(F32, 32, 3), window)
    return [written, node(Dup, view(cache, 32, 9), type="f32")]


@generates(Cont)
def cont_cases(cls: type[Op]) -> Iterator[Case]:
    """All types and layouts, other shapes, a view of something that was computed."""
    for type in (*KERNEL_FLOATS, *INTEGERS, *QUANTIZED):
        ne = whole_blocks(_NE, type)
        for layout in _layouts(type):
            yield _one(cls, spell(type, ne, layout), type, ne, layout)
    for length in LENGTHS:
        yield _one(cls, f"transposed, rows of {length}", F32, (length, 5), "transposed")
    yield _one(cls, "into another shape", F32, (12, 5, 4), "permuted", {"ne": (60, 4)})
    yield Case(cls.name, "of a view of a result", lambda leafs: _of_result(cls, leafs))


def _one(
    cls: type[Op], label: str, type: Type, ne: tuple[int, ...], layout: Layout, parameters: dict[str, Any] | None = None
) -> Case:
    made = parameters or {}
    return Case(cls.name, label, lambda leafs: node(cls, leafs.tensor(type, *ne, layout=layout), **made))


def _of_result(cls: type[Op], leafs: Leafs) -> Any:
    computed = node(Dup, leafs.tensor(F32, 24, 5, layout="transposed"))
    folded = reshape(computed, 8, 3, 5)
    return node(cls, view(folded, 4, 2, 5, nb=folded.nb[1:], offset=folded.nb[1]))


@generates(Dup)
def dup_cases(cls: type[Op]) -> Iterator[Case]:
    """All types and layouts, and conversions from each type into each."""
    for type in (*KERNEL_FLOATS, *INTEGERS, *QUANTIZED):
        ne = whole_blocks(_NE, type)
        for layout in _layouts(type):
            yield _one(cls, spell(type, ne, layout), type, ne, layout)
    for source in (*KERNEL_FLOATS, *QUANTIZED):
        for target in (*KERNEL_FLOATS, I32, *ENCODED):
            if source is not target and not (source.is_quantized and target.is_quantized):
                ne = whole_blocks(_NE, source, target)
                for layout in _PACKED_OR_NOT:
                    label = f"{spell(source, ne, layout)} to {target.name}"
                    yield _one(cls, label, source, ne, layout, {"type": target.name})
    yield _one(cls, "i32 to f32", I32, (33, 4), "packed", {"type": "f32"})


@generates(Concat)
def concat_cases(cls: type[Op]) -> Iterator[Case]:
    """Along each dimension, layouts of both sides, types, with nothing."""

    def case(label: str, type: Any, dim: int, more: int, layouts: Any = ("packed", "packed"), first: int = 64) -> Case:
        def make(leafs: Leafs) -> Any:
            ne = [in_blocks(first, type), 4, 3, 2]
            a = leafs.tensor(type, *ne, layout=layouts[0])
            ne[dim] = more
            return node(cls, a, leafs.tensor(type, *ne, layout=layouts[1]), dim=dim)

        return Case(cls.name, label, make)

    for dim in range(4):
        for type in (*KERNEL_FLOATS, *INTEGERS, *QUANTIZED):
            more = in_blocks(64, type) if dim == 0 else 5
            yield case(f"{type.name} along {dim}", type, dim, more)
        for layout in LAYOUTS[1:]:
            yield case(f"a {layout} along {dim}", F32, dim, 7, (layout, "packed"))
            yield case(f"b {layout} along {dim}", F32, dim, 7, ("packed", layout))
    for length in LENGTHS[:12]:
        yield case(f"rows of {length} and 3", F32, 0, 3, first=length)


@generates(Repeat)
def repeat_cases(cls: type[Op]) -> Iterator[Case]:
    """Each dimension on its own and together, types, layouts."""
    for type in (*KERNEL_FLOATS, I16, I32):
        for times in ((1, 1, 1, 1), (2, 1, 1, 1), (1, 3, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2), (2, 3, 2, 2)):
            base = (17, 3, 2, 2)
            ne = tuple(n * t for n, t in zip(base, times, strict=True))
            yield _one(cls, f"{spell(type, base)} to {'x'.join(map(str, ne))}", type, base, "packed", {"ne": ne})
    apart: tuple[tuple[int, Layout], ...] = ((1, "packed"), (3, "rows apart"))
    for type in QUANTIZED:
        for blocks, layout in apart:
            some = (blocks * type.block_size, 2, 3)
            ne = (3 * some[0], 4, 3, 2)
            yield _one(cls, f"{spell(type, some, layout)} to {'x'.join(map(str, ne))}", type, some, layout, {"ne": ne})
    for layout in LAYOUTS[1:]:
        yield _one(cls, f"{layout}", F32, (9, 4, 3), layout, {"ne": (18, 4, 6, 2)})
    for length in LENGTHS[:12]:
        yield _one(cls, f"an element to rows of {length}", F32, (1, 3), "packed", {"ne": (length, 3)})
    yield _one(cls, "to nothing", F32, (4, 3), "packed", {"ne": (4, 0)})


@generates(Cpy, Cont, Dup, Concat, Repeat)
def any_bytes_cases(cls: type[Op]) -> Iterator[Case]:
    """Blocks of any bytes, also those that no numbers are rounded to: between equal types every bit stays."""
    for type in QUANTIZED:
        ne = (2 * type.block_size, 3, 4)
        for layout in _PACKED_OR_NOT:
            label = f"any bytes of {type.name}" + ("" if layout == "packed" else f" {layout}")
            yield Case(cls.name, label, partial(_moved_bytes, cls, type, ne, layout), "bits", every_type=True)


def _moved_bytes(cls: type[Op], type: Type, ne: tuple[int, ...], layout: Layout, leafs: Leafs) -> Any:
    x = leafs.any_bytes(type, *ne, layout=layout)
    if cls is Cpy:
        return node(cls, x, leafs.any_bytes(type, *ne))
    if cls is Concat:
        return node(cls, x, leafs.any_bytes(type, *ne), dim=1)
    return node(cls, x, ne=(*ne[:2], 2 * ne[2])) if cls is Repeat else node(cls, x)
