"""Threads and everything above the devices: devices that walk in Python, schedulers, models, registries."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from held import Doing, Gate, held, until
from paths import SUPPORT

import ggplug as gg
from ggplug import gguf, host, ops
from ggplug.backend import BufferType, Device, Memory, Operand
from ggplug.errors import BufferUseError, BusyError, FreedError, TensorStateError
from ggplug.graph import Graph
from ggplug.hookspecs import HOOKS, hookimpl
from ggplug.host import HOST
from ggplug.memory import GraphAllocator, allocate_graph
from ggplug.ops import Add, Neg, Op
from ggplug.scheduler import Scheduler
from ggplug.tensor import Context
from ggplug.types import DeviceKind
from ggplug_testing import FakeDevice, ReferenceDevice


class Walker(Device):
    """A device of two kernels in host memory, as small as can be; the first one stops at ``gate``."""

    name = "walker"
    description = "walks over host memory"
    kind = DeviceKind.CPU
    kernels: ClassVar = {}

    def __init__(self, gate: Callable[[], Any] | None = None) -> None:
        self._buffer_type = host.HostBufferType("walker", self)
        self.gate = gate
        self.kernels = {Add: self.add, Neg: self.neg}  # type: ignore[misc]

    def memory(self) -> Memory:
        return host.memory()

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        return buffer_type.is_host

    def neg(self, op: Op, dst: Operand, x: Operand) -> None:
        np.negative(x.array(), out=dst.array())
        if self.gate is not None:
            self.gate()

    def add(self, op: Op, dst: Operand, x: Operand, y: Operand) -> None:
        np.add(x.array(), y.array(), out=dst.array())


class Setting:
    """``z = -x + w`` on a device, where ``w`` is read after the computation has stopped at the gate."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.gate = Gate()
        self.context = Context("weights")
        self.x, self.w = (self.context.new_tensor("f32", (16,), name) for name in "xw")
        self.buffers = gg.allocate(self.context, device)
        self.x.set(np.full(16, 1, np.float32))
        self.w.set(np.full(16, 5, np.float32))
        self.z = ops.add(ops.neg(self.x), self.w).set_output()
        self.graph = Graph(self.z)
        self.scheduler = Scheduler([device])
        self.compute = lambda: self.scheduler.compute(self.graph)

    def check(self, expected: float = 4.0) -> None:
        assert self.z.numpy().tolist() == [expected] * 16


def fake(gate: Callable[[], Any]) -> FakeDevice:
    return FakeDevice("fake", inner=Walker(gate))


@pytest.fixture(params=[Walker, fake], ids=["in host memory", "with memory of its own"])
def setting(request: pytest.FixtureRequest) -> Setting:
    gate: list[Any] = [lambda: None]
    made = Setting(request.param(lambda: gate[0]()))
    made.compute()
    made.check()
    gate[0] = made.gate
    return made


# -- devices that walk in Python ------------------------------------------------------------------------

ACCESSES: dict[str, tuple[Callable[[Setting], Any], float]] = {
    "clear": (lambda s: s.buffers[0].clear(), 0),
    "set": (lambda s: s.w.set(np.zeros(16, np.float32)), -1),
    "get": (lambda s: s.w.numpy(), 4),
    "copy_from": (lambda s: s.buffers[0].copy_from(HOST.wrap(bytes(64)), 0, 0, 64), 5),
    "copy away": (lambda s: HOST.alloc(64).copy_from(s.buffers[0], 0, 0, 64), 4),
}


@pytest.mark.parametrize("what", ACCESSES)
def test_any_devices_computations_and_accesses_keep_apart(what: str, setting: Setting) -> None:
    access, then = ACCESSES[what]
    with held(setting.compute, setting.gate):
        thread = Doing(lambda: access(setting))
        assert thread.settled()
    thread.result()
    setting.check()
    setting.compute()
    setting.check(then)


def test_any_devices_memory_is_freed_when_its_computation_has_ended(setting: Setting) -> None:
    with held(setting.compute, setting.gate):
        thread = Doing(setting.context.free)
        assert thread.settled()
        assert not setting.buffers[0].freed
    thread.result()
    setting.check()
    with pytest.raises((BufferUseError, TensorStateError)):
        setting.compute()


