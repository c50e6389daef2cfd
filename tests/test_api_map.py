"""docs/api-map.md has a row for every function of ggml's API, and every Python name in it exists."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

MAP = Path(__file__).resolve().parent.parent / "docs" / "api-map.md"
ROWS = re.findall(r"^\| `(\w+)` \| (\S+) \| (.*) \|$", MAP.read_text(encoding="utf-8"), re.M)


def resolve(path: str) -> Any:
    """The object of a dotted path; instance attributes count as their class's when its ``__init__`` sets them."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        break
    for name in parts[cut:]:
        if hasattr(found, name):
            found = getattr(found, name)
        elif inspect.isclass(found) and (
            any(name in inspect.get_annotations(c) for c in found.__mro__)
            or re.search(rf"\bself\.{name}\b(: [^=]+)? =", inspect.getsource(found.__init__))
        ):
            return name
        else:
            raise AttributeError(f"{path}: {found!r} has no {name}")
    return found


@pytest.mark.parametrize("names", ["seed_functions.txt", "ggml_functions.txt"])
def test_every_function_of_the_c_api_has_one_row(data: Path, names: str) -> None:
    """The names of ``ggml.h`` of August 2026, and of the other headers."""
    wanted = (data / names).read_text().split()
    listed = [name for name, _, _ in ROWS]
    assert sorted(listed) == sorted(set(listed))
    assert set(wanted) - set(listed) == set()


@pytest.mark.parametrize(("c_name", "python", "note"), ROWS, ids=[row[0] for row in ROWS])
def test_each_row_names_something_that_exists_or_gives_the_reason(c_name: str, python: str, note: str) -> None:
    if python in ("—", "planned"):
        assert note.strip(), f"{c_name} has no counterpart and no reason"
    else:
        resolve(python.strip("`"))
