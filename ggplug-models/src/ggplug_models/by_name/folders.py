"""Models in the folder of a repository: its GGUF files, of which those of a split model are one."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from ggplug_models.by_name.quantisations import models_of, names_of
from ggplug_models.by_name.store import Kept


def files_in(folder: Path) -> dict[str, int]:
    """The sizes of the GGUF files in a folder and below, by path relative to it."""
    sizes = {path: _size_if_there(path) for path in folder.rglob("*") if path.name.lower().endswith(".gguf")}
    return {path.relative_to(folder).as_posix(): size for path, size in sizes.items() if size is not None}


def size_of(path: Path) -> int:
    """The size of a file; 0 if there is none."""
    return _size_if_there(path) or 0


def _size_if_there(path: Path) -> int | None:
    """The size of a file; None for a folder, and for a file that another process has deleted."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_size if stat.S_ISREG(about.st_mode) else None


def kept_in(folder: Path, name: str) -> Iterator[Kept]:
    """The models of a folder; ``name``: the folder's."""
    files = files_in(folder)
    for file in models_of(files):
        parts = names_of(file)
        there = [files[part] for part in parts if part in files]
        problem = "" if len(there) == len(parts) else f"{len(parts) - len(there)} of {len(parts)} files are missing"
        yield Kept(f"{name}:{file}", folder / file, sum(there), problem)
