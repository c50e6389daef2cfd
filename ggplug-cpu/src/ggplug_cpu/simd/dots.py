"""Dot products of int8, int16 and bf16 with 32-bit sums, by the instructions of each family of processors.

:data:`WAYS` lists for each product its ways, the best first, each with the features that it needs and the shape of its
sums.  The last way of a product whose sums are lanes runs on every processor.  The integer products
are exact; those of bf16 round a little differently (see :func:`dot_bf16`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from .. import features
from .lanes import count_of, is_vec, split
from .values import BF16, F32, I8, I16, I32, Value, call, constant, emitted, vector


@dataclass(frozen=True)
class Way:
    """One way to add products to 32-bit sums.

    ``rows`` is 1 where sum ``i`` receives the products of the numbers in lane ``i`` of two vectors: four int8, two
    int16 or two bf16.  It is 2 where the operands are matrices of two rows (of 8 int8 or 4 bf16), and sum ``2i + j``
    receives the products of row ``i`` of the first and row ``j`` of the second.  It is 16 for AMX's tiles (16 rows of
    64 bytes), which are no vectors: see :mod:`.tiles`.

    ``name`` is the assembler's, ``needs`` are the features (LLVM's names) that it needs, ``lanes`` is the number of
    sums, None for any.  A single instruction is called by its LLVM ``intrinsic``, with operands of ``elem``;
    ``emit(sums, a, b)`` emits several.  ``mixed`` marks a way that adds each product to some lane, not to its own.
    ``pairs`` is the LLVM intrinsic of an instruction that adds two neighbouring products in int16, which are added to
    the sums then: for numbers whose products fit, see :func:`way`.  ``signs`` is that of one that gives its first
    operand the signs of its second: where ``pairs`` takes one unsigned operand, it takes the magnitudes of the first,
    and the second with the first one's signs, which must not be -128.
    """

    name: str
    needs: tuple[str, ...] = ()
    lanes: int | None = None
    rows: int = 1
    intrinsic: str = ""
    elem: ir.Type = I8
    emit: Callable[[Value, Value, Value], Value] | None = None
    mixed: bool = False
    pairs: str = ""
    signs: str = ""

    @property
    def is_instruction(self) -> bool:
        """Whether one instruction multiplies and adds."""
        return self.emit is None and not self.pairs

    @property
    def is_fast(self) -> bool:
        """Whether one instruction multiplies as many numbers as a vector holds, and adds at least neighbours."""
        return self.emit is None

    def __call__(self, sums: Value, a: Value, b: Value) -> Value:
        """``sums`` plus the products of ``a`` and ``b``, vectors of as many bits as the sums have."""
        if self.pairs:
            return add_pairs(sums, self.of_pairs(a, b))
        if self.emit is not None:
            return self.emit(sums, a, b)
        operand = vector(self.elem, 4 * sums.count if self.elem == I8 else 2 * sums.count)
        return call(sums.b, self.intrinsic, sums.type, sums, a.bitcast(operand), b.bitcast(operand))

    def of_pairs(self, a: Value, b: Value) -> Value:
        """The sums of each two neighbouring products, as int16; only of a way that has ``pairs``."""
        if self.signs:
            a, b = call(a.b, self.signs, a.type, a, a), call(a.b, self.signs, a.type, b, a)
        return call(a.b, self.pairs, vector(I16, a.count // 2), a, b)


def add_pairs(sums: Value, pairs: Value) -> Value:
    """``sums`` plus each two neighbouring int16."""
    return emit_dot("i16", sums, pairs, constant(pairs.b, pairs.type, 1))


#: The largest unsigned byte, and the largest product of such a byte and a signed one.
LARGEST_BYTE = 255
LARGEST = LARGEST_BYTE * 128
#: That of two signed bytes, of which the second is not -128.
LARGEST_ROUNDED = 127 * 128
_INT16 = 32_767


def products_in_int16(largest: int) -> int:
    """How many products of this magnitude int16 holds the sum of."""
    return _INT16 // largest


def way(product: str, lanes: int, rows: int = 1, *, mixed: bool = False, largest: int = LARGEST) -> Way | None:
    """The target's way to add ``product`` to ``lanes`` sums; with ``mixed`` each product may land in any lane.

    ``largest``: the largest magnitude of a product; twice as much has to fit int16 for ways that add ``pairs``.
    None where it has none, which happens for ``rows`` other than 1 only.
    """
    for each in WAYS[product]:
        fits = each.lanes in (None, lanes) and each.rows == rows and (mixed or not each.mixed)
        fits = fits and (not each.pairs or products_in_int16(largest) >= 2)
        if fits and all(features.has(need) for need in each.needs):
            return each
    return None


def signed_is_faster(lanes: int, largest: int) -> bool:
    """Whether the target adds ``i8i8`` fast to ``lanes`` sums, if no second operand is -128, and not ``u8i8`` whose
    products have magnitudes up to ``largest``.
    """
    unsigned, signed = way("u8i8", lanes, largest=largest), way("i8i8", lanes, largest=LARGEST_ROUNDED)
    return unsigned is not None and not unsigned.is_fast and signed is not None and signed.is_fast


def emit_dot(product: str, sums: Value, a: Value, b: Value, *, mixed: bool = False, largest: int = LARGEST) -> Value:
    """``sums`` plus the products of the lanes of ``a`` and ``b``; ``mixed`` and ``largest`` as for :func:`way`."""
    found = way(product, sums.count, mixed=mixed, largest=largest)
    assert found is not None
    return found(sums, a, b)


def int8_product(lanes: int) -> str:
    """The fastest product of int8 numbers in ``lanes`` lanes: ``i8i8``, or ``u8i8`` on x86.

    The instructions of ``u8i8`` take the bytes of one operand as 0 to 255.
    """
    found = {product: way(product, lanes, mixed=True) for product in ("i8i8", "u8i8")}
    for product, best in found.items():
        if best is not None and best.is_instruction:
            return product
    return "i8i8" if found["i8i8"] is not None and found["i8i8"].needs else "u8i8"


# -- ways of several instructions ----------------------------------------------------------------


def _u8i8_by_pairs(sums: Value, unsigned: Value, signed: Value) -> Value:
    u, s = _as_pairs(unsigned), _as_pairs(signed)
    return _by_pairs(sums, (u & 0xFF, u.lshr(8)), ((s << 8) >> 8, s >> 8))


def _i8i8_by_pairs(sums: Value, a: Value, b: Value) -> Value:
    # Not as unsigned a + 128: flipping the sign bits of a splat that VNNI then reads hangs LLVM 22.
    x, y = _as_pairs(a), _as_pairs(b)
    return _by_pairs(sums, ((x << 8) >> 8, x >> 8), ((y << 8) >> 8, y >> 8))


def _as_pairs(v: Value) -> Value:
    return v.bitcast(vector(I16, v.count // 2))


def _by_pairs(sums: Value, left: tuple[Value, Value], right: tuple[Value, Value]) -> Value:
    """Multiplies bytes 0 and 2, then 1 and 3 of each lane, widened in place: no lanes cross, and no sum saturates.

    (The instruction that multiplies unsigned by signed bytes, ``pmaddubsw``, does saturate.)
    """
    for x, y in zip(left, right, strict=True):
        sums = emit_dot("i16", sums, x, y)
    return sums


def _i16_by_madd(name: str) -> Callable[[Value, Value, Value], Value]:
    return lambda sums, a, b: sums + call(sums.b, f"llvm.x86.{name}", sums.type, a, b)


def _i16_by_lanes(sums: Value, a: Value, b: Value) -> Value:
    n = sums.count
    low, high = ([Value(sums.b, v.ir).shuffle(range(j, 2 * n, 2)).convert(I32) for j in (0, 1)] for v in (a, b))
    return sums + low[0] * high[0] + low[1] * high[1]


def _long_products(wider: ir.Type, a: Value, b: Value) -> tuple[Value, Value]:
    """Products of the lower and of the upper halves of two vectors, in twice the bits: NEON's ``smull``."""
    n = a.count // 2
    low, high = (a.part(first, n).convert(wider) * b.part(first, n).convert(wider) for first in (0, n))
    return low, high


