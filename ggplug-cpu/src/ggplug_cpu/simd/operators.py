"""Arithmetic on vectors: the functions beyond Python's operators (see :mod:`ggplug_cpu.compiler`).

Functions whose result type follows from their arguments are called by kernels as they are: ``simd.fma(a, b, c)``.
Numbers among the arguments are converted to the lane type and broadcast.  A function that makes a vector of something
else is a family over the vector type: the kernel's factory selects its member, ``splat = simd.splat(F)``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from llvmlite import ir

from .. import compiler
from .lanes import count_of, elem_of, is_vec, masks_of, split
from .values import Value, constant, constants, emitted, vector_named


def _alike(*values: Value) -> list[Value]:
    count = max(value.count for value in values)
    return [value if value.count == count else value.splat(count) for value in values]


def _vectors(arguments: tuple[str, ...], kinds: str) -> tuple[str, list[str]] | None:
    """The first vector type among the arguments, and all arguments with numbers cast to its lanes; None if they mix."""
    first = next((name for name in arguments if is_vec(name)), None)
    if first is None or elem_of(first)[0] not in kinds or (elem_of(first) == "i1" and "m" not in kinds):
        return None
    if any(is_vec(name) and name != first for name in arguments):
        return None
    return first, [name if is_vec(name) else elem_of(first) for name in arguments]


def lanewise(kinds: str, result: Callable[[str], str] = lambda t: t) -> Callable[..., str | None]:
    """The signature rule ``result(T)(T, ...)`` for vectors of ``kinds``: f(loat), i(nteger), m(ask)."""

    def rule(*arguments: str) -> str | None:
        found = _vectors(arguments, kinds)
        return found and f"{result(found[0])}({', '.join(found[1])})"

    return rule


def reduction(kinds: str, result: Callable[[str], str] = elem_of) -> Callable[..., str | None]:
    def rule(v: str) -> str | None:
        fits = is_vec(v) and (v.startswith("i1x") if kinds == "m" else v[0] in kinds)
        return f"{result(v)}({v})" if fits else None

    return rule


# -- vectors from something else: families over the vector type ---------------------------------------


@functools.cache
def splat(t: str) -> compiler.Intrinsic:
    """``splat(t)(x)``: ``x``, converted to the lane type, in every lane of a ``t``."""
    elem, count = split(t)
    return emitted(f"{t}({elem})")(lambda x: x.splat(count))


@functools.cache
def zero(t: str) -> compiler.Intrinsic:
    """``zero(t)()``: a ``t`` of zeros."""
    return emitted(f"{t}()")(lambda b: constant(b, vector_named(t), 0))


@functools.cache
def iota(t: str) -> compiler.Intrinsic:
    """``iota(t)()``: 0, 1, 2, ... in the lanes of a ``t``."""
    elem, count = split(t)
    numbers = [float(i) if elem[0] == "f" else i for i in range(count)]
    return emitted(f"{t}()")(lambda b: constants(b, vector_named(t).element, numbers))


@functools.cache
def convert(t: str) -> compiler.Intrinsic:
    """``convert(t)(v)``: the same numbers as a ``t`` of as many lanes; integers are signed, floats truncated.

    A float outside the range of the integer type has no defined result.  Masks convert to 0 and 1.
    """
    rule = _same_count(t)
    return emitted(rule)(lambda v: v.convert(vector_named(t).element))


@functools.cache
def convert_unsigned(t: str) -> compiler.Intrinsic:
    """``convert_unsigned(t)(v)``: unsigned integer lanes in a ``t`` of wider integers."""
    return emitted(_same_count(t))(lambda v: v.zext(vector_named(t).element))


@functools.cache
def bitcast(t: str) -> compiler.Intrinsic:
    """``bitcast(t)(v)``: the bits of a vector of the same size as a ``t``."""
    return emitted(lambda v: f"{t}({v})" if is_vec(v) else None)(lambda v: v.bitcast(vector_named(t)))


def _same_count(t: str) -> Callable[[str], str | None]:
    return lambda v: f"{t}({v})" if is_vec(v) and count_of(v) == count_of(t) else None


# -- arithmetic ------------------------------------------------------------------------------------------


@emitted(lanewise("f"))
def fma(a: Value, b: Value, c: Value) -> Value:
    """``a * b + c``: rounded once if the CPU has such an instruction, else twice."""
    a, b, c = _alike(a, b, c)
    return a.fma(b, c)


@emitted(lanewise("fi"))
def add(a: Value, b: Value) -> Value:
    a, b = _alike(a, b)
    return a + b


@emitted(lanewise("fi"))
def sub(a: Value, b: Value) -> Value:
    a, b = _alike(a, b)
    return a - b


@emitted(lanewise("fi"))
def mul(a: Value, b: Value) -> Value:
    a, b = _alike(a, b)
    return a * b


@emitted(lanewise("f"))
def div(a: Value, b: Value) -> Value:
    a, b = _alike(a, b)
    return a / b


@emitted(lanewise("fi"))
def maximum(a: Value, b: Value) -> Value:
    """The larger of each pair, ``a > b ? a : b``: so ``b`` where either is NaN."""
    a, b = _alike(a, b)
    return a.maximum(b)


@emitted(lanewise("fi"))
def minimum(a: Value, b: Value) -> Value:
    """The smaller of each pair, ``a < b ? a : b``: so ``b`` where either is NaN."""
    a, b = _alike(a, b)
    return a.minimum(b)


@emitted(lanewise("f"))
def sqrt(v: Value) -> Value:
    """The correctly rounded square root; NaN below zero."""
    return v.unary("sqrt")


@emitted(lanewise("fi"))
def absolute(v: Value) -> Value:
    return v.abs()


@emitted(lanewise("f"))
def copysign(size: Value, sign: Value) -> Value:
    """The size of one float with the sign of another, lane by lane."""
    size, sign = _alike(size, sign)
    return size.copysign(sign)


@emitted(lanewise("f"))
def round_even(v: Value) -> Value:
    """The nearest whole number, ties to even (C's ``nearbyintf``)."""
    return v.round_even()


@emitted(lanewise("f"))
def round_away(v: Value) -> Value:
    """The nearest whole number, ties away from zero (C's ``roundf``)."""
    return v.round_away()


@emitted(lanewise("f"))
def floor(v: Value) -> Value:
    """The largest whole number that is not larger."""
    return v.floor()


@emitted(lanewise("f"))
def ceil(v: Value) -> Value:
    """The smallest whole number that is not smaller."""
    return v.ceil()


@emitted(lanewise("f"))
def truncate(v: Value) -> Value:
    """The whole number next towards zero."""
    return v.truncate()


@emitted(lambda v, n: f"{v}({v}, i32)" if is_vec(v) and v[0] == "i" else None)
def shift_right_unsigned(v: Value, n: Value) -> Value:
    """Every lane shifted right by ``n`` bits, zeros shifted in."""
    return v.lshr(n.convert(v.element).splat(v.count))


# -- comparisons return masks, masks select ----------------------------------------------------------------


@emitted(lanewise("fi", masks_of))
def less(a: Value, b: Value) -> Value:
    """The mask ``a < b``; false where a float is NaN."""
    a, b = _alike(a, b)
    return a < b


@emitted(lanewise("fi", masks_of))
def less_equal(a: Value, b: Value) -> Value:
    a, b = _alike(a, b)
    return a <= b


@emitted(lanewise("fi", masks_of))
def greater(a: Value, b: Value) -> Value:
    a, b = _alike(a, b)
    return a > b


@emitted(lanewise("fi", masks_of))
def greater_equal(a: Value, b: Value) -> Value:
    a, b = _alike(a, b)
    return a >= b


@emitted(lanewise("fi", masks_of))
def equal(a: Value, b: Value) -> Value:
    """The mask ``a == b``; false where a float is NaN."""
    a, b = _alike(a, b)
    return a.equal(b)


@emitted(lanewise("fi", masks_of))
def unequal(a: Value, b: Value) -> Value:
    """The mask ``a != b``; true where a float is NaN, so ``unequal(v, v)`` finds the NaNs."""
    a, b = _alike(a, b)
    return a.unequal(b)


def _select_rule(mask: str, yes: str, no: str) -> str | None:
    found = _vectors((yes, no), "fim")
    if found is None or mask != masks_of(found[0]):
        return None
    return f"{found[0]}({mask}, {', '.join(found[1])})"


@emitted(_select_rule)
def select(mask: Value, yes: Value, no: Value) -> Value:
    """``yes`` in lanes whose mask is set, else ``no``; one of the two may be a number."""
    yes, no = _alike(yes, no)
    return mask.select(yes, no)


@emitted(reduction("m", lambda _: "bool"))
def any_lane(mask: Value) -> Value:
    """Whether any lane of a mask is set."""
    return mask.bitcast(ir.IntType(mask.count)).unequal(0)


@emitted(reduction("m", lambda _: "bool"))
def all_lanes(mask: Value) -> Value:
    """Whether every lane of a mask is set."""
    return mask.bitcast(ir.IntType(mask.count)).equal(-1)


@functools.cache
def first_lanes(count: int) -> compiler.Intrinsic:
    """``first_lanes(count)(n)``: the mask of ``count`` lanes whose first ``n`` are set; ``n`` may be out of range."""
    from .values import first_lanes as emit

    return emitted(f"i1x{count}(i64)")(lambda n: emit(count, n))


# -- lanes and reductions --------------------------------------------------------------------------------


@emitted(reduction("fi"))
def hsum(v: Value) -> Value:
    """All lanes added, by halves: lane i and lane i + n/2 first."""
    return v.sum()


@emitted(reduction("fi"))
def hmax(v: Value) -> Value:
    """The largest lane, as by :func:`maximum` of halves."""
    return v.max()


@emitted(reduction("fi"))
def hmin(v: Value) -> Value:
    """The smallest lane, as by :func:`minimum` of halves."""
    return v.min()


@emitted(lambda v, i: f"{elem_of(v)}({v}, i32)" if is_vec(v) else None)
def lane(v: Value, index: Value) -> Value:
    """Lane ``index`` of a vector."""
    return Value(v.b, v.b.extract_element(v.ir, index.ir))


def _half(v: str) -> str | None:
    elem, count = split(v) if is_vec(v) else ("", 1)
    return f"{elem}x{count // 2}({v})" if count % 2 == 0 else None


@emitted(_half)
def low_half(v: Value) -> Value:
    return v.part(0, v.count // 2)


@emitted(_half)
def high_half(v: Value) -> Value:
    return v.part(v.count // 2, v.count // 2)


@emitted(lambda a, b: f"{elem_of(a)}x{2 * count_of(a)}({a}, {b})" if is_vec(a) and a == b else None)
def concat(low: Value, high: Value) -> Value:
    """The lanes of two vectors of one type, one after the other."""
    return low.concat(high)


@functools.cache
def shuffle(t: str, lanes: tuple[int, ...]) -> compiler.Intrinsic:
    """``shuffle(t, lanes)(a, b)``: the chosen lanes of two vectors ``t``, those of ``b`` counted after ``a``'s."""
    elem, _ = split(t)
    return emitted(f"{elem}x{len(lanes)}({t}, {t})")(lambda a, b: a.shuffle(lanes, b))
