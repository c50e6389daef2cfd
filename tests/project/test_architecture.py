"""Imports go one way: down the lists in docs/architecture.md, which are those of the files."""

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


def imports(path: Path) -> list[tuple[str, int]]:
    """Modules that a file imports when it runs, ``TYPE_CHECKING`` blocks left out."""
    found: list[tuple[str, int]] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            found.extend((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.append((node.module, node.lineno))
            found.extend((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
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
    assert not [m for m, _ in imports(path) if m.split(".")[0] in BACKENDS]


def test_progress_on_terminals_is_drawn_at_one_place() -> None:
    for path in ROOT.glob("ggplug-*/src/**/*.py"):
        if path != CORE / "display" / "bars.py":
            drawing = {"rich.progress.Progress", "rich.live", "rich.status"} & {module for module, _ in imports(path)}
            assert not drawing, f"{path}: ggplug.display.bars draws, and knows when not to"
            assert "err.status(" not in path.read_text(encoding="utf-8"), path


def check_order(edges: dict[str, set[str]]) -> int:
    """Fails with the circle if modules import each other in one; answers how many modules were visited."""
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for target in edges.get(name, ()):
                visit(target, (*trail, name))
            done.add(name)

    for name in edges:
        visit(name, ())
    return len(done)


@pytest.mark.parametrize("folder", [CORE, SUITE], ids=lambda p: p.name)
def test_packages_import_no_circle_inside_a_room(folder: Path) -> None:
    modules = {str(p.relative_to(folder.parent).with_suffix("")).replace("/", "."): p for p in folder.rglob("*.py")}
    edges = {
        name: {m for m, _ in imports(path) if m in modules and m != name}
        for name, path in modules.items()
        if not name.endswith("__init__")
    }
    assert check_order(edges) > 70


SIMT = ROOT / "ggplug-simt" / "src" / "ggplug_simt"
CPU = ROOT / "ggplug-cpu" / "src" / "ggplug_cpu"


def edges_of(folder: Path) -> dict[str, set[str]]:
    """Which modules of a package each of its modules imports, also those that only its type hints need."""
    modules = {str(p.relative_to(folder.parent).with_suffix("")).replace("/", "."): p for p in folder.rglob("*.py")}
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        if name.endswith(("__init__", "__main__")):
            continue
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        froms = [node for node in tree if isinstance(node, ast.ImportFrom) and node.module and node.level == 0]
        named = {n.module for n in froms} | {f"{n.module}.{alias.name}" for n in froms for alias in n.names}
        found[name] = {each for each in named if each in modules} - {name}
    return found


@pytest.mark.parametrize(
    ("folder", "least"), [(SIMT, 20), (CPU, 120), (MODELS, 100)], ids=lambda p: getattr(p, "name", "")
)
def test_packages_are_an_order_also_for_type_hints(folder: Path, least: int) -> None:
    assert check_order(edges_of(folder)) > least


@pytest.mark.parametrize("package", [CORE, CPU, MODELS], ids=lambda p: p.name)
def test_a_folder_has_few_enough_files_to_look_through(package: Path) -> None:
    families = CORE / "ops"  # a file for each family of ops
    held = Counter(path.parent for path in package.rglob("*.py") if path.parent != families)
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
    assert not {"numba", "llvmlite", "click", "rich", "pytest", "pluggy", "tokenizers"} & set(done.stdout.split())


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
            tops = {module.partition(".")[0] for module, _ in imports(path)}
            assert "ggplug_testing" not in tops, path
            assert "ggplug.testing" not in {module for module, _ in imports(path)}, path
