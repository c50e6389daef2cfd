"""Mechanical changes of source: a bound, a sign, an axis, a type, a swapped argument, a dropped statement, ...

An operator has something that may stand in the place of some nodes of a function's syntax tree.  Where it does so in a
function, these places are counted in the order of the source.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

OPERATORS = (
    "bound",
    "axis",
    "sign",
    "type",
    "constant",
    "close comparison",
    "opposite comparison",
    "arithmetic",
    "swapped operands",
    "swapped arguments",
    "and, or",
    "negated condition",
    "condition never holds",
    "check left out",
    "claim left out",
    "statement left out",
)
"""In the order in which their places are listed."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

_ANY_ORDER = frozenset(
    ["isinstance", "getattr", "zip", "min", "max", "minimum", "maximum", "fmin", "fmax", "logaddexp", "accessing"]
)
"""Calls whose first two arguments make no difference in the other order, or none that is a fault of a device."""


def _pairs(text: str) -> dict[str, str]:
    """What stands in the place of what."""
    names = text.split()
    return dict(zip(names[::2], names[1::2], strict=True))


def _nodes(text: str) -> dict[type[ast.AST], Any]:
    """The same of nodes of a syntax tree."""
    return {getattr(ast, old): getattr(ast, new) for old, new in _pairs(text).items()}


_CLOSE = _nodes("Lt LtE  LtE Lt  Gt GtE  GtE Gt")
_OPPOSITE = _nodes("Lt GtE  GtE Lt  Gt LtE  LtE Gt  Eq NotEq  NotEq Eq  Is IsNot  IsNot Is  In NotIn  NotIn In")
_ARITHMETIC = _nodes(
    "Add Sub  Sub Add  Mult Add  Div Mult  FloorDiv Mult  Mod Mult  Pow Mult"
    "  BitAnd BitOr  BitOr BitAnd  LShift RShift  RShift LShift"
)
_ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.MatMult)
_TYPES = _pairs(
    "float64 float16  float32 float16  uint32 int32  uint16 uint8  uint8 int8  float16 float32  int32 int16"
)


def _expression(operator: str, node: ast.AST) -> ast.AST | None:
    """What stands for an expression."""
    one = ast.Constant(1)
    match operator, node:
        case "bound", ast.Slice(lower, ast.expr() as upper, step):  # one less
            return ast.Slice(lower, ast.BinOp(upper, ast.Sub(), one), step)
        case "bound", ast.Slice(ast.expr() as lower, None, step):
            return ast.Slice(ast.BinOp(lower, ast.Add(), one), None, step)
        case "bound", ast.Call(ast.Name("range") as function, [end]):
            return ast.Call(function, [ast.BinOp(end, ast.Sub(), one)], [])
        case "bound", ast.Call(ast.Name("range") as function, [start, end, *rest]):
            return ast.Call(function, [start, ast.BinOp(end, ast.Sub(), one), *rest], [])
        case "axis", ast.UnaryOp(ast.USub(), ast.Constant(int(number))):  # counted from the end: the one before it
            return ast.UnaryOp(ast.USub(), ast.Constant(number + 1))
        case "sign", ast.UnaryOp(ast.USub(), operand) if not isinstance(operand, ast.Constant):
            return operand
        case "type", ast.Attribute(ast.Name() as module, name, context) if name in _TYPES:
            return ast.Attribute(module, _TYPES[name], context)
        case "constant", ast.Constant(int(number)) if not isinstance(number, bool):
            return ast.Constant(number + 1)
        case "constant", ast.Constant(float(number)):
            return ast.Constant(number * 1.01 + 0.01)
        case (("close comparison" | "opposite comparison"), ast.Compare(left, [first, *rest], comparators)):
            kinds = _CLOSE if operator == "close comparison" else _OPPOSITE
            return ast.Compare(left, [kinds[type(first)](), *rest], comparators) if type(first) in kinds else None
        case "arithmetic", ast.BinOp(left, symbol, right) if type(symbol) in _ARITHMETIC:
            return ast.BinOp(left, _ARITHMETIC[type(symbol)](), right)
        case "swapped operands", ast.BinOp(left, symbol, right) if isinstance(symbol, _ORDERED):
            return ast.BinOp(right, symbol, left)
        case "swapped arguments", ast.Call(function, [first, second, *rest], keywords):
            name = getattr(function, "attr", getattr(function, "id", ""))
            if name in _ANY_ORDER or isinstance(first, ast.Starred) or isinstance(second, ast.Starred):
                return None
            return ast.Call(function, [second, first, *rest], keywords)
        case "and, or", ast.BoolOp(symbol, values):
            return ast.BoolOp(ast.Or() if isinstance(symbol, ast.And) else ast.And(), values)
    return None