def _neon(name: str, *operands: Value) -> Value:
    """Calls a NEON intrinsic that returns four int32."""
    return call(operands[0].b, f"llvm.aarch64.neon.{name}", vector(I32, 4), *operands)


def _i8i8_by_long_products(sums: Value, a: Value, b: Value) -> Value:
    """Two int16 products can exceed int16, so neighbours are widened and added, and pairs of these sums added again."""
    twos = (_neon("saddlp.v4i32.v8i16", each) for each in _long_products(I16, a, b))
    return sums + _neon("addp.v4i32", *twos)


def _i8i8_mixed(sums: Value, a: Value, b: Value) -> Value:
    for each in _long_products(I16, a, b):
        sums = sums + _neon("saddlp.v4i32.v8i16", each)  # LLVM makes one sadalp of it
    return sums


def _i16_by_long_products(sums: Value, a: Value, b: Value) -> Value:
    return sums + _neon("addp.v4i32", *_long_products(I32, a, b))


def _bf16_by_fma(sums: Value, a: Value, b: Value) -> Value:
    lanes, floats = vector(I32, sums.count), vector(F32, sums.count)
    x, y = a.bitcast(lanes), b.bitcast(lanes)
    odd = (x & -65536).bitcast(floats).fma((y & -65536).bitcast(floats), sums)
    return (x << 16).bitcast(floats).fma((y << 16).bitcast(floats), odd)


