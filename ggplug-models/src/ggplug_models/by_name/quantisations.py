"""Which file of a repository is loaded: by its name, by a quantisation, or by llama.cpp's order of preference."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ggplug.gguf.split import paths_of_model
from ggplug_models.by_name.store import not_found

PREFERRED = ("Q4_K_M", "Q8_0")
"""What is taken if the name has no quantisation, the first that there is; after these the first file."""

NO_MODELS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""Parts of the names of files that are no model of their own: projectors, importance matrices, draft heads."""


PLAIN = ("F32", "F16", "BF16", "FP16", "FP32")
"""Parts of the names of files whose weights are not quantised."""


@dataclass(frozen=True)
class Choice:
    """The files of a model, in order, and the reason why these were chosen."""

    files: tuple[str, ...]
    why: str


Best = Callable[[Sequence[str]], tuple[str, str] | None]
"""Chooses among the first files of several models: one of them and why, or None if it cannot say."""


def choose(files: Iterable[str], wanted: str, where: str, best: Best | None = None) -> Choice:
    """Chooses a model among the files of a repository, whose name is ``where``.

    ``wanted``: the path of a file, a quantisation such as ``Q4_K_M`` in any case, or empty.  Of a split model any file
    names all of them.  ``best``: chooses if that leaves several; without it, :data:`PREFERRED` does.  Raises
    ModelNotFoundError, also for a split model of which a file is missing.
    """
    there = set(files)
    if wanted.lower().endswith(".gguf"):
        if wanted not in there:
            raise not_found(f"{where} has no file {wanted}", wanted, filter(_is_gguf, there))
        return _whole(wanted, there, where, "the name says so")
    models = [file for file in models_of(there) if _is_model(file)]
    fitting = best(models) if best is not None and not wanted and len(models) > 1 else None
    if fitting is not None:
        return _whole(fitting[0], there, where, fitting[1])
    for quantisation in [wanted] if wanted else PREFERRED:
        found = [file for file in models if _has(file, quantisation)]
        if found:
            others = "" if len(found) == 1 else f", the first of {len(found)} files"
            why = "the name says so" if wanted else "which is preferred"
            return _whole(found[0], there, where, f"{quantisation.upper()}, {why}{others}")
    if wanted:
        raise not_found(f"{where} has no model with the quantisation {wanted}", wanted, models)
    if not models:
        error = not_found(f"{where} has no model in a GGUF file", where, filter(_is_gguf, there))
        error.remedy = error.remedy or "ggplug convert makes one of a folder with safetensors files"
        raise error
    one = "the only model" if len(models) == 1 else f"the first file, as there is neither {' nor '.join(PREFERRED)}"
    return _whole(models[0], there, where, one)


def is_plain(file: str) -> bool:
    """Whether a name says that weights are not quantised.

    Such files are hardly better than the largest quantised ones, and twice as large.
    """
    return any(_has(file, each) for each in PLAIN)


def models_of(files: Iterable[str]) -> list[str]:
    """The GGUF files, sorted; of a split model only the first one."""
    return sorted(file for file in files if _is_gguf(file) and names_of(file)[0] == file)


def names_of(file: str) -> tuple[str, ...]:
    """The names of all files of the model that a file belongs to."""
    return tuple(path.as_posix() for path in paths_of_model(Path(file)))


def _whole(file: str, there: set[str], where: str, why: str) -> Choice:
    names = names_of(file)
    missing = [name for name in names if name not in there]
    if missing:
        what = (
            f"{where} has only {len(names) - len(missing)} of the {len(names)} files of {file}; {missing[0]} is missing"
        )
        raise not_found(what, file, ())
    return Choice(names, why if len(names) == 1 else f"{why}; {len(names)} files")


def _has(file: str, quantisation: str) -> bool:
    """Whether a part of a file's path is a quantisation, such as ``Q4_K_M``."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(quantisation)}(?=[-./])", file, re.I) is not None


def _is_gguf(file: str) -> bool:
    return file.lower().endswith(".gguf")


def _is_model(file: str) -> bool:
    return not any(part in file.rpartition("/")[2] for part in NO_MODELS)
