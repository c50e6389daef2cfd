"""Writing GGUF files: declare everything, then write once, one tensor in memory at a time."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ggplug import types
from ggplug.errors import GGUFError, ParameterError, ShapeError, TypeMismatchError
from ggplug.gguf.format import (
    ALIGNMENT_KEY,
    ARCHITECTURE_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_NAME_BYTES,
    MAX_RANK,
    READABLE_VERSIONS,
    SPLIT_COUNT_KEY,
    SPLIT_NO_KEY,
    SPLIT_TENSORS_KEY,
    VERSION,
    Endian,
    ValueType,
    is_foreign,
    padding,
    swap_byte_order,
)
from ggplug.gguf.reader import GGUFReader
from ggplug.gguf.split import shard_path
from ggplug.gguf.values import Order, encode_string, encode_value, infer_types, utf8
from ggplug.system.copying import Uncopied
from ggplug.system.files import NewFile, naming
from ggplug.types import Type
from ggplug.values.geometry import is_possible

#: A tensor's bytes: an array, anything with the buffer protocol, or a function that is called when the tensor is
#: written and returns one of these, or a list or iterator of them.
TensorData: TypeAlias = Any

_PLAIN = {t.dtype: t for t in types.TYPES if not t.is_quantized and t is not types.BF16}
_SPLIT_KEYS = (SPLIT_NO_KEY, SPLIT_COUNT_KEY, SPLIT_TENSORS_KEY)


@dataclass
class _Tensor:
    name: str
    type: Type
    ne: tuple[int, ...]
    nbytes: int
    data: TensorData


@dataclass
class _Shard:
    tensors: list[_Tensor] = field(default_factory=list)
    nbytes: int = 0


class GGUFWriter(Uncopied):
    """Writes a model to ``path``, completely or not at all.

    The files are written under temporary names in the same folder and renamed when they are complete, so a reader never
    sees half a model, and a failure leaves an existing file as it was; :class:`ggplug.system.files.NewFile` says what
    happens to symbolic links.  As a context manager the writer writes at the end of the block, unless the block
    raised::

        with GGUFWriter("model.gguf", arch="llama") as writer:
            writer.add("llama.block_count", 12)
            writer.add_tensor("token_embd.weight", embeddings)

    Args:
        path: the file; of a split model the name without the part ``-00001-of-00003``.
        arch: value of ``general.architecture``.
        endian: byte order of everything in the file.
        alignment: of the tensors, in bytes; a power of two.  Written as ``general.alignment`` unless it is 32.
        version: 2 or 3; they differ in the number only.
        split_max_tensors: maximal number of tensors in a file; 0 means one file for all.
        split_max_size: maximal number of tensor bytes in a file; 0 means one file for all.

    Raises:
        ParameterError: an argument is out of range.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        arch: str | None = None,
        endian: Endian = "little",
        alignment: int = DEFAULT_ALIGNMENT,
        version: int = VERSION,
        *,
        split_max_tensors: int = 0,
        split_max_size: int = 0,
    ) -> None:
        if version not in READABLE_VERSIONS:
            raise ParameterError(f"GGUF version {version} cannot be written", got=version, wanted=READABLE_VERSIONS)
        if endian not in ("little", "big"):
            raise ParameterError(f"the byte order is 'little' or 'big', not {endian!r}", got=endian)
        if alignment <= 0 or alignment & (alignment - 1) or alignment >= 1 << 32:
            raise ParameterError(f"the alignment {alignment} is not a power of two below 2**32", got=alignment)
        if split_max_tensors < 0 or split_max_size < 0:
            raise ParameterError("the limits for splitting cannot be negative", got=(split_max_tensors, split_max_size))
        self.path = Path(path)
        self.endian = endian
        self.alignment = alignment
        self.version = version
        self.split_max_tensors = split_max_tensors
        self.split_max_size = split_max_size
        self._order: Order = "<" if endian == "little" else ">"
        self._pairs: dict[str, bytes] = {}
        self._tensors: dict[str, _Tensor] = {}
        self._written: list[Path] | None = None
        if arch is not None:
            self.add(ARCHITECTURE_KEY, arch)
        if alignment != DEFAULT_ALIGNMENT:
            self._pairs[ALIGNMENT_KEY] = self._pair(ALIGNMENT_KEY, alignment, (ValueType.UINT32,))

    # -- metadata ----------------------------------------------------------------------------------

    def add(self, key: str, value: Any, type: ValueType | Sequence[ValueType] | None = None) -> None:
        """Add a metadata pair, or replace the value of a key.

        Args:
            key: dotted lower-case words by convention.
            value: number, string, bool, list, or NumPy array.
            type: its GGUF type; for arrays (ARRAY, item type).  By default the one that model files use
                for such a value, see :func:`ggplug.gguf.values.infer_types`.

        Raises:
            ParameterError: the key is empty or reserved, or the value does not fit its type.
        """
        if not key:
            raise ParameterError("a metadata key cannot be empty", got=key)
        if key in _SPLIT_KEYS:
            remedy = "pass split_max_tensors or split_max_size"
            raise ParameterError(f"the writer sets {key} itself", got=key, remedy=remedy)
        chosen = infer_types(key, value) if type is None else (type,) if isinstance(type, ValueType) else tuple(type)
        if key == ALIGNMENT_KEY:
            if value != self.alignment:
                remedy = f"pass alignment={value} to GGUFWriter"
                raise ParameterError(f"{key} is {self.alignment}, not {value}", got=value, remedy=remedy)
            chosen = (ValueType.UINT32,)
        self._pairs[key] = self._pair(key, value, chosen)

    def add_metadata_of(self, reader: GGUFReader, without: Container[str] = ()) -> None:
        """Add all pairs of an open file with their types, except those on the file itself (alignment, split)."""
        for key, value_types in reader.metadata_types.items():
            if key != ALIGNMENT_KEY and key not in _SPLIT_KEYS and key not in without:
                self.add(key, reader.metadata[key], value_types)

    def _pair(self, key: str, value: Any, value_types: tuple[ValueType, ...]) -> bytes:
        encoded = encode_value(key, value, value_types, self._order)
        return encode_string(key, self._order) + struct.pack(self._order + "I", value_types[0]) + encoded

    # -- tensors -----------------------------------------------------------------------------------

    def add_tensor(
        self, name: str, data: TensorData, type: Type | str | None = None, ne: Sequence[int] | None = None
    ) -> None:
        """Declare a tensor.  Nothing is copied: do not change ``data`` before :meth:`write` has returned.

        Args:
            name: unique, at most 63 bytes of UTF-8.
            data: the values or the encoded bytes, in the host's byte order.  For an array of a plain type, ``type`` and
                ``ne`` are not needed.  With ``type`` and ``ne``: the bytes, as an array or anything with the buffer
                protocol, or a function without arguments, called when the tensor is written, that returns such bytes
                or a list or iterator of parts of them.  With ``type`` only: uint8 [..., row bytes].
            type: the GGML type.
            ne: extents, innermost first.

        Raises:
            ParameterError: the name is taken or too long, the rank is above 4, or no array can have the extents.
            ShapeError: the bytes are not as many as ``type`` and ``ne`` say, or rows are not whole blocks.
            TypeMismatchError: no GGML type has the array's dtype.
        """
        if len(utf8(name)) > MAX_NAME_BYTES:
            raise ParameterError(f"the tensor name {name!r} is longer than {MAX_NAME_BYTES} bytes", got=name)
        if name in self._tensors:
            raise ParameterError(f"the writer already has a tensor {name!r}", got=name)
        kind = None if type is None else types.as_type(type)
        if ne is None:
            kind, extents = _describe(name, data, kind)
        elif kind is None:
            raise ParameterError(f"tensor {name}: ne needs a type", got=ne)
        else:
            extents = tuple(int(extent) for extent in ne)
        if len(extents) > MAX_RANK or any(extent < 0 for extent in extents):
            raise ParameterError(f"tensor {name}: ne must be 0 to {MAX_RANK} extents, got {extents}", got=extents)
        if not is_possible(extents):
            raise ParameterError(f"tensor {name}: ne {extents} has too many elements", got=extents)
        nbytes = int(np.prod(extents[1:], dtype=object)) * kind.row_bytes(extents[0] if extents else 1)
        if not callable(data) and (got := _bytes(data).size) != nbytes:
            message = f"tensor {name}: {kind.name} {extents} has {nbytes} bytes, got {got}"
            raise ShapeError(message, got=got, wanted=nbytes)
        self._tensors[name] = _Tensor(name, kind, extents, nbytes, data)

    # -- writing -----------------------------------------------------------------------------------

    def write(self, progress: Callable[[int, int], None] | None = None) -> list[Path]:
        """Write everything, once; returns the files' paths in order.

        Args:
            progress: called with (tensor bytes written, all tensor bytes) after each tensor.

        Raises:
            GGUFError: the model was written already, or a function returned the wrong number of bytes.
            FileKindError: the path names a device, a FIFO, a socket or a folder.
            OSError: the folder cannot be written to, or is full.
        """
        if self._written is not None:
            raise GGUFError(f"{self.path} has been written already", path=self.path)
        shards = self._shards()
        if len(shards) >= 1 << 16:
            raise ParameterError(f"a model cannot have {len(shards)} files", got=len(shards), wanted=(1 << 16) - 1)
        paths = [self.path]
        if len(shards) > 1:
            paths = [shard_path(self.path, index, len(shards)) for index in range(len(shards))]
        total = sum(tensor.nbytes for tensor in self._tensors.values())
        done = 0
        files: list[NewFile] = []
        try:
            for index, (path, shard) in enumerate(zip(paths, shards, strict=True)):
                files.append(NewFile(path))
                self._put(files[-1], self._header(index, shards))
                for tensor in shard.tensors:
                    self._write_tensor(files[-1], tensor)
                    done += tensor.nbytes
                    if progress is not None:
                        progress(done, total)
                files[-1].close(durable=True)
            for file in files:
                file.commit()
        except BaseException:
            for file in files:
                file.discard()
            raise
        self._written = paths
        return paths

    def header(self) -> bytes:
        """The bytes of a file with the metadata alone."""
        return self._header(0, [_Shard()])

    def _shards(self) -> list[_Shard]:
        shards = [_Shard()]
        for tensor in self._tensors.values():
            current = shards[-1]
            full = self.split_max_tensors and len(current.tensors) >= self.split_max_tensors
            heavy = self.split_max_size and current.nbytes + tensor.nbytes > self.split_max_size
            if current.tensors and (full or heavy):
                current = _Shard()
                shards.append(current)
            current.tensors.append(tensor)
            current.nbytes += tensor.nbytes
        return shards

    def _header(self, index: int, shards: list[_Shard]) -> bytes:
        """Everything before the tensors, with the padding that follows it."""
        order = self._order
        # The first file carries the metadata; each needs its own alignment, or it would be read wrongly.
        pairs = dict(self._pairs) if index == 0 else {k: v for k, v in self._pairs.items() if k == ALIGNMENT_KEY}
        if len(shards) > 1:
            for key, value, type in (
                (SPLIT_NO_KEY, index, ValueType.UINT16),
                (SPLIT_COUNT_KEY, len(shards), ValueType.UINT16),
                (SPLIT_TENSORS_KEY, len(self._tensors), ValueType.INT32),
            ):
                pairs[key] = self._pair(key, value, (type,))
        tensors = shards[index].tensors
        parts = [MAGIC, struct.pack(order + "IQQ", self.version, len(tensors), len(pairs)), *pairs.values()]
        offset = 0
        for tensor in tensors:
            parts.append(encode_string(tensor.name, order))
            rank = len(tensor.ne)
            parts.append(struct.pack(f"{order}I{rank}QIQ", rank, *tensor.ne, tensor.type.id, offset))
            offset += tensor.nbytes + padding(tensor.nbytes, self.alignment)
        header = b"".join(parts)
        return header + bytes(padding(len(header), self.alignment))

    @staticmethod
    def _put(target: NewFile, data: Any) -> None:
        with naming(target.path):
            target.file.write(data)

    def _write_tensor(self, target: NewFile, tensor: _Tensor) -> None:
        written = 0
        for piece in _pieces(tensor.data):
            raw = _bytes(piece)
            written += raw.size
            if written > tensor.nbytes:
                break
            if is_foreign(self.endian):
                if raw.size % tensor.type.block_bytes:
                    raise GGUFError(
                        f"tensor {tensor.name}: a part of {raw.size} bytes is not a whole number of "
                        f"{tensor.type.name} blocks, so its byte order cannot be reversed",
                        path=self.path,
                        field=f"tensor {tensor.name}",
                    )
                raw = swap_byte_order(raw, tensor.type)
            self._put(target, raw.data)
        if written != tensor.nbytes:
            raise GGUFError(
                f"tensor {tensor.name}: its function returned {written} bytes, not {tensor.nbytes}",
                path=self.path,
                field=f"tensor {tensor.name}",
                got=written,
                wanted=tensor.nbytes,
            )
        self._put(target, bytes(padding(tensor.nbytes, self.alignment)))

    # -- life --------------------------------------------------------------------------------------

    def __enter__(self) -> GGUFWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._written is None:
            self.write()

    def __repr__(self) -> str:
        return f"<GGUFWriter {self.path}: {len(self._pairs)} keys, {len(self._tensors)} tensors>"


