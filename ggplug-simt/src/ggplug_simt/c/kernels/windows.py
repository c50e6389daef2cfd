"""Sliding windows of images: convolutions, pooling, im2col, and their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ggplug import ops
from ggplug.backend import Decline
from ggplug.ops import PoolKind
from ggplug.ops.sliding import Axis
from ggplug.tensor import Tensor, contiguous_strides
from ggplug.types import F32, I32
from ggplug_simt.c.kernels.accepted import FLOATS, refuse
from ggplug_simt.c.launch import launch, launches_of, units
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, SCRATCH, Launch, Launches, TensorArgument, argument, argument_of

_ONE = Axis(1)
_RULES = {"sum": 0, "weighted": 1, "mean": 2, "chosen": 3, "largest": 4, "place": 5}


def pool_1d(profile: Profile, node: Tensor) -> Launches | Decline:
    """The maximum or mean of windows of a row."""
    op, x = node.op, node.src[0]
    assert isinstance(op, ops.Pool1d)
    assert x is not None
    rule = "largest" if op.kind == PoolKind.MAX else "mean"
    axes = Axis(op.k0, op.s0, op.p0), _ONE
    refused = refuse(node, {F32}, FLOATS)
    if refused is not None:
        return refused
    return launches_of(_windows(profile, node, x, rule, axes, x.ne[:2]))


def pool_2d(profile: Profile, node: Tensor) -> Launches | Decline:
    """The maximum or mean of windows of a plane."""
    op, x = node.op, node.src[0]
    assert isinstance(op, ops.Pool2d)
    assert x is not None
    rule = "largest" if op.kind == PoolKind.MAX else "sum"
    refused = refuse(node, {F32}, FLOATS)
    if refused is not None:
        return refused
    return launches_of(_windows(profile, node, x, rule, op.axes(), x.ne[:2], divisor=op.k0 * op.k1))


def pool_2d_back(profile: Profile, node: Tensor) -> Launches | Decline:
    """Each element is the sum of the gradients of windows: of which it is the maximum, or of its part of their
    means.
    """
    op, grad, x = node.op, node.src[0], node.src[1]
    assert isinstance(op, ops.Pool2dBack)
    assert grad is not None
    assert x is not None
    refused = refuse(node, {F32}, {F32}, FLOATS)
    if refused is not None:
        return refused
    axes = op.axes()
    if op.kind == PoolKind.AVG:
        made = _windows(profile, node, grad, "sum", axes, grad.ne[:2], back=True, divisor=op.k0 * op.k1)
        return launches_of(made)
    chosen = argument_of(SCRATCH, I32, grad.ne, contiguous_strides(I32, grad.ne))
    written = chosen._replace(written=True)
    return launches_of(
        _windows(profile, node, x, "place", axes, x.ne[:2], position=1, dst=written),
        _windows(profile, node, grad, "chosen", axes, grad.ne[:2], back=True, chosen=chosen),
        scratch=chosen.span,
    )


def conv_2d_dw(profile: Profile, node: Tensor) -> Launches | Decline:
    """The convolution of each channel with its own kernel."""
    op, kernel, x = node.op, node.src[0], node.src[1]
    assert isinstance(op, ops.Conv2dDwDirect)
    assert kernel is not None
    assert x is not None
    refused = refuse(node, {F32}, FLOATS, {F32})
    if refused is not None:
        return refused
    weights = argument(0, kernel)
    of_channels = weights._replace(ne=(*kernel.ne[:2], kernel.ne[3], 1), nb=(*kernel.nb[:2], kernel.nb[3], 0))
    across, down = op.axes(*kernel.ne[:2])
    return launches_of(
        _windows(profile, node, x, "weighted", (across, down), x.ne[:2], position=1, weights=(of_channels, kernel))
    )


def im2col_back(profile: Profile, node: Tensor) -> Launches | Decline:
    """Each element is the sum of its copies in the windows."""
    op, grad, kernel = node.op, node.src[0], node.src[1]
    assert isinstance(op, ops.Im2colBack)
    assert grad is not None
    assert kernel is not None
    refused = refuse(node, {F32}, {F32}, FLOATS)
    if refused is not None:
        return refused
    axes = op.axes(kernel)
    size, taps, dst = grad.nb[0], axes[0].taps * axes[1].taps, argument(DST, node)
    if op.is_2d:
        nb = grad.nb[1], grad.nb[2], taps * size, grad.nb[3]
    else:
        nb = grad.nb[1], 0, taps * size, grad.nb[2]
        dst = dst._replace(ne=(node.ne[0], 1, node.ne[1], node.ne[2]), nb=(node.nb[0], 0, node.nb[1], node.nb[2]))
    extents = grad.ne[1], grad.ne[2] if op.is_2d else 1
    columns = argument(0, grad)._replace(nb=nb)
    return launches_of(
        _windows(
            profile,
            node,
            grad,
            "sum",
            axes,
            extents,
            back=True,
            dst=dst,
            place=columns,
            moved=(size, axes[0].taps * size),
        )
    )


def col2im_1d(profile: Profile, node: Tensor) -> Launches | Decline:
    """Each position is the sum of the windows' elements there."""
    op, a = node.op, node.src[0]
    assert isinstance(op, ops.Col2im1d)
    assert a is not None
    refused = refuse(node, FLOATS, FLOATS)
    if refused is not None:
        return refused
    taps, size = a.ne[0] // op.channels, a.nb[0]
    dst = argument(DST, node)._replace(ne=(node.ne[0], 1, node.ne[1], 1), nb=(node.nb[0], 0, node.nb[1], 0))
    columns = argument(0, a)._replace(nb=(a.nb[1], 0, taps * size, 0))
    axes = Axis(taps, op.s0, op.p0), _ONE
    return launches_of(
        _windows(profile, node, a, "sum", axes, (a.ne[1], 1), back=True, dst=dst, place=columns, moved=(size, 0))
    )


