"""Statements of the language."""

# llvmlite is untyped
# mypy: allow-untyped-calls

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple

from llvmlite import ir

from ggplug_cpu.language import calls
from ggplug_cpu.language.arithmetic import as_type, compare, fits, number
from ggplug_cpu.language.calls import packed
from ggplug_cpu.language.expressions import Expressions
from ggplug_cpu.language.names import VOID, Type, keeps, spelled
from ggplug_cpu.language.scopes import Scope
from ggplug_cpu.language.sources import Refusal, Source
from ggplug_cpu.language.values import NOTHING, Computed, Known, Value, elements, type_of

#: What to do in the place of statements that the language has not.
_REMEDIES: dict[type[ast.stmt], str] = {
    ast.Assert: "kernels cannot raise: check arguments in Python, before the kernel is chosen",
    ast.Raise: "kernels cannot raise: check arguments in Python, before the kernel is chosen",
    ast.Try: "nothing raises in a kernel",
    ast.FunctionDef: "define device functions outside of the body, in the factory",
    ast.With: "call what is to be done",
    ast.Import: "import in the module",
    ast.ImportFrom: "import in the module",
    ast.Global: "kernels write memory, not variables of Python",
    ast.Nonlocal: "kernels write memory, not variables of Python",
}


class _Loop(NamedTuple):
    """Where ``continue`` and ``break`` go."""

    following: ir.Block
    end: ir.Block


