"""Mechanical changes of source: a bound, a sign, an axis, a type, a swapped argument, a dropped statement, ...

Each operator takes a node of a function's syntax tree and answers the nodes that may stand in its place.  A *site* is
an operator, a function and a number: the sites of an operator in a function are counted in the order of the source.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from typing import NamedTuple

_ANY_ORDER = {
    "isinstance", "getattr", "zip", "min", "max", "minimum", "maximum", "fmin", "fmax", "logaddexp", "accessing",
}  # fmt: skip
"""Calls whose first two arguments make no difference in the other order, or none that is a fault of a device."""

Change = Callable[[ast.AST], ast.AST | None]

_CLOSE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.MatMult)
_TYPES = {
    "float64": "float16", "float32": "float16", "uint32": "int32", "uint16": "uint8", "uint8": "int8",
    "float16": "float32", "int32": "int16",
}  # fmt: skip


def _compare(kinds: dict[type[ast.cmpop], type[ast.cmpop]]) -> Change:
    def change(node: ast.AST) -> ast.AST | None:
        if not isinstance(node, ast.Compare) or type(node.ops[0]) not in kinds:
            return None
        return ast.Compare(node.left, [kinds[type(node.ops[0])](), *node.ops[1:]], node.comparators)

    return change


def _arithmetic(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
    return None


def _operands(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, _ORDERED):
        return ast.BinOp(node.right, node.op, node.left)
    return None


def _sign(node: ast.AST) -> ast.AST | None:
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    if negative and not isinstance(node.operand, ast.Constant):  # type: ignore[attr-defined]
        return node.operand  # type: ignore[attr-defined,no-any-return]
    return None


def _axis(node: ast.AST) -> ast.AST | None:
    """An axis counted from the end: the one before it."""
    last = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
    if last and isinstance(node.operand.value, int):  # type: ignore[attr-defined]
        return ast.UnaryOp(ast.USub(), ast.Constant(node.operand.value + 1))  # type: ignore[attr-defined]
    return None


def _constant(node: ast.AST) -> ast.AST | None:
    """A number: the next one."""
    if not isinstance(node, ast.Constant) or isinstance(node.value, bool):
        return None
    if isinstance(node.value, int):
        return ast.Constant(node.value + 1)
    return ast.Constant(node.value * 1.01 + 0.01) if isinstance(node.value, float) else None


def _bound(node: ast.AST) -> ast.AST | None:
    """The end of a slice or range, or else its beginning: one less."""
    one = ast.Constant(1)
    if isinstance(node, ast.Slice):
        if node.upper is not None:
            return ast.Slice(node.lower, ast.BinOp(node.upper, ast.Sub(), one), node.step)
        return None if node.lower is None else ast.Slice(ast.BinOp(node.lower, ast.Add(), one), None, node.step)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        last = min(1, len(node.args) - 1)
        shorter = [*node.args[:last], ast.BinOp(node.args[last], ast.Sub(), one), *node.args[last + 1 :]]
        return ast.Call(node.func, shorter, [])
    return None


def _type(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in _TYPES:
        return ast.Attribute(node.value, _TYPES[node.attr], node.ctx)
    return None


def _arguments(node: ast.AST) -> ast.AST | None:
    """The first two arguments of a call, in the other order."""
    if not isinstance(node, ast.Call) or len(node.args) < 2 or any(isinstance(a, ast.Starred) for a in node.args[:2]):
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in _ANY_ORDER:
        return None
    return ast.Call(node.func, [node.args[1], node.args[0], *node.args[2:]], node.keywords)


def _boolean(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    return None


def _negated(node: ast.AST) -> ast.AST | None:
    if isinstance(node, (ast.If, ast.IfExp)) and _compare(_OPPOSITE)(node.test) is not None:
        return None  # the opposite comparison
    if isinstance(node, ast.If):
        return ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    if isinstance(node, ast.IfExp):
        return ast.IfExp(node.test, node.orelse, node.body)
    return None


def _never(*nodes: ast.stmt) -> ast.If:
    """Statements that stay in the function, with the names that they bind, and are not executed."""
    return ast.If(ast.Constant(False), list(nodes), [])


def _dropped(node: ast.AST) -> ast.AST | None:
    """A call, or the change of something that is there already, left out."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return _never(node)
    if isinstance(node, ast.AugAssign):
        return _never(node)
    if isinstance(node, ast.Assign) and all(isinstance(t, (ast.Attribute, ast.Subscript)) for t in node.targets):
        return _never(node)
    again = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    if again and any(isinstance(n, ast.Name) and n.id == node.targets[0].id for n in ast.walk(node.value)):  # type: ignore[attr-defined]
        return _never(node)  # type: ignore[arg-type]
    return None


