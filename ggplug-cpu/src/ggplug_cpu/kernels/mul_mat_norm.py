"""Normalisation of a product's rows while they are still in the cache: an epilogue (see :mod:`.mul_mat_epilogue`)."""

from __future__ import annotations

from ggplug_cpu.compiler import Body, Intrinsic, kernel
from ggplug_cpu.context import load_word
from ggplug_cpu.kernels.mul_mat_epilogue import Tile, emit_prefetch_row, rows_ahead
from ggplug_cpu.kernels.norms import Norm, norm_parameters, normalisation
from ggplug_cpu.kernels.programs import parsed
from ggplug_cpu.kernels.rows import ARGUMENTS
from ggplug_cpu.parameters import emitted_number
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import Value, constant, emitted


@kernel
def mul_mat_norm(name: str, before: str, behind: str, kinds: str) -> Body:
    """What :func:`.norms.norm` does, in place on whole rows of a product, which is the first source of ``before``.

    ``kinds`` has a letter for each of the other sources, as in :mod:`.mul_mat_epilogue`; all are contiguous f32.
    """
    parameters = norm_parameters(parsed(before).sources, parsed(behind).sources - 1 if behind else 0, False)
    normalise, find = normalisation(parameters, name, before, behind), _places(parameters, kinds)
    arguments = ARGUMENTS

    def body(tile: int, params: int) -> None:
        table, n, ahead = Tile.table(tile), Tile.last(tile), rows_ahead(tile)
        for r in range(Tile.count(tile)):
            row = load_word(table + 8 * r)
            # no operand needs another room than the row itself
            normalise(row - arguments, params, n, find(params, row, n, ahead))

    return body


def _places(parameters: type[Norm], kinds: str) -> Intrinsic:
    """``find(params, row, n, ahead)``: where the rows of all operands begin that belong to the one at ``row``."""

    def emit(params: Value, row: Value, n: Value, ahead: Value) -> Value:
        y, _, *others = parameters.row_operands()
        behind = {"b": constant(row.b, row.type, 0), "r": row - emitted_number(y.address, params)}
        found = []
        for other, kind in zip(others, kinds, strict=True):
            found.append(emitted_number(other.address, params) + behind[kind])
            if kind == "r":
                emit_prefetch_row(found[-1] + ahead, n)
        return values.packed([row, row, *found])

    return emitted(f"i64*{len(kinds) + 2}(i64, i64, i64, i64)")(emit)