class Statements:
    """Emits the code of one function's body.  The function ends in the block ``exit``."""

    def __init__(self, b: ir.IRBuilder, source: Source, scope: Scope, expressions: Expressions, exit: ir.Block) -> None:
        self._b = b
        self._source = source
        self._scope = scope
        self._expressions = expressions
        self._exit = exit
        self._loops: list[_Loop] = []
        #: The type of the result and where it is written; None as long as nothing was returned.
        self.result: tuple[Type, ir.Value] | None = None

    def body(self) -> None:
        """The whole function."""
        self._block(self._source.tree.body)
        if self._b.block.is_terminated:
            return
        if self.result is not None and self.result[0] != VOID:
            refusal = Refusal("it ends without a result", "return a value on every way")
            refusal.at(self._source, self._source.tree)
            raise refusal
        self._b.branch(self._exit)

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        for each in statements:
            if self._b.block.is_terminated:
                return  # behind a return, break or continue
            try:
                emit = getattr(self, f"_emit_{type(each).__name__.lower()}", None)
                if emit is None:
                    remedy = _REMEDIES.get(type(each), "ggplug_cpu/language/__init__.py says what kernels have")
                    raise Refusal(f"kernels have no {type(each).__name__.lower()}", remedy)
                emit(each)
            except Refusal as refusal:
                refusal.at(self._source, each)
                raise

    # -- simple ones

    def _emit_pass(self, node: ast.Pass) -> None:
        pass

    def _emit_expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self._expressions.value(node.value)

    def _emit_assign(self, node: ast.Assign) -> None:
        value = self._expressions.value(node.value)
        for target in node.targets:
            self._assign(target, value)

    def _emit_annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, self._expressions.value(node.value))

    def _emit_augassign(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, ast.Name):
            raise Refusal("only variables are assigned to", "write memory by simd.store")
        before = self._scope.read(node.target.id)
        self._assign(node.target, self._expressions.operated(node.op, before, self._expressions.value(node.value)))

    def _assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self._scope.write(target.id, value)
        elif isinstance(target, ast.Tuple | ast.List):
            items = elements(value)
            if len(items) != len(target.elts):
                raise Refusal(f"{len(target.elts)} names for a tuple of {len(items)}", "give each element a name")
            for each, item in zip(target.elts, items, strict=True):
                self._assign(each, item)
        elif isinstance(target, ast.Attribute):
            calls.assign(self._b, self._expressions.value(target.value), target.attr, value)
        else:
            raise Refusal("only variables and words of records are assigned to", "write memory by simd.store")

    def _emit_return(self, node: ast.Return) -> None:
        value = NOTHING if node.value is None else self._expressions.value(node.value)
        type = VOID if value == NOTHING else type_of(value)
        if self.result is None:
            self.result = type, None if type == VOID else self._scope.place(type, "result")
        wanted, place = self.result
        if not _becomes(type, wanted):
            raise Refusal(f"it returns {spelled(type)}, and before {spelled(wanted)}", "return one type on every way")
        if wanted != VOID:
            self._b.store(packed(self._b, as_type(self._b, value, wanted)), place)
        self._b.branch(self._exit)

    # -- branches and loops

    def _emit_if(self, node: ast.If) -> None:
        test = self._expressions.truth(node.test)
        if isinstance(test, bool):
            self._block(node.body if test else node.orelse)
            return
        then, other, end = (self._b.append_basic_block(name) for name in ("then", "else", "end"))
        self._b.cbranch(test, then, other)
        before = self._scope.set
        after: list[frozenset[str]] = []
        for block, statements in ((then, node.body), (other, node.orelse)):
            self._b.position_at_end(block)
            self._scope.set = before
            self._block(statements)
            if not self._b.block.is_terminated:
                self._b.branch(end)
                after.append(self._scope.set)
        self._b.position_at_end(end)
        if after:
            self._scope.set = frozenset.intersection(*after)
        else:
            self._b.unreachable()

    def _emit_while(self, node: ast.While) -> None:
        head = self._b.append_basic_block("while")
        self._b.branch(head)
        self._b.position_at_end(head)
        test = self._expressions.truth(node.test)
        if test is False and not node.orelse:
            return
        inner, end = self._b.append_basic_block("do"), self._b.append_basic_block("done")
        if isinstance(test, bool):
            self._b.branch(inner if test else end)
        else:
            self._b.cbranch(test, inner, end)
        self._repeat(node, inner, _Loop(head, end))
        self._b.branch(head)
        self._b.position_at_end(end)
        if test is True and not _breaks(node):
            self._b.unreachable()

    def _emit_for(self, node: ast.For) -> None:
        start, stop, step = self._range(node.iter)
        if not isinstance(node.target, ast.Name):
            raise Refusal("the target of a loop is one name", "for i in range(...)")
        first, last, increment = (number(self._b, each, "i64") for each in (start, stop, step))
        if isinstance(step, Known):
            _check_step(stop, int(step.value))
        head, inner, following, end = (self._b.append_basic_block(name) for name in ("for", "do", "next", "done"))
        before = self._b.block
        self._b.branch(head)
        self._b.position_at_end(head)
        index = self._b.phi(first.type)
        index.add_incoming(first, before)
        self._b.cbranch(self._goes_on(Computed("i64", index), Computed("i64", last), step), inner, end)
        set_before = self._scope.set
        self._b.position_at_end(inner)
        self._scope.write(node.target.id, Computed("i64", index))
        self._repeat(node, inner, _Loop(following, end))
        self._scope.set = set_before
        self._b.branch(following)
        self._b.position_at_end(following)
        index.add_incoming(self._b.add(index, increment, flags=("nsw",)), following)
        self._b.branch(head)
        self._b.position_at_end(end)

    def _repeat(self, node: ast.For | ast.While, inner: ir.Block, loop: _Loop) -> None:
        """The body of a loop; what is first set there is not set behind it."""
        if node.orelse:
            raise Refusal("a loop has no else", "set a variable before a break")
        before = self._scope.set
        self._loops.append(loop)
        self._b.position_at_end(inner)
        self._block(node.body)
        self._loops.pop()
        self._scope.set = before
        if self._b.block.is_terminated:  # what follows has somewhere to stand, and is never reached
            self._b.position_at_end(self._b.append_basic_block("never"))

    def _range(self, node: ast.expr) -> tuple[Value, Value, Value]:
        """Start, stop and step of ``range(...)``."""
        if isinstance(node, ast.Call) and self._expressions.value(node.func) == Known(range) and not node.keywords:
            match [self._expressions.value(each) for each in node.args]:
                case [stop]:
                    return Known(0), stop, Known(1)
                case [start, stop]:
                    return start, stop, Known(1)
                case [start, stop, step]:
                    return start, stop, step
        raise Refusal("a loop that is not over range(...)", "for i in range(start, stop, step)")

    def _goes_on(self, index: Computed, last: Computed, step: Value) -> ir.Value:
        below, above = (compare(self._b, kind, index, last) for kind in (ast.Lt, ast.Gt))
        assert isinstance(below, Computed)
        assert isinstance(above, Computed)
        if isinstance(step, Known):
            return below.ir if step.value > 0 else above.ir
        up, down = (number(self._b, compare(self._b, kind, step, Known(0)), "bool") for kind in (ast.Gt, ast.Lt))
        return self._b.select(up, below.ir, self._b.and_(down, above.ir))

    def _emit_continue(self, node: ast.Continue) -> None:
        self._b.branch(self._loops[-1].following)

    def _emit_break(self, node: ast.Break) -> None:
        self._b.branch(self._loops[-1].end)


def _check_step(stop: Value, step: int) -> None:
    """Raises Refusal for a step of which it is known that it does not lead to the stop."""
    if step == 0:
        raise Refusal("the step is 0", "a step is positive or negative")
    if isinstance(stop, Known) and not fits(stop.value + step - (1 if step > 0 else -1)):
        raise Refusal("the index after the last one may not fit into 64 bits", "stop the loop earlier")


def _becomes(type: Type, wanted: Type) -> bool:
    if isinstance(type, tuple) and isinstance(wanted, tuple) and len(type) == len(wanted):
        return all(map(_becomes, type, wanted))
    return type == wanted or keeps(type, wanted)


def _breaks(loop: ast.While) -> bool:
    """Whether a ``break`` ends this loop."""
    waiting: list[ast.AST] = list(loop.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Break):
            return True
        if not isinstance(node, ast.For | ast.While):
            waiting += ast.iter_child_nodes(node)
    return False
