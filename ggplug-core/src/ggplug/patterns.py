"""Patterns: chains of ops that a device computes as a group, each declared once like a formula.

``of`` returns a function that stands for ops of some classes in a formula.  The parameters of the formula are *holes*:
tensors that the group reads and does not compute::

    NORM, SCALED, SHIFTED = of(Norm, RmsNorm, name="norm"), of(Mul), of(Add)
    NORM_AFFINE = pattern("norm_affine", lambda x, w, b: SHIFTED(SCALED(NORM(x), w), b), inplace=("x",))

A hole that occurs twice is the same tensor twice; one with the default None may be absent.  The two sources of Add and
Mul may be in either order.  ``viewed(node)`` is the node's result or any view of it.  ``maybe(op, x)`` is ``op(x)`` if
the graph has that node, else ``x``.  A :func:`chain` is a sequence of elementwise ops, optionally after a formula.

A device lists its patterns, the preferred ones first.  Its ``match`` calls ``names`` of each for a group, which returns
the tensors by the names of holes and nodes, or None.  Patterns do not check shapes, types and strides; ``match`` does,
and declines.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from ggplug.errors import ParameterError
from ggplug.nodes.groups import Group
from ggplug.ops.elementwise import Add, Mul
from ggplug.tensor import Operation, Tensor

COMMUTE = (Add, Mul)
"""Ops whose two sources a pattern takes in either order."""

Names = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Hole:
    """Any tensor that the group does not compute."""

    name: str
    optional: bool = False


@dataclass(frozen=True, eq=False)
class PatternNode:
    """A node of a formula: an op of one of ``kinds`` with these sources.  Further sources of the op must be absent."""

    kinds: tuple[type[Operation], ...]
    name: str
    sources: tuple[Element, ...]


@dataclass(frozen=True, eq=False)
class Viewed:
    """The result of a node of a formula, or any view of it."""

    node: PatternNode


@dataclass(frozen=True, eq=False)
class Maybe:
    """A node of a formula that may be missing; then ``source`` takes its place."""

    node: PatternNode
    source: Element


Step = PatternNode  # the name that backends written for this version of the interface import
Element = Hole | PatternNode | Viewed | Maybe
E = TypeVar("E", Hole, PatternNode, Viewed, Maybe)


class Found(NamedTuple):
    """A match of a pattern: the nodes, and the tensors by the names of holes and nodes."""

    nodes: frozenset[Tensor]
    names: Names


def of(*kinds: type[Operation], name: str = "") -> Callable[..., PatternNode]:
    """A function from sources to a node with an op of these classes; ``name``: by default the first op's."""
    called = name or kinds[0].name or kinds[0].__name__.lower()
    return lambda *sources: PatternNode(kinds, called, sources)


def viewed(node: PatternNode) -> Viewed:
    """The result of a node, or any view of it."""
    return Viewed(node)


def maybe(op: Callable[[E], PatternNode], source: E) -> Maybe:
    """``op(source)`` if the graph has that node, else ``source``."""
    return Maybe(op(source), source)


def is_one_of(op: Operation | None, kinds: tuple[type[Operation], ...]) -> bool:
    """As ``isinstance``, but false for an op of another package that derives from one of these classes."""
    return isinstance(op, kinds) and any(kind in kinds for kind in op.kinds)


