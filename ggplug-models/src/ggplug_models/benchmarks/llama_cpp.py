"""llama.cpp as a peer, with the PyPI package llama-cpp-python."""

# mypy: disable-error-code="import-not-found,import-untyped,no-any-return,unused-ignore"

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class LlamaCpp:
    """A model in llama.cpp, as a :class:`~.generation.Reader`."""

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
        """Removes all tokens."""
        self._model.reset()
        self._model._ctx.kv_cache_clear()

    def read(self, ids: Sequence[int]) -> None:
        """Appends tokens in one step, and computes the logits after the last."""
        self._model.eval(ids)

    def close(self) -> None:
        """Releases the memory."""
        self._model.close()
