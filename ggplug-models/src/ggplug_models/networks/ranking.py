"""Rerankers: models whose classifier scores how relevant a document is for a query.

Encoders read the query and the document as two texts (arXiv:1901.04085), language models in a prompt that asks whether
the document fits (arXiv:2506.05176).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.errors import ParameterError
from ggplug.tensor import Tensor
from ggplug_models.checks.arguments import check_sequence
from ggplug_models.embedding.pooling import Pooling
from ggplug_models.metadata.values import short_repr
from ggplug_models.networks.network import Network
from ggplug_models.tokenizers.encoders import TextTooLongError

Floats = npt.NDArray[np.float32]

DENSE, NORM, OUT = "cls", "cls.norm", "cls.output"
"""The layers of a classifier in a file: one with an activation, its norm, and one with the scores."""

NORM_EPS = 1e-5
"""What is added to the variance in the norm of a classifier; files do not say it."""


class Ranking(Network):
    """A model that may have a classifier; files of rerankers do.

    ``pooling``: how the vectors of a text's tokens become one; it can be set.
    """

    pooling: Pooling

    def embed_ids(
        self,
        ids: Sequence[Sequence[int]],
        *,
        batch: int = 32,
        normalize: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> Floats:
        """One vector for each text, given as token ids."""
        raise NotImplementedError

    def pair(self, query: str, document: str, instruction: str | None = None) -> list[int]:
        """The token ids of a query together with a document.  Raises as :meth:`rank` does."""
        raise NotImplementedError

    def classifier_activation(self, x: Floats) -> Floats:
        """The activation of the classifier's first layer."""
        return np.asarray(np.tanh(x), np.float32)

    def scored(self, x: Floats) -> Floats:
        """The scores, from the results of the classifier's last layer, ``(n, n_out)``: the first ones."""
        return x[:, 0]

    @property
    def ranks(self) -> bool:
        """Whether the model is a reranker: whether its file has a classifier."""
        return self.pooling is Pooling.RANK and any(f"{name}.weight" in self.w for name in (DENSE, OUT))

    def rank(
        self,
        query: str,
        texts: Sequence[str],
        *,
        instruction: str | None = None,
        batch: int = 32,
        progress: Callable[[int], None] | None = None,
    ) -> Floats:
        """How relevant each text is for a query: float32 ``(len(texts),)``, higher for more relevant ones.

        The range of the scores is the model's: probabilities of language models, any numbers of most encoders.
        ``instruction``: what a relevant text does, for models whose prompt says it.  ``batch``, ``progress``: see
        :meth:`embed_ids`.

        Raises ParameterError, also for a model that is no reranker; TextTooLongError if the query and a text are longer
        than the context length together; ModelError if the tokenizer fails; FreedError.
        """
        if not isinstance(query, str):
            raise ParameterError(f"query must be a string, got {short_repr(query)}", got=query)
        if isinstance(texts, str):
            raise ParameterError("rank takes a sequence of texts, got one string; put it into a list", got=type(texts))
        check_sequence(texts, "texts")
        for position, text in enumerate(texts):
            if not isinstance(text, str):
                raise ParameterError(f"texts[{position}] must be a string, got {type(text).__name__}", got=type(text))
        with self.call():
            ranker, pairs = self.ranker, []
            for position, text in enumerate(texts):
                try:
                    pairs.append(self.pair(query, text, instruction))
                except TextTooLongError as error:
                    what = f"query and texts[{position}] have {error.got} tokens together"
                    raise TextTooLongError(
                        f"{what}; the model reads at most {error.wanted}",
                        got=error.got,
                        wanted=error.wanted,
                        position=position,
                    ) from None
            return ranker.scores(pairs, batch=batch, progress=progress)

    @cached_property
    def ranker(self) -> Ranker:
        """The classifier.  Raises ParameterError if there is none, ModelError for wrong weights."""
        if not self.ranks:
            raise ParameterError(
                f"{self.architecture} model: its file has no classifier (cls.*), so it is no reranker",
                got=self.architecture,
            )
        return Ranker(self)


class Ranker:
    """The classifier of a model, over the pooled vectors of texts.  Raises ModelError for wrong weights."""

    def __init__(self, model: Ranking) -> None:
        self.model = model
        self._dense, self._out = (self._linear(name) for name in (DENSE, OUT))
        self._norm = _values(model.w(f"{NORM}.weight", model.n_embd)) if f"{NORM}.weight" in model.w else None

    def scores(
        self, pairs: Sequence[Sequence[int]], *, batch: int = 32, progress: Callable[[int], None] | None = None
    ) -> Floats:
        """The score of each pair, float32 ``(len(pairs),)``.  The parameters: see :meth:`.Encoder.embed_ids`."""
        found = self.model.embed_ids(pairs, batch=batch, normalize=False, progress=progress)
        if self._dense is not None:
            found = self._dense(found)
            if self._out is not None:  # without it, the first layer has the scores
                found = self.model.classifier_activation(found)
        if self._norm is not None:
            centred = found - found.mean(-1, keepdims=True)
            found = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + NORM_EPS) * self._norm
        if self._out is not None:
            found = self._out(found)
        return np.asarray(self.model.scored(found), np.float32)

    def _linear(self, name: str) -> Callable[[Floats], Floats] | None:
        """The function of a layer, if the file has it: a matrix ``(n_out, n_embd)``, and its bias."""
        w, n_embd = self.model.w, self.model.n_embd
        if f"{name}.weight" not in w:
            return None
        weight = _values(w(f"{name}.weight", n_embd, -1)).reshape(-1, n_embd)
        bias = _values(w(f"{name}.bias", len(weight))) if f"{name}.bias" in w else np.zeros(len(weight), np.float32)
        return lambda x: x @ weight.T + bias.reshape(-1)


def check_no_instruction(instruction: str | None) -> None:
    """Raises ParameterError for an instruction, for a model whose file has no prompt that could say it."""
    if instruction is not None:
        raise ParameterError("instruction: this model has no prompt that could say it", got=instruction)


def gelu(x: Floats) -> Floats:
    """GELU, not its approximation by tanh."""
    return np.asarray(x * 0.5 * (1 + np.vectorize(math.erf, [np.float64])(x / math.sqrt(2))), np.float32)


def soft_max(x: Floats) -> Floats:
    """Probabilities, from logits ``(n, n_out)``."""
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True), np.float32)


def _values(tensor: Tensor) -> Any:
    return np.asarray(tensor.numpy(), np.float32)
