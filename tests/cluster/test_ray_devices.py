"""Devices of nodes: their names, transfers between nodes, clocks, and what is refused."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug.backend import Device
from ggplug.errors import BufferUseError, ComputeError, GGUFError, PluginError
from ggplug.saved import decode_graph, encode_graph

pytestmark = pytest.mark.long


@pytest.fixture
def pair(devices: dict[str, Device]) -> tuple[Any, Any]:
    return devices["Ray/a/CPU"], devices["Ray/b/CPU"]


def test_each_node_has_the_devices_that_its_registry_finds(devices: dict[str, Device]) -> None:
    local = gg.device("CPU")
    for node in "abc":
        device = devices[f"Ray/{node}/CPU"]
        assert (device.kind, device.description.endswith(f"on node {node}")) == (local.kind, True)
        assert device.memory().total == local.memory().total
    assert len({device.name for device in devices.values()}) == len(devices)


def test_bytes_go_from_node_to_node_in_the_order_of_streams_and_events(pair: tuple[Any, Any]) -> None:
    a, b = pair
    raw = np.arange(40 << 20, dtype=np.uint8)
    with a.buffer_type.alloc(raw.size) as source, b.buffer_type.alloc(raw.size) as target, a.init() as s, b.init() as t:
        out, event = np.zeros(raw.size, np.uint8), a.event()
        s.set_async(source, 0, raw)
        event.record(s)
        event.wait(t)
        t.copy_async(source, 5, target, 0, raw.size - 5)
        t.get_async(target, 0, out)
        t.synchronize()
        np.testing.assert_array_equal(out[:-5], raw[5:])


def test_the_client_gets_none_of_the_bytes_of_a_copy_between_nodes(
    pair: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ggplug_ray.memory import RayBuffer

    a, b = pair
    with a.buffer_type.alloc(1 << 20) as source, b.buffer_type.alloc(1 << 20) as target:
        source.clear(7)
        with monkeypatch.context() as patched:
            patched.setattr(RayBuffer, "fetch", None)
            patched.setattr(RayBuffer, "store", None)
            target.copy_from(source, 0, 0, 1 << 20)
        out = np.empty(1 << 20, np.uint8)
        target.get(0, out)
        assert (out == 7).all()


def test_times_of_nodes_are_by_the_clients_clock(pair: tuple[Any, Any]) -> None:
    import time

    x = gg.new_tensor("f32", (256, 256), "x").set_input()
    y = gg.scale(x, 2.0).set_output()
    graph = gg.Graph(y)
    with pair[0].init() as stream:
        plan = stream.plan(graph)
        allocation = gg.allocate_graph(graph, pair[0].buffer_type)
        x.set(np.ones((256, 256), np.float32))
        plan.rebind(graph, allocation)
        before = time.perf_counter_ns()
        (only,) = plan.compute_traced()
        after = time.perf_counter_ns()
    assert before - 50_000_000 < only.start <= only.end < after + 50_000_000
    assert plan.kernel_names()


def test_errors_name_the_device_and_the_clients_own_tensors(pair: tuple[Any, Any]) -> None:
    table = gg.new_tensor("f32", (4, 3), "table").set_input()
    ids = gg.new_tensor("i32", (1,), "ids").set_input()
    rows = gg.get_rows(table, ids).set_output()
    graph = gg.Graph(rows)
    scheduler = gg.Scheduler([pair[0]])
    scheduler.allocate(graph)
    table.set(np.ones((3, 4), np.float32))
    ids.set(np.array([7], np.int32))
    with pytest.raises(ComputeError, match=r"^Ray/a/CPU: .* got the id 7") as caught:
        scheduler.compute(graph)
    assert caught.value.tensor is rows
    assert (caught.value.ids, caught.value.got, caught.value.wanted) == (ids, 7, 3)
    assert caught.value.device is pair[0]


def test_tensors_that_share_bytes_are_computed_in_the_order_of_the_nodes(pair: tuple[Any, Any]) -> None:
    values = np.random.default_rng(0).standard_normal((3, 2, 32)).astype(np.float32)
    with pair[0].buffer_type.alloc(1 << 10) as buffer, gg.Scheduler([pair[0]]) as scheduler:
        read, written, factors, new = (gg.new_tensor("f32", (32, 2)) for _ in range(4))
        for tensor, offset in ((read, 0), (written, 0), (factors, 256), (new, 512)):
            tensor.place(buffer, offset)
        for tensor, value in zip((read, factors, new), values, strict=True):
            tensor.set(value)
        graph = gg.Graph(norm := gg.rms_norm(read))
        graph.expand(gg.cpy(new, written))
        graph.expand(product := gg.mul(norm, factors).set_output())
        scheduler.compute(graph)
        wanted = values[0] / np.sqrt(np.square(values[0]).mean(-1, keepdims=True)) * values[1]
        np.testing.assert_allclose(product.numpy(), wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(read.numpy(), values[2])


def test_messages_are_checked_as_files_are(pair: tuple[Any, Any]) -> None:
    x = gg.new_tensor("f32", (8,), "x")
    graph = gg.Graph(gg.scale(x, 2.0))
    raw, link = encode_graph(graph), pair[0].link()
    assert decode_graph(raw).structure == graph.structure
    stream = link.call("stream", {})
    for cut in (raw[:40], raw.replace(b"scale", b"scalf"), raw[:-64]):
        with pytest.raises(GGUFError):
            link.call("plan", stream, cut, ((), (), {}, ()))
    for placed in (((7, 1),), ((1, 1),), ((0, 9),)):  # no position, a node, no memory
        with pytest.raises(BufferUseError):
            link.call("plan", stream, raw, ((), (), {}, ()), placed)
    number, _ = link.call("plan", stream, raw, ((), (), {}, ()))
    buffer, _ = link.call("alloc", 64, True)
    for offsets in ([0, 48], [0, -4], [1, 32]):
        places = ((buffer,), np.zeros(2, np.int64), np.array(offsets))
        with pytest.raises(BufferUseError):
            link.call("compute", number, _binding(*places), None)
    with pytest.raises(ComputeError, match="KeyError"):
        link.call("__init__", "CPU", 0)


def _binding(*places: Any) -> Any:
    from ggplug_ray.host import Binding

    return Binding(*places)


def test_another_version_on_the_node_is_refused_when_the_device_is_opened(pair: tuple[Any, Any]) -> None:
    from ggplug_ray.cluster import check_versions
    from ggplug_ray.host import versions

    facts = pair[0]._facts
    check_versions("Ray/a/CPU", "a", facts, versions())
    for what in versions():
        with pytest.raises(PluginError, match=f"another version of {what}"):
            check_versions("Ray/a/CPU", "a", facts, versions() | {what: "0.0.1"})
    with pytest.raises(PluginError, match="kernels"):
        check_versions("Ray/a/CPU", "a", facts._replace(plugin="0.0.1"), versions())


def test_what_python_collected_is_freed_on_the_node(pair: tuple[Any, Any]) -> None:
    free = pair[0].buffer_type.alloc(64)
    number, link = free.number, free.link
    del free
    link.flush()
    with pytest.raises(BufferUseError, match=f"no buffer of the number {number}"):
        link.call("fetch", number, 0, 1)


def test_threads_use_devices_of_nodes_at_the_same_time(pair: tuple[Any, Any]) -> None:
    found: dict[int, float] = {}

    def compute(number: int) -> None:
        x = gg.new_tensor("f32", (64,), "x").set_input()
        graph = gg.Graph(y := gg.scale(x, float(number)).set_output())
        scheduler = gg.Scheduler([pair[number % 2]])
        for _ in range(20):
            scheduler.allocate(graph)
            x.set(np.full(64, 3, np.float32))
            scheduler.compute(graph)
            found[number] = float(y.numpy()[0])
        scheduler.free()

    threads = [threading.Thread(target=compute, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == {number: 3.0 * number for number in range(4)}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages to all devices, but for those that free what earlier tests left."""
    from ggplug_ray.link import Link

    found: list[str] = []
    deliver = Link._deliver

    def noted(link: Link, what: str, *given: Any, size: int = 0) -> Any:
        if what != "drop":
            found.append(what)
        return deliver(link, what, *given, size=size)

    monkeypatch.setattr(Link, "_deliver", noted)
    return found


