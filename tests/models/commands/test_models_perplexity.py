"""Perplexity: by the definition, and as llama.cpp measures it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import ggplug_models
from ggplug.cli.app import app
from ggplug.errors import ModelError, ParameterError
from ggplug_models import Decoder
from ggplug_models.perplexity import perplexities, surprises

TEXT = "".join(f"{n} tokens of {n * n} texts; " for n in range(120))


@pytest.mark.parametrize(("name", "value", "error"), [("qwen3", 581.9795, 16.18247), ("gemma3", 292.9858, 5.58431)])
def test_a_text_is_as_surprising_as_llama_cpp_finds_it(name: str, value: float, error: float, data: Path) -> None:
    # llama-perplexity -c 64 -b 64 -ctk f32 -ctv f32 of llama.cpp 0c1e570; it rounds activations to F16 for these files.
    with ggplug_models.load(data / f"{name}.gguf", ["CPU"]) as model:
        tokens = model.tokenizer.encode(TEXT, add_special=True)
        *_, found = perplexities(model, tokens, 64, cache_type="f32")
    assert found.value == pytest.approx(value, rel=5e-4)
    assert found.error == pytest.approx(error, rel=5e-3)
    assert found.tokens == 31 * found.chunks == 31 * (len(tokens) // 64)


@pytest.mark.parametrize("n_ctx", [32, 33])
def test_the_second_half_of_each_chunk_counts(n_ctx: int, model: Decoder) -> None:
    tokens = model.tokenizer.encode(TEXT, add_special=True)[: 3 * n_ctx + 5]
    logs = []
    for chunk in (tokens[i * n_ctx : (i + 1) * n_ctx] for i in range(3)):
        logits = model.logits(chunk).astype(np.float64)
        for place in range(n_ctx // 2, n_ctx - 1):
            probabilities = np.exp(logits[place]) / np.exp(logits[place]).sum()
            logs.append(-math.log(probabilities[chunk[place + 1]]))
    one, two, found = perplexities(model, tokens, n_ctx, cache_type="f32")
    assert (one.chunks, two.chunks, found.chunks) == (1, 2, 3)
    assert found.tokens == len(logs)
    assert found.value == pytest.approx(math.exp(np.mean(logs)), rel=1e-5)
    assert found.error == pytest.approx(found.value * np.std(logs) / math.sqrt(len(logs) - 1), rel=1e-4)
    half = logs[: len(logs) // 3]
    assert one.value == pytest.approx(math.exp(np.mean(half)), rel=1e-5)
    assert list(perplexities(model, tokens, n_ctx, chunks=1, cache_type="f32")) == [one]


def test_improbable_tokens_and_large_logits_have_finite_surprises() -> None:
    logits = np.array([[1e4, 0, -1e4]] * 40, np.float32)
    assert surprises(logits, np.array([0, 1, 2, *[1] * 37])).tolist() == [0, 1e4, 2e4, *[1e4] * 37]


def test_a_text_that_is_too_short_is_refused_with_both_numbers(model: Decoder) -> None:
    with pytest.raises(ParameterError, match="has 100 tokens; at least two chunks of 64") as caught:
        next(perplexities(model, [5] * 100, 64))
    assert (caught.value.got, caught.value.wanted) == (100, 128)
    for wrong in (3, 8.5, True):
        with pytest.raises(ParameterError, match="n_ctx must be an integer of at least 4"):
            next(perplexities(model, [5] * 100, wrong))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="chunks must be at least 1"):
        next(perplexities(model, [5] * 100, 8, chunks=0))


def test_logits_that_are_not_finite_are_an_error(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = ggplug_models.Session.decode

    def broken(self: ggplug_models.Session, *given: object) -> dict[int, np.ndarray]:
        return {seq: found * np.nan for seq, found in decode(self, *given).items()}  # type: ignore[arg-type]

    monkeypatch.setattr(ggplug_models.Session, "decode", broken)
    with pytest.raises(ModelError, match="are not finite"):
        next(perplexities(model, [5] * 32, 8))


def test_a_text_that_is_next_to_impossible_has_an_infinite_perplexity(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = ggplug_models.Session.decode

    def sure(self: ggplug_models.Session, *given: object) -> dict[int, np.ndarray]:
        return {seq: found * np.float32(1e7) for seq, found in decode(self, *given).items()}  # type: ignore[arg-type]

    monkeypatch.setattr(ggplug_models.Session, "decode", sure)
    found = next(perplexities(model, [5] * 32, 8))
    assert (found.value, found.error) == (math.inf, math.inf)


def test_the_command_prints_the_perplexity_with_its_error(model: Decoder, data: Path, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    *_, wanted = perplexities(model, model.tokenizer.encode(TEXT, add_special=True), 64, chunks=3)
    command = ["perplexity", str(data / "qwen3.gguf"), str(path), "--context", "64", "--chunks", "3", "--device", "CPU"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"perplexity {wanted.value:.4f} +/- {wanted.error:.4f}\n"
    assert done.stderr == "measured on 93 tokens in 3 chunks of 64\n"
    done = CliRunner().invoke(app, [*command[:2], "-", *command[3:], "--json"], input=TEXT)
    assert json.loads(done.stdout) == {
        "perplexity": pytest.approx(wanted.value),
        "standard_error": pytest.approx(wanted.error),
        "chunks": 3,
        "context": 64,
        "tokens": 93,
    }


def test_an_encoder_predicts_nothing(data: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    done = CliRunner().invoke(app, ["perplexity", str(data / "bert.gguf"), str(tmp_path / "text.txt")])
    assert done.exit_code != 0
    assert "cannot generate text" in str(done.exception or done.output)
