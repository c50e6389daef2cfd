"""Weights that a node has itself: in a file of the same path, or in a cache of what was sent before.

Both are checked by the SHA-256 digest that the client computed of its own bytes.
"""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path

import numpy as np

from ggplug.backend import Bytes
from ggplug.cache import folder
from ggplug.saved.writer import sha256_of
from ggplug.system.files import is_unfinished, open_regular, replacing

SMALLEST = 1 << 14
"""Weights of fewer bytes are always sent: that takes one message, as asking whether the node has them does."""


def read_weight(path: str, start: int, size: int, digest: str) -> Bytes | None:
    """Bytes of a regular file from a memory map, if it is there and they have the digest; otherwise None."""
    try:
        with open_regular(path) as file:
            if start < 0 or size <= 0 or os.fstat(file.fileno()).st_size < start + size:
                return None
            opened = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError:
        return None
    raw = np.frombuffer(opened, np.uint8, size, start)
    return raw if sha256_of(raw.data) == digest else None


class WeightCache:
    """Files that are called like the digests of their bytes.  Beyond ``limit`` bytes, those used longest ago go."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.folder = folder("ray")

    def read(self, digest: str, size: int) -> Bytes | None:
        """The bytes with a digest; None if the cache lacks them, or if the file is damaged."""
        path = self._path(digest)
        if path is None:
            return None
        raw = read_weight(str(path), 0, size, digest)
        if raw is not None:
            os.utime(path)
        return raw

    def keep(self, digest: str, raw: Bytes) -> None:
        """Writes bytes, after deleting what has to go for them.  A folder that cannot be written is left alone."""
        path = self._path(digest)
        if path is None or raw.size > self.limit or sha256_of(raw.data) != digest:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._shrink(self.limit - raw.size)
            with replacing(path, 0o600) as file:
                file.write(raw.data)
        except OSError:
            return

    def _path(self, digest: str) -> Path | None:
        return self.folder / digest if self.limit > 0 and re.fullmatch("[0-9a-f]{64}", digest) else None

    def _shrink(self, limit: int) -> None:
        """Deletes what was used longest ago until at most ``limit`` bytes are left."""
        with os.scandir(self.folder) as found:
            files = [(item.stat(), item.path) for item in found if item.is_file() and not is_unfinished(item.name)]
        files.sort(key=lambda each: each[0].st_mtime)
        taken = sum(status.st_size for status, _ in files)
        for status, path in files:
            if taken <= limit:
                break
            os.unlink(path)
            taken -= status.st_size