def _describe(name: str, data: TensorData, type: Type | None) -> tuple[Type, tuple[int, ...]]:
    """Type and extents of the tensor that an array holds."""
    if callable(data):
        raise ParameterError(f"tensor {name}: if data is a function, give type and ne, too", got=data)
    array = np.asarray(data)
    if type is None or array.dtype != np.uint8:
        found = type if type is not None and type.dtype == array.dtype else None
        found = found or _PLAIN.get(array.dtype.newbyteorder("="))
        if found is None or (type is not None and found is not type):
            wanted = f"a {type.name} tensor" if type else "a tensor without type="
            raise TypeMismatchError(f"tensor {name}: {array.dtype} is not the dtype of {wanted}", got=array.dtype)
        return found, array.shape[::-1]
    if array.ndim == 0 or array.shape[-1] % type.block_bytes:
        message = f"tensor {name}: rows of {array.shape[-1:]} bytes are not whole blocks of {type.name}"
        raise ShapeError(message, got=array.shape, wanted=type.block_bytes)
    blocks = array.shape[-1] // type.block_bytes
    return type, (blocks * type.block_size, *array.shape[:-1][::-1])


def _pieces(data: TensorData) -> Iterator[Any]:
    """The parts of a tensor's bytes, one at a time."""
    if callable(data):
        data = data()
    if isinstance(data, Iterator | list | tuple):
        yield from data
    else:
        yield data


def _bytes(data: Any) -> npt.NDArray[np.uint8]:
    """``data`` as contiguous bytes in the host's byte order; copied only if it is not in that form."""
    if not isinstance(data, np.ndarray):
        try:
            data = np.asarray(memoryview(data))
        except TypeError:
            raise TypeMismatchError(f"a {type(data).__name__} holds no bytes", got=type(data)) from None
    native = data.astype(data.dtype.newbyteorder("="), copy=False)
    return np.ascontiguousarray(native).reshape(-1).view(np.uint8)
