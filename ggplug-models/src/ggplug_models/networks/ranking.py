"""Rerankers: models whose classifier scores how relevant a document is for a query.

Encoders read the query and the document as two texts (arXiv:1901.04085), language models in a prompt that asks whether
the document fits (arXiv:2506.05176).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ggplug.errors import ParameterError
from ggplug.tensor import Tensor
from ggplug_models.layers.norms import Norm
from ggplug_models.metadata.values import short_repr
from ggplug_models.weights.weights import Weights

Floats = npt.NDArray[np.float32]

DENSE, NORM, OUT = "cls", "cls.norm", "cls.output"
"""The layers of a classifier in a file: one with an activation, its norm, and one with the scores."""

RELEVANT = "yes"
"""The label of the result that says how relevant a text is, where a classifier has several."""


class Classified(Protocol):
    """What a classifier uses of its model."""

    w: Weights
    n_embd: int
    norm: Norm
    labels: tuple[str, ...]

    def embed_ids(
        self,
        ids: Sequence[Sequence[int]],
        *,
        batch: int = 32,
        normalize: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> Floats: ...
    def classifier_activation(self, x: Floats) -> Floats: ...
    def scored(self, x: Floats) -> Floats: ...


class Ranker:
    """The classifier of a model, over the pooled vectors of texts.  Raises ModelError for wrong weights."""

    def __init__(self, model: Classified) -> None:
        self.model = model
        self._dense, self._out = (self._linear(name) for name in (DENSE, OUT))
        self._norm = _values(model.w(f"{NORM}.weight", model.n_embd)) if f"{NORM}.weight" in model.w else None
        last = OUT if self._out is not None else DENSE
        self.n_out: int = model.w(f"{last}.weight", model.n_embd, -1).size // model.n_embd

    def scores(
        self,
        pairs: Sequence[Sequence[int]],
        *,
        label: str | int | None = None,
        batch: int = 32,
        progress: Callable[[int], None] | None = None,
    ) -> Floats:
        """The score of each pair, float32 ``(len(pairs),)``: the result of :meth:`number`.

        The other parameters: see :meth:`.Encoder.embed_ids`.
        """
        number = self.number(label)
        return self.model.scored(self.outputs(pairs, batch=batch, progress=progress))[:, number]

    def number(self, label: str | int | None = None) -> int:
        """Which of the classifier's results a label means; without one, the only result or that for :data:`RELEVANT`.

        ``label``: one of the model's labels, or the number of a result.  Raises ParameterError if there is no such
        result, or without a label if several could be meant.
        """
        labels = self.model.labels[: self.n_out]
        if label is None and self.n_out == 1:
            return 0
        if (RELEVANT if label is None else label) in labels:
            return labels.index(RELEVANT if label is None else str(label))
        if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < self.n_out:
            return label
        known = ", ".join(labels) or f"the numbers from 0 to {self.n_out - 1}"
        what = f"label {short_repr(label)} is none of the classifier's"
        if label is None:
            what = f"the classifier has {self.n_out} results, none of them for relevance"
        raise ParameterError(
            f"{what}; they are {known}",
            got=label,
            wanted=labels or range(self.n_out),
            remedy="choose the label whose score ranks the texts",
        )

    def outputs(
        self, ids: Sequence[Sequence[int]], *, batch: int = 32, progress: Callable[[int], None] | None = None
    ) -> Floats:
        """All results of the classifier for each text, given as token ids: float32 ``(len(ids), n_out)``."""
        found = self.model.embed_ids(ids, batch=batch, normalize=False, progress=progress)
        if self._dense is not None:
            found = self._dense(found)
            if self._out is not None:  # without it, the first layer has the scores
                found = self.model.classifier_activation(found)
        if self._norm is not None:
            centred = found - found.mean(-1, keepdims=True)
            found = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.model.norm.eps) * self._norm
        return np.asarray(found if self._out is None else self._out(found), np.float32)

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
    """A copy of the values: an array over the model's memory would keep it from being freed."""
    return np.array(tensor.numpy(), np.float32)
