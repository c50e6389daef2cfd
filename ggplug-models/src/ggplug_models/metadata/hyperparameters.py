"""Reads a model's hyperparameters from GGUF metadata; errors name the key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ggplug_models.metadata.values import REQUIRED, Values


class Hyperparameters(Values):
    """Metadata of one architecture: ``hp.integer("block_count")`` reads ``bert.block_count``.

    Raises ModelError if the file names no architecture.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.architecture = Values(metadata).text("general.architecture")
        super().__init__(metadata, f"{self.architecture}.")

    def of_blocks(
        self, key: str, n_layer: int, default: int | Sequence[int] = REQUIRED, *, at_least: int = 1
    ) -> list[int]:
        """An integer for each block; the file has one for all blocks, or an array.  Raises ModelError."""
        if isinstance(self.values.get(self.prefix + key), np.ndarray):
            found = self.integers(key, length=n_layer).tolist()
            if min(found, default=at_least) < at_least:
                raise self.refused(key, f"integers of at least {at_least}")
            return [int(each) for each in found]
        found = self.integer(key, None if default is not REQUIRED else REQUIRED, at_least=at_least)
        if found is None:
            found = default
        return [found] * n_layer if isinstance(found, int) else list(found)

    def numbers_of_blocks(self, key: str, n_layer: int, *, at_least: float = -math.inf) -> list[float]:
        """A number for each block; the file has one for all blocks, or an array.  Raises ModelError."""
        if not isinstance(self.values.get(self.prefix + key), np.ndarray):
            return [self.number(key, at_least=at_least)] * n_layer
        found = self.numbers(key, length=n_layer)
        if min(found, default=at_least) < at_least:
            raise self.refused(key, f"numbers of at least {at_least:g}")
        return found

    def flags(self, key: str, n_layer: int) -> list[bool] | None:
        """A boolean for each block; None if the file has no array under this key.  Raises ModelError."""
        value = self.values.get(self.prefix + key)
        if value is None or not isinstance(value, (list, np.ndarray)):
            return None
        fits = value.dtype.kind in "biu" if isinstance(value, np.ndarray) else all(isinstance(v, bool) for v in value)
        if len(value) != n_layer or not fits:
            raise self.refused(key, f"an array of {n_layer} booleans")
        return [bool(each) for each in value]
