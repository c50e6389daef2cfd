"""What a request is refused with, in the form of the OpenAI API."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from ggplug.errors import ContextFullError, FreedError, GGPlugError, ModelError, ParameterError
from ggplug_models.embedding.vectors import VectorsError
from ggplug_models.sampling import LogitsError
from ggplug_models.serve.batcher import QueueFullError

RETRY_AFTER = 2
"""Seconds after which a client that was refused for too much load may come again."""

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}


class Problem(Exception):
    """A request cannot be met: ``status`` of HTTP, and what the client is told.

    ``param``: which part of the request it is about.  ``code``: a name for programs.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """As the OpenAI API tells errors."""
        kind = _KINDS.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """What belongs to the status."""
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {"Retry-After": str(RETRY_AFTER)} if self.status in (429, 503) else {}


def shutting_down() -> Problem:
    """The server takes no more requests, or does not go on with this one."""
    return Problem(503, "the server is shutting down", code="shutting_down")


def problem_of(error: BaseException) -> Problem:
    """What a client is told of an error.

    Errors that the request is not to blame for have the status 500; what they say may name files of the server, and is
    for its log alone.
    """
    if isinstance(error, Problem):
        return error
    if isinstance(error, ValidationError):
        return _invalid(error)
    if isinstance(error, QueueFullError):
        return Problem(429, f"too many requests: {error}; try again later", code="rate_limit_exceeded")
    if isinstance(error, FreedError):
        return shutting_down()
    if isinstance(error, ContextFullError):
        return Problem(400, str(error), code="context_length_exceeded")
    if isinstance(error, (LogitsError, VectorsError)):
        return Problem(500, str(error), code="computation_failed")
    if isinstance(error, (ParameterError, ModelError)):
        return Problem(400, str(error))
    if isinstance(error, (GGPlugError, MemoryError)):
        return Problem(500, "the computation failed; the server's log says why", code="computation_failed")
    return Problem(500, "the server failed; its log says why", code="internal_error")


def _invalid(error: ValidationError) -> Problem:
    """The first thing that is wrong with a body."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    first = found[0]
    if first["type"] == "json_invalid":
        return Problem(400, f"the body is no JSON: {first['msg'].removeprefix('Invalid JSON: ')}", code="invalid_json")
    if _TEXT in first["loc"]:  # neither a text nor a list; what is wrong in a list is told if it has one kind of items
        place = first["loc"][: first["loc"].index(_TEXT)]
        in_lists = [each for each in found[1:] if each["loc"][: len(place)] == place]
        kinds = {each["loc"][len(place)] for each in in_lists}
        if len(kinds) != 1 or in_lists[0]["type"] == "list_type":
            return _wrong(place, "Input should be a text, or a list of what this parameter takes")
        first = in_lists[0]
    return _wrong(first["loc"], first["msg"].removeprefix("Value error, "), first["type"])


_TEXT = "str"
"""What pydantic calls the first of the kinds that a value may have."""


def _wrong(place: tuple[int | str, ...], message: str, kind: str = "") -> Problem:
    names = [str(part) for part in place if not str(part).startswith(("list[", "function-"))]
    param = ".".join(names) or None
    if kind == "extra_forbidden":
        return Problem(400, f"{param} is not known to this server", param=param, code="unknown_parameter")
    if kind == "missing":
        return Problem(400, f"{param} is missing", param=param, code="missing_required_parameter")
    return Problem(400, f"{param}: {message}" if param else message, param=param, code="invalid_value")
