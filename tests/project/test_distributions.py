"""What the wheels of the distributions carry, and what they require of each other."""

from __future__ import annotations

import re
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_string
from email.message import Message
from pathlib import Path
from typing import NamedTuple

import pytest
from paths import ROOT

from ggplug.registry.discover import NO_DEVICES

PROJECTS = {
    path.parent.name: tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    for path in sorted(ROOT.glob("ggplug-*/pyproject.toml"))
}
VERSION = PROJECTS["ggplug-core"]["version"]


def requirements(project: dict) -> Iterator[str]:
    """All of a project's, those of its extras included."""
    yield from project["dependencies"]
    for needs in project.get("optional-dependencies", {}).values():
        yield from needs


class Wheel(NamedTuple):
    files: dict[str, int]
    metadata: Message
    licence: str


@pytest.fixture(params=PROJECTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def wheel(name: str, tmp_path: Path) -> Wheel:
    builder = pytest.importorskip("hatchling.builders.wheel").WheelBuilder(str(ROOT / name))
    (path,) = builder.build(directory=str(tmp_path))
    with zipfile.ZipFile(path) as archive:
        files = {each.filename: each.file_size for each in archive.infolist()}
        there = f"{name.replace('-', '_')}-{VERSION}.dist-info"
        metadata = message_from_string(archive.read(f"{there}/METADATA").decode())
        assert metadata.get_all("License-File") == ["LICENSE"], "the licence is a file of the distribution's folder"
        return Wheel(files, metadata, archive.read(f"{there}/licenses/LICENSE").decode())


def test_each_wheel_carries_the_licence_and_no_more_than_its_package(name: str, wheel: Wheel) -> None:
    assert wheel.licence == (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert wheel.metadata["License-Expression"] == "MIT"
    package = name.replace("ggplug-core", "ggplug").replace("-", "_")
    facts = f"{name.replace('-', '_')}-{VERSION}.dist-info"
    assert {each.partition("/")[0] for each in wheel.files} == {package, facts}
    assert f"{package}/py.typed" in wheel.files
    assert not [each for each in wheel.files if "__pycache__" in each]


def test_all_have_one_version_and_its_requirements_of_each_other_end_before_the_next() -> None:
    assert {project["version"] for project in PROJECTS.values()} == {VERSION}
    init = (ROOT / "ggplug-core/src/ggplug/__init__.py").read_text(encoding="utf-8")
    assert re.findall(r'^__version__ = "(.*)"', init, re.M) == [VERSION]
    major, minor, _ = map(int, VERSION.split("."))
    bounds = f">={major}.{minor},<{major}.{minor + 1}"
    for name, project in PROJECTS.items():
        for need in requirements(project):
            other, extras, rest = re.fullmatch(r"([\w-]+)(\[[\w,]+\])?(.*)", need).groups()  # type: ignore[union-attr]
            if other in PROJECTS and other != name:
                assert rest == bounds, f"{name} requires {need}"
            for extra in (extras or "[]")[1:-1].split(","):
                if other in PROJECTS and extra:
                    assert extra in PROJECTS[other]["optional-dependencies"], f"{name} requires {need}"


def test_pages_that_install_from_an_index_say_how_to_until_there_is_one() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "\n## Installing\n" in readme
    for pattern in ("docs/*.md", "ggplug-*/README.md", "examples/*/README.md"):
        for path in ROOT.glob(pattern):
            text = path.read_text(encoding="utf-8")
            assert 'pip install "ggplug-' not in text or "README.md#installing" in text, path


def test_backends_of_others_name_the_oldest_core_that_will_do() -> None:
    """As docs/compatibility.md says: in the examples, in what `ggplug new-backend` writes, and on its page."""
    oldest = f'"ggplug-core>={VERSION.rpartition(".")[0]}"'
    template = ROOT / "ggplug-core/src/ggplug/cli/new_backend/files.py"
    for path in (*ROOT.glob("examples/*/pyproject.toml"), template, ROOT / "docs/write-a-backend.md"):
        (needs,) = re.findall(r"^dependencies = \[(.*)\]", path.read_text(encoding="utf-8"), re.M)
        assert needs.split(", ")[0] == oldest, path
    assert f"dependencies = [{oldest}]" in (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")


def test_every_distribution_and_every_extra_can_be_had_from_core() -> None:
    core = PROJECTS["ggplug-core"]["optional-dependencies"]
    given = {re.sub(r"[<>=].*", "", need) for needs in core.values() for need in needs}
    for name, project in PROJECTS.items():
        if name not in ("ggplug-core", "ggplug-simt"):  # which brings no device of its own
            assert [need for need in given if need.partition("[")[0] == name], name
            for extra in project.get("optional-dependencies", {}):
                assert f"{name}[{extra}]" in {re.sub(r"[<>=].*", "", need) for need in core[extra]}


def test_what_is_offered_where_a_device_is_missing_brings_devices() -> None:
    for extra, needs in PROJECTS["ggplug-core"]["optional-dependencies"].items():
        brought = {re.split(r"[\[<>=]", need)[0] for need in needs} & set(PROJECTS)
        there = [name for name in brought if "ggplug.backends.v2" in PROJECTS[name].get("entry-points", {})]
        assert bool(there) == (extra not in NO_DEVICES), extra


def test_remedies_and_pages_name_extras_of_core_that_there_are() -> None:
    extras = set(PROJECTS["ggplug-core"]["optional-dependencies"])
    found: dict[str, set[str]] = {}
    for pattern in ("*.md", "docs/*.md", "examples/**/*.md", "ggplug-*/*.md", "ggplug-*/src/**/*.py"):
        for path in ROOT.glob(pattern):
            for name, named in re.findall(r"(?<!/)(ggplug-\w+)\[([a-z0-9,]+)\]", path.read_text(encoding="utf-8")):
                found.setdefault(name, set()).update(named.split(","))
    assert found.keys() == {"ggplug-core"}
    assert found["ggplug-core"] <= extras


def test_all_is_everything_that_can_be_installed_together() -> None:
    core = PROJECTS["ggplug-core"]["optional-dependencies"]
    (everything,) = core["all"]
    assert everything.startswith("ggplug-core[")
    named = set(everything.removeprefix("ggplug-core[").rstrip("]").split(","))
    # CuPy's builds exclude each other and need their vendor's driver; Ray is large, and for clusters alone; "test" is
    # for authors of backends.
    assert set(core) - named == {"all", "test", "cuda12", "cuda13", "rocm7", "ray"}
