"""A pytest plugin for llama-server's tests: it makes their models, gives them a port, and does not load the hub's."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).resolve().parent.parent
DATA = SUPPORT.parent / "data"


def prepare(folder: Path) -> Path:
    """Makes the models, and the program that the tests start; returns the program."""
    from llama_server import stand_ins
    from llama_server.launcher import FOLDER, NAMES

    models = folder / "models"
    models.mkdir(parents=True, exist_ok=True)
    if not (models / "reranker.gguf").exists():
        stand_ins.story(models / "story.gguf")
        stand_ins.story(models / "infill.gguf", ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"])
        stand_ins.story(models / "split.gguf", files=3)
        stand_ins.tale(models / "tale.gguf", models / "adapter.gguf")
        stand_ins.encoder(DATA / "bert.gguf", models / "bert.gguf")
        stand_ins.encoder(DATA / "bert.gguf", models / "reranker.gguf", ranks=True)
    several = models / FOLDER / "ggml-org"
    several.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        shutil.copy(models / "story.gguf", several / f"{name}.gguf")
    program = folder / "llama-server"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m llama_server.launcher "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    os.environ |= {
        "STAND_INS": str(models),
        "LLAMA_SERVER_BIN_PATH": str(program),
        "LLAMA_CACHE": str(folder / "cache"),
        "GGPLUG_CACHE_DIR": os.environ.get("GGPLUG_CACHE_DIR") or str(SUPPORT.parent.parent / ".cache"),
        "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]),
    }
    return program


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def pytest_configure() -> None:
    """Each process of pytest has a port of its own."""
    os.environ["PORT"] = str(free_port())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The cases that are known not to pass must fail."""
    known = json.loads((DATA / "llama_server_cases.json").read_text(encoding="utf-8"))
    reasons = {name: reason for reason, names in known.items() for name in names}
    for item in items:
        case = item.nodeid.removeprefix("unit/")
        function = case.partition("[")[0]
        for name in (case, function, function.partition("::")[0]):
            if name in reasons:
                item.add_marker(pytest.mark.xfail(reason=reasons[name], strict=True))
                break
