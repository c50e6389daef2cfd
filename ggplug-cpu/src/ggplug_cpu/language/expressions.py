"""Expressions of the language."""

# llvmlite is untyped
# mypy: allow-untyped-calls

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from llvmlite import ir

from ggplug_cpu.language import arithmetic, calls
from ggplug_cpu.language.arithmetic import as_type, common_type, is_true
from ggplug_cpu.language.scopes import Scope
from ggplug_cpu.language.sources import Refusal, Source
from ggplug_cpu.language.values import (
    Bound,
    Computed,
    Declared,
    Known,
    Several,
    Value,
    described,
    elements,
    is_named_tuple,
    known,
    type_of,
)
from ggplug_cpu.recorded import DeviceFunction, Intrinsic, Record

#: What calls a device function: its LLVM code is another one's matter.
Calling = Callable[[ir.IRBuilder, DeviceFunction, Sequence[Value]], Value]

_MEMORY = "use a tuple, or read numbers from memory: a field of integers() or reals(), simd.load"
#: What to do in the place of expressions that the language has not.
_REMEDIES: dict[type[ast.expr], str] = {
    ast.List: _MEMORY,
    ast.ListComp: _MEMORY,
    ast.Dict: _MEMORY,
    ast.Lambda: "define device functions outside of the body, in the factory",
}

NO_NAMES: Mapping[str, Value] = MappingProxyType({})


