"""A broken clause names the methods of the author's classes that it exercises, the one that it is about first."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import pytest

from ggplug import host
from ggplug.backend import Buffer, BufferType, Bytes, Device, Memory
from ggplug.discrete import DiscreteBuffer, DiscreteDevice, Job, QueuedBackend
from ggplug.ops import Relu
from ggplug.sharing import accessing
from ggplug.types import DeviceKind
from ggplug_testing import ReferenceDevice
from ggplug_testing.conformance import check
from ggplug_testing.contracts import Clause, ContractError, run_clause
from ggplug_testing.reporting.rendering import text
from ggplug_testing.reporting.report import Finding


class ToyBuffer(DiscreteBuffer):
    """A few faults, one of which is switched on."""

    device: ToyDevice

    def __init__(self, type: BufferType, size: int, device: ToyDevice) -> None:
        super().__init__(type, size, device)
        self.memory = np.zeros(size, np.uint8)

    def store(self, offset: int, data: Bytes) -> None:
        left = 1 if self.device.fault == "store" else 0
        self.memory[offset : offset + data.size - left] = data[: data.size - left]

    def fetch(self, offset: int, out: Bytes) -> None:
        left = 1 if self.device.fault == "fetch" else 0
        out[: out.size - left] = self.memory[offset : offset + out.size - left]

    def memset(self, offset: int, size: int, value: int) -> None:
        if self.device.fault != "memset":
            super().memset(offset, size, value)
            return
        with accessing(self):
            offset, size, value = self.check_fill(offset, size, value)
            self.device.drain()
            self.memory[offset : offset + size - 1] = value

    def dispose(self) -> None:
        pass


class ToyMemory(BufferType):
    device: ToyDevice

    def _alloc(self, size: int) -> Buffer:
        return ToyBuffer(self, size, self.device)


class ToyStream(QueuedBackend):
    def __init__(self, device: ToyDevice) -> None:
        super().__init__(device)
        self._fault = device.fault
        self._executor = ThreadPoolExecutor(1)
        self._count = 0

    def submit(self, job: Job) -> None:
        self._count += 1
        if self._fault != "submit" or self._count % 2:
            self._executor.submit(job)
        else:
            job.done = True

    def synchronize(self) -> None:
        if self._fault != "synchronize":
            super().synchronize()

    def close(self) -> None:
        self._executor.shutdown()


class ToyDevice(DiscreteDevice):
    name = "toy"
    description = "for this test"
    kind = DeviceKind.ACCEL

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self._buffer_type = ToyMemory("toy", self)

    def memory(self) -> Memory:
        return host.memory()

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    def init(self, **params: Any) -> ToyStream:
        return ToyStream(self)

    def operand(self, tensor: Any, buffer: DiscreteBuffer, offset: int) -> Any:
        raise NotImplementedError


def broken(device: Device, clause: str) -> Finding:
    (finding,) = check(device, ops=(), clauses=[clause], graphs=False, groups=False).findings
    assert finding.verdict == "failed", finding
    return finding


def line_of(method: Callable[..., Any]) -> str:
    """``file:line in Class.method``."""
    return f"test_testing_overrides.py:{inspect.getsourcelines(method)[1]} in {method.__qualname__}"


@pytest.mark.parametrize(
    ("fault", "clause", "method", "by"),
    [
        ("memset", "memset fills a range", ToyBuffer.memset, ""),
        ("store", "memset fills a range", ToyBuffer.memset, ""),
        ("store", "rows are transferred with a stride", ToyBuffer.store, ", which set_2d calls"),
        ("store", "bytes come back as they were stored", ToyBuffer.store, ", which set calls"),
        ("submit", "asynchronous transfers arrive", ToyStream.submit, ", which set_async calls"),
        ("fetch", "a read waits for held streams", ToyBuffer.fetch, ", which get calls"),
        ("synchronize", "the host waits for a held stream", ToyStream.synchronize, ""),
    ],
)
def test_a_broken_clause_names_the_authors_method_that_it_is_about(
    fault: str, clause: str, method: Callable[..., Any], by: str
) -> None:
    finding = broken(ToyDevice(fault), clause)
    named = [finding.where.removeprefix("exercised "), *", ".join(finding.trace).removeprefix("and ").split(", and ")]
    assert finding.where.startswith("exercised ")
    at = [number for number, each in enumerate(named) if each.endswith(line_of(method) + by)]
    assert at, named
    assert at[0] < 2, named
    assert finding.where in text(check(ToyDevice(fault), ops=(), clauses=[clause], graphs=False, groups=False))


def test_what_computes_is_named_where_a_thread_that_was_there_before_calls_it() -> None:
    kept = ThreadPoolExecutor(1)

    class Kept(ToyStream):
        def submit(self, job: Job) -> None:
            kept.submit(job)

    class Computing(ToyDevice):
        kernels: ClassVar = {Relu: lambda op, dst, x: None}

        def init(self, **params: Any) -> Kept:
            return Kept(self)

        def operand(self, tensor: Any, buffer: DiscreteBuffer, offset: int) -> Any:
            return buffer

    kept.submit(int).result()
    finding = broken(Computing(), "a plan computes again with new values")
    assert line_of(Computing.operand).split(" in ")[0] in finding.where, finding
    kept.shutdown()


def test_methods_that_a_thread_of_the_device_calls_are_named_too() -> None:
    finding = broken(ToyDevice("store"), "asynchronous transfers arrive")
    assert any(line_of(ToyBuffer.store) in each for each in (finding.where, *finding.trace)), finding


def test_a_method_that_core_provides_is_not_named() -> None:
    finding = broken(ToyDevice("store"), "buffers copy from each other")
    assert "copy_from" in finding.where
    assert "in ToyBuffer." in finding.where


def test_a_profiler_that_runs_is_left_alone() -> None:
    calls: list[str] = []

    def profiler(frame: Any, event: str, argument: object) -> None:
        calls.append(event)

    sys.setprofile(profiler)
    try:
        finding = broken(ToyDevice("store"), "bytes come back as they were stored")
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert calls
    assert line_of(ToyBuffer.store) in finding.where


def test_a_clause_that_a_device_of_core_breaks_is_checked_once() -> None:
    checked = []

    def breaks(device: Device) -> None:
        """It is kept."""
        checked.append(device)
        raise ContractError("it is not")

    device = ReferenceDevice()
    assert run_clause(device, Clause("some", breaks)).verdict == "failed"
    assert checked == [device]
    run_clause(ToyDevice(), Clause("some", breaks))
    assert len(checked) == 3


def test_what_cleans_up_after_a_broken_clause_is_not_named() -> None:
    finding = broken(ToyDevice("store"), "bytes come back as they were stored")
    assert not any("ToyBuffer.dispose" in each for each in (finding.where, *finding.trace)), finding
