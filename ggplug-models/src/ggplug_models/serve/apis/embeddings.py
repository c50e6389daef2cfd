"""``/v1/embeddings``, and llama-server's ``/embedding``."""

from __future__ import annotations

import base64
import threading
from typing import Any, Literal

from pydantic import AliasChoices, Field

from ggplug_models.serve.bodies.body import Body
from ggplug_models.serve.bodies.parameters import Count
from ggplug_models.serve.bodies.prompts import Texts, several
from ggplug_models.serve.problems import Problem
from ggplug_models.serve.service import Service
from ggplug_models.serve.vectors import Floats


class EmbeddingBody(Body):
    """The body of ``/v1/embeddings`` and ``/embedding``."""

    NO_EFFECT = frozenset(["user", "truncate", "embd_normalize"])

    model: str | None = None
    input: Texts = Field(validation_alias=AliasChoices("input", "content", "prompt"))
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = None


class VectorsWork:
    """The vectors of one request: token ids, and their computation."""

    def __init__(self, service: Service, body: EmbeddingBody) -> None:
        self._length = service.embedder.length(body.dimensions)
        self.service = service
        self.body = body
        self.ids = service.embedder.ids(several(body.input, "input"))

    def openai(self, cancelled: threading.Event) -> dict[str, Any]:
        """The reply of ``/v1/embeddings``."""
        if not self.service.about.pooled:
            raise Problem(
                400,
                "this server was started with --pooling none, and the OpenAI API has no vectors of tokens",
                code="invalid_value",
            )
        vectors = self.service.embedder.vectors(self.ids, cancelled, self._length)
        return embeddings(self.service.name, self.ids, vectors, self.body.encoding_format)

    def native(self, cancelled: threading.Event) -> list[dict[str, Any]]:
        """The reply of ``/embedding``: lists of vectors, one for each token if they are not pooled."""
        embedder = self.service.embedder
        if self.service.about.pooled:
            found = list(embedder.vectors(self.ids, cancelled, self._length)[:, None])
        else:
            found = embedder.states(self.ids, cancelled)
        return [{"index": number, "embedding": vectors.tolist()} for number, vectors in enumerate(found)]


def embeddings(model: str, ids: list[list[int]], vectors: Floats, form: str) -> dict[str, Any]:
    """The reply of ``/v1/embeddings``.  ``form``: ``float``, or ``base64`` of little-endian float32."""
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
    return {"object": "list", "data": data, "model": model, "usage": usage(ids)}


def usage(ids: list[list[int]]) -> dict[str, int]:
    """The number of tokens of a request for vectors or scores."""
    count = sum(map(len, ids))
    return {"prompt_tokens": count, "total_tokens": count}
