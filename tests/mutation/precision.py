"""Kernels that are less precise than float32 lets them be, or that lose what is not ordinary."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ggplug.backend import Operand
from ggplug.ops.base import Array, Op
from ggplug.ops.norms import Norm
from ggplug.ops.rotary import Rope
from ggplug.tensor import Spec, Tensor
from ggplug.types import BF16, F16, F32, Type
from ggplug_testing.oracle import compute_node, decoded, moves_bits, round_into
from ggplug_testing.reference import interpret

Changed = Callable[[Op, int, Array], Array]
"""``(op, position of the source, its values) -> what the kernel makes of them``."""


def _referred(op: Op, dst: Operand, src: tuple[Operand | None, ...], change: Changed) -> Array:
    """The op's reference of changed sources, not rounded."""
    values = [
        None if operand is None else change(op, position, decoded(operand.array(), operand.tensor))
        for position, operand in enumerate(src)
    ]
    with np.errstate(all="ignore"):
        return np.asarray(op.reference(*values)).reshape(dst.tensor.ne[::-1])


def _store(op: Op, dst: Operand, values: Array) -> None:
    keep = decoded(dst.array(), dst.tensor) if op.writes else None
    round_into(dst.array(), dst.tensor, values, keep=keep)


def through(type: Type) -> Callable[..., None]:
    """Rounds results in F32 to ``type`` first."""

    def kernel(op: Op, dst: Operand, *src: Operand | None) -> None:
        before = decoded(dst.array(), dst.tensor) if op.writes and dst.tensor.type is F32 else None
        interpret(op, dst, *src)
        if dst.tensor.type is F32:
            values = decoded(dst.array(), dst.tensor)
            coarse = _cut_to(type, values, ties=True)
            if before is not None:
                coarse = np.where(values == before, values, coarse)
            round_into(dst.array(), dst.tensor, coarse)

    return kernel


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


