"""Kernels with one fault each: wrong, less precise than float32 lets them be, or lost in what is not ordinary."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from ggplug.backend import Group, Operand, limit_of_ids
from ggplug.errors import UnsupportedOpError
from ggplug.ops.base import Array, Op
from ggplug.ops.elementwise import Binary
from ggplug.ops.matrix import MulMat, MulMatId
from ggplug.ops.norms import Norm
from ggplug.ops.rotary import Rope
from ggplug.tensor import Spec, Tensor
from ggplug.types import BF16, F16, F32, I32, KERNEL_FLOATS, Type
from ggplug_testing.devices.reference import ReferenceDevice, interpret
from ggplug_testing.judging.oracle import compute_node, cut, decoded, moves_bits, round_into
from tests.mutation.fault import by_hand

Kernel = Callable[..., None]


class FaultyKernels(ReferenceDevice):
    """The reference device with other kernels."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__("faulty")
        self._kernel = kernel

    def match(self, group: Group) -> Any:
        found = super().match(group)
        return self._kernel if found is interpret else found


faulty = by_hand(FaultyKernels)


def values_of(operand: Operand) -> Array:
    return decoded(operand.array(), operand.tensor)


def store(op: Op, dst: Operand, values: Array) -> None:
    round_into(dst.array(), dst.tensor, values, keep=values_of(dst) if op.writes else None)


def of_results(change: Callable[[Op, Tensor, Array], Array]) -> Kernel:
    """A kernel that stores ``change(op, node, values)`` in the place of floats that it has computed."""

    def kernel(op: Op, dst: Operand, *src: Operand | None) -> None:
        before = values_of(dst) if op.writes else None
        interpret(op, dst, *src)
        values = values_of(dst)
        if values.dtype.kind == "f":
            with np.errstate(all="ignore"):
                other = change(op, dst.tensor, values)
            if before is not None:
                other = np.where(values == before, values, other)
            if other is not values:
                round_into(dst.array(), dst.tensor, other)

    return kernel


def referred(formula: Callable[..., Array], dst: Operand, src: tuple[Operand | None, ...]) -> Array:
    """What a formula makes of the sources' values, not rounded."""
    with np.errstate(all="ignore"):
        values = formula(*[None if operand is None else values_of(operand) for operand in src])
        return np.asarray(values).reshape(dst.tensor.ne[::-1])


def computes(kind: type[Any]) -> Callable[[Callable[..., Array]], Kernel]:
    """A kernel of ops of a kind, by ``formula(op, *values)``; ops that only move or write values are right."""

    def of(formula: Callable[..., Array]) -> Kernel:
        def kernel(op: Op, dst: Operand, *src: Operand | None) -> None:
            if not isinstance(op, kind) or op.writes or op.moves:
                return interpret(op, dst, *src)
            return store(op, dst, referred(lambda *values: formula(op, *values), dst, src))

        return kernel

    return of


# -- results ---------------------------------------------------------------------------------------


