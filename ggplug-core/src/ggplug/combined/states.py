"""Decides for each tensor of a graph whether the members of a combined device have parts of it, or all of it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ggplug.combined.cuts import State
from ggplug.combined.listed import Listed
from ggplug.combined.rules import Answer, agree, answer_for
from ggplug.errors import UnsupportedOpError
from ggplug.ops import PythonCall
from ggplug.tensor import Tensor

Held = Callable[[Tensor], State]
"""The state of a leaf, which depends on the memory in which it lies."""

Able = Callable[[Tensor, Answer, list[State]], bool]
"""Whether all members compute a node in this way, from sources in these states."""


class Splitting:
    """Chooses the states of weights that have no place yet, while a graph is decided."""

    def begin(self) -> None:
        """A graph is decided anew: forgets what was chosen."""

    def of(self, node: Tensor, have: Sequence[State]) -> State:
        """The state of the node's first source; ``have``: the states of its sources so far."""
        return have[0] if have else None

    def give_up(self, leaf: Tensor) -> bool:
        """Whether a leaf was split by choice, and is not from now on, because a node reads all of it."""
        return False


class Exchange(enum.Enum):
    """What the members exchange after a node, so that each has the whole result."""

    SUM = "sum"
    """Each has a result of full size; the sum is the result."""
    JOIN = "join"
    """Each has a part of the result."""
    SEND = "send"
    """The first member alone computed the result."""


@dataclass
class States:
    """The decisions about a graph, by position in ``graph.tensors``.

    ``states``: how a tensor lies on the members after its node was computed and exchanged.  ``answers``: how nodes are
    computed in parts; other nodes are computed whole.  ``exchanges``: after which nodes there is one.
    """

    states: list[State]
    answers: dict[int, Answer] = field(default_factory=dict)
    exchanges: dict[int, Exchange] = field(default_factory=dict)


def decide(
    graph: Listed,
    held: Held,
    able: Able = lambda node, answer, states: True,
    splitting: Splitting | None = None,
    needed_whole: Iterable[int] = (),
) -> States:
    """The states of a graph's tensors.  ``needed_whole``: positions of roots that each member must have all of.

    A result that is split stays so until a node needs it whole; then it is joined where it was computed.  Once that is
    known of a result, the nodes that read it are decided again.
    """
    whole = set(needed_whole)
    while True:
        known = len(whole)
        found = _decide(graph, held, able, splitting, whole)
        if len(whole) == known:
            return found


def _decide(graph: Listed, held: Held, able: Able, splitting: Splitting | None, whole: set[int]) -> States:
    """One pass.  ``whole``: positions of the roots that are needed whole; those that are found are added."""
    found = States([None] * len(graph.tensors))
    if splitting is not None:
        splitting.begin()
    states, roots, computed = found.states, graph.roots, set(graph.order)
    for position, node in enumerate(graph.tensors):
        op = node.op
        if op is None or position not in computed:
            if roots[position] == position:
                states[position] = held(node)
            elif roots[position] in computed:
                whole.add(roots[position])
            elif states[roots[position]] is not None:
                raise _not_whole(node, graph.tensors[roots[position]])
            continue
        sources = graph.sources[position]
        have = [states[source] if source >= 0 else None for source in sources]
        if splitting is not None and sources and not op.is_view:
            have[0] = states[sources[0]] = splitting.of(node, have)
        answer = answer_for(node, have)
        read: list[State] = [None] * len(have)
        if answer is not None:
            read = [state if agree(want, state) else None for want, state in zip(answer.sources, have, strict=True)]
            if _overwrites(node, answer, read) or not able(node, answer, read):
                answer, read = None, [None] * len(have)
        for source, state, now in zip(sources, have, read, strict=True):
            if state is not None and now is None:
                root = graph.tensors[roots[source]]
                if root.op is None and not (splitting is not None and splitting.give_up(root)):
                    raise _not_whole(node, root)
                whole.add(roots[source])
        if answer is None:
            if _is_computed_once(node):
                found.exchanges[position] = Exchange.SEND
            continue
        found.answers[position] = answer
        if answer.partial:
            found.exchanges[position] = Exchange.SUM
        elif answer.result is not None:
            if roots[position] in whole:
                if not op.is_view:
                    found.exchanges[position] = Exchange.JOIN
            else:
                states[position] = answer.result
    return found


def _overwrites(node: Tensor, answer: Answer, have: list[State]) -> bool:
    """Whether the result may take the bytes of a whole source of which each member reads only a part.

    The parts of the source and of the result then lie differently in the same bytes.
    """
    assert node.op is not None
    for number in node.op.inplace:
        source = node.src[number]
        if source is None or source.root.buffer is not None or source.ne != node.ne:
            continue  # never overwritten
        if have[number] is None and answer.sources[number] is not None:
            return True
    return False


def _is_computed_once(node: Tensor) -> bool:
    """Whether the members might get different results, of which the sum or the parts would then mean nothing.

    Numbers that differ by rounding may choose different rows; and a function of Python is called once.
    """
    if isinstance(node.op, PythonCall):
        return True
    return node.type.dtype.kind == "i" and any(s is not None and s.type.dtype.kind != "i" for s in node.src)


def _not_whole(node: Tensor, leaf: Tensor) -> UnsupportedOpError:
    reason = f"{leaf!r} is split between the members, and its parts are not read so"
    return UnsupportedOpError(f"{node!r} cannot be computed: {reason}", op=node.op, tensor=node, reason=reason)
