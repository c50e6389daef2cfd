"""Saved logits and the divergence from them: llama-perplexity's files and numbers, and the definitions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from paths import DATA

import ggplug_models
from ggplug.cli.app import app
from ggplug.errors import FileKindError, ModelError, ParameterError
from ggplug.quantizing import quantize_file
from ggplug_models import Decoder
from ggplug_models.perplexity import in_chunks, perplexities
from ggplug_models.quality import base_logits
from ggplug_models.quality.base_logits import BaseLogits
from ggplug_models.quality.divergence import Divergence, divergences

TEXT = "".join(f"{n} tokens of {n * n} texts; " for n in range(120))
RECORDED: dict[str, list[float]] = json.loads((DATA / "quality" / "llama_perplexity.json").read_text())["kl divergence"]
THEIRS = DATA / "quality" / "qwen3-f32.kld"
"""What llama-perplexity -c 16 --chunks 3 --save-all-logits wrote for TEXT and the model of the tests as F32."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of the tests as F32, ``f32.gguf``, and with the rounded weights of Q4_0, ``rounded.gguf``."""
    found = tmp_path_factory.mktemp("models")
    quantize_file(DATA / "qwen3.gguf", found / "f32.gguf", "F32")
    quantize_file(found / "f32.gguf", found / "q4_0.gguf", "Q4_0")
    quantize_file(found / "q4_0.gguf", found / "rounded.gguf", "F32", allow_requantize=True)
    return found


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Decoder]:
    with ggplug_models.load(folder / "f32.gguf", ["CPU"]) as loaded:
        yield loaded


def save(model: Decoder, path: Path, n_ctx: int, chunks: int) -> Path:
    tokens = model.tokenizer.encode(TEXT, add_special=True)
    parts = [base_logits.beginning(in_chunks(model, tokens, n_ctx, chunks), model.n_vocab)]
    for _ in perplexities(
        model, tokens, n_ctx, chunks=chunks, keep=lambda logits: parts.append(base_logits.rows(logits))
    ):
        pass
    path.write_bytes(b"".join(parts))
    return path


