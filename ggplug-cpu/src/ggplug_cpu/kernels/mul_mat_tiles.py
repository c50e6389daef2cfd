"""The inner loops of matrix products: blocks of the result that stay in registers.

A tile is ``rows`` rows of activations times ``vecs`` vectors of the weights' rows, which are the result's columns.
Both sides are packed before, in *units* of four bytes along K: one f32, two bf16 or four int8.

- A *panel* holds ``Shape.columns`` columns, unit by unit: ``[unit][column]``.
- Activations lie in groups of four units: ``[group][row][16 bytes]``.
- For int8, both sides are interrupted after every 32 numbers (8 units, a *block*) by what the block needs: a panel by
  the columns' scales (f32) and ``-128 * sum(weights)`` (int32), for activations are kept as ``x + 128``, unsigned, as
  the instruction wants them; activations are ``[block][row][32 bytes]`` with the rows' scales behind.

Each result is the same sum in the same order whichever tile computes it, so the shape of tiles and the way a product is
divided never show.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ggplug_cpu import compiler, features
from ggplug_cpu.kernels.mul_mat_weights import GROUP
from ggplug_cpu.simd import dots, values
from ggplug_cpu.simd.values import F32, I8, I16, I32, I64, Value, constant, emitted, loop, vector

#: Units along K that are packed at a time: a panel of f32 then has 64 KiB at most.
K_UNITS = 512


@dataclass(frozen=True)
class Layout:
    """How numbers of one ``kind`` are packed, and how its tiles fit the target's registers.

    Tiles are ``vecs`` vectors of ``width`` lanes by ``rows`` rows, or by ``few`` rows at the end.  A unit holds
    ``unit`` numbers.  A step of the inner loop takes ``step_numbers`` numbers of each row, which are ``step_bytes``
    bytes of packed activations.  A panel grows by ``quantum_bytes`` with every ``quantum`` numbers, the last padded.
    """

    kind: str
    unit: int
    width: int
    vecs: int
    rows: int
    few: int
    step_numbers: int
    step_bytes: int
    quantum: int
    quantum_bytes: int

    @property
    def columns(self) -> int:
        """Columns of a panel."""
        return self.width * self.vecs

    @property
    def k_numbers(self) -> int:
        """Numbers along K that are packed at a time."""
        return K_UNITS * self.unit

    def panel_bytes(self, numbers: int) -> int:
        return -(-numbers // self.quantum) * self.quantum_bytes

    @property
    def x_bytes(self) -> int:
        """The most that the packed activations of a tile take."""
        return self.rows * self.step_bytes * (self.k_numbers // self.step_numbers)


def layout(kind: str) -> Layout:
    """The layout of ``kind`` (``f32``, ``bf16``, ``i8``; ``amx`` is bf16 in tile registers) for the current target.

    Accumulators must leave registers for the operands: of 32 (AVX-512, AArch64) they may take 24, of 16 only 12.
    int8 needs two for each sum, the integer one and the scaled one.
    """
    width = features.target().vector_bytes // 4
    columns = 2 * width
    many = features.has("avx512f") or not features.has("sse2")
    if kind == "i8":
        rows, few = (6, 2) if many else (3, 1)
        return Layout(kind, 4, width, 2, rows, few, GROUP, GROUP + 4, GROUP, columns * (GROUP + 8))
    if kind == "amx":
        return Layout(kind, 2, width, 2, 32, 16, 32, 64, 2 * width, 4 * columns * width)
    rows, few = (12, 4) if many else (6, 2)
    unit = 2 if kind == "bf16" else 1
    return Layout(kind, unit, width, 2, rows, few, 4 * unit, 16, unit * width, 4 * columns * width)


@functools.cache
def tile(kind: str, rows: int, vecs: int, masked: bool) -> compiler.Intrinsic:
    """``tile(...)(panel, x, steps, table, offset, columns, more)``: compute ``rows`` by ``vecs`` vectors.

    Row ``r`` of the result lies ``offset`` bytes behind the address in word ``r`` of ``table``; rows may coincide if
    they are equal.  With ``masked`` only ``columns`` columns are written.  ``more`` (0 or 1) adds to what is there.
    """

    def emit(panel: Value, x: Value, steps: Value, table: Value, offset: Value, columns: Value, more: Value) -> None:
        sums = (_int8_sums if kind == "i8" else _float_sums)(kind, rows, vecs, panel, x, steps)
        places = [values.load(table, I64, 8 * r, align=8) + offset for r in range(rows)]
        width = layout(kind).width
        masks = [values.first_lanes(width, columns - v * width) for v in range(vecs)] if masked else None
        with more.b.if_else(more.unequal(0).ir) as (then, otherwise):
            with then:
                _write(places, _added(places, sums, vecs, masks), vecs, masks)
            with otherwise:
                _write(places, sums, vecs, masks)

    return emitted("void(i64, i64, i64, i64, i64, i64, i64)")(emit)


def _added(places: list[Value], sums: list[Value], vecs: int, masks: list[Value] | None) -> list[Value]:
    """The sums plus what is in memory.  All is read before anything is written: two rows may be the same."""
    out = []
    for i, acc in enumerate(sums):
        place = places[i // vecs] + (i % vecs) * acc.count * 4
        old = values.masked_load(place, acc.type, masks[i % vecs]) if masks else values.load(place, acc.type)
        out.append(old + acc)
    return out


def _write(places: list[Value], sums: list[Value], vecs: int, masks: list[Value] | None) -> None:
    for i, acc in enumerate(sums):
        place = places[i // vecs] + (i % vecs) * acc.count * 4
        if masks:
            values.masked_store(place, acc, masks[i % vecs])
        else:
            values.store(place, acc)


def _float_sums(kind: str, rows: int, vecs: int, panel: Value, x: Value, steps: Value) -> list[Value]:
    b = panel.b
    width, columns = layout(kind).width, layout(kind).columns
    floats, pairs = vector(F32, width), vector(I16, 2 * width)

    def step(_: Value, carried: list[Value]) -> list[Value]:
        p, a, sums = carried[0], carried[1], carried[2:]
        for unit in range(4):
            at = unit * columns * 4
            w = [values.load(p, floats, at + v * width * 4) for v in range(vecs)]
            for r in range(rows):
                y = values.load(a, F32, r * 16 + unit * 4).splat(width)
                for v in range(vecs):
                    i = r * vecs + v
                    if kind == "bf16":
                        sums[i] = dots.emit_dot_bf16(sums[i], y.bitcast(pairs), w[v].bitcast(pairs))
                    else:
                        sums[i] = y.fma(w[v], sums[i])
        return [p + columns * 16, a + rows * 16, *sums]

    zero = constant(b, floats, 0)
    return loop(steps, [panel, x, *([zero] * (rows * vecs))], step)[2:]


def _int8_sums(kind: str, rows: int, vecs: int, panel: Value, x: Value, steps: Value) -> list[Value]:
    b = panel.b
    width, columns = layout(kind).width, layout(kind).columns
    floats, ints, bytes_ = vector(F32, width), vector(I32, width), vector(I8, 4 * width)
    scales, offsets = columns * GROUP, columns * (GROUP + 4)

    def step(_: Value, carried: list[Value]) -> list[Value]:
        p, a, sums = carried[0], carried[1], carried[2:]
        start = [values.load(p, ints, offsets + v * width * 4) for v in range(vecs)]
        dot = [start[v] for _ in range(rows) for v in range(vecs)]
        for unit in range(GROUP // 4):
            w = [values.load(p, bytes_, (unit * columns + v * width) * 4) for v in range(vecs)]
            for r in range(rows):
                y = values.load(a, I32, r * GROUP + unit * 4).splat(width).bitcast(bytes_)
                for v in range(vecs):
                    dot[r * vecs + v] = dots.emit_dot_u8i8(dot[r * vecs + v], y, w[v])
        scale = [values.load(p, floats, scales + v * width * 4) for v in range(vecs)]
        for r in range(rows):
            y = values.load(a, F32, rows * GROUP + r * 4).splat(width)
            for v in range(vecs):
                i = r * vecs + v
                sums[i] = dot[i].convert(F32).fma(scale[v] * y, sums[i])
        return [p + layout(kind).quantum_bytes, a + rows * layout(kind).step_bytes, *sums]

    zero = constant(b, floats, 0)
    return loop(steps, [panel, x, *([zero] * (rows * vecs))], step)[2:]
