"""Operators of the language on values: what Python computes of what is known, and LLVM code for the rest."""

# llvmlite is untyped
# mypy: allow-untyped-calls

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from ggplug_cpu.language.declarations import frozen, llvm_call
from ggplug_cpu.language.names import INTEGERS, Type, common, is_float, is_integer, is_number, llvm_type, spelled
from ggplug_cpu.language.sources import Refusal
from ggplug_cpu.language.values import Computed, Known, Several, Value, described, elements, type_of

#: Python's operator: what it is written like, its function, the builder's methods for integers and for floats.
_BINARY: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any], str | None, str | None]] = {
    ast.Add: ("+", operator.add, "add", "fadd"),
    ast.Sub: ("-", operator.sub, "sub", "fsub"),
    ast.Mult: ("*", operator.mul, "mul", "fmul"),
    ast.Div: ("/", operator.truediv, None, "fdiv"),
    ast.FloorDiv: ("//", operator.floordiv, None, None),
    ast.Mod: ("%", operator.mod, None, None),
    ast.Pow: ("**", operator.pow, None, None),
    ast.BitAnd: ("&", operator.and_, "and_", None),
    ast.BitOr: ("|", operator.or_, "or_", None),
    ast.BitXor: ("^", operator.xor, "xor", None),
    ast.LShift: ("<<", operator.lshift, "shl", None),
    ast.RShift: (">>", operator.rshift, "ashr", None),
}
_COMPARISONS: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], bool]]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Is: ("is", operator.is_),
    ast.IsNot: ("is not", operator.is_not),
}
_SHIFTS = (ast.LShift, ast.RShift)
_LARGEST_POWER = 64


# -- types ------------------------------------------------------------------------------------------


def as_type(b: ir.IRBuilder, value: Value, type: Type) -> Computed | Several:
    """A value as one of ``type``: numbers are converted to other numbers, but floats to integers by ``int()`` alone.

    Raises Refusal where it cannot become one.
    """
    if isinstance(type, tuple):
        items = elements(value)
        if len(items) == len(type):
            return Several(tuple(as_type(b, item, each) for item, each in zip(items, type, strict=True)))
    elif isinstance(value, Known) and value.is_number and is_number(type):
        return _constant(value.value, type)
    elif isinstance(value, Computed):
        if value.type == type:
            return value
        if is_number(value.type) and is_number(type) and not (is_float(value.type) and is_integer(type)):
            return Computed(type, _converted(b, value, type))
    type_of(value)
    raise Refusal(f"{described(value)} is no {spelled(type)}", _CONVERTING)


_CONVERTING = "int() makes an integer of a float, float() an f64 of an integer; vectors are converted by simd.convert"


def fits(number: int) -> bool:
    """Whether it is an ``i64``."""
    return -(2**63) <= number < 2**63


def _constant(number: float, type: str) -> Computed:
    if is_float(type):
        try:
            return Computed(type, ir.Constant(llvm_type(type), float(number)))
        except OverflowError:
            raise Refusal(f"{described(Known(number))} is too large for {type}", "math.inf is infinity") from None
    if isinstance(number, float):
        raise Refusal(f"{number!r} is no {type}", "write an integer, without a point")
    if not fits(int(number)):
        raise Refusal(
            f"{described(Known(number))} does not fit into 64 bits",
            "integers of kernels are from -2**63 to 2**63 - 1; 64 bits that are all set are -1",
        )
    if type == "bool":
        return Computed(type, ir.Constant(llvm_type(type), int(number != 0)))
    half = 1 << (INTEGERS[type] - 1)
    return Computed(type, ir.Constant(llvm_type(type), (int(number) + half) % (2 * half) - half))


