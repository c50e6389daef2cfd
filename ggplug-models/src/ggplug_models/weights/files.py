"""Checks the files that a model's weights are mapped from: a part that was cut off must not be read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ggplug.errors import ModelError


class MappedFiles:
    """Files that must not become shorter while they are mapped.

    They stay open until :meth:`close`, or until the object is deleted.
    """

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
        """Raises ModelError if a file is shorter than when it was opened: reading its map would crash the process."""
        for path, descriptor, size in self._held:
            now = os.fstat(descriptor).st_size
            if now < size:
                raise ModelError(
                    f"{path} was truncated from {size} to {now} bytes while the model uses it",
                    got=now,
                    wanted=size,
                    remedy="restore the file and load the model again",
                )

    def close(self) -> None:
        """Closes the files."""
        while self._held:
            os.close(self._held.pop()[1])

    __del__ = close
