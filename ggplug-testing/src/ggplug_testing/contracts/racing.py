"""Every op that a device claims, between two stores into its sources: each has to come in its turn."""

from __future__ import annotations

import time
from contextlib import ExitStack

import numpy as np

from ggplug.backend import Backend, Device
from ggplug.errors import GGPlugError
from ggplug.graph import Graph
from ggplug.ops.base import OPS, Op
from ggplug.tensor import Tensor
from ggplug.values.arrays import strided
from ggplug_testing.cases import Case, Leafs, cases_of
from ggplug_testing.comparison import Comparison, compare
from ggplug_testing.contracts.clause import NotOffered, clause, expect
from ggplug_testing.contracts.holding import MOMENT, held, require_pending
from ggplug_testing.oracle import decoded
from ggplug_testing.placement import UNWRITTEN, Bytes, Placement

_TRIED = 4
"""Of an op that many cases: the first one that serves is taken."""


class Race:
    """A computation of one op that a stream is given between a store of its sources and a store of zeros into them.

    Before the first, the sources are zeros as well.  ``right``: the bytes of the result if that is computed in its
    turn; ``wrong``: if it is computed too early or too late.
    """

    def __init__(self, stream: Backend, case: Case) -> None:
        self.case = case
        leafs = Leafs(case.seed)
        made = case.make(leafs)
        graph = Graph(*([made] if isinstance(made, Tensor) else made))
        self._result = graph.outputs[-1]
        self.values = {leaf: raw for leaf, raw in leafs.values.items() if leaf in graph and raw.size}
        self.zeros = {leaf: np.zeros_like(raw) for leaf, raw in self.values.items()}
        self._stream = stream
        self._placement = Placement(graph, stream.device.buffer_type)
        self.out = np.empty(self._result.nbytes, np.uint8)
        try:
            self._plan = stream.plan(graph)
            self._plan.rebind(graph, self._placement.allocation)
            self.wrong, self.right = (self.computed_from(values) for values in (self.zeros, self.values))
        except Exception:
            self._placement.free()
            raise
        self.write(self.zeros)
        if self._result.root.op is not None:
            self._placement.write(self._result.root, np.full(self._result.root.nbytes, UNWRITTEN, np.uint8))

    def computed_from(self, values: dict[Tensor, Bytes]) -> Bytes:
        """The bytes of the result, computed now from these sources."""
        self.write(values)
        self.compute()
        return self.out.copy()

    def write(self, values: dict[Tensor, Bytes]) -> None:
        """Stores sources now."""
        for leaf, raw in values.items():
            self._placement.write(leaf, raw)

    def compute(self) -> None:
        """Computes from the sources as they are, and fetches the result, now."""
        self._give_computation()
        self._stream.synchronize()

    def give(self) -> None:
        """Gives the stream a store of the sources, the computation, a fetch of its result, and a store of zeros."""
        self._store(self.values)
        self._give_computation()
        self._store(self.zeros)

    def _give_computation(self) -> None:
        self._plan.compute()
        number, offset = self._placement.region(self._result)
        self._stream.get_async(self._placement.buffers[number], offset, self.out)

    def _store(self, values: dict[Tensor, Bytes]) -> None:
        for leaf, raw in values.items():
            number, offset = self._placement.region(leaf)
            self._stream.set_async(self._placement.buffers[number], offset, raw)

    @property
    def tells(self) -> bool:
        """Whether a result tells when it was computed."""
        return not self.agree(self.wrong, self.right)

    def found(self) -> Comparison:
        """Whether the result that was fetched is the one that is computed in its turn."""
        return self.agree(self.out, self.right)

    def agree(self, one: Bytes, other: Bytes) -> Comparison:
        """Whether two results are the same."""
        values = [decoded(strided(raw, self._result), self._result) for raw in (one, other)]
        return compare(values[0], values[1], 1e-6)

    def free(self) -> None:
        """Gives the memory back."""
        self._plan.free()
        self._placement.free()


def race_of(stream: Backend, op: type[Op]) -> Race | None:
    """A race of an op, or None if the device declines it or fails in it, which the cases of the op tell."""
    tried = 0
    for case in cases_of(op):
        if tried == _TRIED:
            break
        try:
            made = case.make(Leafs(case.seed))
        except GGPlugError:
            continue
        graph = Graph(*([made] if isinstance(made, Tensor) else made))
        if not graph.nodes or not graph.outputs[-1].nbytes or not all(map(stream.device.supports_op, graph.nodes)):
            continue
        tried += 1
        try:
            race = Race(stream, case)
        except Exception:
            continue
        if race.tells:
            return race
        race.free()
    return None


@clause
def every_op_of_a_held_stream_keeps_its_order(device: Device) -> None:
    """A stream computes any op after what it was given before, and before what it is given afterwards."""
    require_pending(device)
    with ExitStack() as ending:
        stream = ending.enter_context(device.init())
        races = []
        for op in OPS.values():
            race = None if op.is_view else race_of(stream, op)
            if race is not None:
                ending.callback(race.free)
                races.append(race)
        if not races:
            raise NotOffered(f"{device.name} computes no op that could tell when it was computed")
        start = time.perf_counter()
        for race in races:
            race.give()
        giving = time.perf_counter() - start
        stream.synchronize()
        with held(stream, max(giving, MOMENT)):
            for race in races:
                race.give()
        stream.synchronize()
        found = {race.case: race.found() for race in races}
        wrong = [case for case, each in found.items() if not each]
        names = ", ".join(case.op for case in wrong[:5]) + (f" and {len(wrong) - 5} others" if len(wrong) > 5 else "")
        expect(not wrong, f"{names} not computed in its turn: {found[wrong[0]].reason if wrong else ''}")
