"""The language of kernels: what it means is what Python means, and what is outside of it is refused with the line."""

from __future__ import annotations

import ctypes
import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("ggplug_cpu")

from ggplug.errors import KernelCompileError
from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, Record, device_function, intrinsic, kernel, prebuild
from ggplug_cpu.context import load_word, real, store_word, word
from ggplug_cpu.language.names import named, signature, spelled
from ggplug_cpu.parameters import Parameters, integer, reals
from ggplug_cpu.records import Atomic, Word


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGPLUG_CACHE_DIR", str(tmp_path))


def made_of(body: Callable[..., Any], fastmath: Any = False) -> Any:
    """A kernel without arguments whose body is ``body``."""

    def factory() -> Body:
        return body

    factory.__name__ = factory.__qualname__ = body.__name__
    return kernel(fastmath=fastmath)(factory)()


def run(body: Callable[..., Any], *words: float, results: int = 1, type: Any = np.int64) -> list[Any]:
    """What a body writes behind its parameters, as many words as there are results."""
    parameters = np.zeros(len(words) + results, np.int64)
    for i, each in enumerate(words):
        parameters[i : i + 1].view(np.float64 if isinstance(each, float) else np.int64)[0] = each
    native = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(made_of(body).address())
    native(0, parameters.ctypes.data)
    return parameters[len(words) :].view(type).tolist()  # type: ignore[no-any-return]


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


# -- what is refused --------------------------------------------------------------------------------


def asserts(ctx: int, params: int) -> None:
    assert ctx == 0  # wrong


def raises(ctx: int, params: int) -> None:
    if ctx != 0:
        raise ValueError(ctx)  # wrong


def asks_for_what_is_not_there(ctx: int, params: int) -> None:
    store_word(params, nothing_of_this_name)  # type: ignore[name-defined]  # noqa: F821  # wrong


def gives_too_many_arguments(ctx: int, params: int) -> None:
    store_word(params, 1, 2)  # wrong


def gives_a_device_function_too_few_arguments(ctx: int, params: int) -> None:
    noted(params, 1)  # wrong


def gives_a_float_for_an_address(ctx: int, params: int) -> None:
    store_word(real(params, 0), 1)  # type: ignore[arg-type]  # wrong


def changes_a_type(ctx: int, params: int) -> None:
    total = 0
    for i in range(word(params, 0)):
        total += i * 0.5  # type: ignore[assignment]  # wrong
    store_word(params, total)


def makes_a_list(ctx: int, params: int) -> None:
    numbers = [1, 2]  # wrong
    store_word(params, numbers[0])


def computes_with_a_string(ctx: int, params: int) -> None:
    store_word(params, "text" + ctx)  # type: ignore[operator]  # wrong


@device_function
def calls_itself(n):  # type: ignore[no-untyped-def]
    return n if n < 2 else calls_itself(n - 1)  # wrong


def counts_down(ctx: int, params: int) -> None:
    store_word(params, calls_itself(ctx))


def prints(ctx: int, params: int) -> None:
    print(ctx)  # wrong


def goes_over_a_tuple(ctx: int, params: int) -> None:
    for i in (1, 2):  # wrong
        store_word(params, i)


def reads_what_only_one_branch_sets(ctx: int, params: int) -> None:
    if ctx != 0:
        a = 1
    store_word(params, a)  # wrong


def compares_vectors(ctx: int, params: int) -> None:
    if load_4(params) < load_4(params):  # wrong
        store_word(params, 1)


def mixes_vectors(ctx: int, params: int) -> None:
    simd.store(params, load_4(params) + load_8(params))  # wrong


def compares_thrice(ctx: int, params: int) -> None:
    store_word(params, 0 < ctx < 5)  # wrong


class Counted(Parameters):
    count = integer()
    factors = reals()


class Doubled(Counted):
    twice = integer()


def asks_for_a_field_that_is_not_declared(ctx: int, p: Counted) -> None:
    store_word(ctx, p.number)  # type: ignore[attr-defined]  # wrong


def computes_with_a_list_of_fields(ctx: int, p: Counted) -> None:
    store_word(ctx, p.factors + 1)  # type: ignore[operator]  # wrong


def makes_a_record_another(ctx: int, p: Counted) -> None:
    a = Counted(ctx)
    if p.count != 0:
        a = Doubled(ctx)  # wrong
    store_word(ctx, a.count)


def places_a_record_twice(ctx: int, p: Counted) -> None:
    store_word(ctx, Counted(ctx, 8).count)  # type: ignore[call-arg]  # wrong


