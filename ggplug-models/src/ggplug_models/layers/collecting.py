"""Values of nodes by name: which nodes a pattern stands for, and what of their values belongs to tokens."""

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


def of_tokens(array: Array, n_padded: int, n: int, *, last: bool = False) -> Array:
    """The values of the first ``n`` of ``n_padded`` tokens, tokens first; with ``last`` that of the last one alone.

    The axis of tokens is the first with as many elements; axes of one element before it, of sequences, are left out.
    An array without one is returned as it is; with ``last`` an axis of one element is that of the last token.
    """
    axis = next((axis for axis, extent in enumerate(array.shape) if extent == n_padded), None)
    if axis is None:
        return array[0] if last and array.shape[:1] == (1,) else array
    alone = all(extent == 1 for extent in array.shape[:axis])
    values = array.reshape(array.shape[axis:]) if alone else np.moveaxis(array, axis, 0)
    return values[n - 1] if last else values[:n]


def joined(parts: Sequence[Mapping[str, Array]], lengths: Sequence[int]) -> dict[str, Array]:
    """The values of several steps with these numbers of tokens, one after the other.

    Of a node whose value has no axis of tokens, that of the last step.
    """
    return {
        name: np.concatenate([part[name] for part in parts])
        if all(part[name].shape[:1] == (n,) for part, n in zip(parts, lengths, strict=True))
        else array
        for name, array in parts[-1].items()
    }
