"""What types of weights cost: ``ggplug quantize --report``.

What is measured on a text comes from the entry point of the group ``ggplug.judges``: a function that returns a
:class:`Judge` for a model's file and a text.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ggplug.errors import ParameterError
from ggplug.quantizing import COPY, Quantized, preview_file, quantize_file
from ggplug.registry.discover import scan
from ggplug.registry.entry_points import imported

GROUP = "ggplug.judges"

TYPES = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "IQ4_XS", "Q3_K_M", "Q2_K")
"""The types of a report by default: those that are mostly chosen, from the most bits to the fewest."""

GIB = 1 << 30


class Cost(NamedTuple):
    """What a judge measures of a file: the perplexity of the text, and of the model itself no more.

    Of a file made from the model also the divergence from the model (Kullback-Leibler, mean of all tokens), and the
    fraction of tokens before which both find the same token the most probable.  ``*_error``: standard errors.
    """

    perplexity: float
    perplexity_error: float
    divergence: float | None = None
    divergence_error: float | None = None
    same_top: float | None = None
    same_top_error: float | None = None


class Judge(Protocol):
    """Measures a model and files made from it on a text; what it keeps on the disk is in the folder that it is given.

    ``progress(done, count)``: called after each of ``count`` parts of the text.
    """

    def measure(self, progress: Callable[[int, int], None]) -> Cost:
        """Measures the model; called first, and once."""

    def compare(self, path: Path, progress: Callable[[int, int], None]) -> Cost:
        """Measures a file made from the model."""


class Opens(Protocol):
    """Makes a judge of ``source`` and of the text of a file; raises errors for what cannot be measured."""

    def __call__(
        self, source: os.PathLike[str], text: Path, folder: Path, *, n_ctx: int | None, chunks: int | None
    ) -> Judge: ...


@dataclass(frozen=True)
class Row:
    """A type of a report.  ``name``: that of the type.  ``cost``: None without a text."""

    name: str
    nbytes: int
    n_elements: int
    cost: Cost | None

    @property
    def bits(self) -> float:
        """Bits of a weight."""
        return 8 * self.nbytes / self.n_elements


def rows(
    source: os.PathLike[str],
    names: Sequence[str],
    *,
    text: Path | None = None,
    n_ctx: int | None = None,
    chunks: int | None = None,
    n_threads: int | None = None,
    progress: Callable[[str, int, int], None],
    **how: Any,
) -> Iterator[Row]:
    """Yields the model itself, then each type.

    ``n_ctx``, ``chunks``: tokens of a chunk of the text, and how many chunks are read.  ``how``: what
    :func:`.preview_file` and :func:`.quantize_file` take.  ``progress(what, done, count)``: called while something is
    measured or written.  Files lie in a temporary folder, one at a time.  Raises as these functions and the judge do,
    for names and types before anything is measured.
    """
    previews = {name: preview_file(source, name, **how) for name in (COPY, *names)}
    if text is None:
        yield from (_row(name, found, None) for name, found in previews.items())
        return
    with tempfile.TemporaryDirectory(prefix="ggplug-report-") as folder:
        made = Path(folder, "model.gguf")
        judge = _opens()(source, text, Path(folder), n_ctx=n_ctx, chunks=chunks)
        yield _row(COPY, previews[COPY], judge.measure(partial(progress, "the model")))
        for name in names:
            quantize_file(source, made, name, n_threads=n_threads, progress=partial(progress, f"writing {name}"), **how)
            yield _row(name, previews[name], judge.compare(made, partial(progress, name)))
            made.unlink()


def _row(name: str, found: Sequence[Quantized], cost: Cost | None) -> Row:
    n_elements = sum(math.prod(each.ne) for each in found)
    return Row(name, sum(each.bytes_after for each in found), max(n_elements, 1), cost)


def _opens() -> Opens:
    for installed in scan(GROUP):
        found: Opens = imported(installed, "what measures models on a text")
        return found
    raise ParameterError(
        "no installed distribution measures models on a text", remedy='pip install "ggplug-core[models]"'
    )


HEADINGS = ("type", "GiB", "bits", "perplexity", "KL divergence", "same top, %")


def cells(row: Row) -> tuple[str, ...]:
    """The row as texts, for :data:`HEADINGS`; without a cost only the first three."""
    size = "source" if row.name == COPY else row.name, f"{row.nbytes / GIB:.3f}", f"{row.bits:.2f}"
    cost = row.cost
    if cost is None:
        return size
    perplexity = f"{cost.perplexity:.3f} +/- {cost.perplexity_error:.3f}"
    if cost.divergence is None or cost.same_top is None:
        return (*size, perplexity, "", "")
    divergence = f"{cost.divergence:.5f} +/- {cost.divergence_error:.5f}"
    return (*size, perplexity, divergence, f"{100 * cost.same_top:.2f}")


def as_dict(row: Row) -> dict[str, Any]:
    """What JSON says of a row."""
    cost = None if row.cost is None else row.cost._asdict()
    return {"type": row.name, "bytes": row.nbytes, "bits_per_weight": row.bits, **(cost or {})}
