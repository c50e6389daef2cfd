"""Computes embeddings and scores for many clients, one request after the other, while texts are generated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ggplug.errors import DeviceLostError, FreedError, ParameterError
from ggplug_models.embedding.vectors import check_finite, normalized
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.encoder import Encoder
from ggplug_models.serve.batcher import MOST_REPLAYS, Counts
from ggplug_models.serve.bodies.prompts import Prompt, check_length, checked_ids
from ggplug_models.serve.problems import Problem
from ggplug_models.tokenizers.encoders import TextTokenizer, TextTooLongError, VocabularyTokenizer

MOST_INPUTS = 2048
"""Maximum number of texts of a request."""

Floats = npt.NDArray[np.float32]
Model = Decoder | Encoder
Result = TypeVar("Result")


class CancelledError(Exception):
    """The client disconnected before its vectors were computed."""


class Embedder:
    """Computes embeddings with an encoder, or with the last hidden states of a language model.

    ``counts``: where tokens and batches are counted.  ``restore``: loads :attr:`model` again after a device was lost,
    unless that was done before, or raises the error.  ``replays``: whether what was asked for is then computed again.
    """

    def __init__(
        self,
        model: Model,
        counts: Counts,
        restore: Callable[[Model, DeviceLostError | FreedError], None] | None = None,
        *,
        replays: bool = False,
    ) -> None:
        self.model = model
        self.counts = counts
        self._restore = restore
        self._replays = replays

    @property
    def _tokenizer(self) -> TextTokenizer | VocabularyTokenizer:
        return self.model.text_tokenizer

    def _check_ranks(self, label: str | int | None) -> None:
        """Raises Problem for a model that is no reranker, and for a label that its classifier does not have."""
        if not self.model.ranks:
            raise Problem(
                501,
                "this model is no reranker: its file has no weights of a classifier (cls.*)",
                param="model",
                code="model_not_supported",
            )
        try:
            self.model.ranker.number(label)
        except ParameterError as error:
            raise Problem(400, error.message, param="label", code="invalid_value") from None

    # -- token ids ----------------------------------------------------------------------------------

    def ids(self, inputs: Sequence[Prompt]) -> list[list[int]]:
        """The token ids of the inputs.  Raises Problem, also for too long a text; ParameterError, ModelError."""
        model = self.model
        if not 1 <= len(inputs) <= MOST_INPUTS:
            raise Problem(400, f"input has {len(inputs)} texts; 1 to {MOST_INPUTS} are allowed", param="input")
        texts = {number: each for number, each in enumerate(inputs) if isinstance(each, str)}
        found = dict(zip(texts, self._of_texts(texts), strict=True))
        limit = f"the context length of this model is {model.n_ctx}"
        for number, each in enumerate(inputs):
            if isinstance(each, str):
                continue
            what = f"input[{number}]" if len(inputs) > 1 else "input[0]"
            check_length(len(each), model.n_ctx, what, limit)
            parts = self._parts(each, what, limit) if str in set(map(type, each)) else list(each)
            found[number] = checked_ids(parts, model.n_ctx, model.n_vocab, what, limit)
        for number, each in found.items():
            if not each:
                raise Problem(400, f"input[{number}] has no tokens", param="input", code="invalid_value")
        return [found[number] for number in range(len(inputs))]

    def _parts(self, parts: Sequence[int | str], what: str, limit: str) -> list[int]:
        """The token ids of an input with texts among its token ids."""
        found: list[int] = []
        for part in parts:
            if isinstance(part, str):
                check_length(len(found) + self._tokenizer.at_least(part), self.model.n_ctx, what, limit, at_least=True)
                found += self._tokenizer.plain(part)
            else:
                found.append(part)
        return found

    def _of_texts(self, texts: dict[int, str]) -> list[list[int]]:
        tokenizer = self._tokenizer
        limit = f"this model reads at most {tokenizer.max_length} tokens of a text"
        for number, text in texts.items():
            check_length(tokenizer.at_least(text), tokenizer.max_length, f"input[{number}]", limit, at_least=True)
        try:
            return tokenizer.encode_whole(list(texts.values()))
        except TextTooLongError as error:
            check_length(error.got, error.wanted, f"input[{list(texts)[error.position]}]", limit)
            raise

    def pairs(
        self,
        query: str,
        documents: Sequence[str],
        instruction: str | None = None,
        label: str | int | None = None,
    ) -> list[list[int]]:
        """The token ids of a query together with each document, whose scores are those of ``label``.

        Raises Problem, ParameterError, ModelError.
        """
        limit = f"this model reads at most {self._tokenizer.max_length} tokens of a query and a document"
        self._check_ranks(label)
        try:
            return self.model.pairs(query, documents, instruction)
        except TextTooLongError as error:
            check_length(error.got, error.wanted, f"documents[{error.position}]", limit)
            raise

    # -- computing ----------------------------------------------------------------------------------

    def length(self, dimensions: int | None) -> int:
        """The number of elements of vectors that a request wants.  Raises Problem."""
        try:
            return self.model.vector_length(dimensions)
        except ParameterError as error:
            raise Problem(400, error.message, param="dimensions", code="invalid_value") from None

    def vectors(self, ids: list[list[int]], cancelled: threading.Event, length: int) -> Floats:
        """A vector of length 1 for each text.  ``length``: number of its elements, see :meth:`length`.

        Raises CancelledError between two steps if ``cancelled`` is set, VectorsError for vectors that are not finite.
        """
        found = self._computed(lambda model: model.embed_ids(ids, progress=self._check(ids, cancelled)))
        check_finite(found, "input")
        return found if length == self.model.n_embd else normalized(found[:, :length])

    def states(self, ids: list[list[int]], cancelled: threading.Event) -> list[Floats]:
        """The vectors of each text's tokens, not scaled.  Raises as :meth:`vectors` does; Problem."""
        if not isinstance(self.model, Encoder):
            raise Problem(400, "only encoders have vectors of tokens", param="pooling", code="model_not_supported")
        check = self._check(ids, cancelled)

        def compute(model: Model) -> list[Floats]:
            found = []
            for number, each in enumerate(ids):
                found.append(model.hidden_states(each))
                check_finite(found[-1], "input", number)
                check(1)
            return found

        return self._computed(compute)

    def scores(self, pairs: list[list[int]], cancelled: threading.Event, label: str | int | None = None) -> list[float]:
        """The score of each pair of a query and a document.  Raises as :meth:`vectors` does."""
        found = self._computed(
            lambda model: model.ranker.scores(pairs, label=label, progress=self._check(pairs, cancelled))
        )
        check_finite(found[:, np.newaxis], "document")
        return [float(score) for score in found]

    def _computed(self, compute: Callable[[Model], Result], left: int = MOST_REPLAYS) -> Result:
        """What a function computes with the model; if a device is lost, with the model that is loaded again."""
        model = self.model
        try:
            return compute(model)
        except (DeviceLostError, FreedError) as error:  # freed: by the batcher's thread, which loads it again
            if self._restore is None:
                raise
            self._restore(model, error)
            if not (self._replays and left):
                raise
        return self._computed(compute, left - 1)

    def _check(self, ids: list[list[int]], cancelled: threading.Event) -> Progress:
        found = Progress(self.counts, cancelled)
        found(0)
        self.counts.embedded_tokens += sum(map(len, ids))
        return found


class Progress:
    """Counts steps, and raises CancelledError between two of them."""

    def __init__(self, counts: Counts, cancelled: threading.Event) -> None:
        self._counts = counts
        self._cancelled = cancelled

    def __call__(self, done: int) -> None:
        self._counts.embedded_steps += bool(done)
        if self._cancelled.is_set():
            raise CancelledError
