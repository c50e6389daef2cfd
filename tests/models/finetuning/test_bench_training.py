"""The benchmark of training: what it trains learns, its rows are judged by their goals, and PyTorch finds the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug.quantizing import quantize_file
from ggplug.registry.extras import Options
from ggplug_models.benchmarks import torch_training
from ggplug_models.benchmarks.synthetic import LlamaShape, write_llama
from ggplug_models.benchmarks.training import RESIDENT, Training, alternated, compared, judged, trained
from ggplug_models.benchmarks.transformer import ALPHA, Transformer

SMALL = Transformer(n_layer=2, n_embd=32, n_head=2, n=16, batch=4, n_vocab=40)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    plain, path = tmp_path / "plain.gguf", tmp_path / "llama.gguf"
    write_llama(plain, LlamaShape(64, 128, 2, 4, 2, 300, 64))
    quantize_file(plain, path, "Q4_0")
    return path


def test_each_training_has_rows_for_speed_losses_and_memory(llama: Path) -> None:
    instrument = Training(SMALL, steps=20, lora_steps=2, lora=llama)
    rows = {row["case"]: row for row in instrument.run(gg.device("CPU"), Options(prompt=16))}
    memory = ["transformer, memory"] if RESIDENT.exists() else []
    speeds = ["transformer", "LoRA, 16 tokens, llama"]
    assert [*rows] == [speeds[0], "transformer, losses, ours", *memory, speeds[1], "LoRA, first loss"]
    assert all(rows[name]["steps_per_second"] > 0 for name in speeds)
    losses = rows["transformer, losses, ours"]
    assert losses["loss_20"] < losses["loss_1"]
    assert rows["LoRA, first loss"]["loss_of_ours"] == pytest.approx(np.log(300), rel=0.2)
    assert all(rows[name]["peak_megabytes"] > 0 for name in memory)
    assert not any("goal" in row for row in rows.values())


def test_texts_follow_a_chain_of_four_tokens_after_each() -> None:
    texts = SMALL.texts(30)
    assert texts.shape == (30, 4, 17)
    after = {token: set() for token in range(40)}  # type: dict[int, set[int]]
    for before, token in zip(texts[:, :, :-1].ravel().tolist(), texts[:, :, 1:].ravel().tolist(), strict=True):
        after[before].add(token)
    assert max(map(len, after.values())) == 4


@pytest.mark.parametrize(
    ("row", "met"),
    [
        ({"relative_to_torch": 1.3, "largest_difference_of_losses": 1e-4}, "yes"),
        ({"relative_to_torch": 1.3, "largest_difference_of_losses": 2e-3}, "falls short"),
        ({"relative_to_torch": 1.1, "largest_difference_of_losses": 1e-4}, "falls short"),
        ({"lora_relative_to_torch": 1.6}, "yes"),
        ({"lora_relative_to_torch": 1.4}, "falls short"),
        ({"peak_megabytes": 9.0, "torch_peak_megabytes": 8.0}, "falls short"),
        ({"peak_megabytes": 9.0}, None),
    ],
)
def test_rows_are_judged_by_the_goals(row: dict[str, Any], met: str | None) -> None:
    assert judged(row).get("met") == met


def test_batches_are_learned_from_in_turn_and_the_first_step_is_not_timed() -> None:
    calls: list[tuple[str, int]] = []

    def step(name: str) -> Any:
        return lambda data, labels: calls.append((name, data)) or float(labels)

    losses, times = alternated({"ours": step("ours"), "torch": step("torch")}, [(0, 5), (1, 6)])  # type: ignore[list-item]
    assert calls == [("ours", 0), ("torch", 0), ("ours", 1), ("torch", 1)]
    assert losses == {"ours": [5.0, 6.0], "torch": [5.0, 6.0]}
    assert {name: len(taken) for name, taken in times.items()} == {"ours": 1, "torch": 1}
    row = compared("both", {"ours": [0.5, 0.25], "torch": [1.0, 1.0]}, "torch")
    assert row["relative_to_torch"] == 3.0


def test_pytorch_finds_the_same_losses(llama: Path) -> None:
    pytest.importorskip("torch")
    texts = SMALL.texts(10)
    step = torch_training.transformer(SMALL)
    with trained(SMALL, gg.device("CPU"), Options()) as training:
        found = [(training.step(each[:, :-1], each[:, 1:]), step(each[:, :-1], each[:, 1:])) for each in texts]
    ours, theirs = zip(*found, strict=True)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    instrument = Training(SMALL, steps=2, lora_steps=6, lora=llama)
    rows = [*instrument._adapter(gg.device("CPU"), Options(prompt=32), peers=True)]
    assert rows[1]["loss_of_torch"] == pytest.approx(rows[1]["loss_of_ours"], rel=2e-2)
    adapter = torch_training.adapter(llama, 8, 16.0, 10 * ALPHA, 0.0)
    ids = np.arange(200, 233)[None]
    losses = [adapter(ids[:, :-1], ids[:, 1:]) for _ in range(8)]
    assert losses[-1] < 0.9 * losses[0]
