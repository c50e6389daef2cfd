"""The metadata of a file as a read-only mapping that decodes a value when it is read.

A vocabulary is hundreds of thousands of strings; most programs that open a model read a few numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal

import numpy as np

from ggplug.errors import GGUFError
from ggplug.gguf.format import SCALAR_CODES, SCALAR_DTYPES, Value, ValueType


@dataclass(frozen=True, slots=True)
class Entry:
    """Position and types of a value.  The parser has checked that all of it lies inside the file.

    ``types`` is (scalar type,), or (ARRAY, item type), or (ARRAY, ARRAY, ...) for nested arrays: then the types
    of the first items, as deep as there are any.
    """

    types: tuple[ValueType, ...]
    position: int


class Metadata(Mapping[str, Value]):
    """Key to value, in the file's order.  Accessing a string that is not UTF-8 raises :class:`GGUFError`."""

    def __init__(
        self, buffer: Any, path: str | PathLike[str], order: Literal["<", ">"], entries: dict[str, Entry]
    ) -> None:
        self._buffer = buffer
        self._path = path
        self._order = order
        self._entries = entries
        self._decoded: dict[str, Value] = {}
        self._u64 = struct.Struct(order + "Q")

    def __getitem__(self, key: str) -> Value:
        if key not in self._decoded:
            entry = self._entries[key]
            self._decoded[key], _ = self._value(key, entry.types[0], entry.position)
        return self._decoded[key]

    def head(self, key: str, count: int) -> tuple[Value, int]:
        """A value, arrays cut to their first ``count`` items, and the number of all items (1 for no array).

        Decodes no more than these items, however long the array is.
        """
        entry = self._entries[key]
        if entry.types[0] is not ValueType.ARRAY:
            return self[key], 1
        (length,) = self._u64.unpack_from(self._buffer, entry.position + 4)
        if key in self._decoded:
            return self._decoded[key][:count], length  # type: ignore[index]
        return self._array(key, entry.position, count)[0], length

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __repr__(self) -> str:
        return f"<metadata of {self._path}: {len(self)} keys>"

    def detach(self, header_bytes: int) -> None:
        """Stop using the file's map: keep a copy of its first ``header_bytes`` for values that are not decoded yet."""
        self._buffer = bytes(self._buffer[:header_bytes]) if len(self._decoded) < len(self._entries) else b""

    def _value(self, key: str, type: ValueType, position: int) -> tuple[Value, int]:
        if type is ValueType.STRING:
            return self._string(key, position)
        if type is ValueType.ARRAY:
            return self._array(key, position)
        code = self._order + SCALAR_CODES[type]
        (scalar,) = struct.unpack_from(code, self._buffer, position)
        end = position + struct.calcsize(code)
        return (bool(scalar) if type is ValueType.BOOL else scalar), end

    def _string(self, key: str, position: int) -> tuple[str, int]:
        start = position + 8
        end: int = start + self._u64.unpack_from(self._buffer, position)[0]
        try:
            return str(self._buffer[start:end], "utf-8"), end
        except UnicodeDecodeError as error:
            raise GGUFError(
                f"{self._path}: the value of {key!r} is not UTF-8 at byte {start + error.start}",
                path=self._path,
                position=start + error.start,
                field=key,
                rule="utf-8",
            ) from None

    def _array(self, key: str, position: int, most: int | None = None) -> tuple[Value, int]:
        number, count = struct.unpack_from(self._order + "IQ", self._buffer, position)
        count = count if most is None else min(count, most)
        item, position = ValueType(number), position + 12
        if item in SCALAR_DTYPES:
            native = SCALAR_DTYPES[item]
            end = position + count * native.itemsize
            stored = np.dtype(np.uint8) if item is ValueType.BOOL else native.newbyteorder(self._order)
            # A slice is a copy, so the value does not keep the file mapped.
            return np.frombuffer(self._buffer[position:end], stored).astype(native), end
        items: list[Any] = []
        for _ in range(count):
            value, position = self._value(key, item, position)
            items.append(value)
        return items, position
