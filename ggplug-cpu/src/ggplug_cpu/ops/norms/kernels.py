"""Normalisation of rows: each is scaled by a number computed from it.

Sums are f64, as in ggml; the rest is f32.  A row is computed by one thread.  Where the scale factor or
a distance from the mean may leave the range of f32, the row is multiplied by a power of two before.  Programs may
compute the row first (the sum of a residual and another row), and the result from the normalised row (scale and shift):
see :func:`norm`.
"""

from __future__ import annotations

import functools
import math
from contextlib import nullcontext

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, DeviceFunction, Intrinsic, device_function, kernel
from ggplug_cpu.context import scratch
from ggplug_cpu.parameters import emitted_number, real, reals
from ggplug_cpu.parts.nest import Places, RowOperand, Rows, destination_row, over_rows, source_row
from ggplug_cpu.parts.programs import over_vectors, parsed, read, write
from ggplug_cpu.parts.rows import ARGUMENTS, read_rows, write_row
from ggplug_cpu.parts.sums import add_to_moments, no_moments, totals
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import F32, F64, Value, emitted

#: Op's name -> (first step of the program after it, how many parameters of the row that step takes).
FIRST_STEPS = {"norm": ("normalised(x0)", 2), "rms_norm": ("resized(x0)", 1), "l2_norm": ("resized(x0)", 1)}

_LARGE, _SMALL = 1e33, 1e-36
"""Norms of rows between which nothing leaves the range of f32: a distance is at most the size times the root of
2**31.
"""
_DOWN, _UP = 2.0**-64, 2.0**64


class Norm(Rows):
    """Rows of the result along ne0; the other operands follow: see :func:`norm_parameters`."""

    y = destination_row()
    eps = real()
    constants = reals()
    """The parameters of the steps of both programs."""


@functools.cache
def norm_parameters(before: int, behind: int, keeps: bool) -> type[Norm]:
    """The parameters of :func:`norm`.

    ``x0``, ``x1``, ...: the sources of the program ``before``; ``w0``, ``w1``, ...: those of the program ``behind``;
    ``row``: where the row is stored, if the kernel ``keeps`` it.
    """
    fields = {f"x{i}": source_row() for i in range(before)} | {f"w{i}": source_row() for i in range(behind)}
    return type("Norm", (Norm,), fields | ({"row": destination_row()} if keeps else {}))


def scratch_bytes(n: int, operands: int) -> int:
    """Bytes of scratch memory for rows of ``n`` elements; ``operands`` counts the result, too."""
    return ARGUMENTS + 4 * n * (operands + 1)


@kernel
def norm(name: str, before: str = "", behind: str = "", keeps: bool = False) -> Body:
    """(x - mean) / sqrt(var + eps), x / sqrt(mean(x²) + eps) or, for ``l2_norm``, x / max(|x|, eps).

    ``before``: the program that computes the row x; without it x is the source.  ``behind``: the program that computes
    the result; it begins with the op's :data:`FIRST_STEPS`.  ``keeps``: the row x is stored, too.
    """
    first_sources = parsed(before).sources if before else 1
    parameters = norm_parameters(first_sources, parsed(behind).sources - 1 if behind else 0, keeps)
    measure, finish = normalisation(parameters, name, before, behind)

    @device_function
    def visit(ctx: int, params: Norm, row: int, n: int, places: Places) -> None:
        memory = scratch(ctx)
        finish(memory, params, n, places, measure(memory, params, n, places))

    return over_rows(parameters, visit)


def normalisation(parameters: type[Norm], name: str, before: str, behind: str) -> tuple[DeviceFunction, DeviceFunction]:
    """``measure(memory, params, n, places)`` and ``finish(memory, params, n, places, measured)``.

    The operands' rows of ``n`` elements begin at ``places``.  ``memory``: scratch memory, with the row itself at
    :data:`~ggplug_cpu.parts.rows.ARGUMENTS`; ``measured``: the row's address, its mean and its scale factor.
    """
    find, compute = _place(parameters, before), _sums(parameters, name, before)
    result = _result(parameters, name, before, behind)
    large, small, down, up = _LARGE, _SMALL, _DOWN, _UP
    centred, euclidean = name == "norm", name == "l2_norm"

    @device_function
    def measure(memory: int, params: Norm, n: int, places: Places) -> tuple[int, float, float]:
        p = find(memory, params, n, places)
        centre, distances, squares = compute(memory, params, n, places, p)
        per_number, eps, mean = 1.0 / n, params.eps, 0.0
        if centred:
            mean = centre + distances * per_number
            # at least an n-th of the sum of squares remains, however far the row's first number is from the mean
            squares -= distances * distances * per_number
        size = math.sqrt(squares) if euclidean else math.sqrt(squares * per_number + eps)
        if euclidean and not size > eps:  # also where it is NaN
            size = eps
        if size > large or size < small:
            unit = down if size > large else up
            p = _multiplied(memory, p, n, unit)
            mean = mean * unit
            size = size * unit
        return p, mean, 1.0 / size

    @device_function
    def finish(memory: int, params: Norm, n: int, places: Places, measured: tuple[int, float, float]) -> None:
        p, mean, factor = measured
        result(memory, params, n, places, p, mean, factor)

    return measure, finish


