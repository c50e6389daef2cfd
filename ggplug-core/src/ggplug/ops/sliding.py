"""Windows that slide over an image: their number along an axis, and what they hold.

Along an axis, position o of a window and tap k of it read element ``o stride - padding + k dilation`` of the image;
beyond the image's ends there is 0.
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
    """How windows slide along one axis: taps of a window, and elements between windows and between taps."""

    taps: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def count(self, extent: int) -> int:
        """Windows along an axis of ``extent`` elements; 0 or fewer if it is too short for one.

        As in ggml the quotient is rounded towards 0, so one that lacks less than a stride of fitting is counted.
        """
        room = extent + 2 * self.padding - self.dilation * (self.taps - 1) - 1
        return (room // self.stride if room >= 0 else -(-room // self.stride)) + 1


def check_sliding(op: Op) -> None:
    """Raises ParameterError for fields ``s0``, ``d0``, ``k0`` ... below 1, and ``p0`` ... below 0."""
    for name in op.parameters:
        if name[:-1] in ("s", "d", "p", "k") and name[-1].isdigit():
            least = 0 if name[0] == "p" else 1
            value = getattr(op, name)
            if not least <= value <= _LARGEST:
                raise ParameterError(f"{op.name}: {name} must be {least} or more, got {value}", op=op, got=value)


def windows(op: Op, axis: Axis, extent: int, *tensors: Tensor | None) -> int:
    """How many windows there are along an axis.  Raises ShapeError if there is none; ``tensors`` are all sources."""
    found = axis.count(extent)
    require(axis.taps > 0 and found > 0, op, f"no window of {axis.taps} taps ({axis}) fits {extent} elements", *tensors)
    return found


def unfold(x: Array, axes: Sequence[Axis]) -> Array:
    """The windows over the last axes of x, ``axes`` being those of these from the innermost out.

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
    """The sum of all windows where each of their elements came from: the transpose of :func:`unfold`.

    From [..., OH, KH, OW, KW] to [..., H, W]; ``extents`` from the innermost out, as ``axes``.
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
