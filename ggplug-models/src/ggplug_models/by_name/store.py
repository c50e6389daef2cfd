"""Where named models are kept: the interface of the hub's cache and of other programs' folders."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from ggplug.errors import ModelNotFoundError, ParameterError


@dataclass(frozen=True)
class Found:
    """The file of a model: of a split model the first one.  ``why``: the reason why this file was chosen."""

    path: Path
    why: str


@dataclass(frozen=True)
class Kept:
    """A model on this machine.

    ``name``: by which it can be loaded.  ``path``: its (first) file.  ``nbytes``: the size of all of its files.
    ``problem``: why it cannot be loaded, or empty.
    """

    name: str
    path: Path
    nbytes: int
    problem: str = ""


class Judge(Protocol):
    """Says which models the devices can hold."""

    @property
    def names(self) -> str:
        """The devices, for people."""

    def holds(self, nbytes: int, path: Callable[[], Path]) -> bool:
        """Whether they can hold a model whose files have so many bytes.

        ``path``: returns a file with the header of the model's file.  Raises what reading the header raises.
        """


class Store(ABC):
    """Finds and lists models.  Names are given without the prefix."""

    prefix: ClassVar[str]
    title: ClassVar[str]

    @abstractmethod
    def find(self, name: str, judge: Judge | None = None) -> Found:
        """The file of a model.  ``judge``: by which it is chosen if the name leaves the quantisation open.

        Raises ModelNotFoundError, DownloadError, ModelError, ParameterError, OSError.
        """

    @abstractmethod
    def kept(self) -> Iterator[Kept]:
        """The models on this machine."""

    @abstractmethod
    def remove(self, name: str) -> int:
        """Deletes a model, and returns how many bytes that freed.  Raises ModelNotFoundError, ParameterError."""


def repository_and_wanted(prefix: str, name: str) -> tuple[str, str]:
    """``OWNER/REPO`` and what follows it, a file or a quantisation, or nothing.  Raises ParameterError."""
    repository, _, wanted = name.partition(":")
    parts = repository.split("/")
    if len(parts) != 2 or not all(parts) or set(parts) & {".", ".."} or (":" in name and not wanted):
        raise ParameterError(
            f"{prefix}:{name} must be {prefix}:OWNER/REPOSITORY, {prefix}:OWNER/REPOSITORY:QUANTISATION or "
            f"{prefix}:OWNER/REPOSITORY:FILE.gguf",
            got=name,
        )
    return repository, wanted


def not_found(what: str, name: str, there: Iterable[str]) -> ModelNotFoundError:
    """The error for a name that is none of ``there``; it lists these, of more than eight the nearest."""
    known = sorted(there)
    listed = difflib.get_close_matches(name, known, 8, 0)
    more = f" and {len(known) - len(listed)} more" if len(known) > len(listed) else ""
    return ModelNotFoundError(
        what, got=name, wanted=known, remedy=f"there are: {', '.join(listed)}{more}" if listed else None
    )
