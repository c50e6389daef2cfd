"""What becomes of a product's result while it is still in the cache: bias, activation, residual, gate.

A product's kernel computes a tile of the result, and then calls, by its address, a kernel of its own kind (see
:func:`mul_mat_epilogue`) that runs a program (:mod:`ggplug_cpu.parts.programs`) over the tile's rows.  So every
product goes with every program, and neither is compiled for the other.  The program's first source is the product; the
others are of two kinds, a letter each:

- ``b``: one number for every row of the weights, the same for all rows of the result (a bias),
- ``r``: a number for every number of the result, in memory laid out like it (a residual).
"""

from __future__ import annotations

import functools

from ggplug_cpu.compiler import Body, Intrinsic, device_function, kernel
from ggplug_cpu.context import call_2, store_word
from ggplug_cpu.parameters import Parameters, emitted_number, integer, reals, source
from ggplug_cpu.parts.programs import parsed
from ggplug_cpu.simd.values import F32, I64, Value, emitted, load, loop

#: Rows that a tile has at most.
MOST_ROWS = 32
#: Bytes of scratch that :func:`finish_tile` needs: the words of a :class:`Tile`, and tile_at for two numbers of each row.
TILE_BYTES = 32 + 16 * MOST_ROWS


class Tile(Parameters):
    """Numbers ``first`` to ``last`` of ``count`` rows of a result, whose addresses are in ``table``."""

    table = integer()
    count = integer()
    first = integer()
    last = integer()


class Epilogue(Parameters):
    """The result and the program's constants; its sources follow: see :func:`epilogue_parameters`."""

    result = source()
    """Where the result's first number lies."""
    constants = reals()


@functools.cache
def epilogue_parameters(sources: int) -> type[Epilogue]:
    """The parameters of a program with so many sources beside the product: ``x1``, ``x2``, and so on."""
    return type("Epilogue", (Epilogue,), {f"x{i + 1}": source() for i in range(sources)})


@device_function
def finish_tile(epilogue, words, tile_at, table, count, first, last):  # type: ignore[no-untyped-def]
    """Have the kernel at ``epilogue``, if that is not 0, run over a tile; its words are at ``words``."""
    if epilogue != 0:
        store_word(tile_at, table)
        store_word(tile_at + 8, count)
        store_word(tile_at + 16, first)
        store_word(tile_at + 24, last)
        call_2(epilogue, tile_at, words)


@kernel
def mul_mat_epilogue(program: str, kinds: str) -> Body:
    """A program over a tile; ``kinds`` has a letter for each source but the first.

    In place of a context and parameters it is given the address of a :class:`Tile`, and that of its own words.
    """
    finish = _finish(program, kinds)

    def body(tile: int, params: int) -> None:
        finish(params, Tile.table(tile), Tile.count(tile), Tile.first(tile), Tile.last(tile))

    return body


def _finish(text: str, kinds: str) -> Intrinsic:
    program, parameters = parsed(text), epilogue_parameters(len(kinds))

    def emit(params: Value, table: Value, count: Value, first: Value, last: Value) -> None:
        def constant(index: int) -> Value:
            return emitted_number(parameters.constants, params, index).convert(F32)

        starts = [emitted_number(getattr(parameters, f"x{i + 1}").address, params) for i in range(len(kinds))]
        result = emitted_number(parameters.result.address, params)

        def row(r: Value, _: list[Value]) -> list[Value]:
            place = load(table + r * 8, I64, align=8) + first * 4
            behind = {"b": first * 4, "r": place - result}
            sources = [place, *(start + behind[kind] for start, kind in zip(starts, kinds, strict=True))]
            program.emit(place, sources, last - first, constant)
            return []

        loop(count, [], row)

    return emitted("void(i64, i64, i64, i64, i64)")(emit)