class Pattern(ABC):
    """A chain of ops.  ``name``: for explanations; ``kinds``: the classes of op that its last node may have."""

    name: str
    kinds: tuple[type[Operation], ...]

    @abstractmethod
    def find(self, last: Tensor, free: Container[Tensor], lone: Callable[[Tensor], bool]) -> Iterator[Found]:
        """The matches of the pattern that end at ``last``, the preferred ones first.

        ``last``: a node whose op is one of ``kinds``.  ``free``: nodes that may belong to a match.  ``lone``: a
        function that says whether exactly one node needs a tensor, and nothing else does.
        """

    def names(self, group: Group) -> Names | None:
        """The group's tensors by the names of the pattern's holes and nodes; None if the group is no match.

        Every group that core forms from a match of :meth:`find` has names.
        """
        if not is_one_of(group.node.op, self.kinds):
            return None
        nodes = frozenset(group.nodes)
        inner = {node for node, kept in zip(group.nodes, group.kept, strict=True) if not kept}

        def lone(tensor: Tensor) -> bool:
            readers = (any(s is not None and s.root is tensor for s in node.src) for node in group.nodes)
            return tensor in inner and sum(readers) == 1

        for found in self.find(group.node, nodes, lone):
            if found.nodes == nodes:
                return found.names
        return None

    @abstractmethod
    def inplace(self, names: Names, group: Group) -> tuple[Tensor, ...]:
        """The group's sources whose bytes its result may take, if the allocator decides so."""

    def __repr__(self) -> str:
        return f"<Pattern {self.name}>"


class Formula(Pattern):
    """A pattern with a fixed number of nodes; see :func:`pattern`."""

    def __init__(self, name: str, formula: Callable[..., PatternNode | Maybe], inplace: Sequence[str] = ()) -> None:
        self.name = name
        self._last, holes = _evaluated(name, formula)
        self.kinds = _kinds_of(self._last)
        unknown = [hole for hole in inplace if hole not in holes]
        if unknown:
            raise ParameterError(f"the formula of pattern {name!r} has no parameter {unknown[0]!r}", got=unknown[0])
        self._holes = holes
        self._inplace = tuple(inplace)

    def find(self, last: Tensor, free: Container[Tensor], lone: Callable[[Tensor], bool]) -> Iterator[Found]:
        yield from _places(self._last, last, free, self._holes)

    def inplace(self, names: Names, group: Group) -> tuple[Tensor, ...]:
        return tuple(names[hole] for hole in self._inplace if hole in names)


class Chain(Pattern):
    """A sequence of elementwise ops; see :func:`chain`."""

    def __init__(
        self,
        name: str,
        kinds: tuple[type[Operation], ...],
        start: Callable[..., PatternNode | Maybe] | None,
        inplace: bool,
        at_most: int,
    ) -> None:
        self.name = name
        self.kinds = kinds
        self._start: PatternNode | Maybe | None = None
        self._holes: frozenset[str] = frozenset()
        if start is not None:
            self._start, self._holes = _evaluated(name, start)
        self._may_overwrite = inplace
        self._at_most = at_most

    def find(self, last: Tensor, free: Container[Tensor], lone: Callable[[Tensor], bool]) -> Iterator[Found]:
        run = [last]
        while len(run) < self._at_most:
            before = next((s for s in run[-1].src if s is not None and self._goes_on(s, run[-1], free, lone)), None)
            if before is None:
                break
            run.append(before)
        for length in range(len(run), 0 if self._start is not None else 1, -1):
            nodes = frozenset(run[:length])
            if self._start is None:
                yield Found(nodes, {})
                continue
            for source in dict.fromkeys(run[length - 1].src):
                for found in _places(self._start, source, free, self._holes):
                    if not nodes & found.nodes:
                        yield Found(nodes | found.nodes, found.names)

    def _goes_on(self, before: Tensor, node: Tensor, free: Container[Tensor], lone: Callable[[Tensor], bool]) -> bool:
        return is_one_of(before.op, self.kinds) and before.ne == node.ne and before in free and lone(before)

    def inplace(self, names: Names, group: Group) -> tuple[Tensor, ...]:
        taken = {names[hole] for hole in self._holes if hole in names}
        return tuple(s for s in group.sources if s not in taken) if self._may_overwrite else ()


def pattern(name: str, formula: Callable[..., PatternNode | Maybe], *, inplace: Sequence[str] = ()) -> Formula:
    """The pattern of a formula.

    ``inplace``: names of holes whose bytes the result may take, because the kernel never reads an element that it has
    overwritten.  Default none.  Raises ParameterError for a name that is used twice, or is no hole's.
    """
    return Formula(name, formula, inplace)


