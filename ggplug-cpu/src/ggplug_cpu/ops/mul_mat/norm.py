"""Normalisation of a product's rows while they are still in the cache: an epilogue (see :mod:`.epilogue`)."""

from __future__ import annotations

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, Intrinsic, kernel
from ggplug_cpu.context import load_word
from ggplug_cpu.ops.mul_mat.epilogue import Tile
from ggplug_cpu.ops.norms.kernels import Norm, norm_parameters, normalisation
from ggplug_cpu.parameters import emitted_number
from ggplug_cpu.parts.programs import parsed
from ggplug_cpu.parts.rows import ARGUMENTS
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import Value, constant, emitted


@kernel
def mul_mat_norm(name: str, before: str, behind: str, kinds: str) -> Body:
    """The kernel ``norm``, in place on whole rows of a product, which is the first source of ``before``.

    ``kinds`` has a letter for each of the other sources, as in :mod:`.epilogue`; all are contiguous f32.
    """
    first_sources = parsed(before).sources if before else 1
    parameters = norm_parameters(first_sources, parsed(behind).sources - 1 if behind else 0, False)
    measure, finish = normalisation(parameters, name, before, behind)
    find, arguments, numbers_at = _places(parameters, kinds), ARGUMENTS, Tile.bytes

    def body(tile: Tile, params: int) -> None:
        table, n, count, numbers = tile.table, tile.last, tile.count, int(tile) + numbers_at
        # No operand needs other memory than the row itself.  First all rows are measured, then all are finished, so
        # the latencies of roots and quotients overlap.
        for r in range(count):
            row = load_word(table + 8 * r)
            _, mean, factor = measure(row - arguments, params, n, find(params, row))
            simd.store_f64(numbers + 16 * r, mean)
            simd.store_f64(numbers + 16 * r + 8, factor)
        for r in range(count):
            row = load_word(table + 8 * r)
            mean, factor = simd.load_f64(numbers + 16 * r), simd.load_f64(numbers + 16 * r + 8)
            finish(row - arguments, params, n, find(params, row), (row, mean, factor))

    return body


def _places(parameters: type[Norm], kinds: str) -> Intrinsic:
    """``find(params, row)``: the addresses of all operands' rows for the result's row at ``row``."""

    def emit(params: Value, row: Value) -> Value:
        y, _, *others = parameters.row_operands()
        behind = {"b": constant(row.b, row.type, 0), "r": row - emitted_number(y.address, params)}
        found = [
            emitted_number(other.address, params) + behind[kind] for other, kind in zip(others, kinds, strict=True)
        ]
        return values.packed([row, row, *found])

    return emitted(f"i64*{len(kinds) + 2}(i64, i64)")(emit)
