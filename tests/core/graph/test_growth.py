"""What is done to n things takes n times the work of one: steps of Python are counted, never time."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from installed import device_or_skip

import ggplug as gg
from ggplug.gguf import GGUFWriter
from ggplug.host import HOST
from ggplug.memory import allocate_graph
from ggplug.nodes.hazards import Hazards
from ggplug.quantizing import quantize_file
from ggplug_testing.contracts.stepping import traced
from ggplug_testing.fake import FakeDevice

Steps = Iterator[None]


def steps(action: Callable[[], Any]) -> int:
    """How many lines of Python an action runs through; each iteration of a loop or comprehension is one more."""
    done = itertools.count()
    traced(action, lambda: next(done))
    return next(done)


def check_growth(prepare: Callable[[int], contextlib.AbstractContextManager[Callable[[], Any]]], n: int = 50) -> None:
    """From 2n to 4n things come twice the steps that come from n to 2n, but four times, were each to look at all."""
    with prepare(2) as action:
        action()  # what is compiled and kept
    counts = []
    for size in (n, 2 * n, 4 * n):
        with prepare(size) as action:
            counts.append(steps(action))
    one, two, four = counts
    assert n <= two - one
    assert four - two < 2.5 * (two - one), counts


def test_what_looks_at_all_for_each_is_found() -> None:
    things = {
        "each": lambda n: [i for i in range(n)],  # noqa: C416
        "all": lambda n: [[j for j in range(n)] for i in range(n)],  # noqa: C416
    }
    check_growth(lambda n: contextlib.nullcontext(lambda: things["each"](n)))
    with pytest.raises(AssertionError):
        check_growth(lambda n: contextlib.nullcontext(lambda: things["all"](n)))


# -- what has no value yet -------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["in order", "backwards"])
@pytest.mark.parametrize("name", ["CPU", "fake", "OpenCL0"])
def test_inputs_are_set_one_after_the_other(name: str, order: str) -> None:
    device = FakeDevice() if name == "fake" else device_or_skip(name)

    @contextlib.contextmanager
    def prepared(n: int) -> Iterator[Callable[[], Any]]:
        inputs = [gg.new_tensor("f32", 4).set_input() for _ in range(n)]
        graph = gg.Graph(*(gg.neg(x) for x in inputs))
        values = np.ones(4, np.float32)
        with gg.Scheduler([device, *([] if name == "CPU" else [gg.device("CPU")])]) as scheduler:
            scheduler.allocate(graph)
            yield lambda: [x.set(values) for x in (inputs if order == "in order" else inputs[::-1])]
            scheduler.compute(graph)

    check_growth(prepared)


@pytest.mark.parametrize("name", ["CPU", "fake", "OpenCL0"])
def test_a_file_of_many_tensors_is_loaded(name: str, tmp_path: Path) -> None:
    device = FakeDevice() if name == "fake" else device_or_skip(name)
    where = device.buffer_type  # copied, also where the map could be used

    @contextlib.contextmanager
    def prepared(n: int) -> Iterator[Callable[[], Any]]:
        with GGUFWriter(tmp_path / f"{n}.gguf", arch="test") as writer:
            for number in range(n):
                writer.add_tensor(f"{number}", np.ones(4, np.float32))
        loaded: list[gg.Context] = []
        yield lambda: loaded.append(gg.gguf.load(tmp_path / f"{n}.gguf", where)[0])
        loaded[0].free()

    check_growth(prepared)


def test_a_file_of_many_tensors_is_written_and_quantised(tmp_path: Path) -> None:
    def written(n: int) -> Path:
        writer = GGUFWriter(tmp_path / f"{n}.gguf", "test")
        writer.add("test.block_count", 1)
        for number in range(n):
            writer.add_tensor(f"{number}.weight", np.ones((2, 32), np.float32))
        return writer.write()[0]

    check_growth(lambda n: contextlib.nullcontext(lambda: written(n)))
    check_growth(lambda n: contextlib.nullcontext(lambda: quantize_file(written(n), tmp_path / "out.gguf", "Q8_0")))


def test_rows_are_written_far_from_what_is_unset() -> None:
    @contextlib.contextmanager
    def prepared(n: int) -> Iterator[Callable[[], Any]]:
        with gg.Context() as context:
            for number in range(2 * n):
                context.new_tensor("f32", 16, f"{number}")
            (buffer,) = gg.allocate(context, HOST)
            for tensor in context.tensors[:n]:
                tensor.set(1)
            half = np.zeros(64 * n, np.uint8)
            yield lambda: [buffer.set(0, half) for _ in range(n)]

    check_growth(prepared)


# -- accesses to the bytes of one tensor -----------------------------------------------------------


def row_by_row(cache: gg.Tensor, row: Callable[[int], gg.Tensor], n: int) -> Iterator[gg.Tensor]:
    for i in range(n):
        yield gg.cpy(gg.silu(gg.new_tensor("f32", 4)), row(i))
        yield gg.add(gg.scale(row(i), 2.0), gg.new_tensor("f32", 4))


def all_after_each_row(cache: gg.Tensor, row: Callable[[int], gg.Tensor], n: int) -> Iterator[gg.Tensor]:
    for i in range(n):
        yield gg.cpy(gg.silu(gg.new_tensor("f32", 4)), row(i))
        yield gg.neg(cache)


def all_rows_then_all(cache: gg.Tensor, row: Callable[[int], gg.Tensor], n: int) -> Iterator[gg.Tensor]:
    for i in range(n):
        yield gg.cpy(gg.silu(gg.new_tensor("f32", 4)), row(i))
    for _ in range(n):
        yield gg.neg(cache)


def all_over_again(cache: gg.Tensor, row: Callable[[int], gg.Tensor], n: int) -> Iterator[gg.Tensor]:
    for _ in range(n):
        yield gg.cpy(gg.silu(cache), cache)


USES = [row_by_row, all_after_each_row, all_rows_then_all, all_over_again]


@contextlib.contextmanager
def one_cache(use: Any, n: int) -> Iterator[gg.Graph]:
    with gg.Context() as context:
        cache = context.new_tensor("f32", (4, n), "cache")
        gg.allocate(context, HOST)
        cache.set(1)
        yield gg.Graph(*use(cache, lambda i: gg.view(cache, 4, offset=16 * i), n))


@pytest.mark.parametrize("use", USES)
def test_an_order_of_reads_and_writes_of_one_tensor_is_checked(use: Any) -> None:
    @contextlib.contextmanager
    def prepared(n: int) -> Iterator[Callable[[], Any]]:
        with one_cache(use, n) as graph:
            yield lambda: Hazards(graph).check_order(graph.order)

    check_growth(prepared)


@pytest.mark.parametrize("devices", ["CPU", "fake CPU"])
@pytest.mark.parametrize("use", USES)
def test_reads_and_writes_of_one_tensor_are_allocated_and_computed(use: Any, devices: str) -> None:
    @contextlib.contextmanager
    def prepared(n: int) -> Iterator[Callable[[], Any]]:
        found = [FakeDevice() if name == "fake" else device_or_skip(name) for name in devices.split()]
        with one_cache(use, n) as graph, gg.Scheduler(found) as scheduler:

            def run() -> None:
                scheduler.allocate(graph)
                for leaf in graph.leafs:
                    if leaf.name != "cache":
                        leaf.set(1)
                scheduler.compute(graph)

            yield run

    check_growth(prepared, 30)


# -- everything else that grows with a model or a graph --------------------------------------------


def tensors(n: int) -> list[gg.Tensor]:
    return [gg.new_tensor("f32", 4, f"{number}") for number in range(n)]


def filled(n: int) -> gg.Context:
    context = gg.Context()
    for tensor in tensors(n):
        context.add(tensor)
    return context


def chain(n: int) -> gg.Graph:
    y = gg.new_tensor("f32", 4).set_input()
    for _ in range(n):
        y = gg.add(gg.silu(y), gg.new_tensor("f32", 4).set_input())
    return gg.Graph(y)


def fan(n: int) -> gg.Graph:
    """One tensor that n nodes read, and one that reads all of these."""
    x = gg.new_tensor("f32", 4).set_input()
    parts = [gg.scale(x, 2.0) for _ in range(n)]
    while len(parts) > 1:
        parts = [gg.add(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)] + parts[len(parts) & ~1 :]
    return gg.Graph(parts[0])


def in_one_buffer(n: int, places: Callable[[int], int]) -> gg.Graph:
    buffer = HOST.alloc(64 * n + 64)
    found = tensors(n)
    for number, tensor in enumerate(found):
        tensor.place(buffer, places(number))
    return gg.Graph(*(gg.neg(tensor) for tensor in found))


def kept(graph: gg.Graph) -> Callable[[], Any]:
    return lambda: allocate_graph(graph, HOST)


def placed(n: int) -> gg.Context:
    context = filled(n)
    gg.allocate(context, HOST)
    return context


def allocated(context: gg.Context, where: Any) -> Callable[[], Any]:
    return lambda: gg.allocate(context, where)


def read_and_freed(n: int) -> Callable[[], Any]:
    context = placed(n)
    graph = gg.Graph(*map(gg.neg, context))
    return lambda: (graph.watch(), context.free())


def explained(graph: gg.Graph) -> Callable[[], Any]:
    def explain() -> None:
        with gg.Scheduler([FakeDevice(), gg.device("CPU")]) as scheduler:
            str(scheduler.explain(graph))

    return explain


def scheduled(graph: gg.Graph) -> Callable[[], Any]:
    def allocate() -> None:
        with gg.Scheduler([FakeDevice(), gg.device("CPU")]) as scheduler:
            scheduler.allocate(graph)

    return allocate


def many_graphs(n: int) -> Callable[[], Any]:
    x = gg.new_tensor("f32", 4)
    return lambda: [gg.Graph(gg.neg(x)) for _ in range(n)]


ACTIONS: dict[str, Callable[[int], Callable[[], Any]]] = {
    "a context is filled": lambda n: lambda: filled(n),
    "a context is allocated": lambda n: allocated(filled(n), HOST),
    "a context is allocated on a device": lambda n: allocated(filled(n), FakeDevice()),
    "a context is freed": lambda n: placed(n).free,
    "a context is freed that a graph reads": read_and_freed,
    "a chain": lambda n: lambda: chain(n),
    "a fan": lambda n: lambda: fan(n),
    "many graphs of one tensor": many_graphs,
    "a chain allocated": lambda n: kept(chain(n)),
    "a fan allocated": lambda n: kept(fan(n)),
    "a chain scheduled": lambda n: scheduled(chain(n)),
    "a fan scheduled": lambda n: scheduled(fan(n)),
    "a chain explained": lambda n: explained(chain(n)),
    "a fan explained": lambda n: explained(fan(n)),
    "a chain drawn": lambda n: chain(n).dot,
    "a chain as a table": lambda n: chain(n).__str__,
    "signature of tensors apart": lambda n: in_one_buffer(n, lambda i: 64 * i).signature,
    "signature of tensors that share bytes": lambda n: in_one_buffer(n, lambda i: 8 * i).signature,
    "users": lambda n: fan(n).users,
    "a graph is cleared": lambda n: fan(n).clear,
}


@pytest.mark.parametrize("what", ACTIONS)
def test_more_of_them_take_as_much_more(what: str) -> None:
    check_growth(lambda n: contextlib.nullcontext(ACTIONS[what](n)))
