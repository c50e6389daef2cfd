"""Rerankers: encoders whose classifier scores how relevant a document is for a query (arXiv:1901.04085)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ggplug.tensor import Tensor
from ggplug_models.embedding.pooling import Pooling
from ggplug_models.networks.encoder import Encoder

Floats = npt.NDArray[np.float32]

DENSE, OUT = "cls", "cls.output"
"""The layers of a classifier in a file: one with tanh, which may be missing, and one with the score."""


class Ranker:
    """The classifier of an encoder, over the vectors of first tokens.  Raises ModelError for wrong weights."""

    def __init__(self, model: Encoder) -> None:
        self.model = model
        self._layers = [(name, self._weights(name)) for name in (DENSE, OUT) if f"{name}.weight" in model.w]

    @staticmethod
    def is_in(model: Encoder) -> bool:
        """Whether a model has a classifier."""
        return model.pooling is Pooling.RANK and any(f"{name}.weight" in model.w for name in (DENSE, OUT))

    def pair(self, query: str, document: str) -> list[int]:
        """The token ids of a query together with a document.  Raises ModelError."""
        return self.model.tokenizer.pair(query, document)

    def scores(
        self, pairs: Sequence[Sequence[int]], *, batch: int = 32, progress: Callable[[int], None] | None = None
    ) -> Floats:
        """The score of each pair, float32 ``(len(pairs),)``.  The parameters: see :meth:`.Encoder.embed_ids`."""
        found = self.model.embed_ids(pairs, batch=batch, normalize=False, progress=progress)
        for name, (weight, bias) in self._layers:
            found = found @ weight.T + bias
            if name == DENSE and len(self._layers) > 1:
                found = np.tanh(found)
        return np.asarray(found[:, 0], np.float32)

    def _weights(self, name: str) -> tuple[Floats, Floats]:
        """The matrix of a layer, ``(n_out, n_embd)``, and its bias."""
        w, n_embd = self.model.w, self.model.n_embd
        weight = _values(w(f"{name}.weight", n_embd, -1)).reshape(-1, n_embd)
        bias = _values(w(f"{name}.bias", len(weight))) if f"{name}.bias" in w else np.zeros(len(weight), np.float32)
        return weight, bias.reshape(-1)


def _values(tensor: Tensor) -> Floats:
    return np.asarray(tensor.numpy(), np.float32)
