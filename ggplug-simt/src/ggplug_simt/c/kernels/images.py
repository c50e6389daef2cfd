"""Interpolation, partition of images into windows, and relative positions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ggplug import ops
from ggplug.backend import Decline
from ggplug.ops import ScaleMode
from ggplug.tensor import Tensor
from ggplug.types import F16, F32
from ggplug_simt.c.kernels.accepted import FLOATS, KEPT, refuse
from ggplug_simt.c.launch import launch, launches_of, units
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, Launch, Launches, TensorArgument, argument


def interpolate(profile: Profile, node: Tensor) -> Launches | Decline:
    """Interpolation of images."""
    op, x = node.op, node.src[0]
    assert isinstance(op, ops.Interpolate)
    assert x is not None
    refused = refuse(node, {F32}, {F32})
    if refused is not None:
        return refused
    aligned = bool(op.mode & ScaleMode.ALIGN_CORNERS)
    method = 3 if op.mode & ScaleMode.ANTIALIAS else op.mode & 255
    scales = {}
    for i, (new, old) in enumerate(zip(node.ne, x.ne, strict=True)):
        scale = np.float32(new) / np.float32(old)
        if aligned and i < 2 and new > 1 and old > 1:
            scale = np.float32(new - 1) / np.float32(old - 1)
        scales[f"scale{i}"] = float(scale)
    tensors = {"dst": argument(DST, node), "x": argument(0, x)}
    sizes = {**scales, "centre": 0.0 if aligned else 0.5}
    return launches_of(_launch(profile, "interpolate", tensors, {"METHOD": method}, sizes))


def win_part(profile: Profile, node: Tensor) -> Launches | Decline:
    """Partition of an image into windows."""
    op, x = node.op, node.src[0]
    assert isinstance(op, ops.WinPart)
    assert x is not None
    tensors = {"dst": argument(DST, node), "x": argument(0, x)}
    sizes = {"w": op.w, "across": -(-x.ne[1] // op.w)}
    refused = refuse(node, {F32}, {F32})
    if refused is not None:
        return refused
    return launches_of(_launch(profile, "windows_apart", tensors, {}, sizes))


def win_unpart(profile: Profile, node: Tensor) -> Launches | Decline:
    """The image of a partition's windows."""
    op, x = node.op, node.src[0]
    assert isinstance(op, ops.WinUnpart)
    assert x is not None
    tensors = {"dst": argument(DST, node), "x": argument(0, x)}
    sizes = {"w": op.w, "across": -(-node.ne[1] // op.w)}
    refused = refuse(node, {F32}, {F32})
    if refused is not None:
        return refused
    return launches_of(_launch(profile, "windows_together", tensors, {}, sizes))


def get_rel_pos(profile: Profile, node: Tensor) -> Launches | Decline:
    """A row of x for each distance of two positions."""
    x = node.src[0]
    assert x is not None
    refused = refuse(node, {F16}, FLOATS)
    if refused is not None:
        return refused
    tensors = {"dst": argument(DST, node), "x": argument(0, x)}
    return launches_of(_launch(profile, "relative_positions", tensors, {"TX": x.type.name, **KEPT}, {}))


def add_rel_pos(profile: Profile, node: Tensor) -> Launches | Decline:
    """Adds relative positions: a number for each column, and one for each row."""
    a, pw, ph = node.src
    assert a is not None
    assert pw is not None
    assert ph is not None
    refused = refuse(node, {F32}, {F32}, {F32}, {F32})
    if refused is not None:
        return refused
    size, rows = pw.ne[0], node.ne[1]
    ne, nb = (size, size, rows, node.ne[2]), (4, 4 * size, node.nb[1], node.nb[2])
    ne_of_sums, nb_of_sums = (size, rows, node.ne[2], 1), (4, 4 * size, 4 * size * rows, 0)
    tensors = {
        "dst": argument(DST, node)._replace(ne=ne, nb=nb),
        "a": argument(0, a)._replace(ne=ne, nb=nb),
        "pw": argument(1, pw)._replace(ne=ne_of_sums, nb=nb_of_sums),
        "ph": argument(2, ph)._replace(ne=ne_of_sums, nb=nb_of_sums),
    }
    return launches_of(_launch(profile, "add_positions", tensors, {}, {}))


def _launch(
    profile: Profile,
    kernel: str,
    tensors: Mapping[str, TensorArgument],
    defines: Mapping[str, object],
    sizes: Mapping[str, float | int],
) -> Launch | Decline:
    return launch(
        "images",
        kernel,
        tensors,
        groups=-(-units(tensors["dst"].ne, profile.vec) // profile.unit_lanes),
        lanes=profile.unit_lanes,
        defines={"VEC": profile.vec, "UNIT": profile.vec, **defines},
        **sizes,
    )


CHOOSERS = {
    ops.Interpolate: interpolate,
    ops.WinPart: win_part,
    ops.WinUnpart: win_unpart,
    ops.GetRelPos: get_rel_pos,
    ops.AddRelPos: add_rel_pos,
}
