"""Which stream computes which node, and why: ggml's passes over the graph (ggml_backend_sched_split_graph).

1. Nodes that pins, policies or memory decide.  Pins and policies come first; a node that writes into a source runs
   where these bytes are; a node that reads weights runs where these are, unless a faster device asks for a copy of
   them (``Device.offload_op``); inputs are assigned to the last stream.
2. Their neighbours, forwards and backwards, streams of higher priority first; the last stream (usually the CPU) only
   gets nodes that no other stream can compute.
3. Nodes move to a stream of higher priority that can access the same memory; each remaining node runs where most of
   its sources are.
4. All others: a leaf is assigned to the stream that reads it first, and a view to that of its root.

Cutting the graph into splits, ggml's fifth pass, is in :mod:`.split`.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ggplug.backend import Backend, BufferType
from ggplug.errors import PlacementError
from ggplug.graph import Graph
from ggplug.hookspecs import HOOKS
from ggplug.nodes.hazards import Hazards
from ggplug.scheduler.support import Streams, kinds
from ggplug.tensor import Operation, Tensor
from ggplug.types import BufferUsage, TensorFlag

Policy = Callable[[Tensor, Sequence[Backend]], Backend | None]
"""``policy(node, streams)`` returns one of these streams, which can compute the node, or None to leave the decision.

