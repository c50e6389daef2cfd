"""Names of types, as signatures have them, and LLVM's types for them."""

# llvmlite is untyped
# mypy: allow-untyped-calls, disable-error-code="misc,no-any-return"

from __future__ import annotations

import functools
import re
from typing import TypeAlias

from llvmlite import ir

#: A number or a vector by its name, or the types of a tuple's elements.
Type: TypeAlias = "str | tuple[Type, ...]"

#: Integer types and their bits.
INTEGERS = {"bool": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}
FLOATS = ("f32", "f64")
VOID = "void"


class _BFloatType(ir.types._BaseFloatType):
    """LLVM's ``bfloat``, which llvmlite lacks."""

    null = "0.0"
    intrinsic_name = "bf16"

    def __str__(self) -> str:
        return "bfloat"


_BFloatType._create_instance()

#: What vectors are made of.
ELEMENTS: dict[str, ir.Type] = {
    **{f"i{bits}": ir.IntType(bits) for bits in (1, 8, 16, 32, 64)},
    "f16": ir.HalfType(),
    "bf16": _BFloatType(),
    "f32": ir.FloatType(),
    "f64": ir.DoubleType(),
}
_NUMBERS: dict[str, ir.Type] = {name: ELEMENTS["i1" if name == "bool" else name] for name in (*INTEGERS, *FLOATS)}

_VECTOR = re.compile(rf"({'|'.join(ELEMENTS)})x([1-9]\d*)")
_TUPLE = re.compile(r"(i64|f64)\*([1-9]\d*)")
_SIGNATURE = re.compile(r"\s*([\w*]+)\s*\(([^)]*)\)\s*")


def is_integer(type: Type) -> bool:
    """Whether it is an integer or ``bool``."""
    return type in INTEGERS


def is_number(type: Type) -> bool:
    """Whether it is an integer, ``bool`` or a float."""
    return type in _NUMBERS


def is_float(type: str) -> bool:
    """Whether a number or a vector's elements are floats."""
    return "f" in type


def common(a: str, b: str) -> str:
    """The type in which two numbers are computed."""
    if a in INTEGERS and b in INTEGERS:
        return "i64"
    small = ("bool", "i8", "i16", "f32")
    return "f32" if a in small and b in small else "f64"


def keeps(source: Type, target: Type) -> bool:
    """Whether an assignment converts numbers of the type ``source`` to ``target``: no number loses anything."""
    if source in INTEGERS and target in INTEGERS:
        return INTEGERS[str(source)] <= INTEGERS[str(target)]
    return is_number(source) and (target == "f64" or (target == "f32" and common(str(source), "f32") == "f32"))


@functools.cache
def named(text: str) -> Type:
    """The type of a name in a signature.  Raises ValueError for a text that is no name of a type."""
    several = _TUPLE.fullmatch(text)
    if several is not None:
        return (several[1],) * int(several[2])
    if text not in _NUMBERS and _VECTOR.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no name of a type: they look like i64, f32, bool, f32x16, i64*3 or void")
    return text


def spelled(type: Type) -> str:
    """The name of a type; of tuples whose elements have one type, that of signatures."""
    if isinstance(type, str):
        return type
    if type and len(set(type)) == 1:
        return f"{spelled(type[0])}*{len(type)}"
    return f"({', '.join(map(spelled, type))})"


@functools.cache
def signature(text: str) -> tuple[Type, tuple[Type, ...]]:
    """``f32x16(f32x16, i64)`` as a result's type and those of the arguments.  Raises ValueError where it is none."""
    match = _SIGNATURE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no signature: they look like f32x16(f32x16, i64)")
    result = VOID if match[1] == VOID else named(match[1])
    return result, tuple(named(part.strip()) for part in match[2].split(",") if part.strip())


@functools.cache
def llvm_type(type: Type) -> ir.Type:
    """LLVM's type; of a tuple of one type an array, of others a structure."""
    if isinstance(type, tuple):
        elements = [llvm_type(each) for each in type]
        return ir.ArrayType(elements[0], len(elements)) if len(set(type)) == 1 else ir.LiteralStructType(elements)
    if type == VOID:
        return ir.VoidType()
    if type in _NUMBERS:
        return _NUMBERS[type]
    element, count = type.rsplit("x", 1)
    return ir.VectorType(ELEMENTS[element], int(count))
