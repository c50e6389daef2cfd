"""What a compiled kernel is kept under changes with what its machine code depends on, and with nothing else."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("ggplug_cpu")

import ggplug
import ggplug_cpu
from ggplug_cpu import own_sources

KEYS = """
import json, sys
sys.path[:0] = sys.argv[1:]
import ggplug, ggplug_cpu
from ggplug_cpu import prebuild
assert all(module.__file__.startswith(sys.argv[1]) for module in (ggplug, ggplug_cpu))
print(json.dumps({kernel.name: kernel.cache_key() for kernel in prebuild.likely_kernels()}))
"""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for package in (ggplug, ggplug_cpu):
        assert package.__file__ is not None
        source = Path(package.__file__).parent
        shutil.copytree(source, tmp_path / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def keys(root: Path) -> dict[str, str]:
    done = subprocess.run([sys.executable, "-c", KEYS, str(root)], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def edit(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text(encoding="utf-8")
    assert change(before) != before
    path.write_text(change(before), encoding="utf-8")


def add_an_op(text: str) -> str:
    return text + '\n\nclass Halve(Unary):\n    """y = x / 2."""\n'


def test_ops_planning_and_the_rest_of_the_package_recompile_nothing(copied: Path) -> None:
    before = keys(copied)
    assert len(before) > 50
    for path in (copied / "ggplug").rglob("*.py"):
        edit(path, lambda text: re.sub('"""', '"""Edited. ', text, count=1) if '"""' in text else text + "#\n")
    choosing = [path for path in (copied / "ggplug_cpu").rglob("*.py") if not declares_code(path) and chooses(path)]
    assert len(choosing) > 30
    for path in choosing:
        edit(path, lambda text: text + "# edited\n")
    compiling = [f"compiling/{name}" for name in ("job", "obtaining", "pool", "worker")]
    for name in ("device", "matching", "backend", "tape", "team", "prebuild", "extras", *compiling):
        edit(copied / "ggplug_cpu" / f"{name}.py", lambda text: text + "# edited\n")
    edit(copied / "ggplug" / "ops" / "unary.py", add_an_op)
    assert keys(copied) == before


def test_editing_a_kernel_recompiles_it_and_no_other(copied: Path) -> None:
    before = keys(copied)
    edit(copied / "ggplug_cpu" / "ops" / "norms" / "kernels.py", lambda text: text + "# edited\n")
    after = keys(copied)
    assert {name.partition("[")[0] for name in before if after[name] != before[name]} == {"norm", "mul_mat_norm"}


def test_another_compiler_of_the_language_recompiles_all_kernels(copied: Path) -> None:
    before = keys(copied)
    edit(copied / "ggplug_cpu" / "language" / "arithmetic.py", lambda text: text + "# edited\n")
    after = keys(copied)
    assert not [name for name in before if after[name] == before[name]]


def test_other_tables_or_layouts_of_block_types_recompile_their_readers(copied: Path) -> None:
    before = keys(copied)
    edit(copied / "ggplug" / "quants" / "levels.py", lambda text: text.replace("-104", "-105"))
    edit(copied / "ggplug" / "types.py", lambda text: text.replace('"e", "u1"), ("qs"', '"e", "i1"), ("qs"'))
    after = keys(copied)
    changed = {name.partition("[")[0] for name in before if after[name] != before[name]}
    assert {"mul_mat_dot", "mul_mat_gemm", "read_blocks", "write_blocks"} <= changed
    assert not changed & {"norm", "rope", "copy_rows", "soft_max"}


PACKAGE = Path(own_sources.__file__).parent


def declares_code(path: Path) -> bool:
    return (
        re.search(r"^ *@(kernel|device_function|emitted)\b", path.read_text(encoding="utf-8"), re.MULTILINE) is not None
    )


def chooses(path: Path) -> bool:
    return path.parent.name == "choosing" or "from ggplug_cpu.choosing." in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [p for p in sorted(PACKAGE.rglob("*.py")) if declares_code(p)], ids=lambda p: p.stem)
def test_a_kernel_draws_in_no_planning(path: Path) -> None:
    drawn = own_sources.source_modules(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
    data = {m for m in drawn if m == "ggplug.types" or m.startswith("ggplug.quants.")}
    assert not [m for m in drawn - data if m.split(".")[0] == "ggplug" or m.startswith("ggplug_cpu.choosing")]
    assert not drawn & {f"ggplug_cpu.{name}" for name in ("matching", "tape", "device", "backend")}


def imported(path: Path) -> set[str]:
    """The modules of ggplug distributions that a file imports, by its syntax tree."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names if each.name.startswith("ggplug")}
        elif isinstance(node, ast.ImportFrom):
            above = parts[: len(parts) - node.level] if node.level else ()
            base = ".".join(filter(None, [*above, node.module]))
            if base.startswith("ggplug"):
                modules = own_sources._files(base.partition(".")[0])
                found |= {f"{base}.{each.name}" if f"{base}.{each.name}" in modules else base for each in node.names}
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_all_imports_of_this_package_are_found(path: Path) -> None:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    found = own_sources._imports(".".join(parts[:-1] if path.stem == "__init__" else parts))
    assert {each for each in imported(path) if "." in each} <= set(found)
    if declares_code(path):
        assert "ggplug_cpu" not in imported(path), "the package's own __init__ does not count"
