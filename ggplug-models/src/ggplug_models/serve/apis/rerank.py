"""``/v1/rerank``: scores of documents, in the form of Jina and Cohere, or of text-embeddings-inference (TEI)."""

from __future__ import annotations

import threading
from typing import Annotated, Any

from pydantic import Field, model_validator

from ggplug_models.serve.apis.embeddings import usage
from ggplug_models.serve.bodies.body import Body, Many
from ggplug_models.serve.bodies.parameters import Count
from ggplug_models.serve.problems import Problem
from ggplug_models.serve.service import Service
from ggplug_models.serve.vectors import MOST_INPUTS

Documents = Annotated[Many[str], Field(min_length=1)]


class RerankBody(Body):
    """The body of ``/v1/rerank``; ``texts`` are the documents of TEI, whose clients get a list.

    ``instruction``: what a document has to do, for models whose prompt says it; ``label``: whose score is meant, for
    classifiers with several; see :meth:`.TextModel.rank`.
    """

    NO_EFFECT = frozenset(["raw_scores", "truncate", "truncation_direction", "max_chunks_per_doc"])

    model: str | None = None
    query: str
    instruction: str | None = None
    label: str | int | None = None
    documents: Documents | None = None
    texts: Documents | None = None
    top_n: Count | None = None
    return_documents: bool = False
    return_text: bool = False

    @model_validator(mode="after")
    def _has_documents(self) -> RerankBody:
        if (self.documents is None) == (self.texts is None):
            raise ValueError("documents, or texts, must be a list of strings")
        return self


class RerankWork:
    """The scores of one request: token ids, and their computation."""

    def __init__(self, service: Service, body: RerankBody) -> None:
        self.service = service
        self.body = body
        self.documents = body.documents or body.texts or []
        if len(self.documents) > MOST_INPUTS:
            raise Problem(
                400, f"documents has {len(self.documents)} texts; at most {MOST_INPUTS} are allowed", param="documents"
            )
        self.ids = service.embedder.pairs(body.query, self.documents, body.instruction, body.label)

    def reply(self, cancelled: threading.Event) -> Any:
        """The reply, the best documents first."""
        scores = self.service.embedder.scores(self.ids, cancelled, self.body.label)
        order = sorted(range(len(scores)), key=lambda number: -scores[number])[: self.body.top_n]
        if self.body.texts is not None:
            return [
                {"index": number, "score": scores[number]}
                | ({"text": self.documents[number]} if self.body.return_text else {})
                for number in order
            ]
        results = [
            {"index": number, "relevance_score": scores[number]}
            | ({"document": {"text": self.documents[number]}} if self.body.return_documents else {})
            for number in order
        ]
        return {"model": self.service.name, "object": "list", "usage": usage(self.ids), "results": results}
