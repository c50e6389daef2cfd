"""Windows that slide over an image: their number along an axis, and their elements.

Along an axis, tap k of window o reads element ``o stride - padding + k dilation`` of the image, which is padded with
zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ggplug.errors import ParameterError
from ggplug.ops.base import Array, Op, require
from ggplug.tensor import Tensor

_LARGEST = 1 << 30


class Axis(NamedTuple):
    """Windows along one axis: number of taps, and the distances between windows and between taps."""

    taps: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def count(self, extent: int) -> int:
        """The number of windows along an axis of ``extent`` elements; 0 or less if it is too short for one.

        As in ggml the quotient is rounded towards 0, so a window that is too long by less than a stride is counted.
        """
        last = extent + 2 * self.padding - self.dilation * (self.taps - 1) - 1
        return (last // self.stride if last >= 0 else -(-last // self.stride)) + 1


def check_sliding(op: Op) -> None:
    """Raises ParameterError for fields ``s0``, ``d0``, ``k0`` ... below 1, and ``p0`` ... below 0."""
    for name in op.parameters:
        if name[:-1] in ("s", "d", "p", "k") and name[-1].isdigit():
            least = 0 if name[0] == "p" else 1
            value = getattr(op, name)
            if not least <= value <= _LARGEST:
                raise ParameterError(f"{op.name}: {name} must be {least} or more, got {value}", op=op, got=value)


def windows(op: Op, axis: Axis, extent: int, *tensors: Tensor | None) -> int:
    """The number of windows along an axis.  Raises ShapeError if there is none; ``tensors``: all sources."""
    found = axis.count(extent)
    require(
        axis.taps > 0 and found > 0, op, f"no window of {axis.taps} taps ({axis}) fits into {extent} elements", *tensors
    )
    return found


def unfold(x: Array, axes: Sequence[Axis]) -> Array:
    """The windows over the last axes of x; ``axes`` describes these, the innermost first.

    From [..., H, W] to [..., OH, KH, OW, KW].
    """
    first = x.ndim - len(axes)
    for position, axis in enumerate(reversed(axes)):
        at = first + 2 * position
        extent = x.shape[at]
        index = np.arange(axis.count(extent))[:, np.newaxis] * axis.stride - axis.padding
        index = index + np.arange(axis.taps) * axis.dilation
        inside = (index >= 0) & (index < extent)
        shape = inside.shape + (1,) * (x.ndim - at - 1)
        x = np.where(inside.reshape(shape), np.take(x, np.where(inside, index, 0), axis=at), 0)
    return x


def fold(windows: Array, axes: Sequence[Axis], extents: Sequence[int]) -> Array:
    """Adds each element of the windows to the position that :func:`unfold` read it from: its transpose.

    From [..., OH, KH, OW, KW] to [..., H, W]; ``axes`` and ``extents`` have the innermost axis first.
    """
    at = windows.ndim - 2 * len(axes)
    for axis, extent in zip(reversed(axes), reversed(extents), strict=True):
        windows = np.moveaxis(windows, (at, at + 1), (-2, -1))
        full = np.zeros((*windows.shape[:-2], extent), windows.dtype)
        for o in range(windows.shape[-2]):
            for k in range(windows.shape[-1]):
                i = o * axis.stride - axis.padding + k * axis.dilation
                if 0 <= i < extent:
                    full[..., i] += windows[..., o, k]
        windows = full
    return windows
