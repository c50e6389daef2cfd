"""Plans are bound to one of several equal graphs after the other: whatever ends that early, the next one is right."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from installed import device_or_skip
from interrupts import interrupted_at, interrupted_everywhere

import ggplug as gg
from ggplug.backend import Device
from ggplug.errors import ComputeError, TensorStateError
from ggplug.memory import GraphAllocator
from ggplug_testing import FakeDevice, ReferenceDevice

N = 8


def computing_device(name: str) -> Device:
    if name == "reference":
        return ReferenceDevice(name)
    if name.startswith("fake"):
        return FakeDevice(name, execution=name.removeprefix("fake-"))  # type: ignore[arg-type]
    return device_or_skip(name)


class Model:
    """A graph with weights ``w`` that keeps what it computes in ``kept``; all of them are equal."""

    def __init__(self, device: Device, value: float, *, set_weights: bool = True) -> None:
        self.context = gg.Context()
        self.w = self.context.new_tensor("f32", (N, N), "w")
        self.x = self.context.new_tensor("f32", (N, 2), "x")
        self.kept = self.context.new_tensor("f32", (N, 2), "kept")
        gg.allocate(self.context, device)
        w, x = np.full((N, N), value, np.float32), np.arange(2 * N, dtype=np.float32).reshape(2, N)
        if set_weights:
            self.w.set(w)
        self.x.set(x)
        self.wanted = 2 * (x @ w.T) + 1
        self.reset()
        product = gg.mul_mat(self.w, self.x)
        self.y = gg.scale(product, 2.0, 1.0).set_output()
        self.graph = gg.Graph(self.y, gg.cpy(self.y, self.kept))

    def reset(self) -> None:
        self.kept.set(np.zeros((2, N), np.float32))

    def check(self, compute: Callable[[gg.Graph], Any], others: Model, place: str) -> None:
        """Computes, and looks at the result, and at what was kept here and in the other model."""
        self.reset()
        others.reset()
        compute(self.graph)
        assert (self.y.numpy() == self.wanted).all(), place
        assert (self.kept.numpy() == self.wanted).all(), place
        assert not others.kept.numpy().any(), place


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Device:
    return computing_device(request.param)


@pytest.fixture
def models(device: Device) -> Iterator[tuple[Model, Model]]:
    a, b = Model(device, 0.5), Model(device, 0.25)
    yield a, b
    a.context.free()
    b.context.free()


BINDING = re.compile(
    r"ggplug\.(scheduler|memory|discrete|plan_cache|plans|walking|graph|groups|tensor)\b"
    r"|ggplug_testing\.fake\b|ggplug_cpu\.(backend|interrupted|tape)$|ggplug_simt\.(plan|binding|stepwise|stream|faults)$"
)


def in_binding(frame: Any) -> bool:
    return BINDING.match(frame.f_globals.get("__name__", "")) is not None


Compute = Callable[[gg.Graph], Any]


@contextlib.contextmanager
def by_scheduler(device: Device, graph: gg.Graph, **options: Any) -> Iterator[Compute]:
    with gg.Scheduler([device], **options) as scheduler:
        yield scheduler.compute


@contextlib.contextmanager
def node_by_node(device: Device, graph: gg.Graph) -> Iterator[Compute]:
    with gg.Scheduler([device]) as scheduler:
        scheduler.set_eval_callback(lambda node, ask: True)
        yield scheduler.compute


@contextlib.contextmanager
def in_flight(device: Device, graph: gg.Graph) -> Iterator[Compute]:
    with by_scheduler(device, graph, n_copies=2) as compute:
        yield compute


@contextlib.contextmanager
def by_stream(device: Device, graph: gg.Graph) -> Iterator[Compute]:
    with device.init() as stream, GraphAllocator(device.buffer_type) as allocator:
        allocation = allocator.allocate(graph, groups=device.groups(graph))

        def compute(graph: gg.Graph) -> None:
            with contextlib.suppress(ComputeError):
                stream.synchronize()  # raises once for work that was interrupted on this thread
            stream.compute(graph, allocation)
            stream.synchronize()

        yield compute


QUICK = [(by_scheduler, "CPU"), (by_scheduler, "OpenCL0"), (by_scheduler, "fake-late"), (by_stream, "OpenCL0")]
EACH = pytest.mark.parametrize(
    ("way", "device"),
    [
        pytest.param(way, name, marks=() if (way, name) in QUICK else pytest.mark.long)
        for way in (by_scheduler, node_by_node, in_flight, by_stream)
        for name in ("CPU", "OpenCL0", "fake-now", "fake-late", "fake-thread", "reference")
    ],
    indirect=["device"],
)


@EACH
def test_an_interrupt_between_equal_graphs_mixes_nothing_up(way: Any, device: Device, models: Any) -> None:
    a, b = models
    with way(device, a.graph) as compute:
        b.check(compute, a, "")
        a.check(compute, b, "")
        interrupts = 0
        for place in interrupted_everywhere(lambda: compute(b.graph), in_binding):
            if interrupts % 2:
                b.check(compute, a, place)
            a.check(compute, b, place)
            interrupts += 1
        assert interrupts > 40


@EACH
def test_a_structure_interrupted_as_it_is_met_first_can_be_computed(way: Any, device: Device, models: Any) -> None:
    a, b = models
    with way(device, a.graph) as compute:
        a.check(compute, b, "")
    for number in itertools.count():
        with way(device, a.graph) as compute, interrupted_at(number, lambda: compute(a.graph), in_binding) as place:
            if place is None:
                break
            a.check(compute, b, place)
            b.check(compute, a, place)
    assert number > 40


# -- errors -------------------------------------------------------------------------------------------


@EACH
def test_a_graph_that_cannot_be_bound_spoils_no_equal_one(way: Any, device: Device, models: Any) -> None:
    a, b = models
    unset = Model(device, 0.125, set_weights=False)
    with way(device, a.graph) as compute:
        for _ in range(2):
            a.check(compute, b, "")
            with pytest.raises(TensorStateError, match=r"'w'.* has no value: set it before computing"):
                compute(unset.graph)
            a.check(compute, b, "")
            b.check(compute, a, "")
            with pytest.raises(TensorStateError, match=r"'w'.* has no value: set it before computing"):
                compute(unset.graph)
            assert not unset.kept.numpy().any()
    unset.context.free()


@EACH
def test_a_graph_whose_memory_was_freed_spoils_no_equal_one(way: Any, device: Device, models: Any) -> None:
    a, b = models
    gone = Model(device, 0.125)
    with way(device, a.graph) as compute:
        gone.check(compute, a, "")
        a.check(compute, b, "")
        gone.context.free()
        for _ in range(2):
            with pytest.raises(TensorStateError):
                compute(gone.graph)
            a.check(compute, b, "")
            b.check(compute, a, "")


def test_an_interrupt_as_a_tensor_is_moved_leaves_no_stale_binding() -> None:
    device = gg.device("CPU")
    model = Model(device, 0.5)
    other = device.buffer_type.alloc(model.w.nbytes)
    old = model.w.buffer
    with gg.Scheduler([device]) as scheduler:
        scheduler.compute(model.graph)
        for _ in interrupted_everywhere(lambda: model.w.place(other)):
            model.w.set(np.full((N, N), 0.25, np.float32))
            scheduler.compute(model.graph)
            assert (model.y.numpy() == 2 * (model.x.numpy() @ model.w.numpy().T) + 1).all()
            model.w.place(old)
            model.w.set(np.full((N, N), 0.5, np.float32))
            scheduler.compute(model.graph)
            assert (model.y.numpy() == model.wanted).all()


def test_an_interrupt_as_a_graph_grows_leaves_the_graph_as_it_was() -> None:
    x = gg.tensor(np.ones(8, np.float32))
    y = gg.scale(x, 2.0).set_output()
    graph = gg.Graph(y)
    wanted = str(graph)
    outputs = [gg.add(gg.scale(y, float(n)), gg.silu(x)) for n in range(2)]
    for _ in interrupted_everywhere(lambda: graph.expand(*outputs)):
        assert str(graph) == wanted
        assert len(graph.tensors) == len(graph.index) == len(graph.roots) == len(graph.sources) == 2
    assert len(graph.tensors) == 8
    with gg.Scheduler([gg.device("CPU")]) as scheduler:
        scheduler.compute(graph)
        assert (y.numpy() == 2).all()