def _converted(b: ir.IRBuilder, value: Computed, type: str) -> ir.Value:
    source, target = value.type, llvm_type(type)
    if is_float(source):
        return (b.fpext if type == "f64" else b.fptrunc)(value.ir, target)
    if is_float(type):
        return (b.uitofp if source == "bool" else b.sitofp)(value.ir, target)
    if type == "bool":
        return b.icmp_signed("!=", value.ir, ir.Constant(value.ir.type, 0))
    if INTEGERS[source] > INTEGERS[type]:
        return b.trunc(value.ir, target)
    return (b.zext if source == "bool" else b.sext)(value.ir, target)


def number(b: ir.IRBuilder, value: Value, type: str) -> ir.Value:
    """LLVM's value of a number as one of ``type``."""
    converted = as_type(b, value, type)
    assert isinstance(converted, Computed)
    return converted.ir


def common_type(a: Type, c: Type) -> Type:
    """The type of what is one of two values.  Raises Refusal where there is none."""
    if a == c:
        return a
    if isinstance(a, str) and isinstance(c, str) and is_number(a) and is_number(c):
        return common(a, c)
    if isinstance(a, tuple) and isinstance(c, tuple) and len(a) == len(c):
        return tuple(map(common_type, a, c))
    raise Refusal(f"the types {spelled(a)} and {spelled(c)} have none in common", _CONVERTING)


def as_integer(b: ir.IRBuilder, value: Value) -> Value:
    """``int(value)``: floats are cut towards zero; of those that no integer is near, it is any integer."""
    type = type_of(value)
    if isinstance(value, Computed) and type in ("f32", "f64"):
        return Computed("i64", frozen(b, b.fptosi(value.ir, llvm_type("i64"))))
    return Computed("i64", number(b, value, "i64"))


def is_true(b: ir.IRBuilder, value: Value) -> bool | ir.Value:
    """Whether a value counts as true: a bool of Python where it is known, else LLVM's."""
    if isinstance(value, Known):
        return bool(folded(bool, value).value)
    if isinstance(value, Computed) and is_integer(value.type):
        return number(b, value, "bool")
    raise Refusal(f"{described(value)} is neither true nor false", "compare it with something")


# -- operators --------------------------------------------------------------------------------------


def folded(function: Callable[..., Any], *operands: Known) -> Known:
    """What Python computes of what is known."""
    try:
        return Known(function(*(operand.value for operand in operands)))
    except Exception as error:
        raise Refusal(
            f"Python cannot compute this: {error}", "all operands are known when the kernel is compiled"
        ) from error


def binary(b: ir.IRBuilder, kind: type[ast.operator], left: Value, right: Value) -> Value:
    """``left`` and ``right`` by one of Python's operators of two."""
    symbol, function, of_integers, of_floats = _BINARY.get(kind, (kind.__name__, None, None, None))
    if isinstance(left, Known) and isinstance(right, Known) and function is not None:
        return folded(function, left, right)
    a, c = type_of(left), type_of(right)
    if is_number(a) and is_number(c) and isinstance(a, str) and isinstance(c, str):
        if kind is ast.Pow:
            return _power(b, left, right)
        type = _type_computed_in(kind, a, c)
        if type == "i64" and kind in (ast.FloorDiv, ast.Mod):
            return Computed(type, _rounded_down(b, kind is ast.Mod, left, right))
        method = of_floats if is_float(type) else of_integers
        if method is not None:
            x, y = number(b, left, type), number(b, right, type)
            return Computed(type, getattr(b, method)(x, _shift_count(b, right, y) if kind in _SHIFTS else y))
    elif a == c and isinstance(left, Computed) and isinstance(right, Computed):
        method = of_floats if is_float(left.type) else of_integers
        if method is not None:
            y = _shift_count(b, right, right.ir) if kind in _SHIFTS else right.ir
            return Computed(left.type, getattr(b, method)(left.ir, y))
    raise Refusal(
        f"there is no {spelled(a)} {symbol} {spelled(c)}", "numbers go with numbers, vectors with those of their type"
    )


