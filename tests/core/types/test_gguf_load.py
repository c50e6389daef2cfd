"""Loading a GGUF file gives placed tensors: inside the map where a device can use it, else in its memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggplug import quants, types
from ggplug.errors import BufferUseError, GGUFError, OutOfMemoryError, ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter, load
from ggplug.host import HOST, HostBufferType, asarray
from ggplug.types import BufferUsage
from ggplug_testing.devices.reference import ReferenceDevice
from ggplug_testing.fake import FakeDevice

RNG = np.random.default_rng(11)
VALUES = {
    "matrix": RNG.standard_normal((6, 64), np.float32),
    "vector": RNG.standard_normal(5, np.float32),
    "blocks": RNG.standard_normal((3, 64), np.float32),
    "indices": RNG.integers(0, 99, 7, np.int32),
    "scalar": np.float32(3.5),
    "empty": np.empty((0, 4), np.float32),
}
NBYTES = 6 * 64 * 4 + 5 * 4 + 3 * 36 + 7 * 4 + 4


def write(path: Path, **options: Any) -> list[Path]:
    writer = GGUFWriter(path, arch="test", **options)
    for name, values in VALUES.items():
        if name == "blocks":
            writer.add_tensor(name, quants.quantize(values, types.Q4_0), types.Q4_0)
        else:
            writer.add_tensor(name, values)
    return writer.write()


def check(tensors: Any) -> None:
    assert [t.name for t in tensors] == list(VALUES)
    for name, values in VALUES.items():
        wanted = values if name != "blocks" else quants.dequantize(quants.quantize(values, types.Q4_0), types.Q4_0)
        np.testing.assert_array_equal(tensors[name].numpy(), wanted, strict=True)


def mapped_files(address: int) -> list[str]:
    """Which file the system has mapped at an address."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, path = line.split(maxsplit=5) if len(line.split()) > 5 else (line.split()[0], "")
        low, high = (int(end, 16) for end in span.split("-"))
        if low <= address < high:
            found.append(path)
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf")[0]


@pytest.mark.parametrize("where", [None, ReferenceDevice()], ids=["host memory", "a host device"])
def test_a_host_device_uses_the_tensors_where_they_lie_in_the_map(model: Path, where: Any) -> None:
    context, metadata = load(model, where)
    with context, GGUFReader(model) as reader:
        check(context)
        assert metadata["general.architecture"] == "test"
        assert len({t.buffer for t in context if t.nbytes}) == 1
        for name, info in reader.tensors.items():
            tensor = context[name]
            if not info.nbytes:
                continue
            assert tensor.buffer is not None
            assert tensor.offset == info.offset
            assert tensor.buffer.usage is BufferUsage.WEIGHTS
            assert tensor.buffer.size == model.stat().st_size
            if sys.platform == "linux":
                assert mapped_files(tensor.buffer.address + tensor.offset) == [str(model)]


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system for its mappings in /proc")
def test_the_map_goes_away_with_the_context(model: Path) -> None:
    context, metadata = load(model)
    address = context["matrix"].buffer.address  # type: ignore[union-attr]
    view = asarray(context["matrix"])
    with pytest.raises(BufferUseError, match="zero-copy"):
        context.free()
    del view
    context.free()
    assert str(model) not in mapped_files(address)
    assert metadata["general.architecture"] == "test"


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system for resident memory in /proc")
def test_reading_all_weights_in_place_takes_no_memory_beyond_the_file(tmp_path: Path) -> None:
    def resident() -> int:
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(fields["VmRSS"].split()[0]) * 1024

    path = tmp_path / "large.gguf"
    row = np.ones((1 << 20,), np.float32)
    with GGUFWriter(path) as writer:
        for index in range(16):
            writer.add_tensor(f"w{index}", row)
    before = resident()
    with load(path)[0] as context:
        assert sum(float(asarray(tensor)[::512].sum()) for tensor in context) == 16 * 2048
        assert resident() - before < 1.15 * path.stat().st_size


