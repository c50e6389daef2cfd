"""Patterns: the chains of ops that a device computes together, each declared once and written like its formula.

``of`` gives a class of ops that may be written as a function; the parameters of the formula are *holes*, which any
tensor fills that the chain does not compute itself::

    NORM, SCALED, SHIFTED = of(Norm, RmsNorm, name="norm"), of(Mul), of(Add)
    NORM_AFFINE = pattern("norm_affine", lambda x, w, b: SHIFTED(SCALED(NORM(x), w), b), inplace=("x",))

A hole that occurs twice is the same tensor twice; one with the default None may be absent.  The two sources of Add and
Mul may be in either order.  ``viewed(step)`` stands for a result of a step or any view of it, ``maybe(step, x)`` for a
step or, where it is not there, for the ``x`` that it would have read.  A run of elementwise ops, perhaps behind a step
of another kind, is a :func:`chain`.

A device lists its patterns, the preferred ones first, and its ``match`` asks each for the ``names`` of a group: a
pattern's holes and steps by name, or None.  Shapes, types and strides are the kernel's own affair: it declines.
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
class Step:
    """A node of the group: an op of one of these classes over these sources.  Sources left out have to be absent."""

    kinds: tuple[type[Operation], ...]
    name: str
    sources: tuple[Element, ...]


@dataclass(frozen=True, eq=False)
class Viewed:
    """The result of a step, or any view of it."""

    step: Step


@dataclass(frozen=True, eq=False)
class Maybe:
    """A step, or what stands for its source where the step is not there."""

    step: Step
    source: Element


Element = Hole | Step | Viewed | Maybe
E = TypeVar("E", Hole, Step, Viewed, Maybe)


class Found(NamedTuple):
    """Where a pattern was found: its nodes in no particular order, and the tensors that its names stand for."""

    nodes: frozenset[Tensor]
    names: Names


def of(*kinds: type[Operation], name: str = "") -> Callable[..., Step]:
    """An op of these classes, to be written as a function of its sources; ``name`` is by default the first op's."""
    called = name or kinds[0].name or kinds[0].__name__.lower()
    return lambda *sources: Step(kinds, called, sources)


def viewed(step: Step) -> Viewed:
    """The result of a step, or any view of it."""
    return Viewed(step)


def maybe(step: Callable[[E], Step], source: E) -> Maybe:
    """``step(source)``, which is preferred, or the ``source`` alone."""
    return Maybe(step(source), source)


def is_one_of(op: Operation | None, kinds: tuple[type[Operation], ...]) -> bool:
    """Whether patterns for these classes hold for an op: as ``isinstance``, but for ops of other packages."""
    return isinstance(op, kinds) and any(kind in kinds for kind in op.kinds)


class Pattern(ABC):
    """A chain of ops.  ``name``: for explanations; ``kinds``: the classes of op that its last node may have."""

    name: str
    kinds: tuple[type[Operation], ...]

    @abstractmethod
    def find(self, last: Tensor, free: Container[Tensor], lone: Callable[[Tensor], bool]) -> Iterator[Found]:
        """Where the chain is found that ends at ``last``, the preferred places first.

        ``last``: a node whose op is one of ``kinds``.  ``free``: nodes that may belong to it.  ``lone``: whether
        nothing but one node needs a result.
        """

    def names(self, group: Group) -> Names | None:
        """What the pattern's names stand for in a group; None if the group is something else.

        Every group that core forms where :meth:`find` found the pattern has names: a result that only one node of its
        graph needs is one that only one node of the group reads, and that is not kept.
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
        """The group's sources whose bytes its result may take over, if the allocator finds that possible."""

    def __repr__(self) -> str:
        return f"<Pattern {self.name}>"


class Formula(Pattern):
    """A chain of fixed shape; see :func:`pattern`."""

    def __init__(self, name: str, formula: Callable[..., Step | Maybe], inplace: Sequence[str] = ()) -> None:
        self.name = name
        self._last, holes = _written(name, formula)
        self.kinds = _kinds_of(self._last)
        unknown = [hole for hole in inplace if hole not in holes]
        if unknown:
            raise ParameterError(f"pattern {name!r} has no hole {unknown[0]!r}", got=unknown[0])
        self._holes = holes
        self._inplace = tuple(inplace)

    def find(self, last: Tensor, free: Container[Tensor], lone: Callable[[Tensor], bool]) -> Iterator[Found]:
        yield from _places(self._last, last, free, self._holes)

    def inplace(self, names: Names, group: Group) -> tuple[Tensor, ...]:
        return tuple(names[hole] for hole in self._inplace if hole in names)


