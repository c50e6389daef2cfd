"""The tensors of the members: for each tensor of a graph the part, or the copy, that a member has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ggplug.combined.cuts import Cuts, Split, State
from ggplug.combined.listed import Listed
from ggplug.combined.memory import SplitBufferType
from ggplug.combined.rules import Answer
from ggplug.combined.states import States
from ggplug.ops import View
from ggplug.ops.base import apply
from ggplug.tensor import Spec, Tensor


def leaf(tensor: Tensor, member: int, state: State) -> Tensor:
    """A leaf like a tensor, or like a member's part of it, as one in that member's memory."""
    kind = tensor.buffer_type
    if isinstance(kind, SplitBufferType) and tensor.view_src is None:
        return kind.leaf(tensor, member)
    if state is None:
        return Tensor(Spec(tensor.type, tensor.ne, tensor.rank, tensor.nb), name=tensor.name)
    return Tensor(Spec(tensor.type, state.part(member, tensor.ne), tensor.rank), name=tensor.name)


def cut_out(tensor: Tensor, member: int, state: Split) -> Tensor:
    """A member's part of a tensor that it has whole: a view."""
    assert isinstance(state.by, Cuts)
    axis, kind, ne = state.axis, tensor.type, state.part(member, tensor.ne)
    first = state.by.part(member, tensor.ne[axis])[0]
    offset = first // (1 if axis else kind.block_size) * tensor.nb[axis]
    spec = Spec(kind, ne, tensor.rank, tensor.nb, tensor, offset)
    return Tensor(spec, View(ne[: tensor.rank], tensor.nb[1:], offset), (tensor,), tensor.name)


def computed(node: Tensor, answer: Answer | None, member: int, sources: Sequence[Tensor | None]) -> Tensor:
    """A member's node: the whole one, or its part."""
    op = node.op
    assert op is not None
    if answer is not None and answer.op is not None:
        assert answer.result is not None
        op = answer.op(answer.result.part(member, node.ne), sources)
    return apply(op, tuple(sources), node.name)


def alone(
    node: Tensor, answer: Answer | None, have: Sequence[State], member: int, parts: dict[Tensor, Tensor] | None = None
) -> Tensor:
    """A member's node over leafs, to ask its device about.  ``parts``: the leafs, which several nodes then share."""
    parts = {} if parts is None else parts
    sources: list[Tensor | None] = []
    for number, source in enumerate(node.src):
        if source is None:
            sources.append(None)
            continue
        wanted = None if answer is None else answer.sources[number]
        part = parts.setdefault(source, leaf(source, member, have[number]))
        sources.append(part if have[number] is not None or wanted is None else cut_out(part, member, wanted))
    return computed(node, answer, member, sources)


class Local:
    """A member's tensors for a graph.

    ``tensors``: by position in the graph, as later nodes read them.  ``nodes``: by position, what computes them, with
    the views that it reads before it.  ``at``: of each root the position of the tensor at whose place it lies.
    """

    def __init__(self, graph: Listed, states: States, held: Sequence[State], member: int) -> None:
        self.tensors: list[Tensor] = []
        self.nodes: dict[int, list[Tensor]] = {}
        self.at: dict[Tensor, int] = {}
        self._cut: dict[tuple[int, Split], Tensor] = {}
        computing = set(graph.order)
        for position, tensor in enumerate(graph.tensors):
            if position in computing:
                self.tensors.append(self._node(graph, states, position, member))
            elif graph.roots[position] == position:
                self.tensors.append(self._leaf(tensor, position, member, held[position]))
            else:
                root = self.tensors[graph.roots[position]]
                spec = Spec(tensor.type, tensor.ne, tensor.rank, tensor.nb, root, tensor.view_offset)
                self.tensors.append(Tensor(spec, name=tensor.name))

    def _leaf(self, tensor: Tensor, position: int, member: int, state: State) -> Tensor:
        found = leaf(tensor, member, state)
        self.at[found] = position
        return found

    def _node(self, graph: Listed, states: States, position: int, member: int) -> Tensor:
        node, answer = graph.tensors[position], states.answers.get(position)
        sources: list[Tensor | None] = []
        made: list[Tensor] = []
        for number, source in enumerate(graph.sources[position]):
            if source < 0:
                sources.append(None)
                continue
            wanted = None if answer is None else answer.sources[number]
            part = self.tensors[source]
            if wanted is not None and states.states[source] is None:
                known = self._cut.get((source, wanted))
                if known is None:
                    known = self._cut[source, wanted] = cut_out(part, member, wanted)
                part = known
                made.append(part)
            sources.append(part)
        found = computed(node, answer, member, sources)
        self.nodes[position] = [*made, found]
        if found.root is found:
            self.at[found] = position
        if answer is not None and answer.result is not None and states.states[position] is None:
            # Later nodes read the whole result, which lies at the same place after the parts were joined.
            return self._leaf(node, position, member, None)
        return found

    def origins(self) -> Iterator[tuple[int, Tensor]]:
        """The member's tensors, each with the position of the tensor that it stands for."""
        yield from enumerate(self.tensors)
        for position, nodes in self.nodes.items():
            yield position, nodes[-1]