def gives_a_named_tuple_too_few(ctx: int, params: int) -> None:
    store_word(params, Span(1).first)  # type: ignore[call-arg]  # wrong


def makes_a_tuple_another(ctx: int, params: int) -> None:
    span = Span(1, ctx)
    if ctx != 0:
        span = (ctx, 1)  # type: ignore[assignment]  # wrong
    store_word(params, span.first)


def assigns_to_a_parameter(ctx: int, p: Counted) -> None:
    p.count = ctx  # type: ignore[misc]  # wrong


load_4, load_8 = simd.load("f32x4"), simd.load("f32x8")

WRONG: dict[Callable[..., None], tuple[str, str]] = {
    asserts: ("kernels have no assert", "check arguments in Python, before the kernel is chosen"),
    raises: ("kernels have no raise", "check arguments in Python, before the kernel is chosen"),
    asks_for_what_is_not_there: ("there is no nothing_of_this_name", "their own variables"),
    gives_too_many_arguments: (
        "the intrinsic store_word takes 2 arguments, void(i64, i64), not 3",
        "its declaration says",
    ),
    gives_a_device_function_too_few_arguments: (
        "noted(params, bit, answer) is called as noted(..., ...)",
        "give each parameter one argument",
    ),
    gives_a_float_for_an_address: ("a value of type f64 is no i64", "int() makes an integer"),
    changes_a_type: ("total changes from a value of type i64 to a value of type f64", "another name"),
    makes_a_list: ("kernels have no List", "use a tuple, or read numbers from memory"),
    computes_with_a_string: ("'text' (a str) is no value that a kernel can compute with", "numbers and vectors"),
    counts_down: ("calls_itself calls itself", "write a loop"),
    prints: ("kernels cannot call print", "they call device functions, intrinsics"),
    goes_over_a_tuple: ("a loop that is not over range(...)", "for i in range"),
    reads_what_only_one_branch_sets: ("a is not set on every way to here", "set a before the branch"),
    compares_vectors: ("there is no f32x4 < f32x4", "simd.less"),
    mixes_vectors: ("there is no f32x4 + f32x8", "vectors with those of their type"),
    compares_thrice: ("several comparisons in one", "join them by and"),
    asks_for_a_field_that_is_not_declared: ("'Counted' has no attribute 'number'", "it declares count, factors"),
    computes_with_a_list_of_fields: ("a field of Counted is no value that a kernel can compute with", "with numbers"),
    makes_a_record_another: ("a changes from a Counted to a Doubled", "another name"),
    gives_a_named_tuple_too_few: ("Span(first, last) is called as Span(...)", "give each parameter one argument"),
    makes_a_tuple_another: ("span changes from a Span to a tuple of 2", "another name"),
    assigns_to_a_parameter: ("count of a Counted is not assigned to", "words of ggplug_cpu.records are"),
    places_a_record_twice: ("Counted does not take 2 arguments", "it takes the address"),
}


@pytest.mark.parametrize("body", WRONG, ids=lambda body: body.__name__)
def test_a_wrong_kernel_is_refused_with_its_line_and_what_to_write_instead(body: Callable[..., None]) -> None:
    why, remedy = WRONG[body]
    culprit = calls_itself.function if body is counts_down else body
    lines, first = inspect.getsourcelines(culprit)
    (wrong,) = (i for i, line in enumerate(lines) if line.rstrip().endswith("# wrong"))
    with pytest.raises(KernelCompileError) as caught:
        made_of(body).address()
    message = str(caught.value)
    place = f"{__file__}, line {first + wrong} in {culprit.__name__}, `{lines[wrong].strip()}`: "
    assert place in message
    assert why in message
    assert remedy in (caught.value.remedy or "")
    assert message.startswith(f"kernel {body.__name__} does not compile for ")


def test_a_body_without_a_source_is_refused() -> None:
    scope: dict[str, Any] = {}
    exec("def body(ctx, params):\n    pass", scope)
    with pytest.raises(KernelCompileError, match="the source of body cannot be found"):
        made_of(scope["body"]).address()


def test_a_refused_function_does_not_stay_unfinished() -> None:
    for _ in range(2):
        with pytest.raises(KernelCompileError, match="calls itself"):
            made_of(counts_down).address()


def test_the_first_that_is_wrong_of_several_is_named() -> None:
    with pytest.raises(KernelCompileError, match="kernel prints does not compile"):
        prebuild([made_of(products), made_of(prints), made_of(asserts)])


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
