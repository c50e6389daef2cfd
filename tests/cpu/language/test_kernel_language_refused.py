"""What is outside of the language of kernels is refused with the line, and with what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("ggplug_cpu")

from kernel_bodies import made_of

from ggplug.errors import KernelCompileError
from ggplug_cpu import simd
from ggplug_cpu.compiler import device_function, prebuild
from ggplug_cpu.context import real, store_word, word
from ggplug_cpu.parameters import Parameters, integer, reals


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGPLUG_CACHE_DIR", str(tmp_path))


class Span(NamedTuple):
    first: int
    last: int


@device_function
def noted(params, bit, answer):  # type: ignore[no-untyped-def]
    store_word(params + 16, bit)
    return answer


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


LARGE = 10**400
SOME = (3, 5)
COUNT = 4


def shifts_by_too_many(ctx: int, params: int) -> None:
    store_word(params, ctx >> 64)  # wrong


def shifts_by_less_than_none(ctx: int, params: int) -> None:
    ctx <<= -1  # wrong


def compares_with_more_than_64_bits(ctx: int, params: int) -> None:
    store_word(params, ctx < 2**63)  # wrong


def takes_more_than_64_bits_for_a_mask(ctx: int, params: int) -> None:
    store_word(params, ctx & 0xFFFF_FFFF_FFFF_FFFF)  # wrong


def takes_the_largest_of_more_than_64_bits(ctx: int, params: int) -> None:
    store_word(params, max(ctx, 2**63))  # wrong


def chooses_more_than_64_bits(ctx: int, params: int) -> None:
    store_word(params, ctx if ctx > 0 else 2**64 - 1)  # wrong


def sets_more_than_64_bits(ctx: int, params: int) -> None:
    large = LARGE  # wrong
    store_word(params, large)


def stores_more_than_64_bits(ctx: int, params: int) -> None:
    store_word(params, 10**5000)  # wrong


def counts_to_more_than_64_bits(ctx: int, params: int) -> None:
    for _ in range(2**63):  # wrong
        store_word(params, 1)


def adds_a_float_and_what_is_none(ctx: int, params: int) -> None:
    simd.store_f64(params, real(params, 0) + LARGE)  # wrong


def stores_what_is_no_float(ctx: int, params: int) -> None:
    simd.store_f64(params, LARGE)  # wrong


def takes_a_number_for_a_bool(ctx: int, params: int) -> None:
    store_word(params, int(ctx > 0 and 7))  # wrong


def takes_a_number_for_a_bool_that_decides(ctx: int, params: int) -> None:
    store_word(params, int(ctx > 0 or 7 or ctx < 5))  # noqa: SIM222  # wrong


def takes_nothing_for_a_bool(ctx: int, params: int) -> None:
    store_word(params, 1 if (ctx > 0 and None) else 2)  # noqa: SIM223  # wrong


def goes_on_behind_64_bits(ctx: int, params: int) -> None:
    for _ in range(ctx, 2**63 - 1, 7):  # wrong
        store_word(params, 1)


def goes_down_behind_64_bits(ctx: int, params: int) -> None:
    for _ in range(ctx, -(2**63), -2):  # wrong
        store_word(params, 1)


def never_steps(ctx: int, params: int) -> None:
    for _ in range(0, ctx, 0):  # wrong
        store_word(params, 1)


def sets_a_global(ctx: int, params: int) -> None:
    COUNT = COUNT + 1  # type: ignore[used-before-def]  # noqa: F823  # wrong
    store_word(params, COUNT)


def sets_a_global_later(ctx: int, params: int) -> None:
    total = 0
    for _ in range(3):
        total += COUNT  # type: ignore[used-before-def]  # noqa: F823  # wrong
        COUNT = 100  # noqa: F841
    store_word(params, total)


def takes_the_smallest_of_one(ctx: int, params: int) -> None:
    store_word(params, min(ctx))  # type: ignore[call-overload]  # wrong


def takes_the_smallest_of_a_tuple(ctx: int, params: int) -> None:
    store_word(params, min((ctx, 3)))  # wrong


def takes_the_largest_of_a_known_tuple(ctx: int, params: int) -> None:
    store_word(params, max(SOME))  # wrong


def asks_whether_an_array_is_true(ctx: int, params: int) -> None:
    store_word(params, 1 if ARRAY else 2)  # wrong


def loops_over_what_an_array_gives(ctx: int, params: int) -> None:
    for _ in ARRAY(3):  # type: ignore[operator]  # wrong
        store_word(params, 1)


ARRAY = np.arange(3)
TOO_LARGE = "does not fit into 64 bits"

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
    shifts_by_too_many: ("a shift by 64", "shift by 0 to 63"),
    shifts_by_less_than_none: ("a shift by -1", "shift by 0 to 63"),
    compares_with_more_than_64_bits: (f"9223372036854775808 {TOO_LARGE}", "from -2**63 to 2**63 - 1"),
    takes_more_than_64_bits_for_a_mask: (TOO_LARGE, "64 bits that are all set are -1"),
    takes_the_largest_of_more_than_64_bits: (TOO_LARGE, "from -2**63 to 2**63 - 1"),
    chooses_more_than_64_bits: (TOO_LARGE, "from -2**63 to 2**63 - 1"),
    sets_more_than_64_bits: (f"an integer of 1329 bits {TOO_LARGE}", "from -2**63 to 2**63 - 1"),
    stores_more_than_64_bits: (f"an integer of 16610 bits {TOO_LARGE}", "from -2**63 to 2**63 - 1"),
    counts_to_more_than_64_bits: (TOO_LARGE, "from -2**63 to 2**63 - 1"),
    adds_a_float_and_what_is_none: ("an integer of 1329 bits is too large for f64", "math.inf"),
    stores_what_is_no_float: ("an integer of 1329 bits is too large for f64", "math.inf"),
    takes_a_number_for_a_bool: ("7 is no bool", "compare operands of and and or"),
    takes_a_number_for_a_bool_that_decides: ("7 is no bool", "compare operands of and and or"),
    takes_nothing_for_a_bool: ("None is no bool", "compare operands of and and or"),
    goes_on_behind_64_bits: ("the index after the last one may not fit into 64 bits", "stop the loop earlier"),
    goes_down_behind_64_bits: ("the index after the last one may not fit into 64 bits", "stop the loop earlier"),
    never_steps: ("the step is 0", "positive or negative"),
    sets_a_global: ("COUNT is not set before it is read", "give the variable another one"),
    sets_a_global_later: ("COUNT is not set before it is read", "give the variable another one"),
    takes_the_smallest_of_one: ("min of a value of type i64 alone", "at least two"),
    takes_the_smallest_of_a_tuple: ("min of a tuple of 2 alone", "at least two"),
    takes_the_largest_of_a_known_tuple: ("max of a tuple of 2 alone", "at least two"),
    asks_whether_an_array_is_true: ("Python cannot compute this", "all operands are known"),
    loops_over_what_an_array_gives: ("a loop that is not over range(...)", "for i in range"),
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


def is_right(ctx: int, params: int) -> None:
    store_word(params, 1)


def test_the_first_that_is_wrong_of_several_is_named() -> None:
    with pytest.raises(KernelCompileError, match="kernel prints does not compile"):
        prebuild([made_of(is_right), made_of(prints), made_of(asserts)])