def log_p(model: Decoder, chunk: list[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    logits = model.logits(chunk).astype(np.float64)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def test_llama_cpps_file_has_what_the_model_predicts(model: Decoder) -> None:
    with BaseLogits(THEIRS) as found:
        assert found.n_vocab == model.n_vocab
        tokens = model.tokenizer.encode(TEXT, add_special=True)
        assert found.chunks.reshape(-1).tolist() == tokens[:48]
        for number, chunk in enumerate(found.chunks.tolist()):
            wanted = log_p(model, chunk)[8:15]
            np.testing.assert_allclose(found.read(number, 8, 7), wanted, atol=4e-3)


def test_the_same_file_is_written_but_for_rounding(model: Decoder, tmp_path: Path) -> None:
    ours, theirs = save(model, tmp_path / "ours.kld", 16, 3).read_bytes(), THEIRS.read_bytes()
    assert len(ours) == len(theirs)
    assert ours[: 20 + 4 * 48] == theirs[: 20 + 4 * 48]
    with BaseLogits(tmp_path / "ours.kld") as a, BaseLogits(THEIRS) as b:
        for chunk in range(3):
            np.testing.assert_allclose(a.read(chunk, 8, 7), b.read(chunk, 8, 7), atol=4e-3)


def test_the_statistics_are_those_that_llama_perplexity_finds_with_the_file(folder: Path, model: Decoder) -> None:
    base = save(model, folder / "base.kld", 64, 8)
    with ggplug_models.load(folder / "rounded.gguf", ["CPU"]) as rounded, BaseLogits(base) as expected:
        *_, found = divergences(rounded, expected)
    assert (found.tokens, found.chunks) == (8 * 31, 8)
    estimates = {
        "Mean PPL(Q)": (found.perplexity, 1),
        "Mean PPL(base)": (found.base_perplexity, 1),
        "Mean ln(PPL(Q)/PPL(base))": (found.log_ratio, 1),
        "Mean PPL(Q)/PPL(base)": (found.ratio, 1),
        "Mean PPL(Q)-PPL(base)": (found.difference, 1),
        "Mean KLD": (found.mean, 1),
        "Mean Δp": (found.mean_change, 100),
        "RMS Δp": (found.rms_change, 100),
        "Same top p": (found.same_top, 100),
    }
    for name, (estimate, scale) in estimates.items():
        np.testing.assert_allclose(scale * np.array(estimate), RECORDED[name], rtol=1e-3, atol=6e-4, err_msg=name)
    assert 100 * found.correlation == pytest.approx(RECORDED["Cor(ln(PPL(Q)), ln(PPL(base)))"][0], abs=0.05)
    for name, percent in {"Maximum": 100.0, "99.9%": 99.9, "90.0%": 90, "Median": 50, "1.0%": 1, "Minimum": 0}.items():
        assert np.percentile(found.kld, percent) == pytest.approx(RECORDED[f"{name} KLD"][0], rel=2e-3), name
        assert 100 * np.percentile(found.changes, percent) == pytest.approx(RECORDED[f"{name} Δp"][0], abs=2e-3), name


def test_the_divergence_is_that_of_the_definition(folder: Path, model: Decoder, tmp_path: Path) -> None:
    base = save(model, tmp_path / "base.kld", 33, 2)
    kld, same, surprises = [], [], []
    with ggplug_models.load(folder / "rounded.gguf", ["CPU"]) as rounded, BaseLogits(base) as expected:
        one, found = divergences(rounded, expected, cache_type="f32")
        assert [each.mean for each in divergences(rounded, expected, chunks=1, cache_type="f32")] == [one.mean]
        for chunk in expected.chunks.tolist():
            p, q = log_p(model, chunk)[16:32], log_p(rounded, chunk)[16:32]
            kld += (np.exp(p) * (p - q)).sum(axis=1).tolist()
            same += (p.argmax(axis=1) == q.argmax(axis=1)).tolist()
            surprises += (-q[np.arange(16), chunk[17:]]).tolist()
    np.testing.assert_allclose(found.kld, kld, rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(found.surprises, surprises, rtol=1e-3)
    assert found.same.tolist() == same
    assert one.chunks == 1


def test_a_model_does_not_differ_from_itself(model: Decoder) -> None:
    with BaseLogits(THEIRS) as expected:
        *_, found = divergences(model, expected)
    assert abs(found.mean.value) < 1e-5
    assert found.same_top == (1.0, 0.0)
    assert found.ratio.value == pytest.approx(1, abs=1e-3)


def test_logits_far_below_the_largest_and_equal_ones_are_saved(tmp_path: Path) -> None:
    logits = np.array([[0, -10, -40], [2, 2, 2]], np.float32)
    (tmp_path / "a").write_bytes(base_logits.beginning(np.zeros((1, 6), np.int64), 3) + base_logits.rows(logits))
    with BaseLogits(tmp_path / "a") as found:
        np.testing.assert_allclose(found.read(0, 3, 2), [[0, -10, -16], [np.log(1 / 3)] * 3], atol=2e-4)


def test_estimates_of_few_tokens_and_of_equal_ones_are_numbers() -> None:
    one = Divergence(np.array([1.0]), np.array([1.0]), np.array([0.0]), np.array([True]), 1)
    assert one.mean == (0.0, 0.0)
    assert one.rms_change == (0.0, 0.0)
    assert np.isnan(one.correlation)
    hopeless = Divergence(np.array([1e4]), np.array([1.0]), np.array([9e3]), np.array([False]), 1)
    assert hopeless.perplexity == (np.inf, np.inf)
    assert np.isnan(hopeless.difference.value)


def damaged(tmp_path: Path, change: Any) -> Path:
    data = bytearray(THEIRS.read_bytes())
    path = tmp_path / "damaged.kld"
    path.write_bytes(bytes(change(data)))
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:19], "does not begin with _logits_"),
        (lambda data: b"GGUF" + data[4:], "is no file of logits"),
        (lambda data: data[:8] + bytes(4) + data[12:], "is damaged: it has 3 chunks of 0 tokens"),
        (lambda data: data[:8] + b"\x02\0\0\0" + data[12:], "is damaged: it has 3 chunks of 2 tokens"),
        (lambda data: data[:-1], "is truncated: 3 chunks of 16 tokens take 12980 bytes, and it has 12979"),
    ],
)
def test_what_is_no_file_of_logits_is_refused(change: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=said):
        BaseLogits(damaged(tmp_path, change))