def _windows(
    profile: Profile,
    node: Tensor,
    x: Tensor,
    rule: str,
    axes: tuple[Axis, Axis],
    extents: Sequence[int],
    *,
    back: bool = False,
    position: int = 0,
    dst: TensorArgument | None = None,
    place: TensorArgument | None = None,
    weights: tuple[TensorArgument, Tensor] | None = None,
    chosen: TensorArgument | None = None,
    moved: tuple[int, int] = (0, 0),
    divisor: float = 1,
) -> Launch | Decline:
    """Gathers windows of planes of ``extents`` elements; ``back``: x has windows, and each element gathers those it
    is in.  ``chosen``: of each window of x, the number of the tap of the element that gathers it.
    """
    tensors = {"dst": dst or argument(DST, node), "x": place or argument(position, x)}
    defines: dict[str, object] = {"RULE": _RULES[rule], "TX": x.type.name, "TD": node.type.name}
    if weights is not None:
        tensors["weights"] = weights[0]
        defines["TW"] = weights[1].type.name
    if chosen is not None:
        tensors["chosen"] = chosen
    if back:
        defines["BACK"] = 1
        if any(axis.stride > 1 for axis in axes):
            defines["STRETCHED"] = 1
    sizes: dict[str, float | int] = {"width": extents[0], "height": extents[1], "divisor": float(divisor)}
    for i, axis in enumerate(axes):
        step = axis.stride if back and axis.dilation == 1 else 1
        sizes |= _axis(axis, i, back) | {f"step{i}": step, f"tap{i}": moved[i]}
    return _launch(profile, "windows", tensors, defines, sizes)


def _axis(axis: Axis, i: int, back: bool) -> dict[str, int]:
    return {
        f"taps{i}": axis.taps,
        f"stride{i}": 1 if back else axis.stride,
        f"padding{i}": -axis.padding if back else axis.padding,
        f"dilation{i}": -axis.dilation if back else axis.dilation,
        f"quotient{i}": axis.stride if back else 1,
    }


