"""A tensor that nobody set is not computed with: what lay in its memory before is somebody else's."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from held import Doing
from python_calls import python_calls
from simt_stand_in import StandInDevice

import ggplug as gg
from ggplug.backend import Device
from ggplug.errors import BufferUseError, TensorStateError
from ggplug.values.unset import Unset


@pytest.fixture(params=["CPU", "OpenCL0"])
def device(request: pytest.FixtureRequest) -> Device:
    try:
        return gg.device(request.param)
    except gg.DeviceNotFoundError:
        pytest.skip(f"there is no {request.param} here")


def doubled() -> tuple[gg.Tensor, gg.Tensor, gg.Graph]:
    x = gg.new_tensor("f32", 8, "query").set_input()
    y = gg.scale(x, 2.0).set_output()
    return x, y, gg.Graph(y)


def test_an_input_that_was_not_set_is_refused_by_a_scheduler(device: Device) -> None:
    x, y, graph = doubled()
    with gg.Scheduler([device]) as scheduler:
        scheduler.allocate(graph)
        with pytest.raises(TensorStateError, match=r"'query'.* has no value: set it before computing") as seen:
            scheduler.compute(graph)
        assert seen.value.tensor is x
        x.set(3)
        scheduler.compute(graph)
        scheduler.compute(graph)
        scheduler.allocate(graph)  # it keeps its value
        scheduler.compute(graph)
        assert (y.numpy() == 6).all()
        other, _, again = doubled()
        scheduler.allocate(again)
        with pytest.raises(TensorStateError, match="'query'"):
            scheduler.compute(again)
        other.set(1)
        scheduler.compute(again)


WAYS: dict[str, Callable[[gg.Tensor], object]] = {
    "set": lambda w: w.set(1),
    "set_bytes": lambda w: w.set_bytes(np.ones(8, np.float32)),
    "view": lambda w: gg.view(w, 8).set(1),
    "buffer.set": lambda w: w.buffer.set(w.offset, np.ones(8, np.float32)),
    "buffer.clear": lambda w: w.buffer.clear(),
    "copy_from": lambda w: w.buffer.copy_from(gg.tensor(np.ones(8, np.float32)).buffer, 0, w.offset, 32),
    "locate": lambda w: w.locate(),
    "set_2d": lambda w: w.buffer.set_2d(w.offset, np.ones(32, np.uint8), 8, 4, 8),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_weight_counts_as_set_in_whatever_way_it_was(device: Device, way: str) -> None:
    with gg.Context() as context, gg.Scheduler([device]) as scheduler:
        w, other = context.new_tensor("f32", 8, "weight"), context.new_tensor("f32", 8, "other")
        gg.allocate(context, device)
        graph = gg.Graph(gg.scale(w, 2.0).set_output())
        for _ in range(2):
            with pytest.raises(TensorStateError, match=r"'weight'.* has no value: set it before computing"):
                scheduler.compute(graph)
        other.set(1)
        with pytest.raises(TensorStateError, match="'weight'"):
            scheduler.compute(graph)
        WAYS[way](w)
        scheduler.compute(graph)


def _refused_set_async(w: gg.Tensor) -> None:
    assert w.buffer is not None
    with w.buffer_type.device.init() as stream, pytest.raises(gg.BufferUseError):
        stream.set_async(w.buffer, w.buffer.size - 8, np.ones(64, np.uint8))


def _copied_from(w: gg.Tensor) -> None:
    with gg.device("CPU").buffer_type.alloc(64) as target, w.buffer_type.device.init() as stream:
        target.copy_from(w.buffer, 0, 0, 32)
        stream.copy_async(w.buffer, 0, w.buffer, 32, 16)


def _refused_copies(w: gg.Tensor) -> None:
    assert w.buffer is not None
    with gg.device("CPU").buffer_type.alloc(16) as short, w.buffer_type.device.init() as stream:
        for copy in (w.buffer.copy_from, lambda *where: stream.copy_async(where[0], where[1], w.buffer, *where[2:])):
            with pytest.raises(BufferUseError, match="outside of"):
                copy(short, 0, w.offset, w.nbytes)


NO_WAYS: dict[str, Callable[[gg.Tensor], object]] = {
    "source of copies": _copied_from,
    "no bytes": lambda w: w.set_bytes(b""),
    "no bytes of the buffer": lambda w: (w.buffer.set(w.offset, b""), w.buffer.memset(w.offset, 0, 1)),
    "rows around it": lambda w: w.buffer.set_2d(64, np.ones(16, np.uint8), 8, 2, w.offset + w.nbytes),
    "refused": _refused_set_async,
    "refused for the source": _refused_copies,
    "read": lambda w: w.numpy(),
}


@pytest.mark.parametrize("way", NO_WAYS)
def test_what_writes_nothing_of_a_weight_does_not_set_it(device: Device, way: str) -> None:
    with gg.Context() as context, gg.Scheduler([device]) as scheduler:
        before, w, after = (context.new_tensor("f32", 64, name) for name in ("before", "weight", "after"))
        gg.allocate(context, device)
        assert before.offset < w.offset < after.offset
        NO_WAYS[way](w)
        with pytest.raises(TensorStateError, match=r"'weight'.* has no value: set it before computing"):
            scheduler.compute(gg.Graph(gg.scale(w, 2.0).set_output()))


def test_an_array_of_host_memory_may_be_filled() -> None:
    with gg.Context() as context:
        w = context.new_tensor("f32", 8, "weight")
        gg.allocate(context, gg.device("CPU"))
        array = gg.asarray(w)
        array[:] = 3
        assert (gg.compute(gg.scale(w, 2.0)).numpy() == 6).all()
        del array


def test_what_a_node_writes_needs_no_value(device: Device) -> None:
    with gg.Context() as context, gg.Scheduler([device]) as scheduler:
        cache = context.new_tensor("f32", (4, 2), "kv")
        gg.allocate(context, device)
        with pytest.raises(TensorStateError, match="'kv'"):
            scheduler.compute(gg.Graph(gg.scale(cache, 1.0).set_output()))
        rows, slots = gg.tensor(np.ones((2, 4), np.float32)), gg.tensor(np.array([0, 1], np.int32))
        scheduler.compute(gg.Graph(gg.set_rows(cache, rows, slots)))
        y = gg.scale(cache, 2.0).set_output()
        scheduler.compute(gg.Graph(y))
        assert (y.numpy() == 2).all()


def test_a_weight_that_is_copied_to_another_device_has_to_be_set() -> None:
    cpu = gg.device("CPU")
    with gg.Context() as context, gg.Scheduler([StandInDevice(), cpu]) as scheduler:
        w = context.new_tensor("f32", 8, "weight")
        gg.allocate(context, cpu)
        y = gg.gelu(w)
        scheduler.pin(y, scheduler.backends[0])
        with pytest.raises(TensorStateError, match="'weight'"):
            scheduler.compute(gg.Graph(y.set_output()))


def test_knowing_that_all_is_set_costs_no_calls() -> None:
    x, _, graph = doubled()
    with gg.Scheduler([gg.device("CPU")]) as scheduler:
        scheduler.allocate(graph)
        x.set(1)
        scheduler.compute(graph)
        before = python_calls(lambda: scheduler.compute(graph))
        assert graph.run is not None
        graph.run.allocation._of_inputs = ()
        assert python_calls(lambda: scheduler.compute(graph)) == before


def test_a_value_that_does_not_fit_is_named_with_its_place() -> None:
    for value in (1.5, 2.0**31, float("nan")):
        with pytest.raises(gg.TypeMismatchError, match=r"do not fit into i32: .* at ") as seen:
            gg.tensor(np.array([1, value]), type="i32")
        assert seen.value.position[-1] == 1


def test_dir_shows_what_is_ggplugs_own() -> None:
    assert not {"Any", "TYPE_CHECKING", "importlib", "faults", "annotations"} & set(dir(gg))
    assert {"compute", "Scheduler", "FreedError"} <= set(dir(gg))


@pytest.mark.parametrize("seed", range(30))
def test_places_are_known_by_what_was_placed_and_written_last(seed: int) -> None:
    """The same by single bytes: to each belongs the tensor that was placed there last."""
    rng = random.Random(seed)
    unset, bytes_of = Unset(), {}
    for _ in range(200):
        start = rng.randrange(120)
        end = start + rng.choice((1, 2, 3, 8, 40))
        if rng.random() < 0.3:
            ends = sorted(rng.sample(range(start, start + 60), 6))
            places = dict(zip(ends[::2], ends[1::2], strict=True))
            for first, last in places.items():
                bytes_of = {p: b for p, b in bytes_of.items() if not b & set(range(first, last))}
            unset.add(places)
            bytes_of |= {(first, last): set(range(first, last)) for first, last in places.items()}
        else:
            unset.remove(start, end)
            bytes_of = {place: b for place, b in bytes_of.items() if not b & set(range(start, end))}
        assert set(unset.items()) == set(bytes_of)


def test_what_two_threads_place_at_once_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    unset, first, others = Unset(), [True], []

    def sort(places: set[int]) -> list[int]:
        found = sorted(places)
        if first and first.pop():
            others.append(Doing(lambda: unset.add({10: 20})))
            others[0].join(0.1)  # as far as it gets
        return found

    monkeypatch.setattr("ggplug.values.unset.sorted", sort, raising=False)
    unset.add({0: 10})
    others[0].result()
    assert dict(unset) == {0: 10, 10: 20}
    unset.remove(0, 20)
    assert not unset