def test_a_plan_over_freed_memory_calls_no_kernel() -> None:
    called: list[int] = []
    setting = Setting(Walker(lambda: called.append(1)))
    setting.w.place(HOST.alloc(64))  # what the second kernel reads, in a buffer of its own
    stream = setting.device.init()
    allocation = allocate_graph(setting.graph, setting.device.buffer_type)
    plan = stream.plan(setting.graph)
    plan.rebind(setting.graph, allocation)
    setting.w.buffer.free()  # type: ignore[union-attr]
    with pytest.raises(BufferUseError, match="freed"):
        plan.compute()
    with pytest.raises(BufferUseError, match="freed"):
        plan.compute_traced()
    assert not called


def test_a_kernel_in_python_may_access_its_operands_but_not_free_them() -> None:
    seen: list[Any] = []

    def inside() -> None:
        seen.append(setting.w.numpy()[0])
        setting.w.set(np.full(16, 7, np.float32))
        for free in (setting.context.free, setting.buffers[0].free):
            try:
                free()
            except BusyError as error:
                seen.append(type(error))

    setting = Setting(Walker(inside))
    setting.compute()
    assert seen == [5, BusyError, BusyError]
    setting.check(6)
    assert setting.w.buffer is setting.buffers[0]  # a context that could not be freed kept everything


def test_two_streams_of_a_walking_device_compute_at_the_same_time() -> None:
    setting = Setting(Walker(gate := Gate()))
    setting.gate = gate
    with held(setting.compute, gate):
        other = Scheduler([setting.device])
        graph = Graph(z := ops.add(setting.w, setting.w).set_output())
        other.compute(graph)
        assert z.numpy()[0] == 10


# -- schedulers -------------------------------------------------------------------------------------------

SCHEDULER: dict[str, Callable[[Setting], Any]] = {
    "compute": lambda s: s.compute(),
    "compute_async": lambda s: s.scheduler.compute_async(s.graph),
    "allocate": lambda s: s.scheduler.allocate(s.graph),
    "reserve": lambda s: s.scheduler.reserve(s.graph),
    "reserve_size": lambda s: s.scheduler.reserve_size(s.graph),
    "split": lambda s: s.scheduler.split(s.graph),
    "explain": lambda s: s.scheduler.explain(s.graph),
    "backend_of": lambda s: s.scheduler.backend_of(s.z, s.graph),
    "synchronize": lambda s: s.scheduler.synchronize(),
    "pin": lambda s: s.scheduler.pin(s.z, None),
    "reset": lambda s: s.scheduler.reset(),
    "get_async": lambda s: s.scheduler.get_async(s.z, s.graph, np.empty(64, np.uint8)),
    "free": lambda s: s.scheduler.free(),
}


@pytest.mark.parametrize("what", SCHEDULER)
def test_a_second_thread_in_a_scheduler_is_told(what: str, setting: Setting) -> None:
    with held(setting.compute, setting.gate), pytest.raises(BusyError, match="is in use by another thread") as caught:
        SCHEDULER[what](setting)
    assert caught.value.thing is setting.scheduler
    setting.check()
    SCHEDULER[what](setting)


@pytest.mark.parametrize("what", SCHEDULER)
def test_an_eval_callback_that_enters_its_own_scheduler_is_told(what: str, setting: Setting) -> None:
    errors: list[BaseException] = []

    def callback(tensor: gg.Tensor, ask: bool) -> bool:
        if not ask:
            try:
                SCHEDULER[what](setting)
            except BusyError as error:
                errors.append(error)
        return True

    setting.gate.reached.set()
    setting.scheduler.set_eval_callback(callback)
    setting.compute()
    setting.scheduler.set_eval_callback(None)
    assert [str(error).count("made from within") for error in errors] == [1, 1]
    setting.check()


def test_an_eval_callback_reads_computes_elsewhere_and_ends_itself(setting: Setting) -> None:
    seen: list[float] = []
    setting.gate.reached.set()

    def callback(tensor: gg.Tensor, ask: bool) -> bool:
        if not ask:
            seen.append(tensor.numpy()[0])
            seen.append(gg.compute(ops.neg(setting.w), backends=[ReferenceDevice()]).numpy()[0])  # type: ignore[union-attr]
            setting.scheduler.set_eval_callback(None)
        return True

    setting.scheduler.set_eval_callback(callback)
    setting.compute()
    assert seen == [-1, -5, 4, -5]
    setting.compute()
    setting.check()


