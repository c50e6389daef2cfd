"""Reading a model's hyperparameters from GGUF metadata, with errors that name the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggplug_models.values import Values


class Hyperparameters(Values):
    """Metadata of one architecture: ``hp.integer("block_count")`` reads ``bert.block_count``.

    Raises ModelError if the file does not say its architecture.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.architecture = Values(metadata).text("general.architecture")
        super().__init__(metadata, f"{self.architecture}.")
