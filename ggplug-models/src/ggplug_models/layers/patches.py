"""Changes of graphs: nodes whose values are changed, which all that is computed from these nodes then reads."""

from __future__ import annotations

import contextlib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug.errors import ParameterError
from ggplug.graph import Graph
from ggplug.nodes.hazards import written_sources
from ggplug.ops.base import apply
from ggplug.sharing import Claim
from ggplug.tensor import Tensor
from ggplug_models.checks.arguments import number
from ggplug_models.layers.names import name_nodes

Array = npt.NDArray[Any]
Change = Callable[[Array], npt.ArrayLike]
"""A function from a node's value, tokens first, to the value that takes its place, of the same shape."""

UNPATCHED = "/unpatched"
"""What follows the name of a node whose value was changed: the name itself is that of the changed value."""


class Scales(Protocol):
    """Gives the scales of changes as an input of a graph, so that one graph serves all scales."""

    def scale(self, of: GraphChange, times: float) -> Tensor:
        """The scale of a change, multiplied with ``times``: F32 [1]."""


def scale_now(scales: Mapping[GraphChange, float | None], of: GraphChange, times: float) -> float:
    """The value of an input that :meth:`Scales.scale` returned, for a computation with these scales."""
    scale = scales[of]
    assert scale is not None
    return scale * times


class GraphChange(ABC):
    """A change of a model's graphs: a :class:`Patch`, or an adapter.

    ``scale``: what the change is multiplied with, unless a sequence has another scale for it; with 0 it is left out.
    None: it has no scale.
    """

    scale: float | None = None

    @property
    def digest(self) -> str:
        """What identifies the change in files (default: nothing: no file can say that it was in effect)."""
        return ""

    def scaled(self, scales: Scales) -> GraphChange:
        """The change with a scale that is an input of the graph (default: itself, without a scale)."""
        return self

    def of_any_length(self) -> GraphChange:
        """A change of the same nodes that graphs of any number of tokens can have, which are not computed (default:
        itself)."""
        return self

    @abstractmethod
    def change(self, name: str, base: Tensor, made: Tensor) -> Tensor | None:
        """What takes the place of the node ``name``; None: this change leaves it as it is.

        ``base``: the node, which reads changed nodes already.  ``made``: the node after earlier changes.
        """

    def free(self) -> None:
        """Releases what the change holds, when it is in effect no more (default: nothing)."""
        return


class Changed(Protocol):
    """A model whose graphs can be changed."""

    patches: tuple[GraphChange, ...]
    freed: bool

    def locked(self) -> Claim:
        """A ``with`` block in which no other thread computes with the model."""


class Patching:
    """A patch of a model, or an adapter, in effect until the end of a ``with`` block or :meth:`remove`.

    Adapters change nodes before patches do, whichever were made first.
    """

    def __init__(self, model: Changed, change: GraphChange) -> None:
        self._model, self.change = model, change
        model.patches = tuple(sorted((*model.patches, change), key=lambda each: each.scale is None))

    @property
    def scale(self) -> float:
        """What an adapter is multiplied with; it may be set, and holds for what is computed after that.

        Sequences may have scales of their own.  Raises ParameterError for a patch, and a scale that is no number.
        """
        return self._scaled.scale or 0.0

    @scale.setter
    def scale(self, scale: float) -> None:
        self._scaled.scale = number("scale", scale)

    @property
    def _scaled(self) -> GraphChange:
        if self.change.scale is None:
            raise ParameterError(f"{self.change!r} has no scale: it is no LoRA adapter", got=self.change)
        return self.change

    def move(self, other: Patching) -> None:
        """Takes the place of ``other``, an adapter of the same file in the model loaded again; keeps its scale."""
        other.scale = self.scale
        self._model, self.change = other._model, other.change

    def remove(self) -> None:
        """Ends the effect, and frees the memory of an adapter.  Waits for computations of other threads."""
        model = self._model
        if self.change not in model.patches:
            return
        with contextlib.nullcontext() if model.freed else model.locked():
            model.patches = tuple(each for each in model.patches if each is not self.change)
            self.change.free()

    def __enter__(self) -> Patching:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


