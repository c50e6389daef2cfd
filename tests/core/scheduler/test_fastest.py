"""The policy "cost": nodes run where the graph is predicted to take the least time, within ggml's number of splits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from cost_model.fixed_rates import FixedRates, random_costs
from random_graphs import compute_apart, random_case

import ggplug as gg
from ggplug.backend import BufferType, Device, node_times
from ggplug.costs import kept
from ggplug.costs.model import CostModel
from ggplug.costs.rates import Rates
from ggplug.costs.work import work_of
from ggplug.host import HOST
from ggplug.nodes.hazards import Hazards
from ggplug.scheduler import Scheduler
from ggplug.scheduler.assign import assign
from ggplug.scheduler.fastest import ways
from ggplug.scheduler.prediction import predict
from ggplug.scheduler.support import Streams
from ggplug.scheduler.timing import RUNS, Timing
from ggplug.types import BufferUsage
from ggplug_testing import FakeDevice, ReferenceDevice


class Setting:
    """A fake discrete device first, a host device second, and their times."""

    def __init__(self, fake: Rates, host: Rates, *, op_offload: bool = True, **device: object) -> None:
        self.fake = FakeDevice("gpu", **device)  # type: ignore[arg-type]
        self.cpu = ReferenceDevice("cpu")
        self.costs = CostModel({self.fake: fake, self.cpu: host})
        self.scheduler = Scheduler([self.fake, self.cpu], policy=self.costs, op_offload=op_offload)
        self.ruled = Scheduler([self.fake, self.cpu], op_offload=op_offload)

    def devices(self, graph: gg.Graph) -> list[str]:
        return [row.device for row in self.scheduler.explain(graph).rows]


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def place(where: Device | BufferType, values: np.ndarray, usage: BufferUsage = BufferUsage.WEIGHTS) -> gg.Tensor:
    kind = where.buffer_type if isinstance(where, Device) else where
    tensor = gg.new_tensor("f32", values.shape[::-1])
    buffer = kind.alloc(tensor.nbytes)
    buffer.usage = usage
    tensor.place(buffer)
    return tensor.set(values)


def test_nodes_run_where_they_are_faster() -> None:
    slow = Setting(FixedRates(kernel=1e-3), FixedRates(kernel=1e-6))
    x = place(HOST, numbers(3, 8), BufferUsage.ANY)
    w = place(slow.fake, numbers(8, 8))
    graph = gg.Graph(gg.neg(gg.mul_mat(w, gg.silu(x))))
    assert [row.device for row in slow.ruled.explain(graph).rows] == ["gpu"] * 3
    assert slow.devices(graph) == ["cpu"] * 3
    assert slow.scheduler.explain(graph).rows[0].text == "it is predicted to take the least time there"


def test_nodes_stay_where_the_rules_put_them_if_that_is_as_fast() -> None:
    equal = Setting(FixedRates(), FixedRates())
    graph = gg.Graph(gg.neg(gg.mul_mat(place(equal.fake, numbers(8, 8)), place(HOST, numbers(3, 8), BufferUsage.ANY))))
    assert equal.devices(graph) == ["gpu", "gpu"]
    assert equal.scheduler.explain(graph).rows[0].reason == "weight"


def test_a_copy_that_takes_longer_than_the_computation_is_not_made() -> None:
    far = Setting(FixedRates(kernel=1e-5, copy=1.0), FixedRates(kernel=1e-6, copy=1.0))
    w = place(far.fake, numbers(8, 8))
    x = place(far.fake, numbers(3, 8), BufferUsage.ANY)
    assert far.devices(gg.Graph(gg.neg(gg.mul_mat(w, x)))) == ["gpu", "gpu"]


def test_an_op_is_offloaded_where_that_is_predicted_to_be_faster() -> None:
    """The device does not ask for it."""
    w = place(HOST, numbers(8, 8))
    x = place(HOST, numbers(32, 8), BufferUsage.ANY)
    graph = gg.Graph(gg.mul_mat(w, x))
    fast = FixedRates(mul_mat=1e-6), FixedRates(mul_mat=1e-3)
    assert Setting(*fast).devices(graph) == ["gpu"]
    assert Setting(*fast, op_offload=False).devices(graph) == ["cpu"]
    assert Setting(FixedRates(mul_mat=1e-6, copy=1.0), FixedRates(mul_mat=1e-3)).devices(graph) == ["cpu"]


def test_pins_policies_of_plugins_and_writes_decide_first() -> None:
    slow = Setting(FixedRates(kernel=1e-3), FixedRates(kernel=1e-6))
    cache = place(slow.fake, numbers(4, 8), BufferUsage.ANY)
    x = place(HOST, numbers(4, 8), BufferUsage.ANY)
    node = gg.silu(x)
    graph = gg.Graph(gg.cpy(gg.neg(node), cache))
    assert slow.devices(graph)[-1] == "gpu"
    slow.scheduler.pin(node, slow.scheduler.backends[0])
    row = slow.scheduler.explain(graph).rows[0]
    assert (row.device, row.reason) == ("gpu", "pinned")


def test_there_are_never_more_splits_than_by_the_rules() -> None:
    """Each second op is faster on each device, but the rules need one split."""
    fast = Setting(
        FixedRates(silu=1e-6, neg=1e-3, split=0.0, copy=0.0), FixedRates(silu=1e-3, neg=1e-6, split=0.0, copy=0.0)
    )
    x = place(fast.fake, numbers(3, 8), BufferUsage.ANY)
    w = place(fast.fake, numbers(8, 8))
    y = gg.mul_mat(w, x)
    for _ in range(4):
        y = gg.neg(gg.silu(y))
    graph = gg.Graph(y)
    assert len(fast.ruled.split(graph)) == 1
    assert len(fast.scheduler.split(graph)) == 1


def test_what_does_not_fit_into_memory_stays_where_the_rules_put_it() -> None:
    times = FixedRates(kernel=1e-6), FixedRates(kernel=1e-3)
    w = place(HOST, numbers(64, 64))
    graph = gg.Graph(gg.mul_mat(w, place(HOST, numbers(32, 64), BufferUsage.ANY)))
    assert Setting(*times).devices(graph) == ["gpu"]
    assert Setting(*times, memory=1 << 12).devices(graph) == ["cpu"]


def test_of_a_chain_the_fastest_assignment_of_all_is_found() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        ops: list[Callable[[gg.Tensor], gg.Tensor]] = [gg.silu, gg.neg, gg.relu, gg.tanh]

        def times(rng: random.Random = rng) -> Rates:
            of = {name: rng.randrange(1, 60) * 1e-6 for name in ("silu", "neg", "relu", "tanh")}
            return FixedRates(split=rng.randrange(1, 30) * 1e-6, copy=rng.randrange(1, 30) * 1e-6, **of)

        devices = [FakeDevice("gpu0"), FakeDevice("gpu1"), ReferenceDevice("cpu")]
        costs = CostModel({device: times() for device in devices})
        y = place(HOST, numbers(8), BufferUsage.ANY)
        for _ in range(6):
            y = rng.choice(ops)(y)
        graph = gg.Graph(y)
        backends = [device.init() for device in devices]
        streams = Streams(backends, [device.buffer_type for device in devices])
        hazards = Hazards(graph)
        ruled = assign(graph, streams, hazards=hazards)
        found = next(ways(graph, streams, hazards, ruled, costs, op_offload=True))
        each = (
            seconds_of(graph, streams, costs, dict(zip(graph.order, chosen, strict=True)))
            for chosen in itertools.product(range(3), repeat=6)
        )
        assert seconds_of(graph, streams, costs, found) == pytest.approx(min(each))


def seconds_of(graph: gg.Graph, streams: Streams, costs: CostModel, at: Mapping[int, int]) -> float:
    """The predicted time of a chain over a leaf in host memory, whose nodes run on these streams."""
    total, last, memory = 0.0, -1, HOST
    for position in graph.order:
        stream = at[position]
        if stream != last:
            total += costs.split(streams[stream])
        if not streams.works_in(stream, memory):
            total += costs.copy(streams[stream], memory, graph.tensors[position].nbytes)
        total += costs.kernel(streams[stream], [graph.tensors[position]])
        last, memory = stream, streams.buffer_types[stream]
    return total


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_have_the_same_results_wherever_they_run(seed: int) -> None:
    rng = random.Random(seed)
    ops = ("add", "mul", "mul_mat", "silu", "soft_max", "rms_norm", "cont", "cpy", "set_rows")
    gpu, cpu = FakeDevice("gpu"), ReferenceDevice("cpu")
    case = random_case(seed, [gpu.buffer_type, HOST])
    wanted = compute_apart(case)
    with (
        Scheduler([gpu, cpu], policy=random_costs(rng, [gpu, cpu], ops)) as scheduler,
        Scheduler([gpu, cpu]) as ruled,
    ):
        assert len(scheduler.split(case.graph)) <= len(ruled.split(case.graph))
        for _ in range(RUNS + 3):  # those that are timed as well
            case.restore()
            scheduler.allocate(case.graph)
            case.set_inputs()
            scheduler.compute(case.graph)
            assert case.results() == wanted


# -- what was predicted, and what was measured -----------------------------------------------------


def test_the_explanation_has_the_predicted_and_the_measured_times() -> None:
    two = Setting(FixedRates(), FixedRates())
    w = place(two.fake, numbers(8, 8))
    graph = gg.Graph(gg.neg(gg.mul_mat(w, place(HOST, numbers(3, 8), BufferUsage.ANY))))
    (split,) = two.scheduler.explain(graph).splits
    assert split.predicted is not None
    assert split.measured is None
    for _ in range(RUNS + 2):
        two.scheduler.compute(graph)
    (split,) = two.scheduler.explain(graph).splits
    assert split.measured is not None
    assert "ms predicted" in str(two.scheduler.explain(graph))
    assert "ms measured" in str(two.scheduler.explain(graph))
    (split,) = two.ruled.explain(graph).splits
    assert split.predicted is None
    assert "predicted" not in str(two.ruled.explain(graph))


def test_what_runs_refines_what_is_predicted() -> None:
    device = ReferenceDevice("cpu")
    known = Rates()
    known.note_split(1e-6, 1e-7)
    node = gg.mul_mat(place(HOST, numbers(64, 64)), place(HOST, numbers(32, 64), BufferUsage.ANY))
    known.note(work_of([node]), 1.0)
    graph = gg.Graph(node)
    with Scheduler([device], policy=CostModel({device: known})) as scheduler:
        before = scheduler.explain(graph).splits[0].predicted
        for _ in range(RUNS + 2):
            scheduler.compute(graph)
        (split,) = scheduler.explain(graph).splits
    assert before == pytest.approx(1.0, rel=0.01)
    assert split.predicted is not None
    assert split.predicted < 0.5


@pytest.mark.parametrize("call", [50e-6, 200e-6], ids=["less than its parts with waits between them", "more"])
def test_a_graph_that_ran_is_predicted_to_take_what_its_calls_took(call: float) -> None:
    """Its three kernels are equal, and were timed differently."""
    gpu, cpu = FakeDevice("gpu"), ReferenceDevice("cpu")
    rates = Rates()
    rates.note_split(5e-6, 1e-6)
    costs = CostModel({gpu: rates, cpu: FixedRates(kernel=1.0)})
    graph = gg.Graph(
        gg.neg(gg.neg(gg.neg(gg.mul_mat(place(gpu, numbers(8, 8)), place(HOST, numbers(3, 8), BufferUsage.ANY)))))
    )
    with Scheduler([gpu, cpu], policy=costs) as scheduler:
        for name in {copy.source for copy in scheduler.explain(graph).copies}:
            rates.note_copy(name, 96, 28e-6)
        schedule, streams, timing = scheduler._find(graph).schedule, scheduler._streams, Timing()
        assert len(schedule.cut.splits) == len(schedule.cut.copies) == 1
        while not timing.done:
            if timing.begin():
                starts = {position: 10 * number**2 for number, position in enumerate(graph.order)}
                times = node_times([(position, start, start + 30 + start) for position, start in starts.items()])
                timing.note(0, 30e-6, 60e-6, times if timing.times_kernels else ())
                timing.end(graph, streams, schedule, costs)
            else:
                timing.called(call, graph, streams, schedule, costs)
        assert timing.measured is not None
        assert timing.measured.total == pytest.approx(call)
        assert predict(graph, streams, schedule, costs).total == pytest.approx(call)


def test_a_computation_that_fails_is_not_learnt_from_and_the_next_one_works() -> None:
    gpu, cpu = FakeDevice("gpu"), ReferenceDevice("cpu")
    rows, ids = place(gpu, numbers(4, 8)), gg.new_tensor("i32", 2).set_input()
    graph = gg.Graph(gg.get_rows(rows, ids).set_output())
    with Scheduler([gpu, cpu], policy=CostModel({gpu: FixedRates(), cpu: FixedRates()})) as scheduler:
        for number in range(9):
            scheduler.allocate(graph)
            ids.set(np.array([0, 9 if number % 2 else 1], np.int32))
            if number % 2:
                with pytest.raises(gg.ComputeError):
                    scheduler.compute(graph)
            else:
                scheduler.compute(graph)


def test_times_are_measured_at_first_use_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGPLUG_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kept, "_known", {})
    monkeypatch.setattr("ggplug.costs.measuring.SECONDS", 0.05)
    graph = gg.Graph(gg.neg(place(HOST, numbers(3, 8), BufferUsage.ANY)))
    with Scheduler([ReferenceDevice("cpu")], policy="cost") as alone:
        alone.compute(graph)
        assert not list(tmp_path.rglob("*.json")), "one device has nothing to choose"
    with Scheduler([FakeDevice("gpu"), ReferenceDevice("cpu")], policy="cost") as scheduler:
        assert not list(tmp_path.rglob("*.json"))
        scheduler.compute(graph)
        assert len(list(tmp_path.rglob("*.json"))) == 2


def test_a_device_that_cannot_be_measured_is_used_by_the_rules() -> None:
    gpu, cpu = FakeDevice("gpu"), ReferenceDevice("cpu")
    graph = gg.Graph(gg.neg(gg.mul_mat(place(gpu, numbers(8, 8)), place(HOST, numbers(3, 8), BufferUsage.ANY))))
    with Scheduler([gpu, cpu], policy=CostModel({gpu: Rates(), cpu: FixedRates()})) as scheduler:
        assert [row.device for row in scheduler.explain(graph).rows] == ["gpu", "gpu"]
        assert scheduler.explain(graph).splits[0].predicted is None


@pytest.mark.parametrize("policy", ["fast", 3, b"cost"])
def test_a_policy_that_there_is_not_is_refused(policy: object) -> None:
    with pytest.raises(gg.ParameterError, match="policy must be 'ggml' or 'cost'"):
        Scheduler([ReferenceDevice("cpu")], policy=policy)  # type: ignore[arg-type]
