"""The framework of gradient rules: an op has one, which says how gradients get from its result to its sources.

A rule is found by the op's class, or by an abstract op of the same package that it derives from.  There are two forms.
A :func:`gradient` makes, of a node and the gradient ``dy`` of its result, the gradient of each source::

    @gradient(ops.Mul)
    def _(node: Tensor, dy: Tensor) -> Parts:
        a, b = sources(node)
        return lambda: mul(dy, b), lambda: summed(mul(dy, a), b)

A :func:`formula` computes the same result by other ops, whose rules then apply; a device never computes that result,
only what of it their gradients read::

    @formula(ops.L2Norm)
    def _(op: ops.L2Norm, x: Tensor) -> Tensor:
        return div(x, clamp(sqrt(sum_rows(sqr(x))), op.eps, math.inf))

Other packages mark rules of their ops in the same way, next to the class of the op.

Gradients are F32 whatever the type of the tensor, and have its extents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ggplug.errors import DuplicateNameError
from ggplug.ops.copy import cast, cont, repeat
from ggplug.ops.generated import arange
from ggplug.ops.gradients import repeat_back
from ggplug.ops.views import reshape, view
from ggplug.tensor import Extents, Operation, Tensor
from ggplug.types import F32


class Into(NamedTuple):
    """The gradient of a source of which the result shows a part: ``dy``, to be added to a window of it.

    ``strides`` of the window's dimensions 1, 2 and 3, and ``offset``, are in elements of the source, which is
    contiguous.
    """

    dy: Tensor
    strides: tuple[int, int, int]
    offset: int


class Missing(NamedTuple):
    """Why a rule has no gradient of a source that may have one."""

    reason: str


Part: TypeAlias = Callable[[], "Tensor | Into"] | Missing | None
"""What makes the gradient of a source; None if it is zero wherever it is defined, as that of ids."""

Parts: TypeAlias = Sequence[Part]
Gradient = Callable[[Tensor, Tensor], Parts]
Formula = Callable[..., Tensor]


class Rule(NamedTuple):
    """The rule of an op, in one of its two forms."""

    gradient: Gradient | None = None
    formula: Formula | None = None


RULES: dict[type[Operation], Rule] = {}
"""The rules of ops and of abstract ones, from which others derive."""

Function = TypeVar("Function", bound=Callable[..., Any])


def gradient(*ops: type[Operation]) -> Callable[[Function], Function]:
    """Marks a function ``(node, dy) -> parts`` as the rule of these ops, with a part for each source.

    Raises DuplicateNameError if one of them has a rule.
    """

    def mark(function: Function) -> Function:
        _add(ops, Rule(gradient=function))
        return function

    return mark


def formula(*ops: type[Operation]) -> Callable[[Function], Function]:
    """Marks a function ``(op, *sources) -> tensor`` as the rule of these ops: it computes their result by other ops.

    Floats among the sources are F32 then; sources that are left out are None.  Raises DuplicateNameError if one of the
    ops has a rule.
    """

    def mark(function: Function) -> Function:
        _add(ops, Rule(formula=function))
        return function

    return mark


def _add(ops: Sequence[type[Operation]], rule: Rule) -> None:
    for op in ops:
        if op in RULES:
            raise DuplicateNameError(f"the op {op.name} already has a gradient rule", op=op)
    RULES.update(dict.fromkeys(ops, rule))


def rule_of(op: type[Operation]) -> Rule | None:
    """The rule of an op, or of what it derives from in its package."""
    return next((RULES[kind] for kind in op.kinds if kind in RULES), None)


# -- what rules are made of ------------------------------------------------------------------------


def sources(node: Tensor) -> tuple[Tensor, ...]:
    """The sources of a node that has all of them."""
    return tuple(each for each in node.src if each is not None)


def wide(x: Tensor) -> Tensor:
    """x in F32."""
    return x if x.type is F32 else cast(x, F32)


def packed(x: Tensor) -> Tensor:
    """x without gaps."""
    return x if x.is_contiguous() else cont(x)


def shaped(x: Tensor, ne: Sequence[int]) -> Tensor:
    """The elements of x in the same order, with other extents."""
    return x if x.ne == tuple(ne) else reshape(packed(x), *ne)


def window(x: Tensor, ne: Extents, starts: Mapping[int, int] = MappingProxyType({})) -> Tensor:
    """A window of x with these extents, that begins in each dimension at ``starts``, or at 0."""
    if x.nb[0] != x.type.block_bytes:
        x = packed(x)
    offset = sum(start * x.nb[dim] for dim, start in starts.items()) if 0 not in ne else 0
    return x if x.ne == ne else view(x, *ne, nb=x.nb[1:], offset=offset)


def part(x: Tensor, dim: int, start: int, count: int) -> Tensor:
    """What is at ``count`` places of a dimension, from ``start`` on."""
    return window(x, with_extent(x.ne, dim, count), {dim: start})


def halves(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The first and the second half of x along a dimension."""
    middle = x.ne[dim] // 2
    return part(x, dim, 0, middle), part(x, dim, middle, x.ne[dim] - middle)


def with_extent(ne: Extents, dim: int, extent: int) -> Extents:
    """The extents with another one in a dimension."""
    first, second, third, fourth = (extent if at == dim else each for at, each in enumerate(ne))
    return first, second, third, fourth


def summed(x: Tensor, ne: Extents) -> Tensor:
    """The sums of what is repeated in x from a tensor with these extents: its gradient, if an op repeats it."""
    return x if x.ne == ne else repeat_back(x, *ne)


def zeros(ne: Extents) -> Tensor:
    """F32 of these extents, all zero."""
    return repeat(arange(0, 1), *ne)


def ones(ne: Extents) -> Tensor:
    """F32 of these extents, all one."""
    return repeat(arange(1, 2), *ne)
