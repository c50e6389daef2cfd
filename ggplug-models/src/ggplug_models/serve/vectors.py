"""Computes embeddings for many clients, one request after the other, while texts are generated."""

from __future__ import annotations

import base64
import threading
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug_models.embedding.vectors import check_finite
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.encoder import Encoder
from ggplug_models.serve.bodies import EmbeddingBody, check_length, ids_of, several
from ggplug_models.serve.problems import Problem
from ggplug_models.tokenizers.encoders import TextTokenizer, TextTooLongError, VocabularyTokenizer

MOST_INPUTS = 2048
"""Maximum number of texts of a request."""


class CancelledError(Exception):
    """The client disconnected before its vectors were computed."""


class Embedder:
    """Computes embeddings with an encoder, or with the last hidden states of a language model."""

    def __init__(self, model: Decoder | Encoder) -> None:
        self.model = model

    @cached_property
    def _tokenizer(self) -> TextTokenizer | VocabularyTokenizer:
        model = self.model
        if isinstance(model, Encoder):
            return model.tokenizer
        return VocabularyTokenizer(model.tokenizer, model.n_ctx, model.n_vocab)

    def ids(self, body: EmbeddingBody) -> list[list[int]]:
        """The token ids of the inputs.  Raises Problem, also for too long a text; ParameterError, ModelError."""
        model, inputs = self.model, several(body.input)
        if not 1 <= len(inputs) <= MOST_INPUTS:
            raise Problem(400, f"input has {len(inputs)} texts; 1 to {MOST_INPUTS} are allowed", param="input")
        if body.dimensions not in (None, model.n_embd):
            raise Problem(
                400, f"dimensions must be {model.n_embd}, the length of this model's vectors", param="dimensions"
            )
        texts = [each for each in inputs if isinstance(each, str)]
        if texts:
            found = self._of_texts(texts)
        else:
            limit = f"the context length of this model is {model.n_ctx}"
            found = [
                ids_of(each, model.n_ctx, model.n_vocab, f"input[{number}]", limit)
                for number, each in enumerate(inputs)
                if not isinstance(each, str)
            ]
        for number, each in enumerate(found):
            if not each:
                raise Problem(400, f"input[{number}] has no tokens", param="input", code="invalid_value")
        return found

    def _of_texts(self, texts: list[str]) -> list[list[int]]:
        tokenizer = self._tokenizer
        limit = f"this model reads at most {tokenizer.max_length} tokens of a text"
        for number, text in enumerate(texts):
            check_length(tokenizer.at_least(text), tokenizer.max_length, f"input[{number}]", limit, at_least=True)
        try:
            return tokenizer.encode_whole(texts)
        except TextTooLongError as error:
            check_length(error.got, error.wanted, f"input[{error.position}]", limit)
            raise

    def vectors(self, ids: list[list[int]], cancelled: threading.Event) -> npt.NDArray[np.float32]:
        """A vector of length 1 for each text.

        Raises CancelledError between two steps if ``cancelled`` is set, VectorsError for vectors that are not finite.
        """

        def check(done: int) -> None:
            if cancelled.is_set():
                raise CancelledError

        check(0)
        found = self.model.embed_ids(ids, progress=check)
        check_finite(found, "input")
        return found


def embeddings(model: str, ids: list[list[int]], vectors: npt.NDArray[np.float32], form: str) -> dict[str, Any]:
    """The response of ``/v1/embeddings``.  ``form``: ``float``, or ``base64`` of little-endian float32."""
    data = [
        {
            "object": "embedding",
            "index": number,
            "embedding": (
                base64.b64encode(vector.astype("<f4").tobytes()).decode() if form == "base64" else vector.tolist()
            ),
        }
        for number, vector in enumerate(vectors)
    ]
    count = sum(map(len, ids))
    return {
        "object": "list",
        "data": data,
        "model": model,
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }
