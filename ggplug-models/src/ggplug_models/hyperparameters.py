"""Reading a model's hyperparameters from GGUF metadata, with errors that name the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, overload

from ggplug.errors import ModelError

_REQUIRED: Any = object()


class Hyperparameters:
    """Metadata of one architecture: ``hp.integer("block_count")`` reads ``bert.block_count``."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        architecture = metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise ModelError("the file does not say its architecture (key general.architecture)", got=architecture)
        self.architecture = architecture
        self.metadata = metadata

    def integer(self, key: str, default: int = _REQUIRED, *, at_least: int = 1) -> int:
        """An integer of at least ``at_least``.  Raises ModelError."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise ModelError(f"{self._name(key)} must be an integer of at least {at_least}, got {value!r}", got=value)
        return value

    def number(self, key: str, default: float = _REQUIRED) -> float:
        """A float.  Raises ModelError."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ModelError(f"{self._name(key)} must be a number, got {value!r}", got=value)
        return float(value)

    @overload
    def text(self, key: str) -> str: ...
    @overload
    def text(self, key: str, default: str | None) -> str | None: ...
    def text(self, key: str, default: str | None = _REQUIRED) -> str | None:
        """A string.  Raises ModelError."""
        value = self._get(key, default)
        if value is not None and not isinstance(value, str):
            raise ModelError(f"{self._name(key)} must be a string, got {value!r}", got=value)
        return value

    def boolean(self, key: str, default: bool = _REQUIRED) -> bool:
        """A truth value.  Raises ModelError."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self._name(key)} must be a truth value, got {value!r}", got=value)
        return value

    def _name(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def _get(self, key: str, default: Any) -> Any:
        value = self.metadata.get(self._name(key), default)
        if value is _REQUIRED:
            raise ModelError(f"the file lacks {self._name(key)}, which the architecture needs", got=None)
        return value
