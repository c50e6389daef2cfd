"""Rotary position embedding (arXiv:2104.09864), with several axes of position, and YaRN (arXiv:2309.00071)."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ggplug.errors import ParameterError, TypeMismatchError
from ggplug.ops.base import Array, Cost, Op, apply, builder, explained_by, misfit, mismatch, require_float
from ggplug.tensor import Spec, Tensor
from ggplug.types import F32, FLOATS, I32, RopeMode

__all__ = ["Rope", "RopeBack", "Rotary", "rope", "rope_back", "rope_multi", "rope_multi_back", "rope_set_offset"]

_LARGEST = 1e30
_MODES = frozenset(int(mode) for mode in RopeMode)


class Rotary(Op, abstract=True):
    """Base of :class:`Rope` and :class:`RopeBack`, which rotate pairs of elements.

    Both have the same sources and parameters, which the docstring of Rope explains.
    """

    inplace = (0,)

    n_dims: int
    mode: int = 0
    n_ctx_orig: int = 0
    freq_base: float = 10000.0
    freq_scale: float = 1.0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    sections: tuple[int, ...] = (0, 0, 0, 0)
    n_offs: int = 0

    @property
    def pairs(self) -> int:
        """The number of rotated pairs of a row."""
        return self.n_dims if self.mode == RopeMode.VISION else self.n_dims // 2

    @property
    def several_axes(self) -> bool:
        """Whether there are four positions for each row (MROPE, IMROPE, VISION)."""
        return bool(self.mode & RopeMode.MROPE)

    def validate(self) -> None:
        if self.mode not in _MODES:
            known = ", ".join(f"{m.name} {int(m)}" for m in RopeMode)
            raise ParameterError(f"{self.name}: mode {self.mode} is none of {known}", op=self, got=self.mode)
        if self.n_dims <= 0 or self.n_dims % 2:
            raise ParameterError(
                f"{self.name}: n_dims must be positive and even, got {self.n_dims}", op=self, got=self.n_dims
            )
        if not all(1 / _LARGEST <= value <= _LARGEST for value in (self.freq_base, self.freq_scale)):
            raise ParameterError(
                f"{self.name}: freq_base and freq_scale must be {1 / _LARGEST} to {_LARGEST}, "
                f"got {self.freq_base} and {self.freq_scale}",
                op=self,
                got=(self.freq_base, self.freq_scale),
            )
        if self.ext_factor and not (self.freq_base > 1 and self.beta_fast > 0 and self.beta_slow > 0):
            raise ParameterError(f"{self.name}: YaRN needs freq_base > 1 and positive beta_fast and beta_slow", op=self)
        if len(self.sections) != 4 or min(self.sections) < 0:
            raise ParameterError(
                f"{self.name}: sections must be four counts, got {self.sections}", op=self, got=self.sections
            )
        if self.several_axes and not any(self.sections[:3]):
            raise ParameterError(
                f"{self.name}: this mode needs sections that are not all zero", op=self, got=self.sections
            )
        if self.n_offs < 0 or (self.n_offs and self.mode == RopeMode.VISION):
            raise ParameterError(
                f"{self.name}: n_offs {self.n_offs} is negative, or not allowed in mode VISION",
                op=self,
                got=self.n_offs,
            )

    def result(self, x: Tensor, pos: Tensor, freq_factors: Tensor | None = None) -> Spec:
        if x.type not in FLOATS:
            require_float(self, x)
        if pos.type is not I32:
            mismatch(self, "pos must be i32", x, pos, freq_factors)
        wanted = x.ne[2] * 4 if self.several_axes else x.ne[2]
        if pos.ne != (wanted, 1, 1, 1):
            misfit(self, f"pos must be a vector of {wanted} entries, by ne2 of x", x, pos, freq_factors)
        if self.mode == RopeMode.VISION:
            if self.n_dims * 2 != x.ne[0]:
                misfit(self, f"n_dims {self.n_dims} must be half of ne0 in mode VISION", x, pos, freq_factors)
        elif self.n_offs + self.n_dims > x.ne[0]:
            misfit(self, f"n_offs {self.n_offs} + n_dims {self.n_dims} exceeds ne0", x, pos, freq_factors)
        if freq_factors is not None:
            if freq_factors.type is not F32:
                mismatch(self, "freq_factors must be f32", x, pos, freq_factors)
            if freq_factors.ne[0] < self.pairs or freq_factors.ne[1:] != (1, 1, 1):
                misfit(self, f"freq_factors must be a vector of at least {self.pairs} entries", x, pos, freq_factors)
        return Spec(x.type, x.ne, x.rank)

    @property
    def magnitude(self) -> float:
        """The factor of rotated elements."""
        return self.attn_factor * (1 + 0.1 * math.log(1 / self.freq_scale) if self.ext_factor else 1)

    def reference(self, x: Array, pos: Array, freq_factors: Array | None = None) -> Array:
        pairs = self.pairs
        angles = self.angles(pos, freq_factors)[:, np.newaxis, :]
        cos, sin = np.cos(angles) * self.magnitude, np.sin(angles) * self.magnitude
        i = np.arange(pairs)
        if self.mode == RopeMode.NORMAL:
            first, second = self.n_offs + 2 * i, self.n_offs + 2 * i + 1
        else:
            first, second = self.n_offs + i, self.n_offs + i + pairs
        out = x.copy()
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., first] * sin + x[..., second] * cos
        return out

    def angles(self, pos: Array, freq_factors: Array | None = None) -> Array:
        """The angle of each pair, [T, pairs], after interpolation and YaRN's mixing."""
        pairs = self.pairs
        i = np.arange(pairs)
        power = i.copy()
        axis = np.zeros(pairs, np.int64)
        places = pos.reshape(4 if self.several_axes else 1, -1).astype(np.float64)
        if self.several_axes:
            s0, s1, s2, _ = self.sections
            sector = i % sum(self.sections)
            if self.mode == RopeMode.IMROPE:
                axis = np.full(pairs, 3)
                for a, count in enumerate((s0, s1, s2)):
                    axis[(sector % 3 == a) & (sector < 3 * count)] = a
            else:
                axis = np.searchsorted(np.cumsum((s0, s1, s2)), sector, side="right")
            if self.mode == RopeMode.VISION:
                power = sector - np.concatenate(([0], np.cumsum((s0, s1, s2))))[axis]
        angles = places[axis].T * self.freq_base ** (-2.0 * power / self.n_dims)
        if freq_factors is not None:
            angles = angles / freq_factors.reshape(-1)[:pairs]
        scaled = self.freq_scale * angles
        if not self.ext_factor:
            return scaled
        low, high = self.correction_range()
        mix = (1 - np.clip((i - low) / max(0.001, high - low), 0, 1)) * self.ext_factor
        return scaled * (1 - mix) + angles * mix

    def correction_range(self) -> tuple[float, float]:
        """First and last pair of YaRN's transition from unscaled to interpolated angles (ggml_rope_yarn_corr_dims)."""

        def pair_of(rotations: float) -> float:
            if not self.n_ctx_orig:
                return -math.inf
            wavelength = self.n_ctx_orig / (rotations * 2 * math.pi)
            return self.n_dims * math.log(wavelength) / (2 * math.log(self.freq_base))

        low, high = pair_of(self.beta_fast), pair_of(self.beta_slow)
        low = math.floor(low) if math.isfinite(low) else low
        high = math.ceil(high) if math.isfinite(high) else high
        return max(0, low), min(self.n_dims - 1, high)

    def cost(self, node: Tensor) -> Cost:
        return Cost(6 * node.size, super().cost(node).bytes)


