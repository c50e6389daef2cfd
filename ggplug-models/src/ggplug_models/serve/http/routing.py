"""Which model answers a request, and that it is loaded meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from ggplug_models.serve.answers import ClientDisconnected
from ggplug_models.serve.apis.errors import response_of
from ggplug_models.serve.http.endpoint import SERVICE
from ggplug_models.serve.http.event_stream import watched
from ggplug_models.serve.http.incoming import Incoming, again
from ggplug_models.serve.models import Models
from ggplug_models.serve.problems import Problem
from ggplug_models.serve.service import Service

READS = ("GET", "HEAD")
"""The methods of requests that ask for a state, and load no model."""


class Waking:
    """ASGI application of one model, which is loaded while a request uses it."""

    def __init__(self, app: Starlette, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = {**scope, SERVICE: self._service}
        if scope["method"] in READS or not answers(self._app, scope):
            await self._app(scope, receive, send)
            return
        try:
            async with self._service.used():
                await self._app(scope, receive, send)
        except Problem as problem:
            await response_of(problem, scope["path"])(scope, receive, send)


class Choosing:
    """ASGI application of several models: ``model``, in a body or after the path, says which one answers.

    ``own``: answers the paths about all models.  ``app``: those about the model whose service is in the scope.
    """

    def __init__(self, models: Models, own: Starlette, app: Starlette, incoming: Incoming) -> None:
        self._models = models
        self._own = own
        self._app = app
        self._incoming = incoming

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        name = request.query_params.get("model")
        reads = scope["method"] in READS
        try:
            if not (reads and name) and answers(self._own, scope):
                await self._own(scope, receive, send)
            elif not answers(self._app, scope):
                await self._app(scope, receive, send)
            elif reads:
                await self._app({**scope, SERVICE: self._models.named(name)}, receive, send)
            else:
                raw = await self._incoming.read(request)
                service = self._models.named(name or await asyncio.to_thread(model_in, raw))
                async with AsyncExitStack() as used:
                    await self._enter(used, service, receive)
                    receiving = again(raw, receive)
                    del raw  # it is not needed twice
                    await self._app({**scope, SERVICE: service}, receiving, send)
        except ClientDisconnected:
            pass
        except Problem as problem:
            await response_of(problem, scope["path"])(scope, receive, send)

    async def _enter(self, used: AsyncExitStack, service: Service, receive: Receive) -> None:
        """Waits until the model is loaded.  Raises Problem; ClientDisconnected."""
        entering = asyncio.ensure_future(used.enter_async_context(self._models.used(service)))
        left = False

        def leave() -> None:
            nonlocal left
            left = entering.cancel()

        async with watched(receive, leave):
            await asyncio.wait([entering])
        if left:
            raise ClientDisconnected
        await entering


def answers(app: Starlette, scope: Scope) -> bool:
    """Whether an application has a handler for a request, and not only an error."""
    return any(route.matches(scope)[0] is Match.FULL for route in app.routes)


def model_in(raw: bytes) -> str | None:
    """The name of the model in a body: ``model``, or Ollama's ``name`` and ``source``.  Raises Problem."""
    try:
        body = from_json(raw)
    except ValueError as error:
        raise Problem(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    names = [body.get(key) for key in ("model", "name", "source")] if isinstance(body, dict) else []
    return next((name for name in names if isinstance(name, str)), None)
