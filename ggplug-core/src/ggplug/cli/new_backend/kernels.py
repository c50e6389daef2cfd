"""The kernels that a new backend can begin with: the source of a function over NumPy arrays for each op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Snippet(NamedTuple):
    """``cls``: the op's class.  ``source``: the body of its kernel.

    ``sources``: names of its arguments; ``name?`` is for one that may be None.
    ``result`` and ``takes``: the types that the result and each source may have, where that is not float32 alone.
    ``values``: whether its arguments are Values, not arrays.
    """

    cls: str
    sources: tuple[str, ...]
    source: str
    result: tuple[str, ...] = ()
    takes: tuple[tuple[str, ...], ...] = ()
    values: bool = False


def _unary(cls: str, formula: str) -> Snippet:
    return Snippet(cls, ("x",), f"dst[...] = {formula}")


def _binary(cls: str, sign: str) -> Snippet:
    return Snippet(cls, ("a", "b"), f"dst[...] = a {sign} repeated(b, a.shape)")


SNIPPETS: dict[str, Snippet] = {
    "abs": _unary("Abs", "np.abs(x)"),
    "add": _binary("Add", "+"),
    "cont": Snippet("Cont", ("x",), "dst[...] = x.reshape(dst.shape)", ("F32", "I32"), (("F32", "I32"),)),
    "cos": _unary("Cos", "np.cos(wide(x))"),
    "cpy": Snippet(
        "Cpy",
        ("x", "written"),  # whose memory is that of dst
        "if dst.type is x.type:  # every bit stays; elements, or blocks, are matched in the order in which they count\n"
        "    dst.array[...] = x.array.reshape(dst.array.shape)\n"
        "else:\n"
        "    dst.store(x.numbers().reshape(*dst.array.shape[:3], -1))",
        ("F32", "I32", "Q8_0"),
        (("F32", "I32", "Q8_0"), ("F32", "I32", "Q8_0")),
        True,
    ),
    "div": _binary("Div", "/"),
    "dup": Snippet(
        "Dup",
        ("x",),
        "if dst.type is x.type:  # every bit stays, those of a NaN too\n"
        "    dst.array[...] = x.array\n"
        "else:\n"
        "    dst.store(x.numbers())",
        ("F32", "I32", "Q8_0"),
        (("F32", "I32", "Q8_0"),),
        True,
    ),
    "exp": _unary("Exp", "np.exp(wide(x))"),
    "gelu": _unary("Gelu", "0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * wide(x) * (1 + 0.044715 * wide(x) ** 2)))"),
    "get_rows": Snippet(
        "GetRows",
        ("a", "ids"),
        "table, rows = a.numbers(), ids.array[0, ..., np.newaxis]\n"
        "inside = (rows >= 0) & (rows < table.shape[2])\n"
        "dst.array[...] = 0  # where an id is out of range; the plan raises the error\n"
        "if inside.any():\n"
        "    dst.store(np.where(inside, np.take_along_axis(table, np.where(inside, rows, 0), axis=2), 0))",
        ("F32", "I32"),
        (("F32", "I32", "Q8_0"), ("I32",)),
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
        "dst.store(x @ weights.swapaxes(-1, -2))",
        ("F32",),
        (("F32", "Q8_0"), ("F32",)),
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
    "rms_norm": _unary("RmsNorm", "x / np.sqrt((wide(x) ** 2).sum(axis=-1, keepdims=True) / x.shape[-1] + op.eps)"),
    "scale": _unary("Scale", "wide(x) * op.s + op.bias"),
    "set_rows": Snippet(
        "SetRows",
        ("written", "rows", "ids"),  # the memory of written is that of dst
        "numbers, chosen = rows.numbers(), ids.array[0]\n"
        "for k, j in np.ndindex(*numbers.shape[:2]):\n"
        "    at = chosen[k % chosen.shape[0], j % chosen.shape[1]]  # the same ids are repeated for several batches\n"
        "    inside = (at >= 0) & (at < dst.array.shape[2])  # other rows are left out; the plan raises the error\n"
        "    if inside.any():\n"
        "        moved = Values(np.empty((1, 1, inside.sum(), dst.array.shape[3]), dst.array.dtype), dst.type)\n"
        "        moved.store(numbers[k : k + 1, j : j + 1, inside])\n"
        "        dst.array[k, j, at[inside]] = moved.array[0, 0]",
        ("F32", "F16", "Q8_0"),
        (("F32", "F16", "Q8_0"), ("F32",), ("I64", "I32")),
        True,
    ),
    "sigmoid": _unary("Sigmoid", "1 / (1 + np.exp(-wide(x)))"),
    "silu": _unary("Silu", "x / (1 + np.exp(-wide(x)))"),
    "sin": _unary("Sin", "np.sin(wide(x))"),
    "soft_max": Snippet(
        "SoftMax",
        ("x", "mask?", "sinks?"),
        "logits = wide(x) * op.scale\n"
        "if mask is not None:  # it may have more rows than x, and is repeated for several heads and batches\n"
        "    slopes = ops.alibi_slopes(x.shape[1], op.max_bias).reshape(1, -1, 1, 1)\n"
        "    logits += slopes * repeated(mask[:, :, : x.shape[2]], x.shape)\n"
        "logits[np.abs(logits) > np.finfo(np.float32).max] *= np.inf  # they overflow as float32 does\n"
        "highest = logits.max(axis=-1, keepdims=True, initial=-np.inf)\n"
        "sunk = np.full((1, 1, 1, 1), -np.inf) if sinks is None else wide(sinks).reshape(1, -1, 1, 1)\n"
        "highest = np.maximum(highest, sunk)\n"
        "powers = np.exp(logits - highest)\n"
        "dst[...] = powers / (powers.sum(axis=-1, keepdims=True) + np.exp(sunk - highest))",
        ("F32",),
        (("F32",), ("F32", "F16"), ("F32",)),
    ),
    "sqr": _unary("Sqr", "x * x"),
    "sqrt": _unary("Sqrt", "np.sqrt(x)"),
    "sub": _binary("Sub", "-"),
    "sum_rows": _unary("SumRows", "wide(x).sum(axis=-1, keepdims=True)"),
    "tanh": _unary("Tanh", "np.tanh(x)"),
}
"""By the op's name.  Every other op is declined until its kernel is written."""

