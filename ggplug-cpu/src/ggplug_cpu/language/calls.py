"""Calls in kernels: of intrinsics, of Python's own functions, and of device functions."""

# llvmlite is untyped
# mypy: allow-untyped-calls

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llvmlite import ir

from ggplug_cpu.language import arithmetic
from ggplug_cpu.language.arithmetic import as_type
from ggplug_cpu.language.names import VOID, Type, llvm_type, signature, spelled
from ggplug_cpu.language.sources import Refusal
from ggplug_cpu.language.values import (
    NOTHING,
    Bound,
    Computed,
    Declared,
    Known,
    Several,
    Value,
    declared,
    described,
    known,
    type_of,
)
from ggplug_cpu.recorded import DeviceFunction, Intrinsic, Namespace, Record


def of_intrinsic(b: ir.IRBuilder, intrinsic: Intrinsic, arguments: Sequence[Value]) -> Value:
    """What the code of an intrinsic gives, which is emitted here."""
    types = [type_of(each) for each in arguments]
    rule = intrinsic.signature
    text = rule if isinstance(rule, str) else _ruled(rule, tuple(map(spelled, types)))
    if text is None:
        raise _misfit(intrinsic, f"does not take ({', '.join(map(spelled, types))})")
    result, wanted = signature(text)
    if len(wanted) != len(types):
        raise _misfit(intrinsic, f"takes {len(wanted)} arguments, {text}, not {len(types)}")
    given = [packed(b, as_type(b, each, type)) for each, type in zip(arguments, wanted, strict=True)]
    try:
        emitted = intrinsic.function(b, *given)
    except Exception as error:
        raise _misfit(intrinsic, f"fails: {type(error).__name__}: {error}") from error
    if result == VOID:
        return NOTHING
    if getattr(emitted, "type", None) != llvm_type(result):
        made = "nothing" if emitted is None else getattr(emitted, "type", type(emitted).__name__)
        raise _misfit(intrinsic, f"makes {made} and not {spelled(result)}, as it declares")
    return declared(unpacked(b, result, emitted), intrinsic.record)


def attribute(b: ir.IRBuilder, owner: Declared, found: Any) -> Value:
    """What an attribute of a record's class is in a kernel, for the record at an address."""
    if isinstance(found, Intrinsic):
        alone = isinstance(found.signature, str) and len(signature(found.signature)[1]) == 1
        return of_intrinsic(b, found, [owner]) if alone else Bound(found, owner)
    if isinstance(found, DeviceFunction):
        return Bound(found, owner)
    if isinstance(found, Namespace):
        return Declared(owner.type, owner.ir, found)
    return known(found)


def assign(b: ir.IRBuilder, owner: Value, name: str, value: Value) -> None:
    """``owner.name = value``: stores a word of a record."""
    store = getattr(getattr(owner.kind, name, None), "store", None) if isinstance(owner, Declared) else None
    if not isinstance(store, Intrinsic):
        raise Refusal(f"{name} of {described(owner)} is not assigned to", "words of ggplug_cpu.records are")
    of_intrinsic(b, store, [owner, value])


def named(kind: Any, given: Sequence[Value], by_name: Mapping[str, Value]) -> Several:
    """``Kind(...)``: a named tuple."""
    return Several(tuple(_in_order(kind.__name__, kind._fields, {}, given, by_name)), kind)


def placed(b: ir.IRBuilder, kind: type[Record], arguments: Sequence[Value]) -> Value:
    """``Kind(address)``: the record at an address."""
    if len(arguments) != 1:
        raise Refusal(f"{kind.__name__} does not take {len(arguments)} arguments", "it takes the address")
    return declared(Computed("i64", arithmetic.number(b, arguments[0], "i64")), kind)


