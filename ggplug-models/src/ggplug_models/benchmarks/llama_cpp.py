"""llama.cpp as a peer, through the PyPI package llama-cpp-python."""

# mypy: disable-error-code="import-not-found,import-untyped,no-any-return,unused-ignore"

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class LlamaCpp:
    """A model that llama.cpp has loaded; it reads tokens behind those that it has read."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @classmethod
    def of(cls, path: Path, n_ctx: int, threads: int) -> LlamaCpp | None:
        """The model of a file; None if the package is not installed."""
        if importlib.util.find_spec("llama_cpp") is None:
            return None
        import llama_cpp

        return cls(
            llama_cpp.Llama(
                str(path), n_ctx=n_ctx, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
            )
        )

    def clear(self) -> None:
        """Forgets what was read."""
        self._model.reset()
        self._model._ctx.kv_cache_clear()

    def read(self, ids: Sequence[int]) -> None:
        """Reads tokens, together, and computes the logits after the last."""
        self._model.eval(ids)

    def close(self) -> None:
        """Gives its memory back."""
        self._model.close()
