"""Parameters of kernels: what a declaration makes of values is what the kernel reads."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("ggplug_cpu")

from ggplug.graph import Graph
from ggplug.nodes.groups import Group
from ggplug_cpu import prebuild, simd
from ggplug_cpu.choosing.entries import FAULTS, RESULT, Entries
from ggplug_cpu.choosing.nest import Shape, element_nest, words_of
from ggplug_cpu.compiler import Body, device_function, kernel
from ggplug_cpu.context import load_word, store_word
from ggplug_cpu.device import CpuDevice
from ggplug_cpu.matching import match
from ggplug_cpu.parameters import (
    STRIDES,
    Parameters,
    Place,
    Ref,
    Word,
    Words,
    destination,
    integer,
    integers,
    part,
    real,
    reals,
    source,
)
from ggplug_cpu.parts.nest import Rows, destination_row, over_rows, source_row
from ggplug_cpu.tape import WORKSPACE, Entry, Tape
from ggplug_cpu.team import Team


class Base(Parameters):
    y = destination()
    count = integer()
    weights = reals()


class Declared(Base):
    x = source(STRIDES)
    factor = real()
    order = integers()


@kernel
def report() -> Body:
    """Everything that is declared, one word after the other."""

    def body(ctx: int, p: Declared) -> None:
        y, x = p.y.address, p.x
        store_word(y, p.count)
        store_word(y + 8, x.address)
        store_word(y + 16, x.nb0)
        store_word(y + 24, x.nb3)
        simd.store_f64(y + 32, p.factor)
        _lists(p, y + 40)
        store_word(y + 88, x.row(1, 2, 3))

    return body


@device_function
def _lists(p: Declared, y: int) -> None:
    for i in range(p.count):
        simd.store_f64(y + 8 * i, p.weights[i])
        store_word(y + 24 + 8 * i, p.order[i])


def values(**changes: object) -> dict[str, object]:
    known: dict[str, object] = {
        "y": Place(Ref(0)),
        "count": 3,
        "weights": [0.5, 1.5, 2.5],
        "x": Place(Ref(1, 8), (4, 40, 400, 4000)),
        "factor": 0.25,
        "order": [7, 8, 9],
    }
    return {**known, **changes}


def test_a_kernel_reads_what_was_declared_and_no_more_than_that() -> None:
    out = np.zeros(12, np.int64)
    entry = Entry(report(), Declared.words(**values()), tasks=1)
    with Team(n_threads=1) as team:
        team.run(Tape([entry], n_slots=2).bind([out.ctypes.data, 1000]))
    assert out[:4].tolist() == [3, 1008, 4, 4000]
    assert out[4:8].view(np.float64).tolist() == [0.25, 0.5, 1.5, 2.5]
    assert out[8:].tolist() == [7, 8, 9, 1008 + 40 + 2 * 400 + 3 * 4000]


class Both(Parameters):
    """Those of two steps."""

    first = part(Base)
    second = part(Base)
    y = destination()


@kernel
def difference() -> Body:
    """The counts of both steps, whose words follow."""

    def body(ctx: int, p: Both) -> None:
        second = Base(int(p) + 8 * load_word(int(p) + 8))
        store_word(p.y.address, p.first.count - second.count)
        store_word(p.y.address + 8, p.second.count)

    return body


def test_a_part_is_where_its_word_says() -> None:
    out = np.zeros(2, np.int64)
    steps = [Base.words(y=Place(), count=count, weights=[]) for count in (50, 8)]
    at = Both.word_count()
    words = Both.words(first=at, second=at + len(steps[0]), y=Place(Ref(0)))
    entry = Entry(difference(), words.followed_by(steps[0]).followed_by(steps[1]), tasks=1)
    with Team(n_threads=1) as team:
        team.run(Tape([entry], n_slots=1).bind([out.ctypes.data]))
    assert out.tolist() == [42, 8]


def test_words_list_the_memory_that_is_read_and_written() -> None:
    words = Declared.words(**values())
    assert (words.reads, words.writes) == ({1}, {0})
    assert Declared.words(**values(x=Place())).reads == frozenset()


@pytest.mark.parametrize(("changes", "named"), [({"more": 1}, "more"), ({"mor": 1, "ore": 2}, "mor, ore")])
def test_values_of_unknown_fields_are_refused(changes: dict[str, object], named: str) -> None:
    with pytest.raises(TypeError, match=named):
        Declared.words(**values(**changes))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"count": 2.5}, "Declared.count is an integer, not 2.5"),
        ({"order": [7, 8.0]}, "Declared.order is an integer, not 8.0"),
        ({"x": Ref(1)}, "Declared.x is an operand: Place"),
        ({"count": "3"}, "Declared.count is an integer, not '3'"),
        ({"count": 2**63}, "Declared.count has 64 bits, and the value does not fit into them"),
        ({"count": -(10**5000)}, "Declared.count has 64 bits, and the value does not fit into them"),
        ({"count": Ref(0, 2.5)}, "Declared.count is an integer, not Ref"),  # type: ignore[arg-type]
        ({"order": 7}, "Declared.order is a sequence of numbers, not 7"),
        ({"order": "789"}, "Declared.order is a sequence of numbers, not '789'"),
        ({"factor": "3.5"}, "Declared.factor is a number, not '3.5'"),
        ({"factor": None}, "Declared.factor is a number, not None"),
        ({"factor": Ref(0)}, "Declared.factor is a number, not Ref"),
        ({"factor": 10**400}, "Declared.factor has 64 bits, and the value does not fit into them"),
        ({"weights": ["x"]}, "Declared.weights is a number, not 'x'"),
        ({"weights": [0.5, 1j]}, "Declared.weights is a number, not 1j"),
        ({"x": Place(1.5)}, "Declared.x.address is an integer, not 1.5"),  # type: ignore[arg-type]
        ({"x": Place("abc")}, "Declared.x.address is an integer, not 'abc'"),  # type: ignore[arg-type]
        ({"x": Place(Ref(0), (4.0, 32, 32, 32))}, "Declared.x.nb0 is an integer, not 4.0"),  # type: ignore[arg-type]
        ({"x": Place(Ref(0), (4, 32, 32, 2**64))}, "Declared.x.nb3 has 64 bits"),
        ({"x": Place(Ref(0), (4,))}, r"Declared.x declares address, nb0, .*; its Place has the strides \(4,\)"),
        ({"x": Place(Ref(0), 4)}, "Declared.x declares address, nb0, .*; its Place has the strides 4"),  # type: ignore[arg-type]
    ],
)
def test_values_of_another_kind_are_refused(changes: dict[str, object], why: str) -> None:
    with pytest.raises(TypeError, match=why):
        Declared.words(**values(**changes))


def test_numbers_of_numpy_are_numbers() -> None:
    changes = {"count": np.uint64(3), "factor": np.float32(0.25), "weights": np.array([0.5, 1.5, 2.5])}
    assert Declared.words(**values(**changes)) == Declared.words(**values())


def test_a_whole_number_is_a_real_one_too() -> None:
    assert [type(each) for each in Declared.words(**values(factor=3, weights=[1, 2]))].count(float) == 3


def test_a_missing_value_is_refused() -> None:
    complete = values()
    del complete["factor"]
    with pytest.raises(TypeError, match="factor"):
        Declared.words(**complete)


def test_a_field_of_the_name_of_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match="words"):

        class Taken(Parameters):
            words = integer()  # type: ignore[assignment]


def slots(words: list[Word]) -> set[int]:
    return {word.slot for word in words if isinstance(word, Ref) and word.slot >= RESULT}


def groups() -> list[Group]:
    device = CpuDevice()
    graphs = [Graph(chain) for chain in prebuild._chains()]
    return [
        *(Group((node,)) for node in prebuild._nodes()),
        *(group for graph in graphs for group in device.groups(graph).of(graph)),
    ]


def test_every_address_that_a_group_needs_is_marked_and_only_its_results_are_written() -> None:
    for group in groups():
        chosen = match(group)
        assert isinstance(chosen, Entries)
        kept = sum(group.kept) - 1
        results = {RESULT, *range(len(group.operands) - kept, len(group.operands))} if len(group) > 1 else {RESULT}
        for entry in chosen.entries:
            if isinstance(entry.words, Words):
                assert slots(entry.words) <= entry.words.reads | entry.words.writes, (group, entry)
                assert entry.words.writes <= {*results, WORKSPACE, FAULTS}, (group, entry)


class Mixed(Rows):
    y = destination_row()
    a = source_row()
    b = source_row()
    c = source_row()


@kernel
def mixed() -> Body:
    """y = 100 a + 10 b + c."""

    @device_function
    def visit(ctx, params, row, n, places):  # type: ignore[no-untyped-def]
        y, a, b, c = places
        for i in range(n):
            total = 100 * simd.load_f32(a + i * Mixed.a.stride(params))
            total += 10 * simd.load_f32(b + i * Mixed.b.stride(params)) + simd.load_f32(c + i * Mixed.c.stride(params))
            simd.store_f32(y + i * Mixed.y.stride(params), total)

    return over_rows(Mixed, visit)


def test_rows_of_any_number_of_operands_are_found() -> None:
    rng = np.random.default_rng(5)
    extents = [(3, 4, 2, 5), (3, 1, 2, 1), (1, 4, 1, 5)]
    with Team(n_threads=2) as team:
        for axes in itertools.permutations(range(4)):
            a, b, c = (rng.integers(0, 9, ne).astype(np.float32).transpose(axes) for ne in extents)
            y = np.zeros_like(np.ascontiguousarray(a))
            shapes = [Shape(x.shape[::-1], x.strides[::-1]) for x in (y, a, b, c)]  # type: ignore[arg-type]
            nest = element_nest(shapes[0].ne, *shapes)
            places = [Place(Ref(i), (stride,)) for i, stride in enumerate(nest.inner.strides)]
            entry = Entry(mixed(), words_of(Mixed, nest, *places))
            team.run(Tape([entry], n_slots=4).bind([x.ctypes.data for x in (y, a, b, c)]))
            assert (y == 100 * a + 10 * b + c).all()
