"""Holds a stream, and provokes a failure: the clauses about pending work need both.

A device's registration may give two hooks, ``Registration.get("stall")`` and ``Registration.get("failing_node")``;
streams of :mod:`ggplug.discrete` need the first of them not, and devices with ops on ids need the second one not.
Where nothing holds a stream, a load in front of the work does (:mod:`ggplug_testing.contracts.loading`), and what
was not behind it after all counts for nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

from ggplug.backend import Backend, Decline, Device, Group
from ggplug.discrete import QueuedBackend
from ggplug.ops.base import Array
from ggplug.sharing import waits
from ggplug.tensor import Tensor
from ggplug_testing.contracts.clause import ContractError, NotApplicable, NotProven, expect
from ggplug_testing.contracts.ids import ids, ids_of, nodes_with_ids, values_of
from ggplug_testing.contracts.loading import TIMES, Load

LONGEST = 120.0
"""Seconds after which a call counts as hung, once its stream was released."""


def hook(device: Device, name: str) -> Any:
    """What ``get(name)`` of the device's registration returns; None without a registration."""
    return None if device.registration is None else device.registration.get(name)


def require_pending(device: Device) -> None:
    """Raises NotApplicable if work is never pending: calls return when it is done."""
    if not device.capabilities.asynchronous:
        raise NotApplicable(f"{device.name} is synchronous: nothing is ever pending")


MOMENT = 0.05
"""Seconds: the least that calls are waited for which have nothing to wait for."""

SURELY = 5.0
"""Seconds in which a call that has nothing to wait for returns, however busy the machine is."""


@contextmanager
def held(stream: Backend, moment: float = MOMENT) -> Iterator[Callable[[Callable[[], object]], Aside]]:
    """A stream that does none of its work until the block ends; yields what makes calls in other threads meanwhile.

    ``moment``: seconds that the block takes at most, without calls that wait for the stream.  Raises NotApplicable for
    synchronous devices, NotProven if there is no way to hold the stream; if a load holds it, also if the load ended
    before the block did, whatever the block found.
    """
    require_pending(stream.device)
    release = by_hook(stream) or by_gate(stream)
    load = Load(stream, TIMES * moment) if release is None else None
    asides: list[Aside] = []

    def aside(call: Callable[[], object]) -> Aside:
        asides.append(Aside(call))
        return asides[-1]

    try:
        try:
            yield aside
        except ContractError:
            if load is not None:
                load.require_pending()
            raise
        else:
            if load is not None:
                load.require_pending()
        finally:
            if load is not None:
                load.free()
            elif release is not None:
                release()
    except BaseException:
        for each in asides:  # they use what is freed next
            each.returned(_AT_THE_END)
        raise


@contextmanager
def stopped(stream: Backend) -> Iterator[bool]:
    """A stream of a device that says it is synchronous, which does nothing until the block ends; whether it is so.

    A stream that does its work at once cannot be held.
    """
    release, gate, holding = by_hook(stream), threading.Event(), None
    if release is None and isinstance(stream, QueuedBackend):
        holding = Aside(lambda: by_gate(stream, gate))  # it may do the work before the call returns
    try:
        yield release is not None or (holding is not None and holding.returned(MOMENT))
    finally:
        (release or gate.set)()
        if holding is not None:
            holding.join("giving work to a stream")


def by_hook(stream: Backend) -> Callable[[], None] | None:
    """Holds a stream by the hook "stall" of the registration; returns the function that releases it, or None."""
    stall = hook(stream.device, "stall")
    return None if stall is None else stall(stream)


def by_gate(stream: Backend, gate: threading.Event | None = None) -> Callable[[], None] | None:
    """Holds a stream of :mod:`ggplug.discrete` by a job that waits until the gate is open."""
    if not isinstance(stream, QueuedBackend):
        return None
    opened = gate or threading.Event()

    def wait() -> None:
        opened.wait(LONGEST)

    stream.give(wait)
    return opened.set


@contextmanager
def before_kernels(device: Device, call: Callable[[], object]) -> Iterator[None]:
    """Plans of core that are made in the block make ``call()`` before each kernel, on the thread that calls this one.

    Only kernels that are functions of Python have something before them.
    """
    chosen = device.chosen

    def choose(group: Group) -> Any:
        found = chosen(group)
        if isinstance(found, Decline):
            return found

        @wraps(found)
        def kernel(*arguments: Any) -> None:
            call()
            found(*arguments)

        return kernel

    vars(device)["chosen"] = choose
    try:
        yield
    finally:
        del vars(device)["chosen"]


_AT_THE_END = 10.0
"""Seconds to wait for calls on other threads if the block has ended by an error."""


class Aside:
    """A call on a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error

    @property
    def thread(self) -> int:
        """The thread's number."""
        return self._thread.ident or 0

    def returned(self, patience: float) -> bool:
        """Whether the call has returned within so many seconds."""
        self._thread.join(patience)
        return not self._thread.is_alive()

    def settled(self, patience: float) -> bool | None:
        """Whether the call has returned, or waits for a claim; None if it does neither within so many seconds."""
        end = time.monotonic() + patience
        while not self.returned(0.0002):
            if waits(self.thread):
                return self.returned(0)
            if time.monotonic() > end:
                return self.returned(0) or None
        return True

    def join(self, what: str) -> None:
        """Waits for it; raises what it raised, and ContractError if it hangs."""
        expect(self.returned(LONGEST), f"{what} does not return, though nothing is held any longer")
        if self._error is not None:
            raise self._error


def failing_node(device: Device) -> tuple[Tensor, Mapping[Tensor, Array]]:
    """A node whose computation fails on the device, and values for its leafs.

    ``get("failing_node")()`` of the registration, or one with an id out of range.  Raises NotProven.
    """
    given = hook(device, "failing_node")
    if given is not None:
        made: tuple[Tensor, Mapping[Tensor, Array]] = given()
        return made
    node = next(nodes_with_ids(device), None)
    if node is None:
        raise NotProven(f"{device.name} has no hook 'failing_node', and supports no op with ids")
    return node.set_output(), {**values_of(node), ids_of(node): ids(node, wrong=True)}
