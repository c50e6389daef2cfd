"""A model whose weights are spread over two devices gives the same result, and what was explained is what ran."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import ggplug as gg
import ggplug_models
from ggplug.backend import Device
from ggplug.errors import ParameterError
from ggplug_models import LayerSplit
from ggplug_models.weights.placement import alternating
from ggplug_testing import FakeDevice

IDS = [[2, 9, 33, 120, 7, 3], [2, 250, 11, 3]]


@pytest.mark.parametrize("execution", ["now", "late", "thread"])
def test_layers_alternating_between_a_discrete_device_and_the_cpu_give_the_cpus_result(
    data: Path, execution: str
) -> None:
    cpu = gg.device("CPU")
    with ggplug_models.load(data / "bert.gguf", [cpu]) as whole:
        wanted = whole.embed_ids(IDS)
    fake = FakeDevice(execution=execution, inner=cpu)
    with ggplug_models.load(data / "bert.gguf", [fake, cpu], placement=alternating) as split:
        first = split.embed_ids(IDS)
        again = split.embed_ids(IDS)
    np.testing.assert_allclose(first, wanted, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(first, again)


def test_explained_copies_and_nodes_are_those_that_the_device_counted(data: Path) -> None:
    cpu = gg.device("CPU")
    fake = FakeDevice(inner=cpu)
    with ggplug_models.load(data / "bert.gguf", [fake, cpu], placement=alternating) as model:
        batch = model.build(2, 8)
        model.scheduler.allocate(batch.graph)
        batch.fill([np.ones(8, np.int64)] * 2, model.pooling)
        explanation = model.scheduler.explain(batch.graph)
        fake.forget()
        model.scheduler.compute(batch.graph)
        model.scheduler.synchronize()

        on_fake = [row.op for row in explanation.rows if row.device == fake.name and row.split >= 0]
        computed = [op for group in fake.computed() for op in group.split()]
        assert sorted(computed) == sorted(on_fake)
        assert len(on_fake) > 20
        to_fake = sum(copy.nbytes for copy in explanation.copies if copy.target == fake.name)
        from_fake = sum(copy.nbytes for copy in explanation.copies if copy.target == "CPU")
        assert fake.total("set", "receive").bytes == to_fake
        assert fake.total("get").bytes == from_fake
        assert explanation.bytes_copied == to_fake + from_fake


def test_a_discrete_device_without_memory_for_the_weights_says_so_and_leaves_nothing(data: Path) -> None:
    small = FakeDevice(memory=100_000)
    with pytest.raises(gg.OutOfMemoryError) as caught:
        ggplug_models.load(data / "bert.gguf", [small, gg.device("CPU")])
    assert caught.value.requested > 100_000
    assert small.memory().free == 100_000


# -- runs of layers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_layer", "proportions", "layers"),
    [
        (6, (1, 1), [3, 3]),
        (3, (1, 1), [2, 1]),
        (6, (2, 1), [4, 2]),
        (32, (24, 8), [24, 8]),
        (12, (0.5, 0.25, 0.25), [6, 3, 3]),
        (3, (10, 1), [2, 1]),
        (3, (1, 100, 1), [1, 1, 1]),
        (6, (0, 1, 0), [0, 6, 0]),
        (5, (1, 0, 1, 9), [1, 0, 1, 3]),
        (3, (1e308, 1e308), [2, 1]),
        (3, (5e-324, 1), [1, 2]),
    ],
)
def test_layers_follow_the_proportions_and_every_device_gets_a_layer(
    n_layer: int, proportions: tuple[float, ...], layers: list[int]
) -> None:
    assert LayerSplit(proportions).layers(n_layer, len(proportions)) == layers


def test_equal_proportions_are_the_default_and_are_called_even() -> None:
    assert LayerSplit().layers(6, 3) == LayerSplit.parse("Even").layers(6, 3) == [2, 2, 2]
    assert LayerSplit.parse("24, 8").proportions == LayerSplit([24, 8]).shares == (24, 8)
    assert [str(LayerSplit()), str(LayerSplit.parse("2,0.5"))] == ["even", "2,0.5"]


@pytest.mark.parametrize("proportions", [(1, 1), (3, 1, 2), (1, 9), (0.1, 0.1, 0.7, 0.1)])
def test_every_layer_goes_to_one_device_and_the_devices_keep_their_order(proportions: tuple[float, ...]) -> None:
    for n_layer in range(len(proportions), 40):
        counts = LayerSplit(proportions).layers(n_layer, len(proportions))
        assert sum(counts) == n_layer
        assert min(counts) >= 1
        ideal = np.array(proportions) / sum(proportions) * n_layer
        assert ideal.min() < 1 or np.abs(counts - ideal).max() <= 1


def test_embeddings_go_with_the_first_layer_and_the_output_with_the_last() -> None:
    devices = [FakeDevice("a"), FakeDevice("b"), FakeDevice("c")]
    place = LayerSplit((0, 1, 2)).over(3, 3)
    where = {
        "b": [
            "token_embd.weight",
            "position_embd.weight",
            "token_types.weight",
            "token_embd_norm.bias",
            "rope_freqs.weight",
            "blk.0.attn_q.weight",
            "blk.0.ffn_up.bias",
        ],
        "c": [
            "blk.1.attn_q.weight",
            "blk.2.layer_output_norm.weight",
            "output_norm.weight",
            "output.weight",
            "cls.weight",
            "cls.output.bias",
            "pooler.weight",
        ],
    }
    for device, names in where.items():
        for name in names:
            assert place(name, devices).name == device, name


@pytest.mark.parametrize("text", ["", "2,x", "2;1", "1,-1", "nan,1", "inf,1", "1,"])
def test_a_number_that_is_no_positive_number_is_refused_with_what_to_give(text: str) -> None:
    with pytest.raises(ParameterError, match=r"numbers of at least 0.*such as 2,1"):
        LayerSplit.parse(text)


def test_proportions_that_fit_no_model_or_no_device_are_refused_with_what_to_do(data: Path) -> None:
    with pytest.raises(ParameterError, match=r"0,0 gives no layers to any device.*positive"):
        LayerSplit((0, 0))
    with pytest.raises(ParameterError, match=r"1,1,2 has 3 numbers for 2 devices.*one number for each"):
        ggplug_models.load(data / "bert.gguf", [FakeDevice("a"), FakeDevice("b")], placement=LayerSplit((1, 1, 2)))
    fakes = [FakeDevice(f"fake{n}") for n in range(4)]
    with pytest.raises(ParameterError, match=r"3 layers cannot be split between 4 devices.*fewer devices"):
        ggplug_models.load(data / "bert.gguf", fakes, placement=LayerSplit())
    assert all(fake.used == 0 for fake in fakes)


def second_device(kind: str) -> Device:
    """A device whose memory is its own: one that exists only here, or OpenCL's first where there is one."""
    if kind == "fake":
        return FakeDevice(inner=gg.device("CPU"), execution="late")
    pytest.importorskip("ggplug_opencl")
    try:
        return gg.device("OpenCL0")
    except gg.DeviceNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("kind", ["fake", "OpenCL0"])
