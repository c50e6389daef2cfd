"""The language of kernels: what it means is what Python means, and what is outside of it is refused with the line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("ggplug_cpu")

from kernel_bodies import made_of, run

from ggplug_cpu import parameters, simd
from ggplug_cpu.compiler import Record, device_function, intrinsic
from ggplug_cpu.context import load_word, real, store_word, word
from ggplug_cpu.language.names import named, signature, spelled
from ggplug_cpu.parameters import Parameters, integer
from ggplug_cpu.records import Atomic, Word


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGPLUG_CACHE_DIR", str(tmp_path))


# -- integers ---------------------------------------------------------------------------------------

NUMBERS = (-(2**63), -17, -8, -1, 0, 1, 7, 8, 2**62 + 3)


def test_integers_divide_as_python_s_do_and_by_zero_give_zero() -> None:
    def divided(ctx: int, params: int) -> None:
        a, b = word(params, 0), word(params, 1)
        store_word(params + 16, a // b)
        store_word(params + 24, a % b)

    for a, b in itertools.product(NUMBERS, NUMBERS):
        wanted = (a // b, a % b) if b else (0, 0)
        wrapped = [(each + 2**63) % 2**64 - 2**63 for each in wanted]
        assert run(divided, a, b, results=2) == wrapped, (a, b)


def test_integers_divide_by_constants_as_python_s_do() -> None:
    def divided(ctx: int, params: int) -> None:
        a = word(params, 0)
        store_word(params + 8, a // 8)
        store_word(params + 16, a % 8)
        store_word(params + 24, a // 7)
        store_word(params + 32, a % 7)
        store_word(params + 40, a // -3)
        store_word(params + 48, a % -3)
        store_word(params + 56, a // 1)

    for a in NUMBERS:
        assert run(divided, a, results=7) == [a // 8, a % 8, a // 7, a % 7, a // -3, a % -3, a], a


def test_bits_shifts_and_comparisons_are_python_s() -> None:
    def several(ctx: int, params: int) -> None:
        a, b = word(params, 0), word(params, 1)
        store_word(params + 16, (a & b) + 2 * (a | b) + 3 * (a ^ b))
        store_word(params + 24, (a << 3) - (b >> 1))
        store_word(params + 32, 8 * (a < b) + 4 * (a <= b) + 2 * (a == b) + (a != b) + -a + ~b)
        store_word(params + 40, abs(a) + min(a, b, 3) - max(a, b))

    for a, b in itertools.product((-5, 0, 3, 9), repeat=2):
        assert run(several, a, b, results=4) == [
            (a & b) + 2 * (a | b) + 3 * (a ^ b),
            (a << 3) - (b >> 1),
            8 * (a < b) + 4 * (a <= b) + 2 * (a == b) + (a != b) + -a + ~b,
            abs(a) + min(a, b, 3) - max(a, b),
        ]


# -- floats -----------------------------------------------------------------------------------------


@intrinsic("void(i64, f64)")
def store_real(builder: Any, address: Any, value: Any) -> None:
    from llvmlite import ir

    builder.store(value, builder.inttoptr(address, ir.DoubleType().as_pointer()), align=8)


def test_floats_are_f64_unless_both_are_f32() -> None:
    def sums(ctx: int, params: int) -> None:
        x = simd.load_f32(params)
        store_real(params + 8, x + x * x)
        store_real(params + 16, x + 0.1)
        store_real(params + 24, x / 3)

    x = np.float32(0.3)
    words = int(np.array([x, 0], np.float32).view(np.int64)[0])
    wanted = [float(x + x * x), float(x) + 0.1, float(x) / 3]
    assert run(sums, words, results=3, type=np.float64) == wanted


def test_the_smaller_and_the_larger_are_python_s_also_with_nan() -> None:
    def both(ctx: int, params: int) -> None:
        store_real(params + 16, min(real(params, 0), real(params, 1)))
        store_real(params + 24, max(real(params, 0), real(params, 1)))

    for a, b in itertools.product((math.nan, 0.0, -0.0, 1.0), repeat=2):
        found = run(both, a, b, results=2, type=np.float64)
        assert list(map(repr, found)) == [repr(min(a, b)), repr(max(a, b))], (a, b)


def test_functions_of_math_and_powers() -> None:
    def functions(ctx: int, params: int) -> None:
        x = real(params, 0)
        store_real(params + 8, math.sqrt(x) + math.exp(x) + math.erf(x) + abs(-x))
        store_real(params + 16, x**3)
        store_real(params + 24, float(int(x)) + math.floor(-x))

    x = 2.75
    first, *others = run(functions, x, results=3, type=np.float64)
    assert first == pytest.approx(math.sqrt(x) + math.exp(x) + math.erf(x) + x, rel=1e-14)
    assert others == [x * x * x, 2.0 + math.floor(-x)]


def products(ctx: int, params: int) -> None:
    a, b, c = real(params, 0), real(params, 1), real(params, 2)
    store_real(params + 24, a * b + c)


def test_products_and_sums_are_contracted_only_if_the_kernel_asks_for_it() -> None:
    from ggplug_cpu import features

    if not features.has("fma"):
        pytest.skip("needs FMA")
    assert "fmadd" not in made_of(products).assembly()
    assert "fmadd" in made_of(products, fastmath={"contract"}).assembly()


# -- control ----------------------------------------------------------------------------------------


def test_loops_count_as_python_s_do() -> None:
    def counted(ctx: int, params: int) -> None:
        start, stop, step = word(params, 0), word(params, 1), word(params, 2)
        total, last = 0, -1000
        for i in range(start, stop, step):
            if i == 5:
                continue
            if i > 40:
                break
            total += i
            last = i
        store_word(params + 24, total)
        store_word(params + 32, last)
        down = 0
        for i in range(stop, start, -2):
            down = (3 * down + i) % 1009
            i = 0  # changes no count
        store_word(params + 40, down)

    for start, stop, step in ((0, 10, 1), (0, 10, 3), (10, 0, -3), (3, 3, 1), (0, 90, 7), (5, 0, 1)):
        kept = [i for i in itertools.takewhile(lambda i: i <= 40, range(start, stop, step)) if i != 5]
        down = 0
        for i in range(stop, start, -2):
            down = (3 * down + i) % 1009
        assert run(counted, start, stop, step, results=3) == [sum(kept), kept[-1] if kept else -1000, down]


@device_function
def noted(params, bit, answer):  # type: ignore[no-untyped-def]
    """Notes that it was called."""
    store_word(params + 16, load_word(params + 16) | bit)
    return answer


def test_what_decides_is_computed_first_and_the_rest_only_if_needed() -> None:
    def decided(ctx: int, params: int) -> None:
        a, b = word(params, 0) != 0, word(params, 1) != 0
        both = noted(params, 1, a) and noted(params, 2, b)
        either = noted(params, 4, a) or noted(params, 8, b)
        store_word(params + 24, 4 * both + 2 * either + (not a))
        store_word(params + 32, noted(params, 16, 7) if a else noted(params, 32, 9))

    for a, b in itertools.product((0, 1), repeat=2):
        calls = 1 | (2 if a else 0) | 4 | (0 if a else 8) | (16 if a else 32)
        answers = 4 * (a and b) + 2 * (a or b) + (not a)
        assert run(decided, a, b, results=3) == [calls, answers, 7 if a else 9]


def test_tuples_are_returned_taken_apart_and_swapped() -> None:
    @device_function
    def halves(n, apart=3):  # type: ignore[no-untyped-def]
        if n < 0:
            return 0, 0.0
        return n // apart, n / 2

    def swapped(ctx: int, params: int) -> None:
        a, b = halves(word(params, 0))
        c, d = halves(word(params, 0), apart=5)
        a, c = c, a
        pair = (b, d)
        for _ in range(3):
            pair = pair[1] + 1.0, pair[0]
        store_real(params + 8, 100.0 * a + 10.0 * c + pair[0] - pair[1])

    a, c = 31 // 5, 31 // 3
    assert run(swapped, 31, type=np.float64) == [100.0 * a + 10.0 * c + (15.5 + 2.0) - (15.5 + 1.0)]


def test_what_is_known_decides_which_branch_is_compiled() -> None:
    names: Any = {"twice": 2}
    wanted = None

    @device_function
    def scaled(x, factor):  # type: ignore[no-untyped-def]
        if factor is None:
            return x
        return x * factor

    def chosen(ctx: int, params: int) -> None:
        if wanted is None and len_of == 1:
            store_word(params + 8, scaled(word(params, 0), wanted) + scaled(word(params, 0), names["twice"]))
        else:
            nobody_knows(this)  # type: ignore[name-defined]  # noqa: F821

    len_of = len(names)
    assert run(chosen, 5) == [15]


def test_names_of_types_are_read_and_written() -> None:
    assert signature("f32x16(f32x16, i64*2)") == ("f32x16", ("f32x16", ("i64", "i64")))
    assert spelled(("i64", ("f32x4", "bool"))) == "(i64, (f32x4, bool))"
    assert spelled(named("f64*3")) == "f64*3"
    for wrong in ("f32y4", "u64", "f32x0", "i64*0"):
        with pytest.raises(ValueError, match="no name of a type"):
            named(wrong)
    with pytest.raises(ValueError, match="no signature"):
        signature("f32x16 of i64")


# -- records ----------------------------------------------------------------------------------------


class Tally(Record):
    left = Word(0)
    total = Word(8)
    seen = Atomic(16)


@device_function
def counted(tally: Tally, most: int) -> None:
    while tally.left > 0:
        tally.left = tally.left - 1
        tally.total = tally.total + min(tally.seen.add(3), most)
    tally.seen.set(tally.seen.exchange(100) + tally.seen.value)


def test_words_of_records_are_assigned_to_and_atomic_ones_say_what_they_were() -> None:
    def tallied(ctx: int, params: int) -> None:
        tally = Tally(params + 8)
        tally.left = word(params, 0)
        counted(tally, 7)

    assert run(tallied, 4, results=3) == [0, 0 + 3 + 6 + 7, 112]


# -- named tuples -----------------------------------------------------------------------------------


class Span(NamedTuple):
    first: int
    last: int


@device_function
def widened(span: Span, by: int) -> Span:
    return Span(last=span.last + by, first=span.first - by)


def test_named_tuples_are_passed_assigned_and_returned_with_their_names() -> None:
    def spans(ctx: int, params: int) -> None:
        span = Span(word(params, 0), 20)
        for i in range(2):
            span = widened(span, i + 1)
        store_word(params + 8, span.first)
        store_word(params + 16, span.last)
        first, last = span
        store_word(params + 24, last - first)

    assert run(spans, 10, results=3) == [7, 23, 16]


# -- what Python says -------------------------------------------------------------------------------

ZERO, FIVE, NAME, SOME = 0, 5, "a name", (3, 5)


@device_function
def flagged(x, flag):  # type: ignore[no-untyped-def]
    if flag:
        return x + 1
    else:
        return nonsense.of(x)  # type: ignore[name-defined]  # noqa: F821


@device_function
def unflagged(x, flag):  # type: ignore[no-untyped-def]
    while flag:
        return nonsense.of(x)  # type: ignore[name-defined]  # noqa: F821
    return flagged(x, not flag)


def _all_known(a: int, b: int) -> int:
    return a + (ZERO or FIVE)


def _all_known_and_true(a: int, b: int) -> int:
    return FIVE and 7


def _all_known_as_a_count(a: int, b: int) -> int:
    total = 0
    for i in range(ZERO or 5):
        total += i
    return total + len_known


len_known = 2


def _known_before_computed(a: int, b: int) -> int:
    return 8 * (FIVE and a > 0) + 4 * (ZERO or a > 0) + (ZERO and a > 0) + (FIVE or a > 0)


def _known_between_computed(a: int, b: int) -> int:
    return 2 * (a > 0 and FIVE and b > 0) + (a > 0 or ZERO or b > 0)


def _known_that_is_no_number(a: int, b: int) -> int:
    return 1 if (NAME and a > 0) else 2


def _shifted_as_far_as_can_be(a: int, b: int) -> int:
    return (a >> 63) + (a << 0) + (b >> 1)


def _integers_that_no_float_holds(a: int, b: int) -> int:
    return math.floor(a + 2**53 + 1) + math.ceil(b + 2**60 + 1) + math.floor(a > 0)


def _largest_and_smallest(a: int, b: int) -> int:
    return 4 * (a < 2**63 - 1) + 2 * (a > -(2**63)) + (min(a, 2**63 - 1) == max(a, -(2**63)))


def _over_many_bits(a: int, b: int) -> int:
    return (2**70 >> 68) + a


def _a_branch_left_out(a: int, b: int) -> int:
    while False:
        nonsense(1)  # type: ignore[name-defined]  # noqa: F821
    return a + b


def _up_to_the_largest(a: int, b: int) -> int:
    total = 0
    for _ in range(2**63 - 4, 2**63 - 1):
        total += 1
    for _ in range(-(2**63) + 3, -(2**63), -1):
        total += 1
    return total


SAID_BY_PYTHON = [
    _all_known,
    _all_known_and_true,
    _all_known_as_a_count,
    _known_before_computed,
    _known_between_computed,
    _known_that_is_no_number,
    _shifted_as_far_as_can_be,
    _integers_that_no_float_holds,
    _largest_and_smallest,
    _over_many_bits,
    _a_branch_left_out,
    _up_to_the_largest,
]


@pytest.mark.parametrize("function", SAID_BY_PYTHON, ids=lambda each: each.__name__.strip("_"))
def test_a_kernel_computes_what_python_does(function: Callable[[int, int], int]) -> None:
    compiled = device_function(function)

    def body(ctx: int, params: int) -> None:
        store_word(params + 16, compiled(word(params, 0), word(params, 1)))

    for a, b in itertools.product((-3, 0, 4), repeat=2):
        assert run(body, a, b) == [function(a, b)], (a, b)


def test_a_known_argument_leaves_branches_out_also_behind_other_functions() -> None:
    def body(ctx: int, params: int) -> None:
        store_word(params + 8, flagged(word(params, 0), True) + unflagged(word(params, 0), False))

    assert run(body, 3) == [8]


# -- what Python refuses when it runs ---------------------------------------------------------------


def test_computed_counts_of_shifts_are_taken_modulo_the_bits() -> None:
    @device_function
    def by_far(x):  # type: ignore[no-untyped-def]
        return shifted(x, 70)

    @device_function
    def shifted(x, count):  # type: ignore[no-untyped-def]
        return (x << count) + (x >> count)

    def body(ctx: int, params: int) -> None:
        x, count = word(params, 0), word(params, 1)
        store_word(params + 16, x << count)
        store_word(params + 24, x >> count)
        store_word(params + 32, by_far(x))

    for count in (0, 63, 64, 70, -1):
        x, bits = -1234567, count % 64
        left = ((x << bits) + 2**63) % 2**64 - 2**63
        assert run(body, x, count, results=3) == [left, x >> bits, (x << 6) + (x >> 6)]


def test_counts_of_vectors_are_taken_modulo_the_bits_of_their_elements() -> None:
    load, splat = simd.load("i32x4"), simd.splat(simd.vec("i32", 4))

    @device_function
    def shifted(x: Any, count: Any) -> Any:
        return (x << splat(count)) + (x >> splat(count))

    def body(ctx: int, params: int) -> None:
        simd.store(params + 16, shifted(load(params), 33))

    assert run(body, 5, 7, results=2) == [(5 << 1) + (5 >> 1), (7 << 1) + (7 >> 1)]


def test_a_step_of_zero_is_a_loop_without_iterations() -> None:
    def body(ctx: int, params: int) -> None:
        found = 0
        for _ in range(word(params, 0), word(params, 1), word(params, 2)):
            found = 1
            break
        store_word(params + 24, found)

    for start, stop in ((0, 5), (5, 0), (-(2**63), 2**63 - 1)):
        assert run(body, start, stop, 0) == [0]
    assert run(body, 5, 0, -1) == [1]


def test_a_float_that_no_integer_is_near_gives_an_integer() -> None:
    @device_function
    def whole(x: float) -> int:
        return int(x)

    def body(ctx: int, params: int) -> None:
        store_word(params + 8, whole(1e300))
        store_word(params + 16, whole(math.nan) | -1)
        store_word(params + 24, whole(-2.75))

    assert run(body, 0.0, results=3)[1:] == [-1, -2]


# -- annotations ------------------------------------------------------------------------------------


class Here(Parameters):
    count = integer()


parameters.Here_of_a_test = Here


def test_a_parameter_is_annotated_by_a_class_or_by_what_leads_to_it() -> None:
    def by_path(ctx: int, p: parameters.Here_of_a_test) -> None:  # type: ignore[name-defined]
        store_word(int(p) + 8, p.count)

    class Inner(Parameters):
        count = integer()

    def by_class(ctx: int, p: Any) -> None:
        store_word(int(p) + 8, p.count)

    def by_name_of_the_enclosing_function(ctx: int, p: Inner) -> None:
        store_word(int(p) + 8, Inner(int(p)).count + p.count)

    by_class.__annotations__["p"] = Inner  # as in a module without the import of annotations
    assert run(by_path, 4) == run(by_class, 4) == [4]
    assert run(by_name_of_the_enclosing_function, 4) == [8]


# -- targets --------------------------------------------------------------------------------------


@intrinsic("i64()")
def of_a_table(builder: Any) -> Any:
    from ggplug_cpu.simd.lookup import constant_words
    from ggplug_cpu.simd.values import I64, load

    return load(constant_words(builder, "table of a test", [7, 11]), I64, 8).ir


@device_function
def tabled():  # type: ignore[no-untyped-def]
    return of_a_table()


def test_targets_that_differ_in_name_alone_share_what_is_compiled() -> None:
    from dataclasses import replace

    from ggplug_cpu import features
    from ggplug_cpu.language import machine_code

    def first(ctx: int, params: int) -> None:
        store_word(params, tabled())

    def second(ctx: int, params: int) -> None:
        store_word(params, tabled() + tabled())

    assert run(first) == [11]
    same = replace(features.target(), level="another name")
    code = machine_code.compile_kernel(made_of(second), same)
    assert code == machine_code.compile_kernel(made_of(second), features.target())
