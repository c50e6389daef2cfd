"""Packs windows of an image into panels, as the weights of a matrix product.

A panel's columns are windows, one after the other along ne0; its rows are the numbers of a window: all taps of a
channel, then those of the next.  Neighbouring windows mostly read adjacent numbers, so a vector is one load.
"""

from __future__ import annotations

import functools

from ggplug_cpu.compiler import DeviceFunction, Intrinsic, device_function
from ggplug_cpu.ops.mul_mat.layout import layout
from ggplug_cpu.ops.mul_mat.rows import Product
from ggplug_cpu.parts.sliding import Sliding, counted, narrow, number, numbers_of, read_at, tap_at, windows_at
from ggplug_cpu.parts.sliding import scalar_quotient as divided
from ggplug_cpu.simd import values
from ggplug_cpu.simd.values import F32, I32, I64, Value, constant, constants, emitted, first_lanes, loop, vector


def pack_patches(stretched: bool) -> DeviceFunction:
    """``pack(product, base, m_first, m_last, k, numbers, panels)`` packs windows ``m_first`` to ``m_last``.

    The words of :class:`~ggplug_cpu.parts.sliding.Sliding` follow those of the product.
    """
    shape = layout("f32")
    columns, width, vecs = shape.columns, shape.width, shape.vecs
    quantum, quantum_bytes = shape.quantum, shape.quantum_bytes
    pack_some = _pack_vector(stretched)
    behind = 8 * Product.word_count()

    @device_function
    def pack(product: Product, base: int, m_first: int, m_last: int, k: int, numbers: int, panels: int) -> None:
        panel_bytes = -(-numbers // quantum) * quantum_bytes
        for m in range(m_first, m_last, columns):
            place = panels + (m - m_first) // columns * panel_bytes
            for v in range(vecs):
                pack_some(int(product) + behind, base, place + 4 * v * width, m + v * width, m_last, k, numbers)

    return pack


@functools.cache
def _pack_vector(stretched: bool) -> Intrinsic:
    """``(words, base, panel, m, m_last, k, numbers)`` packs a vector of windows from ``m`` on, zeros from ``m_last``
    on.
    """

    def emit(words: Value, base: Value, panel: Value, m: Value, m_last: Value, k: Value, numbers: Value) -> None:
        b, shape = words.b, layout("f32")
        width, row_bytes = shape.width, shape.columns * 4
        floats = vector(F32, width)
        present = first_lanes(width, m_last - m)
        begins = windows_at(counted(m, width), words)
        taps0, taps1, taps2 = numbers_of("taps", words)
        taps = taps0 * taps1 * taps2
        channel_bytes = number(Sliding.channel, words)
        neighbours = constants(b, I32, range(0, 4 * width, 4))

        def tap(t: Value, _: list[Value]) -> list[Value]:
            moved = [begin + narrow(far, width) for begin, far in zip(begins, tap_at(t, words), strict=True)]
            offsets, inside = read_at(moved, words, stretched)
            inside = inside & present
            start = offsets.lane(0)
            first = divided(k - t + taps - 1, taps)
            count = divided(k + numbers - t + taps - 1, taps) - first
            place = panel + (first * taps + t - k) * row_bytes
            source = base + first * channel_bytes
            apart = offsets.unequal(start.splat(width) + neighbours).zext(I32).max()
            with b.if_else(apart.unequal(0).ir) as (then, otherwise):
                with then:

                    def gather(i: Value, _: list[Value]) -> list[Value]:
                        read = values.masked_gather(source + i * channel_bytes, offsets, floats, inside)
                        values.store(place + i * taps * row_bytes, read)
                        return []

                    loop(count, [], gather)
                with otherwise:

                    def adjacent(i: Value, _: list[Value]) -> list[Value]:
                        at = source + i * channel_bytes + start.convert(I64)
                        values.store(place + i * taps * row_bytes, values.masked_load(at, floats, inside))
                        return []

                    loop(count, [], adjacent)
            return []

        loop(taps, [], tap)
        nothing = constant(b, floats, 0)
        end = panel + numbers * row_bytes

        def fill(i: Value, _: list[Value]) -> list[Value]:
            values.store(end + i * row_bytes, nothing)
            return []

        loop((0 - numbers) & 3, [], fill)  # up to a whole step

    return emitted("void(i64, i64, i64, i64, i64, i64, i64)")(emit)