@faulty("the last element is wrong", "relu", "mul_mat", "cpy", "argmax", "graph")
def last_element_wrong(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    values = values_of(dst)
    values.reshape(-1)[-1:] += 1
    round_into(dst.array(), dst.tensor, values)


@faulty("everything is slightly wrong", "add", "mul_mat", "soft_max", "norm")
@of_results
def slightly_wrong(op: Op, node: Tensor, values: Array) -> Array:
    return values * 1.001


@faulty("computes in half precision", "mul_mat", "mul_mat_id")
@of_results
def in_half_precision(op: Op, node: Tensor, values: Array) -> Array:
    return values.astype(np.float16).astype(np.float64)


def through(type: Type) -> Kernel:
    """Rounds results in F32 to ``type`` first."""
    return of_results(lambda op, node, values: _cut_to(type, values, ties=True) if node.type is F32 else values)


faulty(
    "rounds results to f16",
    "rms_norm",
    "rope",
    "get_rows",
    "set_rows",
    "sub",
    "mul",
    "div",
    "add",
    "norm",
    "sum_rows",
    "soft_max",
    "silu",
    "swiglu",
    "scale",
    "concat",
    "cpy",
)(through(F16))
faulty("rounds results to bf16", "mul_mat", "mul_mat_id", "gelu", "mean", "repeat")(through(BF16))


@faulty("stores the largest number for infinity", "cpy", "exp", "mul", "sqr")
@of_results
def largest_for_infinity(op: Op, node: Tensor, values: Array) -> Array:
    limit = 65504.0 if node.type is F16 else 3.3895e38
    return values if node.type.is_quantized else np.clip(values, -limit, limit)


@faulty("approximates to four digits", "exp", "tanh", "soft_max", "rope", "gelu")
@of_results
def approximates(op: Op, node: Tensor, values: Array) -> Array:
    """Functions by a short series, right to four digits: f(x) (1 + 0.0001 sin(9 x))."""
    wrong = values * (1 + 1e-4 * np.sin(9 * values))
    return values if op.moves or node.type is not F32 else np.where(np.isfinite(wrong), wrong, values)


@faulty("claims but raises", "add", "mul_mat")
def raises(op: Op, dst: Operand, *src: Operand | None) -> None:
    raise RuntimeError("illegal instruction")


@faulty("claims but declines", "relu")
def declines_at_last(op: Op, dst: Operand, *src: Operand | None) -> None:
    raise UnsupportedOpError("not after all", op=op, reason="changed its mind")


# -- what is written -------------------------------------------------------------------------------


@faulty("writes behind the end", "relu", "get_rows", "set_rows")
def writes_behind_the_end(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    dst.buffer.bytes(dst.offset + dst.tensor.nbytes, 4)[:] = 0


@faulty("writes before the beginning", "relu", "mul_mat")
def writes_before_the_beginning(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    dst.buffer.bytes(dst.offset - 1, 1)[:] = 0


@faulty("leaves the tail of rows", "silu", "rms_norm", "mul_mat", "rope")
def leaves_the_tail(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Works eight elements at a time and forgets the rest of each row."""
    before = dst.array().copy()
    interpret(op, dst, *src)
    if not op.writes:
        whole = dst.array().shape[-1] // 8 * 8
        dst.array()[..., whole:] = before[..., whole:]


@faulty("leaves the last row", "silu", "soft_max", "argsort")
def leaves_the_last_row(op: Op, dst: Operand, *src: Operand | None) -> None:
    before = dst.array().copy()
    interpret(op, dst, *src)
    if not op.writes and dst.tensor.ne[1] > 1:
        dst.array()[..., -1, :] = before[..., -1, :]


@faulty("modifies a source", "add", "mul_mat", "rope", "concat")
def modifies_a_source(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    if src and src[0] is not None and not op.writes and src[0].tensor.nbytes:
        src[0].buffer.bytes(src[0].offset, 1)[:] ^= 0x01


@faulty("clears the result before it reads", "add", "silu", "soft_max", "rope")
def clears_before_it_reads(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Is right unless the result lies on a source, which the op allows."""
    if not op.writes:
        dst.array()[...] = np.zeros((), dst.array().dtype)
    interpret(op, dst, *src)


@faulty("writes a row too many", "set_rows")
def writes_a_row_too_many(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    rows = dst.array()
    if op.writes and src[0] is not None and rows.shape[2] > 1:
        rows[..., 0, :] = rows[..., 1, :]


@faulty("keeps rows of ids out of range", "get_rows", "mul_mat_id", "graph")
def keeps_rows_of_ids_out_of_range(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Leaves the result's rows that belong to such ids as they were."""
    before = dst.array().copy()
    interpret(op, dst, *src)
    ids = None if op.indexes is None or op.writes else src[op.indexes.ids]
    if ids is not None:
        outside = (ids.array() < 0) | (ids.array() >= limit_of_ids(dst.tensor))
        dst.array()[outside[0]] = before[outside[0]]


@faulty("sorts to one index", "argsort")
def sorts_to_one_index(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    if op.name == "argsort":
        dst.array()[...] = dst.array()[..., :1]


@faulty(
    "moves integers as floats",
    "cpy",
    "cont",
    "dup",
    "concat",
    "repeat",
    "get_rows",
    "set_rows",
    "set",
    "pad_reflect_1d",
    "roll",
)
def moves_integers_as_floats(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Lets integers of 32 bits pass through float32, which holds those of 24."""
    interpret(op, dst, *src)
    if op.moves and dst.tensor.type is I32:
        with np.errstate(invalid="ignore"):
            dst.array()[...] = cut(dst.array().astype(np.float32), np.dtype(np.int32))


@faulty("cuts floats as the processor does", "cpy", "dup", "set_rows")
def cuts_as_the_processor_does(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Floats become integers by the instruction of x86: its smallest number stands for NaN and all beyond the range."""
    before = dst.array().copy()
    interpret(op, dst, *src)
    values = dst.array()
    if dst.tensor.type is I32 and any(s is not None and s.tensor.type in KERNEL_FLOATS for s in src):
        lowest, highest = np.iinfo(np.int32).min, np.iinfo(np.int32).max
        values[(values == highest) & (before != highest)] = lowest


def _cut_to(type: Type, values: Array, *, ties: bool = False) -> Array:
    """Numbers of F16 or BF16: the nearest with ``ties`` (those to even), else the next towards zero."""
    with np.errstate(all="ignore"):
        if type is BF16:
            words = values.astype(np.float32).view(np.uint32)
            if ties:
                words = words + 0x7FFF + ((words >> 16) & 1)
            cut: Array = (words & 0xFFFF0000).view(np.float32)
        else:
            cut = values.astype(np.float16)
            if not ties:
                smaller = np.nextafter(cut, np.float16(0))
                cut = np.where(np.abs(cut) > np.abs(values), smaller, cut)
        return np.where(np.isfinite(values), cut.astype(np.float64), values)


def _rounds(rounded: Callable[[Type, Array], Array]) -> Kernel:
    """A kernel that stores F16 and BF16 as ``rounded(type, values)``."""

    def kernel(op: Op, dst: Operand, *src: Operand | None) -> None:
        kind = dst.tensor.type
        if kind not in (F16, BF16) or moves_bits(dst.tensor):
            return interpret(op, dst, *src)
        return store(op, dst, rounded(kind, referred(op.reference, dst, src)))

    return kernel


faulty("cuts results off", "cpy", "dup", "set_rows", "add", "silu", "rms_norm")(_rounds(_cut_to))


@faulty("rounds ties away from zero", "cpy", "set_rows", "add", "sub", "mul")
@_rounds
def rounds_ties_away(kind: Type, values: Array) -> Array:
    """Adds half a step, and drops the rest."""
    even = _cut_to(kind, values, ties=True)
    with np.errstate(all="ignore"):
        # At a tie the number twice as far from the even one is the other neighbour.
        other = 2 * values - even
        tie = np.isfinite(even) & (even != values) & (_cut_to(kind, other, ties=True) == other)
    return np.where(tie & (np.abs(other) > np.abs(even)), other, even)


# -- what is read ----------------------------------------------------------------------------------


def _packed(operand: Operand) -> Operand:
    """The operand as if its tensor were contiguous."""
    flat = Tensor(Spec(operand.tensor.type, operand.tensor.ne, operand.tensor.rank))
    return operand if operand.tensor.is_contiguous() else Operand(flat, operand.buffer, operand.offset)


def _from_the_root(operand: Operand) -> Operand:
    return Operand(operand.tensor, operand.buffer, operand.offset - operand.tensor.view_offset)


def misreads(change: Callable[[Operand], Operand], first: int = 0) -> Kernel:
    """A kernel that reads sources from the ``first`` on in a wrong place; what an op writes stays where it is."""

    def kernel(op: Op, dst: Operand, *src: Operand | None) -> None:
        read = [
            change(operand) if operand is not None and position >= first and position not in op.writes else operand
            for position, operand in enumerate(src)
        ]
        compute_node(dst.tensor, dst.array(), [None if operand is None else operand.array().copy() for operand in read])

    return kernel


ignores_strides = faulty("ignores strides", "add", "norm", "mul_mat", "cont", "repeat")(misreads(_packed))
faulty("ignores offsets of views", "add", "mul_mat", "get_rows", "sum_rows")(misreads(_from_the_root))
faulty("ignores strides of other sources", "rope", "get_rows", "set_rows", "mul_mat_id", "soft_max", "div")(
    misreads(_packed, 1)
)
faulty("ignores offsets of other sources", "rope", "get_rows", "set_rows", "mul_mat_id", "soft_max", "swiglu", "add")(
    misreads(_from_the_root, 1)
)


@faulty("reads what is not there", "sum", "sum_rows", "mul_mat", "mul_mat_id")
def reads_what_is_not_there(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Where a source has no elements the result is what was found in its place."""
    interpret(op, dst, *src)
    if not op.writes and any(operand is not None and not operand.tensor.size for operand in src):
        dst.array().view(np.uint8)[...] = 0xFF


@faulty("broadcasts the first row", "add", "div")
@computes(Binary)
def broadcasts_the_first_row(op: Op, a: Array, b: Array) -> Array:
    return op.reference(a, b if b.shape == a.shape else np.broadcast_to(b[:1, :1, :1], b.shape))


@faulty("takes the last row of b", "mul_mat_id")
@computes(MulMatId)
def takes_the_last_row_of_b(op: Op, weights: Array, b: Array, ids: Array) -> Array:
    """Where several experts share a row of b, all but the first take the last one, and not each its own."""
    return op.reference(weights, b[:, :, np.minimum(np.arange(ids.shape[-1]), b.shape[2] - 1)], ids)


@faulty("drops the tail of long rows", "mul_mat", "mul_mat_id", "sum_rows", "rms_norm", "soft_max", "argmax")
@computes(Op)
def drops_the_tail(op: Op, *values: Array | None) -> Array:
    """Reads 4096 elements of each row of floats, as a kernel with a fixed number of rounds does."""
    read = [None if each is None else each.copy() for each in values]
    for each in read:
        if each is not None and each.dtype.kind == "f" and op.name != "argsort":
            each[..., 4096:] = -np.inf if op.name in ("argmax", "soft_max") else 0
    return op.reference(*read)


@faulty("takes a NaN for nothing", "sum_rows", "mul_mat", "norm", "add", "rope")
@computes(Op)
def skips_nan(op: Op, *values: Array | None) -> Array:
    floats = [each is not None and each.dtype.kind == "f" for each in values]
    read = zip(values, floats, strict=True)
    return op.reference(*[np.where(np.isnan(each), 0, each) if float else each for each, float in read])  # type: ignore[arg-type]


@faulty("lets a NaN pass", "relu")
@computes(Op)
def passes_nan(op: Op, *values: Array | None) -> Array:
    """Computes relu as the larger of two numbers, of which one is NaN."""
    return np.maximum(values[0], 0) if op.name == "relu" else op.reference(*values)  # type: ignore[arg-type]


# -- formulas --------------------------------------------------------------------------------------


@faulty("takes the variance in one pass", "norm")
@computes(Norm)
def one_pass_variance(op: Norm, x: Array) -> Array:
    """Takes the variance as the mean of squares less the square of the mean, in float32."""
    x, n = x.astype(np.float32), np.float32(x.shape[-1])
    mean = x.sum(axis=-1, keepdims=True, dtype=np.float32) / n
    square = (x * x).sum(axis=-1, keepdims=True, dtype=np.float32) / n
    return np.asarray((x - mean) / np.sqrt(square - mean * mean + np.float32(op.eps)), np.float64)


def sums_in(type: Type) -> Kernel:
    """Adds the products of a matrix product up in ``type``, in eight sums."""

    def product(op: MulMat, a: Array, b: Array) -> Array:
        for axis in (0, 1):
            a = np.repeat(a, b.shape[axis] // max(1, a.shape[axis]), axis=axis)
        total = np.zeros((*b.shape[:3], a.shape[2]))
        for lane in range(8):
            some = np.zeros_like(total)
            for k in range(lane, a.shape[-1], 8):
                some = _cut_to(type, some + b[..., :, k, np.newaxis] * a[..., np.newaxis, :, k], ties=True)
            total += some
        return total

    return computes(MulMat)(product)


faulty("adds products up in f16", "mul_mat")(sums_in(F16))
faulty("adds products up in bf16", "mul_mat")(sums_in(BF16))


def rotates(angles: Callable[[Rope, Array, Array | None], Array]) -> Kernel:
    """A kernel of rope with other angles."""

    def rotated(op: Rope, x: Array, pos: Array, factors: Array | None = None) -> Array:
        other = copy.copy(op)
        object.__setattr__(other, "angles", lambda pos, factors=None: angles(op, pos, factors))
        return other.reference(x, pos, factors)

    return computes(Rope)(rotated)


def angles_in_float32(beyond: int) -> Kernel:
    """Rotates by angles that are rounded to float32 at positions beyond a limit."""

    def rounded(op: Rope, pos: Array, factors: Array | None) -> Array:
        angles = op.angles(pos, factors)
        farthest = np.abs(pos.reshape(4 if op.several_axes else 1, -1)).max(axis=0)[:, np.newaxis]
        return np.where(farthest > beyond, angles.astype(np.float32).astype(np.float64), angles)

    return rotates(rounded)


for beyond, where in ((0, ""), (131_071, " beyond position 131071"), (1 << 24, " beyond position 2^24")):
    faulty(f"angles are rounded to float32{where}", "rope")(angles_in_float32(beyond))
for bits in (20, 24):
    mask = (1 << bits) - 1
    faulty(f"positions have {bits} bits", "rope")(
        rotates(lambda op, pos, factors, mask=mask: op.angles(pos & mask, factors))  # type: ignore[misc]
    )
# float32 holds whole numbers up to 2**24.
faulty("positions are rounded to float32", "rope")(
    rotates(lambda op, pos, factors: op.angles(pos.astype(np.float32), factors))
)
