"""Reading GGUF files, in place in a memory map."""

from __future__ import annotations

import contextlib
import mmap as memory_map
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.errors import FileKindError, GGUFError
from ggplug.gguf.format import (
    SPLIT_COUNT_KEY,
    SPLIT_NO_KEY,
    SPLIT_TENSORS_KEY,
    Endian,
    TensorInfo,
    Value,
    ValueType,
    is_foreign,
    swap_byte_order,
)
from ggplug.gguf.metadata import Metadata
from ggplug.gguf.parse import Header, parse_header
from ggplug.gguf.split import sibling_path
from ggplug.system.copying import Uncopied
from ggplug.system.files import naming, open_regular


class FileMap(memory_map.mmap):
    """The map of a file, which knows the file.  ``path``: its absolute path."""

    path: Path


def origin(raw: npt.NDArray[Any]) -> tuple[Path, int] | None:
    """The file in whose map an array lies, and the offset there; None for an array in other memory."""
    base: Any = raw
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if not isinstance(base, FileMap):
        return None
    start = raw.__array_interface__["data"][0]
    return base.path, start - np.frombuffer(base, np.uint8).__array_interface__["data"][0]


class GGUFReader(Uncopied):
    """A GGUF model, mapped into memory read-only (``gguf_init_from_file``).

    Of a split model, open the first file; the reader opens the others in the same folder.

    Opening reads the header only, and checks all of it: :mod:`ggplug.gguf.parse` says what is accepted.  The file
    must not be changed while it is open.

    Args:
        path: the file.
        follow_splits: ``False`` opens a single file of a split model, any of them.

    Raises:
        GGUFError: a file is malformed, truncated, of version 1, no regular file, or part of a split model that is not
            complete.
        OSError: a file is missing or cannot be read.

    Attributes:
        path: the file that was opened.
        paths: all files of the model in order; (path,) unless it is split.
        version: GGUF version, 2 or 3.
        endian: ``"little"`` or ``"big"``: the byte order of everything in the file.
        alignment: the tensors' alignment in bytes.
        metadata: key to value, decoded when accessed; see :data:`ggplug.gguf.format.Value`.  Of a split
            model, the first file's.  Usable after :meth:`close`.
        metadata_types: key to (type,), or for arrays (ARRAY, item type).
        tensors: name to description, in the files' order.
    """

    _INSTEAD = "open the file again"

    path: Path
    paths: tuple[Path, ...]
    version: int
    endian: Endian
    alignment: int
    metadata: Metadata
    metadata_types: Mapping[str, tuple[ValueType, ...]]
    tensors: dict[str, TensorInfo]

    def __init__(self, path: str | os.PathLike[str], *, follow_splits: bool = True) -> None:
        self.path = Path(path)
        first, header = _open(self.path, 0)
        self._maps = [first]
        self._header = header
        self.paths = (self.path,)
        self.version = header.version
        self.endian = header.endian
        self.alignment = header.alignment
        self.metadata = header.metadata
        self.metadata_types = header.metadata_types
        self.tensors = dict(header.tensors)
        if follow_splits:
            try:
                self._open_siblings()
            except BaseException:
                self.close()
                raise

    # -- bytes -------------------------------------------------------------------------------------

    @property
    def mmap(self) -> memory_map.mmap:
        """The map of the (first) file."""
        return self.maps[0]

    @property
    def maps(self) -> tuple[memory_map.mmap, ...]:
        """The maps of all files; ``TensorInfo.shard`` is an index into them."""
        if not self._maps:
            raise GGUFError(f"{self.path}: the reader is closed", path=self.path, rule="closed")
        return tuple(self._maps)

    def data(self, tensor: TensorInfo | str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes as they lie in the file: a read-only view of the map, uint8 [nbytes].

        The view keeps its map alive; it stays valid after :meth:`close`.
        """
        info = self.tensors[tensor] if isinstance(tensor, str) else tensor
        if not info.nbytes:
            return np.empty(0, np.uint8)
        return np.frombuffer(self.maps[info.shard], np.uint8, info.nbytes, info.offset)

    def array(self, tensor: TensorInfo | str) -> npt.NDArray[Any]:
        """The tensor in the host's byte order.

        Returns:
            For plain types an array of ``info.shape`` (BF16 as its bits, uint16); for block types its rows,
            uint8 [..., row bytes].  A read-only view of the map if the file has the host's byte order, else a copy.
        """
        info = self.tensors[tensor] if isinstance(tensor, str) else tensor
        raw = self.data(info)
        if is_foreign(self.endian):
            raw = swap_byte_order(raw, info.type)
        if not info.type.is_quantized:
            return raw.view(info.type.dtype).reshape(info.shape)
        return raw.reshape(*info.shape[:-1], info.type.row_bytes(info.ne[0]))

    def release(self, tensor: TensorInfo | str) -> None:
        """Release the pages of a tensor that was read; reading it again reads the file again.

        Pages that also hold bytes of other tensors are kept.
        """
        if not hasattr(memory_map, "MADV_DONTNEED"):
            return
        info = self.tensors[tensor] if isinstance(tensor, str) else tensor
        start = -(-info.offset // memory_map.PAGESIZE) * memory_map.PAGESIZE
        size = (info.offset + info.nbytes) // memory_map.PAGESIZE * memory_map.PAGESIZE - start
        if size > 0:
            self.maps[info.shard].madvise(memory_map.MADV_DONTNEED, start, size)

    # -- life --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the files.  The map of a file is freed when no view of it is left."""
        if not self._maps:
            return
        self._header.metadata.detach(self._header.size)
        for opened in self._maps:
            # Where views of the map exist, it is freed with the last of them.
            with contextlib.suppress(BufferError):
                opened.close()
        self._maps = []

    def __enter__(self) -> GGUFReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        files = f" in {len(self.paths)} files" if len(self.paths) > 1 else ""
        return (
            f"<GGUFReader {self.path}{files}: version {self.version}, {len(self.metadata)} keys, "
            f"{len(self.tensors)} tensors>"
        )

    # -- split models ------------------------------------------------------------------------------

    def _open_siblings(self) -> None:
        count = self._split_number(self.metadata, SPLIT_COUNT_KEY, self.path, default=1)
        if count <= 1:
            return
        number = self._split_number(self.metadata, SPLIT_NO_KEY, self.path, default=0)
        first = sibling_path(self.path, 0, count)
        if first is None:
            raise _split_error(
                self.path,
                SPLIT_COUNT_KEY,
                f"the file is one of {count} files of a model; its name is not NAME-00001-of-{count:05d}.gguf, so the "
                "others cannot be found",
                remedy="rename the files to their original names, or open this one with follow_splits=False",
            )
        if number != 0:
            raise _split_error(
                self.path,
                SPLIT_NO_KEY,
                f"the file is number {number + 1} of {count} of a split model",
                remedy=f"open the first one, {first}, or this one with follow_splits=False",
            )
        paths = [self.path]
        for index in range(1, count):
            path = sibling_path(self.path, index, count)
            assert path is not None
            if not path.exists():
                raise _split_error(self.path, SPLIT_COUNT_KEY, f"the model has {count} files, but {path} is missing")
            self._add_shard(path, index, count)
            paths.append(path)
        self.paths = tuple(paths)
        if SPLIT_TENSORS_KEY in self.metadata:
            wanted = self._split_number(self.metadata, SPLIT_TENSORS_KEY, self.path, default=0)
            if wanted != len(self.tensors):
                raise _split_error(
                    self.path, SPLIT_TENSORS_KEY, f"the files hold {len(self.tensors)} tensors together, not {wanted}"
                )

    def _add_shard(self, path: Path, index: int, count: int) -> None:
        opened, header = _open(path, index)
        self._maps.append(opened)
        if header.endian != self.endian:
            raise _split_error(path, "version", f"the file is {header.endian}-endian, the first {self.endian}-endian")
        for key, wanted in ((SPLIT_NO_KEY, index), (SPLIT_COUNT_KEY, count)):
            got = self._split_number(header.metadata, key, path, default=-1)
            if got != wanted:
                raise _split_error(path, key, f"{key} is {got if got >= 0 else 'missing'}, not {wanted}")
        for name, info in header.tensors.items():
            if name in self.tensors:
                other = sibling_path(self.path, self.tensors[name].shard, count)
                raise _split_error(path, f"tensor {name}", f"the tensor {name!r} is also in {other}")
            self.tensors[name] = info

    @staticmethod
    def _split_number(metadata: Mapping[str, Value], key: str, path: Path, default: int) -> int:
        value = metadata.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise _split_error(path, key, f"{key} is not an integer")
        return value


def _split_error(path: Path, field: str, message: str, remedy: str | None = None) -> GGUFError:
    return GGUFError(f"{path}: {message}", path=path, field=field, rule="split", remedy=remedy)


def _open(path: Path, shard: int) -> tuple[memory_map.mmap, Header]:
    try:
        file = open_regular(path)
    except FileKindError as error:
        raise GGUFError(error.message, path=path, field="file", rule="regular file") from None
    with file, naming(path):
        if os.fstat(file.fileno()).st_size == 0:
            raise GGUFError(f"{path}: the file is empty", path=path, position=0, field="magic", rule="truncated")
        opened = FileMap(file.fileno(), 0, access=memory_map.ACCESS_READ)
        opened.path = Path(path).absolute()
    try:
        return opened, parse_header(opened, path, shard)
    except BaseException:
        opened.close()
        raise