def _statement(operator: str, node: ast.AST) -> ast.AST | None:
    """What stands for a statement, or a condition."""
    match operator, node:
        case "negated condition", (ast.If(test) | ast.IfExp(test)) if _expression("opposite comparison", test):
            return None  # the opposite comparison
        case "negated condition", ast.If(test, body, otherwise):
            return ast.If(ast.UnaryOp(ast.Not(), test), body, otherwise)
        case "negated condition", ast.IfExp(test, body, otherwise):
            return ast.IfExp(test, otherwise, body)
        case (("condition never holds" | "check left out"), ast.If(test, body, otherwise)):
            if isinstance(body[0], ast.Raise) == (operator == "check left out"):
                return ast.If(ast.BoolOp(ast.And(), [ast.Constant(False), test]), body, otherwise)
        case "claim left out", ast.With(items, body) if all(item.optional_vars is None for item in items):
            return ast.If(ast.Constant(True), body, [_never(node)])
        case "statement left out", ast.Expr(ast.Call()) | ast.AugAssign():
            return _never(node)
        case "statement left out", ast.Assign(ts) if all(isinstance(t, ast.Attribute | ast.Subscript) for t in ts):
            return _never(node)
        case "statement left out", ast.Assign([ast.Name(name), *_], value):  # what changes a name that is there
            return _never(node) if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(value)) else None
    return None


def _never(node: Any) -> ast.If:
    """A statement that stays in the function, with the names that it binds, and is not executed."""
    return ast.If(ast.Constant(False), [node], [])


class Mechanical(NamedTuple):
    """What an operator does to a place of a function, which ``number`` counts.

    ``before``, ``after``: source on one line, for the reader, and to notice that the source has changed.
    """

    module: str
    function: str
    operator: str
    number: int
    before: str
    after: str

    @property
    def name(self) -> str:
        place = f"{self.module.removeprefix('ggplug.')}.{self.function}"
        which = f" {self.number + 1}" if self.number else ""
        return f"{place}, {self.operator}{which}: {self.before} -> {self.after}"


def functions(tree: ast.Module) -> dict[str, Function]:
    """The functions and methods of a module by qualified name; those inside of functions belong to these."""
    found: dict[str, Function] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, Function):
                found[prefix + node.name] = node
            elif isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")

    visit(tree.body, "")
    return found


def changes(module: str, function: str, tree: Function) -> Iterator[Mechanical]:
    """All changes of a function, operator by operator."""
    for operator in OPERATORS:
        for number, (node, after) in enumerate(_changes(tree, operator)):
            yield Mechanical(module, function, operator, number, _line(node), _line(after))


def changed(tree: Function, operator: str, number: int) -> Function:
    """A copy of a function with one place changed.  Raises LookupError if it has fewer."""
    made = copy.deepcopy(tree)
    for found, (node, after) in enumerate(_changes(made, operator)):
        if found == number:
            return _Replacing(node, ast.fix_missing_locations(ast.copy_location(after, node))).visit(made)  # type: ignore[no-any-return]
    raise LookupError(f"{tree.name} has no place {number} of {operator!r}")


class _Replacing(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old = old
        self._new = new

    def visit(self, node: ast.AST) -> Any:
        return self._new if node is self._old else self.generic_visit(node)


def _changes(function: Function, operator: str) -> Iterator[tuple[ast.AST, ast.AST]]:
    """The nodes that an operator changes, with what it makes of each."""
    for statement in function.body:
        for node in _changeable(statement):
            after = _expression(operator, node) or _statement(operator, node)
            if after is not None:
                yield node, after


def _changeable(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is inside of it, in the order of the source, without messages and annotations."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.arguments):
        return
    yield node
    inside = ast.iter_child_nodes(node)
    if isinstance(node, ast.AnnAssign):
        inside = iter([node.value] if node.value is not None else [])
    elif _expression("axis", node) is not None:
        return  # its number is the axis
    for child in inside:
        yield from _changeable(child)


def _line(node: ast.AST) -> str:
    """A node as source on one line."""
    match node:
        case ast.If(ast.Constant(False)):
            return "nothing"
        case ast.If(ast.Constant(True), body):
            return "; ".join(map(_line, body))
    lines = ast.unparse(ast.fix_missing_locations(node)).splitlines()
    return lines[0] if len(lines) == 1 else f"{lines[0]} ..."