@functools.lru_cache(maxsize=4096)
def _ruled(rule: Callable[..., str | None], types: tuple[str, ...]) -> str | None:
    """The signature that a rule has for arguments of these types; None if there is none."""
    try:
        inspect.signature(rule).bind(*types)
    except TypeError:  # another number of arguments
        return None
    return rule(*types)


def _misfit(intrinsic: Intrinsic, why: str) -> Refusal:
    name = getattr(intrinsic, "__name__", type(intrinsic).__name__)
    return Refusal(f"the intrinsic {name} {why}", "its declaration says what it takes")


def packed(b: ir.IRBuilder, value: Computed | Several) -> ir.Value:
    """LLVM's value; of a tuple that of all its elements together."""
    if isinstance(value, Computed):
        return value.ir
    whole = ir.Constant(llvm_type(type_of(value)), ir.Undefined)
    for i, item in enumerate(value.items):
        assert isinstance(item, Computed)
        whole = b.insert_value(whole, item.ir, i)
    return whole


def unpacked(b: ir.IRBuilder, type: Type, value: ir.Value) -> Computed | Several:
    """The other way."""
    if isinstance(type, str):
        return Computed(type, value)
    return Several(tuple(unpacked(b, each, b.extract_value(value, i)) for i, each in enumerate(type)))


#: Functions of Python that kernels call, with known arguments or computed ones.
_BUILTINS: dict[Callable[..., Any], Callable[..., Value]] = {
    min: lambda b, *operands: arithmetic.extreme(b, False, *operands),
    max: lambda b, *operands: arithmetic.extreme(b, True, *operands),
    abs: arithmetic.absolute,
    int: arithmetic.as_integer,
    float: lambda b, value: as_type(b, value, "f64"),
    bool: lambda b, value: Computed("bool", arithmetic.is_true(b, value)),
    **{
        function: lambda b, *operands, function=function: arithmetic.mathematics(b, function, *operands)
        for function in arithmetic.MATHEMATICS
    },
}


def of_builtin(b: ir.IRBuilder, function: Any, arguments: Sequence[Value]) -> Value:
    """The result of a function of Python that the language has, such as ``min``.  Raises Refusal for others."""
    try:
        emit = _BUILTINS.get(function)
    except TypeError:  # not hashable, so none of these
        emit = None
    if emit is None:
        raise Refusal(
            f"kernels cannot call {described(Known(function))}",
            "they call device functions, intrinsics, range, min, max, abs, int, float, bool and some functions of math",
        )
    if all(isinstance(each, Known) for each in arguments):
        return arithmetic.folded(function, *(each for each in arguments if isinstance(each, Known)))
    if function not in (min, max) and function not in arithmetic.MATHEMATICS and len(arguments) != 1:
        raise Refusal(f"{function.__name__} does not take {len(arguments)} arguments", "it takes one")
    return emit(b, *arguments)


def arguments_of(callee: DeviceFunction, given: Sequence[Value], by_name: Mapping[str, Value]) -> list[Value]:
    """The arguments of a device function in the order of its parameters."""
    code, defaults = callee.function.__code__, callee.function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    by_default = dict(zip(names[len(names) - len(defaults) :], map(known, defaults), strict=True))
    return _in_order(code.co_name, names, by_default, given, by_name)


def _in_order(
    name: str,
    parameters: Sequence[str],
    by_default: Mapping[str, Value],
    given: Sequence[Value],
    by_name: Mapping[str, Value],
) -> list[Value]:
    """The arguments of a call in the order of its parameters."""
    values = {**by_default, **dict(zip(parameters, given, strict=False)), **by_name}
    twice = set(parameters[: len(given)]) & by_name.keys()
    if len(given) > len(parameters) or values.keys() != set(parameters) or twice:
        call = ", ".join([*(["..."] * len(given)), *(f"{each}=..." for each in by_name)])
        raise Refusal(
            f"{name}({', '.join(parameters)}) is called as {name}({call})", "give each parameter one argument"
        )
    return [values[each] for each in parameters]
