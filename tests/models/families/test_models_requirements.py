"""Token ids to vectors needs neither a tokeniser nor a command line; what does need a library says which."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BLOCKED = ("tokenizers", "safetensors", "click", "rich", "pytest")

WITHOUT = f"""
import sys
for name in {BLOCKED}:
    sys.modules[name] = None  # importing it raises ImportError
"""

EMBED = """
import sys
import numpy as np
import ggplug_models
from ggplug_models import LayerSplit

golden = np.load(sys.argv[2])
with ggplug_models.load(sys.argv[1], ["CPU"], placement=LayerSplit()) as model:
    for i in range(3):
        found = model.embed_ids([golden[f"tokens_{i}"].tolist()], normalize=False)[0]
        wanted = golden[f"pooled_f32_{i}"]
        assert np.sum((found - wanted) ** 2) / np.sum(wanted**2) <= 1e-5
"""

ERRORS = """
import sys
import ggplug_models
from ggplug.errors import ModelError

with ggplug_models.load(sys.argv[1], ["CPU"]) as model:
    try:
        model.embed(["a text"])
    except ModelError as error:
        assert "needs the library tokenizers" in str(error), error
        assert error.remedy == "pip install tokenizers"
    else:
        raise AssertionError("tokenizers")
"""


def run(source: str, *arguments: object) -> None:
    command = [sys.executable, "-c", WITHOUT + source, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_token_ids_are_embedded_where_no_tokeniser_and_no_command_line_are_installed(data: Path) -> None:
    run(EMBED, data / "bert.gguf", data / "bert.npz")


def test_what_needs_a_library_that_is_missing_says_which_and_how_to_get_it(data: Path, tmp_path: Path) -> None:
    run(ERRORS, data / "bert.gguf", tmp_path)
