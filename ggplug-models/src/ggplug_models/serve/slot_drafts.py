"""Drafts of the texts that a batcher generates, one for each of its sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ggplug_models.generation.drafts import Drafts
from ggplug_models.state.batching import FEW

Floats = npt.NDArray[np.float32]


class SlotDrafts:
    """The drafts of sequences, by number; all read the same nodes of the model.

    A step of several texts has at most :data:`.FEW` tokens with their drafts and padding, so that the CPU device, and
    processors through OpenCL, compute each token with the bits that it has alone.  The more texts are generated, the
    fewer tokens are guessed for each.
    """

    def __init__(self, drafts: Sequence[Drafts], n_vocab: int) -> None:
        self._drafts, self._n_vocab = drafts, n_vocab
        self.names = drafts[0].names

    def read(self, seq: int, place: int, tokens: Sequence[int], values: Sequence[Floats]) -> None:
        """See :class:`.Reader`."""
        self._drafts[seq].read(seq, place, tokens, values)

    def next(self, texts: Mapping[int, tuple[Sequence[int], int]]) -> dict[int, list[int]]:
        """The draft tokens after each text, by its sequence; each comes with the maximum number of its draft tokens.

        What a draft raises is the caller's to handle: no sequence of the model was changed.
        """
        most = FEW // (max(texts) - min(texts) + 1) - 1
        return {
            number: self._drafts[number].next(text, min(most, left), self._n_vocab)
            for number, (text, left) in texts.items()
        }