def chain(
    name: str,
    *kinds: type[Operation],
    start: Callable[..., PatternNode | Maybe] | None = None,
    inplace: bool = False,
    at_most: int = 8,
) -> Chain:
    """A sequence of ops of these classes, of one shape, each on the result of the last, which nothing else reads.

    ``start``: a formula, such as a product, whose result the first op reads.  Without it the sequence has at least two
    nodes.  ``inplace``: whether the result may take the bytes of the sequence's sources (never those of ``start``).
    ``at_most``: maximal number of nodes, those of ``start`` not counted.
    """
    return Chain(name, kinds, start, inplace, at_most)


def _evaluated(name: str, formula: Callable[..., PatternNode | Maybe]) -> tuple[PatternNode | Maybe, frozenset[str]]:
    """The last node of a formula, and the names of its holes."""
    parameters = inspect.signature(formula).parameters.values()
    holes = [Hole(parameter.name, parameter.default is None) for parameter in parameters]
    last = formula(*holes)
    nodes: dict[str, PatternNode] = {}

    def visit(element: Element) -> None:
        if isinstance(element, Viewed):
            visit(element.node)
        elif isinstance(element, Maybe):
            visit(element.node)
            visit(element.source)
        elif isinstance(element, PatternNode) and nodes.get(element.name) is not element:
            if element.name in nodes or any(hole.name == element.name for hole in holes):
                raise ParameterError(
                    f"pattern {name!r} has the name {element.name!r} twice: pass of(..., name=)", got=element.name
                )
            nodes[element.name] = element
            for source in element.sources:
                visit(source)

    visit(last)
    return last, frozenset(hole.name for hole in holes)


def _kinds_of(last: Element) -> tuple[type[Operation], ...]:
    """The classes of op that the last node of a formula may have."""
    if isinstance(last, Maybe):
        return *last.node.kinds, *_kinds_of(last.source)
    return last.kinds if isinstance(last, PatternNode) else ()


def _places(
    last: PatternNode | Maybe, tensor: Tensor | None, free: Container[Tensor], holes: frozenset[str]
) -> Iterator[Found]:
    """The matches of a formula that end at ``tensor``."""
    if tensor is None:
        return
    for names in _bind(last, tensor, {}, free):
        computed = [found for name, found in names.items() if name not in holes]
        nodes = frozenset(computed)
        outside = (names[hole] for hole in holes if hole in names)
        if len(nodes) == len(computed) and all(hole not in nodes and hole.root not in nodes for hole in outside):
            yield Found(nodes, names)


def _bind(element: Element | None, tensor: Tensor | None, names: Names, free: Container[Tensor]) -> Iterator[Names]:
    """All extensions of ``names`` by which an element of a formula matches a tensor; None matches an absent source."""
    if element is None:
        if tensor is None:
            yield names
        return
    if isinstance(element, Maybe):
        yield from _bind(element.node, tensor, dict(names), free)
        yield from _bind(element.source, tensor, names, free)
        return
    if isinstance(element, Hole):
        if tensor is None:
            if element.optional:
                yield names
        elif names.setdefault(element.name, tensor) is tensor:
            yield names
        return
    if isinstance(element, Viewed):
        while tensor is not None and tensor.op is not None and tensor.op.is_view:
            tensor = tensor.src[0]
        element = element.node
    if tensor is None or not is_one_of(tensor.op, element.kinds) or tensor not in free:
        return
    if names.get(element.name, tensor) is not tensor or len(element.sources) > len(tensor.src):
        return
    sources = (*element.sources, *[None] * (len(tensor.src) - len(element.sources)))
    orders = [tensor.src]
    if isinstance(tensor.op, COMMUTE) and tensor.src[0] is not tensor.src[1]:
        orders.append(tensor.src[::-1])
    for order in orders:
        yield from _bind_all(sources, order, {**names, element.name: tensor}, free)


def _bind_all(
    elements: Sequence[Element | None], tensors: Sequence[Tensor | None], names: Names, free: Container[Tensor]
) -> Iterator[Names]:
    if not elements:
        yield names
        return
    for found in _bind(elements[0], tensors[0], dict(names), free):
        yield from _bind_all(elements[1:], tensors[1:], found, free)
