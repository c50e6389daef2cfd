"""The model of ``ggplug bench guessing``, whose head guesses a known fraction of the tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

import ggplug_models
from ggplug_models.benchmarks.guessing import measured, write_guessed
from ggplug_models.benchmarks.synthetic import LlamaShape
from ggplug_models.guessing.kinds import drafts_for

SHAPE = LlamaShape(n_embd=64, n_ff=64, n_layer=2, n_head=2, n_head_kv=1, n_vocab=800, n_ctx=900)


@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
def test_the_head_guesses_the_fraction_that_it_was_made_for(right: float, tmp_path: Path) -> None:
    path = write_guessed(tmp_path / "guessed.gguf", SHAPE, right)
    with ggplug_models.load(path, ["CPU"]) as model, drafts_for(model, "mtp", n_ctx=900, most=1) as (draft,):
        assert list(model.generate_ids([300], 4)) == [301, 302, 303, 304]
        row = measured(model, draft, 8, 600)
    assert row["accepted"] == pytest.approx(right, abs=0.04)
