"""A stand-in for the hub, an empty cache, and an empty home folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_stand_in import Hub, serving

constants = pytest.importorskip("huggingface_hub.constants")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home folder."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    return home


@pytest.fixture
def cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of the library, in this process and in those that it starts."""
    folder = home / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A running stand-in, which the library takes for the hub, in this process and in those that it starts."""
    with serving() as running:
        for name, value in (("HF_ENDPOINT", running.url), ("HF_HUB_DISABLE_XET", "1"), ("HF_HUB_OFFLINE", "0")):
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        template = running.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache.parent / "no token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(time, "sleep", lambda seconds: None)  # the library waits between its attempts
        yield running
