"""The files that a model's weights are mapped from, watched: what was cut off a mapped file must not be read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from ggplug.errors import ModelError

SAMPLES, SAMPLE_BYTES = 256, 4096
"""Of a file, for what tells it from others."""


class MappedFiles:
    """Files that must not become shorter while their maps are read.  Holds them open: :meth:`close`."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._held: list[tuple[Path, int, int]] = []
        try:
            for path in paths:
                descriptor = os.open(path, os.O_RDONLY)
                self._held.append((path, descriptor, os.fstat(descriptor).st_size))
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Raises ModelError if a file is shorter than when it was opened: reading its map would end the process."""
        for path, descriptor, size in self._held:
            now = os.fstat(descriptor).st_size
            if now < size:
                raise ModelError(
                    f"{path} was cut from {size} to {now} bytes while the model is in use", got=now, wanted=size,
                    remedy="restore the file and load it again",
                )  # fmt: skip

    def digest(self) -> str:
        """Of their sizes, and of their bytes: all of a small file, samples of a large one."""
        found = hashlib.sha256()
        for _, descriptor, size in self._held:
            found.update(str(size).encode())
            for sample in range(SAMPLES):
                found.update(os.pread(descriptor, SAMPLE_BYTES, max(size - SAMPLE_BYTES, 0) * sample // (SAMPLES - 1)))
        return found.hexdigest()

    def close(self) -> None:
        """Lets go of the files."""
        for _, descriptor, _ in self._held:
            os.close(descriptor)
        self._held.clear()
