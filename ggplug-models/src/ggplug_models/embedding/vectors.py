"""What encoders and language models share where they embed texts: what callers may give, and vectors of length 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.errors import ModelError, ParameterError
from ggplug_models.checks.arguments import check_sequence, whole
from ggplug_models.tokenizers.long_text import LongText


class VectorsError(ModelError):
    """A model's vectors are no numbers.  ``got``: the number of the first text for which they are not."""


def check_texts(texts: Any) -> None:
    """Raises ParameterError for what is no sequence of texts."""
    if isinstance(texts, str):
        raise ParameterError("embed takes a sequence of texts, got one string", got=type(texts))
    check_sequence(texts, "texts")
    for position, text in enumerate(texts):
        if not isinstance(text, (str, LongText)):
            raise ParameterError(f"texts[{position}] is {type(text).__name__}, not a string", got=type(text))


def check_batch(batch: Any) -> int:
    """How many texts are computed together.  Raises ParameterError for what is no positive integer."""
    return whole("batch", batch, 1)


def normalized(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Vectors [n, n_embd] divided by their lengths; one of zeros stays as it is."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)  # squares may be beyond float32
    with np.errstate(invalid="ignore"):  # vectors that are not finite stay so
        return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)


def check_finite(vectors: npt.NDArray[np.float32], what: str, first: int = 0) -> None:
    """Raises VectorsError for vectors [n, n_embd] with NaN or infinity, which JSON does not have.

    ``what``: a word for their texts, and ``first``: the number of the first one, for the error.
    """
    wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if wrong.size:
        raise VectorsError(
            f"the vector of {what} {first + wrong[0]} is not finite: the model's weights are damaged, or too "
            "large for what the device computes with",
            got=first + int(wrong[0]),
        )
