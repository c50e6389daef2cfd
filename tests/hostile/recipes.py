"""What the ops' docstrings promise, and how shapes of their sources belong together.

A recipe draws the sources and parameters of an op.  It says which types, layouts and values the op takes; what it is
made to take beyond that (the fuzzer aims at each type and layout in turn) is not promised, so the op may refuse it,
but only by a typed error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ggplug import ops, quants
from ggplug.ops.base import OPS, Op
from ggplug.sketches import EXTENTS, Sketch, sketches
from ggplug.types import F16, F32, FLOATS, I8, I16, I32, I64, KERNEL_FLOATS, TYPES, RopeMode, Type

from .choices import Choices
from .layouts import ANY, CONTIGUOUS, LAYOUTS, ONCE, ROWS, Ne
from .values import ANY as ANY_VALUES
from .values import BITS, FINITE, KINDS, MODERATE

NARROW = KERNEL_FLOATS
QUANTIZED = tuple(t for t in TYPES if t.is_quantized)
DECODED = quants.block_types()
WHOLE = (I32, I64, I16, I8)
NOT_WHOLE = (*FLOATS, *QUANTIZED)
EVERY = (*FLOATS, *WHOLE, *QUANTIZED)

ROW_LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 100, 129, 257)
BLOCKS = (1, 2, 3, 4, 5, 9)
COUNTS = (1, 2, 3, 5, 8, 9, 17, 33)
FEW = (1, 2, 3, 5)
BATCHES = (1, 2, 3)

ELEMENTWISE = ANY_VALUES
SUMMED = tuple(kind for kind in KINDS if kind != "denormal")
"""Values that are summed: all, but those that a device may take as zero."""


@dataclass
class Source:
    """A source of the op under test: extents, and how its leaf is made.

    ``values``: its numbers where the recipe decides them, such as indices.
    """

    name: str
    type: Type
    ne: Ne
    layout: str
    kind: str
    values: Any = None


@dataclass
class Drawn:
    """Sources in the op's order (None for absent ones) and parameters."""

    sources: list[Source | None]
    parameters: dict[str, Any] = field(default_factory=dict)


