"""Which of a repository's models is the best that the devices can hold: only the headers of files are downloaded."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ggplug.errors import GGPlugError, GGUFError
from ggplug.gguf.parse import parse_header
from ggplug_models.by_name.quantisations import is_plain, names_of
from ggplug_models.by_name.store import Judge
from ggplug_models.by_name.transfer import RemoteFile, Repository

log = logging.getLogger("ggplug")

FIRST, MOST = 1 << 20, 1 << 28
"""How many bytes of a file are read first, and at most, for its header."""


def best_that_fits(
    repository: Repository, files: Mapping[str, RemoteFile], judge: Judge, models: Sequence[str]
) -> tuple[str, str] | None:
    """The best of several models that the devices can hold, by its first file, and why it was chosen.

    Larger files are better, and files that are not quantised come last.  None if a header cannot be read, or says what
    ggplug does not know.
    """
    sizes = {model: sum(files[name].size for name in names_of(model) if name in files) for model in models}
    order = sorted(models, key=lambda model: (is_plain(model), -sizes[model], model))
    try:
        with tempfile.TemporaryDirectory(prefix="ggplug-headers-", ignore_cleanup_errors=True) as folder:
            for number, model in enumerate(order):
                if judge.holds(sizes[model], partial(_with_headers, repository, files, model, Path(folder))):
                    others = ("", "; a better one does not fit")[number] if number < 2 else "; better ones do not fit"
                    return model, f"the best of {len(models)} models that fits into {judge.names}{others}"
            smallest = min(models, key=lambda model: (sizes[model], model))
            return smallest, f"the smallest of {len(models)} models, as none fits into {judge.names}"
    except (GGPlugError, OSError) as error:
        log.info("%s: which model fits is not known: %s", repository.name, error)
        return None


def _with_headers(repository: Repository, files: Mapping[str, RemoteFile], model: str, folder: Path) -> Path:
    """Files like those of a model, with their headers alone; returns the first one.  Nothing is stored for weights."""
    paths = []
    for name in names_of(model):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(_header(repository, files[name]))
            file.truncate(files[name].size)
        paths.append(path)
    return paths[0]


def _header(repository: Repository, file: RemoteFile) -> bytes:
    """The first bytes of a file, with its whole header.  Raises GGUFError, DownloadError."""
    count = FIRST
    while True:
        found = repository.beginning(file, min(count, file.size))
        try:
            parse_header(found, file.path)
        except GGUFError as error:
            # An error about the place of a tensor's bytes comes after the whole header.
            if error.fields.get("rule") != "truncated" or len(found) >= min(file.size, MOST):
                raise
            if not str(error.field).startswith("tensor "):
                count *= 4
                continue
        return found
