"""The streams, buffers, plans and samples that a clause uses; they are freed when the clause ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps

import numpy as np

from ggplug.backend import UNGROUPED, Backend, Buffer, BufferType, Device, Event, Groups, Plan
from ggplug.graph import Graph
from ggplug.host import HOST
from ggplug_testing.contracts.clause import CLAUSES, Clause, expect, pattern
from ggplug_testing.contracts.holding import MOMENT, held
from ggplug_testing.contracts.sample import BinaryOp, Placed, Sample
from ggplug_testing.running.placement import Placement

SIZE = 4096
"""The default size of a buffer in bytes."""
OLD, NEW, OTHER = 1, 2, 3
"""Seeds of the bytes before and after, and of those in another buffer."""


class Given(ExitStack):
    """A device, and what a clause creates on it; the end of the block frees all of it, the newest first."""

    use = ExitStack.enter_context

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    @property
    def kind(self) -> BufferType:
        """The device's memory."""
        return self.device.buffer_type

    def stream(self) -> Backend:
        return self.use(self.device.init())

    def streams(self, count: int) -> list[Backend]:
        return [self.stream() for _ in range(count)]

    def buffer(self, seed: int | None = None, size: int = SIZE) -> Buffer:
        """A buffer in the device's memory; ``seed``: of the bytes that it holds."""
        return self._set(self.use(self.kind.alloc(size)), seed)

    def host(self, seed: int | None = None, size: int = SIZE) -> Buffer:
        """A buffer in host memory; ``seed``: of the bytes that it holds."""
        return self._set(self.use(HOST.alloc(size)), seed)

    def _set(self, buffer: Buffer, seed: int | None) -> Buffer:
        if seed is not None:
            buffer.set(0, pattern(buffer.size, seed))
        return buffer

    def event(self) -> Event:
        event = self.device.event()
        self.callback(event.free)
        return event

    def placement(self, graph: Graph, groups: Groups = UNGROUPED) -> Placement:
        return self.use(Placement(graph, self.kind, groups=groups))

    def sample(self, length: int = 1, *, step: BinaryOp | None = None, seed: int = 1, shift: int = 0) -> Placed:
        """A small computation in the device's memory, from the inputs of ``seed``."""
        return self.use(Placed(Sample(self.device, length, step), self.device, seed, shift))

    def plan(self, stream: Backend, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        plan = stream.plan(graph, groups)
        self.callback(plan.free)
        return plan

    def bound(self, stream: Backend, placed: Placement) -> Plan:
        """A plan of a graph, bound to the places of the graph's tensors."""
        plan = self.plan(stream, placed.graph)
        plan.rebind(placed.graph, placed.allocation)
        return plan

    def moment(self, stream: Backend) -> float:
        """Seconds in which a call that waits for nothing returns: at least many times what some transfers take."""
        with Given(self.device) as given:
            one, other, out = given.buffer(1), given.buffer(2), np.empty(SIZE, np.uint8)

            def transfers() -> None:
                stream.copy_async(one, 0, other, 0, SIZE)
                stream.get_async(other, 0, out)
                stream.synchronize()
                other.get(0, out)

            transfers()
            start = time.perf_counter()
            transfers()
            return min(max(MOMENT, 20 * (time.perf_counter() - start)), 2.0)

    def behind(
        self, stream: Backend, give: Callable[[], object], call: Callable[[], object], what: str, early: str = ""
    ) -> None:
        """Submits work by ``give`` while the stream is held, makes ``call`` on another thread, and waits for its end.

        ``early``: the fault if the call returns while the stream is held; empty if it may return.
        """
        moment = self.moment(stream)
        with held(stream, moment) as aside:
            give()
            waiting = aside(call)
            expect(not waiting.returned(moment) or not early, early)
        waiting.join(what)


def clause(check: Callable[[Given], None]) -> Callable[[Device], None]:
    """Adds a function to the contract as a clause; the clause is named after the function."""

    @wraps(check)
    def on(device: Device) -> None:
        with Given(device) as given:
            check(given)

    CLAUSES.append(Clause(check.__name__.replace("_", " "), on))
    return on