class Draw(Choices):
    """The choices of one case that aims at one source of one op, in one layout and one type."""

    def __init__(
        self, name: str, target: tuple[str, str, Type], given: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(name, given)
        self.target = target
        self.promised = True
        """Whether the op's docstring says that it takes what was drawn."""

    def aims_at(self, source: str) -> bool:
        """Whether the case must have this source."""
        return self.target[0] == source

    def type(self, source: str, promised: Sequence[Type]) -> Type:
        """The type that the case aims at, or one that the op promises to take."""
        if self.aims_at(source):
            return self.insist(source, self.target[2], promised)
        return EVERY_NAME[self.pick(f"{source}.type", tuple(t.name for t in promised))]

    def insist(self, source: str, type: Type, promised: Sequence[Type]) -> Type:
        """A type that follows from another choice."""
        self.promised &= type in promised
        return type

    def layout(self, source: str, promised: Sequence[str]) -> str:
        """The layout that the case aims at, or one that the op promises to take, mostly a contiguous one."""
        if self.aims_at(source):
            layout = self.pick(f"{source}.layout", (*promised, *(l for l in LAYOUTS if l not in promised)))
            if f"{source}.layout" not in self.given:
                layout = self.target[1]
        else:
            layout = self.pick(f"{source}.layout", promised, [len(promised), *[1] * (len(promised) - 1)])
        self.promised &= layout in promised
        return layout

    def extent(self, what: str, options: Sequence[int] = COUNTS) -> int:
        """An extent; now and then it is zero."""
        chosen = self.pick(what, (*options, 0), [48 // len(options) + 1] * len(options) + [4])
        return int(chosen)

    def row(self, what: str, *types: Type, options: Sequence[int] = ROW_LENGTHS) -> int:
        """An extent along ne0 that is a whole number of blocks of all types."""
        block = math.lcm(*(t.block_size for t in types))
        return self.extent(what, options) if block == 1 else block * self.extent(f"{what}.blocks", BLOCKS)

    def shape(self, *types: Type, what: str = "n") -> Ne:
        """Any four extents."""
        return (
            self.row(f"{what}0", *types),
            self.extent(f"{what}1"),
            self.extent(f"{what}2", FEW),
            self.extent(f"{what}3", BATCHES),
        )

    def kind(self, source: str, type: Type, kinds: Sequence[str]) -> str:
        """What a source holds."""
        if type.is_quantized:
            # Blocks of finite numbers, or any bits; a NaN has no place in a block.
            kinds = [k for k in kinds if k in FINITE or k == BITS]
        return self.pick(f"{source}.values", kinds, [len(kinds), *[1] * (len(kinds) - 1)])

    def source(
        self, name: str, type: Type, ne: Sequence[int], layouts: Sequence[str] = ANY, kinds: Sequence[str] = MODERATE
    ) -> Source:
        """A source with values of one of these kinds."""
        n0, n1, n2, n3 = (*ne, 1, 1, 1, 1)[:4]
        if type.block_size > 1:
            # Of a block type a view never takes elements of a row apart.
            layouts = [each for each in layouts if each != "transposed"]
        layout = self.layout(name, layouts)
        return Source(name, type, (n0, n1, n2, n3), layout, self.kind(name, type, kinds))

    def optional(self, source: str) -> bool:
        """Whether an optional source is there."""
        return self.aims_at(source) or self.pick(f"{source}.present", (False, True))

    def indices(
        self, name: str, types: Sequence[Type], count: Sequence[int], below: int, *, distinct: bool = False,
        layouts: Sequence[str] = ONCE,
    ) -> Source:  # fmt: skip
        """Indices below a limit; now and then some are out of range.  ``distinct`` along the first dimension."""
        type = self.type(name, types)
        ne = (*count, 1, 1, 1, 1)[:4]
        random = np.random.default_rng(self.number(f"{name}.numbers"))
        shape = ne[::-1]
        if distinct and ne[0] <= below:
            rows = [random.permutation(below)[: ne[0]] for _ in range(math.prod(ne[1:]))]
            values = np.array(rows, np.int64).reshape(shape)
        else:
            values = random.integers(0, max(below, 1), shape)
        how = self.pick(f"{name}.range", ("inside", "one beyond", "negative", "far", "extreme"), (12, 1, 1, 1, 1))
        if how == "inside" and distinct and ne[0] > below:
            self.promised = False
        values = np.asarray(values, np.int64)
        if values.size and (how != "inside" or not below):
            limit = np.iinfo(np.int64 if type is I64 else np.int32)
            options = {
                "inside": (below,),
                "one beyond": (below,),
                "negative": (-1, -below, -below - 1),
                "far": (below + 1000, 1 << 20, -(1 << 20)),
                "extreme": (limit.min, limit.max),
            }[how]
            some = random.uniform(size=shape) < 0.3
            some.reshape(-1)[random.integers(values.size)] = True
            values = np.where(some, random.choice(np.array(options, np.int64), shape), values)
        layout = self.layout(name, layouts)
        return Source(name, type, (ne[0], ne[1], ne[2], ne[3]), layout, "indices", values)


EVERY_NAME = {t.name: t for t in TYPES}

Recipe = Callable[[Draw, type[Op]], Drawn]
RECIPES: dict[type[Op], Recipe] = {}


def recipe(*classes: type[Op]) -> Callable[[Recipe], Recipe]:
    """Marks what draws the sources of these ops and of those derived from them."""

    def mark(function: Recipe) -> Recipe:
        for cls in classes:
            RECIPES[cls] = function
        return function

    return mark


def recipe_of(cls: type[Op]) -> Recipe:
    """The recipe of an op; one that has none gets sources of equal shape."""
    found = next((RECIPES[base] for base in cls.__mro__ if base in RECIPES), alike)
    return sketched if found is alike and _drawable(cls) else found


NUMBERS = (1.0, 0.0, -1.0, 0.5, -0.25, 3.0, 1e-6, 100.0, 1e6, -1e6, 1e30)


def alike(c: Draw, cls: type[Op]) -> Drawn:
    """Sources of one shape and type, and parameters by their annotations, of an op that nothing is known about."""
    c.promised = False
    first = c.type(c.target[0], FLOATS)
    ne = c.shape(first)
    there = [s for s in cls.sources if s not in cls.optional or c.optional(s)]
    sources = [c.source(s, first, ne, CONTIGUOUS) if s in there else None for s in cls.sources]
    parameters = {n: c.pick(n, NUMBERS) for n in cls.parameters if cls.__dataclass_fields__[n].type == "float"}
    return Drawn(sources, parameters)


def _drawable(cls: type[Op]) -> list[Sketch]:
    """The conformance suite's sketches of an op.

    None of Python functions, which no name of a case can hold, and of ops that have a recipe below.
    """
    if issubclass(cls, ops.PythonCall):
        return []
    return [each for each in sketches(cls) if each.shown is None]


def sketched(c: Draw, cls: type[Op]) -> Drawn:
    """The sources of one of the conformance suite's sketches in other sizes, types and layouts.

    Which of these the op takes the sketch does not tell, so nothing is promised; what is computed has to be right.
    """
    found = _drawable(cls)
    sketch = found[c.pick("sketch", tuple(range(len(found))))]
    types = []
    for position, name in enumerate(cls.sources[: len(sketch.sources)]):
        types.append(c.type(name, (sketch.type_of(position),)))
    sizes = {name: c.row(name, *types) if name in ("n", "m", "K") else c.extent(name, FEW) for name in sketch.names()}
    sources: list[Source | None] = []
    for position, (name, ne) in enumerate(zip(cls.sources, sketch.sources, strict=False)):
        drawn = [int(word) if word.isdigit() else sizes[word] for word in ne.split()]
        sources.append(c.source(name, types[position], drawn, CONTIGUOUS, ("normal", "constant", "small")))
    c.promised = False
    there = [*sources, *(None for _ in cls.sources[len(sources) :])]
    return Drawn(there, dict(sketch.parameters({**EXTENTS, **sizes})))


def known() -> list[str]:
    """The ops that have a recipe."""
    return [name for name, cls in OPS.items() if recipe_of(cls) is not alike]


RECIPES[ops.SiluBack] = alike  # not as the binary ops: both sources have one shape


@recipe(ops.Unary)
def unary(c: Draw, cls: type[Op]) -> Drawn:
    kind = c.type("x", FLOATS)
    x = c.source("x", kind, c.shape(kind), ROWS, ELEMENTWISE)
    return Drawn([x], {n: c.pick(n, NUMBERS) for n in cls.parameters})


@recipe(ops.Xielu)
def xielu(c: Draw, cls: type[Op]) -> Drawn:
    kind = c.type("x", FLOATS)
    x = c.source("x", kind, c.shape(kind), ROWS, ("normal", "ties", "constant", "hundreds", "NaN"))
    # Larger slopes would show nothing but the rounding of e**x - 1 - x.
    return Drawn([x], {n: c.pick(n, (1.0, 0.0, -1.0, 0.5, 3.0)) for n in cls.parameters})


@recipe(ops.Clamp)
def clamp(c: Draw, cls: type[Op]) -> Drawn:
    drawn = unary(c, cls)
    low, high = drawn.parameters["min"], drawn.parameters["max"]
    c.promised &= low <= high
    return drawn


@recipe(ops.Binary)
def binary(c: Draw, cls: type[Op]) -> Drawn:
    whole = (*FLOATS, *QUANTIZED)
    if c.aims_at("b"):
        b = c.type("b", FLOATS)
        # What b may be depends on a: floats mix, a block type goes with itself.
        a = c.type("a", whole if b in FLOATS else (b, *FLOATS))
    else:
        a = c.type("a", whole)
        b = c.type("b", FLOATS)
    n = [c.row("n0", a, b), c.extent("n1"), c.extent("n2", FEW), c.extent("n3", BATCHES)]
    repeats = [c.pick(f"repeat{i}", (1, 2, 3), (6, 1, 1)) for i in range(4)]
    single = c.pick("b.single", (0, 1, 2, 4, 8, 14, 15), (8, 1, 1, 1, 1, 1, 1))
    ne_a, ne_b = [], []
    for i in range(4):
        if single >> i & 1 and (i or b.block_size == 1):
            ne_b.append(1)
            ne_a.append(n[i] * repeats[i])
        else:
            ne_b.append(n[i])
            ne_a.append(n[i] * repeats[i])
    if 0 in ne_b and ne_a != ne_b:
        c.promised = False
    return Drawn([c.source("a", a, ne_a, ANY, ELEMENTWISE), c.source("b", b, ne_b, ANY, ELEMENTWISE)])


@recipe(ops.Glu)
def glu(c: Draw, cls: type[Op]) -> Drawn:
    kind = c.type(c.target[0], FLOATS)
    ne = c.shape(kind)
    x = c.source("x", kind, ne, CONTIGUOUS, ELEMENTWISE)
    two = c.optional("gate")
    parameters: dict[str, Any] = {"swapped": c.pick("swapped", (False, True))}
    for name in ("alpha", "limit"):
        if name in cls.parameters:
            parameters[name] = c.pick(name, (1.702, 7.0, 0.0, 1.0, 0.1))
    if two and parameters["swapped"]:
        c.promised = False
    return Drawn([x, c.source("gate", kind, ne, CONTIGUOUS, ELEMENTWISE) if two else None], parameters)


@recipe(ops.RowNorm)
def norms(c: Draw, cls: type[Op]) -> Drawn:
    kind = c.type("x", FLOATS)
    eps = c.pick("eps", (1e-6, 0.0, 1e-12, 0.1, 10.0, 1e6, -1.0), (6, 2, 1, 1, 1, 1, 1))
    c.promised &= eps >= 0
    return Drawn([c.source("x", kind, c.shape(kind), ANY, SUMMED)], {"eps": eps})


@recipe(ops.SumRows, ops.Mean, ops.Sum)
def sums(c: Draw, cls: type[Op]) -> Drawn:
    kind = c.type("x", FLOATS)
    return Drawn([c.source("x", kind, c.shape(kind), ANY, SUMMED)])


@recipe(ops.Argmax)
def argmax(c: Draw, cls: type[Op]) -> Drawn:
    kind = c.type("x", FLOATS)
    n0, n1 = c.row("n0", kind), c.extent("n1")
    c.promised &= n0 > 0
    return Drawn([c.source("x", kind, (n0, n1), ANY, ANY_VALUES)])


@recipe(ops.Argsort)
def argsort(c: Draw, cls: type[Op]) -> Drawn:
    kind = c.type("x", FLOATS)
    return Drawn([c.source("x", kind, c.shape(kind), ANY, ANY_VALUES)], {"order": c.pick("order", (0, 1))})


@recipe(ops.SoftMax)
def soft_max(c: Draw, cls: type[Op]) -> Drawn:
    kind = c.type("x", FLOATS)
    ne = c.shape(kind)
    x = c.source("x", kind, ne, CONTIGUOUS, ("normal", "integers", "ties", "constant", "hundreds", "large", "NaN"))
    mask = sinks = None
    max_bias = 0.0
    if c.optional("mask"):
        type = c.type("mask", (F32, F16))
        more = c.pick("mask.rows", (0, 1, 7))
        heads = ne[2] if c.pick("mask.heads", (False, True)) else 1
        batches = ne[3] if c.pick("mask.batches", (False, True)) else 1
        if not heads or not batches:
            c.promised = False
        mask = c.source("mask", type, (ne[0], ne[1] + more, heads, batches), CONTIGUOUS, ("normal", "infinite", "NaN"))
        max_bias = c.pick("max_bias", (0.0, 8.0, 4.0, 0.5), (3, 1, 1, 1))
    if c.optional("sinks"):
        sinks = c.source("sinks", c.type("sinks", (F32,)), (ne[2],), ONCE, MODERATE)
    scale = c.pick("scale", (1.0, 0.0, 0.125, -1.0, 1e-6, 30.0), (4, 2, 1, 1, 1, 1))
    return Drawn([x, mask, sinks], {"scale": scale, "max_bias": max_bias})


@recipe(ops.Rope)
def rope(c: Draw, cls: type[Op]) -> Drawn:
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
    several = bool(mode & RopeMode.MROPE)
    pos_type = c.type("pos", (I32,))
    count = ne[2] * (4 if several else 1)
    top = c.pick("positions", (4, 100, 2048, 8192, 131072))
    numbers = np.random.default_rng(c.number("pos.numbers")).integers(0, top, (1, 1, 1, count))
    if pos_type is I8 or pos_type.is_quantized:
        numbers = numbers % 100
    pos = Source("pos", pos_type, (count, 1, 1, 1), c.layout("pos", ONCE), "indices", numbers)
    factors = None
    if c.optional("freq_factors"):
        longer = c.pick("factors.longer", (0, 1))
        wide = n_dims if vision else pairs
        type = c.type("freq_factors", (F32,))
        wide = -(-(wide + longer) // type.block_size) * type.block_size
        factors = c.source("freq_factors", type, (wide,), ONCE, ("positive",))
    yarn = c.pick("ext_factor", (0.0, 1.0, 0.5), (3, 1, 1))
    parameters: dict[str, Any] = {
        "n_dims": n_dims,
        "mode": mode,
        "n_ctx_orig": c.pick("n_ctx_orig", (0, 4096, 512)),
        "freq_base": c.pick("freq_base", (10000.0, 1e6, 500.0)),
        "freq_scale": c.pick("freq_scale", (1.0, 0.25, 2.0)),
        "ext_factor": yarn,
        "attn_factor": c.pick("attn_factor", (1.0, 0.7, 0.0)),
        "n_offs": n_offs,
    }
    if several:
        wide = n_dims if vision else pairs
        options = ((wide, 0, 0, 0), (wide // 4 + 1, wide // 4, wide // 4, 0), (1, 1, 1, 1), (0, wide, 0, 3))
        parameters["sections"] = c.pick("sections", options)
    return Drawn([x, pos, factors], parameters)


@recipe(ops.MulMat)
def mul_mat(c: Draw, cls: type[Op]) -> Drawn:
    a = c.type("a", (*NARROW, *DECODED))
    b = c.type("b", NARROW if c.pick("b.narrow", (True, False), (6, 1)) else (*NARROW, *DECODED))
    k = c.row("k", a, b)
    m, n = c.extent("m"), c.extent("n")
    a2, a3 = c.extent("a2", BATCHES), c.extent("a3", BATCHES)
    many2, many3 = c.pick("many2", (1, 2, 3), (4, 1, 1)), c.pick("many3", (1, 2), (4, 1))
    if not a2 or not a3:
        c.promised = False
    straight = tuple(layout for layout in ROWS if layout not in ("zero stride", "overlapping"))
    kinds = (*MODERATE, "NaN", "infinite")
    return Drawn(
        [
            c.source("a", a, (k, m, a2, a3), straight, kinds),
            c.source("b", b, (k, n, a2 * many2, a3 * many3), ANY, kinds),
        ],
        {"precision": c.pick("precision", (0, 10))},
    )


@recipe(ops.MulMatId)
def mul_mat_id(c: Draw, cls: type[Op]) -> Drawn:
    a = c.type("as_", (*NARROW, *DECODED))
    b = c.type("b", NARROW)
    k, m = c.row("k", a, b), c.extent("m")
    experts, used, tokens = c.extent("experts", FEW), c.extent("used", BATCHES), c.extent("tokens")
    own = c.pick("own", (True, False))
    c.promised &= used > 0 or not own
    straight = tuple(layout for layout in ROWS if layout not in ("zero stride", "overlapping"))
    kinds = (*MODERATE, "NaN", "infinite")
    ids = c.indices("ids", (I32,), (used, tokens), experts)
    return Drawn(
        [
            c.source("as_", a, (k, m, experts), straight, kinds),
            c.source("b", b, (k, used if own else 1, tokens), ANY, kinds),
            ids,
        ],
        {"precision": c.pick("precision", (0, 10))},
    )


@recipe(ops.GetRows)
def get_rows(c: Draw, cls: type[Op]) -> Drawn:
    kind = c.type("a", (*NOT_WHOLE, I32))
    ne = c.shape(kind)
    ids = c.indices("ids", (I32,), (c.extent("rows"), ne[2], ne[3]), ne[1])
    return Drawn([c.source("a", kind, ne, ANY, ANY_VALUES), ids])


@recipe(ops.SetRows)
def set_rows(c: Draw, cls: type[Op]) -> Drawn:
    kind = c.type("dst", (*NOT_WHOLE, I32))
    rows = c.type("rows", NARROW)
    ne = c.shape(kind, rows)
    count = min(c.extent("rows"), ne[1])
    i1 = ne[2] if c.pick("ids.each2", (True, False)) else 1
    i2 = ne[3] if c.pick("ids.each3", (True, False)) else 1
    if not i1 or not i2:
        c.promised = False
    ids = c.indices("ids", (I64, I32), (count, i1, i2), ne[1], distinct=True)
    straight = tuple(layout for layout in ONCE if layout != "transposed")
    return Drawn([
        c.source("dst", kind, ne, straight, ANY_VALUES),
        c.source("rows", rows, (ne[0], count, ne[2], ne[3]), ROWS, ANY_VALUES),
        ids,
    ])  # fmt: skip


@recipe(ops.AddId)
def add_id(c: Draw, cls: type[Op]) -> Drawn:
    a, b = c.type("a", NARROW), c.type("b", NARROW)
    n, used, tokens = c.row("n", a, b), c.extent("used"), c.extent("tokens", FEW)
    experts = c.extent("experts", FEW)
    ids = c.indices("ids", (I32,), (used, tokens), experts)
    return Drawn([c.source("a", a, (n, used, tokens), ANY, SUMMED), c.source("b", b, (n, experts), ANY, SUMMED), ids])


@recipe(ops.GetRowsBack)
def get_rows_back(c: Draw, cls: type[Op]) -> Drawn:
    kind = c.type("dy", (F32, F16))
    n, count, more = c.row("n", kind), c.extent("count"), c.pick("more", (0, 1, 5))
    rows = c.extent("rows")
    ids = c.indices("ids", (I32,), (count,), rows)
    return Drawn([c.source("dy", kind, (n, count + more), ANY, MODERATE), ids], {"rows": rows})


@recipe(ops.SsmScan)
def ssm_scan(c: Draw, cls: type[Op]) -> Drawn:
    types = {name: c.type(name, (F32,)) for name in cls.sources if name != "ids"}
    size, dim = c.row("n", types["s"], types["b"], types["c"]), c.row("D", types["x"])
    groups, share = c.extent("G", BATCHES), c.pick("heads of a group", (1, 2, 3))
    tokens, sequences, states = c.extent("T", FEW), c.extent("S", BATCHES), c.extent("R", BATCHES)
    heads = groups * share
    if heads % types["dt"].block_size:
        heads = groups = types["dt"].block_size
    snapshots = c.pick("snapshots", (1, 2, 3), (4, 1, 1))
    wide = snapshots == 1 and c.pick("a for each number", (False, True))
    extents = {
        "s": (size, dim, heads, states), "x": (dim, heads, tokens, sequences), "dt": (heads, tokens, sequences),
        "a": (size if wide else types["a"].block_size, heads), "b": (size, groups, tokens, sequences),
        "c": (size, groups, tokens, sequences),
    }  # fmt: skip
    c.promised &= bool(size and dim and groups and tokens and sequences and states)
    kinds = ("normal", "constant", "small")
    sources = [c.source(name, types[name], ne, CONTIGUOUS, kinds) for name, ne in extents.items()]
    ids = c.indices("ids", (I32,), (sequences,), states, layouts=CONTIGUOUS)
    return Drawn([*sources, ids], {"snapshots": snapshots})


@recipe(ops.SolveTri)
def solve_tri(c: Draw, cls: type[Op]) -> Drawn:
    """Lower triangular matrices that are far from singular; what lies above the diagonal is anything."""
    kinds = c.type("a", (F32,)), c.type("b", (F32,))
    n, k = c.row("n", kinds[0]), c.row("k", kinds[1])
    batches = c.extent("n2", FEW), c.extent("n3", BATCHES)
    random = np.random.default_rng(c.number("a.numbers"))
    matrices = random.standard_normal((*batches[::-1], n, n)) / max(1, n)
    diagonal = np.arange(n)
    matrices[..., diagonal, diagonal] = random.uniform(1, 2, (*batches[::-1], n)) * random.choice([-1, 1])
    whole = np.iinfo(np.int8)  # of an integer type they are integers
    values = matrices if kinds[0] in NOT_WHOLE else np.clip(np.rint(matrices), whole.min, whole.max)
    a = Source("a", kinds[0], (n, n, *batches), c.layout("a", CONTIGUOUS), "normal", values)
    return Drawn([a, c.source("b", kinds[1], (k, n, *batches), CONTIGUOUS, MODERATE)])


@recipe(ops.Set, ops.Acc)
def window(c: Draw, cls: type[Op]) -> Drawn:
    """A window of a at any place in it."""
    kind = c.type(c.target[0], EVERY if cls is ops.Set else NARROW)
    ne = c.shape(kind)
    unit = (kind.block_size, 1, 1, 1)
    inner = [max(0, n - c.pick(f"less{i}", (0, 1, 2)) * unit[i]) for i, n in enumerate(ne)]
    strides = (ne[0], ne[0] * ne[1], ne[0] * ne[1] * ne[2])
    first = [c.pick(f"first{i}", (0, 1)) * (n - m) for i, (n, m) in enumerate(zip(ne, inner, strict=True))]
    offset = sum(start * stride for start, stride in zip(first, (1, *strides), strict=True))
    if 0 in ne or 0 in inner:
        c.promised = False
    values = ANY_VALUES if cls is ops.Set else SUMMED
    a, b = c.source("a", kind, ne, CONTIGUOUS, values), c.source("b", kind, inner, ANY, values)
    return Drawn([a, b], {"strides": strides, "offset": offset})


@recipe(ops.OptStepAdamw, ops.OptStepSgd)
def step(c: Draw, cls: type[Op]) -> Drawn:
    """A step of an optimiser."""
    names = cls.sources[:-1]
    types = {name: c.type(name, (F32,)) for name in cls.sources}
    ne = c.shape(*(types[name] for name in names))
    straight = tuple(layout for layout in ONCE if layout != "transposed")
    sources: list[Source | None] = [
        c.source(
            name, types[name], ne, straight if name != "grad" else ROWS, ("positive",) if name == "v" else MODERATE
        )
        for name in names
    ]
    alpha, wd = c.pick("alpha", (1e-3, 0.5, 0.0)), c.pick("wd", (0.0, 0.01))
    numbers = [alpha, wd] if len(names) == 2 else [alpha, 0.9, 0.999, c.pick("eps", (1e-8, 0.1)), wd, 5.0, 20.0]
    kind = types["params"]
    count = -(-len(numbers) // kind.block_size) * kind.block_size
    c.promised &= count == len(numbers)
    values = np.resize(numbers if kind in NOT_WHOLE else [0, 1], count)
    sources.append(Source("params", kind, (count, 1, 1, 1), c.layout("params", CONTIGUOUS), "normal", values))
    return Drawn(sources)


def _convertible(c: Draw, from_name: str, to_name: str) -> tuple[Type, Type]:
    """Two types, one of them the one that the case aims at; often the same."""
    aimed = from_name if c.aims_at(from_name) else to_name
    other = to_name if aimed == from_name else from_name
    first = c.type(aimed, EVERY)
    same = c.pick("same type", (True, False))
    second = first if same else c.type(other, (*NARROW, *DECODED, I32))
    if first is not second:
        c.promised = False  # which conversions there are is up to the device
    return (first, second) if aimed == from_name else (second, first)


@recipe(ops.Cpy)
def cpy(c: Draw, cls: type[Op]) -> Drawn:
    x, dst = _convertible(c, "x", "dst")
    ne = c.shape(x, dst)
    other = _regrouped(c, ne, x, dst)
    kinds = ANY_VALUES if x is dst else _converted(x, dst)
    return Drawn([c.source("x", x, ne, ANY, kinds),
                  c.source("dst", dst, other, ONCE, ANY_VALUES)])  # fmt: skip


def _converted(x: Type, y: Type) -> Sequence[str]:
    """Values that have one answer in the other type."""
    if y in WHOLE and y is not I32:
        return ("integers", "constant")
    return ANY_VALUES


def _regrouped(c: Draw, ne: Ne, *types: Type) -> Ne:
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


@recipe(ops.Cont)
def cont(c: Draw, cls: type[Op]) -> Drawn:
    kind = c.type("x", EVERY)
    ne = c.shape(kind)
    other = _regrouped(c, ne, kind)
    x = c.source("x", kind, ne, ANY, ANY_VALUES)
    return Drawn([x], {"ne": () if other == ne else other})


@recipe(ops.Dup)
def dup(c: Draw, cls: type[Op]) -> Drawn:
    kind, to = _convertible(c, "x", "to")
    ne = c.shape(kind, to)
    kinds = ANY_VALUES if kind is to else _converted(kind, to)
    x = c.source("x", kind, ne, ANY, kinds)
    return Drawn([x], {"type": "" if kind is to else to.name})


@recipe(ops.Concat)
def concat(c: Draw, cls: type[Op]) -> Drawn:
    kind = c.type(c.target[0], EVERY)
    dim = c.pick("dim", (0, 1, 2, 3))
    ne_a, ne_b = list(c.shape(kind)), list(c.shape(kind, what="m"))
    for i in range(4):
        if i != dim:
            ne_b[i] = ne_a[i]
    return Drawn(
        [c.source("a", kind, ne_a, ANY, ANY_VALUES), c.source("b", kind, ne_b, ANY, ANY_VALUES)], {"dim": dim}
    )


@recipe(ops.Repeat)
def repeat(c: Draw, cls: type[Op]) -> Drawn:
    kind = c.type("x", EVERY)
    ne = c.shape(kind)
    times = [c.pick(f"times{i}", (1, 2, 3), (3, 1, 1)) for i in range(4)]
    x = c.source("x", kind, ne, ANY, ANY_VALUES)
    return Drawn([x], {"ne": tuple(n * t for n, t in zip(ne, times, strict=True))})


@recipe(ops.Reshape)
def reshape(c: Draw, cls: type[Op]) -> Drawn:
    kind = c.type("x", EVERY)
    ne = c.shape(kind)
    return Drawn([c.source("x", kind, ne, CONTIGUOUS, ANY_VALUES)], {"ne": _regrouped(c, ne, kind)})


@recipe(ops.View)
def view(c: Draw, cls: type[Op]) -> Drawn:
    kind = c.type("x", EVERY)
    ne = c.shape(kind)
    x = c.source("x", kind, ne, CONTIGUOUS, ANY_VALUES)
    inner = tuple(max(0, n - c.pick(f"less{i}", (0, 1)) * (kind.block_size if i == 0 else 1)) for i, n in enumerate(ne))
    row = kind.row_bytes(ne[0])
    start = sum((n - m) * s for n, m, s in zip(ne[1:], inner[1:], (row, row * ne[1], row * ne[1] * ne[2]), strict=True))
    beyond = c.pick("beyond", (0, 1, 1000, 1 << 40), (12, 1, 1, 1))
    if beyond or 0 in inner:
        c.promised = False
    offset = 0 if 0 in inner else start
    return Drawn([x], {"ne": inner, "nb": (row, row * ne[1], row * ne[1] * ne[2]), "offset": offset + beyond})


@recipe(ops.Permute)
def permute(c: Draw, cls: type[Op]) -> Drawn:
    kind = c.type("x", EVERY)
    axes = ((0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2), (0, 3, 2, 1))
    moved = ((1, 0, 2, 3), (2, 1, 0, 3), (3, 1, 2, 0), (1, 2, 3, 0))
    x = c.source("x", kind, c.shape(kind), ANY, ANY_VALUES)
    return Drawn([x], {"axes": c.pick("axes", axes if kind.block_size > 1 else (*axes, *moved))})


@recipe(ops.Transpose)
def transpose(c: Draw, cls: type[Op]) -> Drawn:
    kind = c.type("x", tuple(t for t in EVERY if t.block_size == 1))
    return Drawn([c.source("x", kind, c.shape(kind), ANY, ANY_VALUES)])