def _shift_count(b: ir.IRBuilder, right: Value, count: ir.Value) -> ir.Value:
    """By how many bits ``<<`` and ``>>`` shift: LLVM leaves counts undefined that processors take modulo the bits."""
    if isinstance(right, Known):
        if not 0 <= right.value < INTEGERS["i64"]:
            raise Refusal(f"a shift by {described(right)}", "integers have 64 bits: shift by 0 to 63")
        return count
    if isinstance(count.type, ir.VectorType):
        return b.and_(count, ir.Constant(count.type, [count.type.element.width - 1] * count.type.count))
    return b.and_(count, ir.Constant(count.type, count.type.width - 1))


def _type_computed_in(kind: type[ast.operator], a: str, c: str) -> str:
    if a == c == "bool" and kind in (ast.BitAnd, ast.BitOr, ast.BitXor):
        return "bool"
    return "f64" if kind is ast.Div and is_integer(a) and is_integer(c) else common(a, c)


def _rounded_down(b: ir.IRBuilder, modulo: bool, left: Value, right: Value) -> ir.Value:
    """``//`` or ``%`` of integers, which LLVM rounds towards zero."""
    x, y, zero = number(b, left, "i64"), number(b, right, "i64"), number(b, Known(0), "i64")
    divisor = int(right.value) if isinstance(right, Known) else 0
    if divisor > 0 and divisor & (divisor - 1) == 0:
        bits = divisor.bit_length() - 1
        return b.and_(x, zero.type(divisor - 1)) if modulo else b.ashr(x, zero.type(bits))
    # Processors trap on a division by 0, and by -1 where the quotient overflows; by both the product is the quotient.
    special = b.icmp_unsigned("<", b.add(y, zero.type(1)), zero.type(2)) if divisor in (0, -1) else None
    safe = y if special is None else b.select(special, zero.type(1), y)
    rest = b.srem(x, safe)
    below = b.and_(b.icmp_signed("!=", rest, zero), b.icmp_signed("<", b.xor(rest, safe), zero))
    if modulo:
        return b.add(rest, b.select(below, safe, zero))
    quotient = b.sub(b.sdiv(x, safe), b.zext(below, zero.type))
    return quotient if special is None else b.select(special, b.mul(x, y), quotient)


def _power(b: ir.IRBuilder, base: Value, exponent: Value) -> Value:
    """By multiplication, as many as the exponent has bits."""
    n = exponent.value if isinstance(exponent, Known) else None
    if type(n) is not int or not 0 < n <= _LARGEST_POWER:
        raise Refusal(
            f"the exponent is {described(exponent)}",
            f"** takes integers from 1 to {_LARGEST_POWER} of the source; else math.pow",
        )
    result = None
    while True:
        if n & 1:
            result = base if result is None else binary(b, ast.Mult, result, base)
        n >>= 1
        if n == 0:
            assert result is not None
            return result
        base = binary(b, ast.Mult, base, base)


def unary(b: ir.IRBuilder, kind: type[ast.unaryop], operand: Value) -> Value:
    """``-x``, ``+x``, ``~x`` or ``not x``."""
    if kind is ast.Not:
        truth = is_true(b, operand)
        return Known(not truth) if isinstance(truth, bool) else Computed("bool", b.not_(truth))
    if isinstance(operand, Known):
        functions: dict[type[ast.unaryop], Callable[..., Any]] = {
            ast.USub: operator.neg,
            ast.UAdd: operator.pos,
            ast.Invert: operator.invert,
        }
        return folded(functions[kind], operand)
    type = type_of(operand)
    if isinstance(operand, Computed) and isinstance(type, str):
        if is_integer(type):
            operand = Computed("i64", number(b, operand, "i64"))
        if kind is ast.UAdd:
            return operand
        if kind is ast.USub:
            return Computed(operand.type, (b.fneg if is_float(type) else b.neg)(operand.ir))
        if not is_float(type):
            return Computed(operand.type, b.not_(operand.ir))
    raise Refusal(f"{described(operand)} has no such operator", "- and ~ are of numbers and vectors, ~ of integers")


