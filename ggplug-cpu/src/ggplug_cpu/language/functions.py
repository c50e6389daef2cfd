"""Device functions and bodies of kernels as LLVM code: one function for each set of argument types."""

# llvmlite is untyped
# mypy: allow-untyped-calls

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from llvmlite import ir

from ggplug_cpu.language.arithmetic import as_type
from ggplug_cpu.language.calls import packed, unpacked
from ggplug_cpu.language.expressions import Expressions
from ggplug_cpu.language.names import VOID, Type, llvm_type
from ggplug_cpu.language.scopes import Scope
from ggplug_cpu.language.sources import Refusal, Source, source_of
from ggplug_cpu.language.statements import Statements
from ggplug_cpu.language.values import (
    NOTHING,
    Computed,
    Known,
    Several,
    Value,
    declared,
    is_named_tuple,
    kind_of,
    type_of,
)
from ggplug_cpu.loader import ENTRY
from ggplug_cpu.own_sources import is_of_package
from ggplug_cpu.recorded import Body, DeviceFunction, Fastmath, Record

_WORD = "i64"
#: The exported function, which calls the body of a kernel.
_ENTRY = """
define void @"{entry}"(i64 %ctx, i64 %params) nounwind {{
  call void {body}(i64 %ctx, i64 %params)
  ret void
}}
"""

_GLOBAL = re.compile(r'@"([^"]+)"')
_METADATA = re.compile(r"^!(\d+) = ")
_REFERENCE = re.compile(r"!(\d+)\b")


@dataclass(frozen=True)
class _Parameter:
    """A parameter of a function: computed of a type, or known.  ``kind``: what an address's attributes are of."""

    name: str
    type: Type | None
    value: Value | None = None
    kind: Any = None


@dataclass(eq=False)
class _Function:
    """A function as text, what its callers need to know of it, and the functions that it calls."""

    declaration: ir.Function
    result: Type
    text: str
    calls: list[_Function]


