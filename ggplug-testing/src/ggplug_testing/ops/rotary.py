"""Rotary position embedding: every mode with everything that it can be combined with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggplug import ops
from ggplug.ops.base import Array, Op
from ggplug.ops.rotary import Rotary
from ggplug.tensor import Tensor
from ggplug.types import F32, FLOATS, I8, I32, KERNEL_FLOATS, RopeMode, Type
from ggplug_testing.cases.case import LAYOUTS, Case, Layout, Leafs, node
from ggplug_testing.cases.making import array, made, spell
from ggplug_testing.cases.special import NUMBERS
from ggplug_testing.description import CaseOf, describe
from ggplug_testing.drawing import ANY, BATCHES, ONCE, Draw, Drawn, Source
from ggplug_testing.precision.rule import UNIT, Node, element

_FAR = (1 << 17, 1_000_001, (1 << 24) + 2, 1 << 31)
"""Beyond the contexts of today's models, beyond what float32 counts, and to the end of I32."""

_YARN: dict[str, Any] = {"n_ctx_orig": 512, "freq_scale": 0.7, "ext_factor": 0.75, "attn_factor": 1.2}


def _axes(mode: RopeMode | int) -> int:
    """How many positions a token has."""
    return 4 if mode & RopeMode.MROPE else 1


def rope_cases(op: type[Op]) -> Iterator[Case]:
    """Modes x whole or part of the rows x frequency factors x YaRN; types, layouts, far positions."""

    def rotated(
        label: str,
        mode: RopeMode,
        ne: tuple[int, ...],
        n_dims: int,
        *,
        type: Type = F32,
        layout: Layout = "packed",
        factors: bool = False,
        far: int = 512,
        **parameters: Any,
    ) -> Case:
        if _axes(mode) > 1:
            pairs = n_dims if mode == RopeMode.VISION else n_dims // 2
            most = pairs // 3
            parameters.setdefault("sections", (pairs - 2 * most, most, most, 0))

        def make(leafs: Leafs) -> Tensor:
            x = leafs.tensor(type, *ne, layout=layout)
            chosen = leafs.random.integers(0, far, ne[2] * _axes(mode))
            chosen[-1] = far - 1
            positions = leafs.array(I32, chosen)
            divided = leafs.tensor(F32, n_dims, low=0.5, high=2) if factors else None
            return node(op, x, positions, divided, n_dims=n_dims, mode=int(mode), **parameters)

        return Case(op.name, label, make)

    for mode in RopeMode:
        name = mode.name.lower()
        vision = mode == RopeMode.VISION
        ne = (32, 3, 5, 2)
        whole = 16 if vision else 32
        yield rotated(f"{name}", mode, ne, whole)
        yield rotated(f"{name} factors", mode, ne, whole, factors=True)
        yield rotated(f"{name} yarn", mode, ne, whole, **_YARN)
        yield rotated(f"{name} scaled, other base", mode, ne, whole, freq_base=5e5, freq_scale=0.25)
        if not vision:
            yield rotated(f"{name} part", mode, ne, 20)
            yield rotated(f"{name} part in the middle", mode, ne, 16, n_offs=8, factors=True, **_YARN)
        for type in KERNEL_FLOATS:
            yield rotated(f"{name} {type.name}", mode, (64, 4, 3), 32 if vision else 64, type=type)
        for layout in LAYOUTS[1:]:
            yield rotated(f"{name} {spell(F32, ne, layout)}", mode, ne, whole, layout=layout)
        for label, more in (("", {}), (", factors and yarn", {"factors": True, **_YARN})):
            for far in _FAR:
                yield rotated(f"{name} at positions up to {far - 1}{label}", mode, (32, 2, 6), whole, far=far, **more)
        yield rotated(f"{name} one position", mode, (128, 7, 1), 64 if vision else 128)
    for mode in (RopeMode.NORMAL, RopeMode.NEOX):  # what devices without YaRN have, too
        yield rotated(f"{mode.name.lower()} middle", mode, (32, 3, 5), 16, n_offs=8, factors=True)
        yield rotated(f"{mode.name.lower()} stretched", mode, (32, 3, 5), 32, attn_factor=0.7, freq_base=70.25)
    for n in (2, 4, 6, 10, 34, 80, 96, 130):
        yield rotated(f"rows of {n}", RopeMode.NEOX, (n, 2, 3), n)
        yield rotated(f"rows of {n}, neighbours", RopeMode.NORMAL, (n, 2, 3), n)
    yield rotated("all sections", RopeMode.MROPE, (32, 2, 4), 32, sections=(4, 6, 4, 2))
    yield rotated("sections shorter than the row", RopeMode.MROPE, (64, 2, 4), 64, sections=(4, 3, 3, 0))


