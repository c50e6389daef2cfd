"""The operators ``+``, ``-``, ``*``, ``/`` and ``abs`` of tensors.  Importing this module adds them to Tensor.

With a number they are :class:`~ggplug.ops.unary.Scale`.  With a tensor, extents broadcast as in NumPy: they are equal
or one of them is 1 (``gg.add`` also repeats).  The result has the type of the left tensor; if only the right tensor of
a sum or a product has the full shape, the result has its type.

``==`` compares identity, so that tensors can be keys of dictionaries.  There is no ``@``: ggml's product
:func:`~ggplug.ops.mul_mat` takes the weights first and by rows, unlike NumPy's.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, TypeGuard

from ggplug.errors import ShapeError
from ggplug.ops.copy import repeat
from ggplug.ops.elementwise import add, div, mul, sub
from ggplug.ops.unary import abs as absolute
from ggplug.ops.unary import clamp, neg, scale
from ggplug.tensor import Tensor, describe


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _combine(op: Callable[..., Tensor], a: Tensor, b: Tensor, commutes: bool) -> Tensor:
    if a.ne == b.ne:
        return op(a, b)
    ne = tuple([n if m == 1 else m for m, n in zip(a.ne, b.ne, strict=True)])
    for m, n in zip(a.ne, b.ne, strict=True):
        if m != n and m != 1 and n != 1:
            raise ShapeError(
                f"cannot broadcast {describe((a, b))}: extents must be equal or 1 (gg.{op.__name__} also repeats)",
                tensor=(a, b),
            )
    if ne == a.ne:
        return op(a, b)
    if commutes and ne == b.ne:
        return op(b, a)
    return op(repeat(a, *ne[: max(a.rank, b.rank)]), b)


def _add(a: Tensor, b: Any) -> Tensor:
    if b.__class__ is Tensor:
        return _combine(add, a, b, True)
    return scale(a, 1.0, b) if _is_number(b) else NotImplemented


def _sub(a: Tensor, b: Any) -> Tensor:
    if b.__class__ is Tensor:
        return _combine(sub, a, b, False)
    return scale(a, 1.0, -b) if _is_number(b) else NotImplemented


def _rsub(b: Tensor, a: Any) -> Tensor:
    return scale(b, -1.0, a) if _is_number(a) else NotImplemented


def _mul(a: Tensor, b: Any) -> Tensor:
    if b.__class__ is Tensor:
        return _combine(mul, a, b, True)
    return scale(a, b) if _is_number(b) else NotImplemented


def _div(a: Tensor, b: Any) -> Tensor:
    if b.__class__ is Tensor:
        return _combine(div, a, b, False)
    if not _is_number(b):
        return NotImplemented
    if b == 0:
        raise ZeroDivisionError(f"{a!r} divided by zero")
    return scale(a, 1 / b)


def _rdiv(b: Tensor, a: Any) -> Tensor:
    # A tensor filled with a: clamping to [a, a] gives a also where b is infinite, unlike 0 * b + a.
    return div(clamp(b, a, a), b) if _is_number(a) else NotImplemented


def _neg(a: Tensor) -> Tensor:
    return neg(a)


def _pos(a: Tensor) -> Tensor:
    return a


def _abs(a: Tensor) -> Tensor:
    return absolute(a)


_OPERATORS: dict[str, Callable[..., Tensor]] = {
    "__add__": _add,
    "__radd__": _add,
    "__sub__": _sub,
    "__rsub__": _rsub,
    "__mul__": _mul,
    "__rmul__": _mul,
    "__truediv__": _div,
    "__rtruediv__": _rdiv,
    "__neg__": _neg,
    "__pos__": _pos,
    "__abs__": _abs,
}

for _name, _function in _OPERATORS.items():
    setattr(Tensor, _name, _function)
