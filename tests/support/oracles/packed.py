"""Recorded models as Git stores them: compressed.  Tests read whole files, in a folder that Git ignores."""

from __future__ import annotations

import lzma
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from paths import DATA, ROOT

from ggplug.gguf import GGUFReader, GGUFWriter

FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 1, "pb": 1}]
"""For files of numbers of two bytes."""


def pack(path: Path) -> None:
    """Replaces a model's file by ``NAME.gguf.xz``."""
    path.with_suffix(".gguf.xz").write_bytes(lzma.compress(path.read_bytes(), filters=FILTERS))
    path.unlink()


def unpacked(folder: Path) -> Path:
    """A folder with the files of ``folder``, models as ``NAME.gguf``; only what has changed is written again."""
    target = ROOT / ".cache" / folder.name
    target.mkdir(parents=True, exist_ok=True)
    there = {path.name.removesuffix(".xz"): path for path in folder.iterdir()}
    for path in target.iterdir():
        if path.name not in there and ".part" not in path.name:
            path.unlink(missing_ok=True)
    for name, path in there.items():
        made, time = target / name, path.stat().st_mtime_ns
        if not made.exists() or made.stat().st_mtime_ns != time:
            part = target / f"{name}.part{os.getpid()}"  # several processes of the tests may come here
            if path.suffix == ".xz":
                part.write_bytes(lzma.decompress(path.read_bytes()))
            else:
                shutil.copyfile(path, part)
            os.utime(part, ns=(time, time))
            part.replace(made)
    return target


ORACLES, RANKERS = unpacked(DATA / "oracles"), unpacked(DATA / "rankers")


def model_file(name: str) -> Path:
    """The file of a recorded model: one of transformers, or of llama.cpp in ``tests/data``."""
    return next(path for path in (ORACLES / f"{name}.gguf", DATA / f"{name}.gguf") if path.exists())


def with_metadata(source: Path, path: Path, changed: Mapping[str, Any]) -> Path:
    """A GGUF file with other values under some keys; None: without the key."""
    with GGUFReader(source) as reader, GGUFWriter(path) as writer:
        writer.add_metadata_of(reader, without=tuple(changed))
        for key, value in changed.items():
            if value is not None:
                writer.add(key, value)
        for name, info in reader.tensors.items():
            writer.add_tensor(name, np.array(reader.data(info)), info.type, info.ne)
        writer.write()
    return path
