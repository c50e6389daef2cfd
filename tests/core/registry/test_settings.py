"""The table of environment variables in docs/platforms.md is complete: each that a distribution reads stands in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from paths import ROOT

SOURCES = sorted(ROOT.glob("ggplug-*/src/**/*.py"))

OF_OTHERS = {"CUDA_VISIBLE_DEVICES", "CUPY_GPU_MEMORY_LIMIT", "FORCE_COLOR", "NO_COLOR", "OCL_ICD_VENDORS"}
"""In the table for those who look for them: libraries below read them, and none of ours."""


def table() -> dict[str, str]:
    """By variable the distribution that reads it, as documented."""
    text = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8").partition("\n## Environment\n")[2]
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([^|]+) \| [^|]+ \|$", text.partition("\n## ")[0], re.M)
    assert len(rows) == len(dict(rows)), "a variable stands there twice"
    return dict(rows)


def reads(path: Path) -> Iterator[tuple[str, int]]:
    """The variables that a module reads, with the line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def name(node: ast.expr) -> str:
        found = constants.get(node.id, node) if isinstance(node, ast.Name) else node
        assert isinstance(found, ast.Constant), f"{path}:{node.lineno}: a variable's name is a literal or a constant"
        assert isinstance(found.value, str)
        return found.value

    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("os.environ.get", "os.environ.setdefault", "os.environ.pop", "os.getenv"):
                yield name(node.args[0]), node.lineno
            for keyword in node.keywords:
                if keyword.arg == "envvar":
                    yield name(keyword.value), node.lineno
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            yield name(node.slice), node.lineno
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "os.environ":
            yield name(node.left), node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            assert not {"environ", "getenv"} & {each.name for each in node.names}, f"{path}: write os.environ"


def found() -> dict[str, set[str]]:
    """By variable the distributions that read it."""
    variables: dict[str, set[str]] = {}
    for path in SOURCES:
        for variable, _ in reads(path):
            variables.setdefault(variable, set()).add(path.relative_to(ROOT).parts[0])
    return variables


def test_every_variable_that_is_read_stands_in_the_table_with_who_reads_it() -> None:
    documented = table()
    assert documented.keys() == found().keys() | OF_OTHERS
    for variable, distributions in found().items():
        assert set(documented[variable].split(", ")) == {f"`{each}`" for each in distributions}, variable


def test_every_variable_that_is_named_in_code_or_documents_is_one_that_is_read() -> None:
    pages = [*SOURCES, ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *ROOT.glob("ggplug-*/README.md")]
    for page in pages:
        named = set(re.findall(r"\bGGPLUG_[A-Z][A-Z_]+[A-Z]\b", page.read_text(encoding="utf-8")))
        assert named <= table().keys(), page


def test_reads_are_found_however_they_are_written(tmp_path: Path) -> None:
    written = tmp_path / "module.py"
    written.write_text(
        'import os\nA = "ONE"\nos.environ.get(A)\nos.environ["TWO"]\n"THREE" in os.environ\nos.getenv("FOUR", "")\n'
        'option(envvar="FIVE")\n{**os.environ}\n',
        "utf-8",
    )
    assert {name for name, _ in reads(written)} == {"ONE", "TWO", "THREE", "FOUR", "FIVE"}
