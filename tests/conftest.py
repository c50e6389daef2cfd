"""Fixtures that every test may use."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parent.parent
_SIBLING = _ROOT.parent / "shared"

# Compiled kernels of the tests stay in the repository's own (ignored) folder, and so does every child process's.
os.environ.setdefault("GGPLUG_CACHE_DIR", str(_ROOT / ".cache"))

# A shell that starts the tests in the background has them ignore Ctrl-C, which some of them press.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
