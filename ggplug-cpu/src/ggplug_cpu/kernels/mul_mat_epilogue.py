"""What becomes of a product's result while it is still in the cache: bias, activation, residual, gate.

A product's kernel computes a block of the result, and then has a program (:mod:`.programs`) run over each of the
block's rows.  Its first source is the product; the others are of two kinds, a letter each:

- ``b``: one number for every row of the weights, the same for all rows of the result (a bias),
- ``r``: a number for every number of the result, in memory laid out like it (a residual).
"""

from __future__ import annotations

import functools

from ggplug_cpu.compiler import DeviceFunction, Intrinsic, device_function
from ggplug_cpu.context import load_word
from ggplug_cpu.kernels.programs import parsed
from ggplug_cpu.parameters import Parameters, emitted_number, read, reals
from ggplug_cpu.simd.values import F32, Value, emitted


class Epilogue(Parameters):
    """Words behind those of the product; the sources follow: see :func:`epilogue_parameters`."""

    result = read()
    """Where the result's first number lies."""
    constants = reals()


@functools.cache
def epilogue_parameters(sources: int) -> type[Epilogue]:
    """The parameters of a program with so many sources beside the product: ``x1``, ``x2``, and so on."""
    return type("Epilogue", (Epilogue,), {f"x{i + 1}": read() for i in range(sources)})


def finish_rows(epilogue: str) -> DeviceFunction:
    """``finish(words, table, count, m_first, m_last)``: numbers ``m_first`` to ``m_last`` of rows of the result.

    ``epilogue``: a program and, behind a ``|``, the kinds of its sources; empty where there is nothing to do.
    ``words``: those of :class:`Epilogue`.  ``table`` has the addresses of the ``count`` rows.
    """
    if not epilogue:
        return _nothing
    finish_row = _finish_row(epilogue)

    @device_function
    def finish(words, table, count, m_first, m_last):  # type: ignore[no-untyped-def]
        for r in range(count):
            finish_row(words, load_word(table + 8 * r), m_first, m_last)

    return finish


@device_function
def _nothing(words, table, count, m_first, m_last):  # type: ignore[no-untyped-def]
    pass


def _finish_row(epilogue: str) -> Intrinsic:
    text, _, kinds = epilogue.partition("|")
    program, parameters = parsed(text), epilogue_parameters(len(kinds))

    def emit(words: Value, row: Value, first: Value, last: Value) -> None:
        def constant(index: int) -> Value:
            return emitted_number(parameters.constants, words, index).convert(F32)

        behind = {"b": first * 4, "r": row - emitted_number(parameters.result.address, words) + first * 4}
        places = [row + first * 4]
        for i, kind in enumerate(kinds):
            operand = getattr(parameters, f"x{i + 1}")
            places.append(emitted_number(operand.address, words) + behind[kind])
        program.emit(places[0], places, last - first, constant)

    return emitted("void(i64, i64, i64, i64)")(emit)
