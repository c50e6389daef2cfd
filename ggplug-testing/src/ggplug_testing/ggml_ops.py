"""How ggml's nodes are written in our ops: ``(ggml's op, op_params, sources, result) -> our tensor``.

ggml's parameters are sixteen words of 32 bits.  Mostly they are the fields of our op in the same order, each a number
of the field's type, but for extents and types, which the result has.  A row of the table says what is different.  An
op without a row, or whose class is not defined, has no counterpart yet.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ggplug import ops
from ggplug.ops.base import OPS, Op, apply
from ggplug.tensor import Extents, Tensor
from ggplug.types import Type

Sources = Sequence[Tensor | None]

UNARY = """
    abs sgn neg step tanh elu relu sigmoid gelu gelu_quick silu hardswish hardsigmoid exp expm1 softplus gelu_erf xielu
    floor ceil round trunc
"""
"""Our names in the order of ``enum ggml_unary_op``."""

GLU = "reglu geglu swiglu swiglu_oai geglu_erf geglu_quick swiglu_clamp"
"""Our names in the order of ``enum ggml_glu_op``."""


class Result(NamedTuple):
    """What ggml says of a node: type, extents, strides, and for a view the bytes from its root's first."""

    type: Type
    ne: Extents
    nb: Extents
    view_offset: int


class Params:
    """ggml's ``op_params``: whole numbers, or floats by their bits."""

    def __init__(self, words: Sequence[int]) -> None:
        self._words = tuple(words)

    def __getitem__(self, position: int) -> int:
        return self._words[position]

    def real(self, position: int) -> float:
        value: float = struct.unpack("<f", struct.pack("<i", self._words[position]))[0]
        return value

    def numbers(self, start: int, count: int) -> tuple[int, ...]:
        return self._words[start : start + count]

    def fields(self, op: type[Op], result: Result, at: Sequence[int] = range(16)) -> dict[str, Any]:
        """The fields of an op of ours: the first is the parameter at ``at[0]``, and so on; others have no parameter."""
        found: dict[str, Any] = {}
        places = iter(at)
        for field in dataclasses.fields(op):
            if field.name == "ne":
                found["ne"] = result.ne
            elif field.type == "TypeName":
                found[field.name] = result.type.name
            elif (place := next(places, None)) is None:
                break
            elif field.type == "tuple[int, ...]":
                found[field.name] = self.numbers(place, 4)
            else:
                number = self.real(place) if field.type == "float" else self[place]
                found[field.name] = bool(number) if field.type == "bool" else number
        return found


class Undefined(NamedTuple):
    """There is no op of ours for a node: ``name`` is ggml's."""

    name: str

    @property
    def reason(self) -> str:
        return f"op {self.name} is not defined"


Writer = Callable[[Params, Sources, Result], "Op | Tensor"]
"""Answers our op, or a tensor where ours are several."""


class Row(NamedTuple):
    """One of ggml's ops, as our op ``name``, or as ``write`` makes it.

    ``at``: where the parameters are that our fields have.  ``order``: at which of ggml's positions our sources are
    (default: in order).
    """

    name: str = ""
    at: Sequence[int] = range(16)
    order: tuple[int, ...] | None = None
    write: Writer | None = None


def rewrite(name: str, params: Sequence[int], sources: Sources, result: Result) -> Tensor | Undefined:
    """Our node for one of ggml's.

    Raises what the op's shape rule raises: ShapeError, TypeMismatchError, ParameterError.
    """
    given = Params(params)
    row = VARIANTS[name](given[0]) if name in VARIANTS else TABLE.get(name)
    if row is None or (row.write is None and row.name not in OPS):
        return Undefined(name)
    cls = OPS.get(row.name, Op)
    op = row.write(given, sources, result) if row.write is not None else cls(**given.fields(cls, result, row.at))
    if isinstance(op, Tensor):
        return op
    order = row.order if row.order is not None else range(len(op.sources))
    return apply(op, tuple(sources[i] if i < len(sources) else None for i in order))


def _variant(listed: str, at: Sequence[int]) -> Callable[[int], Row | None]:
    """The op with this number of several that are one op of ggml."""
    names = listed.split()
    return lambda kind: Row(names[kind], at) if kind < len(names) else None


def _glu(kind: int) -> Row | None:
    row = _variant(GLU, range(1, 4))(kind)
    # ggml's limit is where that of swiglu_oai is, behind its alpha
    return row._replace(at=(1, 3)) if row is not None and row.name == "swiglu_clamp" else row


VARIANTS = {"UNARY": _variant(UNARY, range(1, 5)), "GLU": _glu}
"""ggml's ops whose first parameter says which op of ours they are."""


def _two(sources: Sources) -> tuple[Tensor, Tensor]:
    a, b = sources[:2]
    assert a is not None
    assert b is not None
    return a, b