def _launch(
    profile: Profile,
    kernel: str,
    tensors: Mapping[str, TensorArgument],
    defines: Mapping[str, object],
    sizes: Mapping[str, float | int],
) -> Launch | Decline:
    return launch(
        "windows",
        kernel,
        tensors,
        groups=-(-units(tensors["dst"].ne, profile.vec) // profile.unit_lanes),
        lanes=profile.unit_lanes,
        defines={"VEC": profile.vec, "UNIT": profile.vec, **defines},
        **sizes,
    )


# -- windows of all channels ---------------------------------------------------------------------------


def conv_2d(profile: Profile, node: Tensor) -> Launches | Decline:
    """The products of windows of x and kernels."""
    assert isinstance(node.op, ops.Conv2dDirect)
    kernel = node.src[0]
    assert kernel is not None
    return _convolve(profile, node, node.op.axes(*kernel.ne[:2]), kernel.ne[2])


def conv_3d(profile: Profile, node: Tensor) -> Launches | Decline:
    """The products of windows of volumes and kernels."""
    assert isinstance(node.op, ops.Conv3dDirect)
    kernel = node.src[0]
    assert kernel is not None
    return _convolve(profile, node, node.op.axes(kernel.ne[:3]), node.op.channels, out=node.op.out_channels)


def conv_transpose_1d(profile: Profile, node: Tensor) -> Launches | Decline:
    """A convolution of x with zeros between its elements."""
    assert isinstance(node.op, ops.ConvTranspose1d)
    kernel = node.src[0]
    assert kernel is not None
    return _convolve(profile, node, [Axis(kernel.ne[0], node.op.s0)], kernel.ne[2], transposed=True)


def conv_transpose_2d(profile: Profile, node: Tensor) -> Launches | Decline:
    """A convolution of images with zeros between their elements."""
    assert isinstance(node.op, ops.ConvTranspose2d)
    kernel = node.src[0]
    assert kernel is not None
    axes = [Axis(n, node.op.stride) for n in kernel.ne[:2]]
    return _convolve(profile, node, axes, kernel.ne[3], transposed=True)


def _convolve(
    profile: Profile, node: Tensor, axes: Sequence[Axis], channels: int, *, transposed: bool = False, out: int = 1
) -> Launches | Decline:
    kernel, x = node.src
    assert kernel is not None
    assert x is not None
    refused = refuse(node, {F32}, FLOATS, {F32})
    if refused is not None:
        return refused
    defines: dict[str, object] = {"DIMS": len(axes), "TW": kernel.type.name}
    if transposed:
        defines["TRANSPOSED"] = 1
        if any(axis.stride > 1 for axis in axes):
            defines["STRETCHED"] = 1
    sizes: dict[str, float | int] = {"channels": channels, "out": out}
    for i in range(3):
        there = i < len(axes)
        sizes |= _axis(axes[i] if there else _ONE, i, transposed) | {f"extent{i}": x.ne[i] if there else 1}
    tensors = {"dst": argument(DST, node), "weights": argument(0, kernel), "x": argument(1, x)}
    return launches_of(_launch(profile, "convolve", tensors, defines, sizes))


def im2col(profile: Profile, node: Tensor) -> Launches | Decline:
    """The elements of each window as a row."""
    op, kernel = node.op, node.src[0]
    assert isinstance(op, ops.Im2col)
    assert kernel is not None
    axes = op.axes(kernel)
    return _unfold(profile, node, axes if op.is_2d else axes[:1], 1)


def im2col_3d(profile: Profile, node: Tensor) -> Launches | Decline:
    """The elements of each window of a volume as a row."""
    op, kernel = node.op, node.src[0]
    assert isinstance(op, ops.Im2col3d)
    assert kernel is not None
    return _unfold(profile, node, op.axes(kernel.ne[:3]), op.channels)


def _unfold(profile: Profile, node: Tensor, axes: Sequence[Axis], channels: int) -> Launches | Decline:
    x = node.src[1]
    assert x is not None
    refused = refuse(node, FLOATS, FLOATS, FLOATS)
    if refused is not None:
        return refused
    planes = axes[2].count(x.ne[2]) if len(axes) == 3 else 1
    sizes: dict[str, float | int] = {"channels": channels, "windows2": planes}
    for i in range(3):
        there = i < len(axes)
        sizes |= _axis(axes[i] if there else _ONE, i, False) | {f"extent{i}": x.ne[i] if there else 1}
    tensors = {"dst": argument(DST, node), "x": argument(1, x)}
    defines = {"DIMS": len(axes), "TX": x.type.name, "TD": node.type.name}
    return launches_of(_launch(profile, "unfold", tensors, defines, sizes))


CHOOSERS = {
    ops.Pool1d: pool_1d,
    ops.Pool2d: pool_2d,
    ops.Pool2dBack: pool_2d_back,
    ops.Conv2dDwDirect: conv_2d_dw,
    ops.Im2colBack: im2col_back,
    ops.Col2im1d: col2im_1d,
    ops.Conv2dDirect: conv_2d,
    ops.Conv3dDirect: conv_3d,
    ops.ConvTranspose1d: conv_transpose_1d,
    ops.ConvTranspose2d: conv_transpose_2d,
    ops.Im2col: im2col,
    ops.Im2col3d: im2col_3d,
}
