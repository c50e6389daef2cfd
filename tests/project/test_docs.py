"""What the documentation shows is what there is."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from named import resolve
from oracles import overridden
from paths import ROOT
from test_distributions import PROJECTS

from ggplug import backend
from ggplug.graph import Graph

PAGES = [
    path
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/*.md", "ggplug-*/README.md", "examples/*/README.md")
    for path in sorted(ROOT.glob(pattern))
]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def spans(page: Path) -> list[str]:
    """What stands between single backquotes outside of blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text_of(page), flags=re.S | re.M))


def commands(page: Path) -> Iterator[list[str]]:
    """The words of commands, in blocks and between backquotes, without what a shell makes of the rest."""
    lines = re.findall(r"^(?:    |\$ )(.*)$", text_of(page), re.M) + spans(page)
    lines += "".join(re.findall(r"^```\n(.*?)^```", text_of(page), re.S | re.M)).splitlines()
    for line in lines:
        for command in re.split(r" && | \| ", re.sub(r"  +#.*", "", line)):
            if re.match(r"(?:\w+=\S+ )*(?:ggplug|nox|python|pip) ", command):
                words = shlex.split(re.sub(r" <.*", "", command))
                yield [word for word in words if not re.match(r"[A-Z_]+=", word)]


def table(text: str, heading: str) -> list[list[str]]:
    """The rows of the first table below a heading."""
    below = f"\n{text}".partition(f"\n{heading}\n")[2]
    rows = re.search(r"^\|.*\n\|[-|]+\|\n((?:\|.*\n)+)", below, re.M)
    assert rows is not None, heading
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[1].splitlines()]


def anchors(text: str) -> set[str]:
    """Where links may lead in a page."""
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text_of(page)):
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(text_of(there)), f"{target}#{anchor}"


@every_page
def test_sessions_that_a_page_names_are_nox_s(page: Path) -> None:
    functions = [
        node
        for node in ast.parse(text_of(ROOT / "noxfile.py")).body
        if isinstance(node, ast.FunctionDef) and any("nox.session" in ast.unparse(each) for each in node.decorator_list)
    ]
    renamed = re.findall(r'@nox.session\(name="([\w-]+)"', text_of(ROOT / "noxfile.py"))
    there = {function.name for function in functions} | set(renamed)
    assert set(re.findall(r"nox -s \"?([\w-]+)", text_of(page))) <= there


