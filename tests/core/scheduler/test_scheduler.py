"""Who computes what, why, and what is copied: what the scheduler explains is what it executes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from random_graphs import compute_apart, random_case

import ggplug as gg
from ggplug.backend import Backend, BufferType, Bytes, Decline, Described, Device, Group
from ggplug.hookspecs import HOOKS
from ggplug.host import HOST, HostBuffer, HostBufferType
from ggplug.memory import check_overlaps
from ggplug.scheduler import Scheduler
from ggplug.types import BufferUsage
from ggplug_testing import FakeDevice, ReferenceDevice

WEIGHTS = BufferUsage.WEIGHTS


def place(where: Device | BufferType, values: np.ndarray, usage: BufferUsage = WEIGHTS, name: str = "") -> gg.Tensor:
    """A persistent tensor in a buffer of its own."""
    kind = where.buffer_type if isinstance(where, Device) else where
    tensor = gg.new_tensor(gg.F32 if values.dtype.kind == "f" else gg.I64, values.shape[::-1], name)
    buffer = kind.alloc(tensor.nbytes)
    buffer.usage = usage
    tensor.place(buffer)
    return tensor.set(values)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Setting:
    """A fake discrete device first, a host device second."""

    def __init__(self, **fake: object) -> None:
        self.fake = FakeDevice("gpu", **fake)  # type: ignore[arg-type]
        self.cpu = ReferenceDevice("cpu")
        self.scheduler = Scheduler([self.fake, self.cpu])

    def devices(self, graph: gg.Graph) -> list[str]:
        return [row.device for row in self.scheduler.explain(graph).rows]

    def reasons(self, graph: gg.Graph) -> list[str]:
        return [row.reason for row in self.scheduler.explain(graph).rows]


@pytest.fixture
def two() -> Setting:
    return Setting()


def declining(*ops: str) -> Setting:
    return Setting(declines=lambda node: f"{node.op.name} is not built in" if node.op.name in ops else "")


# -- pass 1: where weights lie ---------------------------------------------------------------------


def test_weights_attract_the_nodes_that_read_them(two: Setting) -> None:
    x = place(HOST, numbers(3, 8), BufferUsage.ANY)
    here, there = place(two.cpu, numbers(8, 8), name="here"), place(two.fake, numbers(8, 8), name="there")
    graph = gg.Graph(gg.mul_mat(there, gg.mul_mat(here, x)))
    rows = two.scheduler.explain(graph).rows
    assert [row.device for row in rows] == ["cpu", "gpu"]
    assert [row.text for row in rows] == ["its weight here lies there", "its weight there lies there"]


def test_buffers_that_are_not_marked_as_weights_attract_nothing(two: Setting) -> None:
    w = place(two.cpu, numbers(8, 8), BufferUsage.ANY)
    graph = gg.Graph(gg.mul_mat(w, gg.silu(place(two.fake, numbers(3, 8)))))
    assert two.devices(graph) == ["gpu", "gpu"]


def test_an_optional_source_does_not_decide(two: Setting) -> None:
    x = gg.silu(place(two.fake, numbers(4, 8)))
    mask = place(two.cpu, numbers(4, 8))
    graph = gg.Graph(gg.soft_max(x, mask))
    assert two.devices(graph) == ["gpu", "gpu"]


def test_inputs_lie_with_the_last_stream_and_other_leafs_where_they_are_read(two: Setting) -> None:
    w = place(two.fake, numbers(8, 8))
    marked, unmarked = gg.new_tensor("f32", (8, 3)).set_input(), gg.new_tensor("f32", (8, 3))
    graph = gg.Graph(gg.mul_mat(w, marked), gg.mul_mat(w, unmarked))
    assert two.scheduler.backend_of(marked, graph).device is two.cpu
    assert two.scheduler.backend_of(unmarked, graph).device is two.fake
    assert [copy.source for copy in two.scheduler.explain(graph).copies] == ["cpu"]


def test_a_node_with_a_place_of_its_own_is_computed_there(two: Setting) -> None:
    node = gg.silu(place(two.fake, numbers(4)))
    node.place(two.cpu.buffer_type.alloc(64))
    graph = gg.Graph(node)
    assert two.reasons(graph) == ["placed"]
    two.scheduler.compute(graph)
    assert node.buffer.type is two.cpu.buffer_type
    np.testing.assert_allclose(node.numpy(), two_silu(numbers(4)), rtol=1e-6)


def two_silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def test_a_node_with_a_place_where_nobody_can_compute_it_is_refused() -> None:
    two = declining("silu")
    node = gg.silu(place(two.cpu, numbers(4)))
    node.place(two.fake.buffer_type.alloc(64))
    with pytest.raises(gg.PlacementError, match=r"gpu: silu is not built in; cpu: cannot access gpu memory"):
        two.scheduler.split(gg.Graph(node))


def test_an_op_is_offloaded_over_a_copy_of_its_weights_if_the_device_asks_for_it() -> None:
    two = Setting(offloads=lambda node: node.ne[1] >= 32)
    w = place(two.cpu, numbers(8, 8), name="w")
    many, few = (gg.mul_mat(w, place(HOST, numbers(n, 8), BufferUsage.ANY)) for n in (32, 31))
    graph = gg.Graph(many, few)
    assert two.devices(graph) == ["gpu", "cpu"]
    assert two.scheduler.explain(graph).rows[0].text == "the device asks for a copy of its weight w"
    without = Scheduler([two.fake, two.cpu], op_offload=False)
    assert [row.device for row in without.explain(graph).rows] == ["cpu", "cpu"]


# -- passes 2 and 3: growing and moving up ---------------------------------------------------------


def test_nodes_follow_their_neighbours_and_the_last_stream_takes_only_what_is_left(two: Setting) -> None:
    x = place(HOST, numbers(3, 8), BufferUsage.ANY)
    w = place(two.fake, numbers(8, 8))
    graph = gg.Graph(gg.neg(gg.mul_mat(w, gg.silu(x))))
    assert two.devices(graph) == ["gpu"] * 3
    assert two.reasons(graph) == ["follows", "weight", "follows"]


def test_a_node_that_the_neighbour_declines_goes_elsewhere_and_growth_goes_on_behind_it() -> None:
    two = declining("neg")
    w = place(two.fake, numbers(8, 8))
    x = gg.mul_mat(w, place(HOST, numbers(3, 8), BufferUsage.ANY))
    graph = gg.Graph(gg.silu(gg.neg(x)))
    assert two.devices(graph) == ["gpu", "cpu", "gpu"]


def test_what_nothing_attracts_runs_where_most_of_its_sources_are(two: Setting) -> None:
    a, b = (place(two.cpu, numbers(4), BufferUsage.ANY) for _ in range(2))
    graph = gg.Graph(gg.add(a, b))
    assert two.devices(graph) == ["cpu"]
    assert two.reasons(graph) == ["sources"]


def test_a_node_moves_up_to_a_stream_that_works_in_the_same_memory() -> None:
    class Blas(ReferenceDevice):
        def match(self, group: Group) -> object:
            return super().match(group) if group.node.op.name == "silu" else Decline("only silu")

    cpu = ReferenceDevice("cpu")
    scheduler = Scheduler([Blas("blas"), cpu])
    graph = gg.Graph(gg.neg(gg.silu(gg.mul_mat(place(cpu, numbers(8, 8)), place(cpu, numbers(2, 8), BufferUsage.ANY)))))
    explanation = scheduler.explain(graph)
    assert [row.device for row in explanation.rows] == ["cpu", "blas", "cpu"]
    assert explanation.rows[1].reason == "upgraded"
    assert explanation.copies == ()
    scheduler.compute(graph)


def test_one_stream_alone_takes_everything() -> None:
    cpu = ReferenceDevice("cpu")
    with Scheduler([cpu]) as scheduler:
        graph = gg.Graph(gg.neg(gg.silu(place(cpu, numbers(4), BufferUsage.ANY))))
        scheduler.compute(graph)
        assert scheduler.n_splits == 1
        np.testing.assert_allclose(graph.node(-1).numpy(), -two_silu(numbers(4)), rtol=1e-6)


# -- decisions of the user -------------------------------------------------------------------------


def test_a_pin_decides(two: Setting) -> None:
    a = gg.silu(place(two.fake, numbers(4)))
    b = gg.neg(a)
    graph = gg.Graph(b)
    assert two.devices(graph) == ["gpu", "gpu"]
    two.scheduler.pin(b, two.scheduler.backends[1])
    assert two.devices(graph) == ["gpu", "cpu"]
    assert two.reasons(graph)[1] == "pinned"
    two.scheduler.pin(b, None)
    assert two.devices(graph) == ["gpu", "gpu"]


def test_reset_takes_all_pins_back(two: Setting) -> None:
    node = gg.silu(place(two.fake, numbers(4)))
    two.scheduler.pin(node, two.scheduler.backends[1])
    two.scheduler.reset()
    assert two.devices(gg.Graph(node)) == ["gpu"]


def test_a_pinned_input_lies_there(two: Setting) -> None:
    x = gg.new_tensor("f32", 4).set_input()
    graph = gg.Graph(gg.silu(x))
    two.scheduler.pin(x, two.scheduler.backends[0])
    assert two.scheduler.backend_of(x, graph) is two.scheduler.backends[0]


def test_a_pin_that_cannot_be_honoured_is_refused() -> None:
    two = declining("silu")
    x = place(two.cpu, numbers(4))
    node, view = gg.silu(x), gg.reshape(x, 2, 2)
    gpu, cpu = two.scheduler.backends
    two.scheduler.pin(node, gpu)
    with pytest.raises(gg.PlacementError, match="to gpu, which cannot compute it: silu is not built in") as caught:
        two.scheduler.split(gg.Graph(node))
    assert (caught.value.device, caught.value.reason) == (two.fake, "silu is not built in")
    two.scheduler.reset()
    two.scheduler.pin(view, cpu)
    with pytest.raises(gg.PlacementError, match="is a view and cannot be pinned"):
        two.scheduler.split(gg.Graph(gg.neg(view)))
    two.scheduler.reset()
    two.scheduler.pin(x, gpu)
    with pytest.raises(gg.PlacementError, match="pinned to gpu, but already has a place in cpu"):
        two.scheduler.split(gg.Graph(node))


def test_only_a_stream_of_the_scheduler_can_be_pinned(two: Setting) -> None:
    with pytest.raises(gg.ParameterError, match="is not a stream of"):
        two.scheduler.pin(gg.new_tensor("f32", 4), two.cpu.init())


def test_a_policy_comes_after_pins_and_before_everything_else(two: Setting) -> None:
    asked: list[str] = []

    def policy(node: gg.Tensor, streams: Sequence[Backend]) -> Backend | None:
        asked.append(node.op.name)
        return streams[-1] if node.op.name == "silu" else None

    scheduler = Scheduler([two.fake, two.cpu], policy=policy)
    a = gg.silu(place(two.fake, numbers(4)))
    b = gg.neg(a)
    scheduler.pin(b, scheduler.backends[0])
    rows = scheduler.explain(gg.Graph(b)).rows
    assert [(row.device, row.reason) for row in rows] == [("cpu", "policy"), ("gpu", "pinned")]
    assert asked == ["silu"]


def test_a_policy_is_offered_only_what_can_compute_the_node() -> None:
    two = declining("silu")
    stranger = two.cpu.init()
    scheduler = Scheduler([two.fake, two.cpu], policy=lambda node, streams: stranger)
    with pytest.raises(gg.PlacementError, match=r"the policy chose .*must choose one of cpu"):
        scheduler.split(gg.Graph(gg.silu(place(two.cpu, numbers(4)))))


def test_a_plugin_can_be_the_policy(two: Setting) -> None:
    class Plugin:
        @gg.hookimpl
        def ggplug_placement(self, node: gg.Tensor, devices: Sequence[Device]) -> Device | None:
            return devices[-1] if node.op.name == "silu" else None

    graph = gg.Graph(gg.silu(place(two.fake, numbers(4))))
    assert two.devices(graph) == ["gpu"]
    plugin = Plugin()
    HOOKS.register(plugin)
    try:
        assert two.devices(graph) == ["cpu"]
        assert two.reasons(graph) == ["policy"]
    finally:
        HOOKS.unregister(plugin)
    assert two.devices(graph) == ["gpu"]


# -- writes ----------------------------------------------------------------------------------------


def test_a_write_runs_where_the_bytes_live(two: Setting) -> None:
    cache = place(two.cpu, np.zeros((8, 4), np.float32), BufferUsage.ANY, "cache")
    rows = gg.silu(place(two.fake, numbers(1, 4)))
    write = gg.set_rows(cache, rows, place(HOST, np.array([3]), BufferUsage.ANY))
    graph = gg.Graph(write)
    explained = two.scheduler.explain(graph).rows[-1]
    assert (explained.device, explained.text) == ("cpu", "it writes into cache, which lies there")
    two.scheduler.compute(graph)
    assert np.flatnonzero(cache.numpy().any(axis=1)).tolist() == [3]


def test_a_write_that_could_only_go_into_a_copy_is_refused() -> None:
    two = declining("set_rows")
    cache = place(two.fake, np.zeros((8, 4), np.float32), BufferUsage.ANY, "cache")
    write = gg.set_rows(cache, place(two.cpu, numbers(1, 4)), place(two.cpu, np.array([3])))
    graph = gg.Graph(write)
    with pytest.raises(
        gg.PlacementError,
        match=r"writes into cache in gpu, .*the scheduler does not write into copies.*"
        r"gpu: set_rows is not built in; cpu: cannot access gpu memory",
    ):
        two.scheduler.split(graph)
    two.scheduler.pin(write, two.scheduler.backends[1])
    with pytest.raises(gg.PlacementError, match="cannot access the bytes that the node writes: cache in gpu"):
        two.scheduler.split(graph)
    assert two.fake.total("receive", "set").calls == 1


def test_an_intermediate_that_is_written_into_lies_where_its_writer_can_work() -> None:
    two = declining("set_rows")
    w = place(two.fake, numbers(4, 4))
    target = gg.mul_mat(w, place(two.fake, numbers(8, 4), BufferUsage.ANY))
    write = gg.set_rows(target, place(two.cpu, numbers(1, 4, seed=1)), place(two.cpu, np.array([3])))
    graph = gg.Graph(gg.cont(write))
    assert two.devices(graph)[:2] == ["cpu", "cpu"]
    two.scheduler.compute(graph)
    assert graph.node(-1).numpy()[3].tolist() == numbers(1, 4, seed=1)[0].tolist()


def test_an_intermediate_that_nobody_could_make_and_write_is_refused() -> None:
    gpu = FakeDevice("gpu", declines=lambda node: "no" if node.op.name == "set_rows" else "")
    other = FakeDevice("other", declines=lambda node: "never" if node.op.name == "mul_mat" else "")
    scheduler = Scheduler([gpu, other])
    target = gg.mul_mat(place(gpu, numbers(4, 4)), place(gpu, numbers(8, 4)))
    write = gg.set_rows(target, place(other, numbers(1, 4)), place(other, np.array([3])))
    with pytest.raises(gg.PlacementError, match=r"no memory in which .* and then write into it"):
        scheduler.split(gg.Graph(write))


def test_a_policy_for_a_writer_moves_what_it_writes_into(two: Setting) -> None:
    scheduler = Scheduler(
        [two.fake, two.cpu], policy=lambda node, streams: streams[-1] if node.op.name == "set_rows" else None
    )
    x = gg.new_tensor("f32", (4, 8))
    write = gg.set_rows(x, place(two.fake, numbers(1, 4)), place(two.cpu, np.array([3])))
    graph = gg.Graph(write)
    assert scheduler.backend_of(x, graph).device is two.cpu
    scheduler.allocate(graph)
    x.set(np.zeros((8, 4)))
    scheduler.compute(graph)
    assert write.numpy()[3].tolist() == numbers(1, 4)[0].tolist()


def test_an_op_that_no_device_has_is_refused_with_the_reason_of_each() -> None:
    gpu = FakeDevice("gpu", declines=lambda node: "too new")
    cpu = FakeDevice("cpu", declines=lambda node: "too old")
    with pytest.raises(gg.PlacementError, match=r"no device .*silu.*: gpu: too new; cpu: too old") as caught:
        Scheduler([gpu, cpu]).split(gg.Graph(gg.silu(gg.new_tensor("f32", 4))))
    assert caught.value.reasons == {"gpu": "too new", "cpu": "too old"}


# -- splits and copies -----------------------------------------------------------------------------


def test_a_source_is_copied_once_for_all_its_readers(two: Setting) -> None:
    x = gg.mul_mat(place(two.fake, numbers(8, 8)), place(two.fake, numbers(3, 8), BufferUsage.ANY))
    w = place(two.cpu, numbers(8, 8))
    readers = [gg.mul_mat(w, x) for _ in range(4)]
    graph = gg.Graph(*readers)
    explanation = two.scheduler.explain(graph)
    assert [(c.split, c.source, c.target, c.nbytes) for c in explanation.copies] == [(1, "gpu", "cpu", 96)]
    assert [s.device for s in explanation.splits] == ["gpu", "cpu"]


def test_a_later_split_reads_the_same_copy(two: Setting) -> None:
    x = place(two.cpu, numbers(3, 8), BufferUsage.ANY, "x")
    here, there = place(two.cpu, numbers(8, 8)), place(two.fake, numbers(8, 8))
    first = gg.mul_mat(there, x)
    middle = gg.mul_mat(here, first)
    graph = gg.Graph(gg.mul_mat(there, middle), gg.mul_mat(there, x))
    explanation = two.scheduler.explain(graph)
    assert [s.device for s in explanation.splits] == ["gpu", "cpu", "gpu"]
    assert [c.name for c in explanation.copies].count("x") == 1


def test_a_copy_is_made_again_after_a_write_into_the_original(two: Setting) -> None:
    cache = place(two.cpu, np.zeros((4, 8), np.float32), BufferUsage.ANY, "cache")
    w = place(two.fake, numbers(8, 8))
    before = gg.mul_mat(w, cache)
    write = gg.set_rows(cache, place(two.cpu, numbers(1, 8)), place(two.cpu, np.array([2])))
    after = gg.mul_mat(w, cache)
    graph = gg.Graph(before.set_output(), write, after)
    assert [c.name for c in two.scheduler.explain(graph).copies] == ["cache", "cache"]
    two.scheduler.compute(graph)
    assert not before.numpy().any()
    assert np.flatnonzero(after.numpy().any(axis=1)).tolist() == [2]


def test_of_a_large_cache_only_the_bytes_of_the_view_are_copied(two: Setting) -> None:
    cache = place(two.cpu, numbers(1000, 8), BufferUsage.ANY)
    window = gg.view(cache, 8, 5, nb=(32,), offset=32 * 7, name="window")
    result = gg.mul_mat(place(two.fake, numbers(8, 8)), window)
    graph = gg.Graph(result)
    two.fake.forget()
    assert [(c.name, c.nbytes) for c in two.scheduler.explain(graph).copies] == [("window", 160)]
    two.scheduler.compute(graph)
    assert two.fake.total("receive").bytes == 160
    np.testing.assert_allclose(result.numpy(), numbers(1000, 8)[7:12] @ numbers(8, 8).T, rtol=1e-5)


def test_a_strided_view_is_copied_with_its_gaps(two: Setting) -> None:
    x = place(two.cpu, numbers(6, 8), BufferUsage.ANY)
    column = gg.view(x, 2, 6, nb=(32,), offset=8)
    graph = gg.Graph(gg.mul_mat(place(two.fake, numbers(4, 2)), column))
    assert [c.nbytes for c in two.scheduler.explain(graph).copies] == [5 * 32 + 8]
    two.scheduler.compute(graph)
    np.testing.assert_allclose(graph.node(-1).numpy(), numbers(6, 8)[:, 2:4] @ numbers(4, 2).T, rtol=1e-5)


def test_views_belong_to_no_split_and_cause_none(two: Setting) -> None:
    x = gg.silu(place(two.fake, numbers(4, 4)))
    graph = gg.Graph(gg.cont(gg.transpose(x)))
    explanation = two.scheduler.explain(graph)
    assert [(row.op, row.split, row.text) for row in explanation.rows] == [
        ("silu", 0, "its weight leaf f32 [4x4] lies there"),
        ("transpose", -1, "a view of silu f32 [4x4]"),
        ("cont", 0, "its neighbour silu f32 [4x4] runs there"),
    ]
    assert len(explanation.splits) == 1


def test_distant_weights_begin_a_split_so_that_their_memory_can_be_used_again() -> None:
    two = Setting(offloads=lambda node: True)
    x = place(two.fake, numbers(4, 64), BufferUsage.ANY)
    for n in range(4):
        x = gg.mul_mat(place(two.cpu, numbers(64, 64, seed=n), name=f"w{n}"), x)
    graph = gg.Graph(x)
    explanation = two.scheduler.explain(graph)
    assert [s.device for s in explanation.splits] == ["gpu"] * 4
    assert explanation.memory["gpu"] < 2 * 64 * 64 * 4
    two.scheduler.compute(graph)


def test_weights_in_a_layout_of_their_own_are_copied_through_the_tensor() -> None:
    class Reversed(HostBufferType):
        """Keeps the bytes of each tensor in reverse."""

        has_own_layout, is_host = True, False  # type: ignore[assignment]

        def _alloc(self, size: int) -> HostBuffer:
            return ReversedBuffer(self, np.empty(size, np.uint8))

    class ReversedBuffer(HostBuffer):
        def set_tensor(self, tensor: Described, data: object, start: int, offset: int = 0) -> None:
            assert offset == 0
            self._set(start, np.asarray(data)[::-1])

        def get_tensor(self, tensor: Described, out: Bytes, start: int, offset: int = 0) -> None:
            self._get(start, out)
            out[...] = out[::-1].copy()

    two = Setting()
    weights = place(Reversed("reversed"), numbers(8, 8))
    assert weights.numpy().tolist() == numbers(8, 8).tolist()
    x = place(two.fake, numbers(3, 8))
    graph = gg.Graph(gg.mul_mat(weights, x))
    two.scheduler.pin(graph.node(0), two.scheduler.backends[0])
    two.scheduler.compute(graph)
    np.testing.assert_allclose(graph.node(0).numpy(), numbers(3, 8) @ numbers(8, 8).T, rtol=1e-5)


def test_the_explanation_is_a_table_and_plain_data(two: Setting) -> None:
    x = place(two.cpu, numbers(3, 8), BufferUsage.ANY, "x")
    graph = gg.Graph(gg.mul_mat(place(two.fake, numbers(8, 8), name="w"), x, name="y"))
    explanation = two.scheduler.explain(graph)
    text = str(explanation)
    assert "split 0 on gpu: 1 nodes" in text
    assert "copy x  cpu -> gpu  96 bytes" in text
    assert "its weight w lies there" in text
    assert "1 splits, 1 copies of 96 bytes" in text
    plain = json.loads(json.dumps(explanation.to_dict()))
    assert plain["nodes"][0]["device"] == "gpu"
    (copy,) = plain["copies"]
    assert copy == {"split": 0, "name": "x", "source": "cpu", "target": "gpu", "nbytes": 96, "unpacked": False}
    assert explanation.edges() == {("cpu", "gpu"): 96}


def test_a_graph_without_nodes_is_computed_at_once(two: Setting) -> None:
    x = place(two.fake, numbers(4))
    graph = gg.Graph(x)
    two.scheduler.compute(graph)
    assert str(two.scheduler.explain(graph)) == "nothing to compute"
    assert two.scheduler.n_splits == 0


# -- what is explained is what runs ----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_what_is_explained_is_what_runs(seed: int) -> None:
    gpu = FakeDevice("gpu", declines=lambda node: "no" if node.op.name in ("soft_max", "concat") else "")
    cpu = ReferenceDevice("cpu")
    case = random_case(seed, [gpu.buffer_type, cpu.buffer_type, cpu.buffer_type], size=40)
    wanted = compute_apart(case)
    with Scheduler([gpu, cpu]) as scheduler:
        if case.inputs:
            scheduler.allocate(case.graph)
            case.set_inputs()
        explanation = scheduler.explain(case.graph)
        gpu.forget()
        scheduler.compute(case.graph)
        assert Counter(gpu.computed()) == Counter(r.op for r in explanation.rows if r.device == "gpu" and r.split >= 0)
        assert gpu.total("compute").calls == sum(split.device == "gpu" for split in explanation.splits)
        into, out = (
            (len(copies), sum(copy.nbytes for copy in copies))
            for copies in (
                [copy for copy in explanation.copies if copy.target == "gpu"],
                [copy for copy in explanation.copies if copy.target == "cpu"],
            )
        )
        assert gpu.total("receive") == into
        assert gpu.total("get") == out
        assert case.results() == wanted


# -- computing -------------------------------------------------------------------------------------


def test_a_cache_keeps_its_contents_across_splits_and_steps(two: Setting) -> None:
    for where in (two.fake, two.cpu):
        cache = place(where, np.zeros((8, 4), np.float32), BufferUsage.ANY)
        w = place(two.fake if where is two.cpu else two.cpu, np.eye(4, dtype=np.float32))
        total = np.zeros((8, 4), np.float32)
        for step in range(8):
            x, index = gg.new_tensor("f32", 4), gg.new_tensor("i64", 1)
            write = gg.set_rows(cache, gg.mul_mat(w, x), index)
            seen = gg.mul_mat(w, gg.view(cache, 4, step + 1, nb=(16,)))
            graph = gg.Graph(write, seen)
            two.scheduler.allocate(graph)
            x.set(numbers(4, seed=step))
            index.set([step])
            two.scheduler.compute(graph)
            total[step] = numbers(4, seed=step)
            assert seen.numpy().tolist() == total[: step + 1].tolist()
        assert cache.numpy().tolist() == total.tolist()


def test_an_input_without_a_value_is_refused(two: Setting) -> None:
    x = gg.new_tensor("f32", 4, name="x")
    graph = gg.Graph(gg.silu(x))
    with pytest.raises(gg.TensorStateError, match=r"'x' .* has no value \(call scheduler.allocate"):
        two.scheduler.compute(graph)


def test_an_input_that_lost_its_value_to_another_graph_is_refused(two: Setting) -> None:
    graphs = [gg.Graph(gg.silu(gg.new_tensor("f32", 4))) for _ in range(2)]
    for graph in graphs:
        two.scheduler.allocate(graph)
        graph.leafs[0].set(np.ones(4))
        two.scheduler.compute(graph)
    two.scheduler.compute(graphs[1])
    with pytest.raises(gg.TensorStateError, match="lost its value to another computation"):
        two.scheduler.compute(graphs[0])


def test_inputs_keep_their_values_from_run_to_run(two: Setting) -> None:
    x = gg.new_tensor("f32", 4).set_input()
    graph = gg.Graph(gg.silu(gg.cont(gg.cont(x))))
    two.scheduler.allocate(graph)
    x.set(numbers(4))
    for _ in range(3):
        two.scheduler.compute(graph)
        np.testing.assert_allclose(graph.node(-1).numpy(), two_silu(numbers(4)), rtol=1e-6)


def test_a_reused_intermediate_cannot_be_read_on_any_device(two: Setting) -> None:
    x = place(two.fake, numbers(4))
    first = gg.cont(x)
    graph = gg.Graph(gg.cont(gg.cont(gg.cont(first))))
    two.scheduler.compute(graph)
    with pytest.raises(gg.TensorStateError, match="reused by a later node"):
        first.numpy()


def test_without_reuse_everything_can_be_read(two: Setting) -> None:
    scheduler = Scheduler([two.fake, two.cpu], reuse=False)
    first = gg.cont(place(two.fake, numbers(4)))
    graph = gg.Graph(gg.cont(gg.cont(gg.cont(first))))
    scheduler.compute(graph)
    assert first.numpy().tolist() == numbers(4).tolist()


def test_poison_finds_what_was_not_computed_and_spares_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGPLUG_POISON", "1")
    two = Setting()
    assert two.scheduler.poison
    for seed in range(5):
        case = random_case(seed, [two.fake.buffer_type, two.cpu.buffer_type])
        two.scheduler.allocate(case.graph)
        case.set_inputs()
        two.scheduler.compute(case.graph)
        assert case.results() == compute_apart(case)
    assert two.fake.total("memset").calls > 0


# -- the eval callback -----------------------------------------------------------------------------


def observed(two: Setting) -> tuple[gg.Graph, list[gg.Tensor]]:
    nodes = [gg.cont(place(two.fake, numbers(4)), name="0")]
    for number in range(1, 6):
        nodes.append(gg.neg(nodes[-1], name=str(number)))
    return gg.Graph(nodes[-1]), nodes


def test_the_callback_sees_what_it_asks_for_as_it_is_computed(two: Setting) -> None:
    graph, _ = observed(two)
    seen: dict[str, list[float]] = {}

    def callback(tensor: gg.Tensor, ask: bool) -> bool:
        if ask:
            return tensor.name in ("1", "4")
        seen[tensor.name] = tensor.numpy().tolist()
        return True

    two.scheduler.set_eval_callback(callback)
    two.fake.forget()
    two.scheduler.compute(graph)
    assert seen == {"1": (-numbers(4)).tolist(), "4": numbers(4).tolist()}
    assert two.fake.total("compute").calls == 3, "pieces: up to 1, up to 4, and the rest"
    assert two.fake.computed() == ["cont"] + ["neg"] * 5
    two.scheduler.set_eval_callback(None)
    two.fake.forget()
    two.scheduler.compute(graph)
    assert two.fake.total("compute").calls == 1


def test_the_callback_can_stop_the_computation(two: Setting) -> None:
    graph, nodes = observed(two)
    two.scheduler.set_eval_callback(lambda tensor, ask: tensor.name == "2" if ask else False)
    two.fake.forget()
    two.scheduler.compute(graph)
    assert two.fake.computed() == ["cont", "neg", "neg"]
    assert nodes[2].numpy().tolist() == numbers(4).tolist()
    with pytest.raises(gg.TensorStateError, match="not computed yet"):
        nodes[5].numpy()


def test_every_node_can_be_observed_in_any_random_graph() -> None:
    for seed in range(10):
        two = Setting()
        case = random_case(seed, [two.fake.buffer_type, two.cpu.buffer_type])
        two.scheduler.allocate(case.graph)
        case.set_inputs()
        seen: list[gg.Tensor] = []

        def callback(tensor: gg.Tensor, ask: bool, seen: list[gg.Tensor] = seen) -> bool:
            if not ask:
                tensor.numpy()
                seen.append(tensor)
            return True

        two.scheduler.set_eval_callback(callback)
        two.scheduler.compute(case.graph)
        assert seen == case.graph.nodes
        assert case.results() == compute_apart(case)


# -- observers -------------------------------------------------------------------------------------


def test_observers_hear_of_graphs_splits_and_nodes(two: Setting) -> None:
    class Observer:
        def __init__(self) -> None:
            self.graphs: list[gg.Graph] = []
            self.splits: list[str] = []
            self.nodes: list[gg.Tensor] = []

        @gg.hookimpl
        def ggplug_graph_computed(self, graph: gg.Graph, start: int, end: int) -> None:
            assert start < end
            self.graphs.append(graph)

        @gg.hookimpl
        def ggplug_split_computed(self, split: gg.Graph, device: Device) -> None:
            self.splits.append(f"{device.name} {len(split)}")

        @gg.hookimpl
        def ggplug_nodes_timed(self, graph: gg.Graph, times: Sequence[tuple[int, int, int]]) -> None:
            self.nodes += [graph.tensors[node] for node, start, end in times if start <= end]

    x = place(two.fake, numbers(3, 8), BufferUsage.ANY)
    graph = gg.Graph(gg.silu(gg.mul_mat(place(two.cpu, numbers(8, 8)), gg.mul_mat(place(two.fake, numbers(8, 8)), x))))
    observer = Observer()
    HOOKS.register(observer)
    try:
        two.scheduler.compute(graph)
    finally:
        HOOKS.unregister(observer)
    assert observer.graphs == [graph]
    assert observer.splits == ["gpu 1", "cpu 2"]
    assert observer.nodes == graph.nodes


# -- streams that arrange nodes --------------------------------------------------------------------


class Arranging(ReferenceDevice):
    """Its streams like the nodes of a part in another order."""

    def __init__(self, arrange: object) -> None:
        super().__init__("arranging")
        self.arrange = arrange

    def init(self, **params: object) -> Backend:
        return ArrangingStream(self)


class ArrangingStream(Backend):
    device: Arranging

    def optimize(self, graph: gg.Graph) -> gg.Graph:
        return gg.Graph.part(self.device.arrange(graph.nodes))  # type: ignore[operator]


def branches() -> tuple[gg.Graph, list[gg.Tensor]]:
    x = place(HOST, numbers(4), BufferUsage.ANY)
    ends = [gg.neg(gg.reshape(gg.silu(x), 2, 2)), gg.neg(gg.reshape(gg.sqr(x), 2, 2))]
    return gg.Graph(gg.add(*ends)), ends


def test_a_stream_may_arrange_independent_nodes() -> None:
    def breadth_first(nodes: list[gg.Tensor]) -> list[gg.Tensor]:
        rank = {"silu": 0, "sqr": 0, "reshape": 1, "neg": 2, "add": 3}
        return sorted(nodes, key=lambda node: rank[node.op.name])

    graph, _ = branches()
    with Scheduler([Arranging(breadth_first)]) as scheduler:
        order = [row.op for row in scheduler.explain(graph).rows if row.split >= 0]
        assert order == ["silu", "sqr", "neg", "neg", "add"]
        scheduler.compute(graph)
        x = numbers(4).reshape(2, 2)
        np.testing.assert_allclose(graph.node(-1).numpy(), -two_silu(x) - x * x, rtol=1e-6)


def test_an_arrangement_that_breaks_a_hazard_is_refused() -> None:
    cache = place(HOST, np.zeros((2, 4), np.float32), BufferUsage.ANY)
    read = gg.cont(cache)
    write = gg.set_rows(cache, place(HOST, numbers(1, 4)), place(HOST, np.array([0])))
    with pytest.raises(gg.GraphError, match="write after read"):
        Scheduler([Arranging(lambda nodes: nodes[::-1])]).split(gg.Graph(read, write))


def test_an_arrangement_with_other_nodes_is_refused() -> None:
    with pytest.raises(gg.GraphError, match="must return the same nodes"):
        Scheduler([Arranging(lambda nodes: nodes[:-1])]).split(branches()[0])


# -- memory ----------------------------------------------------------------------------------------


def test_explaining_and_splitting_take_no_memory(two: Setting) -> None:
    graph = gg.Graph(gg.silu(place(two.fake, numbers(4))))
    two.fake.forget()
    two.scheduler.explain(graph)
    two.scheduler.split(graph)
    two.scheduler.reserve_size(graph)
    assert two.fake.total("alloc").calls == 0


def test_after_reserving_the_largest_graph_nothing_is_allocated(two: Setting) -> None:
    def graph(n: int) -> gg.Graph:
        return gg.Graph(gg.silu(gg.mul_mat(w, place(two.fake, numbers(n, 8), BufferUsage.ANY))))

    w = place(two.fake, numbers(8, 8))
    largest = graph(100)
    two.scheduler.reserve(largest)
    gpu, cpu = two.scheduler.backends
    assert [two.scheduler.buffer_size(gpu), two.scheduler.buffer_size(cpu)] == two.scheduler.reserve_size(largest)
    smaller = [graph(n) for n in (1, 50, 99)]
    two.fake.forget()
    for each in smaller:
        two.scheduler.compute(each)
    assert two.fake.total("alloc").calls == 0


def test_a_device_that_is_full_says_so_and_the_scheduler_goes_on() -> None:
    two = Setting(memory=4096)
    x = place(two.fake, numbers(4))
    small = gg.Graph(gg.silu(x))
    two.scheduler.compute(small)
    large = gg.Graph(gg.silu(gg.repeat(x, 4, 1000)))
    with pytest.raises(gg.OutOfMemoryError) as caught:
        two.scheduler.compute(large)
    assert (caught.value.device, caught.value.requested) == (two.fake, 16128)
    two.scheduler.compute(small)
    np.testing.assert_allclose(small.node(-1).numpy(), two_silu(numbers(4)), rtol=1e-6)


@pytest.mark.parametrize("n_copies", [1, 3])
def test_copies_and_intermediates_never_share_bytes(n_copies: int) -> None:
    from ggplug.memory import NeededBytes

    for seed in range(20):
        gpu, cpu = FakeDevice("gpu"), ReferenceDevice("cpu")
        case = random_case(seed, [gpu.buffer_type, cpu.buffer_type], size=40)
        with Scheduler([gpu, cpu], n_copies=n_copies) as scheduler:
            allocation = scheduler.allocate(case.graph)
            schedule = scheduler._find(case.graph).schedule
            extra = [
                NeededBytes(f"copy {number}", *version.copies[number], schedule.cut.splits[copy.split].first, copy.last)
                for version in schedule.versions[: 1 if n_copies == 1 else None]
                for number, copy in enumerate(schedule.cut.copies)
            ]
            check_overlaps(case.graph, allocation, order=schedule.cut.order, extra=extra)


def test_free_gives_memory_streams_and_plans_back(two: Setting) -> None:
    x = place(two.fake, numbers(4))
    graph = gg.Graph(gg.silu(x))
    two.scheduler.compute(graph)
    held = two.fake.used
    two.scheduler.free()
    assert two.fake.used < held
    with pytest.raises(gg.TensorStateError):
        graph.node(-1).numpy()


def test_free_waits_for_zero_copy_views() -> None:
    scheduler = Scheduler([ReferenceDevice()])
    graph = gg.Graph(gg.neg(place(HOST, numbers(4), BufferUsage.ANY)))
    scheduler.compute(graph)
    seen = gg.asarray(graph.node(0))
    with pytest.raises(gg.BufferUseError, match="zero-copy"):
        scheduler.free()
    assert seen.tolist() == (-numbers(4)).tolist()
    del seen
    scheduler.free()


# -- what a scheduler is made of -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backends": []}, "at least one stream"),
        ({"backends": ["CPU"]}, "neither a stream nor a device"),
        ({"n_copies": 0}, "must be positive"),
        ({"cache_size": 0}, "must be positive"),
        ({"buffer_types": []}, "as many buffer types"),
        ({"buffer_types": [FakeDevice().buffer_type]}, "cannot access fake0 memory"),
    ],
)
def test_a_scheduler_refuses_what_cannot_work(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(gg.ParameterError, match=message):
        Scheduler(**{"backends": [ReferenceDevice()], **arguments})  # type: ignore[arg-type]


def test_a_stream_cannot_be_given_twice() -> None:
    stream = ReferenceDevice().init()
    with pytest.raises(gg.ParameterError, match="has the same stream twice"):
        Scheduler([stream, stream])


def test_two_streams_of_one_device_share_their_memory() -> None:
    device = ReferenceDevice()
    with Scheduler([device.init(), device.init()]) as scheduler:
        a = gg.silu(place(device, numbers(4)))
        b = gg.neg(a)
        scheduler.pin(a, scheduler.backends[0])
        scheduler.pin(b, scheduler.backends[1])
        graph = gg.Graph(b)
        scheduler.compute(graph)
        assert scheduler.explain(graph).copies == ()
        np.testing.assert_allclose(b.numpy(), -two_silu(numbers(4)), rtol=1e-6)


@pytest.fixture(autouse=True)
def _no_plugin_is_left() -> Iterator[None]:
    yield
    assert "ggplug_placement" not in HOOKS.callers


def test_a_tensor_that_is_not_in_the_graph_has_no_stream(two: Setting) -> None:
    graph = gg.Graph(gg.silu(place(two.fake, numbers(4))))
    with pytest.raises(gg.ParameterError, match="is not in"):
        two.scheduler.backend_of(gg.new_tensor("f32", 4), graph)


@pytest.mark.parametrize("answer", ["raises", "None"])
def test_a_device_whose_match_raises_or_answers_nothing_is_named(answer: str) -> None:
    class Lying(ReferenceDevice):
        def match(self, group: Group) -> object:
            if answer == "raises":
                raise RuntimeError("its table is gone")
            return None

    graph = gg.Graph(gg.neg(gg.tensor([1.0])))
    message = "failed in .*neg.*its table is gone" if answer == "raises" else "must return a kernel or a Decline"
    with gg.Scheduler([Lying()]) as scheduler, pytest.raises(gg.ComputeError, match=message):
        scheduler.compute(graph)
