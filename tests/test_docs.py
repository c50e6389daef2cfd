"""What the documentation shows is what there is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_a_block_under_a_file_name_is_that_file(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path, block in re.findall(r"<!-- (\S+) -->\n```\w*\n(.*?)```", text, re.S):
        assert block == (ROOT / path).read_text(encoding="utf-8"), f"copy {path} into {page.name} again"


def test_the_graph_in_the_readme_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    assert blocks
    for block in blocks:
        assert len(block.splitlines()) <= 26
        done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("(5, 32)")


EXAMPLES = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "threads-and-lifetimes.md").read_text(encoding="utf-8"), re.S
)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_examples_of_threads_run(number: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLES[number]], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_every_page_is_reached_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    reached = set(re.findall(r"docs/([\w-]+)\.md", readme))
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= reached | {"gpu-report"}
