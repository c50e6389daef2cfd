"""Gated linear units: y = f(x) g, where x and the gate g are two tensors or the halves of one.

With one source of ne [2n, ...], x is its first half along ne0 and g its second (``swapped`` exchanges
them, and of an odd ne0 the last element is left out); the result is [n, ...].  With two, both have the result's shape
and type.  Rows must be contiguous.
(ggml_glu, ggml_glu_split; arXiv:2002.05202.)
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ggplug.errors import ParameterError
from ggplug.ops.base import Array, Op, builder, misfit, mismatch, require_float
from ggplug.ops.unary import Gelu, GeluErf, GeluQuick, Silu, Unary
from ggplug.tensor import Spec, Tensor
from ggplug.types import FLOATS

__all__ = [
    "Geglu",
    "GegluErf",
    "GegluQuick",
    "Glu",
    "Reglu",
    "Swiglu",
    "SwigluClamp",
    "SwigluOai",
    "geglu",
    "geglu_erf",
    "geglu_quick",
    "reglu",
    "swiglu",
    "swiglu_clamp",
    "swiglu_oai",
]


class Glu(Op, abstract=True):
    """y = f(x) g."""

    inplace = (0, 1)
    activation: ClassVar[type[Unary]]
    """f, unless :meth:`compute` is overridden."""

    swapped: bool = False

    def result(self, x: Tensor, gate: Tensor | None = None) -> Spec:
        if x.type not in FLOATS:
            require_float(self, x, gate)
        if not x.is_contiguous_from(1) or (gate is not None and not gate.is_contiguous_from(1)):
            misfit(self, "rows must be contiguous and lie one after the other (use gg.cont first)", x, gate)
        if gate is None:
            return Spec(x.type, (x.ne[0] // 2, *x.ne[1:]), x.rank)
        if self.swapped:
            raise ParameterError(
                f"{self.name}: swapped exchanges the halves of one tensor; exchange x and gate instead", op=self
            )
        if x.ne != gate.ne:
            misfit(self, "x and gate must have the same shape", x, gate)
        if x.type is not gate.type:
            mismatch(self, "x and gate must have the same type", x, gate)
        return Spec(x.type, x.ne, x.rank)

    def reference(self, x: Array, gate: Array | None = None) -> Array:
        if gate is None:
            n = x.shape[-1] // 2
            x, gate = x[..., :n], x[..., n : 2 * n]
            if self.swapped:
                x, gate = gate, x
        with np.errstate(all="ignore"):
            return self.compute(x, gate)

    def compute(self, x: Array, gate: Array) -> Array:
        """f(x) g, with the op's parameters."""
        return self.activation.formula(x) * gate


class Reglu(Glu):
    """y = x g where x > 0, else 0  (ggml_reglu).  Where x is NaN it is 0 too, for any gate."""

    def compute(self, x: Array, gate: Array) -> Array:
        return np.where(x > 0, x * gate, 0.0)


class Geglu(Glu):
    """y = gelu(x) g, with the tanh form of GELU  (ggml_geglu)."""

    activation = Gelu


class GegluErf(Glu):
    """y = gelu_erf(x) g, with the exact GELU  (ggml_geglu_erf)."""

    activation = GeluErf


class GegluQuick(Glu):
    """y = gelu_quick(x) g, with GELU by a sigmoid  (ggml_geglu_quick)."""

    activation = GeluQuick


class Swiglu(Glu):
    """y = silu(x) g  (ggml_swiglu)."""

    activation = Silu


class SwigluClamp(Glu):
    """y = silu(min(x, limit)) clip(g, -limit, limit)  (ggml_swiglu_clamp, of DeepSeek V4).

    A NaN in x or in the gate gives NaN.
    """

    activation = Silu

    limit: float = 10.0

    def compute(self, x: Array, gate: Array) -> Array:
        return self.activation.formula(np.minimum(x, self.limit)) * np.clip(gate, -self.limit, self.limit)


class SwigluOai(Glu):
    """y = u / (1 + e**(-alpha u)) (1 + clip(g, -limit, limit)), u = min(x, limit)  (ggml_swiglu_oai, of gpt-oss).

    A NaN in x or in the gate gives NaN.
    """

    alpha: float = 1.702
    limit: float = 7.0

    def compute(self, x: Array, gate: Array) -> Array:
        u = np.minimum(x, self.limit)
        return u / (1 + np.exp(-self.alpha * u)) * (1 + np.clip(gate, -self.limit, self.limit))


reglu = builder(Reglu)
geglu = builder(Geglu)
geglu_erf = builder(GegluErf)
geglu_quick = builder(GegluQuick)
swiglu = builder(Swiglu)
swiglu_clamp = builder(SwigluClamp)
swiglu_oai = builder(SwigluOai)
