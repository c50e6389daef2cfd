"""Sources of each op of core, sketched by names of extents, such as ``K M`` and ``K N`` for a product.

The conformance suite's cases that are made alike for all ops start from these: an extent that is zero, or one, is so in
all sources that have it, and each source in turn lies in memory in another way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ggplug.ops.attention import SoftMax
from ggplug.ops.base import Op, apply
from ggplug.ops.convolution import Conv2dDirect, Conv2dDwDirect, Conv3dDirect, ConvTranspose1d, ConvTranspose2d
from ggplug.ops.copy import Concat, Cont, Cpy, Dup, Repeat
from ggplug.ops.custom import Custom4d, MapCustom1, MapCustom2, MapCustom3
from ggplug.ops.deepseek import Dsv4HcComb, Dsv4HcPost, Dsv4HcPre, LightningIndexer
from ggplug.ops.elementwise import Binary
from ggplug.ops.flash_attention import FlashAttnBack, FlashAttnExt
from ggplug.ops.generated import TimestepEmbedding
from ggplug.ops.glu import Glu
from ggplug.ops.gradients import GetRowsBack, RepeatBack, RowGradient
from ggplug.ops.im2col import Col2im1d, Im2col, Im2col3d, Im2colBack
from ggplug.ops.interpolation import Interpolate
from ggplug.ops.matrix import MulMat, MulMatId, OutProd
from ggplug.ops.norms import GroupNorm, RowNorm
from ggplug.ops.padding import Pad, PadReflect1d, Roll
from ggplug.ops.partition import AddRelPos, GetRelPos, WinPart, WinUnpart
from ggplug.ops.pooling import Pool1d, Pool2d, Pool2dBack
from ggplug.ops.recurrent import GatedDeltaNet, GatedLinearAttn, RwkvWkv6, RwkvWkv7, SsmConv, SsmScan
from ggplug.ops.reduce import Argmax, CountEqual, Cumsum, Mean, Sum, SumRows
from ggplug.ops.rotary import Rope, RopeBack
from ggplug.ops.rows import AddId, GetRows, SetRows
from ggplug.ops.sort import Argsort, TopK
from ggplug.ops.training import CrossEntropyLoss, CrossEntropyLossBack, OptStepAdamw, OptStepSgd
from ggplug.ops.triangles import Banded, Diag, SolveTri, Tri
from ggplug.ops.unary import Unary
from ggplug.ops.views import Permute, Reshape, Transpose, View, permute, reshape, transpose, view
from ggplug.ops.windows import Window
from ggplug.sketches.layouts import Layout, Sources
from ggplug.sketches.trials import of_python, parameters_of
from ggplug.tensor import Tensor
from ggplug.types import BF16, F16, F32, I32, I64, Q4_0, Q8_0, Type

EXTENTS = {"n": 32, "m": 64, "K": 64, "M": 5, "N": 2, "E": 3, "r": 3, "b": 2, "c": 2}
"""Extents that are not zero; n, m and K are whole numbers of blocks."""

Sizes = Mapping[str, int]


class Sketch(NamedTuple):
    """The sources of a case by the names of their extents; integers are extents that stay as they are.

    ``types``: of each source, ids too (0, 1, 2, ..., in each batch from another one on).  ``parameters``: of the op,
    from the extents.
    """

    sources: tuple[str, ...]
    types: tuple[Type, ...] = (F32,)
    parameters: Callable[[Sizes], Mapping[str, Any]] = lambda sizes: {}
    zeros: str = ""
    """The extents to make zero in turn; empty is all."""
    layout: Layout = "packed"
    shown: Callable[[Tensor, Sizes], Tensor] | None = None
    """For view ops, which take no parameters from here: the view of the only source."""

    def type_of(self, position: int) -> Type:
        return self.types[min(position, len(self.types) - 1)]

    def label(self, special: str) -> str:
        """What is special about extents, such as ``n = 0``, and in which sources."""
        sources = [f"{self.type_of(i).name}[{each.replace(' ', 'x')}]" for i, each in enumerate(self.sources)]
        return f"{special} in {', '.join(sources)}" + ("" if self.layout == "packed" else f" {self.layout}")

    def names(self) -> list[str]:
        """The names of the extents."""
        words = [word for source in self.sources for word in source.split() if not word.isdigit()]
        return list(dict.fromkeys(words))

    def layouts(self) -> list[Layout]:
        """How each source lies in memory."""
        return [self.layout] * len(self.sources)


def _own(op: type[Op]) -> Callable[[Sizes], Mapping[str, Any]]:
    return lambda sizes: parameters_of(op)[0]


_OF_SEVERAL = frozenset(
    {AddId, CrossEntropyLoss, CrossEntropyLossBack, GetRowsBack, OptStepAdamw, OptStepSgd, OutProd, SolveTri}
)


def sketches(op: type[Op]) -> Iterator[Sketch]:
    """The sketches of an op of core; none for others."""
    x = "n r b c"
    if issubclass(op, Unary):
        yield Sketch((x,), parameters=_own(op))
    elif issubclass(op, Binary):
        yield Sketch((x, x))
        yield Sketch((x, "n"), (F32, F16))
        yield Sketch((x, "1 r"), (Q8_0, F32))
    elif issubclass(op, Glu):
        yield Sketch((x,), parameters=_own(op))
        yield Sketch((x, x), parameters=_own(op))
    elif issubclass(op, RowNorm) or op is Argsort:
        yield Sketch((x,))
    elif op in (SumRows, Mean, Sum):
        for type in (F32, F16):
            yield Sketch((x,), (type,))
        yield Sketch((x,), layout="transposed")
        yield Sketch(("n r",), layout="window")
    elif op is Argmax:
        yield Sketch(("n r",))
    elif op in (Cumsum, CountEqual, GroupNorm) or issubclass(op, (Banded, RowGradient)):
        yield from _of_rows(op, x)
    elif op in (Diag, Pad, PadReflect1d, RepeatBack, Roll, TimestepEmbedding, TopK) or issubclass(op, Window):
        yield from _moved(op, x)
    elif op in _OF_SEVERAL:
        yield from _of_several(op, x)
    elif op is SoftMax:
        yield Sketch((x,))
        yield Sketch((x, "n r"), (F32, F16), lambda sizes: {"max_bias": 8.0})
        yield Sketch((x, x, "b"))
    elif op in (Rope, RopeBack):
        yield Sketch((x, "b"), (F32, I32), lambda sizes: {"n_dims": EXTENTS["n"]})
        yield Sketch((x, "b", "32"), (F32, I32, F32), lambda sizes: {"n_dims": EXTENTS["n"]}, zeros="rb")
    elif op is GetRows:
        for type in (F32, Q8_0, I32):
            yield Sketch(("n m b c", "r b c"), (type, I32))
    elif op is SetRows:
        for type in (F32, Q8_0):
            yield Sketch(("n m b c", "n r b c", "r b c"), (type, F32, I64))
    elif op is Cpy:
        for type in (F32, F16, Q8_0):
            yield Sketch((x, x), (F32, type))
        yield Sketch((x, "n m b c"), zeros="bc")
    elif op in (Cont, Dup):
        yield Sketch((x,))
        yield Sketch((x,), (Q8_0,))
        yield Sketch((x,), layout="permuted")
    elif op is Concat:
        for dim, other in enumerate(("m r b c", "n m b c", "n r m c", "n r b m")):
            for type in (F32, Q8_0):
                yield Sketch((x, other), (type,), lambda sizes, dim=dim: {"dim": dim})  # type: ignore[misc]
    elif op is Repeat:
        for type in (F32, Q8_0):
            times = 1 if type is Q8_0 else 2
            yield Sketch(
                (x,),
                (type,),
                lambda sizes, t=times: {  # type: ignore[misc]
                    "ne": (t * sizes["n"], 2 * sizes["r"], 2 * sizes["b"], 2 * sizes["c"])
                },
            )
    else:
        yield from _products_and_views(op, x)


def _of_rows(op: type[Op], x: str) -> Iterator[Sketch]:
    if op is CountEqual:
        yield Sketch((x, x), (I32,))
    elif op is GroupNorm:
        yield Sketch((x,), parameters=lambda sizes: {"n_groups": 2})
    elif op is Tri:
        yield Sketch(("n n b c",), parameters=lambda sizes: {"type": 2})
    elif issubclass(op, Banded):
        yield Sketch((x,), parameters=lambda sizes: {"n_past": 1})
    else:
        yield Sketch((x, x) if issubclass(op, RowGradient) else (x,))


def _moved(op: type[Op], x: str) -> Iterator[Sketch]:
    if op is Diag:
        yield Sketch(("n 1 b c",))
    elif op is Pad:
        yield Sketch((x,), parameters=lambda sizes: {"before": (1, 0, 2, 0), "after": (0, 1, 0, 0)})
        around = {"before": (0, 0, 0, 0), "after": (0, 2, 0, 0), "circular": True}
        yield Sketch((x,), parameters=lambda sizes: around, zeros="nbc", layout="window")
    elif op is PadReflect1d:
        yield Sketch((x,), parameters=lambda sizes: {"p0": 1, "p1": 2}, zeros="rbc")
    elif op is TimestepEmbedding:
        yield Sketch(("r",), parameters=lambda sizes: {"dim": 8})
    elif issubclass(op, Window):
        yield Sketch((x, "N E"), parameters=lambda sizes: {"strides": (32, 96, 192)}, zeros="NE")
    elif op is Roll:
        yield Sketch((x,), parameters=lambda sizes: {"shifts": (1, -1, 0, 0)})
    elif op is RepeatBack:
        yield Sketch((x,), parameters=lambda sizes: {"ne": (sizes["n"], 1, 1, sizes["c"])})
        yield Sketch((x,), parameters=lambda sizes: {"ne": (1, 1, 1, 1)}, layout="window")
    else:
        yield Sketch((x,), parameters=lambda sizes: {"k": min(2, sizes["n"])})


def _of_several(op: type[Op], x: str) -> Iterator[Sketch]:
    if op is AddId:
        yield Sketch(("n r b", "n m", "r b"), (F32, F32, I32), zeros="nrb")
    elif op is GetRowsBack:
        yield Sketch(("n r", "r"), (F32, I32), lambda sizes: {"rows": 4})
    elif op is OutProd:
        yield Sketch(("n K b c", "N K b c"))
        yield Sketch(("n K", "N K"), (Q8_0, F32), zeros="K")
    elif op is SolveTri:
        yield Sketch(("n n b c", "r n b c"))
    elif op is CrossEntropyLoss:
        yield Sketch((x, x))
    elif op is CrossEntropyLossBack:
        yield Sketch(("1", x, x))
    elif op is OptStepAdamw:
        yield Sketch((x, x, x, x, "7"))
    else:
        yield Sketch((x, x, "2"))


def _products_and_views(op: type[Op], x: str) -> Iterator[Sketch]:
    if op is MulMat:
        yield Sketch(("K M b c", "K N b c"))
        for columns in (1, 33):
            for type in (F32, F16, BF16, Q8_0, Q4_0):
                yield Sketch(("K M", f"K {columns}"), (type, F32), zeros="K")
        yield Sketch(("K M", "K N"), (Q8_0,), zeros="K")
    elif op is MulMatId:
        yield Sketch(("K M E", "K r N", "r N"), (F32, F32, I32))
        for tokens in (1, 70):
            for type in (F32, BF16, Q8_0):
                yield Sketch(("K M E", f"K 1 {tokens}", f"r {tokens}"), (type, F32, I32), zeros="KE")
    elif op is FlashAttnExt:
        for queries in (3, 40):
            sources = (f"n {queries} 4 b", "n M 2 b", "m M 2 b", f"M {queries}", "4")
            yield Sketch(sources, (F32, F16, F16, F16, F32), zeros="nMmb")
            yield Sketch(sources[:4], (F32, Q8_0, Q8_0, F16), zeros="nM")
    elif op is FlashAttnBack:
        types = (F32, F16, F16, F32, F16, F32)
        yield Sketch(("n 3 4 b", "n M 2 b", "m M 2 b", "m 4 3 b", "M 3", "4"), types, zeros="nMmb")
    elif op is Reshape:
        yield Sketch((x,), shown=lambda x, n: reshape(x, n["n"] * n["r"], n["b"] * n["c"]))
    elif op is View:
        yield Sketch((x,), shown=lambda x, n: view(x, n["n"], n["r"], nb=(x.nb[1],), offset=0))
        yield Sketch(("64 9",), zeros="nr", shown=lambda x, n: view(x, n["n"], n["r"], nb=(x.nb[1],), offset=x.nb[1]))
    elif op is Permute:
        yield Sketch((x,), shown=lambda x, n: permute(x, 2, 0, 3, 1))
    elif op is Transpose:
        yield Sketch((x,), shown=lambda x, n: transpose(x))
    elif op in _OTHERS:
        yield _OTHERS[op]


def first_sketch(op: type[Op]) -> Sketch | None:
    """The first sketch of an op that takes its parameters from it; None for view ops, and for ops not of core."""
    return next((each for each in sketches(op) if each.shown is None), None)


_OTHERS: dict[type[Op], Sketch] = {
    Im2col: Sketch(("3 2 c M", "8 7 c b")),
    Im2colBack: Sketch(("12 6 6 b", "3 2 2 M"), parameters=lambda sizes: {"ne": (8, 7, 2, sizes["b"])}),
    Im2col3d: Sketch(("3 2 2 M", "8 7 4 b"), parameters=lambda sizes: {"channels": 1}),
    Col2im1d: Sketch(("20 r",), parameters=lambda sizes: {"s0": 2, "channels": 4}),
    Conv2dDirect: Sketch(("3 2 c M", "8 7 c b"), parameters=lambda sizes: {"p0": 1, "p1": 1}),
    Conv2dDwDirect: Sketch(("3 2 1 c", "8 7 c b"), parameters=lambda sizes: {"p0": 1, "p1": 1}),
    Conv3dDirect: Sketch(
        ("3 2 2 M", "8 7 4 b"),
        parameters=lambda sizes: {
            "channels": 1,
            "images": sizes["b"],
            "out_channels": sizes["M"],
            "p0": 1,
            "p1": 1,
            "p2": 1,
        },
    ),
    ConvTranspose1d: Sketch(("3 M c", "8 c"), parameters=lambda sizes: {"s0": 2}),
    ConvTranspose2d: Sketch(("3 2 M c", "8 7 c b"), parameters=lambda sizes: {"stride": 2}),
    Pool1d: Sketch(("8 r b c",), parameters=lambda sizes: {"kind": 0, "k0": 3}),
    Pool2d: Sketch(("8 7 b c",), parameters=lambda sizes: {"kind": 1, "k0": 3, "k1": 2}),
    Pool2dBack: Sketch(("6 6 b c", "8 7 b c"), parameters=lambda sizes: {"kind": 0, "k0": 3, "k1": 2}),
    Interpolate: Sketch(("5 4 b c",), parameters=lambda sizes: {"ne": (7, 9, sizes["b"], sizes["c"]), "mode": 1}),
    WinPart: Sketch(("r 5 m",), parameters=lambda sizes: {"w": 3}),
    WinUnpart: Sketch(("r 3 3 4",), parameters=lambda sizes: {"w0": 5, "h0": 4, "w": 3}),
    GetRelPos: Sketch(("r 5",), parameters=lambda sizes: {"qh": 3, "kh": 3}),
    AddRelPos: Sketch(("9 6 b", "3 2 3 b", "3 2 3 b")),
    SsmConv: Sketch(("6 n b", "4 n")),
    SsmScan: Sketch(
        ("19 3 4 r", "3 4 N 2", "4 N 2", "1 4", "19 2 N 2", "19 2 N 2", "2"), (F32,) * 6 + (I32,), zeros="N"
    ),
    RwkvWkv6: Sketch(("19 2 N",) * 3 + ("19 2", "19 2 N", "722 1")),
    RwkvWkv7: Sketch(("19 2 N",) * 6 + ("722 1",)),
    GatedLinearAttn: Sketch(("19 2 N",) * 4 + ("722 1",), parameters=lambda sizes: {"scale": 0.5}),
    MapCustom1: Sketch(("n r b c",), parameters=lambda sizes: of_python(MapCustom1)),
    MapCustom2: Sketch(("n r b c",) * 2, parameters=lambda sizes: of_python(MapCustom2)),
    MapCustom3: Sketch(("n r b c",) * 3, parameters=lambda sizes: of_python(MapCustom3)),
    Custom4d: Sketch(
        ("n r b", "n M b"),
        parameters=lambda n: of_python(Custom4d, type="f32", ne=(n["r"] + n["M"], n["n"], n["b"])),
    ),
    LightningIndexer: Sketch(("n r N b", "n 1 M b", "r N 1 b", "M N 1 b"), (F32, F16, F32, F16), zeros="rNMb"),
    Dsv4HcComb: Sketch(("24 N", "3", "24")),
    Dsv4HcPre: Sketch(("n 4 N", "4 N")),
    Dsv4HcPost: Sketch(("n N", "n 4 N", "4 N", "4 4 N")),
    GatedDeltaNet: Sketch(("19 2 N b",) * 3 + ("1 2 N b", "1 2 N b", "19 19 2 b"), zeros="N"),
}
"""What each of the other ops takes; extents that may not be zero are numbers."""


def node(cls: type[Op], *sources: Tensor | None, **parameters: object) -> Tensor:
    """``cls`` with these parameters applied to these sources; those that are left out at the end are absent."""
    return apply(cls(**parameters), (*sources, *(None for _ in cls.sources[len(sources) :])))


def maker(op: type[Op], sketch: Sketch, sizes: Sizes, layouts: Sequence[Layout]) -> Callable[[Sources], Tensor]:
    """What makes the node of a sketch with these extents, its sources in these layouts."""

    def make(leafs: Sources) -> Tensor:
        sources = []
        for position, source in enumerate(sketch.sources):
            ne = [int(word) if word.isdigit() else sizes[word] for word in source.split()]
            type = sketch.type_of(position)
            if op.indexes is not None and position == op.indexes.ids:
                # of each batch others, so that a kernel that takes another batch's is wrong
                rows = np.arange(math.prod(ne[1:]))[:, None]
                ids = (np.arange(ne[0]) + rows) % max(ne[0], 1)
                sources.append(leafs.array(type, ids.reshape(ne[::-1]), layouts[position]))
            else:
                # positions within a long text: a device need not know the sine of any angle
                most = 100 if op.sources[position] == "pos" else None
                low = None if most is None else 0
                sources.append(leafs.tensor(type, *ne, low=low, high=most, layout=layouts[position]))
        if sketch.shown is not None:
            return node(Cont, sketch.shown(sources[0], sizes))
        return node(op, *sources, **sketch.parameters(sizes))

    return make
