"""Reads the files of a folder, with errors that name the file and the key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ggplug.errors import FileKindError, ModelError
from ggplug.system.files import open_regular
from ggplug_models.metadata.values import Values


class Folder:
    """A folder with a model.  Raises ModelError if it is not a folder."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise ModelError(f"{path} is not a folder")
        self.path = path

    def __contains__(self, name: str) -> bool:
        return (self.path / name).exists()

    def read(self, name: str) -> bytes:
        """The content of a file.  Raises ModelError."""
        path = self.path / name
        try:
            with unreadable(path), open_regular(path) as file:
                content: bytes = file.read()
        except FileNotFoundError:
            raise ModelError(f"{path.parent} has no {path.name}") from None
        return content

    def text(self, name: str) -> str | None:
        """The text of a file; None if it does not exist.  Raises ModelError."""
        path = self.path / name
        if name not in self:
            return None
        content = self.read(name)
        with unreadable(path):
            return content.decode("utf-8")

    def json(self, name: str) -> Values:
        """The JSON object in a file.  Raises ModelError."""
        path, content = self.path / name, self.read(name)
        with unreadable(path):
            value: Any = json.loads(content)
        if not isinstance(value, dict):
            raise ModelError(f"{path} does not contain a JSON object")
        return Values(value, where=str(path))

    def optional_json(self, name: str) -> Values | None:
        """The JSON object in a file; None if the file does not exist.  Raises ModelError."""
        return self.json(name) if name in self else None


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """A ``with`` block around reading a file that converts all errors to ModelError with the name of the file."""
    try:
        yield
    except (FileNotFoundError, MemoryError, ModelError):
        raise
    except FileKindError as error:
        raise ModelError(error.message) from error
    except Exception as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