@pytest.mark.parametrize("first", ["CPU", "the other"])
def test_layers_run_where_the_split_puts_them_and_give_the_cpus_result(data: Path, kind: str, first: str) -> None:
    cpu, other = gg.device("CPU"), second_device(kind)
    devices = [cpu, other] if first == "CPU" else [other, cpu]
    with ggplug_models.load(data / "bert.gguf", [cpu]) as whole:
        wanted = whole.embed_ids(IDS)
    with ggplug_models.load(data / "bert.gguf", devices, placement=LayerSplit((2, 1))) as model:
        found = model.embed_ids(IDS)
        explanation = model.scheduler.explain(model.build(2, 8).graph)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)

    assert [split.device for split in explanation.splits] == [device.name for device in devices]
    for row in explanation.rows:
        layer = re.match(r"blk\.(\d)", row.name)
        if layer:
            assert row.device == devices[int(layer[1]) // 2].name, row
    # Inputs lie with the last device and are copied to the first, and then what lies between two layers to the last.
    copied = {(copy.target, copy.name.split(" ")[0]): copy.nbytes for copy in explanation.copies}
    n_tok, n_seq, n_embd = 8, 2, 64
    assert copied == {
        (devices[0].name, "ids"): 4 * n_tok * n_seq,
        (devices[0].name, "positions"): 4 * n_tok * n_seq,
        (devices[0].name, "mask"): 4 * n_tok * n_tok * n_seq,
        (devices[1].name, "blk.1.l_out"): 4 * n_embd * n_tok * n_seq,
    }


def test_three_devices_compute_a_layer_each(data: Path) -> None:
    cpu = gg.device("CPU")
    devices = [FakeDevice("near", inner=cpu), cpu, FakeDevice("far", inner=cpu, execution="thread")]
    with ggplug_models.load(data / "bert.gguf", [cpu]) as whole:
        wanted = whole.embed_ids(IDS)
    with ggplug_models.load(data / "bert.gguf", devices, placement=LayerSplit()) as model:
        np.testing.assert_allclose(model.embed_ids(IDS), wanted, rtol=0, atol=1e-6)
        explanation = model.scheduler.explain(model.build(2, 8).graph)
    assert [split.device for split in explanation.splits] == ["near", "CPU", "far"]


def test_a_device_with_the_proportion_0_gets_no_weights(data: Path) -> None:
    fake = FakeDevice(inner=gg.device("CPU"))
    with ggplug_models.load(data / "bert.gguf", [fake, "CPU"], placement=LayerSplit((0, 1))) as model:
        model.embed_ids(IDS)
        assert fake.computed() == []
