"""Models in several files: the names of the files.

The files of a split model are ``NAME-00001-of-00003.gguf`` and so on (``llama_split_path``).  Each is a GGUF
file of its own with its own tensors; the first also holds the model's metadata.
"""

from __future__ import annotations

import re
from pathlib import Path

_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def shard_path(path: Path, index: int, count: int) -> Path:
    """The name of file ``index`` (from 0) of ``count`` for a model called ``path``."""
    return path.with_name(_name(path.stem, index, count))


def sibling_path(path: Path, index: int, count: int) -> Path | None:
    """The path of file ``index`` (from 0) of the model of the file ``path``; ``None`` if it is not named so."""
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        return None
    return path.with_name(_name(match["stem"], index, count))


def paths_of_model(path: Path) -> list[Path]:
    """The paths of all files of the model that a file belongs to, as its name says; ``[path]`` if it is not split."""
    match = _SHARD_NAME.fullmatch(path.name)
    count = 0 if match is None else int(match["count"])
    if match is None or not count:
        return [path]
    return [path.with_name(_name(match["stem"], index, count)) for index in range(count)]


def _name(stem: str, index: int, count: int) -> str:
    return f"{stem}-{index + 1:05d}-of-{count:05d}.gguf"
