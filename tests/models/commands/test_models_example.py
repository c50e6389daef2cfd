"""The semantic-search example: what it finds, and which devices it says ran what."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

FILES = {
    "bread.md": "# Baking\n\nMix flour, water, salt and yeast, knead the dough, and bake it in a hot oven.\n",
    "stars.txt": "A star shines because hydrogen fuses to helium in its core, for billions of years.\n",
    "cats.rst": "Cats sleep for most of the day and hunt mice when it is getting dark.\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


BESIDE_A_GPU = """
import sys
import ggplug as gg
from examples.semantic_search.__main__ import main
from ggplug_testing import FakeDevice

gg.register_device(FakeDevice(sys.argv[1], inner=gg.device("CPU")))
main(sys.argv[2:])
"""


def search(*command: str, **environment: str) -> str:
    """What the example prints on a terminal of 80 columns."""
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        cwd=ROOT,
        encoding="utf-8",
        env={**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8", **environment},
    )
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    return done.stdout


def table(shown: str) -> dict[str, list[str]]:
    """Device to its row of the table; ops that went to further lines are left out."""
    rows = [line.split() for line in shown.partition("what ran where")[2].splitlines()]
    return {row[0]: row[1:] for row in rows if len(row) > 4 and row[-1].endswith("%")}


def test_a_question_finds_its_passage_on_the_one_device_that_was_named(folder: Path) -> None:
    question = "How do I make a loaf?"
    shown = search("-m", "examples.semantic_search", "--folder", str(folder), "--top", "1", "--device", "CPU", question)
    assert "bread.md:3  Baking" in shown
    rows = table(shown)
    assert list(rows) == ["CPU"]
    assert rows["CPU"][0] == "0-5"
    assert rows["CPU"][-2:] == ["nothing", "100%"]


def test_by_default_the_best_device_computes_all_layers_and_a_second_one_is_named(folder: Path) -> None:
    shown = beside_a_gpu(folder, "Why does the sun shine?")
    assert "stars.txt:1" in shown
    assert {device: row[0] for device, row in table(shown).items()} == {"Fake0": "0-5"}
    assert "CPU is available, too; to split the layers between both: --device Fake0 --device CPU" in " ".join(
        shown.split()
    )


def test_devices_that_are_named_share_the_layers(folder: Path) -> None:
    shown = beside_a_gpu(folder, "Why does the sun shine?", "--device", "Fake0", "--device", "CPU", "--split", "2,1")
    rows = table(shown)
    assert {device: row[0] for device, row in rows.items()} == {"Fake0": "0-3", "CPU": "4-5"}
    assert all("nothing" not in row for row in rows.values())
    assert "to split the layers" not in shown


def beside_a_gpu(folder: Path, question: str, *options: str, name: str = "Fake0") -> str:
    """What the example prints where there is another device, better than the CPU."""
    arguments = (name, "--folder", str(folder), "--top", "1", *options, question)
    return search("-c", BESIDE_A_GPU, *arguments, GGPLUG_DISABLE="OpenCL,CUDA")


def test_the_readme_shows_what_it_prints(tmp_path: Path) -> None:
    """Except for what is packed, the rate, times and what is copied, which depend on the machine and on the texts."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```\n(<Bert .*?)```", readme, re.S | re.M)
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "write-a-backend.md", tmp_path / "docs")
    (question,) = re.findall(r"^\w.*\?$", shown, re.M)
    options = ("--device", "CPU", "--device", "OpenCL0", "--split", "even")
    assert " ".join(options) in readme
    printed = beside_a_gpu(tmp_path / "docs", question, *options, name="OpenCL0")
    (score,) = re.findall(r"─ ([\d.]+)  docs/", shown)
    (found,) = re.findall(r"─ ([\d.]+)  docs/", printed)
    assert abs(float(score) - float(found)) < 0.02, "the page has changed: README shows the score of its old text"

    def steady(text: str) -> list[str]:
        model, _, text = text.partition(">\n")
        model = re.sub(r" \([\d.]+ MiB packed\)", "", " ".join(model.split()))
        lines = [line for line in text.replace(score, "SCORE").replace(found, "SCORE").splitlines() if line.strip()]
        end = next(number for number, line in enumerate(lines) if line.startswith("╰"))
        first = [line for line in lines[: end + 1] if not line.startswith("first result")]
        words = re.split(r"what ran where.*\n", text)[1].splitlines()
        rows = [re.sub(r" +[\d.]+ MiB +\d+%", "", line).rstrip() for line in words]
        return [model, *first] + [row for row in rows if row and not row.startswith("─")]

    wanted = steady(shown)
    assert steady(printed)[: len(wanted)] == wanted
