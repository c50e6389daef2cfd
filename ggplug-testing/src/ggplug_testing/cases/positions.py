"""Cases of ops that move elements, keep some of them, or make them from their position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ggplug.ops.base import Op
from ggplug.ops.copy import Dup
from ggplug.ops.generated import Arange, TimestepEmbedding
from ggplug.ops.padding import Pad, PadReflect1d, Roll
from ggplug.ops.triangles import Diag, DiagMaskInf, DiagMaskZero, SolveTri, Tri
from ggplug.ops.windows import Acc, Set
from ggplug.tensor import Tensor
from ggplug.types import F32, I32, KERNEL_FLOATS, Q8_0
from ggplug_testing.cases.case import LAYOUTS, LENGTHS, Case, Leafs, generates, node, spell


def _moved(cls: type[Op], label: str, type: Any, ne: tuple[int, ...], layout: Any, /, **parameters: Any) -> Case:
    return Case(cls.name, label, lambda leafs: node(cls, leafs.tensor(type, *ne, layout=layout), **parameters))


_PADDINGS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "behind a row": ((0, 0, 0, 0), (5, 0, 0, 0)),
    "before a row": ((3, 0, 0, 0), (0, 0, 0, 0)),
    "around all": ((1, 2, 0, 3), (2, 1, 1, 0)),
    "nothing": ((0, 0, 0, 0), (0, 0, 0, 0)),
    "more than there is": ((20, 7, 0, 0), (0, 12, 0, 0)),
}


@generates(Pad)
def pad_cases(cls: type[Op]) -> Iterator[Case]:
    """Zeros and what lies on the other side, on each side of each dimension; types and layouts."""
    for circular in (False, True):
        for what, (before, after) in _PADDINGS.items():
            chosen: dict[str, Any] = {"before": before, "after": after, "circular": circular}
            shown = f"{what}{', circular' if circular else ''}"
            yield _moved(cls, shown, F32, (13, 5, 2, 2), "packed", **chosen)
        chosen = {"before": (1, 0, 2, 0), "after": (4, 3, 0, 0), "circular": circular}
        for type in (*KERNEL_FLOATS, I32):
            for layout in LAYOUTS:
                ne = (11, 4, 3)
                label = f"{spell(type, ne, layout)}{' circular' if circular else ''}"
                yield _moved(cls, label, type, ne, layout, **chosen)


@generates(PadReflect1d)
def pad_reflect_cases(cls: type[Op]) -> Iterator[Case]:
    """Both sides, one, none; row lengths, types, layouts."""
    for length in LENGTHS[1:]:
        sides = {"p0": min(4, length - 1), "p1": length // 2}
        yield _moved(cls, f"rows of {length}", F32, (length, 3), "packed", **sides)
    for type in (*KERNEL_FLOATS, I32):
        for layout in LAYOUTS:
            ne = (19, 3, 2)
            yield _moved(cls, spell(type, ne, layout), type, ne, layout, p0=18, p1=1)
    yield _moved(cls, "nothing", F32, (9, 2), "packed", p0=0, p1=0)


@generates(Roll)
def roll_cases(cls: type[Op]) -> Iterator[Case]:
    """Shifts of either sign along each dimension, types, layouts."""
    for dim in range(4):
        for shift in (1, -2):
            shifts = tuple(shift if i == dim else 0 for i in range(4))
            yield _moved(cls, f"by {shift} along {dim}", F32, (17, 4, 3, 5), "packed", shifts=shifts)
    yield _moved(cls, "by more than there is", F32, (7, 3), "packed", shifts=(-16, 10, 1, 0))
    for type in (*KERNEL_FLOATS, I32):
        for layout in LAYOUTS:
            ne = (33, 4, 3, 2)
            yield _moved(cls, spell(type, ne, layout), type, ne, layout, shifts=(5, -1, 2, 1))


@generates(Tri, DiagMaskInf, DiagMaskZero)
def band_cases(cls: type[Op]) -> Iterator[Case]:
    """Every kind, square matrices and others, types and layouts."""
    kinds: list[dict[str, Any]]
    if cls is Tri:
        kinds, shapes = [{"type": kind} for kind in range(4)], [(n, n) for n in (1, 2, 16, 33, 129)]
    else:
        kinds = [{"n_past": n} for n in (0, 5, 100)]
        shapes = [(1, 1), (7, 16), (33, 5), (64, 64), (129, 3)]
    for kind in kinds:
        what = "".join(f" {name} {value}" for name, value in kind.items())
        for shape in shapes:
            yield _moved(cls, f"{spell(F32, shape)}{what}", F32, shape, "packed", **kind)
    for type in KERNEL_FLOATS:
        for layout in LAYOUTS:
            ne = (17, 17, 3, 2)
            yield _moved(cls, spell(type, ne, layout), type, ne, layout, **kinds[1])


@generates(Diag)
def diag_cases(cls: type[Op]) -> Iterator[Case]:
    """Lengths, types, layouts."""
    for length in (1, 2, 16, 33, 129):
        yield _moved(cls, spell(F32, (length,)), F32, (length,), "packed")
    for type in KERNEL_FLOATS:
        for layout in LAYOUTS:
            ne = (21, 1, 3, 2)
            yield _moved(cls, spell(type, ne, layout), type, ne, layout)


@generates(SolveTri)
def solve_tri_cases(cls: type[Op]) -> Iterator[Case]:
    """Systems of one equation and of many, one right-hand side and many, batches; what lies above is not looked at."""

    def case(label: str, n: int, k: int, *batches: int) -> Case:
        def make(leafs: Leafs) -> Any:
            a = leafs.random.uniform(-0.5, 0.5, (*batches[::-1], n, n)) / max(1, n) ** 0.5
            a[..., range(n), range(n)] = leafs.random.uniform(1, 2, (*batches[::-1], n))
            return node(cls, leafs.array(F32, a), leafs.tensor(F32, k, n, *batches))

        return Case(cls.name, label, make)

    for n, k in ((1, 1), (2, 5), (9, 1), (16, 16), (33, 17), (64, 3), (40, 70)):
        yield case(f"{n} equations, {k} right-hand sides", n, k)
    yield case("batches", 11, 5, 4, 3)


@generates(Set, Acc)
def window_cases(cls: type[Op]) -> Iterator[Case]:
    """Windows of every rank, of rows apart and of everything, into leafs and into results; types and layouts of b."""

    def case(
        label: str, a: tuple[int, ...], b: tuple[int, ...], strides: tuple[int, ...], offset: int = 0, *,
        type: Any = F32, layout: Any = "packed", computed: bool = False,
    ) -> Case:  # fmt: skip
        def make(leafs: Leafs) -> Any:
            into = leafs.tensor(type, *a)
            if computed:
                into = node(Dup, into)
            return node(cls, into, leafs.tensor(type, *b, layout=layout), strides=strides, offset=offset)

        return Case(cls.name, label, make)

    whole = (12, 60, 240)
    for length in (1, 7, 12):
        yield case(f"{length} of a row", (12, 5, 4), (length,), whole, 12 * 7 + 12 - length)
    yield case("a part of rows", (12, 5, 4, 3), (6, 5, 4, 3), whole, 3)
    yield case("a part of everything", (12, 5, 4, 3), (7, 3, 2, 2), whole, 5 + 12 + 60)
    yield case("everything", (12, 5, 4, 3), (12, 5, 4, 3), whole)
    yield case("rows that are columns", (12, 5), (5, 2), (30, 60, 60), 0)
    yield case("into a result", (12, 5, 4), (6, 5, 2), whole, 6, computed=True)
    for type in KERNEL_FLOATS if cls is Acc else (*KERNEL_FLOATS, I32, Q8_0):
        rows = (96, 5, 3)
        for layout in LAYOUTS if type is not Q8_0 else LAYOUTS[:5]:
            label = f"{type.name}, b {layout}"
            yield case(label, rows, (32, 3, 2), (96, 480, 1440), 32 + 96, type=type, layout=layout)
    yield case("many rows", (33, 700), (30, 600), (33, 33, 33), 2)
    yield Case(cls.name, "twice, one after the other", lambda leafs: _twice(cls, leafs))


def _twice(cls: type[Op], leafs: Leafs) -> Tensor:
    first = node(cls, leafs.tensor(F32, 32, 6), leafs.tensor(F32, 20, 4), strides=(32, 32, 32), offset=4)
    return node(cls, first, leafs.tensor(F32, 20, 4), strides=(32, 32, 32), offset=40)


@generates(Arange)
def arange_cases(cls: type[Op]) -> Iterator[Case]:
    """Lengths, steps that are no whole numbers, ranges that begin below zero."""

    def case(start: float, stop: float, step: float) -> Case:
        def make(leafs: Leafs) -> Any:
            return node(cls, start=start, stop=stop, step=step)

        return Case(cls.name, f"{start} to {stop} by {step}", make)

    for length in (*LENGTHS, 9000):
        yield case(0.0, float(length), 1.0)
    for start, stop, step in ((-5.0, 5.0, 0.25), (0.5, 100.0, 3.0), (-1.0, -0.5, 2.0)):
        yield case(start, stop, step)


@generates(TimestepEmbedding)
def timestep_cases(cls: type[Op]) -> Iterator[Case]:
    """Even and odd lengths, periods, time steps that are no whole numbers, and many of them."""

    def case(label: str, count: int, dim: int, period: int, high: float) -> Case:
        def make(leafs: Leafs) -> Any:
            return node(cls, leafs.tensor(F32, count, low=0, high=high), dim=dim, max_period=period)

        return Case(cls.name, label, make)

    for dim in (1, 2, 3, 32, 65, 320):
        yield case(f"rows of {dim}", 3, dim, 10000, 100.0)
    yield case("another period", 5, 64, 100, 10.0)
    yield case("many time steps", 300, 16, 10000, 1.0)
