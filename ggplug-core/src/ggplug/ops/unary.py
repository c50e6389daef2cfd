"""Functions of one number, applied to every element.

Each line declares an op: its class (``Relu``), its builder (``relu``) and its formula in float64.  ggml has
GGML_UNARY_OP_* for most of them and ops of their own for a few; here there is no difference.  The source's rows must be
contiguous, its type F32, F16, BF16 or F64; the result is contiguous, of the same type and shape.

Unless the docstring says otherwise, NaN gives NaN, and infinities follow from the formula: ``x f(x)`` of -inf can be
-inf * 0, which is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from ggplug.errors import ParameterError
from ggplug.ops.base import Array, Op, apply, builder, explained_by, misfit, require_float
from ggplug.tensor import Spec, Tensor
from ggplug.types import FLOATS

__all__ = [
    "Abs",
    "Ceil",
    "Clamp",
    "Cos",
    "Elu",
    "Exp",
    "Expm1",
    "Fill",
    "Floor",
    "Gelu",
    "GeluErf",
    "GeluQuick",
    "Hardsigmoid",
    "Hardswish",
    "LeakyRelu",
    "Log",
    "Neg",
    "Relu",
    "Round",
    "Scale",
    "Sgn",
    "Sigmoid",
    "Silu",
    "Sin",
    "Softplus",
    "Sqr",
    "Sqrt",
    "Step",
    "Tanh",
    "Trunc",
    "Unary",
    "Xielu",
    "abs",
    "ceil",
    "clamp",
    "cos",
    "elu",
    "exp",
    "expm1",
    "fill",
    "floor",
    "gelu",
    "gelu_erf",
    "gelu_quick",
    "hardsigmoid",
    "hardswish",
    "leaky_relu",
    "log",
    "neg",
    "relu",
    "round",
    "scale",
    "sgn",
    "sigmoid",
    "silu",
    "sin",
    "softplus",
    "sqr",
    "sqrt",
    "step",
    "tanh",
    "trunc",
    "xielu",
]


class Unary(Op, abstract=True):
    """y = f(x) for every element."""

    inplace = (0,)
    formula: ClassVar[Callable[[Array], Array]]

    def result(self, x: Tensor) -> Spec:
        if x.type not in FLOATS:
            require_float(self, x)
        if x.nb[0] != x.type.block_bytes and x.ne[0] != 1:
            misfit(self, "rows must be contiguous (use gg.cont first)", x)
        return Spec(x.type, x.ne, x.rank)

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return self.compute(x)

    def compute(self, x: Array) -> Array:
        """f(x), with the op's parameters; NumPy's warnings are off."""
        return type(self).formula(x)


def unary(name: str, formula: Callable[[Array], Array], doc: str) -> tuple[type[Unary], Callable[..., Tensor]]:
    """Class and builder of an element-wise function without parameters."""
    spelled = "".join(word.capitalize() for word in name.split("_"))
    space = {"__module__": __name__, "__doc__": doc, "name": name, "formula": staticmethod(formula)}
    cls = type(spelled, (Unary,), space)
    return cls, builder(cls)


_erf = np.vectorize(math.erf, otypes=[np.float64])
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(_SQRT_2_OVER_PI * x * (1 + 0.044715 * x * x)))


def _gelu_erf(x: Array) -> Array:
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _gelu_quick(x: Array) -> Array:
    return x * _sigmoid(1.702 * x)


def _relu(x: Array) -> Array:
    return np.where(x > 0, x, 0.0)


def _hardsigmoid(x: Array) -> Array:
    return np.fmin(1.0, np.fmax(0.0, (x + 3) / 6))


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


# -- arithmetic ------------------------------------------------------------------------------------

Abs, abs = unary("abs", np.abs, "y = ``|x|``  (ggml_abs).")
Sgn, sgn = unary(
    "sgn",
    lambda x: np.where(x > 0, 1.0, np.where(x < 0, -1.0, 0.0)),
    "y = 1 where x > 0, -1 where x < 0, else 0, of NaN and of -0 too  (ggml_sgn).",
)
Neg, neg = unary("neg", np.negative, "y = -x  (ggml_neg).")
Step, step = unary("step", lambda x: np.where(x > 0, 1.0, 0.0), "y = 1 where x > 0, else 0, of NaN too  (ggml_step).")
Sqr, sqr = unary("sqr", np.square, "y = x**2  (ggml_sqr).")
Sqrt, sqrt = unary("sqrt", np.sqrt, "y = sqrt(x)  (ggml_sqrt).")
Log, log = unary("log", np.log, "y = ln(x)  (ggml_log).")
Exp, exp = unary("exp", np.exp, "y = e**x  (ggml_exp).")
Expm1, expm1 = unary("expm1", np.expm1, "y = e**x - 1  (ggml_expm1).")
Sin, sin = unary("sin", np.sin, "y = sin(x), x in radians  (ggml_sin).")
Cos, cos = unary("cos", np.cos, "y = cos(x), x in radians  (ggml_cos).")
Floor, floor = unary("floor", np.floor, "y = the largest integer <= x  (ggml_floor).")
Ceil, ceil = unary("ceil", np.ceil, "y = the smallest integer >= x  (ggml_ceil).")
Round, round = unary(
    "round",
    lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "y = the nearest integer, halves away from zero as C's roundf  (ggml_round).",
)
Trunc, trunc = unary("trunc", np.trunc, "y = x without its fraction  (ggml_trunc).")

# -- activations -----------------------------------------------------------------------------------

Tanh, tanh = unary("tanh", np.tanh, "y = tanh(x)  (ggml_tanh).")
Relu, relu = unary("relu", _relu, "y = x where x > 0, else 0, of NaN too  (ggml_relu).")
Elu, elu = unary("elu", lambda x: np.where(x > 0, x, np.expm1(x)), "y = x where x > 0, else e**x - 1  (ggml_elu).")
Sigmoid, sigmoid = unary("sigmoid", _sigmoid, "y = 1 / (1 + e**-x)  (ggml_sigmoid).")
Softplus, softplus = unary("softplus", lambda x: np.logaddexp(0, x), "y = ln(1 + e**x)  (ggml_softplus).")
Silu, silu = unary("silu", _silu, "y = x / (1 + e**-x)  (ggml_silu).")
Gelu, gelu = unary(
    "gelu",
    _gelu,
    "y = x/2 (1 + tanh(sqrt(2/pi) x (1 + 0.044715 x**2))), the tanh form of GELU  (ggml_gelu; arXiv:1606.08415).",
)
GeluErf, gelu_erf = unary(
    "gelu_erf", _gelu_erf, "y = x/2 (1 + erf(x / sqrt(2))), the exact GELU  (ggml_gelu_erf; arXiv:1606.08415)."
)
GeluQuick, gelu_quick = unary(
    "gelu_quick", _gelu_quick, "y = x / (1 + e**(-1.702 x)), GELU by a sigmoid  (ggml_gelu_quick)."
)
Hardsigmoid, hardsigmoid = unary(
    "hardsigmoid", _hardsigmoid, "y = min(1, max(0, (x + 3) / 6)), 0 of NaN  (ggml_hardsigmoid)."
)
Hardswish, hardswish = unary(
    "hardswish", lambda x: x * _hardsigmoid(x), "y = x min(1, max(0, (x + 3) / 6))  (ggml_hardswish)."
)


# -- with parameters -------------------------------------------------------------------------------


class Scale(Unary):
    """y = s x + bias  (ggml_scale, ggml_scale_bias)."""

    s: float
    bias: float = 0.0

    def compute(self, x: Array) -> Array:
        return x * self.s + self.bias


class Clamp(Unary):
    """y = max(min(x, ``max``), ``min``)  (ggml_clamp).  ``min`` must not exceed ``max``.  NaN becomes ``max``."""

    min: float
    max: float

    def validate(self) -> None:
        if not self.min <= self.max:
            raise ParameterError(f"clamp: min {self.min} exceeds max {self.max}", op=self, got=(self.min, self.max))

    def compute(self, x: Array) -> Array:
        below = np.where(x < self.max, x, self.max)
        return np.where(below > self.min, below, self.min)


class LeakyRelu(Unary):
    """y = x where x > 0, ``negative_slope`` x where x < 0, else 0, of NaN too  (ggml_leaky_relu)."""

    negative_slope: float

    def compute(self, x: Array) -> Array:
        return np.where(x > 0, x, 0.0) + self.negative_slope * np.where(x < 0, x, 0.0)


class Fill(Unary):
    """y = ``value``  (ggml_fill).  Only type and shape of x are used."""

    value: float

    def compute(self, x: Array) -> Array:
        return np.full(x.shape, self.value)


class Xielu(Unary):
    """y = ap x**2 + beta x where x > 0, else an (e**min(x, eps) - 1 - x) + beta x  (ggml_xielu; arXiv:2411.13010).

    The op's parameters ``alpha_n`` and ``alpha_p`` are an and ap.  The builder takes the values that a model stores and
    applies a softplus, which makes them positive: an = beta + softplus(alpha_n), ap = softplus(alpha_p).
    """

    alpha_n: float
    alpha_p: float
    beta: float
    eps: float

    def compute(self, x: Array) -> Array:
        positive = self.alpha_p * x * x + self.beta * x
        negative = self.alpha_n * (np.expm1(np.minimum(x, self.eps)) - x) + self.beta * x
        return np.where(x > 0, positive, negative)


scale = builder(Scale)
clamp = builder(Clamp)
leaky_relu = builder(LeakyRelu)
fill = builder(Fill)


@explained_by(Xielu)
def xielu(x: Tensor, alpha_n: float, alpha_p: float, beta: float, eps: float, *, name: str = "") -> Tensor:
    """xIELU with the slopes that a model stores, before the softplus (ggml_xielu)."""
    return apply(Xielu(beta + _softplus(alpha_n), _softplus(alpha_p), beta, eps), (x,), name)


def _softplus(x: float) -> float:
    return x if x > 20 else math.log1p(math.exp(x))
