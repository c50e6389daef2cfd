"""Epilogues of products: bias, activation, residual and gate, applied while a tile of the result is in the cache.

A product's kernel computes a tile of the result, and then calls the epilogue's kernel (:func:`mul_mat_epilogue`) by
address, which runs a program (:mod:`ggplug_cpu.parts.programs`) over the tile's rows.  So every product can be combined
with every program without being compiled for it.  The program's first source is the product; the others are of two
kinds, a letter each:

- ``b``: a bias, one number for every row of the weights, the same for all rows of the result,
- ``r``: a residual, a tensor with the extents and strides of the result.
"""

from __future__ import annotations

import functools

from ggplug_cpu.compiler import Body, Intrinsic, Record, device_function, kernel
from ggplug_cpu.context import call_2
from ggplug_cpu.parameters import Parameters, emitted_number, reals, source
from ggplug_cpu.parts.programs import parsed
from ggplug_cpu.records import Word
from ggplug_cpu.simd.values import F32, I64, Value, emitted, load, loop

#: Rows that a tile has at most.
MOST_ROWS = 32


class Tile(Record):
    """Elements ``first`` to ``last`` of ``count`` rows of a result; ``table`` holds the addresses of the rows."""

    table = Word(0)
    count = Word(8)
    first = Word(16)
    last = Word(24)
    bytes = 32


class Epilogue(Parameters):
    """The result and the program's constants; its sources follow: see :func:`epilogue_parameters`."""

    result = source()
    """The address of the result's first element."""
    constants = reals()


#: Bytes of scratch memory of :func:`finish_tile`: a :class:`Tile`, and two numbers for each row.
TILE_BYTES = Tile.bytes + 16 * MOST_ROWS


@functools.cache
def epilogue_parameters(sources: int) -> type[Epilogue]:
    """The parameters of a program with ``sources`` sources in addition to the product: ``x1``, ``x2``, and so on."""
    return type("Epilogue", (Epilogue,), {f"x{i + 1}": source() for i in range(sources)})


@device_function
def finish_tile(epilogue: int, words: int, tile_at: int, table: int, count: int, first: int, last: int) -> None:
    """Calls the kernel at ``epilogue``, unless that is 0, for a tile; its parameters are at ``words``."""
    if epilogue != 0:
        tile = Tile(tile_at)
        tile.table = table
        tile.count = count
        tile.first = first
        tile.last = last
        call_2(epilogue, tile_at, words)


@kernel
def mul_mat_epilogue(program: str, kinds: str) -> Body:
    """Runs a program over a tile; ``kinds`` has a letter for each source but the first.

    Its arguments are the addresses of a :class:`Tile` and of its parameters, in place of a context and parameters.
    """
    finish = _finish(program, kinds)

    def body(tile: Tile, params: int) -> None:
        finish(params, tile.table, tile.count, tile.first, tile.last)

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
