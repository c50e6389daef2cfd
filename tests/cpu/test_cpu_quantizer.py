"""Weights quantised by compiled kernels: byte for byte what the references in NumPy make of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ggplug import quants, types
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug.quantizing import quantize_file
from ggplug.quantizing.rows import Encoder
from ggplug.registry.extras import Quantizer

cpu = pytest.importorskip("ggplug_cpu.quantization.quantizer")


@pytest.fixture(scope="module")
def quantizer() -> Iterator[Quantizer]:
    made = cpu.Quantizer(2)
    yield made
    made.close()


def rows(ne0: int) -> npt.NDArray[np.float32]:
    """Rows of each kind: plain, with outliers, of zeros, constant, a ramp, tiny, not finite, of one sign."""
    rng = np.random.default_rng([7, ne0])
    x = rng.standard_normal((12, ne0)).astype(np.float32)
    x[1] *= rng.choice([1e-3, 1, 50], ne0).astype(np.float32)
    x[2] = 0
    x[3] = 1.5
    x[4] = np.arange(ne0) / 100
    x[5, 5] = np.nan
    x[6, [7, ne0 - 1]] = np.inf, -np.inf
    x[7] = np.abs(x[7])
    x[8] *= 1e-9
    x[9, : ne0 // 2] = 0
    x[10] = rng.standard_t(1.5, ne0)
    x[11] = -x[7]
    return x


def encode(
    quantizer: Quantizer,
    x: npt.NDArray[np.uint8],
    source: types.Type,
    type: types.Type,
    importance: npt.NDArray[np.float32] | None,
) -> npt.NDArray[np.uint8]:
    assert quantizer.takes(source, type, weighted=importance is not None)
    ne0 = x.shape[1] // source.block_bytes * source.block_size
    out = np.full((len(x), type.row_bytes(ne0)), 0xEE, np.uint8)
    quantizer.encode(x, source, type, importance, out)
    return out


@pytest.mark.parametrize("weighted", [False, True], ids=["", "by importance"])
@pytest.mark.parametrize("type", quants.block_types(), ids=lambda type: type.name)
def test_the_bytes_are_those_of_the_references(quantizer: Quantizer, type: types.Type, weighted: bool) -> None:
    if not quants.can_quantize(type, imatrix=weighted):
        return  # ggml has none without importance
    # a block, and more numbers than are converted at a time; searches in NumPy take long
    for ne0 in (type.block_size, 3 * type.block_size if type in quants.searched_types() else 1024 + type.block_size):
        x = rows(ne0)
        importance = np.random.default_rng(3).uniform(0, 3, ne0).astype(np.float32) if weighted else None
        wanted = quants.quantize(x, type, importance)
        found = encode(quantizer, x.view(np.uint8), types.F32, type, importance)
        assert [i for i in range(len(x)) if not np.array_equal(found[i], wanted[i])] == []


@pytest.mark.parametrize("source", [types.F16, types.BF16, types.Q8_0], ids=lambda type: type.name)
def test_rows_of_other_types_are_read_as_f32(quantizer: Quantizer, source: types.Type) -> None:
    x = quants.quantize(rows(1280), source)
    wanted = quants.quantize(quants.dequantize(x, source), types.Q4_0)
    assert np.array_equal(encode(quantizer, x, source, types.Q4_0, None), wanted)


def test_many_rows_are_shared_by_the_threads_and_none_is_left_out(quantizer: Quantizer) -> None:
    x = np.random.default_rng(9).standard_normal((3001, 32)).astype(np.float32)
    found = encode(quantizer, x.view(np.uint8), types.F32, types.Q4_0, None)
    assert np.array_equal(found, quants.quantize(x, types.Q4_0))


def test_a_file_has_the_same_bytes_with_compiled_kernels_and_without(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    with GGUFWriter(tmp_path / "model.gguf", "llama") as writer:
        writer.add("llama.block_count", 1)
        for name in ("token_embd", "blk.0.attn_v", "blk.0.ffn_up", "blk.0.ffn_down"):
            writer.add_tensor(f"{name}.weight", rng.standard_normal((4, 1280)).astype(np.float16))
    for compiled in (True, False):
        quantize_file(tmp_path / "model.gguf", tmp_path / f"{compiled}.gguf", "Q4_K_M", compiled=compiled)
    with GGUFReader(tmp_path / "True.gguf") as ours, GGUFReader(tmp_path / "False.gguf") as theirs:
        assert {each.type.name for each in ours.tensors.values()} == {"q4_K", "q6_K"}
        for name in ours.tensors:
            assert ours.data(name).tobytes() == theirs.data(name).tobytes()


def test_the_backend_is_found_by_what_it_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    encode = cpu.Quantizer.encode
    monkeypatch.setattr(cpu.Quantizer, "encode", lambda self, *how: (taken.append(how[2].name), encode(self, *how))[1])
    x = rows(32)
    with Encoder(1) as encoder:
        found = encoder.encode(x.view(np.uint8), types.F32, types.Q4_0)
    assert taken == ["q4_0"]
    with Encoder(compiled=False) as encoder:
        assert np.array_equal(encoder.encode(x.view(np.uint8), types.F32, types.Q4_0), found)
    assert taken == ["q4_0"]
