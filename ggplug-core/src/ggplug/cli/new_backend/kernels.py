"""The kernels that a new backend can begin with: the source of a function over NumPy arrays for each op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Snippet(NamedTuple):
    """``cls``: the op's class.  ``source``: the body of its kernel.  ``sources``: names of its arguments.

    ``types``: with which it computes, other than float32 alone.  ``values``: whether it is given Values, not arrays.
    """

    cls: str
    sources: tuple[str, ...]
    source: str
    types: tuple[str, ...] = ()
    values: bool = False


def _unary(cls: str, formula: str) -> Snippet:
    return Snippet(cls, ("x",), f"dst[...] = {formula}")


def _binary(cls: str, sign: str) -> Snippet:
    return Snippet(cls, ("a", "b"), f"dst[...] = a {sign} repeated(b, a.shape)")


SNIPPETS: dict[str, Snippet] = {
    "abs": _unary("Abs", "np.abs(x)"),
    "add": _binary("Add", "+"),
    "cont": Snippet("Cont", ("x",), "dst[...] = x.reshape(dst.shape)", ("F32", "I32")),
    "cos": _unary("Cos", "np.cos(wide(x))"),
    "div": _binary("Div", "/"),
    "exp": _unary("Exp", "np.exp(wide(x))"),
    "gelu": _unary("Gelu", "0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * wide(x) * (1 + 0.044715 * wide(x) ** 2)))"),
    "get_rows": Snippet(
        "GetRows",
        ("a", "ids"),
        "table, rows = a.numbers(), ids.array[0, ..., np.newaxis]\n"
        "inside = (rows >= 0) & (rows < table.shape[2])\n"
        "dst.array[...] = 0  # where an id is out of range; the plan raises the error\n"
        "if inside.any():\n"
        "    dst.array[...] = np.where(inside, np.take_along_axis(table, np.where(inside, rows, 0), axis=2), 0)",
        ("F32", "I32", "Q8_0"),
        True,
    ),
    "mean": _unary("Mean", "wide(x).sum(axis=-1, keepdims=True) / x.shape[-1]"),
    "mul": _binary("Mul", "*"),
    "mul_mat": Snippet(
        "MulMat",
        ("a", "b"),
        "weights, x = a.numbers(), b.numbers()\n"
        "for axis in (0, 1):  # a matrix of weights serves several consecutive ones of x\n"
        "    weights = np.repeat(weights, x.shape[axis] // max(1, weights.shape[axis]), axis=axis)\n"
        "dst.array[...] = x @ weights.swapaxes(-1, -2)",
        ("F32", "Q8_0"),
        True,
    ),
    "neg": _unary("Neg", "-x"),
    "norm": Snippet(
        "Norm",
        ("x",),
        "centred = wide(x) - wide(x).sum(axis=-1, keepdims=True) / x.shape[-1]\n"
        "dst[...] = centred / np.sqrt((centred**2).sum(axis=-1, keepdims=True) / x.shape[-1] + op.eps)",
    ),
    "relu": _unary("Relu", "np.where(x > 0, x, 0)"),
    "rms_norm": _unary(
        "RmsNorm", "x / np.sqrt((wide(x) ** 2).sum(axis=-1, keepdims=True) / x.shape[-1] + op.eps)"
    ),
    "scale": _unary("Scale", "wide(x) * op.s + op.bias"),
    "sigmoid": _unary("Sigmoid", "1 / (1 + np.exp(-wide(x)))"),
    "silu": _unary("Silu", "x / (1 + np.exp(-wide(x)))"),
    "sin": _unary("Sin", "np.sin(wide(x))"),
    "sqr": _unary("Sqr", "x * x"),
    "sqrt": _unary("Sqrt", "np.sqrt(x)"),
    "sub": _binary("Sub", "-"),
    "sum_rows": _unary("SumRows", "wide(x).sum(axis=-1, keepdims=True)"),
    "tanh": _unary("Tanh", "np.tanh(x)"),
}
"""By the op's name.  Every other op is declined until its kernel is written."""

DEFAULT = ("add", "mul", "mul_mat", "relu", "rms_norm", "get_rows", "cont")
"""The ops of a backend for which none are named."""


def function(name: str) -> str:
    """The kernel of an op, as source."""
    snippet = SNIPPETS[name]
    kind = "Values" if snippet.values else "Array"
    sources = ", ".join(f"{each}: {kind}" for each in snippet.sources)
    lines = [f"def {name}(op: Any, dst: {kind}, {sources}) -> None:"]
    lines += [f"    {line}" for line in snippet.source.splitlines()]
    return "\n".join(lines if snippet.values else ["@on_arrays", *lines])


def row(name: str) -> str:
    """The op's line in the table of kernels."""
    snippet = SNIPPETS[name]
    types = f", ({', '.join(snippet.types)})" if snippet.types else ""
    return f"    ops.{snippet.cls}: Kernel({name}{types}),"


def types_of(names: Sequence[str]) -> list[str]:
    """The types that the table of these ops' kernels names, sorted."""
    return sorted({"F32", *(each for name in names for each in SNIPPETS[name].types)})
