"""Cases of ops that look at whole rows: norms, softmax, sums, means, maxima, sorting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggplug.ops.attention import SoftMax
from ggplug.ops.base import Array, Op
from ggplug.ops.norms import GroupNorm, L2Norm, Norm, RmsNorm
from ggplug.ops.reduce import Argmax, CountEqual, Cumsum, Mean, Sum, SumRows
from ggplug.ops.sort import Argsort, TopK
from ggplug.ops.views import view
from ggplug.types import F16, F32, I32, KERNEL_FLOATS
from ggplug_testing.cases.case import LAYOUTS, LENGTHS, Case, Leafs, generates, node, spell

_LONG = (2048, 4099, 8209)


def _case(cls: type[Op], label: str, type: Any, ne: tuple[int, ...], parameters: dict[str, Any], **leaf: Any) -> Case:
    return Case(cls.name, label, lambda leafs: node(cls, leafs.tensor(type, *ne, **leaf), **parameters))


def _shifted(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Rows with a mean: sums that do not come to nothing."""
    return random.standard_normal(shape) + 1.5


def _far(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Rows around 3000: of their squares float32 keeps no digit of the variance."""
    return random.standard_normal(shape) + 3000


@generates(Norm, RmsNorm, L2Norm)
def norm_cases(cls: type[Op]) -> Iterator[Case]:
    """Row lengths, eps from none to large, types, layouts, rows that are constant or zero."""
    for length in (*LENGTHS[1:], *_LONG):
        yield _case(cls, f"rows of {length}", F32, (length, 3), {"eps": 1e-6})
    for eps in (0.0, 1e-12, 1e-5, 0.1, 10.0):
        yield _case(cls, f"eps {eps}", F32, (64, 5), {"eps": eps})
    for type in KERNEL_FLOATS:
        for layout in LAYOUTS:
            ne = (40, 5, 4, 3)
            yield _case(cls, spell(type, ne, layout), type, ne, {"eps": 1e-5}, layout=layout)
    yield _case(cls, "rows of zeros", F32, (33, 2), {"eps": 1e-6}, values=lambda random, shape: np.zeros(shape))
    yield _case(cls, "rows with a mean", F32, (200, 4), {"eps": 1e-6}, values=_shifted)
    for length in (65, 1000):
        yield _case(cls, f"rows of {length} with mean 3000", F32, (length, 4), {"eps": 1e-6}, values=_far)
    yield _case(cls, "large values", F32, (65, 4), {"eps": 1e-6}, low=-1e8, high=1e8)
    yield _case(cls, "many rows", F32, (8, 900), {"eps": 1e-6})


@generates(SumRows, Mean, Sum)
def sum_cases(cls: type[Op]) -> Iterator[Case]:
    """Row lengths, types, layouts."""
    for length in (*LENGTHS, *_LONG):
        yield _case(cls, f"rows of {length}", F32, (length, 3), {}, values=_shifted)
    for type in KERNEL_FLOATS:
        for layout in LAYOUTS:
            ne = (23, 5, 4, 3)
            yield _case(cls, spell(type, ne, layout), type, ne, {}, layout=layout, values=_shifted)
    yield _case(cls, "rows with mean 3000", F32, (1000, 4), {}, values=_far)
    yield _case(cls, "many rows", F32, (5, 800), {}, values=_shifted)


@generates(Cumsum)
def cumsum_cases(cls: type[Op]) -> Iterator[Case]:
    """Row lengths, types, layouts."""
    for length in (*LENGTHS, *_LONG):
        yield _case(cls, f"rows of {length}", F32, (length, 3), {}, values=_shifted)
    for type in KERNEL_FLOATS:
        for layout in LAYOUTS:
            yield _case(cls, spell(type, (23, 5, 4, 3), layout), type, (23, 5, 4, 3), {}, layout=layout)
    yield _case(cls, "many rows", F32, (5, 800), {})


@generates(CountEqual)
def count_equal_cases(cls: type[Op]) -> Iterator[Case]:
    """Lengths, layouts of both sides, all equal, none."""

    def case(label: str, ne: tuple[int, ...], layouts: tuple[Any, Any] = ("packed", "packed"), high: int = 3) -> Case:
        def make(leafs: Leafs) -> Any:
            a = leafs.tensor(I32, *ne, low=0, high=high, layout=layouts[0])
            return node(cls, a, leafs.tensor(I32, *ne, low=0, high=high, layout=layouts[1]))

        return Case(cls.name, label, make)

    for length in (*LENGTHS, 9000):
        yield case(f"{length} elements", (length,))
    for layout in LAYOUTS:
        yield case(f"a {layout}", (13, 5, 3, 2), (layout, "packed"))
        yield case(f"both {layout}", (13, 5, 3, 2), (layout, layout))
    yield case("all equal", (40, 7), high=1)
    yield Case(
        cls.name, "none equal",
        lambda leafs: node(cls, leafs.tensor(I32, 50, low=-9, high=0), leafs.tensor(I32, 50, low=1, high=9)),
    )  # fmt: skip


@generates(GroupNorm)
def group_norm_cases(cls: type[Op]) -> Iterator[Case]:
    """Groups that divide the channels and groups that do not, more groups than channels, types, layouts, batches."""
    for channels, groups in ((8, 1), (8, 2), (8, 8), (10, 4), (7, 3), (3, 5), (1, 1)):
        label = f"{channels} channels in {groups} groups"
        yield _case(cls, label, F32, (9, 5, channels, 2), {"n_groups": groups, "eps": 1e-5}, values=_shifted)
    for type in KERNEL_FLOATS:
        for layout in LAYOUTS:
            ne, chosen = (12, 5, 6, 2), {"n_groups": 3, "eps": 1e-5}
            yield _case(cls, spell(type, ne, layout), type, ne, chosen, layout=layout, values=_shifted)
    yield _case(cls, "large groups", F32, (64, 40, 4), {"n_groups": 2, "eps": 1e-6}, values=_shifted)


@generates(TopK)
def top_k_cases(cls: type[Op]) -> Iterator[Case]:
    """One, some and all elements of rows of many lengths, types, layouts, equal elements."""
    for length in (*LENGTHS, *_LONG):
        for k in sorted({1, min(7, length), length}):
            yield _case(cls, f"{k} of rows of {length}", F32, (length, 3), {"k": k})
    for type in KERNEL_FLOATS:
        for layout in LAYOUTS:
            yield _case(cls, spell(type, (21, 4, 3, 2), layout), type, (21, 4, 3, 2), {"k": 5}, layout=layout)
    yield _case(cls, "equal elements", F32, (70, 5), {"k": 9}, values=_few_values)


@generates(Argmax)
def argmax_cases(cls: type[Op]) -> Iterator[Case]:
    """Row lengths, types, layouts of a matrix, equal elements, negative rows."""
    for length in (*LENGTHS, *_LONG):
        yield _case(cls, f"rows of {length}", F32, (length, 4), {})
    for type in KERNEL_FLOATS:
        for layout in LAYOUTS:
            yield _case(cls, spell(type, (29, 6), layout), type, (29, 6), {}, layout=layout)
    yield _case(cls, "equal elements", F32, (100, 5), {}, values=_few_values)
    yield _case(cls, "negative rows", F32, (50, 3), {}, low=-9, high=-1)


@generates(Argsort)
def argsort_cases(cls: type[Op]) -> Iterator[Case]:
    """Both orders: row lengths on both sides of powers of two, types, layouts, equal elements."""
    for order in (0, 1):
        for length in (*LENGTHS, *_LONG):
            yield _case(cls, f"rows of {length} order {order}", F32, (length, 3), {"order": order})
        for type in KERNEL_FLOATS:
            for layout in LAYOUTS:
                ne = (21, 4, 3, 2)
                yield _case(cls, f"{spell(type, ne, layout)} order {order}", type, ne, {"order": order}, layout=layout)
        yield _case(cls, f"equal elements order {order}", F32, (70, 5), {"order": order}, values=_few_values)


def _few_values(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.integers(-3, 4, shape).astype(np.float64)


def _largest(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.where(random.uniform(size=shape) < 0.2, np.finfo(np.float32).max, 0.0)


@generates(SoftMax)
def soft_max_cases(cls: type[Op]) -> Iterator[Case]:
    """With and without mask, sinks, ALiBi; masks that hide whole blocks, have more rows, repeat over heads."""

    def case(
        label: str, ne: tuple[int, ...], *, type: Any = F32, mask: tuple[int, ...] | None = None, mask_type: Any = F32,
        hidden: float = 0.3, sinks: bool = False, values: Any = None, **parameters: Any,
    ) -> Case:  # fmt: skip
        def hide(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
            drawn = random.standard_normal(shape)
            # The first column stays visible: of a row without any, everything is NaN.
            drawn[..., 1:][random.uniform(size=drawn[..., 1:].shape) < hidden] = -np.inf
            return drawn

        def make(leafs: Leafs) -> Any:
            x = leafs.tensor(type, *ne, values=values)
            shown = None if mask is None else leafs.tensor(mask_type, *mask, values=hide)
            each = leafs.tensor(F32, ne[2] if len(ne) > 2 else 1) if sinks else None
            return node(cls, x, shown, each, **parameters)

        return Case(cls.name, label, make)

    def one_row_each(leafs: Leafs, sinks: bool) -> Any:
        # Contiguous, though the stride of the dimension of one row is that of another one.
        x = view(leafs.tensor(F32, 19, 3, 2), 19, 1, 3, 2, nb=(3 * 76, 76, 3 * 76))
        return node(cls, x, None, leafs.tensor(F32, 3) if sinks else None)

    for length in (*LENGTHS, *_LONG):
        yield case(f"rows of {length}", (length, 3))
    yield Case(cls.name, "one row a head", lambda leafs: one_row_each(leafs, False))
    yield Case(cls.name, "one row a head, sinks", lambda leafs: one_row_each(leafs, True))
    for type in KERNEL_FLOATS:
        yield case(f"{type.name} scaled", (37, 5, 4, 3), type=type, scale=0.125)
    for mask_type in (F32, F16):
        name = mask_type.name
        for length in (1, 16, 17, 33, 64, 100, 257):
            yield case(f"{name} mask of {length}", (length, 5, 4), mask=(length, 5), mask_type=mask_type, scale=0.5)
        yield case(f"{name} mask with more rows", (32, 5, 4), mask=(32, 64), mask_type=mask_type)
        yield case(f"{name} mask for each head and batch", (32, 5, 4, 2), mask=(32, 5, 4, 2), mask_type=mask_type)
        yield case(f"{name} mask for every other head", (32, 5, 4, 2), mask=(32, 5, 2, 1), mask_type=mask_type)
        yield case(f"{name} mask for every other batch", (32, 5, 2, 4), mask=(32, 5, 1, 2), mask_type=mask_type)
        for heads in (1, 2, 3, 8, 12):
            yield case(
                f"{name} ALiBi, {heads} heads",
                (24, 3, heads),
                mask=(24, 3),
                mask_type=mask_type,
                hidden=0,
                max_bias=8.0,
            )
        yield case(f"{name} mask hides most", (96, 4, 2), mask=(96, 4), mask_type=mask_type, hidden=0.97)
        yield case(f"{name} mask and sinks", (48, 5, 3, 2), mask=(48, 5), mask_type=mask_type, sinks=True, scale=0.25)
    yield case("sinks", (48, 5, 6), sinks=True)
    yield case("ALiBi, slopes that vanish", (40, 6, 2), mask=(40, 6), max_bias=600.0)
    yield case("everything", (40, 6, 4, 2), mask=(40, 8, 2, 1), mask_type=F16, sinks=True, scale=0.3, max_bias=4.0)
    yield case("logits around 3000", (129, 4), values=_far)
    yield case("huge logits", (33, 4), values=lambda random, shape: random.uniform(-3e4, 3e4, shape))
    yield case("the largest logits", (33, 4), values=_largest)
    yield case("all logits far below zero", (33, 4), values=lambda random, shape: random.uniform(-3e4, -29990, shape))