# -- the table -------------------------------------------------------------------------------------------


def _x86(name: str, needs: tuple[str, ...], lanes: int, prefix: str, elem: ir.Type = I8) -> Way:
    return Way(name, needs, lanes, intrinsic=f"llvm.x86.{prefix}.{32 * lanes}", elem=elem)


def _pairs(name: str, need: str, lanes: int, pairs: str, signs: str = "") -> Way:
    return Way(name, (need,), lanes, pairs=f"llvm.x86.{pairs}", signs=signs and f"llvm.x86.{signs}")


def _arm(name: str, needs: str, operands: str, elem: ir.Type = I8, rows: int = 1) -> Way:
    return Way(name, (needs,), 4, rows, f"llvm.aarch64.neon.{name}{operands}", elem)


_VNNI, _BF16 = "avx512.vpdpbusd", "avx512bf16.dpbf16ps"

#: Product -> its ways, the best first.  ``u8i8`` takes the first operand's bytes as 0 to 255, ``i8i8`` none;
#: ``bf16`` are bits in int16 lanes.
WAYS: dict[str, tuple[Way, ...]] = {
    "u8i8": (
        _x86("vpdpbusd", ("avx512vnni",), 16, _VNNI),
        _x86("vpdpbusd", ("avxvnni",), 8, _VNNI),
        _x86("vpdpbusd", ("avxvnni",), 4, _VNNI),
        _x86("vpdpbusd", ("avx512vnni", "avx512vl"), 8, _VNNI),
        _x86("vpdpbusd", ("avx512vnni", "avx512vl"), 4, _VNNI),
        _arm("usdot", "i8mm", ".v4i32.v16i8"),
        _pairs("pmaddubsw pmaddwd", "ssse3", 4, "ssse3.pmadd.ub.sw.128"),
        _pairs("vpmaddubsw vpmaddwd", "avx2", 8, "avx2.pmadd.ub.sw"),
        _pairs("vpmaddubsw vpmaddwd", "avx512bw", 16, "avx512.pmaddubs.w.512"),
        Way("by i16", emit=_u8i8_by_pairs),
    ),
    "i8i8": (
        Way("tdpbssd", ("amx-int8",), 256, 16, "llvm.x86.tdpbssd"),
        _arm("smmla", "i8mm", ".v4i32.v16i8", rows=2),
        _arm("sdot", "dotprod", ".v4i32.v16i8"),
        _pairs("psignb pmaddubsw pmaddwd", "ssse3", 4, "ssse3.pmadd.ub.sw.128", "ssse3.psign.b.128"),
        _pairs("vpsignb vpmaddubsw vpmaddwd", "avx2", 8, "avx2.pmadd.ub.sw", "avx2.psign.b"),
        Way("smull sadalp", ("neon",), 4, emit=_i8i8_mixed, mixed=True),
        Way("smull saddlp addp", ("neon",), 4, emit=_i8i8_by_long_products),
        Way("by i16", emit=_i8i8_by_pairs),
    ),
    "i16": (
        Way("pmaddwd", ("sse2",), 4, emit=_i16_by_madd("sse2.pmadd.wd")),
        Way("vpmaddwd", ("avx2",), 8, emit=_i16_by_madd("avx2.pmadd.wd")),
        Way("vpmaddwd", ("avx512bw",), 16, emit=_i16_by_madd("avx512.pmaddw.d.512")),
        Way("smull addp", ("neon",), 4, emit=_i16_by_long_products),
        Way("by i32", emit=_i16_by_lanes),
    ),
    "bf16": (
        Way("tdpbf16ps", ("amx-bf16",), 256, 16, "llvm.x86.tdpbf16ps"),
        _x86("vdpbf16ps", ("avx512bf16",), 16, _BF16, BF16),
        _x86("vdpbf16ps", ("avx512bf16", "avx512vl"), 8, _BF16, BF16),
        _x86("vdpbf16ps", ("avx512bf16", "avx512vl"), 4, _BF16, BF16),
        _arm("bfmmla", "bf16", "", BF16, rows=2),
        _arm("bfdot", "bf16", ".v4f32.v8bf16", BF16),
        Way("by f32", emit=_bf16_by_fma),
    ),
}


