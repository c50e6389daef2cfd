"""A device over devices: it computes each graph on all of its members, which have parts of the weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from ggplug.backend import (
    API_VERSION,
    UNGROUPED,
    Backend,
    BufferType,
    Decline,
    Device,
    Group,
    Groups,
    Memory,
    Plan,
    Registration,
)
from ggplug.combined.cuts import Cuts, Split, State, proportions_of
from ggplug.combined.divided import Divided
from ggplug.combined.exchange import AllReduce
from ggplug.combined.listed import Complete, label
from ggplug.combined.local import alone
from ggplug.combined.memory import MirroredBufferType, SplitBufferType, free_all
from ggplug.combined.plan import CombinedPlan
from ggplug.combined.rules import Answer, agree, answer_for
from ggplug.combined.states import States, decide
from ggplug.errors import ParameterError
from ggplug.graph import Graph
from ggplug.interface.grouping import check_groups
from ggplug.ops import FlashAttnExt, MulMat, MulMatId, SetRows
from ggplug.patterns import Pattern
from ggplug.tensor import Tensor
from ggplug.types import DeviceKind

_IN_PARTS = {MulMat: (0,), MulMatId: (0,), SetRows: (0,), FlashAttnExt: (1, 2)}
"""The sources of ops that may lie in split memory."""


class Combined:
    """The kernel of a node that all members compute.  ``name``: how, for explanations."""

    def __init__(self, name: str) -> None:
        self.name = name


class CombinedRegistration(Registration):
    """The registration of a combined device.

    ``get("ggml_backend_split_buffer_type")`` is a function ``(main_device, proportions) -> buffer type``, as ggml's:
    memory for weights whose rows are split.  The device has no main one; the first argument is ignored.
    """

    name = "combined"
    api_version = API_VERSION

    def __init__(self, device: CombinedDevice) -> None:
        self._device = device

    def devices(self) -> Sequence[Device]:
        return [self._device]

    def get(self, name: str) -> Any:
        if name == "ggml_backend_split_buffer_type":
            return lambda main_device, proportions=None: self._device.rows(proportions)
        return None


class CombinedDevice(Device):
    """Several devices as one (ggml_backend_meta_device).

    ``members``: at least two different devices.  ``proportions``: of the weights that each of them gets, by default
    equal ones.  A weight lies split in memory of :meth:`split_memory`, or mirrored in the default memory.  Raises
    ParameterError.
    """

    kind = DeviceKind.GPU

    def __init__(self, members: Sequence[Device], proportions: Sequence[float] | None = None) -> None:
        if len(members) < 2:
            raise ParameterError(f"a combined device has at least two members, got {len(members)}", got=members)
        repeated = next((each for number, each in enumerate(members) if each in members[:number]), None)
        if repeated is not None:
            raise ParameterError(
                f"a combined device has different members, got {repeated.name} more than once",
                got=members,
                remedy="name each device once",
            )
        self.members = tuple(members)
        self.proportions = proportions_of(members, proportions)
        self.name = "+".join(member.name for member in members)
        self.description = f"{len(members)} devices as one"
        self.registration = CombinedRegistration(self)
        self._memories = tuple(member.buffer_type for member in members)
        self._buffer_type = MirroredBufferType(self.name, self, self._memories)
        self._split: dict[tuple[int, Cuts, tuple[BufferType, ...]], SplitBufferType] = {}

    def memory(self) -> Memory:
        """That of all members together."""
        found = [member.memory() for member in self.members]
        free, total = ([each[which] for each in found] for which in (0, 1))
        return Memory(_sum(free), _sum(total))

    @property
    def buffer_type(self) -> MirroredBufferType:
        return self._buffer_type

    def split_memory(self, axis: int, cuts: Cuts, members: Sequence[BufferType] = ()) -> SplitBufferType:
        """The memory of leafs that are cut there, along their rows (axis 1) or columns (axis 0).

        ``members``: the memory of each member's part, by default its own one.
        """
        parts = tuple(members) or self._memories
        found = self._split.get((axis, cuts, parts))
        if found is None:
            name = f"{self.name} {'rows' if axis else 'columns'} at {', '.join(map(str, cuts.bounds[1:-1]))}"
            if parts != self._memories:
                name += f" in {', '.join(kind.name for kind in parts)}"
            made = SplitBufferType(name, self, parts, Split(axis, cuts))
            found = self._split.setdefault((axis, cuts, parts), made)
        return found

    def rows(self, proportions: Sequence[float] | None = None) -> SplitBufferType:
        """The memory of weights whose rows are split in these proportions.  Raises ParameterError."""
        shares = self.proportions if proportions is None else proportions_of(self.members, proportions)
        exact = [Fraction(each).limit_denominator(1 << 16) for each in shares]
        bounds = [sum(exact[:number], Fraction(0)) / sum(exact) for number in range(len(exact) + 1)]
        return self.split_memory(1, Cuts(tuple(bounds)))

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        return buffer_type.device is self and isinstance(buffer_type, (MirroredBufferType, SplitBufferType))

    @property
    def variant(self) -> Any:
        return tuple([member.variant for member in self.members])

    def match(self, group: Group) -> Any:
        node = group.node
        if len(group) > 1:
            reason = self.divided(Graph.part(group.nodes)).declined(group)
            return self._together(group) if reason is None else Decline(reason)
        have = [None if source is None else self.held(source) for source in node.src]
        answer = answer_for(node, have)
        assert node.op is not None
        in_parts = next((_IN_PARTS[kind] for kind in node.op.kinds if kind in _IN_PARTS), ())
        for number, (source, state) in enumerate(zip(node.src, have, strict=True)):
            if source is None or state is None:
                continue
            wanted = None if answer is None or number not in in_parts else answer.sources[number]
            if wanted is None or not agree(wanted, state) or (number == 0 and source.is_view):
                return Decline(f"{source!r} is split between the members, and {node.op.name} does not read its parts")
        for number, member in enumerate(self.members):
            found = member.supports_op(alone(node, answer, have, number))
            if isinstance(found, Decline):
                return Decline(f"{member.name}: {found.reason}")
        how = "whole" if answer is None else "partial sums" if answer.partial else "parts"
        return Combined(f"{node.op.name}, {how} on each of {self.name}")

    @property
    def patterns(self) -> Sequence[Pattern]:
        """Those of the first member that has any: of the groups that they form, the ones that all members compute."""
        return next((member.patterns for member in self.members if member.patterns), ())

    def groups(self, graph: Graph, leaving: Collection[int] = ()) -> Groups:
        patterns = self.patterns
        if not patterns:
            return UNGROUPED
        return self.divided(graph).groups(graph, patterns, leaving, self.__dict__.setdefault("_tried", {}))

    def matches(self, graph: Graph, groups: Groups = UNGROUPED) -> Iterator[tuple[Group, Any]]:
        """As :meth:`Device.matches`; plans raise UnsupportedOpError for several nodes that the members decline here."""
        check_groups(graph, groups)
        alone = {group.node: kernel for group, kernel in super().matches(graph)}
        for group in groups.of(graph):
            yield group, alone[group.node] if len(group) == 1 else self._together(group)

    def _together(self, group: Group) -> Combined:
        return Combined(f"{' '.join(node.op.name for node in group.nodes if node.op)} on each of {self.name}")

    def divided(self, graph: Graph) -> Divided:
        """A graph as it is divided between the members."""
        whole = Complete(graph)
        return Divided(whole, self.members, self.held, self.states(whole))

    def held(self, tensor: Tensor) -> State:
        """The state of a tensor that lies in split memory; of a view, what follows from its root's."""
        kind = tensor.root.buffer_type
        if not isinstance(kind, SplitBufferType):
            return None
        if tensor.view_src is None or tensor.op is None:
            return kind.state
        answer = answer_for(tensor, [None if source is None else self.held(source) for source in tensor.src])
        return kind.state if answer is None else answer.result

    def states(self, graph: Complete) -> States:
        """How the tensors of a graph lie on the members while it is computed.

        A result whose bytes another tensor shares is joined: that tensor may be read as something else.
        """
        known: dict[Any, bool] = {}

        def able(node: Tensor, answer: Answer, have: list[State]) -> bool:
            if node.op is None or node.op.is_view:
                return True
            key = (
                node.op.key,
                tuple(None if s is None else (s.type, s.ne, s.nb) for s in node.src),
                answer.sources,
                tuple(have),
            )
            if key not in known:
                known[key] = all(
                    member.supports_op(alone(node, answer, have, number)) for number, member in enumerate(self.members)
                )
            return known[key]

        return decide(graph, self.held, able, needed_whole=graph.shared)

    def workspace(self, graph: Graph, groups: Groups = UNGROUPED) -> int:
        """The most that a member reserves for one of the stages."""
        divided = self.divided(graph)
        found = (each for stage in divided.stages for each in divided.work(graph, groups, stage))
        return max((self.members[each.member].workspace(each.graph, each.groups) for each in found), default=0)

    def details(self, graph: Graph) -> Sequence[str]:
        divided = self.divided(graph)
        whole, states = divided.whole, divided.states
        lines = []
        for number, stage in enumerate(divided.stages):
            computing = [position for position in stage.nodes if not whole.is_view(position)]
            parts = sum(position in states.answers for position in computing)
            then = [
                f"{states.exchanges[position].value} of {label(node)}, {node.nbytes} bytes"
                for position in stage.exchanges
                for node in (whole.tensors[position],)
            ]
            after = f"; then {', '.join(then)}" if then else ""
            lines.append(
                f"stage {number} on {' and '.join(member.name for member in self.members)}: {len(computing)} nodes, "
                f"{parts} in parts{after}"
            )
        return lines

    def init(self, **params: Any) -> CombinedBackend:
        """A stream with one stream of each member.  ``params``: passed to all of them."""
        return CombinedBackend(self, params)


class CombinedBackend(Backend):
    """A stream of a combined device.  ``members``: the members' streams."""

    device: CombinedDevice

    def __init__(self, device: CombinedDevice, params: dict[str, Any]) -> None:
        super().__init__(device)
        self.members: list[Backend] = []
        try:
            for member in device.members:
                self.members.append(member.init(**params))
            self.all_reduce = AllReduce(self.members)
        except BaseException:
            for stream in self.members:
                stream.free()
            raise

    def set_time_limit(self, seconds: float | None) -> None:
        super().set_time_limit(seconds)
        for member in self.members:
            member.set_time_limit(seconds)

    def set_limits_of(self, other: Backend) -> None:
        super().set_limits_of(other)
        if isinstance(other, CombinedBackend):
            for member, like in zip(self.members, other.members, strict=True):
                member.set_limits_of(like)

    def synchronize(self) -> None:
        free_all([member.synchronize for member in self.members])

    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return CombinedPlan(self, graph, groups)

    def free(self) -> None:
        actions: list[Callable[[], None]] = [partial(super().free), self.all_reduce.free]
        free_all([*actions, *(member.free for member in self.members)])


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [each for each in numbers if each is not None]
    return sum(known) if len(known) == len(numbers) else None
