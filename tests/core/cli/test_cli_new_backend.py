"""``ggplug new-backend`` writes a distribution that is found, passes its own tests, and grows."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_distributions import Site
from paths import ROOT

from ggplug.cli.new_backend.command import RULE, new_backend
from ggplug.cli.new_backend.files import MEMORIES
from ggplug.cli.new_backend.kernels import SNIPPETS
from ggplug.errors import ParameterError
from ggplug.ops import OPS
from ggplug.registry.discover import Installed


def write(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(new_backend, [*arguments, "--into", str(folder)])


def own_tests(folder: Path, name: str, chosen: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Its own tests, with the distribution on the path as an installer leaves it behind."""
    site = Site(folder / "site")
    project = tomllib.loads((folder / f"ggplug-{name}" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    site.add(project["name"], project["entry-points"], {})
    path = os.pathsep.join([str(folder / f"ggplug-{name}" / "src"), str(site.folder)])
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-v",
            "-p",
            "no:cacheprovider",
            "-k",
            chosen,
            "-W",
            "error",
            f"ggplug-{name}",
            *more,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def ops_in(names: Iterable[str]) -> str:
    return " or ".join(f"test_op[{name}]" for name in names)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_new_backend_passes_its_own_tests_with_every_op_that_it_can_begin_with(memory: str, tmp_path: Path) -> None:
    done = write(tmp_path, "toy", "--memory", memory, "--ops", ",".join(SNIPPETS))
    assert done.exit_code == 0, done.output
    assert "pip install" in done.output
    names = list(SNIPPETS)[list(MEMORIES).index(memory) :: len(MEMORIES)]  # the kernels are the same
    ran = own_tests(tmp_path, "toy", f"test_contract or {ops_in(names)}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for name in names:
        (row,) = (line for line in ran.stdout.splitlines() if line.startswith(f"{name} "))
        assert int(row.split()[1]) > 5, row


def test_it_begins_with_what_moves_data_and_says_where_other_kernels_are(tmp_path: Path) -> None:
    write(tmp_path, "toy")
    folder = tmp_path / "ggplug-toy"
    kernels = (folder / "src/ggplug_toy/kernels.py").read_text(encoding="utf-8")
    assert "def cpy(op: Any, dst: Values, x: Values, written: Values) -> None:" in kernels
    assert "def set_rows(op: Any, dst: Values, written: Values, rows: Values, ids: Values) -> None:" in kernels
    assert len(kernels.splitlines()) < 250
    named = (folder / "README.md").read_text(encoding="utf-8").partition("Kernels of")[2].partition("examples/")
    example = ROOT / "examples/ggplug-torch/src/ggplug_torch/kernels.py"
    there = example.read_text(encoding="utf-8")
    others = re.findall(r"`(\w+)`", named[0])
    assert others == ["rope", "mul_mat_id"]
    for name in others:
        assert f"ops.{OPS[name].__name__}: {name}" in there
    assert len(re.findall(r"^    ops\.", there, re.MULTILINE)) > 50


def test_a_mistake_in_its_kernels_is_shown_at_its_line(tmp_path: Path) -> None:
    write(tmp_path, "toy", "--memory", "discrete")
    kernels = tmp_path / "ggplug-toy/src/ggplug_toy/kernels.py"
    kernels.write_text(kernels.read_text(encoding="utf-8").replace("np.tile(b", "np.tyle(b"), encoding="utf-8")
    ran = own_tests(tmp_path, "toy", ops_in(["add", "mul"]))
    assert ran.returncode == 1
    assert "kernels.py:" in ran.stdout
    assert "in repeated: return np.tyle(b" in ran.stdout


def test_what_it_writes_has_the_style_of_this_repository(tmp_path: Path) -> None:
    for memory in MEMORIES:
        write(tmp_path, f"new-{memory}", "--memory", memory, "--ops", ",".join(SNIPPETS))
        folder = tmp_path / f"ggplug-new-{memory}"
        written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert {
            "pyproject.toml",
            "README.md",
            ".github/workflows/tests.yml",
            f"tests/test_ggplug_new_{memory}.py",
            f"src/ggplug_new_{memory}/device.py",
        } <= written
        for path in folder.rglob("*.py"):
            lines = path.read_text(encoding="utf-8").splitlines()
            compile("\n".join(lines), str(path), "exec")
            assert max(map(len, lines), default=0) <= 120, path
            assert "$" not in "\n".join(lines), path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["Toy"], "a lower-case letter, then"),
        (["a b"], f"a backend's name is {RULE}; got 'a b' (for example 'a-b')"),
        (["../x"], "(for example 'x')"),
        (["3d"], "(for example 'd')"),
        (["3"], "got '3'"),
        (["toy\n"], "a lower-case letter, then"),
        (["a--b"], "(for example 'a-b')"),
        (["größe"], "a lower-case letter, then"),
        ([""], "a lower-case letter, then"),
        (["cpu"], "ggplug-cpu is a distribution of ggplug"),
        (["simt"], "there is a module ggplug_simt already"),
        (["core-"], "a lower-case letter, then"),
        (["c-pu"], "there is a backend CPU already, of ggplug-cpu (choose another name)"),
        (["toy", "--ops", "add,flash"], "no kernel to begin with for 'flash'"),
        (["toy", "--ops", ","], "one op"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_is_left(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    done = write(tmp_path, *arguments)
    assert done.exit_code != 0
    assert words in f"{done.output} {done.exception}"
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "ggplug-toy").mkdir()
    done = write(tmp_path, "toy")
    assert "there already" in str(done.exception)
    assert not list((tmp_path / "ggplug-toy").iterdir())
    (tmp_path / "ggplug-link").symlink_to(tmp_path / "nowhere")
    assert "there already" in str(write(tmp_path, "link").exception)


def test_one_that_is_installed_is_written_again_in_another_folder_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "first", "another", "--ops", "relu")
    source = tmp_path / "first" / "ggplug-another" / "src"
    monkeypatch.syspath_prepend(str(source))
    there = Installed("Another", "ggplug_another", "ggplug_another", "0.1.0")
    monkeypatch.setattr("ggplug.cli.new_backend.command.backends", lambda: (there,))
    done = write(tmp_path / "second", "another", "--memory", "discrete")
    assert done.exit_code == 0, done.exception
    assert f"ggplug-another is installed here already, from {source / 'ggplug_another'}" in done.output
    assert (tmp_path / "second" / "ggplug-another" / "pyproject.toml").is_file()
    monkeypatch.setattr("ggplug.cli.new_backend.command.backends", lambda: (replace(there, distribution="other"),))
    assert "of no backend ggplug-another" in str(write(tmp_path / "third", "another").exception)


def test_help_has_the_rule_for_names_and_the_ops_to_begin_with() -> None:
    shown = " ".join(CliRunner().invoke(new_backend, ["--help"]).output.split())
    assert RULE in shown
    for name in SNIPPETS:
        assert re.search(rf"\b{name}\b", shown.partition("begin with for")[2]), name


def test_kernels_compute_with_the_types_that_their_line_names_and_decline_others(tmp_path: Path) -> None:
    for memory in MEMORIES:
        write(tmp_path, memory, "--memory", memory)
        chosen = "test_op[mul_mat] or test_op[get_rows] or test_op[add]"
        ran = own_tests(tmp_path, memory, chosen, "--ggplug-json", "found.json")
        assert ran.returncode == 0, ran.stdout
        (report,) = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
        declined = {
            (each["subject"], each.get("reason")) for each in report["findings"] if each["verdict"] == "declined"
        }
        words = "the kernel of this op takes no"
        assert ("add", "the kernel of this op gives no f16") in declined
        assert {("mul_mat", f"{words} a of f16"), ("mul_mat", f"{words} b of q8_0")} <= declined
        assert ("get_rows", f"{words} a of q4_0") in declined
        assert not [each for each in declined if each[1].endswith(("f32", "i32"))]
        assert {each for each in declined if each[1].endswith("q8_0")} == {
            ("add", "the kernel of this op gives no q8_0"),
            ("mul_mat", f"{words} b of q8_0"),
        }


@pytest.mark.parametrize("fails", ["mkdir", "write_text"])
def test_where_nothing_can_be_written_it_says_so_and_leaves_nothing(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: object, **more: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, fails, refused)
        done = write(tmp_path, "toy")
    assert isinstance(done.exception, ParameterError)
    words = "ggplug-toy cannot be written: Permission denied (choose another folder: --into)"
    assert str(done.exception).endswith(words)
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = write(tmp_path / "file" / "in it", "toy")
    assert isinstance(done.exception, ParameterError)
    assert "Not a directory" in str(done.exception)


@pytest.mark.parametrize("name", ["class", "none", "a-3d-chip", "v2", "discrete", "buffer_type"])
def test_names_that_python_or_ggplug_have_a_use_for_are_names_like_others(name: str, tmp_path: Path) -> None:
    assert write(tmp_path, name, "--memory", "discrete", "--ops", "relu").exit_code == 0
    ran = own_tests(tmp_path, name, "test_op[relu] or buffer_types_describe")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout


def test_what_it_says_to_install_is_the_folder_and_not_a_name_of_pips_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(new_backend, ["toy"])
    assert "\n  pip install -e ./ggplug-toy && pytest ./ggplug-toy" in done.output