def test_a_file_that_does_not_fit_the_model_is_refused(model: Decoder, tmp_path: Path) -> None:
    with pytest.raises(FileKindError):
        BaseLogits(tmp_path)
    n_vocab = model.n_vocab
    for scale_and_least in (b"\xff" * 8, bytes(8), np.array([1e30, 0], "<f4").tobytes()):
        rows = damaged(tmp_path, lambda data, it=scale_and_least: data[: 20 + 4 * 48] + it + data[20 + 4 * 48 + 8 :])
        with BaseLogits(rows) as file, pytest.raises(ModelError, match="of its chunk 0 do not add up to 1"):
            next(divergences(model, file))
    token = damaged(tmp_path, lambda data: data[:20] + b"\xff\xff\0\0" + data[24:])
    with BaseLogits(token) as file, pytest.raises(ParameterError, match=r"the text of .* is 65535"):
        next(divergences(model, file))
    other = damaged(tmp_path, lambda data: data[:12] + (n_vocab - 1).to_bytes(4, "little") + data[16:])
    with BaseLogits(other) as file, pytest.raises(ParameterError, match="only models with the same vocabulary"):
        next(divergences(model, file))
    with BaseLogits(THEIRS) as file, pytest.raises(ParameterError, match="chunks must be at least 1"):
        next(divergences(model, file, chunks=0))


def test_the_commands_save_logits_and_compare_with_them(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    base, files = str(tmp_path / "base.kld"), [str(folder / "f32.gguf"), str(tmp_path / "text.txt")]
    done = CliRunner().invoke(
        app, ["perplexity", *files, "--context", "16", "--chunks", "3", "--device", "CPU", "--save-logits", base]
    )
    assert done.exit_code == 0, done.output
    assert Path(base).stat().st_size == THEIRS.stat().st_size
    compare = ["perplexity", str(folder / "rounded.gguf"), "--kl-divergence", base, "--device", "CPU"]
    shown = CliRunner().invoke(app, compare)
    assert shown.exit_code == 0, shown.output
    assert [line.split()[0] for line in shown.stdout.splitlines() if "same top" in line or "median" in line] == [
        "same",
        "median",
    ]
    found = json.loads(CliRunner().invoke(app, [*compare, "--json"]).stdout)
    assert found["tokens"] == 21
    assert found["perplexity"]["value"] / found["base_perplexity"]["value"] == pytest.approx(found["ratio"]["value"])
    assert list(found["percentiles"]["median"]) == ["kl_divergence", "probability_change"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["text.txt", "--kl-divergence", "base"], "leave FILE out"),
        (["--kl-divergence", "base", "--hellaswag"], "cannot be combined"),
        (["--kl-divergence", "base", "--context", "64"], "--context is not for --kl-divergence"),
        (["text.txt", "--hellaswag", "--chunks", "3"], "--chunks is not for --hellaswag"),
        (["text.txt", "--tasks", "3"], "--tasks is not for a text"),
        ([], "Missing argument 'FILE'"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("text.txt", "base"):
        Path(name).write_text(name)
    done = CliRunner().invoke(app, ["perplexity", str(DATA / "qwen3.gguf"), *options])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