def test_an_observer_of_a_whole_graph_may_use_the_scheduler(setting: Setting) -> None:
    setting.gate.reached.set()
    explained: list[Any] = []

    class Observer:
        @hookimpl
        def ggplug_graph_computed(self, graph: Graph) -> None:
            explained.append(setting.scheduler.explain(graph))

    observer = Observer()
    HOOKS.register(observer)
    try:
        setting.compute()
    finally:
        HOOKS.unregister(observer)
    assert len(explained) == 1


def test_an_error_in_a_scheduler_leaves_it_to_the_next_thread(setting: Setting) -> None:
    setting.gate.reached.set()
    setting.context.free()
    for _ in range(2):
        with pytest.raises((BufferUseError, TensorStateError)):
            setting.compute()
    other = Graph(z := ops.neg(gg.tensor(np.ones(16, np.float32))).set_output())
    scheduler = setting.scheduler
    if setting.device.buffer_type.is_host:
        Doing(lambda: scheduler.compute(other)).result()
        assert z.numpy()[0] == -1


def test_a_graph_allocator_is_one_threads() -> None:
    device, gate = Walker(), Gate()
    graph = Graph(ops.neg(gg.tensor(np.ones(16, np.float32))).set_output())
    kind, allocator = device.buffer_type, GraphAllocator(device.buffer_type)
    original = kind._alloc

    def slowly(size: int) -> Any:
        gate()
        return original(size)

    kind._alloc = slowly  # type: ignore[method-assign]
    with held(lambda: allocator.allocate(graph), gate):
        for use in (allocator.free, lambda: allocator.allocate(graph), lambda: allocator.reserve(graph)):
            with pytest.raises(BusyError, match="another thread"):
                use()
    allocator.free()


def test_what_was_decided_while_tensors_moved_is_not_kept() -> None:
    # Another thread takes a weight's place away in the middle of scheduling.  A schedule in which it is an input, kept
    # for a graph in which it has a place, would fail for all equal graphs from then on.
    setting = Setting(Walker())
    moved: list[Any] = []

    def policy(node: gg.Tensor, streams: Any) -> None:
        if not moved:
            moved.append(setting.w.buffer)
            setting.w.place(None)

    scheduler = Scheduler([setting.device], policy=policy)
    with pytest.raises(TensorStateError, match="no value"):
        scheduler.compute(setting.graph)
    setting.w.place(moved[0], setting.w.offset)
    equal = Context("equal")
    x, w = (equal.new_tensor("f32", (16,), name) for name in "xw")
    gg.allocate(equal, setting.device)
    x.set(np.full(16, 2, np.float32))
    w.set(np.full(16, 9, np.float32))
    scheduler.compute(Graph(z := ops.add(ops.neg(x), w).set_output()))
    assert z.numpy()[0] == 7


def test_tensors_that_never_come_to_rest_are_an_error() -> None:
    setting = Setting(Walker())

    def policy(node: gg.Tensor, streams: Any) -> None:
        setting.w.place(HOST.alloc(64))

    with pytest.raises(TensorStateError, match="keeps placing"):
        Scheduler([setting.device], policy=policy).compute(setting.graph)


def test_one_graphs_signature_is_that_of_its_marks_whoever_asks_first() -> None:
    # A thread that is in the middle of gathering must not make another one believe that it has ended.
    y = ops.neg(gg.tensor(np.ones(16, np.float32)))
    graph = Graph(y)
    graph.signature()
    y.set_output()
    seen: list[Any] = []

    tensors, asked = graph.tensors, []

    def gather() -> Any:
        asked.append(1)
        if len(asked) == 1:
            seen.append(Doing(graph.signature).result())
        return iter(tensors)

    class Watched:
        def __iter__(self) -> Iterator[Any]:
            return gather()  # type: ignore[no-any-return]

    graph.tensors = Watched()  # type: ignore[assignment]
    mine = graph.signature()
    assert seen[0].flags == mine.flags
    assert mine.flags[graph.index[y]]


