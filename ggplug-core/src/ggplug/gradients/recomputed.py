"""Functions whose intermediate results are computed again in the backward pass, instead of being kept for it."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, ParamSpec, TypeVar

from ggplug.gradients.nested import tensors_in
from ggplug.tensor import Tensor

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Segment:
    """A call of a function whose nodes the backward pass makes again."""

    def __init__(self, call: Callable[[], Any], sources: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        self.sources = frozenset(sources)
        self._call = call
        self._results = [weakref.ref(each) for each in results]
        self.first: Tensor | None = None
        """The first of the results in the nodes that are passed."""

    def results(self) -> list[Tensor]:
        """The results of the call, as far as they exist."""
        return [each for each in (reference() for reference in self._results) if each is not None]

    def again(self) -> list[Tensor]:
        """New tensors that compute the same as the results that exist."""
        made = tensors_in(self._call())
        return [each for each, reference in zip(made, self._results, strict=True) if reference() is not None]

    def inner(self) -> set[Tensor]:
        """The nodes of the call, its results included."""
        found: set[Tensor] = set()
        ahead = self.results()
        while ahead:
            node = ahead.pop()
            if node.op is not None and node not in found and node not in self.sources:
                found.add(node)
                ahead += (each for each in node.src if each is not None)
        return found


_segments: weakref.WeakKeyDictionary[Tensor, Segment] = weakref.WeakKeyDictionary()
"""The calls, by their results."""


def remat(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """``function``, such that the backward pass calls it again instead of keeping what it computes in between.

    It takes and returns tensors, alone or in tuples, lists and dictionaries, and makes equal nodes whenever it is
    called with the same tensors.  So a layer takes the memory of its input in a graph of :meth:`Graph.backward`, and
    the time of a second forward pass.
    """

    @functools.wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        made = function(*args, **kwargs)
        sources = tensors_in((args, kwargs))
        results = tensors_in(made)
        segment = Segment(functools.partial(function, *args, **kwargs), sources, results)
        for result in results:
            if result.op is not None and result not in segment.sources:
                _segments[result] = segment
        return made

    return wrapped


def segments_of(nodes: Sequence[Tensor], wrt: Collection[Tensor]) -> dict[Tensor, Segment]:
    """The calls that have results among these nodes, which are in the order of computation, by these results.

    Without those that compute one of ``wrt`` in between: its gradient needs the nodes that are there.
    """
    found: dict[Tensor, Segment] = {}
    kept: dict[Segment, bool] = {}
    for node in nodes:
        segment = _segments.get(node)
        if segment is None:
            continue
        if segment not in kept:
            kept[segment] = (segment.inner() - set(segment.results())).isdisjoint(wrt)
            segment.first = node
        if kept[segment]:
            found[node] = segment
    return found