def test_mapped_weights_cannot_be_written_to(model: Path) -> None:
    content = model.read_bytes()
    with load(model)[0] as context:
        with pytest.raises(BufferUseError, match="read-only"):
            context["vector"].set(np.zeros(5, np.float32))
        check(context)
    assert model.read_bytes() == content


def test_a_device_with_its_own_memory_gets_a_copy_of_each_byte_once(model: Path) -> None:
    device = FakeDevice()
    with load(model, device)[0] as context:
        assert sum(a.bytes for a in device.log if a.kind == "set") == NBYTES
        assert all(t.buffer.type.device is device for t in context if t.nbytes)  # type: ignore[union-attr]
        assert all(b.usage is BufferUsage.WEIGHTS for b in context.buffers)
        check(context)
    assert device.used == 0


def test_a_named_buffer_type_gets_writable_copies(model: Path) -> None:
    for place in (HOST, HostBufferType("other")):
        with load(model, place)[0] as context:
            assert {t.buffer.type for t in context if t.nbytes} == {place}  # type: ignore[union-attr]
            check(context)
            context["vector"].set(np.zeros(5, np.float32))


def test_a_function_places_each_tensor(model: Path) -> None:
    fake, host = FakeDevice(), ReferenceDevice()
    places = {"matrix": fake, "vector": host, "blocks": fake.buffer_type}
    with load(model, lambda name: places.get(name))[0] as context:
        assert context["matrix"].buffer.type is fake.buffer_type  # type: ignore[union-attr]
        assert context["blocks"].buffer.type is fake.buffer_type  # type: ignore[union-attr]
        assert context["vector"].buffer.type is host.buffer_type  # type: ignore[union-attr]
        assert context["indices"].buffer.type is HOST  # type: ignore[union-attr]
        check(context)


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("alignment", [8, 64])
@pytest.mark.parametrize("where", [None, ReferenceDevice(), FakeDevice()], ids=["host", "host device", "discrete"])
def test_any_file_has_the_same_values_in_any_place(tmp_path: Path, endian: str, alignment: int, where: Any) -> None:
    with load(write(tmp_path / "m.gguf", endian=endian, alignment=alignment)[0], where)[0] as context:
        check(context)


@pytest.mark.parametrize("where", [None, FakeDevice()], ids=["host", "discrete"])
def test_a_split_model_loads_as_a_whole(tmp_path: Path, where: Any) -> None:
    paths = write(tmp_path / "m.gguf", split_max_tensors=2)
    assert len(paths) == 3
    with load(paths[0], where)[0] as context:
        check(context)


@pytest.mark.parametrize("where", [None, FakeDevice()], ids=["host", "discrete"])
def test_progress_counts_bytes_up_to_all_of_them(model: Path, where: Any) -> None:
    steps: list[tuple[int, int]] = []
    load(model, where, progress=lambda done, total: steps.append((done, total)))[0].free()
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1] == (NBYTES, NBYTES)
    assert {total for _, total in steps} == {NBYTES}


def test_a_device_without_room_keeps_nothing(model: Path) -> None:
    device = FakeDevice(memory=1000)
    with pytest.raises(OutOfMemoryError):
        load(model, device)
    assert device.used == 0


def test_a_malformed_file_is_an_error_before_anything_is_allocated(model: Path) -> None:
    model.write_bytes(model.read_bytes()[:300])
    device = FakeDevice()
    with pytest.raises(GGUFError):
        load(model, device)
    assert not device.log


@pytest.mark.parametrize("place", ["CPU", 5, [], ReferenceDevice], ids=str)
def test_what_is_no_place_is_refused_with_the_tensor_that_should_go_there(model: Path, place: Any) -> None:
    for where in [lambda name: place] if callable(place) else [place, lambda name: place]:
        with pytest.raises(ParameterError, match="a Device, a BufferType or None for tensor 'matrix', got "):
            load(model, where)