# -- results ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [lambda y, graph: y.numpy(), lambda y, graph: graph.locate(y)])
def test_a_failure_that_another_thread_was_told_of_is_no_result(again: Callable[[gg.Tensor, Graph], Any]) -> None:
    # Both threads read a result whose computation fails late.  One gets the error; the other must not get bytes.
    device = FakeDevice("fake", execution="late")
    with Context("c") as context, Scheduler([device]) as scheduler:
        x = context.new_tensor("f32", (16,), "x")
        gg.allocate(context, device)
        x.set(np.ones(16, np.float32))
        graph = Graph(y := ops.neg(x).set_output())
        scheduler.compute_async(graph)
        device.fail("kernel")
        gate, original = Gate(), scheduler.backends[0].synchronize

        def slowly() -> None:
            gate()
            original()

        scheduler.backends[0].synchronize = slowly  # type: ignore[method-assign]
        first = Doing(y.numpy)
        until(gate.reached.is_set)
        second = Doing(lambda: again(y, graph))
        assert second.settled()
        gate.open()
        with pytest.raises(gg.ComputeError):
            first.result()
        with pytest.raises(TensorStateError, match="its computation failed: ComputeError"):
            second.result()


# -- models --------------------------------------------------------------------------------------------------


@pytest.fixture
def encoder(data: Path) -> Any:
    models = pytest.importorskip("ggplug_models")
    pytest.importorskip("ggplug_cpu")
    with models.load(data / "bert.gguf", ["CPU"]) as model:
        yield model


def test_threads_embed_with_one_model_and_get_their_own_results(encoder: Any) -> None:
    ids = [[2, 5 + n, 7, 3] for n in range(8)]
    alone = [encoder.embed_ids([each]) for each in ids]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [Doing(lambda n=n: [encoder.embed_ids([ids[n]]) for _ in range(20)]) for n in range(8)]
        for expected, thread in zip(alone, threads, strict=True):
            for got in thread.result():
                np.testing.assert_array_equal(got, expected)
    finally:
        sys.setswitchinterval(before)


def test_a_thread_that_embeds_has_the_model_until_it_has_read_its_result(encoder: Any) -> None:
    first, second = encoder.embed_ids([[2, 5, 3]]), encoder.embed_ids([[2, 9, 3]])
    gate, compute = Gate(), encoder.scheduler.compute

    def slowly(graph: Graph) -> None:
        compute(graph)
        gate()  # computed, and not read yet

    encoder.scheduler.compute = slowly
    with held(lambda: np.testing.assert_array_equal(encoder.embed_ids([[2, 5, 3]]), first), gate):
        other = Doing(lambda: encoder.embed_ids([[2, 9, 3]]))
        hidden = Doing(lambda: encoder.hidden_states([2, 9, 3]))
        freeing = Doing(encoder.free)
        assert other.settled()
        assert hidden.settled()
        assert freeing.settled()
    np.testing.assert_array_equal(other.result(), second)
    assert hidden.result().shape[0] == 3
    freeing.result()
    with pytest.raises(FreedError, match="was freed"):
        encoder.embed_ids([[2, 5, 3]])
    encoder.free()


def test_embedding_within_an_embedding_is_told(encoder: Any) -> None:
    errors: list[BaseException] = []

    def callback(tensor: gg.Tensor, ask: bool) -> bool:
        if not errors:
            for again in (lambda: encoder.embed_ids([[2, 3]]), encoder.free):
                try:
                    again()
                except BusyError as error:
                    errors.append(error)
        return not ask

    alone = encoder.embed_ids([[2, 5, 3]])
    encoder.scheduler.set_eval_callback(callback)
    np.testing.assert_array_equal(encoder.embed_ids([[2, 5, 3]]), alone)
    encoder.scheduler.set_eval_callback(None)
    assert len(errors) == 2
    progress: list[Any] = []
    encoder.embed_ids([[2, 5, 3]], progress=lambda n: progress.append(encoder.embed_ids([[2, 5, 3]])))
    np.testing.assert_array_equal(progress[0], alone)


# -- files and plugins -----------------------------------------------------------------------------------------


