"""What ``ggplug quantize --report`` measures: a model, and files with other types made from it, on a text."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ggplug.cli.quantize_report import Cost
from ggplug_models.commands.lines import content_of
from ggplug_models.loading import load_language_model
from ggplug_models.perplexity import in_chunks, perplexities
from ggplug_models.quality import base_logits
from ggplug_models.quality.base_logits import BaseLogits
from ggplug_models.quality.divergence import divergences

Progress = Callable[[int, int], None]


class TextJudge:
    """What the model ``source`` predicts for the text of a file, and how far files made from it are from that.

    What it predicts is kept in ``folder``.  ``n_ctx``, ``chunks``: as for :func:`.perplexities`.
    """

    def __init__(
        self, source: os.PathLike[str], text: Path, folder: Path, *, n_ctx: int | None = None, chunks: int | None = None
    ) -> None:
        self._source, self._text, self._n_ctx, self._chunks = source, content_of(text), n_ctx, chunks
        self._base = folder / "base.kld"

    def measure(self, progress: Progress) -> Cost:
        """The perplexity of the text.  Raises as loading a model and :func:`.perplexities` do."""
        with load_language_model(self._source) as model:
            tokens = model.tokenizer.encode(self._text, add_special=True)
            read = in_chunks(model, tokens, self._n_ctx, self._chunks)
            with base_logits.saving(self._base, read, model.n_vocab) as keep:
                for found in perplexities(model, tokens, read.shape[1], chunks=len(read), keep=keep):
                    progress(found.chunks, len(read))
        return Cost(found.value, found.error)

    def compare(self, path: Path, progress: Progress) -> Cost:
        """Perplexity and divergence of a file.  Raises as :func:`.divergences` does."""
        with load_language_model(path) as model, BaseLogits(self._base) as base:
            for found in divergences(model, base):
                progress(found.chunks, len(base.chunks))
        return Cost(*found.perplexity, *found.mean, *found.same_top)
