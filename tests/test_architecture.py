"""The imports of core go one way: down the list in docs/architecture.md."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "ggplug-core" / "src" / "ggplug"
BACKENDS = sorted(p.parent.name.replace("-", "_") for p in ROOT.glob("ggplug-*/pyproject.toml") if p.parent.name !=
"ggplug-core")


def rooms() -> list[str]:
    """The rooms in order, as docs/architecture.md lists them."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listing = text.split("```")[1]
    return [re.split(r"[./ ]", line)[0] for line in listing.strip().splitlines()]


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


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "ggplug" and len(parts) > 1 else None


def test_every_module_of_core_stands_in_the_list_of_rooms() -> None:
    there = {p.stem for p in CORE.glob("*.py")} | {p.parent.name for p in CORE.glob("*/__init__.py")}
    assert there - {"__init__", "__main__"} <= set(rooms())


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda p: str(p.relative_to(CORE)))
def test_imports_only_go_down(path: Path) -> None:
    order = {name: position for position, name in enumerate(rooms())}
    here = path.relative_to(CORE).parts[0].removesuffix(".py")
    if here in ("__init__", "__main__"):
        return
    for module, line in imports(path):
        room = room_of(module)
        if room in order and room != here:
            assert order[room] < order[here], f"{path.relative_to(CORE)}:{line} imports {module} from above"


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda p: str(p.relative_to(CORE)))
def test_core_imports_no_other_distribution_of_the_family(path: Path) -> None:
    assert not [m for m, _ in imports(path) if m.split(".")[0] in BACKENDS]


def test_progress_on_terminals_is_drawn_at_one_place() -> None:
    for path in ROOT.glob("ggplug-*/src/**/*.py"):
        if path != CORE / "bars.py":
            drawing = {"rich.progress.Progress", "rich.live", "rich.status"} & {module for module, _ in imports(path)}
            assert not drawing, f"{path}: ggplug.bars draws, and knows when not to"
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


def test_packages_import_no_circle_inside_a_room() -> None:
    modules = {str(p.relative_to(CORE.parent).with_suffix("")).replace("/", "."): p for p in CORE.rglob("*.py")}
    edges = {
        name: {m for m, _ in imports(path) if m in modules and m != name}
        for name, path in modules.items()
        if not name.endswith("__init__")
    }
    check_order(edges)


SIMT = ROOT / "ggplug-simt" / "src" / "ggplug_simt"


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


def test_what_runs_programs_on_gpus_is_an_order_also_for_type_hints() -> None:
    assert check_order(edges_of(SIMT)) > 20


def test_what_runs_programs_on_gpus_imports_no_library_of_programs() -> None:
    for name, path in ((p.stem, p) for p in SIMT.glob("*.py")):
        assert not [module for module, _ in imports(path) if module.startswith("ggplug_simt.c.")], name
        assert not [module for module, _ in imports(path) if module == "ggplug_simt.c"], name


def test_importing_ggplug_loads_nothing_heavy() -> None:
    code = "import sys, ggplug; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numba", "llvmlite", "click", "rich", "pytest", "pluggy", "tokenizers"} & set(done.stdout.split())
