"""The recorded models of transformers are whole, and named and shaped as their README says."""

from __future__ import annotations

import re

import gguf
import numpy as np
import pytest
from oracles.packed import ORACLES
from paths import DATA

NAMES = sorted(path.stem for path in ORACLES.glob("*.gguf"))


def test_the_readme_lists_the_files_that_are_there() -> None:
    listed = re.findall(
        r"^\| `([a-z0-9_-]+)` \|.*\| (?:-|\de-\d+) \|$", (ORACLES / "README.md").read_text("utf-8"), re.M
    )
    assert sorted(listed) == NAMES
    assert sorted(path.stem for path in ORACLES.glob("*.npz")) == NAMES
    assert sum(path.stat().st_size for path in (DATA / "oracles").iterdir()) < 5_000_000


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_has_outputs_for_every_token(name: str) -> None:
    with np.load(ORACLES / f"{name}.npz") as arrays:
        rows = "logits_f32" if "logits_f32_0" in arrays else "embd_f32"
        for i, n in enumerate((1, 7, 140 if name == "deepseek4" else 40)):
            assert arrays[f"tokens_{i}"].shape == (n,)
            assert arrays[f"{rows}_{i}"].shape[0] == n
            assert np.isfinite(arrays[f"{rows}_{i}"]).all()
        if "greedy" in arrays:
            assert arrays["greedy"].shape == arrays["greedy_margin"].shape == (16,)
            assert arrays["greedy_margin"].min() >= 0.05


@pytest.mark.parametrize("name", NAMES)
def test_tensors_have_names_that_the_package_gguf_knows_for_the_architecture(name: str) -> None:
    reader = gguf.GGUFReader(ORACLES / f"{name}.gguf")
    named = reader.fields["general.architecture"].contents()
    if named not in gguf.MODEL_ARCH_NAMES.values():
        pytest.skip(f"this version of gguf does not know {named}; that of llama.cpp's source does")
    (arch,) = (number for number, each in gguf.MODEL_ARCH_NAMES.items() if each == named)
    known = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[arch]}
    for tensor in reader.tensors:
        stem = re.sub(r"^((?:(?:enc|dec)\.)?blk)\.\d+\.", r"\1.{bid}.", tensor.name)
        assert stem in known or re.sub(r"\.(weight|bias|scale)$", "", stem) in known, tensor.name
