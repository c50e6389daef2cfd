"""Each map of a C API has a row for every function of it, and every Python name in it exists."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

import pytest
from named import resolve
from paths import DATA, ROOT


@dataclass(frozen=True)
class Map:
    """A page with rows of a C name, a Python name and a note; and the functions that its headers declare."""

    page: str
    headers: str

    @property
    def text(self) -> str:
        return (ROOT / "docs" / self.page).read_text(encoding="utf-8")

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        return re.findall(r"^\| `([\w*]+)` \| (\S+) \| (.*) \|$", self.text, re.M)

    @property
    def recorded(self) -> str:
        return (DATA / self.headers).read_text(encoding="utf-8")

    @property
    def functions(self) -> list[str]:
        return re.findall(r"\b(?:ggml|gguf|llama)_\w+", self.recorded)


GGML = Map("api-map.md", "ggml_headers.txt")
LLAMA = Map("llama-map.md", "llama_headers.txt")
ROWS = [row for each in (GGML, LLAMA) for row in each.rows]
every_map = pytest.mark.parametrize("map", [GGML, LLAMA], ids=lambda map: map.page)


@every_map
def test_the_page_names_the_headers_and_the_version_that_it_is_held_against(map: Map) -> None:
    head = map.text.partition("\n## ")[0]
    version = re.findall(r"that (\S+ \d+\.\d+\.\d+\S*) declares", map.recorded)[0]
    headers = re.findall(r"^([\w-]+\.h):$", map.recorded, re.M)
    assert headers
    for named in (version, *headers):
        assert named in head


@every_map
def test_every_function_of_the_c_api_has_one_row(map: Map) -> None:
    """A row with a star stands for all functions of that form that have no row of their own."""
    functions = map.functions
    listed = [name for name, _, _ in map.rows]
    assert sorted(listed) == sorted(set(listed))
    starred = [name for name in listed if "*" in name]
    rest = [name for name in functions if name not in listed]
    assert [name for name in rest if sum(fnmatchcase(name, star) for star in starred) != 1] == []
    assert [star for star in starred if not any(fnmatchcase(name, star) for name in rest)] == []
    assert set(listed) - set(starred) - set(functions) == set()


@pytest.mark.parametrize(("c_name", "python", "note"), ROWS, ids=[row[0] for row in ROWS])
def test_each_row_names_something_that_exists_or_gives_the_reason(c_name: str, python: str, note: str) -> None:
    if python == "—":
        assert note.strip(), f"{c_name} has no counterpart and no reason"
    else:
        resolve(python.strip("`"))


@pytest.mark.parametrize(("c_name", "python", "note"), [row for row in ROWS if re.search(r"`\w+=", row[2])])
def test_a_parameter_that_a_note_names_is_one(c_name: str, python: str, note: str) -> None:
    parameters = inspect.signature(resolve(python.strip("`"))).parameters
    assert set(re.findall(r"`(\w+)=(?!=)", note)) <= set(parameters)


def test_features_that_notes_name_are_those_of_some_processor() -> None:
    sets = pytest.importorskip("ggplug_cpu.instruction_sets")
    named = {feature: c_name for c_name, _, note in ROWS for feature in re.findall(r"`has\('([^']+)'\)`", note)}
    unknown = {named[feature] for feature in set(named) - set(sets.X86_64.extensions) - set(sets.AARCH64.extensions)}
    # Of other processors LLVM's names count, which only LLVM built for them knows.
    assert unknown == {"ggml_cpu_has_riscv_v", "ggml_cpu_has_vsx", "ggml_cpu_has_vxe"}


def test_the_cpu_device_is_told_from_others_of_its_kind() -> None:
    import ggplug as gg
    from ggplug.testing import FakeDevice

    backend = pytest.importorskip("ggplug_cpu.backend")
    ((python, condition),) = [
        (row, re.findall(r"`([^`]+)`", note)[0]) for name, row, note in ROWS if name == "ggml_backend_is_cpu"
    ]
    assert resolve(python.strip("`")) is backend.CpuBackend
    devices = (gg.device("CPU"), FakeDevice("Other0", kind=gg.DeviceKind.CPU))
    assert {device.kind for device in devices} == {gg.DeviceKind.CPU}
    given = {"CpuBackend": backend.CpuBackend}
    assert [eval(condition, given | {"backend": device.init()}) for device in devices] == [True, False]