def test_inputs_go_with_the_computation_that_reads_them(pair: tuple[Any, Any], sent: list[str]) -> None:
    sources = [gg.new_tensor("f32", (64,), name).set_input() for name in "xyz"]
    total = gg.add(gg.add(sources[0], sources[1]), sources[2]).set_output()
    graph = gg.Graph(total)
    with gg.Scheduler([pair[0]]) as scheduler:
        scheduler.allocate(graph)
        for factor in range(3):
            sent.clear()
            for number, source in enumerate(sources):
                source.set(np.full(64, factor * 10.0**number, np.float32))
            scheduler.compute(graph)
            assert (total.numpy() == factor * 111).all()
    assert sent == ["compute"]


def test_what_is_read_after_a_computation_comes_with_the_answer_to_the_next_one(
    pair: tuple[Any, Any], sent: list[str]
) -> None:
    x = gg.new_tensor("f32", (120_000,), "x").set_input()
    whole, part = gg.scale(x, 2.0).set_output(), gg.scale(x, 3.0).set_output()
    graph = gg.Graph(whole, part)
    with gg.Scheduler([pair[0]]) as scheduler:
        scheduler.allocate(graph)
        for number in range(4):
            x.set(np.arange(120_000, dtype=np.float32) + number)
            sent.clear()
            scheduler.compute(graph)
            np.testing.assert_array_equal(whole.numpy(), 2 * (np.arange(120_000, dtype=np.float32) + number))
            if number != 1:
                np.testing.assert_array_equal(part.numpy(), 3 * (np.arange(120_000, dtype=np.float32) + number))
            assert sent.count("fetch") == (2, 0, 1, 0)[number]  # with 1, both were expected, and one was not read


