"""The model of most tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ggplug_models
from ggplug_models import Decoder


@pytest.fixture(scope="module")
def model(data: Path) -> Iterator[Decoder]:
    """A small Qwen 3, on the CPU; a module that needs another model has a fixture of this name."""
    with ggplug_models.load(data / "qwen3.gguf", ["CPU"]) as loaded:
        yield loaded
