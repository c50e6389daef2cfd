"""Arguments of commands that are the file of a model: a path, or a name such as ``hf:OWNER/REPO``.

What precedes the colon of a name is the name of an entry point of the group ``ggplug.model_names``: a function that
returns the path for a name.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import click

from ggplug.cli.streams import own_output_only
from ggplug.registry.discover import Installed, scan
from ggplug.registry.entry_points import imported, unavailable

GROUP = "ggplug.model_names"


@dataclass(frozen=True)
class ModelFile:
    """The file of a model.  ``name``: what the user wrote."""

    path: Path
    name: str

    @property
    def title(self) -> str:
        """The name of the model, for people: that of the file if it is that of a model, else what the user wrote."""
        if self.path.suffix == ".gguf" or self.name == str(self.path):
            return self.path.stem
        return self.name.partition(":")[2]

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __str__(self) -> str:
        return self.name


class ModelFileType(click.Path):
    """Converts an argument to a :class:`ModelFile`.  ``exists``: whether click refuses a path without a file."""

    name = "model"

    def __init__(self, *, exists: bool = True) -> None:
        super().__init__(exists=exists, dir_okay=not exists, path_type=Path)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> ModelFile:
        if isinstance(value, ModelFile):
            return value
        name = str(value)
        path = named(name)
        return ModelFile(Path(os.fsdecode(super().convert(name, param, ctx))) if path is None else path, name)


def named(name: str) -> Path | None:
    """The path of the model of that name; None for a path.  Raises PluginError, and what the function raises."""
    found = naming(name)
    if found is None:
        return None
    what = f"the model {name}"
    with own_output_only():
        path = imported(found, what)(name)
    if not isinstance(path, (str, os.PathLike)):
        raise unavailable(found, what, f"{found.value} returned a {type(path).__name__}, no path")
    return Path(path)


def naming(name: str) -> Installed | None:
    """The entry point of the function for a name; None for a path."""
    prefix = re.match(r"([a-z]\w+):", name)
    return None if prefix is None else next((each for each in scan(GROUP) if each.name == prefix[1]), None)
