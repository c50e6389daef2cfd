"""GPUs and threads: while a thread is held in the middle of giving work, over a driver that takes notes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ggplug_simt")

from held import Doing, Gate, held
from simt_stand_in import StandInDevice, StandInQueue

import ggplug as gg
from ggplug import ops
from ggplug.errors import BufferUseError, BusyError, FreedError
from ggplug.graph import Graph
from ggplug.host import HOST
from ggplug.memory import Allocation, allocate_graph
from ggplug.sharing import accessing


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGPLUG_CACHE_DIR", str(tmp_path))


class Setting:
    """Two nodes over an input in a buffer of its own; ``held`` stops after the first launch."""

    def __init__(self) -> None:
        self.device = StandInDevice()
        self.log = self.device.stand_in.log
        self.x = gg.new_tensor("f32", (8, 4), "x")
        self.buffer = self.device.buffer_type.alloc(128)
        self.x.place(self.buffer)
        self.graph = Graph(ops.norm(ops.gelu(self.x)).set_output())
        self.stream = self.device.init()
        self.allocation = allocate_graph(self.graph, self.device.buffer_type)
        self.plan = self.stream.plan(self.graph)
        self.plan.rebind(self.graph, self.allocation)
        self.plan.compute()
        self.log.clear()

    def did(self) -> list[str]:
        return [what for what, *_ in self.log if what in ("launch", "free", "write", "read", "fill", "copy")]


@pytest.fixture
def setting() -> Setting:
    return Setting()


@pytest.fixture
def after_a(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Gate]:
    """Makes the first act of a kind stop at a gate when it was done."""

    def stop(kind: str) -> Gate:
        gate, original = Gate(), StandInQueue.act

        def act(self: StandInQueue, what: str, *rest: Any) -> None:
            original(self, what, *rest)
            if what == kind:
                gate()

        monkeypatch.setattr(StandInQueue, "act", act)
        return gate

    return stop


ACCESSES: dict[str, Callable[[Setting], Any]] = {
    "free": lambda s: s.buffer.free(),
    "write": lambda s: s.x.set(np.zeros((4, 8), np.float32)),
    "read": lambda s: s.x.numpy(),
    "fill": lambda s: s.buffer.clear(),
    "copy": lambda s: s.buffer.copy_from(s.device.buffer_type.alloc(128), 0, 0, 128),
    "copy away": lambda s: HOST.alloc(128).copy_from(s.buffer, 0, 0, 128),
    "write by rows": lambda s: s.buffer.set_2d(0, np.zeros(64, np.uint8), 16, 4, 32),
    "read by rows": lambda s: s.buffer.get_2d(0, np.zeros(64, np.uint8), 16, 4, 32),
}


@pytest.mark.parametrize("what", ACCESSES)
def test_synchronous_access_and_free_wait_until_all_launches_were_submitted(
    what: str, setting: Setting, after_a: Callable[[str], Gate]
) -> None:
    gate = after_a("launch")
    with held(setting.plan.compute, gate):
        thread = Doing(lambda: ACCESSES[what](setting))
        assert thread.settled()
    thread.result()
    kind = {"copy away": "read", "write by rows": "write", "read by rows": "read"}.get(what, what)
    assert setting.did()[:2] == ["launch", "launch"]
    assert kind in setting.did()[2:]
    finished = [what for what, *_ in setting.log].index("finish")
    assert finished < [what for what, *_ in setting.log].index(kind)  # and until the queue has done them


@pytest.mark.parametrize("what", ACCESSES)
def test_launches_wait_for_an_access_that_has_begun(
    what: str, setting: Setting, after_a: Callable[[str], Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = after_a("finish")  # the first thing that an access does
    with held(lambda: ACCESSES[what](setting), gate):
        computing = Doing(setting.plan.compute)
        assert computing.settled()
    if what == "free":
        with pytest.raises(BufferUseError, match="freed"):
            computing.result()
        assert "launch" not in setting.did()
    else:
        computing.result()
        assert setting.did()[-2:] == ["launch", "launch"]


def test_asynchronous_transfers_and_free_keep_apart(setting: Setting, after_a: Callable[[str], Gate]) -> None:
    data = np.ones(32, np.float32)
    gate = after_a("write")
    with held(lambda: setting.stream.set_async(setting.buffer, 0, data), gate):
        freeing = Doing(setting.buffer.free)
        assert freeing.settled()
    freeing.result()
    for transfer in (setting.stream.set_async, setting.stream.get_async):
        with pytest.raises(BufferUseError, match="freed"):
            transfer(setting.buffer, 0, np.zeros(4, np.uint8))
    other = setting.device.buffer_type.alloc(128)
    with pytest.raises(BufferUseError, match="freed"):
        setting.stream.copy_async(setting.buffer, 0, other, 0, 128)


def test_an_asynchronous_copy_from_the_host_waits_for_who_has_the_source(setting: Setting) -> None:
    host, gate = HOST.wrap(np.ones(32, np.float32)), Gate()

    def keep() -> None:
        with accessing(host):
            gate()

    with held(keep, gate):
        copying = Doing(lambda: setting.stream.copy_async(host, 0, setting.buffer, 0, 128))
        assert copying.settled()
    copying.result()
    host.free()
    with pytest.raises(BufferUseError, match="freed"):
        setting.stream.copy_async(host, 0, setting.buffer, 0, 128)


def equal(setting: Setting) -> tuple[Graph, Allocation]:
    graph = Graph(ops.norm(ops.gelu(setting.x)).set_output())
    return graph, allocate_graph(graph, setting.device.buffer_type)


def test_launches_of_two_threads_on_one_stream_do_not_mix(setting: Setting, after_a: Callable[[str], Gate]) -> None:
    # They share the stream's scratch memory.
    graph = Graph(ops.norm(setting.x).set_output())
    second, allocation = setting.stream.plan(graph), allocate_graph(graph, setting.device.buffer_type)
    second.rebind(graph, allocation)
    setting.log.clear()
    gate = after_a("launch")
    with held(setting.plan.compute, gate):
        thread = Doing(second.compute)
        assert thread.settled()
        assert setting.did() == ["launch"]
    thread.result()
    assert [name for what, name, *_ in setting.log if what == "launch"] == ["map_one", "normalise", "normalise"]


def test_a_plan_is_not_bound_to_other_memory_while_it_is_launched(
    setting: Setting, after_a: Callable[[str], Gate]
) -> None:
    graph, allocation = equal(setting)
    setting.log.clear()
    gate = after_a("launch")
    with held(setting.plan.compute, gate):
        binding = Doing(lambda: setting.plan.rebind(graph, allocation))
        assert binding.settled()
    binding.result()
    order = [what for what, *_ in setting.log if what in ("launch", "set_buffer")]
    assert order[:3] == ["launch", "launch", "set_buffer"]


def test_other_streams_and_other_memory_are_not_waited_for(setting: Setting, after_a: Callable[[str], Gate]) -> None:
    graph, allocation = equal(setting)
    stream = setting.device.init()
    plan = stream.plan(graph)
    plan.rebind(graph, allocation)
    gate = after_a("launch")
    with held(setting.plan.compute, gate):
        plan.compute()
        with setting.device.buffer_type.alloc(64) as other:
            other.clear()
        stream.free()


def test_a_stream_is_freed_after_its_launches_were_submitted_and_then_says_so(
    setting: Setting, after_a: Callable[[str], Gate]
) -> None:
    gate = after_a("launch")
    with held(setting.plan.compute, gate):
        freeing = Doing(setting.stream.free)
        assert freeing.settled()
    freeing.result()
    assert setting.did() == ["launch", "launch"]
    for use in (
        setting.plan.compute,
        setting.plan.compute_traced,
        lambda: setting.stream.compute(setting.graph, setting.allocation),
        lambda: setting.stream.set_async(setting.buffer, 0, np.zeros(4, np.uint8)),
        lambda: setting.stream.get_async(setting.buffer, 0, np.zeros(4, np.uint8)),
    ):
        with pytest.raises(FreedError, match="freed"):
            use()
    assert setting.did() == ["launch", "launch"]


@pytest.mark.parametrize("what", [*ACCESSES, "the same plan", "the stream"])
def test_an_interrupt_of_submitting_that_would_wait_for_the_launches_gets_an_error(
    what: str, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[BaseException] = []
    original = StandInQueue.act

    def act(self: StandInQueue, done: str, *rest: Any) -> None:
        original(self, done, *rest)
        if done == "launch" and not errors:  # where a signal handler or a finalizer would come
            try:
                if what == "the same plan":
                    setting.plan.compute()
                elif what == "the stream":
                    setting.stream.free()
                else:
                    ACCESSES[what](setting)
            except BusyError as error:
                errors.append(error)

    monkeypatch.setattr(StandInQueue, "act", act)
    setting.plan.compute()
    assert [type(error) for error in errors] == [BusyError]
    assert setting.did() == ["launch", "launch"]
