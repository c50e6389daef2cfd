"""What becomes of a product's result while it is still in the cache: bias, activation, residual, gate.

A product's kernel computes a tile of the result, and then calls, by its address, a kernel of its own kind (see
:func:`mul_mat_epilogue`) that runs a program (:mod:`.programs`) over the tile's rows.  So every product goes with every
program, and neither is compiled for the other.  The program's first source is the product; the others are of two
kinds, a letter each:

- ``b``: one number for every row of the weights, the same for all rows of the result (a bias),
- ``r``: a number for every number of the result, in memory laid out like it (a residual).
"""

from __future__ import annotations

import functools

from ggplug_cpu.compiler import Body, Intrinsic, device_function, kernel
from ggplug_cpu.context import call_2, load_word, store_word
from ggplug_cpu.kernels.programs import parsed
from ggplug_cpu.parameters import Parameters, emitted_number, integer, read, reals
from ggplug_cpu.simd.memory import emit_prefetch
from ggplug_cpu.simd.values import F32, Value, emitted, loop

#: Bytes of scratch that :func:`finish_tile` needs for the words of a :class:`Tile`.
TILE_BYTES = 32


class Tile(Parameters):
    """Numbers ``first`` to ``last`` of ``count`` rows of a result, whose addresses are in ``table``."""

    table = integer()
    count = integer()
    first = integer()
    last = integer()


class Epilogue(Parameters):
    """The result and the program's constants; its sources follow: see :func:`epilogue_parameters`."""

    result = read()
    """Where the result's first number lies."""
    constants = reals()


@functools.cache
def epilogue_parameters(sources: int) -> type[Epilogue]:
    """The parameters of a program with so many sources beside the product: ``x1``, ``x2``, and so on."""
    return type("Epilogue", (Epilogue,), {f"x{i + 1}": read() for i in range(sources)})


@device_function
def finish_tile(epilogue, words, room, table, count, first, last):  # type: ignore[no-untyped-def]
    """Have the kernel at ``epilogue``, if that is not 0, run over a tile; its words are at ``words``."""
    if epilogue != 0:
        store_word(room, table)
        store_word(room + 8, count)
        store_word(room + 16, first)
        store_word(room + 24, last)
        call_2(epilogue, room, words)


@kernel
def mul_mat_epilogue(program: str, kinds: str) -> Body:
    """A program over a tile; ``kinds`` has a letter for each source but the first.

    In place of a context and parameters it is given the address of a :class:`Tile`, and that of its own words.
    """
    finish = _finish_row(program, kinds)

    def body(tile: int, params: int) -> None:
        table, ahead = Tile.table(tile), rows_ahead(tile)
        for r in range(Tile.count(tile)):
            finish(params, load_word(table + 8 * r), Tile.first(tile), Tile.last(tile), ahead)

    return body


@device_function
def rows_ahead(tile):  # type: ignore[no-untyped-def]
    """Bytes from a row of a tile to the same of the tile that probably comes next."""
    table, count = Tile.table(tile), Tile.count(tile)
    first, last = load_word(table), load_word(table + 8 * (count - 1))
    return (last - first) // max(count - 1, 1) * count


def emit_prefetch_row(place: Value, n: Value) -> None:
    """Asks for the ``n`` f32 at ``place``, a part of a residual's row: it is mostly read from memory."""

    def line(i: Value, _: list[Value]) -> list[Value]:
        emit_prefetch(place + i * 64)
        return []

    loop((n + 15).lshr(4), [], line)


def _finish_row(text: str, kinds: str) -> Intrinsic:
    program, parameters = parsed(text), epilogue_parameters(len(kinds))

    def emit(params: Value, row: Value, first: Value, last: Value, ahead: Value) -> None:
        def constant(index: int) -> Value:
            return emitted_number(parameters.constants, params, index).convert(F32)

        behind = {"b": first * 4, "r": row - emitted_number(parameters.result.address, params) + first * 4}
        places = [row + first * 4]
        for i, kind in enumerate(kinds):
            operand = getattr(parameters, f"x{i + 1}")
            places.append(emitted_number(operand.address, params) + behind[kind])
            if kind == "r":
                emit_prefetch_row(places[-1] + ahead, last - first)
        program.emit(places[0], places, last - first, constant)

    return emitted("void(i64, i64, i64, i64, i64)")(emit)
