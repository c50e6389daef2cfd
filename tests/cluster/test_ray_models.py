"""All recorded models give the recorded results and tokens, wherever their layers lie in a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from oracles.packed import ORACLES
from paths import DATA

import ggplug as gg
import ggplug_models
from ggplug import trace
from ggplug.backend import Device
from ggplug_models import LayerSplit, Session
from ggplug_models.goldens import replay

pytestmark = pytest.mark.long

MODELS = sorted(path for folder in (ORACLES, DATA) for path in folder.glob("*.gguf"))
PLACEMENTS = {
    "a node": ("Ray/a/CPU",),
    "two nodes": ("Ray/a/CPU", "Ray/b/CPU"),
    "a node and this machine": ("Ray/a/CPU", "CPU"),
}


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", [path.stem for path in MODELS])
def test_a_model_gives_what_was_recorded(name: str, placement: str, devices: dict[str, Device]) -> None:
    chosen = [devices[each] if each in devices else gg.device(each) for each in PLACEMENTS[placement]]
    path = next(path for path in MODELS if path.stem == name)
    report = replay(path, chosen, LayerSplit() if len(chosen) > 1 else None)
    assert report["ok"], report
    assert report["greedy_equal"] in (True, None)


def test_the_command_line_splits_a_model_over_nodes(cluster: Any) -> None:
    def text(*options: str) -> str:
        command = [sys.executable, "-m", "ggplug", "run", str(DATA / "qwen3.gguf"), "--raw", "-p", "a b", "-n", "8"]
        environment = os.environ | {"GGPLUG_RAY": cluster.address}
        done = subprocess.run(
            [*command, "--temperature", "0", *options], env=environment, capture_output=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    split = text("--device", "Ray/a/CPU", "--device", "Ray/b/CPU", "--split", "1,1")
    assert split.strip()
    assert split == text("--device", "CPU")


def test_prompts_on_two_nodes_at_the_same_time_give_what_one_after_the_other_does(devices: dict[str, Device]) -> None:
    names = "Ray/a/CPU", "Ray/b/CPU"
    split = ggplug_models.load(ORACLES / "llama3.gguf", [devices[name] for name in names], placement=LayerSplit())
    prompts = {seq: [2 + (seq + n) % 60 for n in range(40)] for seq in range(4)}
    with split as model, Session(model, 64, 4, micro_batch=16) as session:
        with trace.recording(groups=False) as recording:
            found = session.decode(prompts)
        model.n_copies = 1
        session.clear()
        wanted = session.decode(prompts)
    assert {span.track for span in recording.spans} >= {*names, "host: ggplug-pipeline-1"}
    for seq, logits in wanted.items():
        np.testing.assert_array_equal(found[seq], logits)
