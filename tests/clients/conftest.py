"""A server whose model says known texts, for the tests with the libraries that people use."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from paths import DATA

import ggplug_models

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from scripted import Scripted
from served import served

from ggplug_models.serve.writer import Writer

UNRAISABLE = "pytest.PytestUnraisableExceptionWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The libraries use deprecated parts of others, and leave connections open."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning in ("DeprecationWarning", "UserWarning", "ResourceWarning", UNRAISABLE):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{warning}"))


@pytest.fixture(scope="module")
def running(data: Path) -> Iterator[Scripted]:
    recorded = json.loads(lzma.decompress((DATA / "llama_cpp_templates.json.xz").read_bytes()))
    template = recorded["templates"]["Qwen-Qwen2.5-7B-Instruct"]
    texts: list[str] = []
    asked: list[str] = []

    def sampler(writer: Writer, wanted: Any, sampling: object) -> Any:
        asked.append(writer.tokenizer.decode(wanted.prompts[0]))
        coming = iter([*writer.tokenizer.encode(texts.pop(0)), min(writer.tokenizer.ends)])

        def choose(logits: object, history: Sequence[int]) -> int:
            return next(coming)

        return choose

    with pytest.MonkeyPatch.context() as patched, ggplug_models.load(data / "qwen3.gguf", ["CPU"]) as model:
        patched.setattr(Writer, "_sampler", sampler)
        with served(model, slots=2, context=4096, template=template) as live:
            live.__class__ = Scripted
            assert isinstance(live, Scripted)
            live.texts, live.asked = texts, asked
            yield live


@pytest.fixture
def scripted(running: Scripted) -> Scripted:
    """The server, with nothing to say yet."""
    running.texts.clear()
    running.asked.clear()
    return running


@pytest.fixture
def url(scripted: Scripted) -> str:
    """The address of the server, without ``/v1``."""
    return scripted.url.removesuffix("/v1")
