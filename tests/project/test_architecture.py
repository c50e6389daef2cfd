"""Imports go one way, also those for type hints: down the lists in docs/architecture.md, which name the files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from paths import ROOT

CORE = ROOT / "ggplug-core" / "src" / "ggplug"
MODELS = ROOT / "ggplug-models" / "src" / "ggplug_models"
SUITE = ROOT / "ggplug-testing" / "src" / "ggplug_testing"
PACKAGES = sorted(ROOT.glob("ggplug-*/src/ggplug*"))
BACKENDS = sorted(
    p.parent.name.replace("-", "_") for p in ROOT.glob("ggplug-*/pyproject.toml") if p.parent.name != "ggplug-core"
)


def listed(folder: Path) -> list[list[str]]:
    """What docs/architecture.md lists of a package, in order: the files and folders of each line."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listing = {CORE: "errors.py", MODELS: "metadata/"}[folder]
    (block,) = (block for block in re.findall(r"^```\n(.*?)^```", text, re.S | re.M) if block.startswith(listing))
    heads = [re.match(r"[\w.]+/?(?:, [\w.]+/?)*(?=  )", line) for line in block.splitlines()]
    return [head[0].split(", ") for head in heads if head is not None]


def modules_of(folder: Path) -> set[str]:
    """The files and folders of a package, as the list writes them."""
    files = {path.name for path in folder.glob("*.py")}
    return files - {"__init__.py", "__main__.py"} | {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}


def order_of(folder: Path) -> dict[str, int]:
    """Module to its line in the list."""
    return {re.split(r"[./]", name)[0]: line for line, names in enumerate(listed(folder)) for name in names}


