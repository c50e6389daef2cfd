"""Operations on every element of any number of sources, which may repeat (broadcast) to the result.

Types other than f32 are converted a block at a time.  Whatever the number of threads, an element goes through the same
instructions, so results are bit-identical.
"""

from __future__ import annotations

import functools

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, Intrinsic, device_function, kernel
from ggplug_cpu.context import scratch
from ggplug_cpu.kernels.formulas import Program, parsed
from ggplug_cpu.kernels.nest import BLOCK, Rows, next_block, over_rows, read_row, written_row
from ggplug_cpu.kernels.rows import ARGUMENTS, ROOM, emit_read, emit_write
from ggplug_cpu.parameters import Operand, emitted_number, reals
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import F32, I64, Value, emitted, vector


class Elementwise(Rows):
    """The result; the sources follow, as many as there are: see :func:`elementwise_parameters`."""

    y = written_row()
    constants = reals()


@functools.cache
def elementwise_parameters(sources: int) -> type[Elementwise]:
    """The parameters of :func:`elementwise` for ``sources`` sources: ``x0``, ``x1``, and so on."""
    return type("Elementwise", (Elementwise,), {f"x{i}": read_row() for i in range(sources)})


def scratch_bytes(sources: int) -> int:
    """What the kernel needs of a thread's scratch."""
    return ARGUMENTS + (1 + sources) * ROOM


@kernel
def elementwise(program: str) -> Body:
    """The result of a program of formulas, such as ``add(x0,x1)``: rows are split into blocks, these into vectors."""
    steps = parsed(program)
    parameters = elementwise_parameters(steps.sources)
    compute, following = _block(steps, parameters), next_block(parameters)

    @device_function
    def visit(ctx, params, row, n, places):  # type: ignore[no-untyped-def]
        for start in range(0, n, BLOCK):
            compute(scratch(ctx), params, min(BLOCK, n - start), places)
            places = following(params, places)

    return over_rows(parameters, visit)


def _block(steps: Program, parameters: type[Elementwise]) -> Intrinsic:
    """``compute(scratch, params, n, places)``: ``n`` elements from ``places`` on, at most :data:`BLOCK`."""
    operands = parameters.row_operands()
    width = simd.width("f32")

    def emit(arguments: Value, params: Value, n: Value, places: Value) -> None:
        def word(operand: Operand, part: str) -> Value:
            return emitted_number(getattr(operand, part), params)

        address = dict(zip(operands, values.unpacked(places), strict=True))
        rooms = {operand: arguments + (ARGUMENTS + ROOM * k) for k, operand in enumerate(operands)}
        y, *sources = operands
        x = [emit_read(arguments, word(o, "convert"), address[o], word(o, "stride"), n, rooms[o]) for o in sources]
        in_place = word(y, "convert").equal(0)
        room = in_place.select(address[y], rooms[y])

        def constant(index: int) -> Value:
            number = emitted_number(parameters.constants, params, index)
            return number.convert(F32)

        def whole(i: Value, _: list[Value]) -> list[Value]:
            at = i * (4 * width)
            values.store(room + at, steps.result([values.load(p + at, vector(F32, width)) for p in x], constant))
            return []

        def tail(_: Value, __: list[Value]) -> list[Value]:
            at, mask = (n - rest) * 4, values.first_lanes(width, rest)
            numbers = [values.masked_load(p + at, vector(F32, width), mask) for p in x]
            values.masked_store(room + at, steps.result(numbers, constant), mask)
            return []

        rest = n & (width - 1)
        values.loop(n.lshr(width.bit_length() - 1), [], whole)
        values.loop(rest.unequal(0).zext(I64), [], tail)
        emit_write(arguments, word(y, "convert"), address[y], word(y, "stride"), n, room)

    return emitted(f"void(i64, i64, i64, i64*{len(operands)})")(emit)
