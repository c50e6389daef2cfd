"""From the name of a model to the path of its file: the only place where names become paths."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from ggplug.errors import ModelError
from ggplug_models.by_name.hub import Hub
from ggplug_models.by_name.lm_studio import LMStudio
from ggplug_models.by_name.ollama import Ollama
from ggplug_models.by_name.store import Found, Judge, Kept, Store, not_found

log = logging.getLogger("ggplug")

STORES: dict[str, Store] = {store.prefix: store for store in (Hub(), Ollama(), LMStudio())}
"""By the prefix of their names."""


def path_of(model: str | os.PathLike[str], judge: Judge | None = None) -> Path:
    """The path of a model's file, of a split model the first one.

    ``model``: a name, which is text that begins with ``hf:``, ``ollama:`` or ``lmstudio:``; anything else is a path.
    A model of the hub is downloaded unless its cache has it.  Which file was chosen, and why, is logged.  ``judge``: as
    for :meth:`.Store.find`.

    Raises ModelNotFoundError, DownloadError, ParameterError; ModelError if a library is missing or Ollama's data are
    damaged; OSError.
    """
    if not isinstance(model, str) or not is_name(model):
        return Path(model)
    found = find(model, judge)
    log.info("%s is %s: %s", model, found.path.name, found.why)
    return found.path


def is_name(text: str) -> bool:
    """Whether a text names a model, rather than a path."""
    prefix, colon, _ = text.partition(":")
    return bool(colon) and prefix in STORES


def find(name: str, judge: Judge | None = None) -> Found:
    """The file of a named model, and the reason why it was chosen; raises as :func:`path_of`."""
    store, rest = _store(name)
    return store.find(rest, judge)


def remove(name: str) -> int:
    """Deletes a named model from this machine, and returns the number of bytes that this freed.

    Raises ModelNotFoundError, OSError; ParameterError for a model that another program keeps.
    """
    store, rest = _store(name)
    return store.remove(rest)


def kept() -> Iterator[Kept]:
    """The named models on this machine."""
    for store in STORES.values():
        try:
            yield from store.kept()
        except (ModelError, OSError) as error:  # the library of the hub is missing, or a folder cannot be read
            log.warning("%s: %s", store.title, error)


def _store(name: str) -> tuple[Store, str]:
    prefix, _, rest = name.partition(":")
    if prefix not in STORES or not rest:
        names = ("hf:OWNER/REPOSITORY", "ollama:NAME", "lmstudio:OWNER/REPOSITORY")
        raise not_found(f"{name!r} is no name of a model", name, names)
    return STORES[prefix], rest
