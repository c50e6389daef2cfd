"""How loops over strided tensors are planned: every element once, at its place, in as few and long rows as can be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("ggplug_cpu")

from ggplug.tensor import Extents
from ggplug_cpu.choosing.nest import PIECE, Nest, Shape, element_nest, row_nest


def visited(nest: Nest) -> list[tuple[int, ...]]:
    """Offsets of each element in each operand, in the order of the loops."""
    places = []
    outer = [range(axis.extent) for axis in reversed(nest.outer)]
    for row, indices in enumerate(itertools.product(*outer)):
        starts = [
            sum(i * axis.strides[k] for i, axis in zip(indices, reversed(nest.outer), strict=True))
            for k in range(len(nest.inner.strides))
        ]
        for i in range(nest.last if row == nest.rows - 1 else nest.inner.extent):
            places.append(tuple(s + i * t for s, t in zip(starts, nest.inner.strides, strict=True)))
    return places


def direct(ne: Extents, operands: list[Shape]) -> list[tuple[int, ...]]:
    """The same by definition: index modulo extent, times stride."""
    return [
        tuple(sum(i % n * b for i, n, b in zip(index, shape.ne, shape.nb, strict=True)) for shape in operands)
        for index in ((i0, i1, i2, i3) for i3, i2, i1, i0 in itertools.product(*(range(n) for n in reversed(ne))))
    ]


def contiguous(ne: Extents, size: int = 4) -> Extents:
    nb = [size]
    for n in ne[:3]:
        nb.append(nb[-1] * n)
    return (nb[0], nb[1], nb[2], nb[3])


@st.composite
def problems(draw: st.DrawFn) -> tuple[Extents, list[Shape]]:
    """A contiguous result, a permuted or padded source of its extents, and one that repeats."""
    part = tuple(draw(st.integers(1, 4)) for _ in range(4))
    ne = tuple(n * draw(st.sampled_from([1, 1, 2, 3])) for n in part)
    order = draw(st.permutations(range(4)))
    strides, step = [0] * 4, 4
    for axis in order:
        strides[axis] = step
        step *= ne[axis] + draw(st.sampled_from([0, 0, 1]))
    a = Shape(ne, tuple(strides))  # type: ignore[arg-type]
    b = Shape(part, contiguous(part))  # type: ignore[arg-type]
    return ne, [Shape(ne, contiguous(ne)), a, b]  # type: ignore[arg-type, return-value]


@given(problems())
@settings(deadline=None)  # other work on the machine is no fault
def test_every_element_is_visited_once_at_its_place(problem: tuple[Extents, list[Shape]]) -> None:
    ne, operands = problem
    nest = element_nest(ne, *operands)
    assert visited(nest) == direct(ne, operands)
    assert nest.elements == int(np.prod(ne))


@given(problems())
@settings(deadline=None)  # other work on the machine is no fault
def test_rows_stay_rows(problem: tuple[Extents, list[Shape]]) -> None:
    ne, (y, a, _) = problem
    nest = row_nest(ne, y, a)
    assert nest.inner.extent == ne[0]
    assert visited(nest) == direct(ne, [y, a])


def test_contiguous_tensors_are_one_row_and_a_bias_makes_two_axes() -> None:
    ne = (8, 7, 6, 5)
    whole, bias = Shape(ne, contiguous(ne)), Shape((8, 1, 1, 1), contiguous((8, 1, 1, 1)))
    assert element_nest(ne, whole, whole).rows == 1
    with_bias = element_nest(ne, whole, bias)
    assert (with_bias.inner.extent, with_bias.rows, len(with_bias.outer)) == (8, 210, 1)


@pytest.mark.parametrize("n", [PIECE, PIECE + 1, 3 * PIECE - 1, 3 * PIECE])
def test_a_long_row_is_cut_at_fixed_places(n: int) -> None:
    ne = (n, 1, 1, 1)
    nest = element_nest(ne, Shape(ne, contiguous(ne)))
    assert nest.rows == -(-n // PIECE)
    assert [place for (place,) in visited(nest)] == list(range(0, 4 * n, 4))


def test_blocks_are_merged_by_their_rows() -> None:
    ne, nb = (64, 6, 1, 1), (34, 68, 408, 408)
    plain = Shape(ne, contiguous(ne))
    assert element_nest(ne, plain, Shape(ne, nb, 32)).inner.extent == 384
    spaced = (34, 102, 612, 612)
    assert element_nest(ne, plain, Shape(ne, spaced, 32)).inner.extent == 64
