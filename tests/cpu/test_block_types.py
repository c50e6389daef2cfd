"""Block types are declared in one place each: nothing else of a backend knows one by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ggplug import quants
from ggplug.types import TYPES

ggplug_cpu = pytest.importorskip("ggplug_cpu")

PACKAGE = Path(ggplug_cpu.__file__).parent
NAMES = "|".join(type.name for type in TYPES if type.is_quantized)
NAMED = re.compile(rf"(?<![A-Za-z0-9_])({NAMES})(?![A-Za-z0-9_])", re.IGNORECASE)


def names_in(path: Path) -> Iterator[str]:
    """Block types that a module's code names, by attribute or in a string; docstrings and comments may."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.Attribute):
            text = node.attr
        elif isinstance(node, ast.Name):
            text = node.id
        elif isinstance(node, ast.alias):
            text = node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            text = node.value
        yield from (f"{path.name}:{node.lineno}: {name.lower()}" for name in NAMED.findall(text))


def test_only_families_name_block_types() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "types"]
    assert len(modules) > 40
    assert [name for path in modules for name in names_in(path)] == []


def test_a_name_of_a_block_type_in_code_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""Of q8_0."""\nfrom ggplug.types import Q4_K\nx = types.IQ2_XXS\ny = ["q8_0|f32"]\n')
    assert sorted(names_in(module)) == ["module.py:2: q4_k", "module.py:3: iq2_xxs", "module.py:4: q8_0"]


def test_what_core_decodes_the_cpu_device_reads_and_what_ops_store_is_written() -> None:
    from ggplug_cpu.types import BLOCKS, ENCODED

    assert [blocks.type for blocks in BLOCKS.values()] == list(quants.block_types())
    assert [BLOCKS[name].type for name in ENCODED] == [t for t in quants.block_types() if quants.can_store(t)]


def test_every_type_belongs_to_one_family_of_the_same_name_in_core_and_in_the_device() -> None:
    from ggplug_cpu import types

    for path in Path(types.__file__).parent.glob("*.py"):
        if path.stem not in ("__init__", "blocks", "plain", "search"):
            ours, theirs = (
                {name.partition(": ")[2] for name in names_in(each)}
                for each in (path, Path(quants.__file__).parent / path.name)
            )
            unread = {type.name for type in TYPES if not quants.can_dequantize(type)}
            assert ours == theirs - unread != set()