def stores_by_truncation(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Drops the digits that F16 and BF16 lack, in the place of rounding."""
    kind = dst.tensor.type
    if kind not in (F16, BF16) or moves_bits(dst.tensor):
        return interpret(op, dst, *src)
    return _store(op, dst, _cut_to(kind, _referred(op, dst, src, _same)))


def rounds_ties_away(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Stores F16 and BF16 with ties away from zero: adds half a step, and drops the rest."""
    kind = dst.tensor.type
    if kind not in (F16, BF16) or moves_bits(dst.tensor):
        return interpret(op, dst, *src)
    values = _referred(op, dst, src, _same)
    even = _cut_to(kind, values, ties=True)
    with np.errstate(all="ignore"):
        # At a tie the number twice as far from the even one is the other neighbour.
        other = 2 * values - even
        tie = np.isfinite(even) & (even != values) & (_cut_to(kind, other, ties=True) == other)
    return _store(op, dst, np.where(tie & (np.abs(other) > np.abs(even)), other, even))


def _same(op: Op, position: int, values: Array) -> Array:
    return values


def one_pass_variance(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Takes the variance as the mean of squares less the square of the mean, in float32."""
    (x,) = src if isinstance(op, Norm) else (None,)
    if x is None:
        return interpret(op, dst, *src)
    values = decoded(x.array(), x.tensor).astype(np.float32)
    n = np.float32(values.shape[-1])
    with np.errstate(all="ignore"):
        mean = values.sum(axis=-1, keepdims=True, dtype=np.float32) / n
        square = (values * values).sum(axis=-1, keepdims=True, dtype=np.float32) / n
        result = (values - mean) / np.sqrt(square - mean * mean + np.float32(op.eps))  # type: ignore[attr-defined]
    return _store(op, dst, result.astype(np.float64))


def drops_the_tail_beyond(length: int) -> Callable[..., None]:
    """Reads so many elements of each row of floats, as a kernel with a fixed number of rounds does."""

    def dropped(op: Op, position: int, values: Array) -> Array:
        if values.dtype.kind == "f" and values.shape[-1] > length:
            values = values.copy()
            values[..., length:] = -np.inf if op.name in ("argmax", "soft_max") else 0
        return values

    def kernel(op: Op, dst: Operand, *src: Operand | None) -> None:
        if op.writes or op.name == "argsort":
            return interpret(op, dst, *src)
        return _store(op, dst, _referred(op, dst, src, dropped))

    return kernel


def angles_in_float32(beyond: int) -> Callable[..., None]:
    """Turns by angles that are rounded to float32 at positions beyond a limit."""

    def rounded(op: Rope, pos: Array, factors: Array | None) -> Array:
        angles = op.angles(pos, factors)
        return np.where(_largest_place(op, pos) > beyond, angles.astype(np.float32).astype(np.float64), angles)

    return _turning(rounded)


def positions_in_float32(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Rounds positions to float32, which is exact up to 2**24."""
    _turning(lambda rope, pos, factors: rope.angles(pos.astype(np.float32), factors))(op, dst, *src)


def positions_of(bits: int) -> Callable[..., None]:
    """Keeps so many bits of positions."""
    return _turning(lambda rope, pos, factors: rope.angles(pos & ((1 << bits) - 1), factors))


def _largest_place(op: Rope, pos: Array) -> Array:
    """The largest of the positions of each row, [T, 1]."""
    return np.asarray(np.abs(pos.reshape(4 if op.several_axes else 1, -1)).max(axis=0)[:, np.newaxis])


def _turning(angles: Callable[[Rope, Array, Array | None], Array]) -> Callable[..., None]:
    """A kernel of rope with other angles."""

    def kernel(op: Op, dst: Operand, *src: Operand | None) -> None:
        if not isinstance(op, Rope):
            return interpret(op, dst, *src)
        return _store(op, dst, _referred(_OtherAngles(op, angles), dst, src, _same))  # type: ignore[arg-type]

    return kernel


class _OtherAngles:
    """A rope but for its angles."""

    def __init__(self, op: Rope, angles: Callable[[Rope, Array, Array | None], Array]) -> None:
        self._op = op
        self._angles = angles

    def __getattr__(self, name: str) -> object:
        return getattr(self._op, name)

    def angles(self, pos: Array, factors: Array | None = None) -> Array:
        return self._angles(self._op, pos, factors)

    def reference(self, x: Array, pos: Array, factors: Array | None = None) -> Array:
        return Rope.reference(self, x, pos, factors)  # type: ignore[arg-type]


def _moved(change: Callable[[Operand], Operand]) -> Callable[..., None]:
    """Reads all sources but the first in a wrong place; what an op writes stays where it is."""

    def kernel(op: Op, dst: Operand, *src: Operand | None) -> None:
        arrays: list[Array | None] = []
        for position, operand in enumerate(src):
            wrong = operand is not None and position > 0 and position not in op.writes
            read = change(operand) if wrong and operand is not None else operand
            arrays.append(None if read is None else read.array().copy())
        if op.writes:
            return compute_node(dst.tensor, dst.array(), arrays)
        values = [None if a is None or s is None else decoded(a, s.tensor) for a, s in zip(arrays, src, strict=True)]
        with np.errstate(all="ignore"):
            return _store(op, dst, np.asarray(op.reference(*values)).reshape(dst.tensor.ne[::-1]))

    return kernel


def _packed(operand: Operand) -> Operand:
    if operand.tensor.is_contiguous():
        return operand
    flat = Tensor(Spec(operand.tensor.type, operand.tensor.ne, operand.tensor.rank))
    return Operand(flat, operand.buffer, operand.offset)


def _from_the_root(operand: Operand) -> Operand:
    return Operand(operand.tensor, operand.buffer, operand.offset - operand.tensor.view_offset)


ignores_strides_of_other_sources = _moved(_packed)
ignores_offsets_of_other_sources = _moved(_from_the_root)


def skips_nan(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Takes a NaN in a sum, or in a product, for nothing."""

    def skipped(op: Op, position: int, values: Array) -> Array:
        return np.where(np.isnan(values), 0, values) if values.dtype.kind == "f" else values

    if op.writes or op.moves:
        return interpret(op, dst, *src)
    return _store(op, dst, _referred(op, dst, src, skipped))


def largest_for_infinity(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Stores the largest number where the result is infinite."""
    interpret(op, dst, *src)
    values = decoded(dst.array(), dst.tensor)
    if values.dtype.kind == "f" and not dst.tensor.type.is_quantized and np.isinf(values).any():
        limit = 65504.0 if dst.tensor.type is F16 else 3.3895e38
        round_into(dst.array(), dst.tensor, np.clip(values, -limit, limit))


def approximates(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Functions by a short series, right to four digits: f(x) (1 + 0.0001 sin(9 x))."""
    interpret(op, dst, *src)
    values = decoded(dst.array(), dst.tensor)
    if values.dtype.kind == "f" and not op.moves and dst.tensor.type is F32:
        with np.errstate(all="ignore"):
            wrong = values * (1 + 1e-4 * np.sin(9 * values))
        round_into(dst.array(), dst.tensor, np.where(np.isfinite(wrong), wrong, values))


def sums_in(type: Type) -> Callable[..., None]:
    """Adds the products of a matrix product up in ``type``, in eight sums."""

    def kernel(op: Op, dst: Operand, *src: Operand | None) -> None:
        if op.name != "mul_mat" or src[0] is None or src[1] is None:
            return interpret(op, dst, *src)
        a, b = (decoded(each.array(), each.tensor) for each in src if each is not None)
        for axis in (0, 1):
            a = np.repeat(a, b.shape[axis] // max(1, a.shape[axis]), axis=axis)
        total = np.zeros(dst.tensor.ne[::-1])
        for lane in range(8):
            some = np.zeros_like(total)
            for k in range(lane, a.shape[-1], 8):
                some = _cut_to(type, some + b[..., :, k, np.newaxis] * a[..., np.newaxis, :, k], ties=True)
            total += some
        return _store(op, dst, total)

    return kernel