@emitted("i64(i64, i64, i64, f64)")
def _multiplied(memory: Value, p: Value, n: Value, unit: Value) -> Value:
    """Multiplies the row at ``p`` by ``unit`` into scratch memory; returns its address there."""
    scratch_row = memory + ARGUMENTS
    parsed("resized(x0)").emit(scratch_row, [p], n, lambda index: unit.convert(F32))
    return scratch_row


def _scratch_rows(parameters: type[Norm], memory: Value, n: Value) -> dict[str, Value]:
    """The scratch rows of the operands, by name, and under the empty name that of the normalised row."""
    names = ["", *(name for name, field in parameters.fields.items() if isinstance(field, RowOperand))]
    return {name: memory + ARGUMENTS + n * (4 * i) for i, name in enumerate(names)}


def _named(parameters: type[Norm], places: Value) -> dict[str, tuple[RowOperand, Value]]:
    operands = {name: field for name, field in parameters.fields.items() if isinstance(field, RowOperand)}
    found = zip(operands.items(), values.unpacked(places), strict=True)
    return {name: (operand, place) for (name, operand), place in found}


def _read(parameters: type[Norm], prefix: str, memory: Value, params: Value, n: Value, places: Value) -> list[Value]:
    """The addresses of f32 rows of the operands whose names begin with ``prefix``."""
    mine = {
        name: found for name, found in _named(parameters, places).items() if name[0] == prefix and name[1:].isdigit()
    }
    scratch_rows = _scratch_rows(parameters, memory, n)
    operands, where = [o for o, _ in mine.values()], [place for _, place in mine.values()]
    return read_rows(operands, memory, params, where, n, [scratch_rows[name] for name in mine])


def _place(parameters: type[Norm], before: str) -> Intrinsic:
    """``find(memory, params, n, places)``: the address of the row to be normalised, as f32; it may have to be
    computed yet.
    """

    def emit(memory: Value, params: Value, n: Value, places: Value) -> Value:
        if not before:
            return _read(parameters, "x", memory, params, n, places)[0]
        scratch_row, named = _scratch_rows(parameters, memory, n)[""], _named(parameters, places)
        if "row" not in named:
            return scratch_row
        operand, place = named["row"]
        return emitted_number(operand.convert, params).equal(0).select(place, scratch_row)

    return emitted(f"i64(i64, i64, i64, i64*{len(parameters.row_operands())})")(emit)


def _sums(parameters: type[Norm], name: str, before: str) -> Intrinsic:
    """``compute(memory, params, n, places, p)`` computes the row at ``p``; returns three numbers.

    These are the row's first number c, or 0 for ops without a mean, and the sums of x - c and of their squares.
    """
    program, centred = parsed(before) if before else None, name == "norm"

    def emit(memory: Value, params: Value, n: Value, places: Value, p: Value) -> Value:
        sources = _read(parameters, "x", memory, params, n, places) if program else [p]

        def constant(index: int) -> Value:
            return emitted_number(parameters.constants, params, index).convert(F32)

        def row(at: Value, mask: Value | None) -> Value:
            numbers = [read(x + at, mask) for x in sources]
            return program.result(numbers, constant) if program else numbers[0]

        def visit(at: Value, mask: Value | None, sums: list[Value]) -> list[Value]:
            numbers = row(at, mask)
            if program:
                write(p + at, numbers, mask)
            return add_to_moments(sums, numbers, mask, centre)

        start, one = p.constant(0), values.first_lanes(simd.width("f32"), p.constant(1))
        centre = row(start, one).lane(0).convert(F64) if centred else values.constant(p.b, F64, 0)
        named = _named(parameters, places)
        operand, place = named.get("row", (None, p))
        with nullcontext() if operand is None else write_row(operand, memory, params, place, n, p):
            sums = over_vectors(n, no_moments(p.b), visit)
        return values.packed([centre, *totals(sums)])

    return emitted(f"f64*3(i64, i64, i64, i64*{len(parameters.row_operands())}, i64)")(emit)


def _result(parameters: type[Norm], name: str, before: str, behind: str) -> Intrinsic:
    """``finish(memory, params, n, places, p, mean, factor)`` stores the result of the row at ``p``."""
    step, numbers = FIRST_STEPS[name]
    program = parsed(behind or step)
    used = parsed(before).constants if before else 0

    def emit(memory: Value, params: Value, n: Value, places: Value, p: Value, mean: Value, factor: Value) -> None:
        of_row = [mean, factor][-numbers:]

        def constant(index: int) -> Value:
            if index < numbers:
                return of_row[index].convert(F32)
            return emitted_number(parameters.constants, params, used + index - numbers).convert(F32)

        sources = _read(parameters, "w", memory, params, n, places)
        operand, y = _named(parameters, places)["y"]
        with write_row(operand, memory, params, y, n, _scratch_rows(parameters, memory, n)["y"]) as place:
            program.emit(place, [p, *sources], n, constant)

    return emitted(f"void(i64, i64, i64, i64*{len(parameters.row_operands())}, i64, f64, f64)")(emit)
