"""Values of nodes by name: which nodes a pattern stands for, and what of their values belongs to tokens.

Which axis is that of tokens is seen from the same graph for another number of tokens: extents alone do not say it, as
there may be as many tokens as heads or elements.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.errors import ParameterError
from ggplug.graph import Graph
from ggplug.tensor import Tensor

Array = npt.NDArray[Any]

Axes = Mapping[str, int | None]
"""The axis of tokens in the arrays of nodes, by name; None: there is none."""

ALIASES = {"logits": "result_output"}


def patterns_of(collect: Iterable[str]) -> tuple[str, ...]:
    """The patterns as a tuple of texts.  Raises ParameterError for anything else."""
    found = () if isinstance(collect, str) else tuple(collect)
    if not found or not all(isinstance(each, str) for each in found):
        raise ParameterError(f"collect must be a list of names or patterns, got {collect!r:.100}", got=collect)
    return found


def collected(graph: Graph, patterns: Sequence[str]) -> dict[str, Tensor]:
    """The nodes that match patterns such as ``blk.*.attn_out``, by name; they become outputs of the graph.

    Raises ParameterError for a pattern that no node matches.
    """
    found: dict[str, Tensor] = {}
    for pattern in patterns:
        name = ALIASES.get(pattern, pattern)
        matching = {node.name: node for node in graph.nodes if fnmatchcase(node.name, name)}
        check_matches(pattern, matching, (node.name for node in graph.nodes))
        found |= {pattern: matching[name]} if pattern in ALIASES else matching
    for node in found.values():
        node.set_output()
    return found


def check_matches(pattern: str, matching: Collection[object], names: Iterable[str]) -> None:
    """Raises ParameterError if a pattern matches no name: ``matching`` is empty."""
    if not matching:
        from difflib import get_close_matches

        near = get_close_matches(pattern, list(names), 3, 0.4)
        hint = f"; similar names are {', '.join(near)}" if near else ""
        raise ParameterError(
            f"no node of the model is called {pattern!r}{hint}", got=pattern, remedy="model.node_names() lists all"
        )


def axes_of_tokens(nodes: Mapping[str, Tensor], longer: Graph, extents: Mapping[int, int]) -> Axes:
    """The axis of tokens in the arrays of nodes, by the keys of ``nodes``.

    ``longer``: the graph for more tokens.  ``extents``: the numbers of tokens of nodes, with those of the nodes of the
    same names there.  It is the first axis with such extents, where all others are equal in both, or also such.
    """
    others = {node.name: node.shape for node in longer.nodes}

    def axis(shape: tuple[int, ...], other: tuple[int, ...]) -> int | None:
        if len(shape) != len(other) or any(n != m != extents.get(n) for n, m in zip(shape, other, strict=True)):
            return None
        return next((axis for axis, (n, m) in enumerate(zip(shape, other, strict=True)) if n != m), None)

    return {name: axis(node.shape, others.get(node.name, ())) for name, node in nodes.items()}


def of_tokens(array: Array, axis: int | None, n: int, *, last: bool = False) -> Array:
    """The values of the first ``n`` tokens, tokens first; with ``last`` that of the last one alone.

    ``axis``: that of tokens; it may have one element, which then is the last token's.  Axes of one element before it,
    of sequences, are left out.  An array without such an axis is returned as it is.
    """
    if axis is None:
        return array
    alone = all(extent == 1 for extent in array.shape[:axis])
    values = array.reshape(array.shape[axis:]) if alone else np.moveaxis(array, axis, 0)
    return values[min(n, len(values)) - 1] if last else values[:n]


def joined(parts: Sequence[Mapping[str, Array]], axes: Axes) -> dict[str, Array]:
    """The values of several steps, one after the other; ``axes``: those of tokens.

    Of a node whose value has no axis of tokens, that of the last step.
    """
    return {
        name: array if axes[name] is None else np.concatenate([part[name] for part in parts])
        for name, array in parts[-1].items()
    }
