"""Errors of requests, in the format of the OpenAI API."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from ggplug.errors import ContextFullError, DeviceLostError, FreedError, GGPlugError, ParameterError
from ggplug_models.chat.template import TemplateError
from ggplug_models.embedding.vectors import VectorsError
from ggplug_models.sampling import LogitsError
from ggplug_models.sampling.grammar import NoEndTokenError
from ggplug_models.serve.batcher import QueueFullError

RETRY_AFTER = 2
"""Seconds after which a client may repeat a request that was refused because of too much load."""

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_supported_error",
    503: "service_unavailable_error",
}


class Problem(Exception):
    """An error that is sent to the client.

    ``status``: of HTTP.  ``param``: the part of the request that is wrong.  ``code`` and ``kind`` identify the error
    for programs.  ``facts``: further fields of the error.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind or _KINDS.get(status, "invalid_request_error")
        self.facts = facts

    @property
    def body(self) -> dict[str, Any]:
        """The body of the response, as OpenAI's and llama-server's clients read it."""
        return {
            "error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code, **self.facts}
        }

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response that belong to the status."""
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {"Retry-After": str(RETRY_AFTER)} if self.status in (429, 503) else {}


def shutting_down() -> Problem:
    """The problem of a request that a server refuses or cancels because it shuts down."""
    return Problem(503, "the server is shutting down", code="shutting_down")


def too_many(what: str) -> Problem:
    """The problem of a request that a server refuses because of too much load.  ``what``: the load."""
    return Problem(429, f"too many requests: {what}; try again later", code="rate_limit_exceeded")


def too_long(count: int, most: int, what: str, limit: str, *, at_least: bool = False) -> Problem:
    """The problem of a text with too many tokens: ``count``, or at least so many, where ``most`` are allowed."""
    many = f"at least {count}" if at_least else str(count)
    return Problem(
        400,
        f"{what} has {many} tokens, which is too large and exceeds the available context size: {limit}",
        param=what.partition("[")[0],
        code="context_length_exceeded",
        kind="exceed_context_size_error",
        n_prompt_tokens=count,
        n_ctx=most,
    )


def problem_of(error: BaseException) -> Problem:
    """The problem to send to the client for an error.

    Errors that the request did not cause have the status 500, and no details, which may contain file names of the
    server; the log has them.
    """
    if isinstance(error, Problem):
        return error
    if isinstance(error, ValidationError):
        return _invalid(error)
    if isinstance(error, QueueFullError):
        return too_many(str(error))
    if isinstance(error, FreedError):
        return shutting_down()
    if isinstance(error, DeviceLostError):
        return Problem(503, "a device of the model was lost; try again later", code="device_lost")
    if isinstance(error, ContextFullError):
        return Problem(400, str(error), code="context_length_exceeded")
    if isinstance(error, (LogitsError, VectorsError)):
        return Problem(500, str(error), code="computation_failed")
    if isinstance(error, (ParameterError, TemplateError, NoEndTokenError)):
        return Problem(400, str(error))
    if isinstance(error, (GGPlugError, MemoryError)):
        return Problem(500, "the computation failed; see the server's log for the reason", code="computation_failed")
    return Problem(500, "internal server error; see the server's log for the reason", code="internal_error")


def _invalid(error: ValidationError) -> Problem:
    """The problem for the first error in a body."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    first = found[0]
    if first["type"] == "json_invalid":
        return Problem(
            400, f"the body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}", code="invalid_json"
        )
    if _TEXT in first["loc"]:  # report an error inside of a list if it is clear which kind of list is meant
        place = first["loc"][: first["loc"].index(_TEXT)]
        in_lists = [each for each in found[1:] if each["loc"][: len(place)] == place]
        kinds = {each["loc"][len(place)] for each in in_lists}
        if len(kinds) != 1 or in_lists[0]["type"] == "list_type":
            return wrong(place, "Input should be a string, or a list of one of the allowed types")
        first = in_lists[0]
    return wrong(first["loc"], first["msg"].removeprefix("Value error, "), first["type"])


_TEXT = "str"
"""The first of the types that a value may have, as pydantic names it in the location of an error."""


def wrong(place: tuple[int | str, ...], message: str, kind: str = "") -> Problem:
    """The problem of a wrong value.  ``place``: its keys and positions in the body.  ``kind``: of pydantic's error."""
    names = [str(part) for part in place if not str(part).startswith(("list[", "function-"))]
    param = ".".join(names) or None
    if kind == "extra_forbidden":
        return Problem(400, f"{param} is not supported by this server", param=param, code="unknown_parameter")
    if kind == "missing":
        return Problem(400, f"{param} is missing", param=param, code="missing_required_parameter")
    return Problem(400, f"{param}: {message}" if param else message, param=param, code="invalid_value")
