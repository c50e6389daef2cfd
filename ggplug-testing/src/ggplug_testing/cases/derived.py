"""Cases of ops that bring no generator: sources of equal shape, as far as the op's own shape rule takes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ggplug.ops.base import Op
from ggplug.tensor import Tensor
from ggplug.types import KERNEL_FLOATS
from ggplug_testing.cases.case import LAYOUTS, Case, Leafs, node
from ggplug_testing.cases.making import spell, taken

_SHAPES = ((16,), (33, 7), (64, 5, 4, 3), (1, 1), (257, 2), (32, 32), (8, 0))


def derived_cases(cls: type[Op]) -> Iterator[Case]:
    """Types x shapes x layouts that ``cls.result`` accepts, with and without each optional source.

    None at all for an op with parameters that have no default, or with sources that must differ in shape or type.
    """
    if cls.is_view:
        return
    for type in KERNEL_FLOATS:
        for ne in _SHAPES:
            for layout in LAYOUTS:
                for present in _choices(cls):
                    case = _case(cls, type, ne, layout, present)
                    if isinstance(taken(case), Tensor):
                        yield case


def why_none(cls: type[Op]) -> str:
    """Why an op takes none of the sources that :func:`derived_cases` offers, by the plainest of them."""
    if cls.is_view:
        return "it is a view, which computes nothing"
    case = _case(cls, KERNEL_FLOATS[0], _SHAPES[1], LAYOUTS[0], next(_choices(cls)))
    refusal = taken(case)
    return f"for {case.label}: {refusal}" if isinstance(refusal, Exception) else "its generators give none"


def _choices(cls: type[Op]) -> Iterator[tuple[bool, ...]]:
    """Which sources are there: all, and all but the optional ones."""
    yield tuple(True for _ in cls.sources)
    if cls.optional:
        yield tuple(name not in cls.optional for name in cls.sources)


def _case(cls: type[Op], type: Any, ne: tuple[int, ...], layout: Any, present: tuple[bool, ...]) -> Case:
    def make(leafs: Leafs) -> Tensor:
        sources = [leafs.tensor(type, *ne, layout=layout, low=0.1, high=3) if there else None for there in present]
        return node(cls, *sources)

    absent = "".join(f" without {name}" for name, there in zip(cls.sources, present, strict=True) if not there)
    return Case(cls.name, spell(type, ne, layout) + absent, make)
