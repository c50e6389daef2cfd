"""The example that learns handwritten digits: it recognises most, and its file predicts the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from installed import device_or_skip

from examples.digits.__main__ import main
from ggplug.gguf import GGUFReader


def test_digits_are_recognised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--epochs", "15", "--folder", str(tmp_path)]) == 0
    assert "the file predicts the same" in capsys.readouterr().out
    assert {each.name for each in tmp_path.iterdir()} == {"digits.gguf", "digits.svg"}


def test_digits_are_learned_alike_on_other_devices_and_split_over_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = {}
    for devices in ("CPU", "OpenCL0", "OpenCL0 CPU"):
        for device in devices.split():
            device_or_skip(device)
        main(["--epochs", "2", "--folder", str(tmp_path), *(f"--device={each}" for each in devices.split())])
        assert "the file predicts the same" in capsys.readouterr().out
        with GGUFReader(tmp_path / "digits.gguf") as reader:
            losses[devices] = reader.metadata["training.epochs.loss"]
    np.testing.assert_allclose(losses["OpenCL0"], losses["CPU"], rtol=1e-4)
    np.testing.assert_allclose(losses["OpenCL0 CPU"], losses["CPU"], rtol=1e-4)
