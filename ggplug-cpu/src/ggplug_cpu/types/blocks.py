"""The declaration of a block type for kernels, and functions for the families of types.

A block is read :data:`GROUP` numbers at a time, a *part*: ``value = (byte - offset) * scale``, or ``+ minimum``, with a
scale (and a minimum) for each ``group`` numbers.  Products, packing, rows and copies use only this declaration and
name no type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from llvmlite import ir

from ggplug.types import Type
from ggplug_cpu.simd import halves, values
from ggplug_cpu.simd.values import F32, I8, I16, I64, Value, constant, vector

#: Numbers of a part; activations are rounded to int8 so many at a time.
GROUP = 32


@dataclass(frozen=True)
class Factors:
    """The scales of all groups of one or several blocks as lanes, and their minima if the type has any.

    There may be more lanes than groups.
    """

    scales: Value
    minima: Value | None = None


class Read(Protocol):
    """Reads packed blocks."""

    def __call__(self, field: str, at: Value | int, count: int = 1) -> Value:
        """``count`` units of each row, one unit of all rows after the other, from byte ``at`` of a field on."""


#: The scale of a group of each row, and the minimum.
Pair = tuple[Value, Value | None]

#: The field by which :attr:`SideBySide.factors` reads what :attr:`SideBySide.prepared` returned, a byte a unit.
PREPARED = ""

#: Bytes of a unit of numbers.
UNIT = 4


class InPlace(NamedTuple):
    """The most rows of activations that are multiplied with packed weights as they are; for more it is faster to make
    int8 panels of them first (measured on a Zen 5 with 1 to 128 rows).

    ``several``: where several instructions multiply and add bytes.  ``wide``: where one does, with 64 bytes; with 32 it
    is never faster to make panels.
    """

    several: int
    wide: int


ANY_NUMBER = 1 << 62
"""More rows than any product has."""

_USUALLY = InPlace(63, ANY_NUMBER)


@dataclass(frozen=True)
class SideBySide:
    """How packed weights are read, in which the same *units* of many rows are contiguous.

    ``fields``: the names of a block's fields in their packed order, with the bytes of their units.
    ``numbers(read, step, group)``: yields the unsigned numbers of a group, four of each row, with the number of
    these four in the group, in the order that takes the fewest loads.  The group is number ``group`` of the
    ``groups_at_once`` in iteration ``step`` of a loop over the block.
    ``factors(read, group)``: the scale of a group of each row, and the minimum or None.
    ``prepared(read)``: bytes that are computed once for a block, for ``factors``, in the order of ``read``.
    ``in_place``: for how many rows of activations they are read as they are.
    """

    fields: tuple[tuple[str, int], ...]
    numbers: Callable[[Read, Value, int], Iterator[tuple[int, Value]]]
    factors: Callable[[Read, Value], Pair]
    groups_at_once: int = 1
    prepared: Callable[[Read], list[Value]] | None = None
    in_place: InPlace = _USUALLY


@dataclass(frozen=True)
class Weigh:
    """The encoder of a type with an importance matrix, bit for bit as :func:`ggplug.quantize` with ``imatrix``.

    ``encode(block, x, importance, mean)``: the f32 numbers at ``x``, whose importance lies at ``importance``, to the
    block at ``block``.  ``mean``: ``of_row`` times the mean of the squares of the whole row; 0 if ``of_row`` is None.
    """

    encode: Callable[[Value, Value, Value, Value], None]
    of_row: float | None = None


@dataclass(frozen=True, eq=False)
class Blocks:
    """A block type, for kernels.

    ``quants(address, part)``: part number ``part`` (int64) of the block at ``address`` as 32 unsigned bytes, of which
    ``offset`` stands for zero.  ``limits``: the smallest and the largest of these bytes.
    ``factors(addresses)``: the scales and the minima of the groups of blocks.  ``group``: the numbers that share a
    scale, 32 or 16.
    ``encode(block, x)``: rounds the f32 numbers at ``x`` to the block at ``block``, bit for bit as
    :func:`ggplug.quants.quantize` with ``stored``; None where ggml's ops have none.
    ``file(block, x)``: the same as files of weights have it (without ``stored``), where that differs.  ``weigh``: with
    an importance matrix; None for types that ignore it.
    ``side_by_side``: how packed weights are read; None for types that are packed at each product.
    ``is_activation``: the numbers are int8 with a scale for every :data:`GROUP` of them, or for more: the integer
    products take rows of such a type as activations, without rounding them again.
    ``at_once(addresses)``: all numbers of a block of each of several rows, as ``quants`` gives them, in vectors of two
    parts; for processors with :func:`~ggplug_cpu.simd.lookup.permutes_bytes`, where that takes fewer instructions.
    ``sums_of_groups(addresses, columns)``: in place of the numbers, the products of a block of each of several rows
    with 256 int8 at each of several addresses, the sum of each group as a lane (f32) of its own; likewise.
    """

    type: Type
    quants: Callable[[Value, Value], Value]
    factors: Callable[[Sequence[Value]], Factors]
    offset: int = 0
    group: int = GROUP
    has_minima: bool = False
    encode: Callable[[Value, Value], None] | None = None
    file: Callable[[Value, Value], None] | None = None
    weigh: Weigh | None = None
    side_by_side: SideBySide | None = None
    limits: tuple[int, int] = (0, 255)
    is_activation: bool = False
    at_once: Callable[[Sequence[Value]], list[list[Value]]] | None = None
    sums_of_groups: Callable[[Sequence[Value], Sequence[Value]], list[list[Value]]] | None = None

    @property
    def name(self) -> str:
        return self.type.name

    @property
    def block_bytes(self) -> int:
        return self.type.block_bytes

    @property
    def block_size(self) -> int:
        return self.type.block_size

    @property
    def parts(self) -> int:
        """Parts of a block."""
        return self.type.block_size // GROUP

    @property
    def groups(self) -> int:
        """Groups of a block."""
        return self.type.block_size // self.group

    @property
    def magnitude(self) -> int:
        """The largest magnitude of a number, without its scale and minimum."""
        return max(self.offset - self.limits[0], self.limits[1] - self.offset)

    def signed(self, address: Value, part: Value) -> Value:
        """A part as 32 int8, without scale and minimum."""
        return self.quants(address, part) - self.offset if self.offset else self.quants(address, part)

    def read(self, address: Value, part: Value, factors: Factors) -> Value:
        """A part of the block at ``address``, whose factors these are, as 32 f32."""
        numbers = self.signed(address, part).convert(F32) * self._of_part(factors.scales, part)
        return numbers if factors.minima is None else numbers + self._of_part(factors.minima, part)

    def _of_part(self, lanes: Value, part: Value) -> Value:
        """Each number's own scale or minimum."""
        each = GROUP // self.group
        chosen = [lanes.lane_at(part * each + i).splat(self.group) for i in range(each)]
        return values.joined(chosen)