Called when a graph with a new structure is split; the result must depend on the structure only.
"""

_INPUT = int(TensorFlag.INPUT)


class Reason(enum.Enum):
    """Why a tensor is assigned to its stream; ``{}`` is replaced by the decisive tensor."""

    PINNED = "pinned"
    POLICY = "a placement policy chose it"
    WRITES = "it writes into {}, which lies there"
    PLACED = "it is persistent and lies there"
    INPUT = "inputs are assigned to the last stream"
    WEIGHT = "its weight {} lies there"
    OFFLOADED = "the device asks for a copy of its weight {}"
    FOLLOWS = "its neighbour {} runs there"
    UPGRADED = "it has a higher priority, and can access the memory of its sources"
    SOURCES = "most of its sources are there"
    READ = "{} reads it there"
    VIEW = "a view of {}"
    FIRST = "the first that can compute it"
    FASTEST = "it is predicted to take the least time there"


@dataclass(frozen=True)
class Assignment:
    """By position in ``graph.tensors``: number of the stream, the reason, and the position of the decisive tensor.

    A persistent leaf is assigned to the first stream that can access its memory, or to none: -1.
    """

    streams: list[int]
    reasons: list[Reason | None]
    subjects: list[int]


def assign(
    graph: Graph,
    streams: Streams,
    *,
    hazards: Hazards | None = None,
    pins: Mapping[int, int] | None = None,
    policy: Policy | None = None,
    op_offload: bool = True,
    wanted: Mapping[int, int] | None = None,
) -> Assignment:
    """Assigns every tensor of a graph to a stream.

    ``pins``: position -> stream number.  ``wanted``: the same, for nodes that write nothing, by the cost model; pins
    and policies come first.  Raises PlacementError, with each device's reason, if no stream can compute
    a node, or the stream of a pin cannot.
    """
    passes = _Passes(graph, streams, hazards or Hazards(graph), pins or {}, policy, op_offload)
    passes.place_by_reason(wanted or {})
    passes.grow()
    passes.upgrade()
    passes.place_the_rest()
    return Assignment(passes.at, passes.reasons, passes.subjects)


class _Passes:
    """The state of the passes.  Positions are those in ``graph.tensors``; -1 is unassigned."""

    def __init__(
        self,
        graph: Graph,
        streams: Streams,
        hazards: Hazards,
        pins: Mapping[int, int],
        policy: Policy | None,
        offload: bool,
    ) -> None:
        self.graph = graph
        self.tensors = graph.tensors
        self.streams = streams
        self.pins = pins
        self.policy = policy
        self.offload = offload
        self.last = len(streams) - 1
        self.kinds = kinds(graph)
        # By stream and kind of node: these results are needed thousands of times.
        self.able: list[dict[int, bool]] = [{} for _ in range(len(streams))]
        self.nodes = list(self.kinds)
        count = len(self.tensors)
        self.at = [-1] * count
        self.reasons: list[Reason | None] = [None] * count
        self.subjects = [-1] * count
        # For roots without a place that are written into: the streams in whose memory their writers can run.
        self.homes: dict[int, set[int]] = {}
        # Nodes that are assigned when their root is.
        self.writers: set[int] = set()
        for root in hazards.written:
            if self.tensors[root].buffer_type is None:
                self.homes[root] = self._homes(root, hazards.written[root])

    # -- questions ---------------------------------------------------------------------------------

    def supports(self, stream: int, position: int) -> bool:
        kind = self.kinds[position]
        known = self.able[stream].get(kind)
        if known is None:
            known = self.able[stream][kind] = bool(self.streams.supports(stream, self.tensors[position]))
        return known

    def can(self, stream: int, position: int) -> bool:
        """Whether the stream can compute a node that does not write into a source."""
        if position in self.homes and stream not in self.homes[position]:
            return False
        return self.supports(stream, position)

    def memory(self, position: int) -> BufferType | None:
        """The memory of a tensor, or None if it is not decided yet."""
        root = self.graph.roots[position]
        placed = self.tensors[root].buffer_type
        if placed is not None:
            return placed
        return None if self.at[root] < 0 else self.streams.buffer_types[self.at[root]]

    def reaches(self, stream: int, position: int) -> bool:
        """Whether the stream can access the memory of a tensor; false if that is not decided yet."""
        memory = self.memory(position)
        return memory is not None and self.streams.works_in(stream, memory)

    def put(self, position: int, stream: int, reason: Reason, subject: int = -1) -> None:
        self.at[position] = stream
        self.reasons[position] = reason
        self.subjects[position] = subject

    def written(self, position: int) -> list[int]:
        """Positions of the roots that a node writes into."""
        op = self.tensors[position].op
        if op is None or not op.writes:
            return []
        sources = self.graph.sources[position]
        return [self.graph.roots[sources[i]] for i in op.writes if sources[i] >= 0]

    def _homes(self, root: int, writers: list[int]) -> set[int]:
        """Streams in whose memory a root may lie: for each of its writers there is a stream that can access it."""
        homes = set()
        for stream, memory in enumerate(self.streams.buffer_types):
            if self.tensors[root].op is not None and not self.supports(stream, root):
                continue
            if all(
                any(
                    self.supports(other, writer) and self.streams.works_in(other, memory)
                    for other in range(len(self.streams))
                    if self.pins.get(writer, other) == other
                )
                for writer in writers
            ):
                homes.add(stream)
        if not homes:
            raise PlacementError(
                f"there is no memory in which devices can compute {self.tensors[root]!r} and then write into it by "
                f"{self.tensors[writers[0]]!r}: {self._why(writers[0])}",
                tensor=self.tensors[root],
                op=self.tensors[writers[0]].op,
            )
        return homes

    # -- pass 1 ------------------------------------------------------------------------------------

    def place_by_reason(self, wanted: Mapping[int, int]) -> None:
        for position, stream in self.pins.items():
            self._pin(position, stream)
        for leaf in self.graph.leafs:
            position = self.graph.index[leaf]
            if self.at[position] < 0 and leaf.view_src is None:
                if leaf.buffer_type is not None:
                    self.put(position, self._first_in(leaf.buffer_type), Reason.PLACED)
                elif leaf.flags & _INPUT:
                    homes = self.homes.get(position)
                    self.put(position, self.last if homes is None else max(homes), Reason.INPUT)
        asks = self.policy is not None or "ggplug_placement" in HOOKS.callers
        for position in self.nodes:
            if self.at[position] >= 0 or (asks and self._ask(position)):
                continue
            if position in wanted:
                self.put(position, wanted[position], Reason.FASTEST)
            else:
                self._by_bytes(position)

    def _pin(self, position: int, stream: int) -> None:
        tensor, name = self.tensors[position], self.streams[stream].name
        if tensor.is_view and position not in self.kinds:
            raise PlacementError(
                f"{tensor!r} is a view and cannot be pinned: pin its root {tensor.root!r}, or the node that reads it",
                tensor=tensor,
            )
        if tensor.op is not None and not self.supports(stream, position):
            reason = self.streams.reason(stream, tensor)
            raise PlacementError(
                f"{tensor!r} is pinned to {name}, which cannot compute it: {reason}",
                tensor=tensor,
                op=tensor.op,
                device=self.streams[stream].device,
                reason=reason,
            )
        homes = self.homes.get(position)
        if homes is not None and stream not in homes:
            raise PlacementError(
                f"{tensor!r} is pinned to {name}, but the nodes that write into it cannot run there", tensor=tensor
            )
        placed = tensor.buffer_type
        if placed is not None and not self.streams.works_in(stream, placed):
            raise PlacementError(
                f"{tensor!r} is pinned to {name}, but already has a place in {placed.name}", tensor=tensor
            )
        if self.written(position) and not all(self._may_write(stream, root) for root in self.written(position)):
            raise PlacementError(
                f"{tensor!r} is pinned to {name}, which cannot access the bytes that the node writes: "
                f"{self._places(position)}",
                tensor=tensor,
                op=tensor.op,
                device=self.streams[stream].device,
            )
        self.put(position, stream, Reason.PINNED)

    def _may_write(self, stream: int, root: int) -> bool:
        placed = self.memory(root)
        if placed is not None:
            return self.streams.works_in(stream, placed)
        return any(self.streams.works_in(stream, self.streams.buffer_types[home]) for home in self.homes[root])

    def _ask(self, position: int) -> bool:
        """Assigns a node as the policies decide."""
        able = [s for s in range(len(self.streams)) if self._allowed(s, position)]
        node = self.tensors[position]
        if self.policy is not None:
            backends = [self.streams[s] for s in able]
            wanted = self.policy(node, backends)
            if wanted is not None:
                if wanted not in backends:
                    raise PlacementError(
                        f"the policy chose {wanted!r} for {node!r}; it must choose one of "
                        f"{', '.join(b.name for b in backends)}",
                        tensor=node,
                        got=wanted,
                    )
                self._settle(position, self.streams.index(wanted))
                return True
        answer = HOOKS.place(self.graph, node, [self.streams[s].device for s in able])
        if answer is None:
            return False
        self._settle(position, next(s for s in able if self.streams[s].device is answer[0]))
        return True

    def _settle(self, position: int, stream: int) -> None:
        """Assigns a node to the stream that a policy chose, and what it writes into to memory of that stream."""
        self.put(position, stream, Reason.POLICY)
        for root in self.written(position):
            if root in self.homes:
                memories = self.streams.buffer_types
                self.homes[root] = {h for h in self.homes[root] if self.streams.works_in(stream, memories[h])}

    def _allowed(self, stream: int, position: int) -> bool:
        if not self.can(stream, position):
            return False
        placed = self.tensors[position].buffer_type
        if placed is not None and not self.streams.works_in(stream, placed):
            return False
        return all(self._may_write(stream, root) for root in self.written(position))

    def _by_bytes(self, position: int) -> None:
        """Assigns a node to the memory of its result, of the bytes that it writes, or of its weights."""
        tensor = self.tensors[position]
        assert tensor.op is not None
        if tensor.op.writes:
            roots = self.written(position)
            if any(self.tensors[root].buffer_type is None for root in roots):
                self.writers.add(position)
                return
            self._to_written(position, roots)
        elif tensor.buffer_type is not None:
            for stream in self.streams.working_in(tensor.buffer_type):
                if self.can(stream, position):
                    self.put(position, stream, Reason.PLACED)
                    return
            raise PlacementError(
                f"{tensor!r} has a place in {tensor.buffer_type.name}, and no device can compute it there: "
                f"{self._why(position, tensor.buffer_type)}",
                tensor=tensor,
                op=tensor.op,
            )
        else:
            self._to_weights(position)

    def _to_weights(self, position: int) -> None:
        tensor = self.tensors[position]
        assert tensor.op is not None
        for which in _decisive(tensor.op):
            source = tensor.src[which]
            if source is None:
                continue
            buffer = source.buffer if source.view_src is None else source.view_src.buffer
            if buffer is None or buffer.usage is not BufferUsage.WEIGHTS:
                continue
            subject = self.graph.sources[position][which]
            home = next((s for s in self.streams.working_in(buffer.type) if self.can(s, position)), -1)
            if home == self.last and self.offload and buffer.type.is_host:
                for stream in range(home):
                    if self.can(stream, position) and self.streams[stream].device.offload_op(tensor):
                        self.put(position, stream, Reason.OFFLOADED, subject)
                        return
            if home >= 0:
                self.put(position, home, Reason.WEIGHT, subject)
                return

    def _first_in(self, memory: BufferType) -> int:
        return next(iter(self.streams.working_in(memory)), -1)

    # -- pass 2 ------------------------------------------------------------------------------------

    def grow(self) -> None:
        backwards = self.nodes[::-1]
        for skipped in (self.last, -1):
            for direction in (self.nodes, backwards):
                self._grow(direction, skipped)

    def _grow(self, nodes: Sequence[int], skipped: int) -> None:
        """Assigns nodes to the stream of the node before; the stream ``skipped`` is not passed on and ends others."""
        current, neighbour = -1, -1
        for position in nodes:
            stream = self.at[position]
            if stream >= 0:
                current, neighbour = (-1, -1) if stream == skipped else (stream, position)
            elif current >= 0 and self.can(current, position) and position not in self.writers:
                self.put(position, current, Reason.FOLLOWS, neighbour)

    # -- pass 3 ------------------------------------------------------------------------------------

    def upgrade(self) -> None:
        users: dict[int, list[int]] | None = None
        for position in self.nodes:
            current = self.at[position]
            if position in self.writers:
                continue
            if current < 0:
                best = self._nearest(position)
                if best >= 0:
                    self.put(position, best, Reason.SOURCES)
            elif current and self.reasons[position] in (Reason.WEIGHT, Reason.FOLLOWS):
                for stream in self._reaching(position):
                    if stream >= current:
                        break
                    if not self.can(stream, position):
                        continue
                    users = users if users is not None else self._users()
                    memory = self.streams.buffer_types[stream]
                    if memory is self.streams.buffer_types[current] or all(
                        self.at[user] < 0 or self.streams.works_in(self.at[user], memory)
                        for user in users.get(position, ())
                    ):
                        self.put(position, stream, Reason.UPGRADED)
                        break

    def _nearest(self, position: int) -> int:
        """The stream that can compute a node and access most of its sources, the first of several; -1: none can."""
        counts: Counter[int] = Counter()
        for source in self.graph.sources[position]:
            memory = self.memory(source) if source >= 0 else None
            if memory is not None:
                counts.update(self.streams.working_in(memory))
        near = sorted(counts, key=lambda stream: (-counts[stream], stream))
        return next((stream for stream in (*near, *range(len(self.streams))) if self.can(stream, position)), -1)

    def _reaching(self, position: int) -> Sequence[int]:
        """The streams that can access all sources of a node, in order; none if the place of one is not decided yet."""
        found: Sequence[int] = range(len(self.streams))
        for source in self.graph.sources[position]:
            if source >= 0:
                memory = self.memory(source)
                near = () if memory is None else self.streams.working_in(memory)
                found = near if len(found) == len(self.streams) else [stream for stream in found if stream in near]
        return found

    def _users(self) -> dict[int, list[int]]:
        users: dict[int, list[int]] = {}
        for position in self.nodes:
            for source in self.graph.sources[position]:
                if source >= 0:
                    users.setdefault(self.graph.roots[source], []).append(position)
        return users

    # -- pass 4 ------------------------------------------------------------------------------------

    def place_the_rest(self) -> None:
        roots = self.graph.roots
        for position in self.nodes:
            if position in self.writers:
                self._place_writer(position)
            elif self.at[position] < 0:
                self._to_first(position)
            elif self.tensors[position].op.writes and not self._reaches_written(position):  # type: ignore[union-attr]
                raise PlacementError(
                    f"{self.tensors[position]!r} is assigned to {self.streams[self.at[position]].name}, which "
                    f"cannot access the bytes that the node writes: {self._places(position)}",
                    tensor=self.tensors[position],
                    op=self.tensors[position].op,
                )
            for source in self.graph.sources[position]:
                if source >= 0 and self.at[roots[source]] < 0 and self.tensors[roots[source]].buffer_type is None:
                    # Nodes come before their users, so this is a leaf.
                    self._place_leaf(roots[source], self.at[position], position)
        for position, root in enumerate(roots):
            if self.at[root] < 0 and self.tensors[root].buffer_type is None:
                self._place_leaf(root, self.last, -1)
            if root != position and position not in self.kinds:
                placed = self.tensors[root].buffer_type
                stream = self.at[root] if placed is None else self._first_in(placed)
                self.put(position, stream, Reason.VIEW, root)

    def _reaches_written(self, position: int) -> bool:
        """Whether the stream of a pinned node, or of a policy's choice, can access the bytes that the node writes."""
        stream = self.at[position]
        for root in self.written(position):
            if self.memory(root) is None:
                memories = self.streams.buffer_types
                near = (home for home in sorted(self.homes[root]) if self.streams.works_in(stream, memories[home]))
                self._place_leaf(root, stream if stream in self.homes[root] else next(near, self.last), position)
            if not self.reaches(stream, root):
                return False
        return True

    def _place_leaf(self, root: int, stream: int, reader: int) -> None:
        homes = self.homes.get(root)
        if homes is not None and stream not in homes:
            stream = min(homes)
        if reader < 0:
            self.put(root, stream, Reason.INPUT)
        else:
            self.put(root, stream, Reason.READ, reader)

    def _place_writer(self, position: int) -> None:
        """Assigns a node that writes into intermediates to a stream that can access their memory."""
        targets = self.written(position)
        for root in targets:
            if self.at[root] < 0 and self.tensors[root].buffer_type is None:
                self._place_leaf(root, min(self.homes[root]), position)
        self._to_written(position, targets)

    def _to_written(self, position: int, roots: list[int]) -> None:
        home = self.at[roots[0]]
        order = sorted(range(len(self.streams)), key=lambda stream: stream != home)
        for stream in order if self.tensors[roots[0]].buffer_type is None else range(len(self.streams)):
            if self.supports(stream, position) and all(self.reaches(stream, root) for root in roots):
                self.put(position, stream, Reason.WRITES, roots[0])
                return
        tensor = self.tensors[position]
        memories = [memory for memory in map(self.memory, roots) if memory is not None]
        raise PlacementError(
            f"{tensor!r} writes into {self._places(position)}, and no device can do that there (the scheduler does not "
            f"write into copies): {self._why(position, *memories)}",
            tensor=tensor,
            op=tensor.op,
            reasons=self._reasons(position, *memories),
        )

    def _to_first(self, position: int) -> None:
        for stream in range(len(self.streams)):
            if self.can(stream, position):
                self.put(position, stream, Reason.FIRST)
                return
        tensor = self.tensors[position]
        raise PlacementError(
            f"no device can compute {tensor!r}: {self._why(position)}",
            tensor=tensor,
            op=tensor.op,
            reasons=self._reasons(position),
        )

    # -- error messages -------------------------------------------------------------------------------

    def _reasons(self, position: int, *memories: BufferType) -> dict[str, str]:
        """For each stream, why it cannot compute a node, or not in these memories."""
        reasons = {}
        for stream, backend in enumerate(self.streams):
            reason = self.streams.reason(stream, self.tensors[position])
            if not reason:
                out = [memory.name for memory in memories if not self.streams.works_in(stream, memory)]
                if out:
                    reason = f"cannot access {', '.join(out)} memory"
                elif position in self.homes and stream not in self.homes[position]:
                    reason = "the nodes that write into its result cannot run there"
                else:
                    reason = "the nodes that write into its result cannot access its memory"
            reasons[backend.name] = reason
        return reasons

    def _why(self, position: int, *memories: BufferType) -> str:
        return "; ".join(f"{name}: {reason}" for name, reason in self._reasons(position, *memories).items())

    def _places(self, position: int) -> str:
        places = []
        for root in self.written(position):
            memory = self.memory(root)
            name = self.tensors[root].name or repr(self.tensors[root])
            places.append(f"{name} in {memory.name if memory is not None else 'memory not chosen yet'}")
        return ", ".join(places)


def _decisive(op: Operation) -> tuple[int, ...]:
    """The sources whose memory decides where an op runs; optional ones (masks, frequency factors) are too small."""
    found = _DECISIVE.get(type(op))
    if found is None:
        found = _DECISIVE[type(op)] = tuple(i for i, name in enumerate(op.sources) if name not in op.optional)
    return found


_DECISIVE: dict[type[Operation], tuple[int, ...]] = {}
