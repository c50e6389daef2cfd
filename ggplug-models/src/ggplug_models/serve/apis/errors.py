"""The form of errors, which each API has of its own."""

from __future__ import annotations

from typing import Any

from ggplug_models.serve.apis import messages, ollama
from ggplug_models.serve.problems import Problem


def body_of(problem: Problem, path: str) -> dict[str, Any]:
    """The body of the response with an error, in the form of the API that has this path."""
    if path.startswith(("/v1/messages", "/messages")):
        return messages.error_body(problem)
    return ollama.error_body(problem) if path.startswith("/api/") else problem.body