def _unguarded(node: ast.AST) -> ast.AST | None:
    """What a condition guards never happens."""
    if isinstance(node, ast.If) and not isinstance(node.body[0], ast.Raise):
        return ast.If(ast.BoolOp(ast.And(), [ast.Constant(False), node.test]), node.body, node.orelse)
    return None


def _unchecked(node: ast.AST) -> ast.AST | None:
    """What a check raises is not raised."""
    if isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise):
        return ast.If(ast.BoolOp(ast.And(), [ast.Constant(False), node.test]), node.body, node.orelse)
    return None


def _unclaimed(node: ast.AST) -> ast.AST | None:
    """What happens under a lock or claim happens without."""
    if isinstance(node, ast.With) and all(item.optional_vars is None for item in node.items):
        return ast.If(ast.Constant(True), node.body, [_never(node)])
    return None


OPERATORS: dict[str, Change] = {
    "bound": _bound,
    "axis": _axis,
    "sign": _sign,
    "type": _type,
    "constant": _constant,
    "close comparison": _compare(_CLOSE),
    "opposite comparison": _compare(_OPPOSITE),
    "arithmetic": _arithmetic,
    "swapped operands": _operands,
    "swapped arguments": _arguments,
    "and, or": _boolean,
    "negated condition": _negated,
    "condition never holds": _unguarded,
    "check left out": _unchecked,
    "claim left out": _unclaimed,
    "statement left out": _dropped,
}
"""By name; each answers what stands in a node's place, or None if it has nothing to do with the node."""


class Site(NamedTuple):
    """Where an operator changes something.  ``before``, ``after``: source, on one line."""

    function: str
    operator: str
    number: int
    before: str
    after: str


Function = ast.FunctionDef | ast.AsyncFunctionDef


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


def sites(function: str, tree: Function) -> Iterator[Site]:
    """All sites of a function, operator by operator."""
    nodes = list(_changeable(tree))
    for operator, change in OPERATORS.items():
        number = 0
        for node in nodes:
            after = change(node)
            if after is not None:
                yield Site(function, operator, number, _line(node), _line(after))
                number += 1


def changed(tree: Function, operator: str, number: int) -> Function:
    """A copy of a function with one site changed.  Raises LookupError if it has fewer."""
    made = copy.deepcopy(tree)
    left = number
    for node in _changeable(made):
        after = OPERATORS[operator](node)
        if after is None:
            continue
        if left == 0:
            located = ast.fix_missing_locations(ast.copy_location(after, node))
            replaced = _Replacing(node, located).visit(made)
            assert isinstance(replaced, Function)
            return replaced
        left -= 1
    raise LookupError(f"{tree.name} has no site {number} of {operator!r}")


class _Replacing(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old = old
        self._new = new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else self.generic_visit(node)


def _changeable(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function's body, in the order of the source, without messages and annotations."""

    def visit(node: ast.AST) -> Iterator[ast.AST]:
        if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr)):
            return
        yield node
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from visit(node.value)
            return
        if isinstance(node, ast.UnaryOp) and _axis(node) is not None:
            return  # its number is the axis
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.arguments):
                yield from visit(child)

    for statement in function.body:
        yield from visit(statement)


def _line(node: ast.AST) -> str:
    """A node as source on one line."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Constant):
        if node.test.value is False:
            return "nothing"
        return "; ".join(_line(each) for each in node.body)
    lines = ast.unparse(ast.fix_missing_locations(node)).splitlines()
    return lines[0] if len(lines) == 1 else f"{lines[0]} ..."
