"""The routes of a server with several models that are about all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ggplug_models.serve.apis import ollama_models, state
from ggplug_models.serve.bodies.body import Body, Unknown
from ggplug_models.serve.http.endpoint import json_response, reported
from ggplug_models.serve.http.incoming import Incoming
from ggplug_models.serve.http.routes import HEALTH, MODELS, Route, Rules, answering, health, metrics_response
from ggplug_models.serve.metrics import Metrics
from ggplug_models.serve.models import Models
from ggplug_models.serve.page import Page
from ggplug_models.serve.service import FINGERPRINT


class ModelBody(Body):
    """A body that names a model."""

    model: str


def routes_of_models(models: Models, rules: Rules, metrics: Metrics) -> Iterator[Route]:
    """The routes about all models."""
    paths = _Paths(models, rules)
    if rules.page:
        yield ["/"], ["GET", "HEAD"], Page().response
    yield HEALTH, ["GET", "HEAD"], health(lambda _: models.healthy)
    yield ["/metrics"], ["GET"], metrics_response(lambda _: metrics, rules)
    yield ["/props"], ["GET"], answering(paths.props)
    yield [MODELS, "/models"], ["GET"], paths.models
    yield [MODELS + "/{name:path}", "/models/{name:path}"], ["GET"], paths.model
    yield ["/models/load"], ["POST"], paths.load
    yield ["/models/unload"], ["POST"], paths.unload
    yield ["/api/version"], ["GET"], answering(ollama_models.version)
    yield ["/api/tags"], ["GET"], answering(lambda: ollama_models.tags(models.services.values()))
    yield ["/api/ps"], ["GET"], answering(lambda: ollama_models.running(models.services.values()))


class _Paths:
    """The handlers that are not functions of the models alone."""

    def __init__(self, models: Models, rules: Rules) -> None:
        self._models = models
        self._incoming = Incoming(rules.body_limit)
        self._metrics = rules.metrics

    def props(self) -> dict[str, Any]:
        return {
            "role": "router",
            "max_instances": self._models.most,
            "models_autoload": self._models.autoload,
            "build_info": FINGERPRINT,
            "endpoint_metrics": self._metrics,
        }

    async def models(self, request: Request) -> Response:
        if request.query_params.get("reload") == "1":
            with reported():
                self._models.reload()
        found = [state.model_of(each) for each in self._models.services.values()]
        return json_response({"object": "list", "data": found})

    async def model(self, name: str) -> Response:
        return json_response(state.model_of(self._models.named(name)))

    async def load(self, request: Request) -> Response:
        self._models.load(self._models.named(await self._name(request)))
        return json_response({"success": True})

    async def unload(self, request: Request) -> Response:
        self._models.named(await self._name(request)).unload()
        return json_response({"success": True})

    async def _name(self, request: Request) -> str:
        raw = await self._incoming.read(request)
        with reported():
            return ModelBody.read(raw, Unknown()).model
