"""The example backends are written against what is public, and are as short as the documentation says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from example_backends import EXAMPLES

LIMITS = {"ggplug-blas": 150, "ggplug-torch": 500}


def sources(example: str) -> list[Path]:
    return sorted((EXAMPLES / example / "src").rglob("*.py"))


@pytest.mark.parametrize("example", LIMITS)
def test_it_is_short(example: str) -> None:
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources(example))
    assert 0 < lines < LIMITS[example]


@pytest.mark.parametrize("example", LIMITS)
def test_it_uses_nothing_private(example: str) -> None:
    own = {f"_{name}" for name in ("alloc", "buffer_type", "devices", "executor")}
    for path in sources(example):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ggplug"):
                names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Attribute):
                names = [node.attr]
            else:
                continue
            private = [name for name in names if name.startswith("_") and not name.startswith("__")]
            assert set(private) <= own, f"{path.name}:{node.lineno} uses {private}"