def _add(params: Params, sources: Sources, result: Result) -> Op | Tensor:
    a, b = _two(sources)
    return ops.Add() if result.type is a.type else ops.add_cast(a, b, result.type)


def _view(params: Params, sources: Sources, result: Result) -> Op:
    source = sources[0]
    assert source is not None
    return ops.View(result.ne, result.nb[1:], result.view_offset - source.view_offset)


def _window(new: Callable[..., Tensor], inplace: Callable[..., Tensor]) -> Row:
    """An op on a window, with strides and offset in bytes, and whether it writes into its source itself."""

    def write(params: Params, sources: Sources, result: Result) -> Tensor:
        *nb, offset = params.numbers(0, 4)
        return (inplace if params[4] else new)(*_two(sources), nb=tuple(nb), offset=offset)

    return Row(write=write)


def _pad(params: Params, sources: Sources, result: Result) -> Op:
    sides = params.numbers(0, 8)
    return ops.Pad(sides[::2], sides[1::2], bool(params[8]))


def _made(make: Callable[[Params, Result], Op]) -> Row:
    return Row(write=lambda params, sources, result: make(params, result))


_ROPE = (1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 15)

_ALIKE = """
    SUB MUL DIV SQR SQRT LOG SIN COS SCALE CLAMP LEAKY_RELU FILL ARANGE SILU_BACK
    NORM RMS_NORM L2_NORM GROUP_NORM RMS_NORM_BACK SUM SUM_ROWS MEAN CUMSUM COUNT_EQUAL ARGMAX ARGSORT
    SOFT_MAX SOFT_MAX_BACK FLASH_ATTN_EXT MUL_MAT MUL_MAT_ID OUT_PROD SOLVE_TRI TRI DIAG DIAG_MASK_INF DIAG_MASK_ZERO
    GET_ROWS ADD_ID CPY CONT CONCAT REPEAT REPEAT_BACK RESHAPE PERMUTE TRANSPOSE ROLL PAD_REFLECT_1D
    IM2COL IM2COL_BACK COL2IM_1D CONV_TRANSPOSE_1D CONV_TRANSPOSE_2D POOL_1D ADD_REL_POS TIMESTEP_EMBEDDING
    SSM_CONV SSM_SCAN RWKV_WKV6 RWKV_WKV7 GATED_LINEAR_ATTN GATED_DELTA_NET
    LIGHTNING_INDEXER DSV4_HC_COMB DSV4_HC_POST
    CROSS_ENTROPY_LOSS CROSS_ENTROPY_LOSS_BACK OPT_STEP_ADAMW OPT_STEP_SGD
"""
"""ggml's ops that have our op's name and parameters."""

TABLE: dict[str, Row | None] = {
    **{name: Row(name.lower()) for name in _ALIKE.split()},
    **dict.fromkeys(VARIANTS),
    "ADD": Row(write=_add),
    "ADD1": Row(write=lambda params, sources, result: ops.add1(*_two(sources))),
    "ROPE": Row("rope", _ROPE),
    "ROPE_BACK": Row("rope_back", _ROPE),
    "SET_ROWS": Row("set_rows", order=(2, 0, 1)),  # ggml's sources are rows, ids, dst.
    "GET_ROWS_BACK": _made(lambda params, result: ops.GetRowsBack(result.ne[1])),
    "DSV4_HC_PRE": _made(lambda params, result: ops.Dsv4HcPreGated(params.real(0)) if params[1] else ops.Dsv4HcPre()),
    "DUP": _made(lambda params, result: ops.Dup()),
    "TOP_K": _made(lambda params, result: ops.TopK(result.ne[0])),
    "VIEW": Row(write=_view),
    "ACC": _window(ops.acc, ops.acc_inplace),
    "SET": _window(ops.set, ops.set_inplace),
    "PAD": Row(write=_pad),
    "IM2COL_3D": Row("im2col_3d", (9, *range(9))),
    "CONV_2D": Row("conv_2d_direct"),
    "CONV_2D_DW": Row("conv_2d_dw_direct"),
    "CONV_3D": Row("conv_3d_direct", (9, 10, 11, *range(9))),
    "POOL_2D": _made(lambda params, result: ops.Pool2d(*params.numbers(0, 7))),
    "POOL_2D_BACK": _made(lambda params, result: ops.Pool2dBack(*params.numbers(0, 7))),
    "UPSCALE": Row("interpolate"),
    "WIN_PART": Row("win_part", (2,)),
    "WIN_UNPART": _made(lambda params, result: ops.WinUnpart(*result.ne[1:3], params[0])),
    "GET_REL_POS": _made(lambda params, result: ops.GetRelPos(result.ne[2], result.ne[1])),
}
"""ggml's ops that have a counterpart here."""
