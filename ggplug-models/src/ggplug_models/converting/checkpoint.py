"""The tensors of a folder's safetensors files, one file or several: mapped, in the types that they are stored in.

A file is the length of a header (8 bytes, little-endian), the header, and the bytes that it tells of.  The header is a
JSON object: name to ``dtype``, ``shape`` and ``data_offsets`` (https://github.com/huggingface/safetensors, "Format").
The library of that name has no NumPy type for bfloat16, so files are read here.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug import types
from ggplug.errors import ModelError
from ggplug.files import open_regular
from ggplug.types import Type
from ggplug_models.converting.folder import Folder, unreadable
from ggplug_models.values import Values

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_TYPES = {"F64": types.F64, "F32": types.F32, "F16": types.F16, "BF16": types.BF16}
_SIZES = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1, "C64": 8}
_LONGEST_HEADER = 100_000_000
"""Bytes; the format's own limit."""


class Stored(NamedTuple):
    """Where a tensor lies.  ``type``: None if its values are no floats, or of a kind that is not read."""

    file: _File
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def type(self) -> Type | None:
        return _TYPES.get(self.dtype)


class _File:
    """A safetensors file, mapped.  Raises ModelError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with unreadable(path), open_regular(path) as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            with unreadable(path):
                self.tensors = dict(self._header())
        except BaseException:
            self._map.close()
            raise

    def _header(self) -> Iterator[tuple[str, Stored]]:
        size = len(self._map)
        length = int.from_bytes(self._map[:8], "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise ModelError(f"{self.path} cannot be read: it is no safetensors file, or is cut off")
        header = json.loads(self._map[8 : 8 + length])
        if not isinstance(header, dict):
            raise ModelError(f"{self.path} cannot be read: its header is no object")
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            values = Values(entry if isinstance(entry, dict) else {}, where=f"{self.path}: tensor {name!r}")
            dtype = values.text("dtype")
            shape, offsets = (_integers(values, key) for key in ("shape", "data_offsets"))
            item = _TYPES[dtype].row_bytes(1) if dtype in _TYPES else _SIZES.get(dtype)
            if len(offsets) != 2 or not offsets[0] <= offsets[1] <= size - 8 - length:
                raise values.refused("data_offsets", f"two places in the {size - 8 - length} bytes of data")
            start, stop = (8 + length + offset for offset in offsets)
            if item is not None and stop - start != math.prod(shape) * item:
                raise values.refused("data_offsets", f"{math.prod(shape) * item} bytes apart")
            yield name, Stored(self, dtype, tuple(shape), start, stop)

    def array(self, stored: Stored) -> npt.NDArray[Any]:
        """The values, [shape], in the map; bfloat16 as its bits."""
        assert stored.type is not None
        dtype = np.dtype(np.uint16 if stored.type is types.BF16 else stored.type.dtype).newbyteorder("<")
        return np.frombuffer(self._map, dtype, math.prod(stored.shape), stored.start).reshape(stored.shape)

    def close(self) -> None:
        # Arrays in the map may live on in an error's frames; the map is given back with the last of them.
        with suppress(BufferError):
            self._map.close()


def _integers(values: Values, key: str) -> list[int]:
    found = values.values.get(key)
    if not isinstance(found, list) or not all(isinstance(each, int) and 0 <= each < 1 << 62 for each in found):
        raise values.refused(key, "an array of whole numbers")
    return found


class Checkpoint:
    """All tensors of a folder by name.  Raises ModelError for what is missing, cut off or not what the index says."""

    def __init__(self, folder: Folder) -> None:
        self.tensors: dict[str, Stored] = {}
        self._files: list[_File] = []
        try:
            for name, wanted in _files(folder).items():
                if name not in folder:
                    missing = f"{folder.path} has no {name}"
                    raise ModelError(missing, remedy="save the model in the safetensors format, all of its files")
                file = _File(folder.path / name)
                self._files.append(file)
                for each in wanted or file.tensors:
                    if each not in file.tensors:
                        raise ModelError(f"{file.path} has no tensor {each!r}, which {folder.path / INDEX} promises")
                    self.tensors[each] = file.tensors[each]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for file in self._files:
            file.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _files(folder: Folder) -> Mapping[str, list[str]]:
    """The files, with the tensors that the index says are in each; of a single file nothing is said."""
    if INDEX not in folder or SINGLE in folder:
        return {SINGLE: []}
    index = folder.json(INDEX).inner("weight_map")
    files: dict[str, list[str]] = {}
    for name in index.values:
        file = index.text(name)
        if Path(file).name != file:
            raise index.refused(name, "the name of a file of this folder")
        files.setdefault(file, []).append(name)
    if not files:
        raise ModelError(f"{folder.path / INDEX} names no tensors")
    return files


def to_f32(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Stored values as float32; ``uint16`` are the bits of bfloat16."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.ascontiguousarray(values, np.float32)
