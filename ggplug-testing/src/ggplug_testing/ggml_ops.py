"""How ggml's nodes are written in our ops: ``(ggml's op, op_params, sources, result) -> our tensor``.

A row of the table takes ggml's sixteen ``int32`` parameters, of which floats are stored by bit pattern, and the sources
in ggml's order.  An op without a row, or whose class is not defined, has no counterpart yet.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ggplug.ops.base import OPS, Op, apply
from ggplug.ops.copy import add_cast
from ggplug.ops.elementwise import add1
from ggplug.ops.windows import acc, acc_inplace, set_inplace
from ggplug.ops.windows import set as set_window
from ggplug.tensor import Extents, Tensor
from ggplug.types import Type

Sources = Sequence[Tensor | None]

UNARY = (
    "abs",
    "sgn",
    "neg",
    "step",
    "tanh",
    "elu",
    "relu",
    "sigmoid",
    "gelu",
    "gelu_quick",
    "silu",
    "hardswish",
    "hardsigmoid",
    "exp",
    "expm1",
    "softplus",
    "gelu_erf",
    "xielu",
    "floor",
    "ceil",
    "round",
    "trunc",
)
"""Our names in the order of ``enum ggml_unary_op``."""

GLU = ("reglu", "geglu", "swiglu", "swiglu_oai", "geglu_erf", "geglu_quick")
"""Our names in the order of ``enum ggml_glu_op``."""


class Result(NamedTuple):
    """What ggml says of a node: type, extents, strides, and for a view the bytes from its root's first."""

    type: Type
    ne: Extents
    nb: Extents
    view_offset: int


class Params:
    """ggml's ``op_params``."""

    def __init__(self, words: Sequence[int]) -> None:
        self._words = tuple(words)

    def number(self, position: int) -> int:
        return self._words[position]

    def real(self, position: int) -> float:
        value: float = struct.unpack("<f", struct.pack("<i", self._words[position]))[0]
        return value

    def numbers(self, start: int, count: int) -> tuple[int, ...]:
        return self._words[start : start + count]


class Undefined(NamedTuple):
    """There is no op of ours for a node: ``name`` is ggml's."""

    name: str

    @property
    def reason(self) -> str:
        return f"op {self.name} is not defined"


def _op(name: str) -> Callable[..., Op]:
    return OPS[name]


Writer = Callable[[Params, Sources, Result], "Op | Tensor | None"]
"""Answers our op, or a tensor where ours are several; None if it is not defined."""


def rewrite(name: str, params: Sequence[int], sources: Sources, result: Result) -> Tensor | Undefined:
    """Our node for one of ggml's.

    Raises what the op's shape rule raises: ShapeError, TypeMismatchError, ParameterError.
    """
    row = TABLE.get(name)
    if row is None:
        return Undefined(name)
    op = row.write(Params(params), sources, result)
    if op is None:
        return Undefined(name)
    if isinstance(op, Tensor):
        return op
    order = row.order if row.order is not None else range(len(op.sources))
    return apply(op, tuple(sources[i] if i < len(sources) else None for i in order))


class Row(NamedTuple):
    """One of ggml's ops: how to make our op, and at which of ggml's positions our sources are (default: in order)."""

    write: Writer
    order: tuple[int, ...] | None = None


def _named(name: str, *, floats: int = 0, ints: int = 0) -> Row:
    """An op whose fields are ggml's first parameters: so many floats, or so many integers."""

    def write(params: Params, sources: Sources, result: Result) -> Op | None:
        return (
            None if name not in OPS else _op(name)(*(params.real(i) for i in range(floats)), *params.numbers(0, ints))
        )

    return Row(write)


def _reordered(name: str, *order: int) -> Row:
    return Row(_named(name).write, order)


def _unary(params: Params, sources: Sources, result: Result) -> Op | None:
    kind = params.number(0)
    name = UNARY[kind] if kind < len(UNARY) else ""
    if name not in OPS:
        return None
    return _op(name)(*(params.real(i) for i in range(1, 5))) if name == "xielu" else _op(name)()


def _glu(params: Params, sources: Sources, result: Result) -> Op | None:
    kind = params.number(0)
    name = GLU[kind] if kind < len(GLU) else ""
    if name not in OPS:
        return None
    swapped = bool(params.number(1))
    if name == "swiglu_oai":
        return _op(name)(swapped=swapped, alpha=params.real(2), limit=params.real(3))
    return _op(name)(swapped=swapped)


def _rope(name: str) -> Row:
    return Row(lambda params, sources, result: _turning(name, params))


