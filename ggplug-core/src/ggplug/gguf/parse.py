"""Parses and checks the header of one GGUF file.  Every length and count is compared with the file's size first.

The parser accepts what both ggml's ``gguf.cpp`` and the ``gguf`` Python package accept.  Where they differ:

* Nested arrays are read (the package does, ggml does not), up to a depth of 8.
* Tensors may lie in any order and with gaps (the package); ggml wants them packed in the order of their
  descriptions.  They have to be aligned, inside the file and disjoint; the package checks none of that, ggml all.
* Tensor names may be longer than ggml's 63 bytes (the package).
* Rank above 4, an empty key, an item type that does not exist on an empty array, and a row that is not a whole number
  of blocks are refused (ggml).
* A product of extents of 2**60 or more is refused, zeros counted as ones; ggml's limit is 2**63 bytes, and an empty
  tensor may have any extents there.
* A number or string that reaches beyond the end of the file is refused (ggml); the package reads some as empty.
* Keys and tensor names have to be UTF-8 (the package).  String values are checked when they are accessed.
* A boolean is true unless its byte is 0 (both).
* Types are those of :mod:`ggplug.types`.  The package may know fewer.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, NoReturn

from ggplug import types
from ggplug.errors import GGUFError, ParameterError
from ggplug.gguf.format import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_ARRAY_DEPTH,
    MAX_RANK,
    READABLE_VERSIONS,
    SCALAR_DTYPES,
    VERSION,
    Endian,
    TensorInfo,
    ValueType,
    padding,
)
from ggplug.gguf.metadata import Entry, Metadata
from ggplug.values.geometry import is_possible

# The fewest bytes of a metadata pair (key of one byte, value of one) and of a tensor description (no name, no
# dimensions): the counts in the header times these must fit into the file.
_SMALLEST_PAIR = 8 + 1 + 4 + 1
_SMALLEST_TENSOR = 8 + 4 + 4 + 8


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the tensors' bytes.  ``size`` is the header's own, without the padding that follows."""

    version: int
    endian: Endian
    alignment: int
    metadata: Metadata
    metadata_types: dict[str, tuple[ValueType, ...]]
    tensors: dict[str, TensorInfo]
    size: int


def parse_header(buffer: Any, path: str | PathLike[str], shard: int = 0) -> Header:
    """Read the header of the file whose bytes are ``buffer``.

    Raises:
        GGUFError: with ``path``, ``position``, ``field``, and ``rule``: the broken rule, in one or two words.
    """
    return _Parser(buffer, path, shard).header()