class Chain(Pattern):
    """A run of elementwise ops; see :func:`chain`."""

    def __init__(
        self,
        name: str,
        kinds: tuple[type[Operation], ...],
        start: Callable[..., Step | Maybe] | None,
        inplace: bool,
        at_most: int,
    ) -> None:
        self.name = name
        self.kinds = kinds
        self._start: Step | Maybe | None = None
        self._holes: frozenset[str] = frozenset()
        if start is not None:
            self._start, self._holes = _written(name, start)
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


def pattern(name: str, formula: Callable[..., Step | Maybe], *, inplace: Sequence[str] = ()) -> Formula:
    """A chain of fixed shape.

    ``inplace``: names of holes whose bytes the result may take over: the kernel reads there nothing that it has
    overwritten.  Default none.  Raises ParameterError for a name that is used twice, or is no hole's.
    """
    return Formula(name, formula, inplace)


def chain(
    name: str,
    *kinds: type[Operation],
    start: Callable[..., Step | Maybe] | None = None,
    inplace: bool = False,
    at_most: int = 8,
) -> Chain:
    """A run of ops of these classes, each on the result of the one before, which nothing else reads; all of one shape.

    ``start``: a formula that the first of them has as a source, such as a product.  Without it a run has at least two
    nodes.  ``inplace``: whether the result may take over the bytes of sources of the run (those of ``start`` never).
    ``at_most``: nodes of a run, ``start`` not counted.
    """
    return Chain(name, kinds, start, inplace, at_most)


def _written(name: str, formula: Callable[..., Step | Maybe]) -> tuple[Step | Maybe, frozenset[str]]:
    """A formula's last step, and the names of its holes."""
    parameters = inspect.signature(formula).parameters.values()
    holes = [Hole(parameter.name, parameter.default is None) for parameter in parameters]
    last = formula(*holes)
    steps: dict[str, Step] = {}

    def visit(element: Element) -> None:
        if isinstance(element, Viewed):
            visit(element.step)
        elif isinstance(element, Maybe):
            visit(element.step)
            visit(element.source)
        elif isinstance(element, Step) and steps.get(element.name) is not element:
            if element.name in steps or any(hole.name == element.name for hole in holes):
                raise ParameterError(
                    f"pattern {name!r} has the name {element.name!r} twice: give of(..., name=)", got=element.name
                )
            steps[element.name] = element
            for source in element.sources:
                visit(source)

    visit(last)
    return last, frozenset(hole.name for hole in holes)


def _kinds_of(last: Element) -> tuple[type[Operation], ...]:
    """The classes of op that the last node of a formula may have."""
    if isinstance(last, Maybe):
        return *last.step.kinds, *_kinds_of(last.source)
    return last.kinds if isinstance(last, Step) else ()


def _places(
    last: Step | Maybe, tensor: Tensor | None, free: Container[Tensor], holes: frozenset[str]
) -> Iterator[Found]:
    """Where a formula is found that ends at ``tensor``."""
    if tensor is None:
        return
    for names in _bind(last, tensor, {}, free):
        steps = [found for name, found in names.items() if name not in holes]
        nodes = frozenset(steps)
        outside = (names[hole] for hole in holes if hole in names)
        if len(nodes) == len(steps) and all(hole not in nodes and hole.root not in nodes for hole in outside):
            yield Found(nodes, names)


def _bind(element: Element | None, tensor: Tensor | None, names: Names, free: Container[Tensor]) -> Iterator[Names]:
    """Every way in which an element of a formula, or None for no source, stands for a tensor beside what is found."""
    if element is None:
        if tensor is None:
            yield names
        return
    if isinstance(element, Maybe):
        yield from _bind(element.step, tensor, dict(names), free)
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
        element = element.step
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