class Rope(Rotary):
    """Rotates pairs of elements of each row by angles that grow with its position  (ggml_rope_ext, ggml_rope_multi).

    x: [n, H, T, B].  pos: I32 [T]; in the modes with several axes I32 [4 T]: all times, then heights, widths, extras.
    freq_factors: F32 [>= the number of pairs], divide the angles.  Result: like x.

    Pair i is rotated by the angle ``freq_scale * pos * freq_base**(-2i / n_dims)``.  YaRN (``ext_factor`` 1) omits
    ``freq_scale`` for pairs with more than ``beta_fast`` rotations in ``n_ctx_orig`` positions, keeps it for those with
    fewer than ``beta_slow``, and interpolates linearly between.  ``attn_factor`` scales the rotated elements.

    ``mode``, a :class:`~ggplug.types.RopeMode`, says which elements are a pair: NORMAL (2i, 2i+1); VISION
    (i, i + n_dims), with n_dims = n/2; all others (i, i + n_dims/2).  ``sections`` are the numbers of pairs that are
    rotated by time, height, width and extra: MROPE puts them one after the other, IMROPE interleaves the first three,
    VISION restarts the exponent in each.

    Elements before ``n_offs`` and from n_offs + n_dims on are copied.
    """


class RopeBack(Rotary):
    """Rotates by the negative angles: the gradient of :class:`Rope`  (ggml_rope_ext_back, _multi_back).

    It has the same parameters.  It multiplies by the magnitude, as the transpose does; so it is the inverse only if
    ``attn_factor`` is 1.
    """

    def angles(self, pos: Array, freq_factors: Array | None = None) -> Array:
        return -super().angles(pos, freq_factors)


rope = builder(Rope)
rope_back = builder(RopeBack)


@explained_by(Rope)
def rope_multi(
    x: Tensor,
    pos: Tensor,
    n_dims: int,
    sections: tuple[int, ...],
    mode: int,
    freq_factors: Tensor | None = None,
    *,
    name: str = "",
    **parameters: float,
) -> Tensor:
    """:class:`Rope` in a mode with several axes of position (ggml_rope_multi); ``parameters`` are the op's others."""
    return rope(x, pos, n_dims, freq_factors, _several(mode), sections=sections, name=name, **parameters)


@explained_by(RopeBack, Rope)
def rope_multi_back(
    x: Tensor,
    pos: Tensor,
    n_dims: int,
    sections: tuple[int, ...],
    mode: int,
    freq_factors: Tensor | None = None,
    *,
    name: str = "",
    **parameters: float,
) -> Tensor:
    """:class:`RopeBack` in a mode with several axes of position (ggml_rope_multi_back)."""
    return rope_back(x, pos, n_dims, freq_factors, _several(mode), sections=sections, name=name, **parameters)


def rope_set_offset(node: Tensor, n_offs: int, *, name: str = "") -> Tensor:
    """A new node like ``node``, of rope or rope_back, that rotates from element ``n_offs`` on (ggml_rope_set_offset).

    Raises TypeMismatchError for a tensor of another op.
    """
    if not isinstance(node.op, Rope):
        raise TypeMismatchError(f"rope_set_offset takes a result of rope or rope_back, got {node!r}", tensor=node)
    return apply(dataclasses.replace(node.op, n_offs=n_offs), node.src, name or node.name)


def _several(mode: int) -> int:
    if not mode & RopeMode.MROPE:
        raise ParameterError(f"rope_multi: mode {mode} has one axis of position; use gg.rope", got=mode)
    return mode