@every_page
def test_commands_that_a_page_shows_are_there_with_their_options(page: Path) -> None:
    from ggplug.cli.app import app

    for words in commands(page):
        if words[0] == "ggplug" and re.match(r"[a-z-]+$", words[1]):
            command = app.get_command(click.Context(app), words[1])
            assert command is not None, words
            if isinstance(command, click.Group) and words[2:]:
                command = command.get_command(click.Context(command), words[2])
                assert command is not None, words
            known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
            given = {word.partition("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word)}
            assert given <= known, words


@every_page
def test_options_that_a_page_names_alone_are_those_of_some_program(page: Path) -> None:
    named = {found[0] for span in spans(page) if (found := re.match(r"--[a-z][\w-]*", span))}
    sources = [path for folder in ("ggplug-*/src", "tests", "examples") for path in ROOT.glob(f"{folder}/**/*.py")]
    given = set(re.findall(r"[\"'/](--[a-z][\w-]*)", "\n".join(map(text_of, sources)))) if named else set()
    assert named <= given


@every_page
def test_modules_and_programs_that_a_page_starts_are_there(page: Path) -> None:
    for words in commands(page):
        if words[0] == "python" and words[1] == "-m":
            assert importlib.util.find_spec(words[2]) is not None, words
        elif words[0] == "python" and words[1].endswith(".py"):
            assert (ROOT / words[1]).exists(), words


@every_page
def test_names_and_files_that_a_page_names_are_there(page: Path) -> None:
    packages = [path.parent for path in ROOT.glob("ggplug-*/src/*/__init__.py")]
    folders = [ROOT, page.parent, *packages, *(package.parent for package in packages)]
    folders += [package / part for package in packages for part in ("testing", "cli", "c")]
    for span in spans(page):
        if re.fullmatch(r"(?:ggplug(?:_cpu|_models|_simt|_opencl|_cuda)?|gg)(?:\.\w+)+", re.sub(r"\(.*", "", span)):
            groups = r"\.(?:v\d|commands|backends|architectures|benchmarks|model_names)$"  # of entry points
            if not re.search(groups, span):
                resolve(re.sub(r"^gg\.", "ggplug.", re.sub(r"\(.*", "", span)))
        elif re.fullmatch(r"[\w.-]+(?:/[\w.-]+)*(?:/|/[\w-]+\.(?:py|md|txt|json|h))", span):
            assert any((folder / span).exists() for folder in folders), span


@every_page
def test_a_block_under_a_file_name_is_that_file(page: Path) -> None:
    text = text_of(page)
    for path, block in re.findall(r"<!-- (\S+) -->\n```\w*\n(.*?)```", text, re.S):
        assert block == (ROOT / path).read_text(encoding="utf-8"), f"copy {path} into {page.name} again"


@every_page
def test_a_block_that_is_said_to_be_a_part_of_a_file_is_one(page: Path) -> None:
    for path, block in re.findall(r"<!-- part of (\S+) -->\n```\w*\n(.*?)```", text_of(page), re.S):
        assert block in (ROOT / path).read_text(encoding="utf-8"), f"copy this part of {path} into {page.name} again"


def test_the_page_on_families_lists_what_they_override() -> None:
    assert overridden.LIST.findall(text_of(overridden.PAGE)) == [overridden.rows()], (
        "run: PYTHONPATH=tests/support python -m oracles.overridden"
    )


def test_the_programs_on_looking_into_a_computation_run_one_after_the_other(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(data / "qwen3.gguf", tmp_path)
    known: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text_of(ROOT / "docs" / "inspect.md"), re.S):
        exec(block, known)
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    with known["gg"].load_graph("prompt.gguf") as graph:  # type: ignore[attr-defined]
        assert not graph.missing


def test_the_graph_in_the_readme_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert blocks
    for block in blocks:
        assert len([line for line in block.splitlines() if line.strip()]) <= 20
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


def test_what_authors_change_from_version_to_version_is_there() -> None:
    text = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    chapter = re.split(r"\n##+ ", text.split("### From 1 to 2")[1])[0]
    claimed = set(re.findall(r"\b(check_\w+|[A-Z]{4,}|\w+_of|id_out_of_range|is_read_only|has_own_layout)\b", chapter))
    owners = (backend, backend.Buffer, backend.BufferType, Graph)
    assert "UNGROUPED" in claimed
    assert claimed >= {f"check_{what}" for what in ("read", "write", "fill", "parameters", "target", "structure")}
    assert not [name for name in claimed if not any(hasattr(owner, name) for owner in owners)]


def test_every_page_is_reached_from_the_readme() -> None:
    reached = set(re.findall(r"docs/([\w-]+)\.md", README))
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= reached | {"gpu-report"}


# -- the README ------------------------------------------------------------------------------------


def test_the_readme_lists_the_distributions_and_what_they_import_as() -> None:
    rows = {row[0].strip("`/"): row[1].strip("`") for row in table(README, "## Packages")}
    assert rows == {
        path.parts[-3]: path.name for path in (init.parent for init in ROOT.glob("ggplug-*/src/*/__init__.py"))
    }


def test_the_page_of_families_has_more_than_a_hundred_as_the_readme_says() -> None:
    from ggplug_models import ARCHITECTURES
    from ggplug_models.networks.decoder import Decoder
    from ggplug_models.networks.denoiser import Denoiser
    from ggplug_models.networks.encoder import Encoder

    own = {name: kind for name, kind in ARCHITECTURES.items() if kind.__module__.startswith("ggplug_models.")}
    writers = {name for name, kind in own.items() if issubclass(kind, (Decoder, Denoiser))}
    assert "More than a hundred architectures" in README
    assert len(writers) > 100
    listed = re.findall(r"^\| `([\w-]+)` \| \w+ \| (text|embeddings) ", text_of(ROOT / "docs/models.md"), re.M)
    assert {name for name, kind in listed if kind == "text"} == writers
    encoders = {name for name, kind in own.items() if issubclass(kind, Encoder)} - writers
    assert {name for name, kind in listed if kind == "embeddings"} == encoders


def test_the_layers_that_the_readme_gives_devices_are_those_of_the_split() -> None:
    from ggplug_models import LayerSplit

    ((split, first, second),) = re.findall(r"--split (\S+) .*# layers (\S+) and (\S+)", README)
    count, others = LayerSplit.parse(split).layers(n_layer=6, n_devices=2)  # MiniLM has six
    assert (first, second) == (f"0-{count - 1}", f"{count}-{count + others - 1}")


def test_figures_in_the_readme_are_those_of_the_page_of_measurements() -> None:
    page = text_of(ROOT / "docs/performance.md")
    claimed = re.findall(r"at ([\d.]+) to ([\d.]+) (?:\(F32\) )?and ([\d.]+) to ([\d.]+)", README)
    tables = re.findall(r"^\| weights \| 1 sequence.*OpenVINO.*\n.*\n((?:\|.*\n)+)", page, re.M)
    assert len(claimed) == len(tables) == 3
    for figures, rows in zip(claimed, tables, strict=True):
        rates = {
            kind: [float(rate) for rate in row.split(" | ")[:3]]
            for kind, row in re.findall(r"^\| (.+?) \| (.*)", rows, re.M)
        }
        wanted = [
            f"{choose(a / b for a, b in zip(rates[kind], rates['PyTorch F32'], strict=True)):.1f}"
            for kind in ("F32", "Q8_0")
            for choose in (min, max)
        ]
        assert list(figures) == wanted
    costs = table(page, "## All machines: what the framework costs")
    (again,) = (row for row in costs if row[0].startswith("compute it again, by plan"))
    microseconds = [f"{1000 * float(each.split(',')[0]):.0f}" for each in again[1:3]]
    assert f"runs again in {microseconds[0]} and {microseconds[1]} microseconds" in " ".join(README.split())


def test_gpus_that_kernels_are_compiled_for_are_those_of_the_tests() -> None:
    tests = text_of(ROOT / "tests/cuda/test_simt_cuda.py")
    claimed = " ".join(row[2] for row in table(README, "Tested hardware:"))
    for name in set(re.findall(r"\b(?:sm_\d+|gfx\w+)", claimed)):
        assert name in tests or re.search(rf"\({name[3:-1]}, {name[-1]}\)", tests), name


def test_the_readme_shows_what_devices_prints() -> None:
    from click.testing import CliRunner

    from ggplug.cli.app import app

    printed = CliRunner().invoke(app, ["devices"], env={"COLUMNS": "80"}).stdout.splitlines()
    shown = README.partition("$ ggplug devices\n")[2].splitlines()
    assert [" ".join(line.split()) for line in shown[:1]] == [" ".join(line.split()) for line in printed[:1]]

    def form(lines: list[str]) -> list[str]:
        """What each column says of the CPU, without what differs from machine to machine."""
        (start,) = (number for number, line in enumerate(lines) if re.match(r"CPU +CPU +", line))
        ends = next(number for number in range(start + 1, len(lines)) if not lines[number].startswith(" "))
        columns = [each.start() for each in re.finditer(r"(?<!\S )\b\w+", lines[0])]
        cells = [
            " ".join(" ".join(line[slice(*ab)] for line in lines[start:ends]).split())
            for ab in zip(columns, [*columns[1:], None], strict=True)
        ]
        name = re.sub(r".* \(.*\), \d+ threads?", "NAME", cells[3])
        return [*cells[:2], re.sub(r"[\d.]+ [KMGT]iB", "SIZE", cells[2]), name]

    assert form(shown) == form(printed)


def test_the_editable_installation_names_every_distribution_once_with_its_extras() -> None:
    (words,) = (words for words in commands(ROOT / "CONTRIBUTING.md") if words[:3] == ["pip", "install", "-e"])
    named = [re.fullmatch(r"\./([\w-]+)(?:\[([\w,]+)\])?", word) for word in words[3::2]]
    assert words[2::2] == ["-e"] * len(named)
    assert sorted(each[1] for each in named if each) == sorted(PROJECTS)
    for each in named:
        assert each is not None
        assert set((each[2] or "").split(",")) - {""} <= set(PROJECTS[each[1]].get("optional-dependencies", {}))


# -- other pages -----------------------------------------------------------------------------------


def test_libraries_that_distributions_need_are_those_of_their_projects() -> None:
    rows = table(text_of(ROOT / "docs/platforms.md"), "# Platforms")
    assert {row[0]: set(re.findall(r"\w+", row[1])) for row in rows} == {
        name: {re.split(r"[<>=]", need)[0] for need in project["dependencies"]} - PROJECTS.keys()
        for name, project in PROJECTS.items()
    }


def test_sections_with_figures_name_the_machine_and_the_day() -> None:
    page = text_of(ROOT / "docs/performance.md")
    machines = [row[0] for row in table(page, "# Performance")]
    for section in page.split("\n## ")[1:]:
        if "\n|--" in section and not section.startswith("Instructions"):  # counted for any machine
            days = [rf"{machine}\b.{{0,40}} \d+ November 2026" for machine in machines]
            assert any(re.search(day, section, re.S) for day in days), section[:40]


def test_the_example_over_pytorch_is_as_large_as_the_page_says() -> None:
    ((ops, most),) = re.findall(r"with (\d+) ops in under (\d+) lines", text_of(ROOT / "docs/device-memory.md"))
    sources = {path.name: text_of(path) for path in ROOT.glob("examples/ggplug-torch/src/**/*.py")}
    assert len(re.findall(r"^    ops\.\w+: ", sources["kernels.py"], re.M)) == int(ops)
    assert sum(len(source.splitlines()) for source in sources.values()) < int(most)
