"""Weights that a node has are not sent; others are sent once, and kept in a cache with a limit."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug.backend import Device
from ggplug.errors import BufferUseError
from ggplug.gguf.reader import GGUFReader, origin
from ggplug.types import BufferUsage

pytest.importorskip("ggplug_ray")

from ggplug_ray.weights import SMALLEST, WeightCache, read_weight


def digest(raw: Any) -> str:
    return hashlib.sha256(bytes(raw)).hexdigest()


def test_an_array_of_a_mapped_file_knows_the_file_and_its_offset_there(data: Path) -> None:
    path = data / "qwen3.gguf"
    with GGUFReader(path) as reader:
        info = next(iter(reader.tensors.values()))
        raw = reader.data(info)
        assert origin(raw) == (path, info.offset)
        assert origin(raw[8:].view(np.uint16).reshape(2, -1)) == (path, info.offset + 8)
        assert origin(raw.copy()) is None


def test_bytes_of_a_file_are_taken_only_if_they_are_the_right_ones(tmp_path: Path) -> None:
    path, raw = tmp_path / "file", np.arange(256, dtype=np.uint8)
    path.write_bytes(raw.tobytes())
    found = read_weight(str(path), 16, 32, digest(raw[16:48]))
    assert found is not None
    np.testing.assert_array_equal(found, raw[16:48])
    assert read_weight(str(path), 17, 32, digest(raw[16:48])) is None
    assert read_weight(str(path), 240, 32, digest(raw[16:48])) is None
    assert read_weight(str(path), -1, 32, digest(raw[16:48])) is None
    assert read_weight(str(tmp_path), 0, 32, digest(raw[16:48])) is None
    assert read_weight(str(tmp_path / "missing"), 0, 32, digest(raw[16:48])) is None


def test_the_cache_drops_what_was_used_longest_ago_and_what_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GGPLUG_CACHE_DIR", str(tmp_path))
    cache = WeightCache(300)
    weights = [np.full(100, number, np.uint8) for number in range(4)]
    for number, raw in enumerate(weights[:3]):
        cache.keep(digest(raw), raw)
        os.utime(cache.folder / digest(raw), (number, number))
    assert cache.read(digest(weights[0]), 100) is not None  # and so it was used last
    cache.keep(digest(weights[3]), weights[3])
    there = [cache.read(digest(raw), 100) is not None for raw in weights]
    assert there == [True, False, True, True]
    (cache.folder / digest(weights[2])).write_bytes(bytes(100))
    assert cache.read(digest(weights[2]), 100) is None
    cache.keep(digest(weights[1]), weights[2])
    assert cache.read(digest(weights[1]), 100) is None
    cache.keep("../" + digest(weights[1]), weights[1])
    assert not list(tmp_path.glob("*.part"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ray"]
    assert WeightCache(0).read(digest(weights[0]), 100) is None


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each transfer to a node had."""
    from ggplug_ray.memory import RayBuffer

    found: list[int] = []
    before = RayBuffer.store

    def store(self: Any, offset: int, raw: Any) -> None:
        found.append(raw.size)
        before(self, offset, raw)

    monkeypatch.setattr(RayBuffer, "store", store)
    return found


@pytest.mark.long
def test_a_models_file_that_the_node_has_is_read_there(
    devices: dict[str, Device], stored: list[int], data: Path
) -> None:
    path = data / "qwen3.gguf"
    context, _ = gg.gguf.load(path, devices["Ray/a/CPU"])
    with context, GGUFReader(path) as reader:
        assert any(info.nbytes >= SMALLEST for info in reader.tensors.values())
        assert all(size < SMALLEST for size in stored)
        for tensor in context:
            assert tensor.tobytes() == reader.data(tensor.name).tobytes()


@pytest.mark.long
def test_other_weights_are_sent_once(devices: dict[str, Device], stored: list[int]) -> None:
    raw = np.random.default_rng().integers(0, 255, 4 * SMALLEST, np.uint8)
    for sent in (1, 1):
        weight = gg.new_tensor("i8", (raw.size,), "weight")
        with devices["Ray/a/CPU"].buffer_type.alloc(raw.size) as buffer:
            buffer.usage = BufferUsage.WEIGHTS
            weight.place(buffer, 0)
            weight.set_bytes(raw)
            assert weight.tobytes() == raw.tobytes()
        assert stored == [raw.size] * sent


def results_of(device: Device, values: Any, x: np.ndarray) -> list[np.ndarray]:
    """A weight in a device's memory for packed weights, and its products with many columns and one."""
    (memory,) = device.extra_buffer_types
    with gg.Context("weights") as weights, gg.Scheduler([device]) as scheduler:
        w = weights.new_tensor("q4_0", (256, 96), "w")
        weights.buffers.append(memory.alloc(memory.alloc_size(w)))
        w.place(weights.buffers[-1])
        w.set(values)
        products = [gg.mul_mat(w, gg.tensor(each)) for each in (x, x[:1])]
        scheduler.compute(gg.Graph(*products))
        return [w.numpy(), *(each.numpy() for each in products)]


@pytest.mark.long
def test_packed_weights_give_the_same_numbers_on_a_node_as_here(devices: dict[str, Device]) -> None:
    rng = np.random.default_rng(0)
    values, x = (rng.standard_normal((rows, 256)).astype(np.float32) for rows in (96, 40))
    there, here = (results_of(each, values, x) for each in (devices["Ray/b/CPU"], gg.device("CPU")))
    for found, wanted in zip(there, here, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.long
def test_packed_weights_on_a_node_are_set_whole_and_refused_where_they_are_here(devices: dict[str, Device]) -> None:
    (memory,), (here,) = devices["Ray/b/CPU"].extra_buffer_types, gg.device("CPU").extra_buffer_types
    assert (memory.name, memory.has_own_layout) == ("Ray/b/CPU packed", True)
    w = gg.new_tensor("q4_0", (256, 96), "w")
    assert memory.alloc_size(w) == here.alloc_size(w)
    for other in (gg.new_tensor("i32", (32, 8)), gg.new_tensor("iq2_xs", (256, 4)), gg.neg(gg.new_tensor("f32", 8))):
        assert (memory.refusal(other) is None) == (here.refusal(other) is None)
    with memory.alloc(memory.alloc_size(w)) as buffer:
        w.place(buffer)
        with pytest.raises(BufferUseError, match="set the whole"):
            buffer.set_tensor(w, np.zeros(18, np.uint8), 0)
        with pytest.raises(BufferUseError):
            buffer.get(0, np.zeros(18, np.uint8))
        w.place(None)


@pytest.mark.long
def test_a_model_is_packed_on_a_node_as_it_is_here(devices: dict[str, Device], data: Path) -> None:
    import ggplug_models

    found = {}
    for device in (devices["Ray/a/CPU"], gg.device("CPU")):
        with ggplug_models.load(data / "qwen3.gguf", [device]) as model:
            found[device.name] = [(each.name, each.memory is not None, each.packed_bytes) for each in model.packing]
    assert found["Ray/a/CPU"] == found["CPU"]
    assert any(packed for _, packed, _ in found["CPU"])
