"""The example that learns handwritten digits: it recognises most, and its file predicts the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.digits.__main__ import main


def test_digits_are_recognised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--epochs", "15", "--folder", str(tmp_path)]) == 0
    assert "the file predicts the same" in capsys.readouterr().out
    assert {each.name for each in tmp_path.iterdir()} == {"digits.gguf", "digits.svg"}
