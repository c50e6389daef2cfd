"""Elementwise ops on any number of sources, which are broadcast to the result.

Types other than f32 are converted a block at a time.  Every element is computed by the same instructions, so results
are bit-identical for every number of threads.
"""

from __future__ import annotations

import functools

from ggplug_cpu.compiler import Body, Intrinsic, device_function, kernel
from ggplug_cpu.context import scratch
from ggplug_cpu.parameters import emitted_number, reals
from ggplug_cpu.parts.nest import BLOCK, Places, Rows, destination_row, next_block, over_rows, source_row
from ggplug_cpu.parts.programs import Program, parsed
from ggplug_cpu.parts.rows import ARGUMENTS, ROW_BYTES, read_rows, write_row
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import F32, Value, emitted


class Elementwise(Rows):
    """The result; the sources follow, as many as there are: see :func:`elementwise_parameters`."""

    y = destination_row()
    constants = reals()
    """The parameters of the program's steps."""


@functools.cache
def elementwise_parameters(sources: int) -> type[Elementwise]:
    """The parameters of :func:`elementwise` for ``sources`` sources: ``x0``, ``x1``, and so on."""
    return type("Elementwise", (Elementwise,), {f"x{i}": source_row() for i in range(sources)})


def scratch_bytes(sources: int) -> int:
    """Bytes of scratch memory of the kernel."""
    return ARGUMENTS + (1 + sources) * ROW_BYTES


@kernel
def elementwise(program: str) -> Body:
    """Computes a program such as ``add(x0,x1)``: rows are split into blocks, these into vectors."""
    steps = parsed(program)
    parameters = elementwise_parameters(steps.sources)
    compute, following = _block(steps, parameters), next_block(parameters)

    @device_function
    def visit(ctx: int, params: Rows, row: int, n: int, places: Places) -> None:
        for start in range(0, n, BLOCK):
            compute(scratch(ctx), params, min(BLOCK, n - start), places)
            places = following(params, places)

    return over_rows(parameters, visit)


def _block(steps: Program, parameters: type[Elementwise]) -> Intrinsic:
    """``compute(scratch, params, n, places)`` computes ``n`` elements from ``places`` on, at most :data:`BLOCK`."""
    operands = parameters.row_operands()

    def emit(memory: Value, params: Value, n: Value, places: Value) -> None:
        def constant(index: int) -> Value:
            return emitted_number(parameters.constants, params, index).convert(F32)

        y, *sources = values.unpacked(places)
        scratch_rows = [memory + (ARGUMENTS + ROW_BYTES * k) for k in range(len(operands))]
        x = read_rows(operands[1:], memory, params, sources, n, scratch_rows[1:])
        with write_row(operands[0], memory, params, y, n, scratch_rows[0]) as place:
            steps.emit(place, x, n, constant)

    return emitted(f"void(i64, i64, i64, i64*{len(operands)})")(emit)
