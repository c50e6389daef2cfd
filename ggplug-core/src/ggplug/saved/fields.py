"""Reads the metadata of a graph file: each value is checked for its type and length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from ggplug.errors import GGPlugError, GGUFError
from ggplug.gguf import GGUFReader, ValueType
from ggplug.gguf.format import ARCHITECTURE_KEY
from ggplug.gguf.parse import parse_header
from ggplug.saved.format import ARCHITECTURE, PARAMETERS

T = TypeVar("T")


class Message:
    """A graph file in memory, without values."""

    path = Path("a graph in memory")

    def __init__(self, raw: bytes) -> None:
        header = parse_header(raw, self.path)
        self.endian, self.metadata, self.metadata_types = header.endian, header.metadata, header.metadata_types


class Fields:
    """The metadata of an open graph file.  All methods raise GGUFError with the file and the field."""

    def __init__(self, reader: GGUFReader | Message) -> None:
        self.reader = reader
        if self.text(ARCHITECTURE_KEY) != ARCHITECTURE:
            found = self.text(ARCHITECTURE_KEY)
            self.fail(ARCHITECTURE_KEY, "architecture", f"the file has no graph but a model: {found!r:.100}", got=found)
        if reader.endian != "little":
            self.fail("version", "byte order", "a graph file is little-endian, this one is big-endian")

    def fail(self, field: str, rule: str, message: str, **more: Any) -> NoReturn:
        """Raises the error for a malformed file.  ``rule``: the broken rule, in one or two words."""
        path = self.reader.path
        raise GGUFError(f"{path}: {field}: {message}", path=path, field=field, rule=rule, **more)

    @contextmanager
    def refusing(self, field: str, rule: str) -> Iterator[None]:
        """A ``with`` block in which errors of shapes, types and parameters mean that the file is malformed."""
        try:
            yield
        except GGUFError:
            raise
        except GGPlugError as error:
            self.fail(field, rule, error.message)

    def text(self, key: str) -> str:
        """A string."""
        return str(self._value(key, (ValueType.STRING,)))

    def texts(self, key: str) -> list[str]:
        """An array of strings."""
        return list(self._value(key, (ValueType.ARRAY, ValueType.STRING)))

    def number(self, key: str) -> int:
        """A UINT32."""
        return int(self._value(key, (ValueType.UINT32,)))

    def numbers(self, key: str, kind: ValueType = ValueType.INT32, count: int | None = None) -> list[int]:
        """An array of integers, with ``count`` items if that is given."""
        found = self._value(key, (ValueType.ARRAY, kind))
        if count is not None and len(found) != count:
            self.fail(key, "length", f"the array has {len(found)} items, not {count}", got=len(found), wanted=count)
        return found.tolist()  # type: ignore[no-any-return]

    def parameters(self) -> dict[int, dict[str, Any]]:
        """The parameters of ops: by the number of the op, and by name."""
        kinds = {value_types: kind for kind, value_types in PARAMETERS.items()}
        found: dict[int, dict[str, Any]] = {}
        for key, value_types in self.reader.metadata_types.items():
            if key.startswith("graph.op."):
                number, _, name = key.removeprefix("graph.op.").partition(".")
                if not (number.isascii() and number.isdecimal() and len(number) < 10 and name):
                    self.fail(key, "key", "the key of a parameter is graph.op.NUMBER.NAME")
                if value_types not in kinds:
                    self.fail(key, "value type", "no parameter has such a value", got=value_types)
                value: Any = self.reader.metadata[key]
                found.setdefault(int(number), {})[name] = (
                    tuple(value.tolist()) if isinstance(value, np.ndarray) else value
                )
        return found

    def earlier(self, field: str, items: Sequence[T], position: int) -> T:
        """The item at a position; there is none after the ones read so far, and none at a negative one."""
        if not 0 <= position < len(items):
            self.fail(field, "position", f"there is no {position} before what refers to it", got=position)
        return items[position]

    def _value(self, key: str, wanted: tuple[ValueType, ...]) -> Any:
        found = self.reader.metadata_types.get(key)
        if found != wanted:
            names = [" of ".join(each.name for each in some) for some in (wanted, found or ())]
            self.fail(
                key, "value type", f"the value is {names[1] or 'missing'}, not {names[0]}", got=found, wanted=wanted
            )
        return self.reader.metadata[key]
