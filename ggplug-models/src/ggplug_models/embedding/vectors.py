"""Checks of arguments and results that the embeddings of encoders and of language models have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.errors import ModelError, ParameterError
from ggplug_models.checks.arguments import check_sequence, whole
from ggplug_models.tokenizers.long_text import LongText


class VectorsError(ModelError):
    """A model's embeddings are not finite.  ``got``: the number of the first text with such a vector."""


def check_texts(texts: Any) -> None:
    """Raises ParameterError for a value that is not a sequence of texts."""
    if isinstance(texts, str):
        raise ParameterError("embed takes a sequence of texts, got one string; put it into a list", got=type(texts))
    check_sequence(texts, "texts")
    for position, text in enumerate(texts):
        if not isinstance(text, (str, LongText)):
            raise ParameterError(
                f"texts[{position}] must be a string or a LongText, got {type(text).__name__}", got=type(text)
            )


def check_batch(batch: Any) -> int:
    """Returns ``batch`` as an int.  Raises ParameterError if it is not a positive integer."""
    return whole("batch", batch, 1)


def normalized(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Vectors ``(n, n_embd)`` divided by their lengths; a vector of zeros stays as it is."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)  # squares may be beyond float32
    with np.errstate(invalid="ignore"):  # vectors that are not finite stay so
        return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)


def check_finite(vectors: npt.NDArray[np.float32], what: str, first: int = 0) -> None:
    """Raises VectorsError for vectors ``(n, n_embd)`` with NaN or infinity, which JSON cannot represent.

    ``what``: what the error calls a text.  ``first``: the number of the first text.
    """
    wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if wrong.size:
        raise VectorsError(
            f"the embedding of {what} {first + wrong[0]} is not finite: the model's weights are damaged, or exceed "
            "the range of the device's arithmetic",
            got=first + int(wrong[0]),
        )
