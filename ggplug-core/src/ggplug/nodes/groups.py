"""Groups: the nodes that one kernel computes, and the signature by which equal groups are recognised.

Most groups are one node.  A device that computes several nodes at once (a product with its bias and activation, a norm
with its scale and shift) returns :class:`Groups` before memory is laid out, because a group changes lifetimes:
what it reads is needed until its last node, and a result that only its own nodes read takes no memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ggplug.graph import Graph
from ggplug.tensor import Tensor


class Group:
    """Nodes that one kernel computes, in the graph's order; mostly one.

    ``kept``: for each node whether its result must be written; that of the last one always is.  ``node``: the last one,
    whose place in the graph's order is the group's.  ``operands``: the tensors whose bytes the kernel gets.  Of a group
    of one node these are the node and its sources (None for absent ones); of a larger one the last node, the
    ``sources`` and then the other kept results.
    """

    __slots__ = ("_operands", "kept", "node", "nodes")

    def __init__(self, nodes: tuple[Tensor, ...], kept: tuple[bool, ...] | None = None) -> None:
        self.nodes = nodes
        self.node = nodes[-1]
        self.kept = kept if kept is not None else (True,) * len(nodes)
        self._operands: tuple[Tensor | None, ...] | None = None

    @property
    def sources(self) -> tuple[Tensor, ...]:
        """The tensors that the group reads and does not compute: each once, in the order of their first reading."""
        members = set(self.nodes)
        found = (s for node in self.nodes for s in node.src if s is not None and s not in members)
        return tuple(dict.fromkeys(s for s in found if s.root not in members))

    @property
    def operands(self) -> tuple[Tensor | None, ...]:
        """The tensors whose bytes the kernel gets; see :class:`Group`."""
        if self._operands is None:
            if len(self.nodes) == 1:
                self._operands = (self.node, *self.node.src)
            else:
                results = (n for n, kept in zip(self.nodes[:-1], self.kept, strict=False) if kept)
                self._operands = (self.node, *self.sources, *results)
        return self._operands

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return repr(self.node) if len(self.nodes) == 1 else f"<Group of {', '.join(map(repr, self.nodes))}>"


def signature_of(asked: Group | Tensor) -> tuple[Any, ...]:
    """The signature of a group, or of a single node: groups with equal signatures get the same kernel.

    It has the ops with their parameters; types, extents and strides of results and sources; the buffer type of the root
    of every source; and whether a source is a view of memory with a layout of its own.  For several nodes it also has
    which results are kept, which source is the result of which node, and how sources share bytes.  It consists of
    builtins and identities, so comparing and hashing it calls no Python code.
    """
    node: Any = asked
    if asked.__class__ is not Tensor:
        if len(asked.nodes) > 1:  # type: ignore[union-attr]
            return _signature_of_several(asked)  # type: ignore[arg-type]
        node = asked.node  # type: ignore[union-attr]
    return (
        node.op.key,
        node.type.id,
        node.ne,
        node.nb,
        tuple(
            [
                None
                if s is None
                else (s.type.id, s.ne, s.nb, s.buffer_type if s.view_src is None else _memory_of_view(s))
                for s in node.src
            ]
        ),
    )


def _memory_of_view(view: Tensor) -> Any:
    """The buffer type of a view's root, marked as a view if that memory has a layout of its own."""
    kind = view.root.buffer_type
    return kind if kind is None or not kind.has_own_layout else (kind, "view")


