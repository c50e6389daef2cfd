"""Pooling: combines the vectors of a text's tokens into one."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import numpy.typing as npt


class Pooling(enum.IntEnum):
    """The kinds of pooling, with the numbers of llama.cpp's ``pooling_type``: none, mean, first token, last token.

    RANK, of rerankers, is pooled in one of these ways; :mod:`ggplug_models.networks.ranking` applies the classifier.
    """

    NONE = 0
    MEAN = 1
    CLS = 2
    LAST = 3
    RANK = 4

    def weights(self, present: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """The pooling weight of each token of each text, float32 ``(n_seq, n)``; those of a text sum to 1.

        ``present``: booleans of the same shape, False for padding tokens.
        """
        if self is Pooling.MEAN:
            weights = present / present.sum(axis=1, keepdims=True)
        else:
            chosen = present.sum(axis=1) - 1 if self is Pooling.LAST else np.zeros(len(present), np.int64)
            weights = np.arange(present.shape[1]) == chosen[:, np.newaxis]
        return np.asarray(weights, np.float32)