def test_a_files_map_stays_while_another_thread_computes_with_it(tmp_path: Path) -> None:
    with gguf.GGUFWriter(tmp_path / "w.gguf", "test") as writer:
        writer.add_tensor("w", np.full(16, 5, np.float32))
    context, _ = gguf.load(tmp_path / "w.gguf")
    gate = Gate()
    device = Walker(gate)
    x = gg.tensor(np.ones(16, np.float32))
    graph = Graph(z := ops.add(ops.neg(x), context["w"]).set_output())
    scheduler = Scheduler([device])
    with held(lambda: scheduler.compute(graph), gate):
        freeing = Doing(context.free)
        assert freeing.settled()
    freeing.result()
    assert z.numpy()[0] == 4


_PLUGIN = """
    from test_threads import Walker
    from ggplug import hookspecs
    from ggplug.backend import API_VERSION, Registration

    class Walkers(Registration):
        name, api_version = "walker", API_VERSION
        def __init__(self): self._devices = [Walker()]
        def devices(self): return self._devices

    @hookspecs.hookimpl
    def ggplug_backend_registration(): return Walkers()
"""


def test_a_plugin_that_is_unloaded_while_it_computes_goes_on(tmp_path: Path) -> None:
    (tmp_path / "walking.py").write_text(textwrap.dedent(_PLUGIN), encoding="utf-8")
    device = gg.load(tmp_path / "walking.py").devices()[0]
    setting = Setting(device)
    device.gate = setting.gate  # type: ignore[attr-defined]
    with held(setting.compute, setting.gate):
        gg.unload("walker")
        with pytest.raises(gg.DeviceNotFoundError):
            gg.device("walker")
    setting.check()
    setting.compute()
    setting.check()


def test_threads_load_and_unload_one_plugin(tmp_path: Path) -> None:
    (tmp_path / "walking.py").write_text(textwrap.dedent(_PLUGIN), encoding="utf-8")

    def work() -> None:
        for _ in range(30):
            try:
                device = gg.load(tmp_path / "walking.py").devices()[0]
                gg.compute(ops.neg(gg.tensor(np.ones(16, np.float32))), backends=[device])
                gg.unload("walker")
            except (gg.PluginError, gg.DeviceNotFoundError):
                continue

    for thread in [Doing(work) for _ in range(3)]:
        thread.result()


_IN_A_HANDLER = """
    import importlib.abc, signal, sys
    import ggplug as gg

    class Interrupting(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name == {within!r}:
                signal.raise_signal(signal.SIGINT)

    def handler(number, frame):
        try:
            {use}
        except gg.BusyError as error:
            print("refused:", error.thing)

    signal.signal(signal.SIGINT, handler)
    sys.meta_path.insert(0, Interrupting())
    {use}
    print("right")
"""


@pytest.mark.parametrize(
    ("use", "within", "thing"),
    [
        ("gg.device", "ggplug.registry.registry", "ggplug.registry"),
        ("gg.registry.device", "ggplug.registry.registry", "ggplug.registry"),
        ("gg.Scheduler", "ggplug.scheduler.scheduler", "ggplug.scheduler"),
        ("gg.compute", "ggplug.scheduler.scheduler", "ggplug.immediate"),
        ("gg.testing.FakeDevice", "ggplug_testing.fake.stream", "ggplug_testing.fake"),
    ],
)
def test_a_signal_handler_that_interrupts_the_first_use_of_a_name_is_told_so(use: str, within: str, thing: str) -> None:
    text = textwrap.dedent(_IN_A_HANDLER).format(use=use, within=within)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == (f"refused: {thing}\nright\n", "", 0)


# -- leaving the interpreter ---------------------------------------------------------------------------------------

_LEAVING = """
    import sys, threading
    sys.path[:0] = {folders}
    from test_threads import *
    begun = threading.Event()
    setting = Setting({device})
    def work():
        while True:
            setting.compute()
            begun.set()
            setting.w.set(np.zeros(16, np.float32))
    threading.Thread(target=work, daemon=True).start()
    begun.wait()
    print("leaving")
    sys.exit(4)
"""


@pytest.mark.parametrize("device", ["Walker()", "FakeDevice('fake')", "FakeDevice('fake', execution='late')"])
def test_leaving_the_interpreter_while_a_daemon_thread_computes_is_quiet(device: str) -> None:
    text = textwrap.dedent(_LEAVING).format(folders=[str(Path(__file__).parent), str(SUPPORT)], device=device)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("leaving\n", "", 4)
