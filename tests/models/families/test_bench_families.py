"""``ggplug bench families``: its random models, and the rows that it makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles.packed import ORACLES

import ggplug as gg
import ggplug_models
from ggplug import cache
from ggplug.gguf import GGUFReader
from ggplug.registry.extras import Options
from ggplug_models import EncoderDecoder
from ggplug_models.benchmarks import families, speeds
from ggplug_models.benchmarks.shapes import (
    FamilyShape,
    delta_net,
    encoder_decoder,
    mamba,
    mixture,
    write_family,
)

TINY: dict[str, Callable[[], FamilyShape]] = {
    "mixture": lambda: mixture(64, 2, 4, 2, 16, 32, 4, 2, 300),
    "delta-net": lambda: delta_net(64, 2, 2, 1, 32, 2, 4, 16, 32, 4, 2, 300, every=2),
    "mamba": lambda: mamba(64, 2, 4, 2, 4, 16, 96, 300, attends=(1,)),
    "encoder-decoder": lambda: encoder_decoder(64, 1, 4, 16, 96, 300),
}
RECORDED = {"mixture": "qwen3moe", "delta-net": "qwen3next", "mamba": "granitehybrid", "encoder-decoder": "t5-gated"}
"""Recorded models of the same families."""


class Peer:
    """Stands for llama.cpp; ``calls`` are those of the methods, with how many tokens each got."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.asked: dict[Path, int] = {}
        self.closed = 0

    def of(self, path: Path, n_ctx: int, threads: int, features: object, source: int) -> Peer:
        self.asked[path] = source
        return self

    def clear(self) -> None:
        self.calls.append(("clear", 0))

    def begin(self, ids: Sequence[int]) -> None:
        self.calls.append(("begin", len(ids)))

    def read(self, ids: Sequence[int]) -> None:
        self.calls.append(("read", len(ids)))

    def close(self) -> None:
        self.closed += 1


def stripped(names: Iterable[str]) -> set[str]:
    """Names of tensors without the numbers of blocks."""
    return {re.sub(r"blk\.\d+", "blk", name) for name in names}


@pytest.mark.parametrize("name", TINY)
def test_a_random_model_has_the_tensors_of_its_family_and_tells_tokens_apart(name: str, tmp_path: Path) -> None:
    shape = TINY[name]()
    with GGUFReader(ORACLES / f"{RECORDED[name]}.gguf") as reader:
        recorded = stripped(reader.tensors)
    if name == "mamba":  # has a network where the recorded one has experts
        recorded = {re.sub("_exps|_shexp", "", each) for each in recorded} - {"blk.ffn_gate_inp.weight"}
    assert stripped(shape.tensors) == recorded
    with ggplug_models.load(write_family(tmp_path / "a.gguf", shape), ["CPU"]) as model:
        assert model.architecture == RECORDED[name].partition("-")[0]
        source = [[7, 8, 9]] if isinstance(model, EncoderDecoder) else []
        logits = model.logits([1, 2, 3], *source)
    assert np.isfinite(logits).all()
    assert 0.1 < logits.std() < 3
    assert abs(np.corrcoef(logits)[0, 1]) < 0.5


@pytest.mark.parametrize("make", list(families.FAMILIES_OF.values()), ids=list(families.FAMILIES_OF))
def test_the_models_have_about_a_thousand_million_parameters(make: Callable[[], FamilyShape]) -> None:
    extents = make().tensors.values()
    assert 0.75e9 < sum(int(np.prod(ne)) for ne in extents) < 1.25e9
    assert all(ne[0] % 256 == 0 for ne in extents if len(ne) > 1 and min(ne) > 32)  # rows of whole K-quant blocks


def test_each_file_has_two_rows_and_each_goal_a_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    peer = Peer()
    monkeypatch.setattr(speeds, "LlamaCpp", peer)
    monkeypatch.setattr(speeds, "REPEATS", 1)
    monkeypatch.setattr(
        families, "FAMILIES_OF", {"mixture": TINY["mixture"], "encoder-decoder": TINY["encoder-decoder"]}
    )
    monkeypatch.setattr(cache, "folder", lambda name: tmp_path / name)
    options: dict[str, Any] = {"peers": True, "prompt": 8, "generate": 2}

    rows = list(families.FAMILIES.run(gg.device("CPU"), Options(**options)))
    mixture, source = sorted((tmp_path / "models").iterdir(), key=lambda path: "encoder" in path.name)
    assert [row["case"] for row in rows] == [
        f"{mixture.stem}, prompt of 8",
        f"{mixture.stem}, written at 8",
        f"{source.stem}, source text of 8",
        f"{source.stem}, written at 8",
    ]
    assert [row["goal"] for row in rows] == 2 * [f"relative to llama cpp at least {goal}" for goal in ("1.5", "1.05")]
    assert {row["met"] for row in rows} == {"falls short"}  # the peer takes no time
    assert peer.asked == {mixture: 0, source: 8}
    assert peer.closed == 2
    each_round = [("clear", 0), ("begin", 8)] + (speeds.SETTLED + 2) * [("read", 1)]
    assert peer.calls == 4 * each_round

    (row, _) = families.FAMILIES.run(gg.device("CPU"), Options(files=(source,), prompt=8, generate=2))
    assert row.keys() == {"case", "tokens_per_second"}
    assert len(list((tmp_path / "models").iterdir())) == 2
