"""The form of errors, which each API has of its own."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse

from ggplug_models.serve.apis import messages, ollama
from ggplug_models.serve.problems import Problem


def response_of(problem: Problem, path: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The response with an error, in the form of the API that has this path."""
    if path.startswith(("/v1/messages", "/messages")):
        body = messages.error_body(problem)
    else:
        body = ollama.error_body(problem) if path.startswith("/api/") else problem.body
    return JSONResponse(body, problem.status, {**problem.headers, **(headers or {})})
