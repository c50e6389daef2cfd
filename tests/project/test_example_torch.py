"""The example backend over PyTorch: installed as a plugin it runs a model, and a mistake in it is shown at its line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_backends import EXAMPLES, example_device

from ggplug.backend import Device
from ggplug.ops.base import OPS
from ggplug.tensor import Tensor
from ggplug_testing import Leafs, cases_of

pytest.importorskip("torch", reason="PyTorch is not installed; `nox -s torch` installs it")


@pytest.fixture(scope="module")
def torch_device() -> Iterator[Device]:
    with example_device("ggplug-torch", "Torch") as device:
        yield device


def test_it_computes_at_least_forty_ops(torch_device: Device) -> None:
    def claimed(op: Any) -> bool:
        case = cases_of(op)[0]
        made = case.make(Leafs(case.seed))
        node = made if isinstance(made, Tensor) else [*made][-1]
        return not op.is_view and bool(torch_device.supports_op(node))

    assert sum(map(claimed, OPS.values())) >= 40


@pytest.mark.parametrize(("kind", "least"), [("F32", 0.99999), ("Q8_0", 0.998)])
def test_it_runs_minilm_with_the_references_cosines(
    torch_device: Device, minilm: Any, minilm_reference: dict[str, Any], kind: str, least: float
) -> None:
    import ggplug_models

    with ggplug_models.load(minilm(kind), [torch_device.name]) as model:
        assert {weight.buffer.type.device.name for weight in model.weights} == {"Torch"}
        found, wanted = model.embed(minilm_reference["texts"][:6]), minilm_reference["embeddings"][:6]
    cosines = np.sum(found * wanted, -1) / np.linalg.norm(found, axis=-1) / np.linalg.norm(wanted, axis=-1)
    assert cosines.min() >= least


TYPOS = {
    "isinstance(x, torch.Tensor) else x.float()).double()": "isinstance(x, torch.Tensor) else x.float()).dubble()",
    "return memory.view(dtype).as_strided(": "return memory.view(dtype).as_stridden(",
    "self._executor.submit(job)": "self._executor.submit(jobs)",
}
"""Mistakes in functions that kernels and streams share."""


@pytest.mark.parametrize("right", TYPOS)
def test_a_typo_in_a_helper_is_shown_at_its_line_in_forty_lines(right: str, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "ggplug-torch", tmp_path / "example")
    files = [path for path in (tmp_path / "example").rglob("*.py") if right in path.read_text(encoding="utf-8")]
    (path,) = files
    text = path.read_text(encoding="utf-8")
    assert text.count(right) == 1
    path.write_text(text.replace(right, TYPOS[right]), encoding="utf-8")
    line = text[: text.index(right)].count("\n") + 1
    chosen = "test_contract and stream or test_op and (relu or div or rms_norm)"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, "tests"],
        cwd=tmp_path / "example",
        env={**os.environ, "PYTHONPATH": str(tmp_path / "example" / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done.stdout
    assert len(lines) <= 40, done.stdout
    first = next(number for number, shown in enumerate(lines) if shown.startswith(" 1. "))
    assert f"{path.name}:{line} in " in lines[first + 1], done.stdout
