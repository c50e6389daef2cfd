"""Python functions as nodes of a graph: what they are given, who calls them, and what happens when they fail."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import threading
import weakref
from typing import Any, ClassVar

import numpy as np
import pytest

import ggplug as gg
from ggplug import host
from ggplug.backend import BufferType, Decline, Device, Memory, Operand, call_python
from ggplug.errors import (
    BufferUseError,
    BusyError,
    ComputeAborted,
    ComputeError,
    OutOfMemoryError,
    ParameterError,
    SerializationError,
    TypeMismatchError,
)
from ggplug.graph import Graph
from ggplug.ops import Neg, PythonCall
from ggplug.types import DeviceKind
from ggplug_cpu.device import CpuDevice
from ggplug_testing import FakeDevice, ReferenceDevice
from ggplug_testing.judging.oracle import evaluate


class Dictionary(Device):
    """The smallest device: two rows."""

    name = "dictionary"
    description = "a dictionary of kernels"
    kind = DeviceKind.CPU

    @staticmethod
    def _neg(op: Any, dst: Operand, x: Operand) -> None:
        np.negative(x.array(), out=dst.array())

    kernels: ClassVar = {PythonCall: call_python, Neg: _neg}

    def __init__(self) -> None:
        self._buffer_type = host.HostBufferType(self.name, self)

    def memory(self) -> Memory:
        return host.memory()

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type


HOSTS = [CpuDevice, ReferenceDevice, Dictionary]
hosts = pytest.mark.parametrize("kind", HOSTS, ids=lambda kind: kind.__name__)


def x(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1


def doubled(dst: Any, a: Any, ith: int, nth: int, userdata: Any) -> None:
    np.multiply(a, 2, out=dst)


def computed(device: Device, result: gg.Tensor) -> Any:
    with gg.Scheduler([device.init()]) as scheduler:
        scheduler.compute(Graph(result.set_output()))
        return result.numpy()


@hosts
def test_a_function_reads_and_writes_in_the_middle_of_a_graph(kind: type[Device]) -> None:
    a = gg.tensor(x(3, 4))
    y = gg.neg(gg.map_custom1(gg.neg(a), doubled))
    np.testing.assert_array_equal(computed(kind(), y), 2 * x(3, 4))


@hosts
def test_two_and_three_sources_and_any_number(kind: type[Device]) -> None:
    a, b, c = x(3, 4), x(3, 4) * 10, x(1, 2)

    def two(dst: Any, a: Any, b: Any, ith: int, nth: int, userdata: Any) -> None:
        dst[...] = a + b * userdata

    def three(dst: Any, a: Any, b: Any, c: Any, ith: int, nth: int, userdata: Any) -> None:
        dst[...] = a + b + c.sum()

    def many(dst: Any, *given: Any) -> None:
        *sources, ith, nth, userdata = given
        dst[0, 0] = [[each.size for each in sources], [ith, nth, len(userdata)]]

    device, given = kind(), [gg.tensor(each) for each in (a, b, c)]
    np.testing.assert_array_equal(computed(device, gg.map_custom2(*given[:2], two, 1, 2.0)), a + 2 * b)
    np.testing.assert_array_equal(computed(device, gg.map_custom3(*given, three)), a + b + c.sum())
    y = gg.custom_4d("i32", (3, 2), given, many, userdata="word")
    np.testing.assert_array_equal(computed(device, y), [[12, 12, 2], [0, 1, 4]])
    z = gg.custom_4d(gg.F32, (2,), [], lambda dst, ith, nth, userdata: dst.fill(7))
    np.testing.assert_array_equal(computed(device, z), [7, 7])


@pytest.mark.parametrize(("n_tasks", "expected"), [(1, 1), (2, 2), (9, 3), (-1, 3)])
def test_parts_are_numbered_as_in_ggml(n_tasks: int, expected: int) -> None:
    seen = []

    def noting(dst: Any, a: Any, ith: int, nth: int, userdata: Any) -> None:
        seen.append((ith, nth))
        dst[:, :, ith::nth] = a[:, :, ith::nth]

    with CpuDevice().init(n_threads=3) as stream, gg.Scheduler([stream]) as scheduler:
        y = gg.map_custom1(gg.tensor(x(5, 4)), noting, n_tasks).set_output()
        scheduler.compute(Graph(y))
        np.testing.assert_array_equal(y.numpy(), x(5, 4))
    assert seen == [(ith, expected) for ith in range(expected)]


def test_the_inplace_forms_begin_with_what_is_there() -> None:
    def first(dst: Any, *given: Any) -> None:
        dst[..., 0] = -1

    for make in (
        lambda a: gg.map_custom1_inplace(a, first),
        lambda a: gg.map_custom2_inplace(a, a, first),
        lambda a: gg.map_custom3_inplace(a, a, a, first),
        lambda a: gg.custom_inplace(a, [a], first),
    ):
        a = gg.tensor(x(2, 3))
        y = make(a)
        assert y.view_src is a
        computed(CpuDevice(), y)
        np.testing.assert_array_equal(a.numpy(), [[-1, 2, 3], [-1, 5, 6]])


def test_sources_are_read_only_views_in_numpys_order_with_the_tensors_strides() -> None:
    found = {}

    def looking(dst: Any, a: Any, b: Any, ith: int, nth: int, userdata: Any) -> None:
        found.update(shape=a.shape, strides=a.strides, bits=b.dtype, dst=dst.shape)
        with pytest.raises(ValueError, match="read-only"):
            a[...] = 0
        for each in (a, b):
            with pytest.raises(ValueError, match="WRITEABLE"):
                each.flags.writeable = True
        dst[...] = a

    a = gg.transpose(gg.tensor(x(2, 3)))
    b = gg.tensor(x(4), "bf16")
    np.testing.assert_array_equal(computed(CpuDevice(), gg.map_custom2(a, b, looking)), x(2, 3).T)
    assert found == {"shape": (1, 1, 3, 2), "strides": (24, 24, 4, 12), "bits": np.dtype("u2"), "dst": (1, 1, 3, 2)}


def test_arguments_of_other_kinds_are_refused_in_words() -> None:
    a = gg.tensor(x(3))
    with pytest.raises(gg.TypeMismatchError, match="Type or its name, got None"):
        gg.custom_4d(None, (4,), [a], doubled)  # type: ignore[arg-type]
    with pytest.raises(gg.TypeMismatchError, match="must be a sequence of tensors, got None"):
        gg.custom_4d("f32", (4,), None, doubled)  # type: ignore[arg-type]
    assert gg.custom_4d("f32", 4, [a], doubled).ne == (4, 1, 1, 1)


def test_a_callable_that_raises_when_it_is_asked_for_its_name_is_told_by_its_class() -> None:
    class Odd:
        def __call__(self, *given: Any) -> None:
            raise ValueError("from within")

        def __getattr__(self, name: str) -> Any:
            raise ValueError(name)

    with pytest.raises(gg.ComputeError, match="Odd") as caught:
        computed(CpuDevice(), gg.map_custom1(gg.tensor(x(3)), Odd()))
    assert str(caught.value.__cause__) == "from within"


def test_the_reference_calls_the_function_in_float64() -> None:
    y = gg.map_custom1(gg.tensor(x(2, 2)), doubled)
    values = evaluate(Graph(y), {})[y]
    np.testing.assert_array_equal(values.reshape(2, 2), 2 * x(2, 2))


# -- identity --------------------------------------------------------------------------------------


def test_nodes_of_one_function_are_equal_and_of_two_are_not() -> None:
    a, data = gg.tensor(x(2)), {"shared": 1}
    make = lambda: lambda dst, a, ith, nth, userdata: None  # noqa: E731
    one, two = make(), make()
    first = gg.map_custom1(a, one, 1, data).op
    assert first == gg.map_custom1(a, one, 1, data).op
    assert hash(first) == hash(gg.map_custom1(a, one, 1, data).op)
    assert first != gg.map_custom1(a, two, 1, data).op
    assert first != gg.map_custom1(a, one, 1, {"shared": 1}).op
    assert first != gg.map_custom1(a, one, 2, data).op


def test_a_callable_that_claims_to_equal_all_others_is_still_itself() -> None:
    class Same:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

        def __call__(self, dst: Any, a: Any, ith: int, nth: int, userdata: Any) -> None:
            np.multiply(a, self.factor, out=dst)

    two, three = Same(2), Same(3)
    with gg.Scheduler([CpuDevice().init()]) as scheduler:
        for _ in range(2):
            for function in (two, three):
                y = gg.map_custom1(gg.tensor(x(3)), function).set_output()
                scheduler.compute(Graph(y))
                np.testing.assert_array_equal(y.numpy(), x(3) * function.factor)


def test_a_method_is_that_of_its_object() -> None:
    class Layer:
        def forward(self, dst: Any, a: Any, ith: int, nth: int, userdata: Any) -> None: ...

    a, layer, other = gg.tensor(x(2)), Layer(), Layer()
    node = gg.map_custom1(a, layer.forward)
    assert node.op == gg.map_custom1(a, layer.forward).op
    assert node.op != gg.map_custom1(a, other.forward).op


def test_equal_graphs_share_a_plan_and_others_do_not() -> None:
    def tripled(dst: Any, a: Any, ith: int, nth: int, userdata: Any) -> None:
        np.multiply(a, 3, out=dst)

    device, leaf = CpuDevice(), gg.tensor(x(3))
    first, again, other = (Graph(gg.map_custom1(leaf, each)) for each in (doubled, doubled, tripled))
    assert first.signature() == again.signature()
    assert first.signature() != other.signature()
    with device.init() as stream:
        for graph, factor in ((first, 2), (again, 2), (other, 3), (first, 2)):
            allocation = gg.allocate_graph(graph, device.buffer_type)
            stream.compute(graph, allocation)
            np.testing.assert_array_equal(graph.nodes[-1].numpy(), x(3) * factor)


def test_neither_caches_nor_plans_keep_a_function_alive() -> None:
    class Function:
        def __call__(self, dst: Any, a: Any, ith: int, nth: int, userdata: Any) -> None:
            doubled(dst, a, ith, nth, userdata)

    function = Function()
    seen = weakref.ref(function)
    device = CpuDevice()
    with device.init() as stream:
        graph = Graph(gg.map_custom1(gg.tensor(x(3)), function))
        allocation = gg.allocate_graph(graph, device.buffer_type)
        stream.compute(graph, allocation)
        del function, graph, allocation
        gc.collect()
        assert seen() is None


def test_a_function_is_never_serialised() -> None:
    op = gg.map_custom1(gg.tensor(x(2)), doubled).op
    with pytest.raises(SerializationError, match=r"calls the Python function .*doubled cannot be written"):
        pickle.dumps(op)
    assert copy.deepcopy(op) == op
    assert copy.copy(op) == op


# -- what goes wrong -------------------------------------------------------------------------------


@hosts
@pytest.mark.parametrize(
    ("error", "wanted"),
    [(ValueError("bad"), ComputeError), (MemoryError(), OutOfMemoryError), (BufferUseError("mine"), ComputeError)],
)
def test_what_a_function_raises_is_the_cause_of_an_error_that_names_the_node(
    kind: type[Device], error: Exception, wanted: type[Exception]
) -> None:
    fails = True

    def sometimes(dst: Any, a: Any, ith: int, nth: int, userdata: Any) -> None:
        if fails:
            raise error
        doubled(dst, a, ith, nth, userdata)

    a = gg.tensor(x(3))
    y = gg.neg(gg.map_custom1(gg.neg(a), sometimes, name="mine")).set_output()
    z = gg.neg(a).set_output()
    with gg.Scheduler([kind().init()]) as scheduler:
        with pytest.raises(wanted, match="'mine'") as caught:
            scheduler.compute(Graph(y))
        assert caught.value.__cause__ is error
        assert caught.value.tensor.name == "mine"
        scheduler.compute(Graph(z))
        np.testing.assert_array_equal(z.numpy(), -x(3))
        fails = False
        scheduler.compute(Graph(y))
        np.testing.assert_array_equal(y.numpy(), 2 * x(3))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_function_goes_through_and_leaves_nothing_claimed(error: type[BaseException]) -> None:
    def stopping(dst: Any, a: Any, ith: int, nth: int, userdata: Any) -> None:
        raise error

    a = gg.tensor(x(3))
    with gg.Scheduler([CpuDevice().init()]) as scheduler:
        with pytest.raises(error):
            scheduler.compute(Graph(gg.map_custom1(a, stopping)))
        a.set(x(3) * 2)
        y = gg.neg(a).set_output()
        scheduler.compute(Graph(y))
        np.testing.assert_array_equal(y.numpy(), -2 * x(3))


@pytest.mark.parametrize("answer", [np.ones(3), 1.0, [1, 2]])
def test_a_function_that_returns_its_result_is_told_to_write_it(answer: Any) -> None:
    with pytest.raises(ComputeError, match="must write its result into dst, of shape") as caught:
        computed(CpuDevice(), gg.map_custom1(gg.tensor(x(3)), lambda *given: answer))
    assert isinstance(caught.value.__cause__, TypeMismatchError)


def test_a_function_may_return_dst() -> None:
    y = gg.map_custom1(gg.tensor(x(3)), lambda dst, a, ith, nth, userdata: np.negative(a, out=dst))
    np.testing.assert_array_equal(computed(CpuDevice(), y), -x(3))


def test_what_cannot_be_called_and_numbers_of_parts_are_refused() -> None:
    a = gg.tensor(x(3))
    with pytest.raises(TypeMismatchError, match="callable"):
        gg.map_custom1(a, 3)  # type: ignore[arg-type]
    for n_tasks in (0, -2):
        with pytest.raises(ParameterError, match="n_tasks"):
            gg.map_custom1(a, doubled, n_tasks)
    with pytest.raises(ParameterError, match="at most 9"):
        gg.custom_4d("f32", (3,), [a] * 10, doubled)
    with pytest.raises(TypeMismatchError, match="must be tensors"):
        gg.custom_4d("f32", (3,), [3], doubled)  # type: ignore[list-item]


# -- functions that use ggplug ---------------------------------------------------------------------


def test_a_function_computes_with_ggplug_and_reads_tensors() -> None:
    weights = gg.tensor(x(3))

    def inside(dst: Any, a: Any, ith: int, nth: int, userdata: Any) -> None:
        dst[...] = gg.compute(gg.add(gg.tensor(np.array(a[0, 0, 0])), weights)).numpy() + weights.numpy()

    y = gg.neg(gg.map_custom1(gg.neg(weights), inside))
    np.testing.assert_array_equal(gg.compute(y).numpy(), -x(3))


def test_what_a_function_must_not_do_to_the_computation_around_it_is_refused() -> None:
    device = CpuDevice()
    with device.init() as stream, gg.Scheduler([stream]) as scheduler:
        found: list[BaseException] = []
        a = gg.new_tensor("f32", (3,))
        a.place(device.buffer_type.alloc(12))
        a.set(x(3))

        def trying(dst: Any, b: Any, ith: int, nth: int, userdata: Any) -> None:
            for attempt in (lambda: scheduler.compute(Graph(gg.neg(a))), lambda: a.root.buffer.free()):  # type: ignore[union-attr]
                with pytest.raises(BusyError) as caught:
                    attempt()
                found.append(caught.value)
            doubled(dst, b, ith, nth, userdata)

        y = gg.map_custom1(a, trying).set_output()
        scheduler.compute(Graph(y))
        np.testing.assert_array_equal(y.numpy(), 2 * x(3))
        assert len(found) == 2


def test_other_threads_compute_while_a_function_runs_and_leave_its_sources_alone() -> None:
    entered, done, order = threading.Event(), threading.Event(), []
    a, b = gg.tensor(x(3)), gg.tensor(x(4))
    device = CpuDevice()

    def waiting(dst: Any, c: Any, ith: int, nth: int, userdata: Any) -> None:
        entered.set()
        assert done.wait(30)
        order.append("function")
        doubled(dst, c, ith, nth, userdata)

    def on_another_thread() -> None:
        assert entered.wait(30)
        order.append(computed(device, gg.neg(b)).tolist())
        done.set()
        a.set(x(3) * 100)  # waits until the computation has ended
        order.append("set")

    thread = threading.Thread(target=on_another_thread)
    thread.start()
    y = gg.add(gg.map_custom1(a, waiting), a)
    np.testing.assert_array_equal(computed(device, y), 3 * x(3))
    thread.join()
    assert order == [(-x(4)).tolist(), "function", "set"]


def test_an_abort_while_a_function_runs_ends_the_computation_behind_it() -> None:
    device = CpuDevice()
    with device.init() as stream, gg.Scheduler([stream]) as scheduler:
        after: list[int] = []

        def aborting(dst: Any, a: Any, ith: int, nth: int, userdata: Any) -> None:
            stream.abort()

        def counting(dst: Any, a: Any, ith: int, nth: int, userdata: Any) -> None:
            after.append(1)

        y = gg.map_custom1(gg.neg(gg.map_custom1(gg.tensor(x(3)), aborting)), counting)
        with pytest.raises(ComputeAborted):
            scheduler.compute(Graph(y))
        assert not after
        stream.set_abort_callback(lambda: True)
        with pytest.raises(ComputeAborted):
            scheduler.compute(Graph(gg.map_custom1(gg.tensor(x(3)), doubled)))
        stream.set_abort_callback(None)
        np.testing.assert_array_equal(computed(device, gg.map_custom1(gg.tensor(x(3)), doubled)), 2 * x(3))


def test_a_traced_computation_tells_when_the_function_ran() -> None:
    device = CpuDevice()
    graph = Graph(gg.neg(gg.map_custom1(gg.neg(gg.tensor(x(3))), doubled)))
    allocation = gg.allocate_graph(graph, device.buffer_type)
    with device.init() as stream:
        plan = stream.plan(graph)
        plan.rebind(graph, allocation)
        times = plan.compute_traced()
        assert [time.node for time in times] == [graph.index[node] for node in graph.nodes]
        starts = [time.start for time in times]
        assert starts == sorted(starts)
        plan.free()


# -- where -----------------------------------------------------------------------------------------


def test_a_gpu_declines_and_the_scheduler_takes_the_host() -> None:
    gpu, cpu = FakeDevice("gpu0"), CpuDevice()
    a = gg.tensor(x(3))
    y = gg.neg(gg.map_custom1(gg.neg(a), doubled)).set_output()
    declined = gpu.supports_op(y.src[0])  # type: ignore[arg-type]
    assert isinstance(declined, Decline)
    assert "Python functions" in declined.reason
    with gg.Scheduler([gpu.init(), cpu.init()]) as scheduler:
        graph = Graph(y)
        scheduler.compute(graph)
        np.testing.assert_array_equal(y.numpy(), 2 * x(3))
        assert "map_custom1" in str(scheduler.explain(graph))


def test_a_gpus_table_says_why_it_declines() -> None:
    kernels = pytest.importorskip("ggplug_simt.c.kernels")
    answer = kernels.CHOOSERS[PythonCall](None, None)
    assert isinstance(answer, Decline)
    assert "host devices" in answer.reason


_KEEPS = """
import numpy as np
import ggplug as gg