# -- functions for families ---------------------------------------------------------------------------


def offset_of(type: Type, field: str) -> int:
    """The offset of a field in a block, in bytes."""
    fields = type.dtype.fields
    assert fields is not None
    return int(fields[field][1])


def f16_at(addresses: Sequence[Value]) -> Value:
    """The f16 numbers at some addresses, as f32; there may be more lanes."""
    b = addresses[0].b
    bits = [values.load(address, I16) for address in addresses]
    if len(bits) > 4:
        return halves.emit_widen_f16(values.gathered(bits))
    # Built in a general register: inserting 16 bits into a vector depends on its old value, such as the sums of the
    # last iteration.  LLVM would do that if the other lanes are never read.
    whole = bits[0].zext(I64)
    for i, each in enumerate(bits[1:], 1):
        whole = whole | each.zext(I64) << (16 * i)
    both = values.gathered([values.opaque(whole), constant(b, I64, 0)])
    return halves.emit_widen_f16(both.bitcast(vector(I16, 8)).part(0, 4))


def nibbles(address: Value) -> Value:
    """16 bytes as 32 numbers from 0 to 15: the low nibbles, then the high ones."""
    packed = values.load(address, vector(I8, GROUP // 2))
    both = packed.concat(shifted(packed, 4))
    return both & constant(both.b, both.type, 15)


def both_nibbles(packed: Value) -> tuple[Value, Value]:
    """The low nibbles of any bytes, and the high ones."""
    mask = constant(packed.b, packed.type, 15)
    return packed & mask, shifted(packed, 4) & mask


def numbers_of_bytes(
    field: str, spread: Callable[[Value], tuple[Value, ...]], in_a_byte: int
) -> Callable[[Read, Value, int], Iterator[tuple[int, Value]]]:
    """For :attr:`SideBySide.numbers` of groups with bytes of their own: ``spread(bytes)`` are the ``in_a_byte`` numbers
    in each of a field's bytes, the group's first numbers first.
    """
    units = GROUP // UNIT // in_a_byte

    def numbers(read: Read, step: Value, group: int) -> Iterator[tuple[int, Value]]:
        for unit in range(units):
            for part, of_part in enumerate(spread(read(field, step * (units * UNIT) + unit * UNIT))):
                yield unit + part * units, of_part

    return numbers


def f16_factors(scale: str, minimum: str | None = None) -> Callable[[Read, Value], Pair]:
    """For :attr:`SideBySide.factors` of blocks of one group with F16 fields."""

    def factors(read: Read, group: Value) -> Pair:
        return f16_read(read, scale), None if minimum is None else f16_read(read, minimum)

    return factors


def byte_factors(field: str) -> Callable[[Read, Value], Pair]:
    """For :attr:`SideBySide.factors` of groups whose scales are int8 in a field, times the F16 number ``d``."""

    def factors(read: Read, group: Value) -> Pair:
        return f16_read(read, "d") * read(field, group).convert(F32), None

    return factors


def f16_read(read: Read, field: str) -> Value:
    """An F16 field of each row, as f32."""
    stored = read(field, 0)
    return halves.emit_widen_f16(stored.bitcast(vector(I16, stored.count // 2)))


def shifted(numbers: Value, places: Value | int) -> Value:
    """Bytes shifted right; the lowest bits of the next byte are shifted in."""
    pairs = numbers.bitcast(vector(I16, numbers.count // 2))
    if isinstance(places, Value):
        places = places.convert(I16).splat(pairs.count)
    return pairs.lshr(places).bitcast(numbers.type)


def bits_at(address: Value, count: int = GROUP) -> Value:
    """32 or 64 bits as lanes of a mask."""
    return values.load(address, ir.IntType(count)).bitcast(vector(values.I1, count))


def as_nibbles(numbers: Value) -> Value:
    """The inverse of :func:`nibbles`: int8 from 0 to 15 in 16 bytes."""
    half = numbers.count // 2
    return numbers.part(0, half) | numbers.part(half, half) << 4


def inverse_of(scale: Value, of: float = 1.0) -> Value:
    """``of / scale``; 0 where that is not finite, so that a block of numbers too small for it becomes zeros."""
    inverse = of / scale
    return (inverse.abs() < float("inf")).select(inverse, 0.0)


def size_of(x: Value) -> Value:
    """The magnitudes of f32 lanes as integers that compare in the same order; a NaN compares as the largest."""
    return x.bits() & 0x7FFFFFFF


def is_finite(size: Value) -> Value:
    """Whether a magnitude from :func:`size_of` is finite."""
    return size < 0x7F800000


def first_where(mask: Value, lanes: Value) -> Value:
    """The first of ``lanes`` that a mask of at most 32 lanes chooses; the last if it chooses none."""
    bits = mask.bitcast(ir.IntType(mask.count))
    where = values.call(bits.b, f"llvm.cttz.i{mask.count}", bits.type, bits, constant(bits.b, values.I1, 0))
    return lanes.lane_at(where.zext(I64).minimum(mask.count - 1))


def store_f16(address: Value, number: Value) -> None:
    """One f32 as f16; of NaN always the same one."""
    values.store(address, halves.emit_narrow_f16(number.unequal(number).select(float("nan"), number)))


def nearest(x: Value) -> Value:
    """Rounded to the nearest, ties to even, as ggml's ``nearest_int``: also what is too large, and 0 for NaN."""
    # adding 3 * 2 ** 22 leaves the nearest whole number in the lower bits
    return ((x + 12582912.0).bits() & 0x7FFFFF) - 0x400000


def to_int8(x: Value) -> Value:
    """Float lanes truncated to int8 through int32, as C's cast does on a machine whose int is 32 bits."""
    return x.convert(values.I32).convert(I8)


def sum_in_order(lanes: Value) -> Value:
    """All lanes added one after the other, as a loop in C does."""
    total = lanes.lane(0)
    for i in range(1, lanes.count):
        total = total + lanes.lane(i)
    return total
