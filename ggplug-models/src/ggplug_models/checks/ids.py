"""Token ids as callers give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.errors import ParameterError
from ggplug_models.metadata.values import short_repr


def token_ids(tokens: Any, n_vocab: int, what: str) -> npt.NDArray[np.int64]:
    """The ids of a text as an array, of at least one.

    ``what``: names them in errors.  Raises ParameterError for what is no sequence of ids, empty, or holds an id that
    the vocabulary of ``n_vocab`` tokens does not have.
    """
    try:
        found = np.asarray(tokens)
    except (TypeError, ValueError, OverflowError):  # lists in lists, of several lengths
        found = np.empty(0, object)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu") or isinstance(tokens, (str, bytes, dict)):
        raise ParameterError(f"{what} is {short_repr(tokens)}, not a sequence of token ids", got=tokens)
    if not found.size:
        raise ParameterError(f"{what} has no tokens", got=0)
    outside = np.flatnonzero((found < 0) | (found >= n_vocab))
    if outside.size:
        raise ParameterError(
            f"{what}[{outside[0]}] is {found[outside[0]]}; the vocabulary has the tokens 0 to {n_vocab - 1}",
            got=int(found[outside[0]]),
            wanted=n_vocab,
        )
    return found.astype(np.int64)


def in_common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    most = min(len(a), len(b))
    if list(a[:most]) == list(b[:most]):  # mostly so, and several times as fast as the loop
        return most
    return next(n for n in range(most) if a[n] != b[n])


FEW = 8
"""Ids that are looked at one by one: that takes less time than the calls that an array takes."""


def listed_ids(tokens: Any, n_vocab: int, what: str) -> list[int]:
    """As :func:`token_ids`, as a new list."""
    if type(tokens) is list and 0 < len(tokens) <= FEW:
        found = [token for token in tokens if type(token) is int and 0 <= token < n_vocab]
        if len(found) == len(tokens):
            return found
    return list(map(int, token_ids(tokens, n_vocab, what)))