class Library:
    """Functions compiled for one target.

    A function of this package is compiled once, and kept (as text) as long as the device function that it comes from;
    one of a program once for each kernel, because what it reads may change.
    """

    def __init__(self, key: str, triple: str) -> None:
        self._key = key
        # What functions have in common: constants in memory, declarations of what is not compiled here, metadata.
        self._module = ir.Module("kernel")
        self._module.triple = triple
        self._count = 0
        self._unfinished: list[DeviceFunction] = []
        # Of the kernel that is being compiled: see _kept.
        self._looked_up: dict[DeviceFunction, dict[Any, _Function]] = {}

    def kernel(self, body: Body, fastmath: Fastmath) -> str:
        """The module of a kernel as text: one exported function ``void(i64 ctx, i64 params)``.  Raises Refusal.

        The text does not depend on which kernels were compiled before.
        """
        if not isinstance(body, FunctionType):
            raise Refusal(
                f"the factory returns {'None' if body is None else f'a {type(body).__name__}'} and no body",
                "end the factory with `return body`, body being a function (ctx, params)",
            )
        try:
            names = source_of(body).parameters
            if len(names) != 2:
                raise Refusal(f"a body with the parameters ({', '.join(names)})", "a body takes (ctx, params)")
            parameters = [_Parameter(name, _WORD, kind=_annotated(body, name)) for name in names]
            function = self._translated(body, parameters, fastmath)
        finally:
            self._unfinished.clear()
            self._looked_up.clear()
        if function.result != VOID:
            raise Refusal("the body returns a value", "a body returns nothing")
        entry = _ENTRY.format(entry=ENTRY, body=function.declaration.get_reference())
        called = _all(function)
        functions = [*(each.text for each in called), entry]
        text = "\n".join([self._header(functions), *functions])
        numbered = {each.declaration.name: f"function.{number}" for number, each in enumerate(called)}
        return _GLOBAL.sub(lambda found: f'@"{numbered.get(found[1], found[1])}"', text)

    def _header(self, functions: Sequence[str]) -> str:
        """What functions have in common, as far as these name it."""
        header = ir.Module("kernel")
        header.triple, header.metadata = self._module.triple, self._module.metadata
        named = {name for text in functions for name in _GLOBAL.findall(text)}
        header.globals.update((name, each) for name, each in sorted(self._module.globals.items()) if name in named)
        used = {number for text in functions for number in _REFERENCE.findall(text)}
        lines = ((line, _METADATA.match(line)) for line in str(header).splitlines())
        return "\n".join(line for line, found in lines if found is None or found[1] in used)

    def call(
        self, b: ir.IRBuilder, callee: DeviceFunction, arguments: Sequence[Value], calls: list[_Function]
    ) -> Value:
        """Emits a call of a device function, which is noted in ``calls``."""
        function, names = callee.function, callee.function.__code__.co_varnames
        parameters = [_parameter(function, name, value) for name, value in zip(names, arguments, strict=False)]
        compiled = self._compiled(callee, parameters)
        if compiled not in calls:
            calls.append(compiled)
        given = [
            packed(b, as_type(b, value, each.type))
            for value, each in zip(arguments, parameters, strict=True)
            if each.type is not None
        ]
        result = b.call(compiled.declaration, given)
        if compiled.result == VOID:
            return NOTHING
        return declared(unpacked(b, compiled.result, result), _annotated(function, "return"))

    def _kept(self, callee: DeviceFunction) -> dict[Any, _Function]:
        """The compiled functions of a device function: of a program's, those for this kernel."""
        found = self._looked_up.get(callee)
        if found is None:
            found = callee.materialised.setdefault(self._key, {}) if is_of_package(callee.function) else {}
            self._looked_up[callee] = found
        return found

    def _compiled(self, callee: DeviceFunction, parameters: Sequence[_Parameter]) -> _Function:
        kept = self._kept(callee)
        key = tuple(_identity(each) for each in parameters)
        found = kept.get(key)
        if found is None:
            if callee in self._unfinished:
                raise Refusal(
                    f"{callee.function.__qualname__} calls itself", "write a loop: functions are always inlined"
                )
            self._unfinished.append(callee)
            found = kept[key] = self._translated(callee.function, parameters, callee.fastmath)
            self._unfinished.remove(callee)
        return found

    def _translated(
        self, function: Callable[..., Any], parameters: Sequence[_Parameter], fastmath: Fastmath
    ) -> _Function:
        source = source_of(function)
        _check_parameters(source)
        self._count += 1
        types = [llvm_type(each.type) for each in parameters if each.type is not None]
        code = ir.Function(self._module, ir.FunctionType(ir.VoidType(), types), f"{source.name}.{self._count}")
        try:
            calls: list[_Function] = []
            result = self._emitted(code, function, source, parameters, calls)
            _allow(code, fastmath)
            return _Function(code, result, str(code), calls)
        finally:
            del self._module.globals[code.name]
            code.blocks.clear()  # only its type is needed from here on

    def _emitted(
        self,
        code: ir.Function,
        function: Callable[..., Any],
        source: Source,
        parameters: Sequence[_Parameter],
        calls: list[_Function],
    ) -> Type:
        """Fills in the blocks of a function; returns the type of its result."""
        code.linkage = "internal"
        code.attributes.add("alwaysinline")
        code.attributes.add("nounwind")
        entry, body, exit = (code.append_basic_block(name) for name in ("entry", "body", "exit"))
        b = ir.IRBuilder(entry)
        b.branch(body)
        b.position_at_end(body)
        scope = Scope(b, function)
        arguments = iter(code.args)
        names = [each for each in ast.walk(source.tree) if isinstance(each, ast.Name)]
        assigned = {each.id for each in names if isinstance(each.ctx, ast.Store)}
        for each in parameters:
            if isinstance(each.value, Known) and each.name not in assigned:
                scope.know(each.name, each.value)
                continue
            value = each.value if each.type is None else unpacked(b, each.type, next(arguments))
            assert value is not None
            scope.write(each.name, declared(value, each.kind) if isinstance(value, Computed | Several) else value)

        def call(b: ir.IRBuilder, callee: DeviceFunction, given: Sequence[Value]) -> Value:
            return self.call(b, callee, given, calls)

        statements = Statements(b, source, scope, Expressions(b, source, scope, call), exit)
        statements.body()
        b.position_at_end(exit)
        if statements.result is None or statements.result[0] == VOID:
            b.ret_void()
            return VOID
        type, place = statements.result
        _set_result(code, llvm_type(type))
        b.ret(b.load(place))
        return type


