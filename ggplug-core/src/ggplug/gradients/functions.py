"""Gradients of functions that take and return tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from ggplug.errors import ParameterError, TypeMismatchError
from ggplug.gradients.expansion import Expansion
from ggplug.gradients.graphs import check_loss
from ggplug.gradients.nested import replaced, tensors_in
from ggplug.gradients.rules import ones
from ggplug.graph import Graph
from ggplug.ops.views import permute
from ggplug.tensor import Tensor


def value_and_grad(
    function: Callable[..., Tensor], argnums: int | tuple[int, ...] = 0
) -> Callable[..., tuple[Tensor, Any]]:
    """A function that returns the result of ``function``, which is one number, and its gradients.

    ``argnums``: by position, the arguments whose gradients are returned, each a tensor or tensors in tuples, lists and
    dictionaries; the gradients are arranged as the arguments are, and in a tuple if ``argnums`` is one.  A tensor that
    several arguments have, or are computed from, has a gradient for each of them.  Nothing is computed:
    ``gg.compute`` does that.  In a graph that ``Graph.backward`` makes, gradients need less memory.

    The function raises ShapeError if the result has several numbers, TypeMismatchError if it is no tensor, and
    GradientError.
    """

    def wrapped(*args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        chosen = (argnums,) if isinstance(argnums, int) else argnums
        if not all(-len(args) <= which < len(args) for which in chosen):
            raise ParameterError(f"argnums {argnums} of {len(args)} arguments by position", got=argnums)
        given = list(args)
        for which in {which % len(args) for which in chosen}:
            given[which] = _apart(args[which], (args, kwargs))
        value = function(*given, **kwargs)
        if not isinstance(value, Tensor):
            raise TypeMismatchError(f"the function must return a tensor, got {type(value).__name__}", got=value)
        check_loss(value)
        expansion = Expansion(Graph(value), tensors_in([given[which] for which in chosen]))
        expansion.run({value: ones(value.ne)})
        gradients = tuple(replaced(given[which], expansion.wanted) for which in chosen)
        return value, gradients[0] if isinstance(argnums, int) else gradients

    return wrapped


def _apart(argument: Any, arguments: Any) -> Any:
    """The argument, with a view in the place of each tensor that several arguments have or are computed from."""
    given = tensors_in(arguments)
    uses = Counter(given)
    uses.update({source for node in Graph(*given).nodes for source in node.src if source is not None})
    if all(uses[tensor] == 1 for tensor in tensors_in(argument)):
        return argument
    return replaced(argument, lambda x: x if uses[x] == 1 else permute(x, 0, 1, 2, 3))


def grad(function: Callable[..., Tensor], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """A function that returns the gradients of ``function``; see :func:`value_and_grad`.

    ``gg.grad(gg.grad(f))`` is the second derivative where the rules of the ops in the first one allow it.
    """
    both = value_and_grad(function, argnums)
    return lambda *args, **kwargs: both(*args, **kwargs)[1]
