"""The CPU device and threads: what frees, changes or computes while a computation is held still in another thread."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ggplug_cpu")

from held import Doing, Gate, held, until

import ggplug as gg
from ggplug import ops
from ggplug.errors import BufferUseError, BusyError, ComputeAborted, ComputeError, TensorStateError
from ggplug.graph import Graph
from ggplug.host import HOST
from ggplug.memory import GraphAllocator, allocate_graph
from ggplug.scheduler import Scheduler
from ggplug.sharing import WAITING
from ggplug_cpu.context import TeamMemory
from ggplug_cpu.device import CpuDevice
from ggplug_cpu.team import Team


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    cpu = CpuDevice()
    cpu.set_team(Team(2))
    yield cpu
    cpu.team.close()


class Setting:
    """``y = (((x + w) + w) + ...)``, ten times, on a device; ``w`` and ``x`` in buffers of their own."""

    def __init__(self, device: CpuDevice) -> None:
        self.device = device
        self.context = gg.Context("weights")
        self.w = self.context.new_tensor("f32", (64, 8), "w")
        gg.allocate(self.context, device)
        self.w.set(np.full((8, 64), 2, np.float32))
        self.values = np.ones((8, 64), np.float32)
        self.x = gg.tensor(self.values, copy=False)
        self.y = self.x
        for _ in range(10):
            self.y = ops.add(self.y, self.w)
        self.y.set_output()
        self.graph = Graph(self.y)
        self.scheduler = Scheduler([device])
        self.scheduler.compute(self.graph)
        self.check()

    def check(self, expected: float = 21.0) -> None:
        np.testing.assert_array_equal(self.y.numpy(), np.full((8, 64), expected, np.float32))

    def compute(self) -> None:
        self.scheduler.compute(self.graph)

    def held(self, callback: Callable[[], Any] | None = None) -> Any:
        """A computation that another thread holds inside the abort callback, which also calls ``callback``."""
        gate = Gate()

        def asked() -> bool:
            if callback is not None and not gate.reached.is_set():
                callback()
            return gate()

        self.ask(asked)
        return held(self.compute, gate)

    def ask(self, callback: Callable[[], Any] | None) -> None:
        """Sets an abort callback that the next computation asks at once."""
        team = self.device.team
        team.set_abort_callback(callback)
        team.reserve(0, 0)
        assert team._crew is not None
        team._crew.words[TeamMemory.slice.number] = 1


@pytest.fixture
def setting(device: CpuDevice) -> Setting:
    return Setting(device)


# -- memory ---------------------------------------------------------------------------------------------

ACCESSES: dict[str, tuple[Callable[[Setting], Any], float]] = {
    "clear": (lambda s: s.context.buffers[0].clear(), 1.0),
    "set": (lambda s: s.w.set(np.zeros((8, 64), np.float32)), 1.0),
    "set into wrapped memory": (lambda s: s.x.set(np.zeros((8, 64), np.float32)), 20.0),
    "memset": (lambda s: s.context.buffers[0].memset(0, 64 * 8 * 4, 0), 1.0),
    "set of a buffer": (lambda s: s.context.buffers[0].set(0, np.zeros(2048, np.uint8)), 1.0),
    "get of a buffer": (lambda s: s.context.buffers[0].get(0, np.zeros(2048, np.uint8)), 21.0),
    "export": (lambda s: s.context.buffers[0].export(), 21.0),
    "copy_from": (lambda s: s.context.buffers[0].copy_from(HOST.wrap(bytes(2048)), 0, 0, 2048), 1.0),
    "set_2d": (lambda s: s.context.buffers[0].set_2d(0, np.zeros(2048, np.uint8), 256, 8, 256), 1.0),
    "get": (lambda s: s.w.numpy(), 21.0),
    "get_2d": (lambda s: s.context.buffers[0].get_2d(0, np.zeros(2048, np.uint8), 256, 8, 256), 21.0),
    "copy to another": (lambda s: HOST.alloc(64).copy_from(s.context.buffers[0], 0, 0, 64), 21.0),
    "asarray": (lambda s: gg.asarray(s.w).sum(), 21.0),
}


@pytest.mark.parametrize("what", ACCESSES)
def test_synchronous_access_waits_for_a_computation_of_another_thread(what: str, setting: Setting) -> None:
    access, then = ACCESSES[what]
    with setting.held():
        thread = Doing(lambda: access(setting))
        assert thread.settled()
    thread.result()
    setting.check()  # of the computation that was held: the whole of it came before
    setting.ask(None)
    setting.compute()
    setting.check(then)


FREEING: dict[str, Callable[[Setting], Any]] = {
    "a buffer": lambda s: s.context.buffers[0].free(),
    "a context": lambda s: s.context.free(),
    "a context by its block": lambda s: s.context.__exit__(),
    "a wrapped buffer": lambda s: s.x.buffer.free(),  # type: ignore[union-attr]
}


@pytest.mark.parametrize("what", FREEING)
def test_free_waits_for_a_computation_and_the_next_one_is_refused(what: str, setting: Setting) -> None:
    buffers = [*setting.context.buffers, setting.x.buffer]
    with setting.held():
        thread = Doing(lambda: FREEING[what](setting))
        assert thread.settled()
        assert not any(buffer.freed for buffer in buffers)  # type: ignore[union-attr]
    thread.result()
    setting.check()
    setting.ask(None)
    with pytest.raises((BufferUseError, TensorStateError)):
        setting.compute()


def test_a_computation_that_waits_for_free_is_refused_and_runs_over_nothing(setting: Setting) -> None:
    # free comes second and the next computation third: it must notice when it has the lock, not when it is called.
    other = Scheduler([setting.device])
    with setting.held():
        freeing = Doing(setting.context.free)
        assert freeing.settled()
        computing = Doing(lambda: other.compute(Graph(ops.sum(setting.w).set_output())))
        assert computing.settled() or isinstance(computing.error, (BufferUseError, TensorStateError))
    freeing.result()
    with pytest.raises((BufferUseError, TensorStateError)):
        computing.result()


def test_a_bound_plan_that_waits_for_free_is_refused(device: CpuDevice) -> None:
    x = gg.tensor(np.ones((4, 32), np.float32))
    graph = Graph(ops.neg(x).set_output())
    allocation = allocate_graph(graph, device.buffer_type)
    plan = device.init().plan(graph)
    plan.rebind(graph, allocation)
    gate = Gate()

    def slowly() -> None:
        # What freeing does between the decision and the end: a computation that comes now has a fresh binding.
        original = x.buffer._free  # type: ignore[union-attr]
        x.buffer._free = lambda: (gate(), original())  # type: ignore[method-assign,union-attr]
        x.buffer.free()  # type: ignore[union-attr]

    with held(slowly, gate):
        computing = Doing(plan.compute)
        assert computing.settled()
    with pytest.raises(BufferUseError, match="freed"):
        computing.result()
    assert plan.buffers  # type: ignore[attr-defined]  # a binding that failed left the last one as it was


def test_a_computation_waits_for_an_access_that_has_begun(setting: Setting) -> None:
    gate = Gate()
    buffer = setting.context.buffers[0]
    original = buffer._set

    def slowly(offset: int, data: Any) -> None:
        original(offset, data[: data.size // 2])
        gate()
        original(offset + data.size // 2, data[data.size // 2 :])

    buffer._set = slowly  # type: ignore[method-assign]
    with held(lambda: setting.w.set(np.full((8, 64), 3, np.float32)), gate):
        computing = Doing(setting.compute)
        assert computing.settled()
    computing.result()
    setting.check(31)


def test_memory_that_is_dropped_during_a_computation_stays(device: CpuDevice) -> None:
    setting = Setting(device)
    w, x = weakref.ref(setting.w.buffer), weakref.ref(setting.x.buffer)  # type: ignore[type-var]
    with setting.held():
        # Nobody frees these: other threads drop the last references to them, and give the tensors other places.
        setting.context.buffers.clear()
        setting.w.place(device.buffer_from_host(np.zeros((8, 64), np.float32)))
        setting.x.place(HOST.wrap(np.zeros((8, 64), np.float32)))
        gc.collect()
        assert w() is not None
        assert x() is not None
    setting.check()
    setting.ask(None)
    setting.compute()
    setting.check(0)
    assert w() is None  # the plan is bound to others now
    assert x() is None


def test_a_plan_keeps_no_memory_of_a_graph_that_is_gone(device: CpuDevice) -> None:
    with device.init() as stream, GraphAllocator(device.buffer_type) as memory:
        x = gg.tensor(np.ones((4, 32), np.float32))
        buffer = weakref.ref(x.buffer)  # type: ignore[type-var]
        graph = Graph(ops.neg(x).set_output())
        allocation = memory.allocate(graph)
        plan = stream.plan(graph)
        plan.rebind(graph, allocation)
        plan.compute()
        del graph, x
        gc.collect()
        assert buffer() is None
        with pytest.raises(TensorStateError, match="rebind"):
            plan.compute()


def test_the_schedulers_own_memory_is_not_freed_under_it(setting: Setting) -> None:
    (buffer,) = {setting.y.locate()[0]}
    with setting.held():
        thread = Doing(buffer.free)
        assert thread.settled()
        with pytest.raises(BusyError, match="another thread"):
            setting.scheduler.free()
        with pytest.raises(BusyError, match="another thread"):
            setting.scheduler.reset()
    thread.result()
    with pytest.raises(BufferUseError, match="freed"):
        setting.y.numpy()


def test_a_scheduler_that_nobody_else_has_goes_on_to_the_end(device: CpuDevice) -> None:
    setting = Setting(device)
    with setting.held() as thread:
        scheduler = weakref.ref(setting.scheduler)
        del setting.scheduler
        gc.collect()
        assert scheduler() is not None
    thread.result()
    setting.check()


def test_other_memory_is_not_waited_for(setting: Setting) -> None:
    with setting.held():
        other = gg.tensor(np.arange(6, dtype=np.float32))
        assert other.set(np.zeros(6, np.float32)).numpy().sum() == 0
        other.buffer.free()  # type: ignore[union-attr]


# -- the device itself --------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[CpuDevice], Any]] = {
    "set_n_threads": lambda d: d.team.set_n_threads(3),
    "set_n_threads of a stream": lambda d: d.init().set_n_threads(1),  # type: ignore[attr-defined]
    "init with a number of threads": lambda d: d.init(n_threads=1),
    "set_team": lambda d: d.set_team(Team(1)),
    "pause": lambda d: d.team.pause(),
    "resume": lambda d: d.team.resume(),
    "reserve": lambda d: d.team.reserve(1 << 20, 1 << 16),
    "plan": lambda d: d.init().plan(Graph(ops.neg(gg.tensor(np.ones(8, np.float32))))),
}


@pytest.mark.parametrize("what", CHANGES)
def test_changing_the_team_waits_for_its_computation(what: str, setting: Setting) -> None:
    with setting.held():
        thread = Doing(lambda: CHANGES[what](setting.device))
        assert thread.settled()
    thread.result()
    setting.check()
    setting.ask(None)
    setting.compute()
    setting.check()


def test_a_computation_that_waits_for_a_team_that_is_replaced_runs_on_the_new_one(setting: Setting) -> None:
    other = Setting(setting.device)
    with setting.held():
        changing = Doing(lambda: setting.device.set_team(Team(1)))
        assert changing.settled()
        computing = Doing(other.compute)
        until(lambda: len(WAITING) == 2)
    changing.result()
    computing.result()
    setting.check()
    other.check()


def test_two_schedulers_replace_the_team_at_the_same_time(setting: Setting) -> None:
    teams = [Team(1), Team(2)]
    with setting.held():
        threads = [Doing(lambda team=team: setting.device.set_team(team)) for team in teams]
        until(lambda: len(WAITING) == 2)
    for thread in threads:
        thread.result()
    closed = [team for team in teams if team is not setting.device.team]
    assert len(closed) == 1
    with pytest.raises(ComputeError, match="closed"):
        closed[0].reserve(1, 1)
    setting.compute()
    setting.check()


# -- from within ---------------------------------------------------------------------------------------------

WITHIN: dict[str, Callable[[Setting], Any]] = {
    "compute": lambda s: gg.compute(ops.neg(gg.tensor(np.ones(8, np.float32))), backends=[s.device]),
    "compute by the same scheduler": lambda s: s.compute(),
    "compute by another scheduler": lambda s: Scheduler([s.device]).compute(Graph(ops.neg(s.w).set_output())),
    "free a buffer": lambda s: s.context.buffers[0].free(),
    "free a context": lambda s: s.context.free(),
    "free wrapped memory": lambda s: s.x.buffer.free(),  # type: ignore[union-attr]
    "free the scheduler": lambda s: s.scheduler.free(),
    "read": lambda s: s.w.numpy(),
    "write": lambda s: s.w.set(0.0),
    "clear": lambda s: s.context.buffers[0].clear(),
    "asarray": lambda s: gg.asarray(s.x),
    "close the team": lambda s: s.device.team.close(),
    **{name: (lambda s, change=change: change(s.device)) for name, change in CHANGES.items()},
}


@pytest.mark.parametrize("what", WITHIN)
def test_an_abort_callback_that_would_wait_for_its_computation_gets_an_error(what: str, setting: Setting) -> None:
    errors: list[BaseException] = []

    def callback() -> None:
        try:
            WITHIN[what](setting)
        except BusyError as error:
            errors.append(error)

    with setting.held(callback):
        pass
    assert [type(error) for error in errors] == [BusyError]
    setting.ask(None)
    setting.check()  # of the computation that went on unharmed
    setting.compute()
    setting.check()


@pytest.mark.parametrize("what", WITHIN)
@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent to threads")
def test_a_signal_handler_that_would_wait_for_its_computation_gets_an_error(what: str, setting: Setting) -> None:
    errors: list[BaseException] = []
    setting.ask(lambda: not errors and signal.raise_signal(signal.SIGINT))

    def handler(number: int, frame: Any) -> None:
        try:
            WITHIN[what](setting)
        except BusyError as error:
            errors.append(error)

    before = signal.signal(signal.SIGINT, handler)
    try:
        setting.compute()
        if not errors:  # it raised, but the signal was handled after the computation
            pytest.skip("the handler came too late")
    finally:
        signal.signal(signal.SIGINT, before)
    assert type(errors[0]) is BusyError
    setting.ask(None)
    setting.check()


def test_an_error_that_a_callback_does_not_catch_ends_the_computation(setting: Setting) -> None:
    setting.ask(setting.context.free)
    with pytest.raises(BusyError, match="made from within"):
        setting.compute()
    setting.ask(None)
    setting.compute()
    setting.check()


def test_what_a_callback_may_do(setting: Setting) -> None:
    flag, seen = gg.tensor(np.zeros(1, np.float32)), []

    def callback() -> None:
        seen.append(flag.numpy()[0])
        flag.set(np.ones(1, np.float32))
        flag.buffer.free()  # type: ignore[union-attr]
        seen.append(setting.device.n_threads)

    with setting.held(callback):
        pass
    assert seen == [0, 2]


def test_a_callback_frees_what_a_waiting_computation_wants(setting: Setting) -> None:
    # The second computation waits for the first; that one's callback must not wait for the second.
    other = Setting(setting.device)
    first, second = Gate(), Gate()

    def callback() -> bool:
        first()
        if not second.reached.is_set():
            other.context.free()
        return second()

    setting.ask(callback)
    with held(setting.compute, first):
        waiting = Doing(other.compute)
        assert waiting.settled()
        second.open()
    setting.check()
    with pytest.raises((BufferUseError, TensorStateError)):
        waiting.result()


def test_a_finalizer_within_a_computation_that_frees_what_is_in_use_hangs_nobody(setting: Setting) -> None:
    errors: list[BaseException] = []

    class Owner:
        def __del__(self) -> None:
            try:
                setting.context.free()
            except BusyError as error:
                errors.append(error)

    def callback() -> None:
        owner = Owner()
        owner.itself = owner  # type: ignore[attr-defined]
        del owner
        gc.collect()

    with setting.held(callback):
        pass
    assert len(errors) == 1
    setting.check()


def test_an_array_that_goes_away_anywhere_ends_its_export(setting: Setting) -> None:
    arrays = [gg.asarray(setting.w)]
    with setting.held(arrays.clear):
        pass
    setting.context.free()


# -- results ---------------------------------------------------------------------------------------------------


def test_a_result_is_not_read_while_a_later_computation_writes_over_it(device: CpuDevice) -> None:
    setting = Setting(device)
    x = gg.tensor(np.full((8, 64), 5, np.float32))
    y = x
    for _ in range(10):
        y = ops.add(y, setting.w)
    equal = Graph(y.set_output())
    gate = Gate()
    setting.ask(gate)
    with held(lambda: setting.scheduler.compute(equal), gate):
        with pytest.raises(TensorStateError, match="reused by a later computation"):
            setting.y.numpy()
        with pytest.raises(TensorStateError, match="being computed by another thread"):
            y.numpy()
    np.testing.assert_array_equal(y.numpy(), np.full((8, 64), 25, np.float32))


def test_a_read_that_has_to_wait_looks_again_whether_the_result_is_still_there(setting: Setting) -> None:
    # Located before the computation began, and fetched after it has ended: these would be bytes of another graph.
    located, go_on = threading.Event(), threading.Event()
    original = type(setting.y)._find

    def slowly(self: gg.Tensor) -> Any:
        found = original(self)
        if self is setting.y and not located.is_set():
            located.set()
            assert go_on.wait(60)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gg.Tensor, "_find", slowly)
        for access in (setting.y.numpy, lambda: setting.y.set(np.zeros((8, 64), np.float32))):
            setting.compute()
            located.clear()
            go_on.clear()
            reading = Doing(access)
            assert located.wait(60)
            z = setting.x
            for _ in range(10):
                z = ops.mul(z, setting.w)
            other = Graph(z.set_output())
            setting.scheduler.compute(other)
            go_on.set()
            with pytest.raises(TensorStateError, match="reused"):
                reading.result()
            np.testing.assert_array_equal(z.numpy(), np.full((8, 64), 1024, np.float32))


def test_a_computation_waits_for_a_result_that_is_being_read(setting: Setting) -> None:
    other = Graph(ops.add(ops.add(setting.x, setting.w), setting.w).set_output())
    buffer, gate = setting.y.locate()[0], Gate()
    original = buffer.get_tensor

    def slowly(*arguments: Any) -> None:
        gate()  # it was found to be there; now it is fetched
        original(*arguments)

    buffer.get_tensor = slowly  # type: ignore[method-assign]
    with held(setting.check, gate):
        computing = Doing(lambda: setting.scheduler.compute(other))
        assert computing.settled()
    computing.result()


def test_an_input_that_is_set_late_does_not_spoil_another_graphs_results(device: CpuDevice) -> None:
    scheduler = Scheduler([device])
    x = gg.new_tensor("f32", (64, 8), "x")
    graph = Graph(ops.neg(x).set_output())
    scheduler.allocate(graph)
    other = Setting(device)
    z = ops.add(other.x, other.w).set_output()
    scheduler.compute(Graph(z))
    with pytest.raises(TensorStateError, match="reused"):
        x.set(np.zeros((8, 64), np.float32))
    assert (z.numpy() == 3).all()


def test_two_threads_with_a_scheduler_each_compute_one_graph(setting: Setting) -> None:
    other = Scheduler([setting.device])
    with setting.held():
        # The other one began later: it is the one that counts, and waits for the lock.
        second = Doing(lambda: other.compute(setting.graph))
        assert second.settled()
        with pytest.raises(TensorStateError, match="being computed by another thread"):
            setting.y.numpy()
    second.result()
    setting.check()


def test_a_graph_of_the_same_tensors_that_another_thread_computes_leaves_my_results(setting: Setting) -> None:
    mine = Graph(setting.y)
    scheduler = Scheduler([setting.device])
    scheduler.compute(mine)
    with setting.held():
        setting.check()


def test_threads_that_list_the_same_tensors_at_once_forget_no_graph() -> None:
    x = gg.tensor(np.ones(8, np.float32))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            y = ops.neg(x)
            for _ in range(20):
                y = ops.neg(y)
            threads = [Doing(lambda y=y: [Graph(y) for _ in range(20)]) for _ in range(3)]
            graphs = [graph for thread in threads for graph in thread.result()]
            assert len(y._graphs or ()) == len(graphs)
    finally:
        sys.setswitchinterval(before)


def test_immediate_computations_of_one_tensor_by_several_threads() -> None:
    x = gg.tensor(np.arange(64, dtype=np.float32))
    y = ops.scale(ops.add(x, x), 0.5)

    def work() -> bool:
        return all((gg.compute(y).numpy() == np.arange(64)).all() for _ in range(40))

    gg.compute(y)
    assert all(thread.result() for thread in [Doing(work) for _ in range(3)])


# -- plans ---------------------------------------------------------------------------------------------------------


def test_a_plan_is_not_bound_to_other_memory_while_it_computes(device: CpuDevice) -> None:
    with device.init() as stream:
        inputs = [gg.tensor(np.full((8, 64), value, np.float32)) for value in (1, 2)]
        graphs = [Graph(ops.add(ops.add(x, x), x).set_output()) for x in inputs]
        allocations = [allocate_graph(graph, device.buffer_type) for graph in graphs]
        plan = stream.plan(graphs[0])
        plan.rebind(graphs[0], allocations[0])
        plan.compute()
        gate = Gate()
        Setting(device).ask(gate)
        with held(plan.compute, gate):
            binding = Doing(lambda: plan.rebind(graphs[1], allocations[1]))
            assert binding.settled()
        binding.result()
        plan.compute()
        for graph, allocation, expected in zip(graphs, allocations, (3, 6), strict=True):
            allocation.computed(graph, stream)
            assert (graph.outputs[0].numpy() == expected).all()


def test_a_stream_that_another_thread_computes_on_says_so(device: CpuDevice) -> None:
    setting = Setting(device)
    stream = device.init()
    graph = Graph(ops.neg(setting.x).set_output())
    allocation = allocate_graph(graph, device.buffer_type)
    another = device.init()
    for each in (stream, another):
        each.compute(graph, allocation)
    gate = Gate()
    setting.ask(gate)
    with held(lambda: stream.compute(graph, allocation), gate):
        other = Graph(ops.neg(setting.w).set_output())
        with pytest.raises(BusyError, match=r"<Backend CPU> is in use by another thread"):
            stream.compute(other, allocate_graph(other, device.buffer_type))
        with pytest.raises(BusyError, match="another thread"):
            stream.free()
        with pytest.raises(BusyError, match="memory for intermediates"):  # of another stream, in the same memory
            another.compute(graph, allocation)
    stream.free()


# -- leaving the interpreter -------------------------------------------------------------------------------------------

_LEAVING = """
    import atexit, sys, threading
    # Registered first, so called last: whatever threads have to say until then is heard.
    atexit.register(lambda: threading.Event().wait(0.3))
    import numpy as np
    import ggplug as gg
    from ggplug import ops

    def compute(n):
        x = gg.tensor(np.ones((256, 256), np.float32))
        y = x
        for _ in range(n):
            y = ops.add(ops.mul_mat(x, y), x)
        scheduler = gg.Scheduler([gg.device("CPU")])
        graph = gg.Graph(y.set_output())
        scheduler.compute(graph)
        begun.release()
        while True:
            scheduler.compute(graph)

    begun = threading.Semaphore(0)
    for n in (1, 200):
        threading.Thread(target=compute, args=(n,), daemon=True).start()
    for _ in range(2):
        begun.acquire()
    {leave}
