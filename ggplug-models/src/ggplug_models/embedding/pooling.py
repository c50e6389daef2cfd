"""How a text's token vectors become one vector."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import numpy.typing as npt


class Pooling(enum.IntEnum):
    """llama.cpp's ``pooling_type``."""

    MEAN = 1
    CLS = 2
    LAST = 3

    def shares(self, present: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """What part each token has in its text's vector, of tokens that are ``present``: float32 [n_seq, n]."""
        if self is Pooling.MEAN:
            shares = present / present.sum(axis=1, keepdims=True)
        else:
            chosen = np.zeros(len(present), np.int64) if self is Pooling.CLS else present.sum(axis=1) - 1
            shares = np.arange(present.shape[1]) == chosen[:, np.newaxis]
        return np.asarray(shares, np.float32)
