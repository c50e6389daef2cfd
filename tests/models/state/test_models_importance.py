"""Importance matrices: sums of squares of what products read, compared with the values of these nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from installed import device_or_skip
from oracles.packed import ORACLES, model_file
from paths import DATA

import ggplug_models
from ggplug import ops
from ggplug.cli.app import app
from ggplug.errors import ParameterError, PlacementError
from ggplug.gguf import GGUFReader
from ggplug.quantizing import quantize_file, read_importance
from ggplug_models.importance import InputSums, measure, write_importance
from ggplug_models.networks.decoder import Decoder

N_CTX = 16
TEXT = "".join(f"{n} tokens of {n * n} texts; " for n in range(120))
TOKENS = np.random.default_rng(4).integers(3, 72, 3 * N_CTX + 5).tolist()


def loaded(name: str, *devices: str) -> Decoder:
    model = ggplug_models.load(ORACLES / f"{name}.gguf", devices or ["CPU"])
    assert isinstance(model, Decoder)
    return model


def chunks(model: Decoder) -> list[list[int]]:
    """The chunks as they are read, the first token replaced by BOS."""
    found = [TOKENS[start : start + N_CTX] for start in range(0, 3 * N_CTX, N_CTX)]
    if model.tokenizer.vocabulary.add_bos:
        found = [[model.tokenizer.bos, *chunk[1:]] for chunk in found]
    return found


@pytest.mark.parametrize("devices", [["CPU"], ["OpenCL0", "CPU"]])
def test_sums_are_those_of_the_squares_of_what_products_read(devices: list[str]) -> None:
    device_or_skip(devices[0])
    with loaded("llama3", *devices) as model:
        found, count = measure(model, TOKENS, N_CTX)
        read = {
            node.src[0].name: node.src[1].name
            for node in model.sample().nodes
            if isinstance(node.op, ops.MulMat) and node.src[0] is not None and node.src[1] is not None
        }
        wanted = dict.fromkeys(found.sums, 0.0)
        for chunk in chunks(model):
            values = model.run(chunk, {read[name] for name in found.sums})
            for name in wanted:
                wanted[name] = wanted[name] + np.square(values[read[name]].astype(np.float64)).sum(axis=0)
    assert count == 3
    assert len(found.sums) == 2 * 7
    for name, sums in wanted.items():
        np.testing.assert_allclose(found.sums[name][0], sums, rtol=2e-3, atol=1e-5)
        assert found.counts[name].tolist() == [3 * N_CTX]


def test_each_expert_counts_the_tokens_that_it_computes() -> None:
    with loaded("qwen3moe") as model:
        found, _ = measure(model, TOKENS, N_CTX, chunks=2)
        experts = model.w("blk.0.ffn_up_exps.weight", -1, -1, -1).ne[2]
        used = model.hyperparameters.integer("expert_used_count")
    up, down = (found.sums[f"blk.0.ffn_{part}_exps.weight"] for part in ("up", "down"))
    counts = found.counts["blk.0.ffn_up_exps.weight"]
    assert counts.sum() == 2 * N_CTX * used
    np.testing.assert_array_equal(counts, found.counts["blk.0.ffn_down_exps.weight"])
    assert len(up) == len(down) == experts
    # Each token's input is read by as many experts, so the sums of all are those of the router's input, so often.
    np.testing.assert_allclose(up.sum(axis=0), used * found.sums["blk.0.ffn_gate_inp.weight"][0], rtol=1e-5)


def test_groups_of_rows_of_a_matrix_count_together() -> None:
    """DeepSeek 4 multiplies each group of heads with rows of its own of one matrix."""
    name = "blk.1.attn_output_a.weight"
    with ggplug_models.load(model_file("deepseek4"), ["CPU"]) as model:
        assert isinstance(model, Decoder)
        found, _ = measure(model, TOKENS, N_CTX, chunks=1)
        (product,) = (
            node
            for node in model.sample().nodes
            if node.src[0] is not None and node.src[0].root.name == name and isinstance(node.op, ops.MulMat)
        )
        assert product.src[1] is not None
        values = model.run(chunks(model)[0], [product.src[1].name])[product.src[1].name].astype(np.float64)
    groups = values.shape[1]
    assert groups > 1
    np.testing.assert_allclose(found.sums[name], [np.square(values).sum(axis=(0, 1))], rtol=2e-3)
    assert found.counts[name].tolist() == [groups * N_CTX]


def test_measuring_changes_no_value_and_ends() -> None:
    with loaded("llama3") as model:
        before = model.logits(TOKENS[:N_CTX])
        measure(model, TOKENS, N_CTX)
        assert model.patches == ()
        np.testing.assert_array_equal(model.logits(TOKENS[:N_CTX]), before)


def test_the_file_is_what_quantising_reads(tmp_path: Path) -> None:
    source = ORACLES / "qwen3moe.gguf"
    with loaded("qwen3moe") as model:
        found, count = measure(model, TOKENS, N_CTX)
    path = write_importance(tmp_path / "imatrix.gguf", found, dataset="text.txt", chunks=count, n_ctx=N_CTX)
    with pytest.raises(ParameterError, match="is the same file as"):
        write_importance(model.paths[0], found, dataset="text.txt", chunks=count, n_ctx=N_CTX)
    read = read_importance(path)
    assert (read.datasets, read.chunks) == (("text.txt",), 3)
    name = "blk.1.attn_q.weight"
    np.testing.assert_allclose(read.entries[name], found.sums[name][0] / found.counts[name][0], rtol=1e-6)
    for target, imatrix in (("a.gguf", None), ("b.gguf", path)):
        quantize_file(source, tmp_path / target, "Q4_0", imatrix=imatrix)
    with GGUFReader(tmp_path / "a.gguf") as plain, GGUFReader(tmp_path / "b.gguf") as weighted:
        assert not np.array_equal(plain.data(name), weighted.data(name))


@pytest.mark.parametrize("model_file", [DATA / "qwen3.gguf", ORACLES / "qwen3moe.gguf"], ids=lambda path: path.stem)
def test_llama_imatrix_measures_the_same(model_file: Path, tmp_path: Path) -> None:
    # llama-imatrix -c 64 -b 64 --chunks 3 --no-ppl of llama.cpp 0c1e570; it rounds activations to F16 for these files.
    theirs = DATA / "quality" / f"{model_file.stem}-imatrix.gguf"
    with ggplug_models.load(model_file, ["CPU"]) as model:
        found, count = measure(model, model.tokenizer.encode(TEXT, add_special=True), 64, chunks=3)
    ours = write_importance(tmp_path / "imatrix.gguf", found, dataset="text.txt", chunks=count, n_ctx=64)
    with GGUFReader(ours) as a, GGUFReader(theirs) as b:
        assert dict(a.metadata) == dict(b.metadata)
        assert list(a.tensors) == list(b.tensors)
        for each, info in b.tensors.items():
            assert a.tensors[each].ne == info.ne
            wanted = b.array(info)
            np.testing.assert_allclose(a.array(a.tensors[each]), wanted, atol=2e-3 * wanted.max(), err_msg=each)


def test_the_older_format_is_llama_imatrix_s(tmp_path: Path) -> None:
    theirs = DATA / "quality" / "qwen3-imatrix.dat"  # the same with --output-format dat
    (tmp_path / "text.txt").write_text(TEXT)
    files = [str(DATA / "qwen3.gguf"), str(tmp_path / "text.txt"), str(tmp_path / "imatrix.dat")]
    options = ["--context", "64", "--chunks", "3", "--device", "CPU", "--output-format", "dat"]
    done = CliRunner().invoke(app, ["imatrix", *files, *options])
    assert done.exit_code == 0, done.output
    a, b = read_importance(files[2]), read_importance(theirs)
    assert Path(files[2]).stat().st_size == theirs.stat().st_size
    assert (a.datasets, a.chunks, list(a.entries)) == (b.datasets, b.chunks, list(b.entries))
    for name, wanted in b.entries.items():
        np.testing.assert_allclose(a.entries[name], wanted, atol=2e-3 * wanted.max(), err_msg=name)


def test_both_formats_say_the_same_also_of_experts_that_read_nothing(tmp_path: Path) -> None:
    found = InputSums()
    found.sums = {"blk.0.a": np.array([[4.0, 8], [0, 0]]), "blk.0.b": np.array([[2.0, 6]]), "blk.0.c": np.zeros((1, 2))}
    found.counts = {"blk.0.a": np.array([70, 0]), "blk.0.b": np.array([35]), "blk.0.c": np.array([0])}
    how = {"dataset": "text", "chunks": 1, "n_ctx": 32}
    new, old = (
        read_importance(write_importance(tmp_path / format, found, format=format, **how))  # type: ignore[arg-type]
        for format in ("gguf", "dat")
    )
    assert new.entries.pop("blk.0.c").tolist() == [1, 1]  # the older format has no entry for it
    assert new.entries.keys() == old.entries.keys()
    for name in new.entries:
        np.testing.assert_allclose(new.entries[name], old.entries[name], rtol=1e-6)
    with pytest.raises(ParameterError, match="format must be one of gguf, dat"):
        write_importance(tmp_path / "x", found, format="npz", **how)  # type: ignore[arg-type]


def test_what_cannot_be_measured_is_refused() -> None:
    with loaded("llama3") as model:
        with pytest.raises(ParameterError, match="at least two chunks"):
            measure(model, TOKENS[:N_CTX], N_CTX)
        with pytest.raises(ParameterError, match="chunks must be at least 1"):
            measure(model, TOKENS, N_CTX, chunks=0)


def test_a_model_without_a_device_that_calls_python_is_refused() -> None:
    device_or_skip("OpenCL0")
    with loaded("llama3", "OpenCL0") as model, pytest.raises(PlacementError, match="load the model with the CPU too"):
        measure(model, TOKENS, N_CTX)


def test_the_command_line_writes_a_file(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a b c d e f g h " * 40)
    out = tmp_path / "imatrix.gguf"
    command = ["imatrix", str(ORACLES / "llama3.gguf"), str(tmp_path / "text.txt"), str(out), "--context", "16"]
    done = CliRunner().invoke(app, [*command, "--chunks", "2", "--device", "CPU"])
    assert done.exit_code == 0, done.output
    assert "14 weights, 2 chunks of 16 tokens" in " ".join(done.output.split())
    assert len(read_importance(out).entries) == 14


@pytest.mark.parametrize("target", ["model.gguf", "text.txt"])
def test_what_is_measured_is_not_replaced(tmp_path: Path, target: str) -> None:
    (tmp_path / "model.gguf").write_bytes((ORACLES / "llama3.gguf").read_bytes())
    (tmp_path / "text.txt").write_text("a b c d e f g h " * 40)
    before = (tmp_path / target).read_bytes()
    files = [str(tmp_path / name) for name in ("model.gguf", "text.txt", target)]
    done = CliRunner().invoke(app, ["imatrix", *files, "--context", "16", "--device", "CPU"])
    assert done.exit_code != 0
    assert (tmp_path / target).read_bytes() == before
