"""Lookup in tables: of sixteen bytes by numbers from 0 to 15, of 128 and more bytes in registers, and in constants in
memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from llvmlite import ir

from .. import features
from .values import F32, I8, I64, Value, call, constant, constants, joined, load, opaque, vector


def emit_lookup(table: Sequence[int], numbers: Value) -> Value:
    """Bytes of a table of sixteen, for int8 lanes from 0 to 15."""
    width = _lanes_at_once(numbers.count)
    if width:
        parts = [numbers.part(first, width) for first in range(0, numbers.count, width)]
        return joined([_shuffled(table, part) for part in parts])
    # Without an instruction that selects bytes, every bit of the numbers halves the candidates.
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


#: Lanes of the vectors that :func:`emit_lookup_of_many` and :func:`bits_from` work on.
BYTES = 64


def permutes_bytes() -> bool:
    """Whether the target has AVX-512 VBMI: one instruction selects any of 128 bytes, another extracts shifted bytes."""
    return features.has("avx512vbmi")


def emit_lookup_of_many(table: Sequence[int], low: Value, higher: Sequence[Value]) -> Value:
    """64 bytes selected by index from a table of 128, 256, 512, ... bytes; needs :func:`permutes_bytes`.

    ``low``: the lower seven bits of each index, in int8 lanes whose eighth bit is ignored.  ``higher``: a mask for each
    further bit.
    """
    b, lanes = low.b, vector(I8, BYTES)
    if len(table) == 2 * BYTES:
        parts = [constants(b, I8, table[at : at + BYTES]) for at in range(0, len(table), BYTES)]
    else:
        # Not as LLVM's constants: LLVM would spill so many of them to memory that is not aligned.
        content = bytes(byte & 255 for byte in table)
        words = [int.from_bytes(content[at : at + 8], "little") for at in range(0, len(content), 8)]
        place = opaque(constant_words(b, f"table.{hashlib.sha256(content).hexdigest()[:16]}", words), each_time=True)
        parts = [load(place, lanes, at, align=BYTES) for at in range(0, len(table), BYTES)]
    name = "llvm.x86.avx512.vpermi2var.qi.512"
    found = [call(b, name, lanes, x, low, y) for x, y in zip(parts[0::2], parts[1::2], strict=True)]
    for mask in higher:
        found = [mask.select(y, x) for x, y in zip(found[0::2], found[1::2], strict=True)]
    (chosen,) = found
    return chosen


def emit_lookup_of_rising(table: Sequence[int], low: Value, high: Value) -> Value:
    """Bytes of a table of 2048 that rise with the index, in at most two steps in each 32: for :func:`permutes_bytes`.

    The lower eight bits of the index are in 64 int8 lanes of ``low``, the other three in the lowest bits of ``high``.
    In place of the table's bytes, registers hold for each 32 bytes the number of their first value, and the positions
    of at most two steps.
    """
    step = 32
    bytes_ = sorted({byte & 255 for byte in table})
    rank = [bytes_.index(byte & 255) for byte in table]
    begins, firsts, seconds = [], [], []
    for at in range(0, len(table), step):
        here = rank[at : at + step]
        begins.append(here[0])
        firsts.append(sum(each == here[0] for each in here))
        seconds.append(sum(each <= here[0] + 1 for each in here))
        assert here == [here[0] + (i >= firsts[-1]) + (i >= seconds[-1]) for i in range(step)]
    pairs = vector(ir.IntType(16), BYTES // 2)
    above = (high.bitcast(pairs) << 3).bitcast(low.type)
    which = (low.bitcast(pairs).lshr(5).bitcast(low.type) & 7) | (above & ~7)
    within = low & (step - 1)
    found = emit_lookup_of_64(begins, which)
    for starts in (firsts, seconds):
        found = (within >= emit_lookup_of_64(starts, which)).select(found + 1, found)
    content = [byte - 256 if byte > 127 else byte for byte in bytes_]
    return emit_lookup_of_many(content + [0] * (2 * BYTES - len(content)), found, [])


def emit_lookup_of_64(table: Sequence[int], indices: Value) -> Value:
    """Bytes of a table of 64, by the lower six bits of 64 int8 lanes.  See :func:`permutes_bytes`."""
    content = constants(indices.b, I8, table)
    return call(indices.b, "llvm.x86.avx512.permvar.qi.512", content.type, content, indices)


def looks_up_floats(lanes: int) -> bool:
    """Whether the target chooses any of 32 f32 in one instruction, for as many lanes."""
    return lanes == 16 and features.has("avx512f")


def emit_lookup_of_floats(table: Sequence[float], indices: Value) -> Value:
    """f32 of a table of 32, by the lower five bits of int32 lanes.  See :func:`looks_up_floats`."""
    low, high = (constants(indices.b, F32, table[at : at + 16]) for at in (0, 16))
    return call(indices.b, "llvm.x86.avx512.vpermi2var.ps.512", low.type, low, indices, high)


def bits_from(words: Value, offsets: Sequence[int]) -> Value:
    """Byte ``i`` of each 64-bit lane: eight bits from ``offsets[i]`` on, circularly.  See :func:`permutes_bytes`."""
    b, lanes = words.b, vector(I8, BYTES)
    where = constants(b, I8, [*offsets] * (BYTES // 8))
    return call(b, "llvm.x86.avx512.pmultishift.qb.512", lanes, where, words.bitcast(lanes))


def constant_words(b: ir.IRBuilder, name: str, words: Sequence[int]) -> Value:
    """The address of 64-bit constants in the kernel's own memory; ``name`` is unique to them."""
    found = b.module.globals.get(name)
    if found is None:
        t = ir.ArrayType(I64, len(words))
        found = ir.GlobalVariable(b.module, t, name)
        found.global_constant, found.linkage, found.align = True, "internal", 64
        found.initializer = ir.Constant(t, [word - (1 << 64) if word >> 63 else word for word in words])
    return Value(b, b.ptrtoint(found, I64))