class Expressions:
    """Emits the code of one function's expressions."""

    def __init__(self, b: ir.IRBuilder, source: Source, scope: Scope, call: Calling) -> None:
        self._b = b
        self._source = source
        self._scope = scope
        self._call = call

    def value(self, node: ast.expr) -> Value:
        """The value of an expression.  Raises Refusal."""
        try:
            emit = getattr(self, f"_emit_{type(node).__name__.lower()}", None)
            if emit is None:
                remedy = _REMEDIES.get(type(node), "ggplug_cpu/language/__init__.py says what they have")
                raise Refusal(f"kernels have no {type(node).__name__}", remedy)
            found: Value = emit(node)
            return found
        except Refusal as refusal:
            refusal.at(self._source, node)
            raise

    def truth(self, node: ast.expr) -> bool | ir.Value:
        """Whether an expression is true: a bool of Python where that is known, else LLVM's."""
        value = self.value(node)
        try:
            return is_true(self._b, value)
        except Refusal as refusal:
            refusal.at(self._source, node)
            raise

    def _emit_constant(self, node: ast.Constant) -> Value:
        return known(node.value)

    def _emit_name(self, node: ast.Name) -> Value:
        return self._scope.read(node.id)

    def _emit_tuple(self, node: ast.Tuple) -> Value:
        return Several(tuple(map(self.value, node.elts)))

    def _emit_attribute(self, node: ast.Attribute) -> Value:
        owner = self.value(node.value)
        if isinstance(owner, Declared):
            return calls.attribute(self._b, owner, _attribute(owner.kind, node.attr))
        if isinstance(owner, Several) and node.attr in getattr(owner.kind, "_fields", ()):
            number: int = owner.kind._fields.index(node.attr)
            return owner.items[number]
        if not isinstance(owner, Known):
            raise Refusal(
                f"{described(owner)} has no attributes",
                "annotate a parameter with its declaration, a class or what the module calls it, to read its fields; "
                "modules and records have attributes",
            )
        return known(_attribute(owner.value, node.attr))

    def _emit_subscript(self, node: ast.Subscript) -> Value:
        owner, index = self.value(node.value), self.value(node.slice)
        if isinstance(owner, Bound):
            return self._called(owner, [index])
        if not isinstance(index, Known):
            raise Refusal("the index is computed", "the index of a tuple is known; memory is read by simd.load")
        if isinstance(owner, Known):
            found = arithmetic.folded(lambda value, at: value[at], owner, index)
            return known(found.value)
        items, at = elements(owner), index.value
        if type(at) is not int or not -len(items) <= at < len(items):
            raise Refusal(f"a tuple of {len(items)} has no element {at!r}", "the first has index 0")
        return items[at]

    def _emit_unaryop(self, node: ast.UnaryOp) -> Value:
        return arithmetic.unary(self._b, type(node.op), self.value(node.operand))

    def _emit_binop(self, node: ast.BinOp) -> Value:
        return self.operated(node.op, self.value(node.left), self.value(node.right))

    def operated(self, symbol: ast.operator, left: Value, right: Value) -> Value:
        """Two values by an operator of two."""
        return arithmetic.binary(self._b, type(symbol), left, right)

    def _emit_compare(self, node: ast.Compare) -> Value:
        if len(node.ops) > 1:
            raise Refusal("several comparisons in one", "join them by and")
        return arithmetic.compare(self._b, type(node.ops[0]), self.value(node.left), self.value(node.comparators[0]))

    def _emit_boolop(self, node: ast.BoolOp) -> Value:
        """What is right is computed only where what is left does not decide."""
        decisive = isinstance(node.op, ast.Or)
        ways: list[tuple[ir.Block, Value]] = []
        end = None
        value: Value = Known(not decisive)
        for each in node.values:
            if isinstance(value, Computed):
                more = self._b.append_basic_block("more")
                end = end or self._b.append_basic_block("decided")
                ways.append((self._b.block, as_type(self._b, Known(decisive), "bool")))
                self._b.cbranch(value.ir, *((end, more) if decisive else (more, end)))
                self._b.position_at_end(more)
            value = self._operand(each)
            if is_true(self._b, value) is decisive:
                break
        if end is None:
            return value
        if isinstance(value, Known) and not isinstance(value.value, bool):
            raise _no_bool(value)
        ways.append((self._b.block, as_type(self._b, value, "bool")))
        self._b.branch(end)
        self._b.position_at_end(end)
        return self._merged(ways)

    def _operand(self, node: ast.expr) -> Known | Computed:
        """An operand of ``and`` or ``or``, which is a bool if it is computed."""
        value = self.value(node)
        if isinstance(value, Known) or (isinstance(value, Computed) and value.type == "bool"):
            return value
        refusal = _no_bool(value)
        refusal.at(self._source, node)
        raise refusal

    def _emit_ifexp(self, node: ast.IfExp) -> Value:
        test = self.truth(node.test)
        if isinstance(test, bool):
            return self.value(node.body if test else node.orelse)
        blocks = [self._b.append_basic_block(name) for name in ("then", "else", "either")]
        self._b.cbranch(test, *blocks[:2])
        found: list[tuple[ir.Block, Value]] = []
        for block, each in zip(blocks, (node.body, node.orelse), strict=False):
            self._b.position_at_end(block)
            found.append((block, self.value(each)))
            found[-1] = self._b.block, found[-1][1]
        values = [value for _, value in found]
        type = common_type(type_of(values[0]), type_of(values[1]))
        for i, (block, value) in enumerate(found):
            self._b.position_at_end(block)
            found[i] = block, as_type(self._b, value, type)
            self._b.branch(blocks[2])
        self._b.position_at_end(blocks[2])
        return self._merged(found)

    def _merged(self, found: Sequence[tuple[ir.Block, Value]]) -> Value:
        """What is one of several values of one type, by the block that control comes from."""
        first = found[0][1]
        if isinstance(first, Several):
            rows = [(block, elements(value)) for block, value in found]
            return Several(
                tuple(self._merged([(block, items[i]) for block, items in rows]) for i in range(len(first.items)))
            )
        assert isinstance(first, Computed)
        phi = self._b.phi(first.ir.type)
        for block, value in found:
            assert isinstance(value, Computed)
            phi.add_incoming(value.ir, block)
        return Computed(first.type, phi)

    def _emit_call(self, node: ast.Call) -> Value:
        callee = self.value(node.func)
        given: list[Value] = []
        for each in node.args:
            given += elements(self.value(each.value)) if isinstance(each, ast.Starred) else [self.value(each)]
        by_name = {each.arg: self.value(each.value) for each in node.keywords if each.arg is not None}
        if len(by_name) < len(node.keywords):
            raise Refusal("arguments by name from a dictionary", "name each argument")
        return self._called(callee, given, by_name)

    def _called(self, callee: Value, given: Sequence[Value], by_name: Mapping[str, Value] = NO_NAMES) -> Value:
        """What a call gives."""
        if isinstance(callee, Bound):
            function: Any = callee.function
            given = [callee.owner, *given]
        elif isinstance(callee, Known):
            function = callee.value
        else:
            raise Refusal(
                f"{described(callee)} cannot be called", "only what is known when the kernel is compiled can be"
            )
        if isinstance(function, DeviceFunction):
            return self._call(self._b, function, calls.arguments_of(function, given, by_name))
        if is_named_tuple(function):
            return calls.named(function, given, by_name)
        if by_name:
            raise Refusal("arguments by name", "only device functions and named tuples take arguments by name")
        if isinstance(function, Intrinsic):
            return calls.of_intrinsic(self._b, function, given)
        if isinstance(function, type) and issubclass(function, Record):
            return calls.placed(self._b, function, given)
        return calls.of_builtin(self._b, function, given)


def _no_bool(value: Value) -> Refusal:
    return Refusal(f"{described(value)} is no bool", "compare operands of and and or with something")


def _attribute(thing: Any, name: str) -> Any:
    """An attribute of an object of Python."""
    try:
        return getattr(thing, name)
    except AttributeError as error:
        fields = ", ".join(getattr(thing, "fields", getattr(thing, "parts", ())))
        remedy = f"it declares {fields}" if fields else "attributes are those that Python sees"
        raise Refusal(str(error), remedy) from None
