"""The example backends are written against what is public, and are as short as the documentation says."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest
from example_backends import EXAMPLES

from ggplug.cli.new_backend.files import MEMORIES, files
from ggplug.cli.new_backend.kernels import SNIPPETS

LIMITS = {"ggplug-blas": 150, "ggplug-torch": 500}


def sources(example: str) -> list[Path]:
    return sorted((EXAMPLES / example / "src").rglob("*.py"))


@pytest.mark.parametrize("example", LIMITS)
def test_it_is_short(example: str) -> None:
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources(example))
    assert 0 < lines < LIMITS[example]


BACKENDS = ("ggplug.backend", "ggplug.discrete", "ggplug.hookspecs", "ggplug.testing")
HANDED_OVER = ("ops", "types", "errors", "host", "quants", "patterns", "tensor", "graph", "sharing", "cache")


def new_backends() -> dict[str, str]:
    """The Python files that `ggplug new-backend` writes, for all kinds of memory and all ops."""
    return {
        f"{memory} {path}": text
        for memory in MEMORIES
        for path, text in files("new", memory, list(SNIPPETS)).items()
        if path.suffix == ".py"
    }


def test_what_authors_import_is_what_the_versions_of_the_interface_cover() -> None:
    page = (EXAMPLES.parent / "docs" / "compatibility.md").read_text(encoding="utf-8")
    public = {*BACKENDS, "ggplug", *(f"ggplug.{name}" for name in HANDED_OVER)}
    assert all(f"`{module}`" in page for module in public - {"ggplug"})
    texts = {str(path): path.read_text(encoding="utf-8") for example in LIMITS for path in sources(example)}
    for path, text in {**texts, **new_backends()}.items():
        own = {"ggplug_blas", "ggplug_torch", "ggplug_new"}
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                imported = [(alias.name, "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                imported = [(node.module or "", alias.name) for alias in node.names]
            else:
                continue
            for module, name in imported:
                if not module.startswith("ggplug") or module.partition(".")[0] in own:
                    continue
                assert module in public, f"{path}:{node.lineno}: {module}"
                listed = getattr(importlib.import_module(module), "__all__", None)
                inside = f"{module}.{name}" in public or listed is None or name in listed
                assert not name or inside, f"{path}:{node.lineno}: {name} is not public in {module}"


PAGES = ["write-a-backend", "device-memory", "groups", "conformance", "hooks"]


@pytest.mark.parametrize("text", [*(f"docs/{page}.md" for page in PAGES), "ggplug-core/src/ggplug/backend.py"])
def test_what_authors_are_told_to_use_is_what_the_versions_of_the_interface_cover(text: str) -> None:
    page = (EXAMPLES.parent / text).read_text(encoding="utf-8")
    text_of_page = page if text.endswith(".md") else ast.get_docstring(ast.parse(page)) or ""
    for name in re.findall(r"\bggplug\.((?:\w+\.)*\w+)", text_of_page):
        module, _, member = name.partition(".")
        if name.startswith("backends."):  # a group of entry points
            continue
        assert f"ggplug.{module}" in BACKENDS or module in HANDED_OVER, name
        if f"ggplug.{module}" == "ggplug.backend" and member:
            assert member in importlib.import_module("ggplug.backend").__all__, name


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
