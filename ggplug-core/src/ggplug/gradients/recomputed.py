"""Functions whose intermediate results are computed again in the backward pass, instead of being kept for it."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from ggplug.gradients.nested import tensors_in
from ggplug.tensor import Tensor

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Segment:
    """A call of a function whose nodes the backward pass makes again."""

    def __init__(self, call: Callable[[], Any], results: Sequence[Tensor]) -> None:
        self._call = call
        self._results = [weakref.ref(each) for each in results]

    def again(self) -> dict[Tensor, Tensor]:
        """For each result that exists and that the call makes, a new tensor that computes the same.

        A result that the call returns without making it, such as an argument, is not among them.
        """
        made = tensors_in(self._call())
        pairs = [(reference(), new) for reference, new in zip(self._results, made, strict=True)]
        return {result: new for result, new in pairs if result is not None and result is not new}


class Repeated:
    """A call that a backward pass has made again: for each of its results, a new tensor that computes the same.

    ``known``: all nodes from before.
    """

    def __init__(self, results: Mapping[Tensor, Tensor], known: Container[Tensor]) -> None:
        self.results = results
        self.nodes = nodes_before(results.values(), known)
        """The new nodes, in the order of computation."""
        made = set(self.nodes)
        self.src = dict.fromkeys(each for each in _read(self.nodes) if each not in made)
        """What the nodes read from outside of the call."""

    def inner(self) -> set[Tensor]:
        """What the nodes that are made again read of the call; results are among it if others are made of them."""
        return set(_read(nodes_before(self.results, self.src))).difference(self.src)


_segments: weakref.WeakKeyDictionary[Tensor, list[Segment]] = weakref.WeakKeyDictionary()
"""The calls that returned a tensor, those inside of others first."""


def remat(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """``function``, such that the backward pass calls it again instead of keeping what it computes in between.

    It takes and returns tensors, alone or in tuples, lists and dictionaries, and makes equal nodes whenever it is
    called with the same tensors.  So a layer takes the memory of its input in a graph of :meth:`Graph.backward`, and
    the time of a second forward pass.
    """

    @functools.wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        made = function(*args, **kwargs)
        results = tensors_in(made)
        segment = Segment(functools.partial(function, *args, **kwargs), results)
        for result in set(results).difference(tensors_in((args, kwargs))):
            if result.op is not None:
                _segments.setdefault(result, []).append(segment)
        return made

    return wrapped


def _read(nodes: Iterable[Tensor]) -> Iterator[Tensor]:
    return (each for node in nodes for each in node.src if each is not None)


def nodes_before(results: Iterable[Tensor], known: Container[Tensor]) -> list[Tensor]:
    """The nodes that compute ``results``, in the order of computation, without known ones and what is before these."""
    found: dict[Tensor, None] = {}
    entered: set[Tensor] = set()
    ahead = list(results)[::-1]
    while ahead:
        node = ahead.pop()
        if node in entered:
            found.setdefault(node)
        elif node.op is not None and node not in known:
            entered.add(node)
            ahead.append(node)
            ahead += (each for each in reversed(node.src) if each is not None and each not in entered)
    return list(found)


def repeated(nodes: Sequence[Tensor], wrt: Collection[Tensor], known: Container[Tensor]) -> dict[Tensor, Repeated]:
    """The calls that made some of these nodes, which are in the order of computation, by these nodes: made again.

    Of calls inside of others, the outermost.  Without those that compute one of ``wrt`` in between: its gradient needs
    the nodes that are there.  ``known``: all nodes from before the calls were made again.
    """
    found: dict[Tensor, Repeated] = {}
    within: set[Tensor] = set()
    """What is inside of calls.  A result of an inner call that is used outside too is passed as it is there."""
    calls: dict[Segment, Repeated | None] = {}
    among = set(nodes)
    for node in reversed(nodes):
        if node in found or node in within:
            continue
        for segment in reversed(_segments.get(node, ())):
            if segment not in calls:
                results = {result: new for result, new in segment.again().items() if result in among}
                call = Repeated(results, known)
                inner = call.inner()
                if inner.isdisjoint(wrt):
                    calls[segment] = call
                    within |= inner
                else:
                    calls[segment] = None
            again = calls[segment]
            if again is not None and node in again.results:
                found.update(dict.fromkeys(again.results, again))
                break
    return found


def in_order(nodes: Sequence[Tensor], calls: Mapping[Tensor, Repeated]) -> Sequence[Tensor | Repeated]:
    """These nodes, with each call in the place of its results, after all that it reads."""
    among = set(nodes)
    found: dict[Tensor | Repeated, None] = {}
    entered: set[Tensor | Repeated] = set()
    for node in nodes:
        ahead = [node]
        while ahead:
            tensor = ahead.pop()
            part = calls.get(tensor, tensor)
            if part in entered:
                found.setdefault(part)
                continue
            entered.add(part)
            ahead.append(tensor)
            ahead += (each for each in part.src if each in among)
    return list(found)