@dataclass(frozen=True, eq=False)
class Patch(GraphChange):
    """A change of the nodes whose names match ``pattern``.

    ``value``: a function, or an array that takes the place of the value, or with ``add`` is added to it.
    """

    pattern: str
    value: Change | Array
    add: bool = False

    @cached_property
    def digest(self) -> str:
        """The digest of the array; nothing for a function."""
        if callable(self.value):
            return ""
        facts = f"{self.pattern} {self.add} {self.value.dtype} {self.value.shape} "
        return hashlib.sha256(facts.encode() + self.value.tobytes()).hexdigest()

    def matches(self, name: str) -> bool:
        return fnmatchcase(name, self.pattern)

    def of_any_length(self) -> Patch:
        return replace(self, value=np.asarray)

    def change(self, name: str, base: Tensor, made: Tensor) -> Tensor | None:
        return self.apply(made.named(name)) if self.matches(name) else None

    def apply(self, node: Tensor) -> Tensor:
        """A node with the changed value.  Raises ParameterError if a node cannot be changed, or not by this array."""
        if node.type is not gg.F32 or not node.is_contiguous() or (node.op is not None and node.op.writes):
            raise _refused(node)
        if callable(self.value):
            return gg.map_custom1(node, _Call(self.value, node))
        if self.value.ndim > node.rank or any(
            extent not in (1, wanted) for extent, wanted in zip(self.value.shape[::-1], node.shape[::-1], strict=False)
        ):
            raise ParameterError(
                f"an array of shape {self.value.shape} cannot change the node {node.name!r}, of shape {node.shape} "
                "with one row for each token",
                tensor=node,
                got=self.value.shape,
                wanted=node.shape[1:],
            )
        leaf = gg.tensor(self.value, gg.F32, name=f"{node.name}/patch")
        return gg.add(node, leaf) if self.add else gg.repeat(leaf, *node.ne[: node.rank])


class _Call:
    """The function of a patch as an op of Python calls it."""

    def __init__(self, change: Change, node: Tensor) -> None:
        self._change, self._shape, self._name = change, node.shape, node.name

    def __call__(self, dst: Array, x: Array, ith: int, nth: int, userdata: object) -> None:
        found = np.asarray(self._change(x.reshape(self._shape)))
        if found.shape != self._shape:
            raise ParameterError(
                f"the patch of {self._name!r} must return an array of shape {self._shape}, got {found.shape}",
                got=found.shape,
                wanted=self._shape,
            )
        dst[...] = found.reshape(dst.shape)


def _refused(node: Tensor) -> ParameterError:
    return ParameterError(
        f"the node {node.name!r} cannot be patched: it must hold float32 without gaps, and write into no other tensor",
        tensor=node,
        remedy="patch the node that is computed from it, or the one that it is computed from",
    )


def _written_through(graph: Graph) -> set[Tensor]:
    """The nodes that are views through which others write into a tensor."""
    found: set[Tensor] = set()
    for node in graph.nodes:
        for view in written_sources(node):
            while view.op is not None and view.op.is_view and view.src[0] is not None:
                found.add(view)
                view = view.src[0]
    return found


def patched(outputs: Sequence[Tensor], changes: Sequence[GraphChange]) -> list[Tensor]:
    """The outputs, computed with the changes; nodes that depend on no change stay the same.

    Raises ParameterError for a change of a node that cannot be changed.
    """
    graph = Graph(*outputs)
    name_nodes(graph)
    new: dict[Tensor, Tensor] = {}
    written = _written_through(graph)
    for node in graph.nodes:
        assert node.op is not None
        name, made = node.name, node
        if any(source in new for source in node.src):
            sources = tuple(None if each is None else new.get(each, each) for each in node.src)
            made = apply(node.op, sources, name)
            made.flags = node.flags
        base = made
        for each in changes:
            changed = each.change(name, base, made)
            if changed is not None:
                if node in written:
                    raise _refused(node)
                made.name = name + UNPATCHED
                made = changed.named(name)
        if made is not node:
            new[node] = made
    return [new.get(output, output) for output in outputs]
