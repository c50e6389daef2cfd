"""Memory with a layout of its own: what core does about it, tested with a reference device that reverses bytes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import ggplug as gg
from ggplug.errors import BufferUseError, ParameterError, PlacementError
from ggplug.gguf import GGUFReader, GGUFWriter, load
from ggplug.memory import allocate_graph
from ggplug.nodes.groups import signature_of
from ggplug.scheduler import Scheduler
from ggplug.tensor import Context
from ggplug.types import BufferUsage
from ggplug_testing import FakeDevice
from ggplug_testing.contracts import CLAUSES, Clause, layouts, run_clause
from ggplug_testing.devices.packing import PADDING, PackingDevice

OF_LAYOUTS = [clause for clause in CLAUSES if clause.check.__module__ == layouts.__name__]

numbers = np.random.default_rng(5).standard_normal


@pytest.fixture
def device() -> PackingDevice:
    return PackingDevice()


def reversed_weight(device: PackingDevice, values: np.ndarray, name: str = "w") -> gg.Tensor:
    """A tensor in the device's extra memory, with a context's bookkeeping."""
    context = Context(name)
    tensor = context.new_tensor("f32", values.shape[::-1], name)
    gg.allocate(context, device.extra_buffer_types[0], BufferUsage.WEIGHTS)
    return tensor.set(values)


@pytest.mark.parametrize("clause", OF_LAYOUTS, ids=lambda clause: clause.name)
def test_a_device_with_packed_memory_conforms(clause: Clause) -> None:
    finding = run_clause(PackingDevice(), clause)
    pending = "held" in clause.name  # nothing is, on a synchronous device
    assert finding.verdict == ("not applicable" if pending else "passed"), finding.reason


def test_tensors_in_packed_memory_can_begin_as_zeros(device: PackingDevice) -> None:
    with Context("weights") as context:
        tensor = context.new_tensor("f32", (8, 4))
        gg.allocate(context, device.extra_buffer_types[0], zeroed=True)
        assert not tensor.numpy().any()
        with Scheduler([device]) as scheduler:
            scheduler.compute(graph := gg.Graph(gg.mul_mat(tensor, gg.tensor(numbers((2, 8))))))
            assert not graph.outputs[0].numpy().any()


def test_packed_memory_without_tensors_is_not_zeroed_and_says_so(device: PackingDevice) -> None:
    with pytest.raises(BufferUseError, match=r"zeros in it are those of tensors .*set_zero"):
        device.extra_buffer_types[0].alloc_zeroed(4096)


def test_a_context_counts_what_its_tensors_take_in_packed_memory(device: PackingDevice) -> None:
    with Context("weights") as context:
        tensor = context.new_tensor("f32", (8, 4))
        (buffer,) = gg.allocate(context, device.extra_buffer_types[0])
        assert buffer.size >= tensor.nbytes + PADDING
        with pytest.raises(gg.TensorStateError):  # nothing was set yet
            Scheduler([device]).compute(gg.Graph(gg.mul_mat(tensor, gg.tensor(numbers((2, 8))))))
        tensor.set(1)
        assert not buffer.unset
    assert buffer.freed
    assert tensor.buffer is None


def test_a_node_that_reads_packed_bytes_as_plain_ones_is_refused_with_the_reason(device: PackingDevice) -> None:
    w = reversed_weight(device, numbers((4, 8)))
    graph = gg.Graph(gg.get_rows(w, gg.tensor(np.array([1, 2], np.int32))))
    with Scheduler([device]) as scheduler, pytest.raises(PlacementError, match="only as the weights of products"):
        scheduler.compute(graph)
    assert np.isfinite(w.numpy()).all()


def test_another_device_gets_a_copy_through_the_tensor_and_the_explanation_says_so(device: PackingDevice) -> None:
    values, x = numbers((4, 8)).astype(np.float32), numbers((3, 8)).astype(np.float32)
    w, other = reversed_weight(device, values), FakeDevice("gpu")
    graph = gg.Graph(gg.mul_mat(w, gg.tensor(x)))
    with Scheduler([other, device]) as scheduler:
        scheduler.pin(graph.node(0), scheduler.backends[0])
        explanation = scheduler.explain(graph)
        scheduler.compute(graph)
        np.testing.assert_allclose(graph.node(0).numpy(), x @ values.T, rtol=1e-5, atol=1e-6)
    assert [(copy.name, copy.unpacked) for copy in explanation.copies if copy.name == "w"] == [("w", True)]
    assert "copy w  packing reversed -> gpu  128 bytes, unpacked for each computation" in str(explanation)
    assert f"1 tensors of 128 bytes take {128 + PADDING} in packing reversed" in str(explanation)
    (row,) = explanation.packed
    assert (row.name, row.nbytes, row.packed_bytes, row.memory) == ("w", 128, 128 + PADDING, "packing reversed")
    assert explanation.to_dict()["packed"][0]["packed_bytes"] == 128 + PADDING


def test_a_scheduler_keeps_no_results_in_packed_memory(device: PackingDevice) -> None:
    with pytest.raises(ParameterError, match="packing reversed is not for results"):
        Scheduler([device], buffer_types=device.extra_buffer_types)


def test_equal_graphs_over_plain_and_packed_weights_have_signatures_of_their_own(device: PackingDevice) -> None:
    values = numbers((4, 8)).astype(np.float32)
    x = gg.tensor(numbers((3, 8)).astype(np.float32))
    plain, packed = gg.tensor(values), reversed_weight(device, values)
    graphs = [gg.Graph(gg.mul_mat(w, x)) for w in (plain, packed)]
    views = [gg.mul_mat(gg.view(w, 8, 2), x) for w in (plain, packed)]
    assert graphs[0].structure == graphs[1].structure
    assert graphs[0].signature() != graphs[1].signature()
    assert signature_of(graphs[0].node(0)) != signature_of(graphs[1].node(0))
    assert signature_of(views[0]) != signature_of(views[1])
    assert graphs[0].layouts() == ()
    assert graphs[1].layouts() == ((graphs[1].index[packed], packed.buffer_type),)
    with Scheduler([device]) as scheduler:
        for graph in (*graphs, *graphs[::-1]):
            scheduler.compute(graph)
            np.testing.assert_allclose(graph.node(0).numpy(), x.numpy() @ values.T, rtol=1e-5, atol=1e-6)


def test_weights_that_move_between_plain_and_packed_memory_are_planned_anew(device: PackingDevice) -> None:
    values = numbers((4, 8)).astype(np.float32)
    x = gg.tensor(numbers((3, 8)).astype(np.float32))
    w = reversed_weight(device, values)
    packed, plain = w.buffer, gg.tensor(values).buffer
    graph = gg.Graph(gg.mul_mat(w, x))
    with Scheduler([device]) as scheduler:
        for buffer in (packed, plain, packed):
            w.place(buffer)
            scheduler.compute(graph)
            np.testing.assert_allclose(graph.node(0).numpy(), x.numpy() @ values.T, rtol=1e-5, atol=1e-6)


def test_a_plan_names_the_tensor_that_lies_in_another_layout(device: PackingDevice) -> None:
    w = reversed_weight(device, numbers((4, 8)))
    graph = gg.Graph(gg.mul_mat(w, gg.tensor(numbers((3, 8)).astype(np.float32))))
    with device.init() as stream:
        plan, allocation = stream.plan(graph), allocate_graph(graph, device.buffer_type)
        plan.rebind(graph, allocation)
        w.place(gg.tensor(numbers((4, 8)).astype(np.float32)).buffer)
        with pytest.raises(BufferUseError, match=r"the plan is for .*'w'.* layout of packing reversed") as caught:
            plan.rebind(graph, allocation)
        assert caught.value.tensor is w
        assert caught.value.remedy == "make a new plan"


def test_an_array_cannot_share_packed_bytes_and_is_told_what_to_do(device: PackingDevice) -> None:
    w = reversed_weight(device, numbers((4, 8)))
    with pytest.raises(BufferUseError, match="in a layout of its own") as caught:
        gg.asarray(w)
    assert "numpy()" in str(caught.value.remedy)


# -- files -----------------------------------------------------------------------------------------


def test_a_file_is_loaded_into_packed_memory_and_written_out_of_it_byte_for_byte(
    device: PackingDevice, tmp_path: Path
) -> None:
    values = numbers((64, 32)).astype(np.float32)
    with GGUFWriter(tmp_path / "in.gguf") as writer:
        writer.add_tensor("w", values)
        writer.add_tensor("b", values[0])
    place = {"w": device.extra_buffer_types[0], "b": device}
    context, _ = load(tmp_path / "in.gguf", lambda name: place[name])
    with context:
        assert context["w"].buffer_type is device.extra_buffer_types[0]
        assert context["b"].buffer_type is device.buffer_type
        np.testing.assert_array_equal(context["w"].numpy(), values)
        with GGUFWriter(tmp_path / "out.gguf") as writer:
            for tensor in context:
                writer.add_tensor(tensor.name, tensor.numpy())
    with GGUFReader(tmp_path / "in.gguf") as before, GGUFReader(tmp_path / "out.gguf") as after:
        for name in ("w", "b"):
            assert before.data(name).tobytes() == after.data(name).tobytes()


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system for resident memory in /proc")
def test_pages_of_weights_that_were_packed_are_given_back(device: PackingDevice, tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    with GGUFWriter(path) as writer:
        for name in ("packed", "plain"):
            writer.add_tensor(name, np.ones((4096, 1024), np.float32))
    places = {"packed": device.extra_buffer_types[0], "plain": device}
    context, _ = load(path, lambda name: places[name])
    with context:
        assert context["plain"].numpy().sum() == 4096 * 1024  # reads its pages
        assert (16 << 20) <= resident(path) < (18 << 20)
        assert context["packed"].numpy().sum() == 4096 * 1024


def resident(path: Path) -> int:
    """Bytes of a file's maps that are in memory for this process."""
    maps = Path("/proc/self/smaps").read_text().split(str(path))[1:]
    return sum(int(found[1]) << 10 for each in maps if (found := re.search(r"Rss:\s+(\d+) kB", each)))
