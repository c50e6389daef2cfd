"""What matrix products need to know about the types of weights: a row here is a type that mul_mat can multiply.

Plain types are read as f32.  Block types are read a group of 32 at a time, as unsigned bytes and a scale:
``value = (byte - offset) * scale``.  Everything else (packing, integer and float products, matrix-vector products) is
built on these readers, so a new block type is one :class:`Blocks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ggplug_cpu.simd import halves, values
from ggplug_cpu.simd.values import F32, I8, I16, I64, Value, constant, vector

#: Numbers in a group: they share a scale, and activations are rounded to int8 a group at a time.
GROUP = 32


@dataclass(frozen=True)
class Plain:
    """A type of single numbers; ``read(address, count)`` gives them as f32, ``widen`` converts their raw lanes."""

    name: str
    elem_bytes: int
    widen: Callable[[Value], Value]

    def read(self, address: Value, count: int) -> Value:
        return self.widen(values.load(address, vector(self.raw, count)))

    def read_first(self, address: Value, count: int, n: Value) -> Value:
        """The first ``n`` (int64) of ``count``, zeros behind."""
        return self.widen(values.masked_load(address, vector(self.raw, count), values.first_lanes(count, n)))

    @property
    def raw(self) -> object:
        return F32 if self.elem_bytes == 4 else I16


@dataclass(frozen=True)
class Blocks:
    """A type of blocks of :data:`GROUP` numbers that share a scale.

    ``quants(address)`` gives the block at ``address`` as 32 unsigned bytes, ``scales(addresses)`` the factors of
    several blocks as a vector of f32, which may have more lanes.
    """

    name: str
    block_bytes: int
    offset: int
    quants: Callable[[Value], Value]
    scales: Callable[[Sequence[Value]], Value]

    def signed(self, address: Value) -> Value:
        """The block at ``address`` as 32 int8, without the scale."""
        return self.quants(address) - self.offset

    def read(self, address: Value) -> Value:
        """The block at ``address`` as 32 f32."""
        return self.signed(address).convert(F32) * self.scale(address).splat(GROUP)

    def scale(self, address: Value) -> Value:
        return self.scales([address]).lane(0)


def _f16_scales(addresses: Sequence[Value]) -> Value:
    """The f16 numbers at some addresses."""
    b = addresses[0].b
    bits = [values.load(address, I16) for address in addresses]
    if len(bits) > 4:
        return halves.emit_widen_f16(values.gathered(bits))
    # Put together in a register: inserting 16 bits into a vector waits for whatever the vector held before.
    whole = bits[0].zext(I64)
    for i, each in enumerate(bits[1:], 1):
        whole = whole | each.zext(I64) << (16 * i)
    both = values.gathered([whole, values.constant(b, I64, 0)])
    return halves.emit_widen_f16(both.bitcast(vector(I16, 8)).part(0, 4))


def _q8_0_quants(address: Value) -> Value:
    return values.load(address, vector(I8, GROUP), 2) ^ -128


def _q4_0_quants(address: Value) -> Value:
    packed = values.load(address, vector(I8, GROUP // 2), 2)
    # low nibbles are numbers 0 to 15, high nibbles 16 to 31
    shifted = (packed.bitcast(vector(I16, GROUP // 4)).lshr(4)).bitcast(packed.type)
    both = packed.concat(shifted)
    return both & constant(both.b, both.type, 15)


PLAIN: dict[str, Plain] = {
    "f32": Plain("f32", 4, lambda raw: raw),
    "f16": Plain("f16", 2, halves.emit_widen_f16),
    "bf16": Plain("bf16", 2, halves.emit_widen_bf16),
}

#: Layouts: block_q8_0 is {f16 d; int8 qs[32]}, block_q4_0 is {f16 d; uint8 qs[16]} in ggml-common.h.
BLOCKS: dict[str, Blocks] = {
    "q8_0": Blocks("q8_0", 34, 128, _q8_0_quants, _f16_scales),
    "q4_0": Blocks("q4_0", 18, 8, _q4_0_quants, _f16_scales),
}
