"""The contract of time limits: kernels and streams are held for longer than a limit, so that no clock is raced."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from ggplug.backend import Backend, WalkPlan
from ggplug.discrete import QueuedBackend, QueuedPlan
from ggplug.errors import TimeLimitError
from ggplug_testing.contracts.clause import NotApplicable, NotYetProven, expect, expect_bytes, pattern
from ggplug_testing.contracts.given import SIZE, Given, clause
from ggplug_testing.contracts.holding import LONGEST, MOMENT, SURELY, Aside, before_kernels, held, require_pending

_AT_ONCE = 1e-9
"""A time limit, in seconds, that every computation exceeds."""


class _Observed:
    """A computation of three nodes by a plan that calls kernels of Python.

    ``second()`` is called before its second kernel; ``called``: how many kernels were.  Raises NotApplicable if the
    plans of the device call none.
    """

    def __init__(self, given: Given) -> None:
        self.stream, self.placed = given.stream(), given.sample(3)
        self.second: Callable[[], object] = _nothing
        self.called = 0
        self.plan = given.plan(self.stream, self.placed.graph)
        if isinstance(self.plan, QueuedPlan | WalkPlan):
            with before_kernels(given.device, self._before):
                self.plan = given.bound(self.stream, self.placed)
            self.expect_complete("computed without a time limit")
        if not self.called:
            raise NotApplicable(f"the plans of {given.device.name} are neither WalkPlan nor QueuedPlan")

    def _before(self) -> None:
        self.called += 1
        if self.called == 2:
            self.second()

    def compute(self) -> None:
        """Submits the computation."""
        self.called = 0
        self.placed.clear_result()
        self.plan.compute()

    def expect_complete(self, what: str) -> None:
        """Computes without a limit.  Raises ContractError unless the result is right."""
        self.second = _nothing
        self.stream.set_time_limit(None)
        self.compute()
        self.stream.synchronize()
        self.placed.check(what)

    def expect_aborted(self, errors: list[TimeLimitError]) -> None:
        """Raises ContractError unless errors name the second kernel, and the third was not called."""
        node, kernel = self.placed.graph.nodes[1], self.plan.kernel_names()[1]
        expect(errors, "the time of a computation was over after its second kernel, and nothing was raised")
        for error in errors:
            about = error.device, error.tensor, error.kernel
            expect(about == (self.stream.device, node, kernel), f"an error is about {about}, want {node} by {kernel!r}")
        expect(self.called == 2, "a kernel was called after the time of its computation was over")


def _nothing() -> None:
    """What comes before a kernel that is not held."""


def _raised(*calls: Callable[[], object]) -> list[TimeLimitError]:
    """The errors of calls that found a time limit exceeded."""
    found = []
    for call in calls:
        try:
            call()
        except TimeLimitError as error:
            found.append(error)
    return found


def _finish(stream: Backend) -> None:
    """Waits for the work of a stream, for as long as it takes."""
    stream.set_time_limit(None)
    stream.synchronize()


@clause
def a_computation_within_its_time_limit_is_complete(given: Given) -> None:
    """As long as the time limit of its stream (``set_time_limit``) is not over, a computation is what it is without
    one, and so is waiting for it (``synchronize``)."""
    placed, stream = given.sample(3), given.stream()
    plan = given.bound(stream, placed)
    stream.set_time_limit(LONGEST)
    for compute in (plan.compute, plan.compute_traced):
        placed.clear_result()
        compute()
        stream.synchronize()
        placed.check("computed within its time limit")
    if given.device.capabilities.asynchronous:
        placed.clear_result()
        early = "a stream that is held was synchronized before its time limit was over"
        given.behind(stream, plan.compute, stream.synchronize, "synchronizing within a time limit", early)
        placed.check("computed within its time limit by a stream that was held")


@clause
def a_computation_beyond_its_time_limit_is_complete_or_raises(given: Given) -> None:
    """A computation that takes longer than the time limit of its stream (``set_time_limit``) raises TimeLimitError,
    which names node and kernel, or is complete; what was submitted behind it is done."""
    stream, placed, buffer = given.stream(), given.sample(3), given.buffer()
    plan = given.bound(stream, placed)
    for seed, compute in enumerate((plan.compute, plan.compute_traced)):
        placed.clear_result()
        stream.set_time_limit(_AT_ONCE)
        store = partial(stream.set_async, buffer, 0, pattern(SIZE, seed))
        errors = _raised(compute, store, stream.synchronize, partial(_finish, stream))
        expect_bytes(buffer, seed, "stored behind a computation whose time was over")
        for error in errors:
            expect(error.wanted == _AT_ONCE, f"an error says that the time limit is {error.wanted}: {error}")
            expect(error.tensor in placed.graph.nodes, f"an error names no node of the graph: {error}")
            expect(error.kernel, f"an error names no kernel: {error}")
        if not errors:
            placed.check("computed although its time was over")
        placed.clear_result()
        compute()
        stream.synchronize()
        placed.check("computed after a computation whose time was over")


@clause
def the_time_of_a_computation_begins_when_the_device_begins_it(given: Given) -> None:
    """What a stream does before a computation is not counted by its time limit (``set_time_limit``)."""
    require_pending(given.device)
    stream, placed = given.stream(), given.sample()
    plan, moment = given.bound(stream, placed), given.moment(stream)
    stream.set_time_limit(moment)
    with held(stream, 2 * moment) as aside:
        plan.compute()
        waiting = aside(stream.synchronize)
        waiting.returned(2 * moment)
    errors = _raised(lambda: waiting.join("synchronizing"), partial(_finish, stream))
    if not errors:
        placed.check("computed within its time limit by a stream that was held for longer")
        return
    stream.set_time_limit(moment)
    if _raised(plan.compute, stream.synchronize, partial(_finish, stream)):
        raise NotYetProven(f"{given.device.name} takes longer than {moment} seconds for a small computation")
    expect(False, f"a computation that waited for its stream was too late: {errors[0]}")


@clause
def a_computation_is_aborted_between_two_kernels_when_its_time_is_over(given: Given) -> None:
    """A plan that calls kernels of Python looks at the clock after each of them.  When the time limit of the stream
    (``set_time_limit``) is over, it raises TimeLimitError, which names device, node and kernel, and calls no more."""
    observed = _Observed(given)
    stream = observed.stream

    def long() -> None:
        start = time.monotonic()
        while time.monotonic() - start <= MOMENT:
            time.sleep(MOMENT / 4)

    observed.second = long
    stream.set_time_limit(MOMENT)
    # Waiting for a queue may end before the kernel does.
    observed.expect_aborted(_raised(observed.compute, stream.synchronize, partial(_finish, stream)))
    observed.expect_complete("computed after a computation that was aborted")


@clause
def waiting_for_a_kernel_that_does_not_return_ends_when_its_time_is_over(given: Given) -> None:
    """Waiting for a queue (``synchronize``) raises TimeLimitError when the time limit of the stream
    (``set_time_limit``) is over, though the kernel goes on; when this has returned, its computation is aborted."""
    observed = _Observed(given)
    stream, go_on = observed.stream, threading.Event()

    def compute() -> None:
        observed.compute()
        stream.synchronize()

    def held_by_its_kernel(limit: float, patience: float) -> tuple[Aside, bool]:
        """What computes while the second kernel is held, and whether it has returned meanwhile."""
        callers: list[int] = []

        def hold() -> None:
            callers.append(threading.get_ident())
            go_on.wait(LONGEST)

        go_on.clear()
        observed.second = hold
        stream.set_time_limit(limit)
        waiting = Aside(compute)
        returned = waiting.returned(patience)
        go_on.set()
        if waiting.thread in callers:
            waiting.returned(LONGEST)
            raise NotApplicable(why)
        return waiting, returned

    why = f"{given.device.name} computes on the thread that waits"
    if not isinstance(stream, QueuedBackend) or type(stream).advance is not QueuedBackend.advance:
        raise NotApplicable(why)
    waiting, returned = held_by_its_kernel(LONGEST, MOMENT)
    waiting.join("computing")
    expect(not returned, "waiting ended before the kernel had returned, and before its time was over")
    observed.placed.check("computed within its time limit")
    waiting, returned = held_by_its_kernel(MOMENT, SURELY)
    errors = _raised(lambda: waiting.join("computing"))
    late = _raised(partial(_finish, stream))
    expect(returned, "waiting for a kernel that does not return did not end when its time was over")
    observed.expect_aborted(errors)
    observed.expect_aborted(late)
    observed.expect_complete("computed after a computation whose kernel was waited for in vain")