def _rope_special(op: type[Op], case: CaseOf) -> Iterator[Case]:
    sources = array(F32, np.resize(NUMBERS, (4, 2, 32))), array(I32, np.arange(1, 5))
    for mode in (0, 2):
        yield case(f"mode {mode}", made(op, *sources, n_dims=24, mode=mode))


def _draw_rope(c: Draw, op: type[Op]) -> Drawn:
    kind = c.type("x", FLOATS)
    mode = c.pick("mode", tuple(int(m) for m in RopeMode), (3, 3, 1, 1, 1))
    pairs = c.pick("pairs", (1, 2, 3, 4, 8, 16, 17, 32, 33, 64))
    vision = mode == RopeMode.VISION
    n_dims = 2 * pairs
    n_offs = 0 if vision else c.pick("n_offs", (0, 1, 2, 16), (5, 1, 1, 1))
    rest = 0 if vision else c.pick("rest", (0, 1, 2, 16))
    block = kind.block_size
    n0 = 2 * n_dims if vision else n_offs + n_dims + rest
    n0 = -(-n0 // block) * block
    if vision and n0 != 2 * n_dims:
        c.promised = False
    ne = (n0, c.extent("n1"), c.extent("n2"), c.extent("n3", BATCHES))
    x = c.source("x", kind, ne, ANY, ("normal", "integers", "constant", "hundreds", "small", "NaN"))
    pos_type = c.type("pos", (I32,))
    count = ne[2] * _axes(mode)
    top = c.pick("positions", (4, 100, 2048, 8192, 131072))
    numbers = np.random.default_rng(c.number("pos.numbers")).integers(0, top, (1, 1, 1, count))
    if pos_type is I8 or pos_type.is_quantized:
        numbers = numbers % 100
    pos = Source("pos", pos_type, (count, 1, 1, 1), c.layout("pos", ONCE), "indices", numbers)
    wide = n_dims if vision else pairs
    factors = None
    if c.optional("freq_factors"):
        type = c.type("freq_factors", (F32,))
        longer = -(-(wide + c.pick("factors.longer", (0, 1))) // type.block_size) * type.block_size
        factors = c.source("freq_factors", type, (longer,), ONCE, ("positive",))
    parameters: dict[str, Any] = {
        "n_dims": n_dims,
        "mode": mode,
        "n_ctx_orig": c.pick("n_ctx_orig", (0, 4096, 512)),
        "freq_base": c.pick("freq_base", (10000.0, 1e6, 500.0)),
        "freq_scale": c.pick("freq_scale", (1.0, 0.25, 2.0)),
        "ext_factor": c.pick("ext_factor", (0.0, 1.0, 0.5), (3, 1, 1)),
        "attn_factor": c.pick("attn_factor", (1.0, 0.7, 0.0)),
        "n_offs": n_offs,
    }
    if _axes(mode) > 1:
        options = ((wide, 0, 0, 0), (wide // 4 + 1, wide // 4, wide // 4, 0), (1, 1, 1, 1), (0, wide, 0, 3))
        parameters["sections"] = c.pick("sections", options)
    return Drawn([x, pos, factors], parameters)


def _rope(node: Node, exact: Array, x: Array, pos: Array, factors: Array | None = None) -> Array:
    pair = np.arange(node.op.pairs)
    normal = node.op.mode == RopeMode.NORMAL
    first = node.op.n_offs + (2 * pair if normal else pair)
    second = first + (1 if normal else node.op.pairs)
    roundings = 16 * (1 + UNIT * np.abs(node.op.angles(pos, factors)))[:, np.newaxis, :] * abs(node.op.magnitude)
    tolerance = np.zeros_like(exact)
    tolerance[..., first] = tolerance[..., second] = roundings * np.hypot(x[..., first], x[..., second])
    return tolerance


describe(Rotary, cases=[rope_cases], special=[_rope_special])
describe(
    ops.Rope,
    draw=_draw_rope,
    rule=element(
        "16 (1 + UNIT abs(angle)) hypot(x0, x1) magnitude, of each pair",
        "sine and cosine, the magnitude, two products and their sum; the angle at any position to 16 UNIT**2 of "
        "itself, as numbers of two floats are after some products, and numbers of one are not",
        _rope,
    ),
)
describe(ops.RopeBack, rule=element("as rope", "as rope", _rope))
