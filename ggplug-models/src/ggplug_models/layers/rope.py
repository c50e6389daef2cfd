"""Rotary position embedding as files describe it, with the ways to stretch it to longer contexts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.hyperparameters import Hyperparameters

SCALINGS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True)
class Rope:
    """Rotates the first ``n_dims`` numbers of each head by the position (arXiv:2104.09864).

    ``scale``: by what positions are multiplied (linear scaling, arXiv:2306.15595).  ``extrapolation`` 1: YaRN's mixture
    (arXiv:2309.00071), with ``magnitude`` such that queries and keys grow as the file says.
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

    @classmethod
    def of(cls, hp: Hyperparameters, mode: RopeMode, n_dims: int, *, mscale: float = 1.0) -> Rope:
        """From the keys under ``rope.``.  ``mscale``: YaRN's, where the file gives another for all dimensions.

        Raises ModelError.
        """
        kind = hp.text("rope.scaling.type", "linear", one_of=SCALINGS)
        n_dims = hp.integer("rope.dimension_count", n_dims)
        if n_dims % 2:
            raise hp.refused("rope.dimension_count", "even")
        factor = hp.number("rope.scaling.factor", None, at_least=0)
        if factor is None:
            factor = hp.number("rope.scale_linear", 0.0, at_least=0)
        scale = 1.0 if kind == "none" or not factor else 1 / factor
        magnitude = hp.number("rope.scaling.attn_factor", 1.0)
        extrapolation = hp.number("rope.scaling.yarn_ext_factor", 1.0 if kind == "yarn" else 0.0)
        if extrapolation < 0:  # "not set"
            extrapolation = 1.0 if kind == "yarn" else 0.0
        if extrapolation:
            magnitude *= _yarn_magnitude(1 / scale, hp.number("rope.scaling.yarn_log_multiplier", 0.0), mscale)
        return cls(
            mode, n_dims, base=hp.number("rope.freq_base", 10000.0, at_least=0), scale=scale,
            n_ctx_orig=hp.integer("rope.scaling.original_context_length", hp.integer("context_length", 0)),
            extrapolation=extrapolation, magnitude=magnitude,
            beta_fast=hp.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=hp.number("rope.scaling.yarn_beta_slow", 1.0),
        )  # fmt: skip

    def __call__(self, x: Tensor, positions: Tensor, factors: Tensor | None = None) -> Tensor:
        """x: [n, heads, T].  ``factors``: F32 [n_dims / 2], divide the frequencies (llama 3, LongRoPE)."""
        return gg.rope(
            x, positions, self.n_dims, factors, mode=self.mode, n_ctx_orig=self.n_ctx_orig,
            freq_base=self.base, freq_scale=self.scale, ext_factor=self.extrapolation, attn_factor=self.magnitude,
            beta_fast=self.beta_fast, beta_slow=self.beta_slow,
        )  # fmt: skip


def grown(factor: float, multiplier: float) -> float:
    """By what YaRN lets queries and keys grow for a context that is ``factor`` times as long (its section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0


def _yarn_magnitude(factor: float, log_multiplier: float, mscale: float) -> float:
    """What the op has to be given: it multiplies with the paper's magnitude by itself."""
    wanted = grown(factor, mscale) / grown(factor, log_multiplier) if log_multiplier else grown(factor, 1.0)
    return wanted / (1.0 + 0.1 * math.log(factor))
