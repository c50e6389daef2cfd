"""Checks token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.errors import ParameterError
from ggplug_models.metadata.values import short_repr


def token_ids(tokens: Any, n_vocab: int, what: str, n_ctx: int | None = None) -> npt.NDArray[np.int64]:
    """Token ids as an array.

    ``what``: their name in errors.  ``n_ctx``: the context length of a model that computes them as one text.

    Raises ParameterError for a value that is not a sequence of integers, is empty or longer than ``n_ctx``, or has an
    id that is not from 0 to ``n_vocab - 1``.
    """
    try:
        found = np.asarray(tokens)
    except (TypeError, ValueError, OverflowError):  # lists in lists, of several lengths
        found = np.empty(0, object)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu") or isinstance(tokens, (str, bytes, dict)):
        raise ParameterError(f"{what} must be a sequence of token ids, got {short_repr(tokens)}", got=tokens)
    if not found.size:
        raise ParameterError(f"{what} has no tokens; at least one is needed", got=0)
    outside = np.flatnonzero((found < 0) | (found >= n_vocab))
    if outside.size:
        raise ParameterError(
            f"{what}[{outside[0]}] is {found[outside[0]]}; the token ids of the vocabulary are 0 to {n_vocab - 1}",
            got=int(found[outside[0]]),
            wanted=n_vocab,
        )
    if n_ctx is not None and found.size > n_ctx:
        raise ParameterError(
            f"{what} has {found.size} tokens; the context length of the model is {n_ctx}", got=found.size, wanted=n_ctx
        )
    return found.astype(np.int64)


def in_common(a: Sequence[object], b: Sequence[object]) -> int:
    """The length of the common prefix of two texts, of tokens or characters."""
    most = min(len(a), len(b))
    if list(a[:most]) == list(b[:most]):  # the usual case, several times as fast as the loop
        return most
    return next(n for n in range(most) if a[n] != b[n])


FEW = 8
"""Up to this number, ids are checked one by one, which is faster than with an array."""


def listed_ids(tokens: Any, n_vocab: int, what: str) -> list[int]:
    """As :func:`token_ids`, but returns a new list."""
    if type(tokens) is list and 0 < len(tokens) <= FEW:
        found = [token for token in tokens if type(token) is int and 0 <= token < n_vocab]
        if len(found) == len(tokens):
            return found
    return list(map(int, token_ids(tokens, n_vocab, what)))
