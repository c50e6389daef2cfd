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