def _signature_of_several(group: Group) -> tuple[Any, ...]:
    members = {node: number for number, node in enumerate(group.nodes)}
    outside = {source: number for number, source in enumerate(group.sources)}
    roots = [source.root for source in outside]

    def place(source: Tensor | None) -> Any:
        if source is None or source in outside:
            return None if source is None else -1 - outside[source]
        if source in members:
            return members[source]
        return members[source.root], source.type.id, source.ne, source.nb, source.view_offset

    nodes = []
    for node, kept in zip(group.nodes, group.kept, strict=True):
        assert node.op is not None
        nodes.append((node.op.key, node.type.id, node.ne, node.nb, kept, tuple(map(place, node.src))))
    sources = []
    for source, root in zip(outside, roots, strict=True):
        shared = (roots.index(root), source.view_offset) if roots.count(root) > 1 else None
        memory = source.buffer_type if source is root else _memory_of_view(source)
        sources.append((source.type.id, source.ne, source.nb, memory, shared))
    return tuple(nodes), tuple(sources)


class Missed(NamedTuple):
    """A chain that matched a pattern but is no group: positions of its nodes, the pattern, and the reason."""

    nodes: tuple[int, ...]
    pattern: str
    reason: str


class Groups:
    """Which nodes of a graph are computed together; all other nodes are single.  Compared by value; holds no tensor.

    Positions are those in ``graph.tensors``.  ``members``: for each group of several nodes their positions, in the
    graph's order.  ``inner``: results that only their own group reads: they take no memory and are not written.
    ``inplace``: by position of a group's last node, the positions of the sources whose bytes its result may take.
    ``missed``: chains that matched a pattern but are no group, for explanations; not compared.
    """

    __slots__ = ("_hash", "_key", "checked", "inner", "inplace", "members", "missed")

    def __init__(
        self,
        members: Sequence[tuple[int, ...]] = (),
        inner: frozenset[int] = frozenset(),
        inplace: dict[int, tuple[int, ...]] | None = None,
        missed: Sequence[Missed] = (),
    ) -> None:
        self.members = tuple(members)
        self.inner = inner
        self.inplace = dict(inplace or {})
        self.missed = tuple(missed)
        self.checked: object = None
        """The graph's signature and the arguments of the last successful ``check_groups``."""
        self._key = self.members, inner, tuple(sorted(self.inplace.items()))
        self._hash = hash(self._key)

    def of(self, graph: Graph) -> Iterator[Group]:
        """The groups of a graph's nodes that compute something, each at its last node's place in the order.

        Views and nodes without elements are left out.
        """
        if not self.members:
            for node in graph.nodes:
                if not node.op.is_view and node.size:  # type: ignore[union-attr]
                    yield Group((node,))
            return
        tensors = graph.tensors
        for members in self.by_place(graph.order):
            nodes = tuple([tensors[p] for p in members])
            if len(nodes) > 1 or (nodes and not nodes[0].op.is_view and nodes[0].size):  # type: ignore[union-attr]
                yield Group(nodes, tuple([p not in self.inner for p in members]))

    def by_place(self, order: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """For each node in order, the positions of the nodes that are computed at its place.

        That is the node itself, its whole group if it is the last node of one, or none if it is another node of one.
        """
        together = {position: members for members in self.members for position in members}
        for position in order:
            members = together.get(position, (position,))
            yield members if position == members[-1] else ()

    def within(self, part: Graph) -> Groups:
        """The same groups in a part of the graph, by the part's own positions."""
        positions = part.positions
        if positions is None:
            return self
        here = {position: number for number, position in enumerate(positions)}
        nodes = {positions[number] for number in part.order}
        mine = [members for members in self.members if members[-1] in nodes]
        if not mine:
            return UNGROUPED
        return Groups(
            [tuple(here[p] for p in members) for members in mine],
            frozenset(here[p] for members in mine for p in members if p in self.inner),
            {
                here[members[-1]]: tuple(here[p] for p in self.inplace[members[-1]])
                for members in mine
                if members[-1] in self.inplace
            },
        )

    def __bool__(self) -> bool:
        return bool(self.members)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Groups) and self._key == other._key)

    def __repr__(self) -> str:
        return f"<Groups: {len(self.members)} of several nodes, {len(self.inner)} results inside of them>"


UNGROUPED = Groups()
"""Every node is a group of its own."""