"""

LEAVES = {
    "at the end": ("print('leaving')", 0),
    "by sys.exit": ("print('leaving'); sys.exit(5)", 5),
    "by an exception": ("print('leaving'); sys.stderr = None; raise ValueError", 1),
    "in an abort callback": (
        "print('leaving'); gg.device('CPU').team.set_abort_callback(lambda: sys.exit(7));\n    compute(400)",
        7,
    ),
    "with something to free": (
        "t = gg.tensor(np.ones(8, np.float32)); atexit.register(t.buffer.free);\n    print('leaving'); sys.exit(6)",
        6,
    ),
    "with something to compute": (
        "atexit.register(lambda: gg.tensor(np.ones(8, np.float32)).numpy());\n    print('leaving'); sys.exit(6)",
        6,
    ),
}


@pytest.mark.parametrize("how", LEAVES)
def test_leaving_the_interpreter_while_daemon_threads_compute_is_quiet(how: str) -> None:
    leave, code = LEAVES[how]
    text = textwrap.dedent(_LEAVING).format(leave=leave.replace("\n    ", "\n"))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=1200)
    assert (done.stdout, done.stderr, done.returncode) == ("leaving\n", "", code)


def test_aborting_by_hand_raises_as_ever(setting: Setting) -> None:
    setting.ask(lambda: True)
    with pytest.raises(ComputeAborted):
        setting.compute()
    with pytest.raises(TensorStateError, match="its computation failed: ComputeAborted"):
        setting.y.numpy()
    setting.ask(None)
    setting.compute()
    setting.check()
