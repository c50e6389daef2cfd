"""Programs: several formulas computed one after the other on every element, with one pass over memory.

A program is text, so that it can be a kernel's argument::

    add(x0,x1);gelu(r0)                     r0 = x0 + x1; the result is gelu(r0)
    mul(x0,x1)>f16;add(r0,x2)               r0 is rounded to f16, as if it had been written and read again

``x0``, ``x1``, ... are sources, ``r0``, ``r1``, ... results of earlier steps.  The parameters of all
steps are numbered in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ggplug_cpu import simd
from ggplug_cpu.compiler import Intrinsic
from ggplug_cpu.parts.formulas import FORMULAS, Formula
from ggplug_cpu.simd import halves, values
from ggplug_cpu.simd.values import F32, I64, Value, emitted, vector

#: Types that a step's result may be rounded to.
_ROUNDED: dict[str, Callable[[Value], Value]] = {
    "f16": lambda v: halves.emit_widen_f16(halves.emit_narrow_f16(v)),
    "bf16": lambda v: halves.emit_widen_bf16(halves.emit_narrow_bf16(v)),
}

Constant = Callable[[int], Value]


@dataclass(frozen=True)
class FormulaStep:
    """A formula, the names of its operands, and the type that its result is rounded to (empty for f32)."""

    formula: Formula
    operands: tuple[str, ...]
    rounded: str


@dataclass(frozen=True)
class Program:
    """The steps in order; the result of the last one is the program's.  ``sources``: the number of sources."""

    steps: tuple[FormulaStep, ...]
    sources: int

    @property
    def constants(self) -> int:
        """The number of parameters of all steps."""
        return sum(step.formula.parameters for step in self.steps)

    def result(self, sources: Sequence[Value], constant: Constant) -> Value:
        """The result for a vector of every source; ``constant`` gives the steps' parameters by number, as f32."""
        known = {f"x{i}": source for i, source in enumerate(sources)}
        used = 0
        for i, step in enumerate(self.steps):
            vectors = [known[operand] for operand in step.operands]
            numbers = [constant(used + k).splat(vectors[0].count) for k in range(step.formula.parameters)]
            used += len(numbers)
            result = step.formula.emit(*vectors, *numbers)
            known[f"r{i}"] = _ROUNDED[step.rounded](result) if step.rounded else result
        return known[f"r{len(self.steps) - 1}"]

    def emit(self, y: Value, sources: Sequence[Value], n: Value, constant: Constant) -> None:
        """Emits code that computes ``n`` elements from the f32 at ``sources``, and stores them as f32 at ``y``.

        ``y`` may be one of the sources.
        """

        def visit(at: Value, mask: Value | None, _: list[Value]) -> list[Value]:
            write(y + at, self.result([read(x + at, mask) for x in sources], constant), mask)
            return []

        over_vectors(n, [], visit)


#: ``visit(at, mask, carried)`` processes the vector ``at`` bytes after the beginning of a row.
Visit = Callable[[Value, Value | None, list[Value]], list[Value]]


def over_vectors(n: Value, carried: Sequence[Value], visit: Visit) -> list[Value]:
    """Emits code that visits ``n`` f32, a vector at a time; a partial last vector has a mask.

    Returns the carried values after the last vector, as :func:`~ggplug_cpu.simd.values.loop` does.
    """
    width = simd.width("f32")
    rest = n & (width - 1)
    carried = values.loop(n.lshr(width.bit_length() - 1), carried, lambda i, now: visit(i * (4 * width), None, now))
    at, mask = (n - rest) * 4, values.first_lanes(width, rest)
    return values.loop(rest.unequal(0).zext(I64), carried, lambda _, now: visit(at, mask, now))


def read(place: Value, mask: Value | None) -> Value:
    """A vector of f32 from memory, or the lanes that the mask chooses."""
    lanes = vector(F32, simd.width("f32"))
    return values.load(place, lanes) if mask is None else values.masked_load(place, lanes, mask)


def write(place: Value, numbers: Value, mask: Value | None) -> None:
    """A vector of f32 to memory, or the lanes that the mask chooses."""
    if mask is None:
        values.store(place, numbers)
    else:
        values.masked_store(place, numbers, mask)


@functools.cache
def row_program(text: str) -> Intrinsic:
    """``row_program("add(x0,x1)")(y, x0, x1, n)``: a program on rows of ``n`` f32; its constants follow, as f64."""
    program = parsed(text)

    def emit(y: Value, *operands: Value) -> None:
        sources, n, numbers = operands[: program.sources], operands[program.sources], operands[program.sources + 1 :]
        program.emit(y, sources, n, lambda index: numbers[index].convert(F32))

    words = ["i64"] * (program.sources + 2) + ["f64"] * program.constants
    return emitted(f"void({', '.join(words)})")(emit)


def parsed(text: str) -> Program:
    """A program from its text."""
    steps = []
    for each in text.split(";"):
        call, _, rounded = each.partition(">")
        name, _, operands = call.rstrip(")").partition("(")
        steps.append(FormulaStep(FORMULAS[name], tuple(operands.split(",")), rounded))
    numbers = [int(operand[1:]) for step in steps for operand in step.operands if operand[0] == "x"]
    return Program(tuple(steps), max(numbers, default=-1) + 1)
