"""Importance matrices: how much the error of each column of a matrix counts, measured by running a model over text.

llama.cpp writes them as GGUF files, with the sums of squares of the inputs of a matrix and their number, or in an
older format of its own (``.dat``).  Both are converted to mean squares, by the names of the weights.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ggplug import types
from ggplug.errors import GGUFError, ModelError
from ggplug.gguf.format import MAGIC
from ggplug.gguf.reader import GGUFReader
from ggplug.system.files import naming, open_regular

SUMS, COUNTS = ".in_sum2", ".counts"
"""What follows the names of weights in the names of tensors: sums of squares of inputs, and numbers of inputs."""
DATASETS, CHUNKS, CHUNK_SIZE = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"


@dataclass(frozen=True)
class Importance:
    """The contents of an importance file.

    ``entries``: float32 by the name of a tensor, [ne0], or for a tensor of several matrices [ne0] for each, one after
    the other.  ``datasets``: names of the texts; ``chunks``: how many chunks of them were read, 0 if unknown.
    """

    path: Path
    entries: dict[str, npt.NDArray[np.float32]]
    datasets: tuple[str, ...] = field(default=())
    chunks: int = 0


def read_importance(path: str | os.PathLike[str]) -> Importance:
    """Reads an importance file of either format.

    Raises GGUFError for a GGUF file that is malformed or no importance matrix, ModelError for any other file that is
    no importance matrix, FileKindError for a path that names no regular file, and other OSErrors.
    """
    source = Path(path)
    with open_regular(source) as file, naming(source):
        beginning = file.read(len(MAGIC))
        data = beginning if beginning == MAGIC else beginning + file.read()
    if data == MAGIC:
        with GGUFReader(source) as reader:
            found = _read_gguf(source, reader)
    else:
        found = _read_old(source, data)
    for name, entry in found.entries.items():
        if not np.isfinite(entry).all():
            raise ModelError(f"{source}: the importance of {name} is not finite")
        if (entry < 0).any():
            raise ModelError(f"{source}: the importance of {name} is negative")
    return found


# -- GGUF ----------------------------------------------------------------------------------------------


def _read_gguf(path: Path, reader: GGUFReader) -> Importance:
    entries = {}
    for name, info in reader.tensors.items():
        if name.endswith(COUNTS):
            _numbers(path, reader, name.removesuffix(COUNTS) + SUMS)
        if not name.endswith(SUMS):
            continue
        weight = name.removesuffix(SUMS)
        sums, counts = _numbers(path, reader, name), _numbers(path, reader, weight + COUNTS).reshape(-1, 1)
        if not counts.size or sums.size % counts.size:
            raise GGUFError(
                f"{path}: {name} has {sums.size} numbers, which is no multiple of its {counts.size} counts",
                path=path,
                field=f"tensor {name}",
                got=info.ne,
            )
        means = sums.reshape(counts.size, -1) / np.where(counts > 0, counts, 1)
        # no inputs: all columns count the same
        entries[weight] = np.where(counts > 0, means, np.float32(1)).astype(np.float32).reshape(-1)
    if not entries:
        raise GGUFError(
            f"{path} holds no importance matrix: it has no tensor NAME{SUMS}",
            path=path,
            field="tensors",
            remedy="ggplug imatrix writes such files",
        )
    datasets = reader.metadata.get(DATASETS, [])
    chunks = reader.metadata.get(CHUNKS, 0)
    if not isinstance(datasets, list) or not all(isinstance(each, str) for each in datasets):
        raise GGUFError(f"{path}: {DATASETS} must be a list of strings", path=path, field=DATASETS)
    if not isinstance(chunks, int) or isinstance(chunks, bool):
        raise GGUFError(f"{path}: {CHUNKS} must be an integer", path=path, field=CHUNKS)
    return Importance(path, entries, tuple(map(str, datasets)), chunks)


def _numbers(path: Path, reader: GGUFReader, name: str) -> npt.NDArray[np.float32]:
    info = reader.tensors.get(name)
    if info is None or info.type is not types.F32:
        what = "is missing" if info is None else f"is {info.type.name}, not f32"
        raise GGUFError(f"{path}: the tensor {name} {what}", path=path, field=f"tensor {name}")
    found: npt.NDArray[np.float32] = reader.array(info)
    return found


# -- the older format ----------------------------------------------------------------------------------


class _Cursor:
    """Reads numbers and texts one after the other."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path, self.data, self.at = path, data, 0

    def take(self, size: int, what: str) -> bytes:
        if size < 0 or size > len(self.data) - self.at:
            raise ModelError(
                f"{self.path} is no importance matrix, or is truncated: {what} at byte {self.at} would take {size} "
                f"bytes, and {len(self.data) - self.at} are left",
                remedy="ggplug imatrix writes such files",
            )
        start, self.at = self.at, self.at + size
        return self.data[start : self.at]

    def integer(self, what: str) -> int:
        (found,) = struct.unpack("<i", self.take(4, what))
        return int(found)

    def text(self, what: str) -> str:
        return self.take(self.integer(f"the length of {what}"), what).decode("utf-8", "backslashreplace")


def _read_old(path: Path, data: bytes) -> Importance:
    """Parses the older format.

    It has the number of entries; for each the length and text of the name, calls, number of values, values; then chunks
    and the dataset.
    """
    cursor = _Cursor(path, data)
    entries = {}
    count = cursor.integer("the number of entries")
    if count < 1:
        raise ModelError(f"{path} is no importance matrix: it has {count} entries")
    for _ in range(count):
        name = cursor.text("a name")
        calls = cursor.integer(f"the calls of {name}")
        size = cursor.integer(f"the size of {name}")
        sums = np.frombuffer(cursor.take(4 * size, f"the numbers of {name}"), "<f4").astype(np.float32)
        entries[name] = sums / np.float32(calls) if calls > 0 else sums
    if cursor.at == len(data):
        return Importance(path, entries)
    chunks = cursor.integer("the number of chunks")
    return Importance(path, entries, (cursor.text("the dataset"),), max(chunks, 0))