def imports(path: Path, *, hints: bool = True) -> list[tuple[str, int]]:
    """Modules, and names of them, that a file imports, also inside of functions, each with its line.

    ``hints``: also those that only its type hints need.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    # A package that imports names when they are first asked for names them to type checkers, too: those are promises
    # of what ``__getattr__`` finds, and importing the package imports none of them.
    lazy = path.name == "__init__.py" and any(getattr(node, "name", "") == "__getattr__" for node in tree.body)
    found: list[tuple[str, int]] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and (lazy or not hints):
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            found.extend((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = [*path.parts[path.parts.index("src") + 1 : -node.level]] if node.level else []
            module = ".".join([*home, *([node.module] if node.module else [])])
            found.extend((f"{module}.{alias.name}", node.lineno) for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found


@pytest.mark.parametrize("folder", [CORE, MODELS], ids=lambda p: p.name)
def test_the_list_in_the_documentation_is_that_of_the_files(folder: Path) -> None:
    names = [name for line in listed(folder) for name in line]
    assert sorted(names) == sorted(modules_of(folder))


def test_the_server_s_line_names_all_of_its_modules() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^serve/ +(.*(?:\n +.*)*)", text, re.M)
    there = {path.stem for path in (MODELS / "serve").glob("*.py")} - {"__init__"}
    assert there <= set(re.findall(r"\w+", line))


@pytest.mark.parametrize(
    ("folder", "path"),
    [(folder, path) for folder in (CORE, MODELS) for path in sorted(folder.rglob("*.py"))],
    ids=lambda p: str(p.relative_to(p.parents[2])) if p.suffix else "",
)
def test_imports_only_go_down(folder: Path, path: Path) -> None:
    order = order_of(folder)
    here = path.relative_to(folder).parts[0].removesuffix(".py")
    if here in ("__init__", "__main__"):
        return
    for module, line in imports(path):
        package, _, rest = module.partition(".")
        there = rest.partition(".")[0]
        if package == folder.name and there in order and there != here:
            assert order[there] <= order[here], f"{path.relative_to(folder)}:{line} imports {module} from above"


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda p: str(p.relative_to(CORE)))
def test_core_imports_no_other_distribution_of_the_family(path: Path) -> None:
    assert not [m for m, _ in imports(path, hints=False) if m.split(".")[0] in BACKENDS]


def test_progress_on_terminals_is_drawn_at_one_place() -> None:
    for path in ROOT.glob("ggplug-*/src/**/*.py"):
        if path != CORE / "display" / "bars.py":
            drawing = ("rich.progress.Progress", "rich.live", "rich.status")
            drawn = [module for module, _ in imports(path, hints=False) if module.startswith(drawing)]
            assert not drawn, f"{path}: ggplug.display.bars draws, and knows when not to"
            assert "err.status(" not in path.read_text(encoding="utf-8"), path


SIMT = ROOT / "ggplug-simt" / "src" / "ggplug_simt"
CPU = ROOT / "ggplug-cpu" / "src" / "ggplug_cpu"


def edges_of(package: Path) -> dict[str, set[str]]:
    """Which files of a package each of its files imports: by module, a package standing for its ``__init__``."""
    paths = {path.relative_to(package.parent).with_suffix(""): path for path in package.rglob("*.py")}
    modules = {".".join(part for part in each.parts if part != "__init__"): path for each, path in paths.items()}
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        # ``from package import module`` is an import of the module, ``from module import name`` one of that.
        named = {each if each in modules else each.rpartition(".")[0] for each, _ in imports(path)}
        found[name] = named & set(modules) - {name}
    return found


def circles_of(edges: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        stack.append(name)
        for target in sorted(edges[name]):
            if target not in number:
                visit(target)
            if target in stack:
                lowest[name] = min(lowest[name], lowest[target])
        if lowest[name] == number[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for name in edges:
        if name not in number:
            visit(name)
    return found


def test_circles_are_found() -> None:
    edges = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": set(), "f": {"g", "e"}, "g": {"f"}}
    assert circles_of(edges) == [["a", "b", "c"], ["f", "g"]]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.name)
def test_no_imports_make_a_circle(package: Path) -> None:
    edges = edges_of(package)
    assert any(edges.values())
    assert circles_of(edges) == []


FAMILIES = (CORE / "ops", MODELS / "architectures")
"""Folders with a file for each family of ops or of models."""


@pytest.mark.parametrize("package", [*PACKAGES, ROOT / "tests"], ids=lambda p: p.name)
def test_a_folder_has_few_enough_files_to_look_through(package: Path) -> None:
    held = Counter(path.parent for path in package.rglob("*.py") if path.parent not in FAMILIES)
    assert not {str(folder): count for folder, count in held.items() if count > 25}


def test_a_family_of_the_cpu_device_keeps_its_kernels_and_their_choice_in_one_folder() -> None:
    assert all((family.parent / "choosers.py").exists() for family in (CPU / "ops").glob("*/__init__.py"))


def test_what_families_of_the_cpu_device_share_imports_no_family() -> None:
    for part in ("parts", "choosing"):
        for path in (CPU / part).glob("*.py"):
            assert not [module for module, _ in imports(path) if module.startswith("ggplug_cpu.ops")], path


def test_what_runs_programs_on_gpus_imports_no_library_of_programs() -> None:
    for name, path in ((p.stem, p) for p in SIMT.glob("*.py")):
        assert not [module for module, _ in imports(path) if module.startswith("ggplug_simt.c.")], name
        assert not [module for module, _ in imports(path) if module == "ggplug_simt.c"], name


def test_importing_ggplug_loads_nothing_heavy() -> None:
    code = "import sys, ggplug; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"llvmlite", "click", "rich", "pytest", "pluggy", "tokenizers"} & set(done.stdout.split())


REPORT = SUITE / "gpu_report"


@pytest.mark.parametrize("path", sorted(SUITE.rglob("*.py")), ids=lambda p: str(p.relative_to(SUITE)))
def test_the_suite_imports_core_alone_and_only_its_report_of_gpus_more(path: Path) -> None:
    found = {module.partition(".")[0] for module, _ in imports(path) if module.startswith("ggplug")}
    if REPORT in path.parents:
        assert found <= {"ggplug", "ggplug_testing", "ggplug_simt", "ggplug_models"}
    else:
        assert found <= {"ggplug", "ggplug_testing"}
        named = {module for module, _ in imports(path)}
        assert not [each for each in named if f"{each}.".startswith(("ggplug.cli.", "ggplug_testing.gpu_report."))]


def test_what_computes_imports_no_suite() -> None:
    doors = ("gpu_report.py", "compare.py")  # programs that ask the suite: nothing else imports them
    for path in ROOT.glob("ggplug-*/src/**/*.py"):
        if SUITE not in path.parents and path.name not in doors:
            named = {f"{module}." for module, _ in imports(path, hints=False)}
            assert not [module for module in named if module.startswith(("ggplug_testing.", "ggplug.testing."))], path
