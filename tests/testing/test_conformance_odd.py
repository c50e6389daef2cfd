"""Devices that keep the contract in unusual ways pass the clauses that their ways concern."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from ggplug.backend import Capabilities, Described, Event
from ggplug.errors import ComputeError
from ggplug_testing.contracts import CLAUSES, run_clause
from ggplug_testing.fake import FakeDevice
from ggplug_testing.fake.memory import FakeBufferType

PADDED = (
    "operands behind many bytes are read where they lie",
    "places are inside of their buffer",
    "tensors keep their values",
    "views of tensors are set in place",
    "persistent tensors are read where they are",
    "a tensor without place is an error",
    "more elements than float32 counts are computed",
    "streams work on different threads",
    "a plan takes the place of each leaf",
)
CRAMPED = (
    "support depends on the node alone",
    "memory that is freed is free again",
    "transfers of a synchronous device are done when they return",
    "computations of a synchronous device are done when they return",
)
FAILURE = "a failure waits for synchronize and harms nothing else"


class _Padding(FakeBufferType):
    def alloc_size(self, tensor: Described) -> int:
        return tensor.nbytes + 4096


class _Small(FakeBufferType):
    @property
    def max_size(self) -> int:
        return 1 << 20


def with_memory(kind: type[FakeBufferType]) -> FakeDevice:
    device = FakeDevice()
    device._buffer_type = kind(device, 256)
    return device


class WithoutEvents(FakeDevice):
    """Takes the events of the base class, which synchronize."""

    event_type: type[Event] = Event

    def __init__(self) -> None:
        super().__init__(execution="late")
        self.capabilities = Capabilities(asynchronous=True, host_buffer=self.capabilities.host_buffer)

    def event(self) -> Event:
        return self.event_type(self)


ODD: dict[str, tuple[Callable[[], FakeDevice], tuple[str, ...]]] = {
    "tensors take more than their bytes": (lambda: with_memory(_Padding), PADDED),
    "buffers of 1 MiB": (lambda: with_memory(_Small), CRAMPED),
    "memory of 2 MiB": (lambda: FakeDevice(memory=2 << 20), CRAMPED),
    "no events": (WithoutEvents, (FAILURE, "events order streams", "events can be waited for by the host")),
    "alignment of 64 KiB": (lambda: FakeDevice(alignment=1 << 16), PADDED),
}


@pytest.mark.parametrize(("odd", "name"), [(odd, name) for odd, (_, names) in ODD.items() for name in names])
def test_an_odd_device_that_keeps_the_contract_passes(odd: str, name: str) -> None:
    (clause,) = (clause for clause in CLAUSES if clause.name == name)
    finding = run_clause(ODD[odd][0](), clause)
    assert finding.verdict == "passed", finding


class _Hiding(Event):
    """Keeps to itself what went wrong in the stream that it waited for."""

    def synchronize(self) -> None:
        with suppress(ComputeError):
            super().synchronize()


def test_an_event_that_swallows_a_failure_breaks_the_contract() -> None:
    device = WithoutEvents()
    device.event_type = _Hiding
    (clause,) = (clause for clause in CLAUSES if clause.name == FAILURE)
    finding = run_clause(device, clause)
    assert finding.verdict == "failed"
    assert "in which a computation failed raised None" in finding.reason


def test_a_device_that_has_events_must_not_raise_in_them() -> None:
    device = WithoutEvents()
    device.capabilities = Capabilities(asynchronous=True, events=True, host_buffer=device.capabilities.host_buffer)
    (clause,) = (clause for clause in CLAUSES if clause.name == FAILURE)
    finding = run_clause(device, clause)
    assert finding.verdict == "failed"
    assert "an event raised ComputeError" in finding.reason