def _turning(name: str, params: Params) -> Op:
    return _op(name)(
        n_dims=params.number(1),
        mode=params.number(2),
        n_ctx_orig=params.number(4),
        freq_base=params.real(5),
        freq_scale=params.real(6),
        ext_factor=params.real(7),
        attn_factor=params.real(8),
        beta_fast=params.real(9),
        beta_slow=params.real(10),
        sections=params.numbers(11, 4),
        n_offs=params.number(15),
    )


def _view(params: Params, sources: Sources, result: Result) -> Op | None:
    source = sources[0]
    assert source is not None
    return _op("view")(result.ne, result.nb[1:], result.view_offset - source.view_offset)


def _add(params: Params, sources: Sequence[Tensor | None], result: Result) -> Op | Tensor | None:
    a, b = sources[:2]
    assert a is not None
    assert b is not None
    return _op("add")() if result.type is a.type else add_cast(a, b, result.type)


def _add1(params: Params, sources: Sources, result: Result) -> Op | Tensor | None:
    a, b = sources[:2]
    assert a is not None
    assert b is not None
    return add1(a, b)


def _window(name: str) -> Row:
    """An op on a window, with strides and offset in bytes, and whether it writes into its source itself."""

    def write(params: Params, sources: Sources, result: Result) -> Op | Tensor | None:
        a, b = sources[:2]
        assert a is not None
        assert b is not None
        *nb, offset, inplace = params.numbers(0, 5)
        return WINDOWS[name, bool(inplace)](a, b, nb=tuple(nb), offset=offset)

    return Row(write)


WINDOWS = {
    ("acc", False): acc,
    ("acc", True): acc_inplace,
    ("set", False): set_window,
    ("set", True): set_inplace,
}


def _pad(params: Params, sources: Sources, result: Result) -> Op | Tensor | None:
    sides = params.numbers(0, 8)
    return _op("pad")(sides[::2], sides[1::2], bool(params.number(8)))


def _im2col(params: Params, sources: Sources, result: Result) -> Op | None:
    return _op("im2col")(*params.numbers(0, 6), bool(params.number(6)), result.type.name)


def _im2col_back(params: Params, sources: Sources, result: Result) -> Op | None:
    return _op("im2col_back")(*params.numbers(0, 6), bool(params.number(6)), result.ne)


def _im2col_3d(params: Params, sources: Sources, result: Result) -> Op | None:
    return _op("im2col_3d")(params.number(9), *params.numbers(0, 9), result.type.name)


def _conv_3d(params: Params, sources: Sources, result: Result) -> Op | None:
    return _op("conv_3d_direct")(*params.numbers(9, 3), *params.numbers(0, 9))


def _flash_attn_ext(params: Params, sources: Sources, result: Result) -> Op | None:
    return _op("flash_attn_ext")(*(params.real(i) for i in range(3)), params.number(3))


def _to_extents(name: str) -> Row:
    return Row(lambda params, sources, result: _op(name)(result.ne))


