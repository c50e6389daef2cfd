"""compute(): a result at once."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug import immediate
from ggplug.hookspecs import HOOKS
from ggplug.host import HOST
from ggplug_testing import FakeDevice, ReferenceDevice


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[gg.backend.Device]:
    """A discrete device is the best there is, and the CPU is there, too."""
    made = [FakeDevice("gpu"), ReferenceDevice("cpu")]
    monkeypatch.setattr(immediate, "_threads", threading.local())
    monkeypatch.setattr(immediate.registry, "init_best", lambda: made[0].init())
    monkeypatch.setattr(immediate.registry, "devices_by_kind", lambda kind: [made[1]])
    monkeypatch.setattr(immediate.registry, "init_by_kind", lambda kind: made[1].init())
    return made


def test_one_tensor_gives_one_and_several_give_several(devices: list[gg.backend.Device]) -> None:
    w, x = gg.tensor([[1.0, 2.0], [3.0, 4.0]]), gg.tensor([10.0, 20.0])
    y = gg.mul_mat(w, x)
    assert gg.compute(y) is y
    assert y.numpy().tolist() == [50, 110]
    a, b = gg.compute(gg.neg(y), gg.reshape(y, 1, 2))
    assert a.numpy().tolist() == [-50, -110]
    assert b.numpy().tolist() == [[50], [110]]


def test_the_best_device_computes(devices: list[gg.backend.Device]) -> None:
    y = gg.neg(gg.tensor([1.0]))
    gg.compute(y)
    assert devices[0].computed() == ["neg"]  # type: ignore[attr-defined]


def test_results_stay_readable_after_later_computations(devices: list[gg.backend.Device]) -> None:
    results = [gg.compute(gg.scale(gg.tensor([1.0, 2.0]), float(n))) for n in range(5)]
    gc.collect()
    assert [r.numpy().tolist() for r in results] == [[n, 2 * n] for n in range(5)]


def test_what_lies_between_is_dropped_and_says_so(devices: list[gg.backend.Device]) -> None:
    between = gg.silu(gg.tensor([1.0]))
    gg.compute(gg.neg(between))
    with pytest.raises(gg.TensorStateError, match=r"not kept \(pass it to compute\(\) as well\)"):
        between.numpy()


def test_a_result_can_be_computed_with_further(devices: list[gg.backend.Device]) -> None:
    y = gg.compute(gg.neg(gg.tensor([1.0, 2.0])))
    z = gg.compute(gg.scale(y, 3.0))
    assert z.numpy().tolist() == [-3, -6]
    assert y.numpy().tolist() == [-1, -2]


def test_a_write_into_a_persistent_tensor_is_seen_there(devices: list[gg.backend.Device]) -> None:
    cache = gg.tensor(np.zeros((3, 2), np.float32))
    cache.place(HOST.alloc(cache.nbytes))
    cache.set(0)
    written = gg.compute(gg.set_rows(cache, gg.tensor([[1.0, 2.0]]), gg.tensor(np.array([1]))))
    assert cache.numpy().tolist() == written.numpy().tolist() == [[0, 0], [1, 2], [0, 0]]


def test_leafs_are_returned_as_they_are(devices: list[gg.backend.Device]) -> None:
    x = gg.tensor([1.0])
    assert gg.compute(x) is x
    assert x.flags == 0


def test_a_leaf_without_values_is_refused(devices: list[gg.backend.Device]) -> None:
    with pytest.raises(gg.TensorStateError, match=r"has no values \(make it with gg.tensor"):
        gg.compute(gg.neg(gg.new_tensor("f32", 3)))


def test_nothing_cannot_be_computed() -> None:
    with pytest.raises(gg.ParameterError, match="at least one tensor"):
        gg.compute()


def of_this_thread() -> gg.Scheduler:
    with immediate.scheduler_of_thread() as scheduler:
        return scheduler


def test_equal_computations_are_planned_once(devices: list[gg.backend.Device]) -> None:
    for n in range(3):
        gg.compute(gg.neg(gg.tensor([float(n)])))
    assert len(of_this_thread()._executions) == 1


def test_each_thread_has_a_scheduler_of_its_own(devices: list[gg.backend.Device]) -> None:
    found = [of_this_thread()]
    thread = threading.Thread(target=lambda: found.append(of_this_thread()))
    thread.start()
    thread.join()
    assert found[0] is of_this_thread()
    assert found[0] is not found[1]


def test_a_hook_that_computes_leaves_the_results_before_it_alone(devices: list[gg.backend.Device]) -> None:
    class Computing:
        inner: float | None = None

        @gg.hookimpl
        def ggplug_graph_computed(self, graph: gg.Graph, devices: Any) -> None:
            if self.inner is None:
                self.inner = 0
                self.inner = gg.compute(gg.scale(gg.tensor([1.0, 1.0]), 7.0)).numpy()[0]

    hook = Computing()
    HOOKS.register(hook)
    try:
        assert gg.compute(gg.scale(gg.tensor([2.0, 2.0]), 3.0)).numpy().tolist() == [6, 6]
    finally:
        HOOKS.unregister(hook)
    assert hook.inner == 7


def test_large_results_that_nobody_refers_to_are_collected_soon(
    devices: list[gg.backend.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(immediate, "_UNCOLLECTED", 1000)
    freed = []
    for _ in range(3):
        result = gg.compute(gg.neg(gg.tensor(np.ones(200, np.float32))))
        weakref.finalize(result, freed.append, None)
        del result
    assert freed


def test_a_call_from_within_gets_another_scheduler() -> None:
    with immediate.scheduler_of_thread() as outer, immediate.scheduler_of_thread() as inner:
        assert inner is not outer


def test_devices_can_be_named(devices: list[gg.backend.Device]) -> None:
    other = FakeDevice("other")
    y = gg.compute(gg.neg(gg.tensor([1.0, 2.0])), backends=[other])
    assert y.numpy().tolist() == [-1, -2]
    assert other.computed() == ["neg"]
    assert other.used == 0, "its memory was given back"
