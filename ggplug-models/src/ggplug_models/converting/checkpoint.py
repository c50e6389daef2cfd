"""Reads the tensors of the safetensors files in a folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug import types
from ggplug.errors import ModelError
from ggplug.system.files import open_regular
from ggplug.types import Type
from ggplug_models.checks.requirements import required
from ggplug_models.converting.folder import Folder, unreadable

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_TYPES = {"F64": types.F64, "F32": types.F32, "F16": types.F16, "BF16": types.BF16}

_PIECE = 1 << 22
"""Number of elements that are compared at a time."""


class Stored(NamedTuple):
    """A tensor in a file.  ``type``: None if its ``dtype`` is not a supported floating point type."""

    path: Path
    file: Any
    name: str
    type: Type | None
    dtype: str
    shape: tuple[int, ...]

    def array(self) -> npt.NDArray[Any]:
        """A copy of the values, in ``shape``.  Raises ModelError."""
        with unreadable(self.path):
            values: npt.NDArray[Any] = self.file.get_tensor(self.name)
        return values

    def equals(self, other: Stored) -> bool:
        """Whether both have the same shape and values, of which some rows are read at a time.  Raises ModelError.

        Those of a quantised tensor are taken to be others.
        """
        if self == other or self.shape != other.shape or not {self.dtype, other.dtype} <= _TYPES.keys():
            return self == other
        n, step = self.shape[0], max(1, _PIECE // math.prod(self.shape[1:]))
        with unreadable(self.path), unreadable(other.path):
            slices = [each.file.get_slice(each.name) for each in (self, other)]
            return all(
                np.array_equal(*(each[start : min(start + step, n)] for each in slices)) for start in range(0, n, step)
            )


class Checkpoint:
    """All tensors of a folder, by name.  Raises ModelError for missing or damaged files, and a wrong index.

    ``single``: the name of the file, if there is only one.
    """

    def __init__(self, folder: Folder, single: str = SINGLE) -> None:
        self.path = folder.path
        self.tensors: dict[str, Stored] = {}
        self._files = ExitStack()
        try:
            for name, wanted in _files(folder, single).items():
                if name not in folder:
                    missing = f"{folder.path} has no {name}"
                    raise ModelError(missing, remedy="save the model in the safetensors format, with all its files")
                found = self._open(folder.path / name)
                for each in wanted or found:
                    if each not in found:
                        path = folder.path / name
                        raise ModelError(f"{path} has no tensor {each!r}, which {folder.path / INDEX} lists")
                    self.tensors[each] = found[each]
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path) -> dict[str, Stored]:
        with required("safetensors", "reading safetensors files"):
            import ml_dtypes  # noqa: F401  # adds the dtype bfloat16 to NumPy
            from safetensors import safe_open
        with unreadable(path), open_regular(path):
            file = self._files.enter_context(safe_open(path, framework="numpy"))
        found = {}
        for name in file.keys():  # noqa: SIM118  # it is not a mapping
            stored = file.get_slice(name)
            dtype = stored.get_dtype()
            found[name] = Stored(path, file, name, _TYPES.get(dtype), dtype, tuple(stored.get_shape()))
        return found

    def close(self) -> None:
        self._files.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _files(folder: Folder, single: str) -> Mapping[str, list[str]]:
    """The files, each with its tensors in the index; a single file has no index."""
    if INDEX not in folder or single in folder:
        return {single: []}
    index = folder.json(INDEX).inner("weight_map")
    files: dict[str, list[str]] = {}
    for name in index.values:
        file = index.text(name)
        if Path(file).name != file:
            raise index.refused(name, "the name of a file of this folder")
        files.setdefault(file, []).append(name)
    if not files:
        raise ModelError(f"{folder.path / INDEX} lists no tensors")
    return files
