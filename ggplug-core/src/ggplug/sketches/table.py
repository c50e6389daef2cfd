"""The sketches of core's ops: the sources of each by names of extents, such as ``K M`` and ``K N`` for a product."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ggplug import ops
from ggplug.ops.base import Op
from ggplug.sketches.layouts import Layout
from ggplug.sketches.sketch import EXTENTS, Sizes, Sketch
from ggplug.sketches.trials import of_python
from ggplug.tensor import Tensor
from ggplug.types import BF16, F16, F32, I32, I64, Q4_0, Q8_0, Type

X = "n r b c"
"""A source of any shape."""


def of(
    *sources: str,
    types: tuple[Type, ...] = (F32,),
    from_extents: Callable[[Sizes], Mapping[str, Any]] | None = None,
    zeros: str = "",
    layout: Layout = "packed",
    **parameters: Any,
) -> Sketch:
    """A sketch with these parameters, or with what ``from_extents`` makes of the extents."""
    return Sketch(sources, types, from_extents or (lambda sizes: parameters), zeros, layout)


def view_of(source: str, show: Callable[[Tensor, Sizes], Tensor], zeros: str = "") -> Sketch:
    """A sketch of a view of one source."""
    return Sketch((source,), zeros=zeros, view=show)


def _repeated(times: int) -> Callable[[Sizes], Mapping[str, Any]]:
    return lambda n: {"ne": (times * n["n"], 2 * n["r"], 2 * n["b"], 2 * n["c"])}


def _attended(queries: int) -> list[Sketch]:
    sources = (f"n {queries} 4 b", "n M 2 b", "m M 2 b", f"M {queries}")
    return [
        of(*sources, "4", types=(F32, F16, F16, F16, F32), zeros="nMmb"),
        of(*sources, types=(F32, Q8_0, Q8_0, F16), zeros="nM"),
    ]


_SUMS = (of(X), of(X, types=(F16,)), of(X, layout="transposed"), of("n r", layout="window"))
_COPIES = (of(X), of(X, types=(Q8_0,)), of(X, layout="permuted"))
_TWO = (of(X, X),)

SKETCHES: Mapping[type[Op], Sequence[Sketch]] = {
    ops.Unary: (of(X),),
    ops.Binary: (of(X, X), of(X, "n", types=(F32, F16)), of(X, "1 r", types=(Q8_0, F32))),
    ops.Glu: (of(X), of(X, X)),
    # rows
    ops.RowNorm: (of(X),),
    ops.RowGradient: _TWO,
    ops.GroupNorm: (of(X, n_groups=2),),
    ops.SumRows: _SUMS,
    ops.Mean: _SUMS,
    ops.Sum: _SUMS,
    ops.Cumsum: (of(X),),
    ops.CountEqual: (of(X, X, types=(I32,)),),
    ops.Argmax: (of("n r"),),
    ops.Argsort: (of(X),),
    ops.TopK: (of(X, from_extents=lambda n: {"k": min(2, n["n"])}),),
    ops.SoftMax: (of(X), of(X, "n r", types=(F32, F16), max_bias=8.0), of(X, X, "b")),
    ops.Rotary: (
        of(X, "b", types=(F32, I32), n_dims=EXTENTS["n"]),
        of(X, "b", "32", types=(F32, I32, F32), zeros="rb", n_dims=EXTENTS["n"]),
    ),
    ops.Banded: (of(X, n_past=1),),
    ops.Tri: (of("n n b c", type=2),),
    ops.Diag: (of("n 1 b c"),),
    # rows by index
    ops.GetRows: [of("n m b c", "r b c", types=(type, I32)) for type in (F32, Q8_0, I32)],
    ops.GetRowsBack: (of("n r", "r", types=(F32, I32), rows=4),),
    ops.SetRows: [of("n m b c", "n r b c", "r b c", types=(type, F32, I64)) for type in (F32, Q8_0)],
    ops.AddId: (of("n r b", "n m", "r b", types=(F32, F32, I32), zeros="nrb"),),
    # elements moved
    ops.Cpy: (*(of(X, X, types=(F32, type)) for type in (F32, F16, Q8_0)), of(X, "n m b c", zeros="bc")),
    ops.Cont: _COPIES,
    ops.Dup: _COPIES,
    ops.Concat: [
        of(X, other, types=(type,), dim=dim)
        for dim, other in enumerate(("m r b c", "n m b c", "n r m c", "n r b m"))
        for type in (F32, Q8_0)
    ],
    ops.Repeat: (of(X, from_extents=_repeated(2)), of(X, types=(Q8_0,), from_extents=_repeated(1))),
    ops.RepeatBack: (
        of(X, from_extents=lambda n: {"ne": (n["n"], 1, 1, n["c"])}),
        of(X, layout="window", ne=(1, 1, 1, 1)),
    ),
    ops.Pad: (
        of(X, before=(1, 0, 2, 0), after=(0, 1, 0, 0)),
        of(X, zeros="nbc", layout="window", before=(0, 0, 0, 0), after=(0, 2, 0, 0), circular=True),
    ),
    ops.PadReflect1d: (of(X, zeros="rbc", p0=1, p1=2),),
    ops.Roll: (of(X, shifts=(1, -1, 0, 0)),),
    ops.Window: (of(X, "N E", zeros="NE", strides=(32, 96, 192)),),
    ops.Reshape: (view_of(X, lambda x, n: ops.reshape(x, n["n"] * n["r"], n["b"] * n["c"])),),
    ops.View: (
        view_of(X, lambda x, n: ops.view(x, n["n"], n["r"], nb=(x.nb[1],), offset=0)),
        view_of("64 9", lambda x, n: ops.view(x, n["n"], n["r"], nb=(x.nb[1],), offset=x.nb[1]), zeros="nr"),
    ),
    ops.Permute: (view_of(X, lambda x, n: ops.permute(x, 2, 0, 3, 1)),),
    ops.Transpose: (view_of(X, lambda x, n: ops.transpose(x)),),
    # products
    ops.MulMat: (
        of("K M b c", "K N b c"),
        *(
            of("K M", f"K {columns}", types=(type, F32), zeros="K")
            for columns in (1, 33)
            for type in (F32, F16, BF16, Q8_0, Q4_0)
        ),
        of("K M", "K N", types=(Q8_0,), zeros="K"),
    ),
    ops.MulMatId: (
        of("K M E", "K r N", "r N", types=(F32, F32, I32)),
        *(
            of("K M E", f"K 1 {tokens}", f"r {tokens}", types=(type, F32, I32), zeros="KE")
            for tokens in (1, 70)
            for type in (F32, BF16, Q8_0)
        ),
    ),
    ops.OutProd: (of("n K b c", "N K b c"), of("n K", "N K", types=(Q8_0, F32), zeros="K")),
    ops.SolveTri: (of("n n b c", "r n b c"),),
    ops.FlashAttnExt: (*_attended(3), *_attended(40)),
    ops.FlashAttnBack: (
        of(
            *("n 3 4 b", "n M 2 b", "m M 2 b", "m 4 3 b", "M 3", "4"),
            types=(F32, F16, F16, F32, F16, F32),
            zeros="nMmb",
        ),
    ),
    # images
    ops.Im2col: (of("3 2 c M", "8 7 c b"),),
    ops.Im2colBack: (of("12 6 6 b", "3 2 2 M", from_extents=lambda n: {"ne": (8, 7, 2, n["b"])}),),
    ops.Im2col3d: (of("3 2 2 M", "8 7 4 b", channels=1),),
    ops.Col2im1d: (of("20 r", s0=2, channels=4),),
    ops.Conv2dDirect: (of("3 2 c M", "8 7 c b", p0=1, p1=1),),
    ops.Conv2dDwDirect: (of("3 2 1 c", "8 7 c b", p0=1, p1=1),),
    ops.Conv3dDirect: (
        of(
            *("3 2 2 M", "8 7 4 b"),
            from_extents=lambda n: {"channels": 1, "images": n["b"], "out_channels": n["M"], "p0": 1, "p1": 1, "p2": 1},
        ),
    ),
    ops.ConvTranspose1d: (of("3 M c", "8 c", s0=2),),
    ops.ConvTranspose2d: (of("3 2 M c", "8 7 c b", stride=2),),
    ops.Pool1d: (of("8 r b c", kind=0, k0=3),),
    ops.Pool2d: (of("8 7 b c", kind=1, k0=3, k1=2),),
    ops.Pool2dBack: (of("6 6 b c", "8 7 b c", kind=0, k0=3, k1=2),),
    ops.Interpolate: (of("5 4 b c", from_extents=lambda n: {"ne": (7, 9, n["b"], n["c"]), "mode": 1}),),
    ops.WinPart: (of("r 5 m", w=3),),
    ops.WinUnpart: (of("r 3 3 4", w0=5, h0=4, w=3),),
    ops.GetRelPos: (of("r 5", qh=3, kh=3),),
    ops.AddRelPos: (of("9 6 b", "3 2 3 b", "3 2 3 b"),),
    ops.TimestepEmbedding: (of("r", dim=8),),
    # layers with a state
    ops.SsmConv: (of("6 n b", "4 n"),),
    ops.SsmScan: (
        of(
            *("19 3 4 r", "3 4 N 2", "4 N 2", "1 4", "19 2 N 2", "19 2 N 2", "2"),
            types=(*(F32,) * 6, I32),
            zeros="N",
        ),
    ),
    ops.RwkvWkv6: (of(*("19 2 N",) * 3, "19 2", "19 2 N", "722 1"),),
    ops.RwkvWkv7: (of(*("19 2 N",) * 6, "722 1"),),
    ops.GatedLinearAttn: (of(*("19 2 N",) * 4, "722 1", scale=0.5),),
    ops.GatedDeltaNet: (of(*("19 2 N b",) * 3, "1 2 N b", "1 2 N b", "19 19 2 b", zeros="N"),),
    ops.LightningIndexer: (of("n r N b", "n 1 M b", "r N 1 b", "M N 1 b", types=(F32, F16, F32, F16), zeros="rNMb"),),
    ops.Dsv4HcComb: (of("24 N", "3", "24"),),
    ops.Dsv4HcPre: (of("n 4 N", "4 N"),),
    ops.Dsv4HcPreGated: (of("n 4 N", "n 4 N", scale=0.25),),
    ops.Dsv4HcPost: (of("n N", "n 4 N", "4 N", "4 4 N"),),
    # training
    ops.CrossEntropyLoss: _TWO,
    ops.CrossEntropyLossBack: (of("1", X, X),),
    ops.OptStepAdamw: (of(X, X, X, X, "7"),),
    ops.OptStepSgd: (of(X, X, "2"),),
    # functions of Python
    ops.MapCustom1: (of(X, **of_python(ops.MapCustom1)),),
    ops.MapCustom2: (of(X, X, **of_python(ops.MapCustom2)),),
    ops.MapCustom3: (of(X, X, X, **of_python(ops.MapCustom3)),),
    ops.Custom4d: (
        of(
            *("n r b", "n M b"),
            from_extents=lambda n: of_python(ops.Custom4d, type="f32", ne=(n["r"] + n["M"], n["n"], n["b"])),
        ),
    ),
}
"""What each op takes, and ops that derive from it and are not here; extents that may not be zero are numbers."""


def sketches(op: type[Op]) -> Sequence[Sketch]:
    """The sketches of an op, or of what it derives from; none if there are none."""
    return next((SKETCHES[each] for each in op.__mro__ if each in SKETCHES), ())


def first_sketch(op: type[Op]) -> Sketch | None:
    """The first sketch of an op that takes its parameters from it; None for view ops, and for ops without sketches."""
    return next((each for each in sketches(op) if each.view is None), None)
