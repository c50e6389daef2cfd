"""Folders whose files would not load are refused before their weights are converted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_models_convert_families import changed, made

import ggplug_models
from ggplug.errors import ModelError
from ggplug_models.converting.checkpoint import Stored


@pytest.mark.parametrize(
    ("name", "setting", "value", "named"),
    [
        (
            "qwen2",
            "intermediate_size",
            32,
            r"'blk\.0\.ffn_gate\.weight' has ne \(32, 48, 1, 1\); by .* \(32, 32, 1, 1\)",
        ),
        ("deepseek3", "n_routed_experts", 3, r"deepseek2\.expert_group_count must be a divisor"),
    ],
)
@pytest.mark.parametrize("kind", ["F16", "Q4_K_M"])
def test_a_folder_whose_file_would_not_load_is_refused_before_weights_are_read(
    name: str, setting: str, value: Any, named: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(name, tmp_path)
    changed(folder, "config.json", **{setting: value})
    monkeypatch.setattr(Stored, "array", lambda self: pytest.fail("weights are read"))
    with pytest.raises(ModelError, match=rf"{name}: the file that it becomes would not load: .*{named}"):
        ggplug_models.convert(folder, tmp_path / "out.gguf", kind)
    assert [path.name for path in tmp_path.iterdir()] == [name]
