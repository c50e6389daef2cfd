"""Control vectors.  The recorded logits are llama.cpp's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from paths import DATA

import ggplug_models
from ggplug.cli.app import app
from ggplug.errors import ModelError
from ggplug.gguf import GGUFWriter

MODEL, VECTOR = DATA / "qwen3.gguf", DATA / "adapters" / "qwen3-control.gguf"
RECORDED = np.load(VECTOR.with_suffix(".npz"))
IDS = RECORDED["ids"].tolist()


def error(found: np.ndarray) -> float:
    wanted = RECORDED["logits"].astype(np.float64)
    return float(np.mean((found - wanted) ** 2) / np.mean(wanted**2))


def test_logits_with_a_control_vector_are_llama_cpps() -> None:
    with ggplug_models.load(MODEL, ["CPU"]) as model:
        before = model.logits(IDS)
        with model.steer(VECTOR, float(RECORDED["scale"])):
            assert error(model.logits(IDS)) < 1e-5
        np.testing.assert_array_equal(model.logits(IDS), before)
        assert error(before) > 0.01


def test_the_blocks_of_a_range_are_changed() -> None:
    with ggplug_models.load(MODEL, ["CPU"]) as model:
        with model.steer(VECTOR, 1.5, first=1, last=1), model.steer(VECTOR, 1.5, first=2):
            assert error(model.logits(IDS)) < 1e-5
        with pytest.raises(ModelError, match="no direction for these blocks"):
            model.steer(VECTOR, last=0)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"direction.1": 63}, "has ne"),
        ({"direction.3": 64}, "3 blocks"),
        ({"direction": 64}, "no direction.N"),
        ({}, "no direction for"),
    ],
)
def test_what_is_no_control_vector_of_the_model_is_refused(tmp_path: Path, tensors: dict[str, int], said: str) -> None:
    with GGUFWriter(tmp_path / "vector.gguf", arch="controlvector") as writer:
        for name, size in tensors.items():
            writer.add_tensor(name, np.zeros(size, np.float32))
        writer.write()
    with ggplug_models.load(MODEL, ["CPU"]) as model, pytest.raises(ModelError, match=said):
        model.steer(tmp_path / "vector.gguf")


def test_the_command_line_steers() -> None:
    def run(*options: Any) -> str:
        command = ["run", "--raw", "-p", "abc", "-n", "8", "--temperature", "0", "--device", "CPU", str(MODEL)]
        found = CliRunner().invoke(app, [*command, *options])
        assert found.exit_code == 0, found.output
        return found.output.splitlines()[0]

    assert run("--control-vector", f"{VECTOR}=0") == run()
    assert run("--control-vector", f"{VECTOR}=9") != run()