kept = []

def keep(dst, a, ith, nth, userdata):
    kept.append((dst, a))
    dst[...] = a

def compute():
    x = np.ones(1 << 20, np.float32)
    return gg.compute(gg.scale(gg.map_custom1(gg.tensor(x), keep), 1.0)).numpy()

compute()
for _ in range(3):
    gg.compute(gg.scale(gg.tensor(np.ones(1 << 23, np.float32)), 2.0)).numpy()
others = [np.full(1 << 20, 3.0, np.float32) for _ in range(8)]
(dst, a), = kept
a.sum()
dst[...] = 5
assert all((other == 3).all() for other in others)
"""


def test_arrays_that_a_function_keeps_outlive_the_memory_of_the_tensors() -> None:
    done = subprocess.run([sys.executable, "-c", _KEEPS], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_memory_that_nothing_keeps_alive_is_copied_for_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.HostBuffer, "keeper", None)
    kept = []

    def keep(dst: Any, a: Any, ith: int, nth: int, userdata: Any) -> None:
        kept.append(a)
        dst[...] = 2 * a

    stream = ReferenceDevice().init()
    x = gg.tensor(np.arange(6, dtype=np.float32))
    y = gg.map_custom1(x, keep).set_output()
    with gg.Scheduler([stream]) as scheduler:
        scheduler.compute(Graph(y))
        np.testing.assert_array_equal(y.numpy(), 2 * np.arange(6))
    np.testing.assert_array_equal(kept[0].reshape(-1), np.arange(6))