def test_what_came_with_an_answer_is_not_used_after_the_bytes_may_have_changed(pair: tuple[Any, Any]) -> None:
    device = pair[0]
    with gg.Context("leafs") as leafs, gg.Scheduler([device]) as scheduler:
        x, w, y = (leafs.new_tensor("f32", (64,), name) for name in "xwy")
        gg.allocate(leafs, device)
        x.set(np.full(64, 1.0))
        w.set(np.full(64, 5.0))
        doubled, copied = gg.Graph(gg.cpy(gg.scale(x, 2.0), y)), gg.Graph(gg.cpy(w, y))
        for _ in range(3):
            scheduler.compute(doubled)
            assert (y.numpy() == 2).all()
            scheduler.compute(copied)
            assert (y.numpy() == 5).all()
        y.set(np.full(64, 7.0))
        assert (y.numpy() == 7).all()
        scheduler.compute(doubled)
        y.buffer.memset(y.offset, y.nbytes, 0)
        assert (y.numpy() == 0).all()
        scheduler.compute(doubled)
        y.buffer.copy_from(w.buffer, w.offset, y.offset, y.nbytes)
        assert (y.numpy() == 5).all()
        for _ in range(2):  # what was read after a computation may be gone before the next one
            scheduler.compute(doubled)
            with device.buffer_type.alloc_zeroed(256) as other:
                other.get(0, np.empty(256, np.uint8))
        assert (y.numpy() == 2).all()


def test_an_input_that_was_not_sent_yet_is_copied_to_another_node_without_asking_for_it(
    pair: tuple[Any, Any], sent: list[str]
) -> None:
    raw, out = np.arange(200, dtype=np.uint8), np.empty(100, np.uint8)
    with pair[0].buffer_type.alloc(200) as source, pair[1].buffer_type.alloc(200) as target:
        sent.clear()
        source.set(0, raw)
        target.copy_from(source, 50, 7, 100)
        target.get(7, out)
        np.testing.assert_array_equal(out, raw[50:150])
        assert sent == ["fetch"]
        source.set(60, np.zeros(10, np.uint8))
        target.copy_from(source, 50, 7, 100)  # of these only a part was not sent yet
        target.get(7, out)
    raw[60:70] = 0
    np.testing.assert_array_equal(out, raw[50:150])


def test_small_writes_wait_only_until_they_are_many(pair: tuple[Any, Any], sent: list[str]) -> None:
    size, piece = 6 << 20, 1 << 16
    raw, out = np.arange(size, dtype=np.uint32).astype(np.uint8), np.empty(size, np.uint8)
    with pair[0].buffer_type.alloc(size) as buffer:
        sent.clear()
        for start in range(0, size, piece):
            buffer.set(start, raw[start : start + piece])
        assert len(sent) == 1
        buffer.get(0, out)
    np.testing.assert_array_equal(out, raw)


def test_a_command_finds_the_devices_through_the_variable(cluster: Any) -> None:
    import os

    done = subprocess.run(
        [sys.executable, "-m", "ggplug", "devices"],
        env=os.environ | {"GGPLUG_RAY": cluster.address, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {f"Ray/{node}/CPU" for node in "abc"} <= set(done.stdout.split())