def _all(function: _Function) -> list[_Function]:
    """A function and all that it calls, directly or not, each once."""
    found = {function: None}
    waiting = [function]
    while waiting:
        for each in waiting.pop().calls:
            if each not in found:
                found[each] = None
                waiting.append(each)
    return list(found)


def _check_parameters(source: Source) -> None:
    arguments = source.tree.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
        refusal = Refusal(
            f"{source.name} has other parameters than plain ones", "functions of kernels take plain parameters"
        )
        refusal.at(source, source.tree)
        raise refusal


def _parameter(function: Callable[..., Any], name: str, value: Value) -> _Parameter:
    """Numbers of the source are computed in a callee, but not True, False and what is no number."""
    if isinstance(value, Known) and (isinstance(value.value, bool) or not value.is_number):
        return _Parameter(name, None, value)
    type = type_of(value)
    kind = _annotated(function, name) if type == _WORD else None
    return _Parameter(name, type, kind=kind or kind_of(value))


def _annotated(function: Callable[..., Any], parameter: str) -> Any:
    """The record or named tuple that a parameter is annotated with: a class, or what leads to it from the names of
    the module or of an enclosing function.
    """
    found = function.__annotations__.get(parameter)
    if isinstance(found, str):
        first, *others = found.split(".")
        found = functools.reduce(lambda owner, name: getattr(owner, name, None), others, _named(function, first))
    if is_named_tuple(found) or (isinstance(found, type) and issubclass(found, Record)):
        return found
    return None


def _named(function: Callable[..., Any], name: str) -> Any:
    """What a function calls ``name``; None if it has no value."""
    if name not in function.__code__.co_freevars:
        return function.__globals__.get(name)
    try:
        return (function.__closure__ or ())[function.__code__.co_freevars.index(name)].cell_contents
    except ValueError:
        return None


def _identity(parameter: _Parameter) -> tuple[Any, ...]:
    """What a function is compiled once for."""
    if parameter.type is not None:
        return parameter.type, parameter.kind and _Itself(parameter.kind)
    assert isinstance(parameter.value, Known)
    value = parameter.value.value
    return type(value), value if type(value) in (bool, str, type(None)) else _Itself(value)


class _Itself:
    """An object as a part of a key, which is equal to itself alone and lives as long as the key."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)


def _set_result(code: ir.Function, type: ir.Type) -> None:
    """The type of a function's result, which is known when its body is."""
    code.ftype = ir.FunctionType(type, code.ftype.args)
    code.type = code.ftype.as_pointer()
    code.return_value = ir.values.ReturnValue(code, type)


def _allow(code: ir.Function, fastmath: Fastmath) -> None:
    """Lets LLVM change floating-point arithmetic as ``fastmath`` says, in this function alone."""
    if not fastmath:
        return
    flags = ["fast"] if fastmath is True else sorted(fastmath)
    for block in code.blocks:
        for each in block.instructions:
            if each.opname in ("fadd", "fsub", "fmul", "fdiv", "frem", "fcmp"):
                each.flags = each.flags or flags
            elif isinstance(each, ir.CallInstr) and isinstance(each.type, ir.FloatType | ir.DoubleType):
                each.fastmath.update(flags)
