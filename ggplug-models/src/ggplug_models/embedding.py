"""What encoders and language models share where they embed texts: what callers may give, and vectors of length 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.errors import ParameterError
from ggplug_models.arguments import check_sequence, whole
from ggplug_models.long_text import LongText


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
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)
