"""``/predict`` of Google's Vertex AI: several requests in one, each for the path that it names."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message

from ggplug_models.serve.bodies.body import Body, Many, Unknown
from ggplug_models.serve.bodies.parameters import MOST_TEXTS
from ggplug_models.serve.http.endpoint import json_response, reported
from ggplug_models.serve.http.incoming import Incoming, again
from ggplug_models.serve.problems import Problem

PATH = "/predict"
FORMAT = "@requestFormat"


class PredictBody(Body):
    """The body of ``/predict``."""

    NO_EFFECT = frozenset(["parameters"])

    model: str | None = None
    instances: Annotated[Many[dict[str, Any]], Field(min_length=1, max_length=MOST_TEXTS)]


class Predictions:
    """Answers ``/predict``.

    ``app``: answers the requests in it.  ``paths``: those that it may name, by themselves or as ``chatCompletions``
    for ``/v1/chat/completions``.
    """

    def __init__(self, app: ASGIApp, paths: Iterable[str], incoming: Incoming) -> None:
        self._app = app
        self._incoming = incoming
        self._paths: dict[str, str] = {}
        for path in paths:
            words = re.split("[/_-]", path.removeprefix("/v1").removeprefix("/"))
            self._paths |= {path: path, words[0] + "".join(word[:1].upper() + word[1:] for word in words[1:]): path}

    async def answer(self, request: Request) -> Response:
        """The response: the bodies of the responses to all requests, in their order."""
        raw = await self._incoming.read(request)
        with reported():
            body = PredictBody.read(raw, Unknown())
            instances, model = body.instances, request.query_params.get("model") or body.model
            paths = [self._path(number, each) for number, each in enumerate(instances)]
        if model is not None:
            instances = [{"model": model, **each} for each in instances]
        found = [self._answered(request, path, each) for path, each in zip(paths, instances, strict=True)]
        return json_response({"predictions": await asyncio.gather(*found)})

    def _path(self, number: int, instance: dict[str, Any]) -> str:
        asked = instance.pop(FORMAT, None)
        if not isinstance(asked, str) or asked not in self._paths:
            param = f"instances.{number}.{FORMAT}"
            raise Problem(400, f"{param} must be such as 'chatCompletions'", param=param, code="invalid_value")
        return self._paths[asked]

    async def _answered(self, request: Request, path: str, instance: dict[str, Any]) -> Any:
        """The body of the response to one of the requests, which is never a stream."""
        body = bytearray()

        async def send(message: Message) -> None:
            body.extend(message.get("body", b""))

        headers = [each for each in request.scope["headers"] if each[0] not in (b"content-length", b"content-type")]
        headers.append((b"content-type", b"application/json"))
        asked = {"path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers, "state": {}}
        scope = {**request.scope, **asked}
        raw = json.dumps({**instance, "stream": False}).encode()
        await self._app(scope, again(raw, request.receive), send)
        return from_json(bytes(body)) if body else None  # the client has disconnected