class _Parser:
    """A position in the file, and methods that read there and advance it."""

    def __init__(self, buffer: Any, path: str | PathLike[str], shard: int) -> None:
        self.buffer = buffer
        self.path = path
        self.shard = shard
        self.size = len(buffer)
        self.position = 0
        self.order: Literal["<", ">"] = "<"
        self._u32 = struct.Struct("<I")
        self._u64 = struct.Struct("<Q")

    # -- primitives --------------------------------------------------------------------------------

    def fail(self, rule: str, message: str, field: str, position: int | None = None, **more: Any) -> NoReturn:
        where = self.position if position is None else position
        raise GGUFError(
            f"{self.path}: {message} (at byte {where})",
            path=self.path,
            position=where,
            field=field,
            rule=rule,
            **more,
        )

    def need(self, n_bytes: int, field: str) -> None:
        if n_bytes > self.size - self.position:
            self.fail(
                "truncated",
                f"the file ends inside {field}: {n_bytes} bytes wanted, {self.size - self.position} left",
                field,
                got=self.size - self.position,
                wanted=n_bytes,
            )

    def u32(self, field: str) -> int:
        self.need(4, field)
        value: int = self._u32.unpack_from(self.buffer, self.position)[0]
        self.position += 4
        return value

    def u64(self, field: str) -> int:
        self.need(8, field)
        value: int = self._u64.unpack_from(self.buffer, self.position)[0]
        self.position += 8
        return value

    def string(self, field: str) -> str:
        length = self.u64(f"the length of {field}")
        self.need(length, field)
        raw = bytes(self.buffer[self.position : self.position + length])
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail("utf-8", f"{field} is not UTF-8", field, self.position + error.start)
        self.position += length
        return text

    def value_type(self, field: str) -> ValueType:
        number = self.u32(f"the type of {field}")
        try:
            return ValueType(number)
        except ValueError:
            message = f"{field} has the unknown value type {number}"
            self.fail("value type", message, field, self.position - 4, got=number)

    # -- the parts of the header -------------------------------------------------------------------

    def header(self) -> Header:
        version = self.version()
        n_tensors = self.count("the number of tensors", _SMALLEST_TENSOR)
        n_pairs = self.count("the number of metadata pairs", _SMALLEST_PAIR)
        entries: dict[str, Entry] = {}
        for index in range(n_pairs):
            self.pair(index, entries)
        metadata = Metadata(self.buffer, self.path, self.order, entries)
        alignment = self.alignment(metadata, entries)
        found: dict[str, tuple[TensorInfo, int]] = {}
        for index in range(n_tensors):
            self.tensor(index, alignment, found)
        size = self.position
        return Header(
            version=version,
            endian="little" if self.order == "<" else "big",
            alignment=alignment,
            metadata=metadata,
            metadata_types={key: entry.types for key, entry in entries.items()},
            tensors=self.place(found, alignment),
            size=size,
        )

    def version(self) -> int:
        self.need(4, "the magic")
        magic = bytes(self.buffer[:4])
        if magic != MAGIC:
            self.fail("magic", f"not a GGUF file: it begins with {magic!r}, not {MAGIC!r}", "magic", got=magic)
        self.position = 4
        version = self.u32("the version")
        if version & 0xFFFF == 0 and version:
            # A small number whose low half is zero was written in the other byte order.
            self.order = ">"
            self._u32, self._u64 = struct.Struct(">I"), struct.Struct(">Q")
            self.position = 4
            version = self.u32("the version")
        if version == 1:
            remedy = "convert the model again with a current converter"
            self.fail("version", "GGUF version 1 is no longer supported", "version", 4, got=1, remedy=remedy)
        if version not in READABLE_VERSIONS:
            self.fail("version", f"unknown GGUF version {version}; versions 2 to {VERSION} can be read", "version", 4)
        return version

    def count(self, field: str, smallest: int) -> int:
        count = self.u64(field)
        if count > (self.size - self.position) // smallest:
            self.fail(
                "truncated", f"{field} is {count}, more than fit into the file", field, self.position - 8, got=count
            )
        return count

    def pair(self, index: int, entries: dict[str, Entry]) -> None:
        start = self.position
        key = self.string(f"the key of metadata pair {index}")
        if not key:
            self.fail("empty key", f"metadata pair {index} has an empty key", f"metadata pair {index}", start)
        if key in entries:
            self.fail("duplicate key", f"the key {key!r} occurs twice", key, start)
        type = self.value_type(key)
        position = self.position
        entries[key] = Entry((type, *self.skip_value(type, key, 0)), position)

    def skip_value(self, type: ValueType, key: str, depth: int) -> tuple[ValueType, ...]:
        """Skip a value; return the types of an array's items, of their items, and so on."""
        if type is ValueType.STRING:
            self.skip_strings(1, key)
            return ()
        if type is not ValueType.ARRAY:
            self.need(SCALAR_DTYPES[type].itemsize, key)
            self.position += SCALAR_DTYPES[type].itemsize
            return ()
        if depth == MAX_ARRAY_DEPTH:
            self.fail("depth", f"the arrays of {key!r} are nested more than {MAX_ARRAY_DEPTH} deep", key)
        item = self.value_type(f"the items of {key}")
        count = self.u64(f"the length of {key}")
        if item is ValueType.STRING:
            self.skip_strings(count, key)
            return (item,)
        if item is not ValueType.ARRAY:
            self.need(count * SCALAR_DTYPES[item].itemsize, key)
            self.position += count * SCALAR_DTYPES[item].itemsize
            return (item,)
        self.need(count * 12, key)
        inner: tuple[ValueType, ...] = ()
        for index in range(count):
            found = self.skip_value(item, key, depth + 1)
            if index and found != inner:
                self.fail("type", f"the arrays in {key!r} have items of several types", key)
            inner = found
        return (item, *inner)

    def skip_strings(self, count: int, key: str) -> None:
        self.need(count * 8, key)
        buffer, size, position, unpack = self.buffer, self.size, self.position, self._u64.unpack_from
        last = size - 8
        for _ in range(count):
            if position > last:
                break
            position += 8 + unpack(buffer, position)[0]
        else:
            if position <= size:
                self.position = position
                return
        self.fail("truncated", f"a string of {key!r} reaches beyond the end of the file", key)

    def alignment(self, metadata: Metadata, entries: dict[str, Entry]) -> int:
        entry = entries.get(ALIGNMENT_KEY)
        if entry is None:
            return DEFAULT_ALIGNMENT
        value = metadata[ALIGNMENT_KEY]
        if entry.types != (ValueType.UINT32,) or not isinstance(value, int):
            named = entry.types[0].name
            self.fail("alignment", f"{ALIGNMENT_KEY} is {named}, not UINT32", ALIGNMENT_KEY, entry.position, got=named)
        if value == 0 or value & (value - 1):
            self.fail(
                "alignment", f"{ALIGNMENT_KEY} is {value}, not a power of two", ALIGNMENT_KEY, entry.position, got=value
            )
        return value

    def tensor(self, index: int, alignment: int, found: dict[str, tuple[TensorInfo, int]]) -> None:
        """Read one tensor description and the position of its offset, which is relative to the data section."""
        start = self.position
        name = self.string(f"the name of tensor {index}")
        field = f"tensor {name}"
        if name in found:
            self.fail("duplicate tensor", f"two tensors are called {name!r}", field, start)
        rank = self.u32(f"the rank of {field}")
        if rank > MAX_RANK:
            problem = f"{field} has {rank} dimensions, more than {MAX_RANK}"
            self.fail("rank", problem, field, self.position - 4, got=rank)
        ne = tuple(self.u64(f"the shape of {field}") for _ in range(rank))
        if not is_possible(ne):
            problem = f"the shape {ne} of {field} has too many elements"
            self.fail("shape", problem, field, self.position - 8 * rank, got=ne)
        number = self.u32(f"the type of {field}")
        try:
            type = types.by_id(number)
        except ParameterError as error:
            self.fail("tensor type", f"{field}: {error.message}", field, self.position - 4, got=number)
        row = ne[0] if ne else 1
        if row % type.block_size:
            self.fail(
                "shape",
                f"{field} has rows of {row}, not a whole number of {type.name} blocks of {type.block_size}",
                field,
                start,
                got=ne,
            )
        nbytes = math.prod(ne) // type.block_size * type.block_bytes
        offset = self.u64(f"the offset of {field}")
        if offset % alignment:
            message = f"{field} has offset {offset}, not a multiple of {alignment}"
            self.fail("offset", message, field, self.position - 8, got=offset)
        found[name] = TensorInfo(name, type, ne, offset, nbytes, self.shard), self.position - 8

    def place(self, found: dict[str, tuple[TensorInfo, int]], alignment: int) -> dict[str, TensorInfo]:
        """Make offsets relative to the file's beginning; check that tensors lie in the file and do not overlap."""
        start = self.position + padding(self.position, alignment)
        if found and start > self.size:
            self.fail("truncated", f"the file ends before its tensors begin at byte {start}", "tensor data", self.size)
        placed = {
            name: TensorInfo(name, info.type, info.ne, start + info.offset, info.nbytes, self.shard)
            for name, (info, _) in found.items()
        }
        previous: TensorInfo | None = None
        for info in sorted(placed.values(), key=lambda info: (info.offset, info.nbytes)):
            field, end, position = f"tensor {info.name}", info.offset + info.nbytes, found[info.name][1]
            if end > self.size:
                message = f"{field} ends at byte {end}, beyond the end of the file at {self.size}"
                self.fail("truncated", message, field, position, got=self.size, wanted=end)
            if previous is not None and info.nbytes and info.offset < previous.offset + previous.nbytes:
                self.fail("overlap", f"{field} overlaps tensor {previous.name}", field, position)
            if info.nbytes:
                previous = info
        return placed
