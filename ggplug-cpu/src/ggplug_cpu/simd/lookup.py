"""Lookup in small tables: of sixteen bytes by numbers from 0 to 15, in constants in memory by any index."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from .. import features
from .values import I8, I64, Value, call, constant, constants, joined, vector


def emit_lookup(table: Sequence[int], numbers: Value) -> Value:
    """Bytes of a table of sixteen, for int8 lanes from 0 to 15."""
    width = _lanes_at_once(numbers.count)
    if width:
        parts = [numbers.part(first, width) for first in range(0, numbers.count, width)]
        return joined([_shuffled(table, part) for part in parts])
    # Where no instruction chooses bytes, every bit of the numbers halves the choice.
    choice = [constant(numbers.b, numbers.type, byte) for byte in table]
    for bit in range(4):
        odd = (numbers & (1 << bit)).unequal(0)
        choice = [odd.select(high, low) for low, high in zip(choice[0::2], choice[1::2], strict=True)]
    return choice[0]


def _lanes_at_once(lanes: int) -> int:
    if features.has("neon"):
        return 16
    if lanes >= 64 and features.has("avx512bw"):
        return 64
    if lanes >= 32 and features.has("avx2"):
        return 32
    return 16 if features.has("ssse3") else 0


def _shuffled(table: Sequence[int], numbers: Value) -> Value:
    n = numbers.count
    content = constants(numbers.b, I8, [*table] * (n // 16))
    if features.has("neon"):
        return call(numbers.b, "llvm.aarch64.neon.tbl1.v16i8", numbers.type, content, numbers)
    name = {16: "ssse3.pshuf.b.128", 32: "avx2.pshuf.b", 64: "avx512.pshuf.b.512"}[n]
    return call(numbers.b, f"llvm.x86.{name}", vector(I8, n), content, numbers)


def constant_words(b: ir.IRBuilder, name: str, words: Sequence[int]) -> Value:
    """The address of 64-bit constants in the kernel's own memory; ``name`` tells them from others."""
    found = b.module.globals.get(name)
    if found is None:
        t = ir.ArrayType(I64, len(words))
        found = ir.GlobalVariable(b.module, t, name)
        found.global_constant, found.linkage, found.align = True, "internal", 64
        found.initializer = ir.Constant(t, [word - (1 << 64) if word >> 63 else word for word in words])
    return Value(b, b.ptrtoint(found, I64))
