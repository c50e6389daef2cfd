"""The examples that train a language model of characters, and an adapter for it, with a few steps."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from installed import device_or_skip

import ggplug_models
from examples.finetune_lora.__main__ import main as finetune
from examples.train_tiny_lm.__main__ import main as train
from examples.train_tiny_lm.corpus import divided, read, trigram_loss
from ggplug.gguf import GGUFReader


@pytest.mark.parametrize("device", ["CPU", pytest.param("OpenCL0", marks=pytest.mark.long)])
def test_a_model_is_trained_and_quantised_and_an_adapter_of_it_learns_python(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--folder", str(tmp_path), "--device", device_or_skip(device).name]
    train(["--epochs", "2", "--characters", "9000", "--embd", "64", "--layers", "1", *place])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("8100 characters to learn from, 900 to test")
    first, second = (float(line.rsplit(" ", 1)[1]) for line in lines[1:3])
    assert second < first < np.log(300)
    file = tmp_path / "tiny-docs-q4_0.gguf"
    with GGUFReader(file) as reader:
        assert reader.tensors["blk.0.ffn_up.weight"].type.name == "q4_0"
    with ggplug_models.load(file, ["CPU"]) as model:
        text = "The scheduler - `x` {é}\n"
        assert model.tokenizer.decode(model.tokenizer.encode(text)) == text
        assert len(model.tokenizer.encode("The scheduler")) == 13
    assert finetune(["--model", str(file), "--characters", "6000", "--rank", "4", "--epochs", "2", *place]) == 0
    assert (tmp_path / "python.gguf").exists()
    assert "with the adapter: def " in capsys.readouterr().out


def test_counts_of_three_characters_predict_as_witten_and_bell_say() -> None:
    text, test = divided(read()[:4000])
    kinds = sorted(set(text))

    def probability(before: str, after: str) -> float:
        seen = Counter(text[n + len(before)] for n in range(len(text) - len(before)) if text.startswith(before, n))
        less = probability(before[1:], after) if before else 1 / len(kinds)
        total = sum(seen.values()) + len(seen)
        return (seen[after] + len(seen) * less) / total if total else less

    part = test[:60]
    assert set(part) <= set(kinds)
    assert sum(probability("", each) for each in kinds) == pytest.approx(1)
    wanted = -np.mean([np.log(probability(part[n - 2 : n], part[n])) for n in range(2, len(part))])
    assert trigram_loss(text, part) == pytest.approx(wanted)