def compare(b: ir.IRBuilder, kind: type[ast.cmpop], left: Value, right: Value) -> Value:
    """``left`` and ``right`` by one of Python's comparisons; where a float is NaN only ``!=`` is true."""
    symbol, function = _COMPARISONS.get(kind, (kind.__name__, None))
    if isinstance(left, Known) and isinstance(right, Known) and function is not None:
        return folded(function, left, right)
    if kind in (ast.Is, ast.IsNot) and Known(None) in (left, right):
        return Known(kind is ast.IsNot)  # what is computed is not None
    a, c = type_of(left), type_of(right)
    if not (is_number(a) and is_number(c)) or kind in (ast.Is, ast.IsNot) or function is None:
        raise Refusal(
            f"there is no {spelled(a)} {symbol} {spelled(c)}", "numbers are compared; vectors by simd.less and such"
        )
    type = common(str(a), str(c))
    x, y = number(b, left, type), number(b, right, type)
    if type == "i64":
        return Computed("bool", b.icmp_signed(symbol, x, y))
    return Computed("bool", (b.fcmp_unordered if kind is ast.NotEq else b.fcmp_ordered)(symbol, x, y))


# -- built-in functions -----------------------------------------------------------------------------


def extreme(b: ir.IRBuilder, largest: bool, *operands: Value) -> Value:
    """``max`` or ``min`` of numbers, as Python compares them: one after the other with the best so far."""
    best, *others = operands
    if not others:
        raise Refusal(f"{'max' if largest else 'min'} of {described(best)} alone", "it takes numbers, at least two")
    for other in others:
        if isinstance(best, Known) and isinstance(other, Known):
            best = folded(max if largest else min, best, other)
            continue
        type = common_type(type_of(best), type_of(other))
        if not isinstance(type, str) or not is_number(type):
            raise Refusal(
                f"there is no order of {spelled(type)}",
                "min and max are of numbers; of vectors simd.minimum and maximum",
            )
        x, y = Computed(type, number(b, best, type)), Computed(type, number(b, other, type))
        better = compare(b, ast.Gt if largest else ast.Lt, y, x)
        assert isinstance(better, Computed)
        best = Computed(type, b.select(better.ir, y.ir, x.ir))
    return best


#: Of what LLVM has an intrinsic, which it may compute with the processor's instructions; the others call libm.
_OF_LLVM = ("sqrt", "floor", "ceil", "exp", "log", "sin", "cos", "pow")
MATHEMATICS: dict[Callable[..., float], str] = {
    getattr(math, name): name for name in (*_OF_LLVM, "tanh", "erf", "erfc")
}


def mathematics(b: ir.IRBuilder, function: Callable[..., float], *operands: Value) -> Value:
    """A function of :mod:`math`: of f32 in f32, of all else in f64."""
    name = MATHEMATICS[function]
    if len(operands) != (2 if name == "pow" else 1):
        raise Refusal(
            f"math.{name} does not take {len(operands)} arguments", "it takes the number that it takes in Python"
        )
    if name in ("floor", "ceil") and is_integer(type_of(operands[0])):
        return as_integer(b, operands[0])
    of_f32 = all(isinstance(each, Computed) and each.type == "f32" for each in operands)
    type = "f32" if of_f32 else "f64"
    values = [number(b, each, type) for each in operands]
    symbol = f"llvm.{name}.{type}" if name in _OF_LLVM else name + ("f" if of_f32 else "")
    result = Computed(type, llvm_call(b, symbol, llvm_type(type), *values))
    return as_integer(b, result) if name in ("floor", "ceil") else result


def absolute(b: ir.IRBuilder, operand: Value) -> Value:
    """``abs`` of a number."""
    type = type_of(operand)
    if not isinstance(operand, Computed) or not isinstance(type, str) or not is_number(type):
        raise Refusal(f"{described(operand)} has no absolute value", "abs takes a number; simd.absolute takes a vector")
    if is_integer(type):
        return extreme(b, True, operand, unary(b, ast.USub, operand))
    return Computed(type, llvm_call(b, f"llvm.fabs.{type}", operand.ir.type, operand.ir))
