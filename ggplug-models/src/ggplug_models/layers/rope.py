"""Rotary position embedding (RoPE) as files describe it, with its extensions to longer contexts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.metadata.hyperparameters import Hyperparameters

D = TypeVar("D")

LEAST, MOST = 1e-30, 1e30
"""Range of bases and factors that the op accepts."""

NEAR_ZERO = 1e-6
"""Divisors below this are rounding errors."""

SCALINGS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True)
class Rope:
    """Rotates the first ``n_dims`` elements of each head by angles proportional to the position (arXiv:2104.09864).

    ``scale``: factor of the positions (linear scaling, arXiv:2306.15595).  ``extrapolation``: 1 for YaRN
    (arXiv:2309.00071).  ``magnitude``: factor of queries and keys.  ``first``: number of elements before those that
    are rotated.
    """

    mode: RopeMode
    n_dims: int
    base: float = 10000.0
    scale: float = 1.0
    n_ctx_orig: int = 0
    extrapolation: float = 0.0
    magnitude: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    first: int = 0

    @classmethod
    def of(cls, hp: Hyperparameters, mode: RopeMode, n_dims: int, *, mscale: float = 1.0) -> Rope:
        """RoPE with the parameters under the keys ``rope.``.  ``mscale``: multiplier of YaRN's magnitude.

        Raises ModelError.
        """
        kind = hp.text("rope.scaling.type", "linear", one_of=SCALINGS)
        n_dims = hp.integer("rope.dimension_count", n_dims, at_most=n_dims)
        if n_dims % 2:
            raise hp.refused("rope.dimension_count", "even")
        factor = _factor(hp, "rope.scaling.factor", None)
        if factor is None:
            factor = _factor(hp, "rope.scale_linear", 0.0)
        scale = 1.0 if kind == "none" or not factor else 1 / factor
        magnitude = hp.number("rope.scaling.attn_factor", 1.0)
        extrapolation = hp.number("rope.scaling.yarn_ext_factor", 1.0 if kind == "yarn" else 0.0)
        if extrapolation < 0:  # "not set"
            extrapolation = 1.0 if kind == "yarn" else 0.0
        base = frequency_base(hp, "rope.freq_base", 10000.0)
        fast, slow = (
            hp.number(f"rope.scaling.yarn_{name}", default, at_least=LEAST if extrapolation else -math.inf)
            for name, default in (("beta_fast", 32.0), ("beta_slow", 1.0))
        )
        if extrapolation:
            if base <= 1:
                raise hp.refused("rope.freq_base", "more than 1 with YaRN")
            magnitude *= _yarn_magnitude(hp, 1 / scale, mscale)
        return cls(
            mode,
            n_dims,
            base=base,
            scale=scale,
            n_ctx_orig=hp.integer("rope.scaling.original_context_length", hp.integer("context_length", 0)),
            extrapolation=extrapolation,
            magnitude=magnitude,
            beta_fast=fast,
            beta_slow=slow,
        )

    def __call__(self, x: Tensor, positions: Tensor, factors: Tensor | None = None) -> Tensor:
        """Rotates x [n, heads, T].  ``factors``: F32 [n_dims / 2], which divide the frequencies (llama 3, LongRoPE)."""
        return self._turned(gg.rope, x, positions, factors)

    def back(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotates x [n, heads, T] by the negative angles."""
        return self._turned(gg.rope_back, x, positions, None)

    def _turned(self, op: Callable[..., Tensor], x: Tensor, positions: Tensor, factors: Tensor | None) -> Tensor:
        return op(
            x,
            positions,
            self.n_dims,
            factors,
            mode=self.mode,
            n_ctx_orig=self.n_ctx_orig,
            freq_base=self.base,
            freq_scale=self.scale,
            ext_factor=self.extrapolation,
            attn_factor=self.magnitude,
            beta_fast=self.beta_fast,
            beta_slow=self.beta_slow,
            n_offs=self.first,
        )


def grown(factor: float, multiplier: float) -> float:
    """YaRN's factor of queries and keys for a context that is ``factor`` times as long (its section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0


def frequency_base(hp: Hyperparameters, key: str, default: float) -> float:
    """The base of the frequencies under ``key``, within the range of the op.  Raises ModelError."""
    return hp.number(key, default, at_least=LEAST, at_most=MOST)


def _factor(hp: Hyperparameters, key: str, default: D) -> float | D:
    """The divisor of positions under ``key``; 0: none.  Raises ModelError for a value outside of the op's range."""
    found = hp.number(key, None, at_least=0, at_most=MOST)
    if found is not None and 0 < found < LEAST:
        raise hp.refused(key, f"0, or a number from {LEAST:g} to {MOST:g}")
    return default if found is None else found


def _yarn_magnitude(hp: Hyperparameters, factor: float, mscale: float) -> float:
    """The op's parameter ``attn_factor``: the file's magnitude divided by the one that the op applies itself.

    Raises ModelError if one of these is 0.
    """
    log_multiplier = hp.number("rope.scaling.yarn_log_multiplier", 0.0)
    own = 1.0 + 0.1 * math.log(factor)
    of_all = grown(factor, log_multiplier) if log_multiplier else 1.0
    if abs(own) < NEAR_ZERO:
        raise hp.refused("rope.scaling.factor", "a number whose magnitude with YaRN is not 0")
    if not NEAR_ZERO < abs(of_all) < math.inf:
        raise hp.refused("rope.scaling.yarn_log_multiplier", "a number whose magnitude with YaRN is not 0")
    wanted = grown(factor, mscale) / of_all if log_multiplier else grown(factor, 1.0)
    return wanted / own
