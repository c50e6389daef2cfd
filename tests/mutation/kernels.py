"""Kernels with one fault each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ggplug.backend import Decline, Group, Operand, limit_of_ids
from ggplug.errors import UnsupportedOpError
from ggplug.ops.base import Array, Op
from ggplug.ops.elementwise import Binary
from ggplug.tensor import Spec, Tensor
from ggplug.types import I32, KERNEL_FLOATS
from ggplug_testing.oracle import cut, decoded, round_into
from ggplug_testing.reference import ReferenceDevice, interpret

Kernel = Callable[..., None]


class FaultyKernels(ReferenceDevice):
    """The reference device with other kernels."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__("faulty")
        self._kernel = kernel

    def match(self, group: Group) -> Any:
        found = super().match(group)
        return found if isinstance(found, Decline) else self._kernel


def last_element_wrong(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    values = decoded(dst.array(), dst.tensor)
    values.reshape(-1)[-1:] += 1
    round_into(dst.array(), dst.tensor, values)


def slightly_wrong(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    values = decoded(dst.array(), dst.tensor)
    if values.dtype.kind == "f":
        round_into(dst.array(), dst.tensor, values * 1.001)


def in_half_precision(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    values = decoded(dst.array(), dst.tensor)
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):
            round_into(dst.array(), dst.tensor, values.astype(np.float16).astype(np.float64))


def writes_behind_the_end(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    dst.buffer.bytes(dst.offset + dst.tensor.nbytes, 4)[:] = 0


def writes_before_the_beginning(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    dst.buffer.bytes(dst.offset - 1, 1)[:] = 0


def leaves_the_tail(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Works eight elements at a time and forgets the rest of each row."""
    before = dst.array().copy()
    interpret(op, dst, *src)
    if not op.writes:
        whole = dst.array().shape[-1] // 8 * 8
        dst.array()[..., whole:] = before[..., whole:]


def leaves_the_last_row(op: Op, dst: Operand, *src: Operand | None) -> None:
    before = dst.array().copy()
    interpret(op, dst, *src)
    if not op.writes and dst.tensor.ne[1] > 1:
        dst.array()[..., -1, :] = before[..., -1, :]


def modifies_a_source(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    if src and src[0] is not None and not op.writes and src[0].tensor.nbytes:
        src[0].buffer.bytes(src[0].offset, 1)[:] ^= 0x01


def _packed(operand: Operand | None) -> Operand | None:
    """The operand as if its tensor were contiguous."""
    if operand is None or operand.tensor.is_contiguous():
        return operand
    flat = Tensor(Spec(operand.tensor.type, operand.tensor.ne, operand.tensor.rank))
    return Operand(flat, operand.buffer, operand.offset)


def _with_sources(op: Op, dst: Operand, src: tuple[Operand | None, ...], arrays: list[Array | None]) -> None:
    """The reference of changed sources."""
    values = [None if a is None or s is None else decoded(a, s.tensor) for a, s in zip(arrays, src, strict=True)]
    with np.errstate(all="ignore"):
        result = np.asarray(op.reference(*values)).reshape(dst.tensor.ne[::-1])
    round_into(dst.array(), dst.tensor, result)


def ignores_strides(op: Op, dst: Operand, *src: Operand | None) -> None:
    packed = [_packed(operand) for operand in src]
    _with_sources(op, dst, src, [None if p is None else p.array().copy() for p in packed])


def ignores_view_offsets(op: Op, dst: Operand, *src: Operand | None) -> None:
    moved = [None if s is None else Operand(s.tensor, s.buffer, s.offset - s.tensor.view_offset) for s in src]
    _with_sources(op, dst, src, [None if m is None else m.array().copy() for m in moved])


def broadcasts_the_first_row(op: Op, dst: Operand, *src: Operand | None) -> None:
    if not isinstance(op, Binary):
        return interpret(op, dst, *src)
    arrays = [None if s is None else s.array().copy() for s in src]
    if arrays[1] is not None and arrays[1].shape != dst.array().shape:
        arrays[1][...] = arrays[1][:1, :1, :1, :]
    return _with_sources(op, dst, src, arrays)


def clears_before_it_reads(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Is right unless the result lies on a source, which the op allows."""
    if not op.writes:
        dst.array()[...] = np.zeros((), dst.array().dtype)
    interpret(op, dst, *src)


def raises(op: Op, dst: Operand, *src: Operand | None) -> None:
    raise RuntimeError("illegal instruction")


def declines_at_last(op: Op, dst: Operand, *src: Operand | None) -> None:
    raise UnsupportedOpError("not after all", op=op, reason="changed its mind")


def writes_a_row_too_many(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    rows = dst.array()
    if op.writes and src[0] is not None and rows.shape[2] > 1:
        rows[..., 0, :] = rows[..., 1, :]


def keeps_rows_of_ids_out_of_range(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Leaves the result's rows that belong to such ids as they were."""
    before = dst.array().copy()
    interpret(op, dst, *src)
    ids = None if op.indexes is None or op.writes else src[op.indexes.ids]
    if ids is not None:
        outside = (ids.array() < 0) | (ids.array() >= limit_of_ids(dst.tensor))
        dst.array()[outside[0]] = before[outside[0]]


def passes_nan(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Computes relu as the larger of two numbers, of which one is NaN."""
    interpret(op, dst, *src)
    if op.name == "relu" and src[0] is not None:
        round_into(dst.array(), dst.tensor, np.maximum(decoded(src[0].array(), src[0].tensor), 0))


def reads_what_is_not_there(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Where a source has no elements the result is what was found in its place."""
    interpret(op, dst, *src)
    if not op.writes and any(operand is not None and not operand.tensor.size for operand in src):
        dst.array().view(np.uint8)[...] = 0xFF


def sorts_to_one_index(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    if op.name == "argsort":
        dst.array()[...] = dst.array()[..., :1]


def moves_integers_as_floats(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Lets integers of 32 bits pass through float32, which holds those of 24."""
    interpret(op, dst, *src)
    if op.moves and dst.tensor.type is I32:
        with np.errstate(invalid="ignore"):
            dst.array()[...] = cut(dst.array().astype(np.float32), np.dtype(np.int32))


def cuts_as_the_processor_does(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Floats become integers by the instruction of x86: its smallest number stands for NaN and all beyond the range."""
    before = dst.array().copy()
    interpret(op, dst, *src)
    values = dst.array()
    if dst.tensor.type is I32 and any(s is not None and s.tensor.type in KERNEL_FLOATS for s in src):
        lowest, highest = np.iinfo(np.int32).min, np.iinfo(np.int32).max
        values[(values == highest) & (before != highest)] = lowest


def takes_the_last_row_of_b(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Where several experts share a row of b, all but the first take the last one, and not each its turn."""
    ids, b = (src[2], src[1]) if op.name == "mul_mat_id" else (None, None)
    if ids is None or b is None:
        return interpret(op, dst, *src)
    slots, rows = ids.tensor.ne[0], b.tensor.ne[1]
    arrays = [None if s is None else s.array().copy() for s in src]
    assert arrays[1] is not None
    arrays[1] = arrays[1][:, :, np.minimum(np.arange(slots), rows - 1)]
    values = [None if a is None or s is None else decoded(a, s.tensor) for a, s in zip(arrays, src, strict=True)]
    with np.errstate(all="ignore"):
        round_into(dst.array(), dst.tensor, np.asarray(op.reference(*values)).reshape(dst.tensor.ne[::-1]))
    return None