TABLE: dict[str, Row] = {
    "ADD": Row(_add),
    "SUB": _named("sub"),
    "MUL": _named("mul"),
    "DIV": _named("div"),
    "SQR": _named("sqr"),
    "SQRT": _named("sqrt"),
    "LOG": _named("log"),
    "SIN": _named("sin"),
    "COS": _named("cos"),
    "UNARY": Row(_unary),
    "SCALE": _named("scale", floats=2),
    "CLAMP": _named("clamp", floats=2),
    "LEAKY_RELU": _named("leaky_relu", floats=1),
    "GLU": Row(_glu),
    "NORM": _named("norm", floats=1),
    "RMS_NORM": _named("rms_norm", floats=1),
    "L2_NORM": _named("l2_norm", floats=1),
    "SUM": _named("sum"),
    "SUM_ROWS": _named("sum_rows"),
    "MEAN": _named("mean"),
    "ARGMAX": _named("argmax"),
    "ARGSORT": _named("argsort", ints=1),
    "SOFT_MAX": _named("soft_max", floats=2),
    "ROPE": _rope("rope"),
    "MUL_MAT": _named("mul_mat", ints=1),
    "MUL_MAT_ID": _named("mul_mat_id", ints=1),
    "GET_ROWS": _named("get_rows"),
    # ggml's sources are rows, ids, dst.
    "SET_ROWS": _reordered("set_rows", 2, 0, 1),
    "CPY": _named("cpy"),
    "DUP": _named("dup"),
    "CONT": _to_extents("cont"),
    "CONCAT": _named("concat", ints=1),
    "REPEAT": _to_extents("repeat"),
    "IM2COL": Row(_im2col),
    "IM2COL_BACK": Row(_im2col_back),
    "IM2COL_3D": Row(_im2col_3d),
    "COL2IM_1D": _named("col2im_1d", ints=3),
    "CONV_2D": _named("conv_2d_direct", ints=6),
    "CONV_2D_DW": _named("conv_2d_dw_direct", ints=6),
    "CONV_3D": Row(_conv_3d),
    "CONV_TRANSPOSE_1D": _named("conv_transpose_1d", ints=1),
    "CONV_TRANSPOSE_2D": _named("conv_transpose_2d", ints=1),
    "POOL_1D": _named("pool_1d", ints=4),
    "POOL_2D": _named("pool_2d", ints=7),
    "POOL_2D_BACK": _named("pool_2d_back", ints=7),
    "UPSCALE": Row(lambda params, sources, result: _op("interpolate")(result.ne, params.number(0))),
    "WIN_PART": Row(lambda params, sources, result: _op("win_part")(params.number(2))),
    "WIN_UNPART": Row(lambda params, sources, result: _op("win_unpart")(*result.ne[1:3], params.number(0))),
    "GET_REL_POS": Row(lambda params, sources, result: _op("get_rel_pos")(result.ne[2], result.ne[1])),
    "ADD_REL_POS": _named("add_rel_pos"),
    "SSM_CONV": _named("ssm_conv"),
    "SSM_SCAN": _named("ssm_scan", ints=1),
    "RWKV_WKV6": _named("rwkv_wkv6"),
    "RWKV_WKV7": _named("rwkv_wkv7"),
    "GATED_LINEAR_ATTN": _named("gated_linear_attn", floats=1),
    "GATED_DELTA_NET": _named("gated_delta_net", ints=1),
    "LIGHTNING_INDEXER": _named("lightning_indexer"),
    "DSV4_HC_COMB": Row(lambda params, sources, result: _op("dsv4_hc_comb")(params.real(0), params.number(1))),
    "DSV4_HC_PRE": _named("dsv4_hc_pre"),
    "DSV4_HC_POST": _named("dsv4_hc_post"),
    "RESHAPE": _to_extents("reshape"),
    "VIEW": Row(_view),
    "PERMUTE": Row(lambda params, sources, result: _op("permute")(params.numbers(0, 4))),
    "TRANSPOSE": _named("transpose"),
    "ACC": _window("acc"),
    "ADD1": Row(_add1),
    "ADD_ID": _named("add_id"),
    "ARANGE": _named("arange", floats=3),
    "COUNT_EQUAL": _named("count_equal"),
    "CROSS_ENTROPY_LOSS": _named("cross_entropy_loss"),
    "CROSS_ENTROPY_LOSS_BACK": _named("cross_entropy_loss_back"),
    "CUMSUM": _named("cumsum"),
    "DIAG": _named("diag"),
    "DIAG_MASK_INF": _named("diag_mask_inf", ints=1),
    "DIAG_MASK_ZERO": _named("diag_mask_zero", ints=1),
    "FLASH_ATTN_EXT": Row(_flash_attn_ext),
    "FILL": _named("fill", floats=1),
    "GET_ROWS_BACK": Row(lambda params, sources, result: _op("get_rows_back")(result.ne[1])),
    "GROUP_NORM": Row(lambda params, sources, result: _op("group_norm")(params.number(0), params.real(1))),
    "OPT_STEP_ADAMW": _named("opt_step_adamw"),
    "OPT_STEP_SGD": _named("opt_step_sgd"),
    "OUT_PROD": _named("out_prod"),
    "PAD": Row(_pad),
    "PAD_REFLECT_1D": _named("pad_reflect_1d", ints=2),
    "REPEAT_BACK": _to_extents("repeat_back"),
    "RMS_NORM_BACK": _named("rms_norm_back", floats=1),
    "ROLL": Row(lambda params, sources, result: _op("roll")(params.numbers(0, 4))),
    "ROPE_BACK": _rope("rope_back"),
    "SET": _window("set"),
    "SILU_BACK": _named("silu_back"),
    "SOFT_MAX_BACK": _named("soft_max_back", floats=2),
    "SOLVE_TRI": _named("solve_tri"),
    "TIMESTEP_EMBEDDING": _named("timestep_embedding", ints=2),
    "TOP_K": Row(lambda params, sources, result: _op("top_k")(result.ne[0])),
    "TRI": _named("tri", ints=1),
}
"""ggml's ops that have a counterpart here."""