# -- for kernels -----------------------------------------------------------------------------------------


def _rule(acc_elem: str, elem: str, times: int) -> Callable[[str, str, str], str | None]:
    def rule(acc: str, a: str, b: str) -> str | None:
        if not is_vec(acc) or a != b or split(acc)[0] != acc_elem or a != f"{elem}x{times * count_of(acc)}":
            return None
        return f"{acc}({acc}, {a}, {b})"

    return rule


@emitted(_rule("i32", "i8", 4))
def dot_u8i8(acc: Value, unsigned: Value, signed: Value) -> Value:
    """``acc[i] + sum of unsigned[4i + j] * signed[4i + j]``, j from 0 to 3: int8 lanes, the first read as 0 to 255.

    Exact: sums wrap at 32 bits and never saturate.
    """
    return emit_dot("u8i8", acc, unsigned, signed)


@emitted(_rule("i32", "i8", 4))
def dot_i8(acc: Value, a: Value, b: Value) -> Value:
    """``acc[i] + sum of a[4i + j] * b[4i + j]``, j from 0 to 3, of signed int8 lanes.  Exact.

    On x86 it takes eight instructions: where speed matters, add 128 to one side beforehand and use :func:`dot_u8i8`.
    """
    return emit_dot("i8i8", acc, a, b)


@emitted(_rule("i32", "i16", 2))
def dot_i16(acc: Value, a: Value, b: Value) -> Value:
    """``acc[i] + a[2i] * b[2i] + a[2i + 1] * b[2i + 1]`` of int16 lanes.  Exact but for two products of -32768."""
    return emit_dot("i16", acc, a, b)


@emitted(_rule("f32", "i16", 2))
def dot_bf16(acc: Value, a: Value, b: Value) -> Value:
    """``acc[i] + a[2i] * b[2i] + a[2i + 1] * b[2i + 1]`` of bf16 bits in int16 lanes.

    AVX512-BF16 rounds after each of two fused steps and takes subnormal numbers as zero.  So do Arm's instructions, but
    they add two products first, and round to odd (an inexact sum gets its last bit set, so it is off by less than one
    unit in the last place).  On other processors it is two :func:`fma`.
    """
    return emit_dot("bf16", acc, a, b)