DEFAULT = ("add", "mul", "mul_mat", "relu", "rms_norm", "get_rows", "set_rows", "cont", "cpy", "dup")
"""The ops of a backend for which none are named."""


def function(name: str) -> str:
    """The kernel of an op, as source."""
    snippet = SNIPPETS[name]
    kind = "Values" if snippet.values else "Array"
    sources = ", ".join(_argument(each, kind) for each in snippet.sources)
    lines = [f"def {name}(op: Any, dst: {kind}, {sources}) -> None:"]
    lines += [f"    {line}" for line in snippet.source.splitlines()]
    return "\n".join(lines if snippet.values else ["@on_arrays", *lines])


def _argument(name: str, kind: str) -> str:
    """The argument of a kernel for a source, as source."""
    return f"{name[:-1]}: {kind} | None" if name.endswith("?") else f"{name}: {kind}"


def row(name: str) -> str:
    """The op's line in the table of kernels."""
    snippet = SNIPPETS[name]
    types = f", {_tuple(snippet.result)}, {_tuple(map(_tuple, snippet.takes))}" if snippet.result else ""
    return f"    ops.{snippet.cls}: Kernel({name}{types}),"


def _tuple(parts: Iterable[str]) -> str:
    """Source of a tuple of these."""
    arguments = list(parts)
    return f"({', '.join(arguments)}{',' if len(arguments) == 1 else ''})"


def types_of(names: Sequence[str]) -> list[str]:
    """The types that the table of these ops' kernels names, sorted."""
    kinds = [kind for name in names for kind in (SNIPPETS[name].result, *SNIPPETS[name].takes)]
    return sorted({"F32", *(each for kind in kinds for each in kind)})
