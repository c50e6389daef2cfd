"""The HTTP routes of one model: a table of paths, with and without ``/v1``."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ggplug_models.serve.answers import ClientDisconnected
from ggplug_models.serve.apis import (
    chat,
    completions,
    infill,
    llama_server,
    messages,
    ollama,
    ollama_models,
    responses,
    state,
    tokens,
)
from ggplug_models.serve.apis.embeddings import EmbeddingBody, VectorsWork
from ggplug_models.serve.apis.ollama_models import EmbedWork
from ggplug_models.serve.apis.rerank import RerankBody, RerankWork
from ggplug_models.serve.bodies.body import Body
from ggplug_models.serve.http.endpoint import (
    Bodies,
    TextApi,
    TextEndpoint,
    headers_of,
    json_response,
    logged,
    reported,
    service_of,
)
from ggplug_models.serve.http.event_stream import watched
from ggplug_models.serve.http.incoming import Incoming
from ggplug_models.serve.metrics import CONTENT_TYPE, Metrics
from ggplug_models.serve.page import Page
from ggplug_models.serve.problems import Problem, shutting_down
from ggplug_models.serve.service import Service
from ggplug_models.serve.vectors import CancelledError

CHAT, COMPLETIONS, EMBEDDINGS, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models"
HEALTH = ["/health", "/v1/health"]

TEXT_APIS: Mapping[TextApi, Sequence[str]] = {
    TextApi(chat.ChatBody, chat.ask, chat.ChatReply): (CHAT, "/chat/completions"),
    TextApi(completions.CompletionBody, completions.ask, completions.CompletionReply): (COMPLETIONS,),
    TextApi(llama_server.NativeBody, llama_server.ask, llama_server.NativeReply): ("/completion", "/completions"),
    TextApi(infill.InfillBody, infill.ask, llama_server.NativeReply): ("/infill",),
    TextApi(responses.ResponsesBody, responses.ask, responses.ResponsesReply): ("/v1/responses", "/responses"),
    TextApi(messages.AnthropicBody, messages.ask, messages.AnthropicReply): ("/v1/messages", "/messages"),
    TextApi(ollama.OllamaChatBody, ollama.ask_chat, ollama.OllamaChatReply): ("/api/chat",),
    TextApi(ollama.OllamaGenerateBody, ollama.ask_generate, ollama.OllamaGenerateReply): ("/api/generate",),
}
"""The APIs for texts, with their paths."""


@dataclass(frozen=True)
class Rules:
    """Who may use a server, what it offers, and the maximum size of requests.

    ``keys``: API keys; empty: no key is required.  ``hosts``: host names that requests may have besides those of this
    machine, if there are no keys; None: any.  ``origins``: origins whose web pages may read responses (CORS);
    ``localhost``: those of this machine.  ``body_limit``: maximum size of a request body in bytes.  ``strict``: whether
    unknown parameters and other model names are refused.  ``page``, ``metrics``, ``slots``: whether there are the chat
    page, ``/metrics`` and ``/slots``.  ``slot_files``: folder where slots are saved; None: nowhere.
    """

    keys: Sequence[str] = ()
    hosts: Collection[str] | None = ()
    origins: Sequence[str] = ()
    body_limit: int = 8 << 20
    strict: bool = False
    page: bool = True
    metrics: bool = True
    slots: bool = True
    slot_files: Path | None = None


Handler = Callable[..., Any]
Route = tuple[Sequence[str], Sequence[str], Handler]
"""Paths, methods, and the handler."""


def routes_of_a_model(rules: Rules) -> Iterator[Route]:
    """The routes of a model, whichever it is: the scope of a request has its service."""
    bodies = Bodies(Incoming(rules.body_limit), strict=rules.strict)
    paths = _Paths(rules, bodies)
    if rules.page:
        yield ["/"], ["GET", "HEAD"], Page().response
    yield HEALTH, ["GET", "HEAD"], health(lambda request: service_of(request).healthy)
    yield ["/metrics"], ["GET"], metrics_response(lambda request: service_of(request).metrics, rules)
    yield [MODELS, "/models"], ["GET"], of_model(lambda service: {"object": "list", "data": [state.model_of(service)]})
    yield [MODELS + "/{name:path}", "/models/{name:path}"], ["GET"], paths.model
    for api, places in TEXT_APIS.items():
        yield places, ["POST"], TextEndpoint(bodies, api).answer
    yield [EMBEDDINGS], ["POST"], paths.work(EmbeddingBody, VectorsWork, VectorsWork.openai)
    yield ["/embedding", "/embeddings"], ["POST"], paths.work(EmbeddingBody, VectorsWork, VectorsWork.native)
    rerank = ["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"]
    yield rerank, ["POST"], paths.work(RerankBody, RerankWork, RerankWork.reply)
    yield ["/tokenize"], ["POST"], paths.prepared(tokens.TokenizeBody, tokens.tokenize)
    yield ["/detokenize"], ["POST"], paths.prepared(tokens.DetokenizeBody, tokens.detokenize)
    yield ["/tokenizer_info"], ["GET"], of_model(tokens.tokenizer_info)
    yield ["/apply-template"], ["POST"], paths.prepared(tokens.TemplateBody, tokens.apply_template)
    counting = [f"{CHAT}/input_tokens", "/chat/completions/input_tokens"]
    yield counting, ["POST"], paths.prepared(tokens.TemplateBody, tokens.input_tokens)
    counting = ["/v1/messages/count_tokens", "/messages/count_tokens"]
    yield counting, ["POST"], paths.prepared(messages.AnthropicBody, messages.count_tokens)
    yield ["/v1/responses/input_tokens"], ["POST"], paths.prepared(responses.ResponsesBody, responses.input_tokens)
    yield ["/api/version"], ["GET"], answering(ollama_models.version)
    yield ["/api/tags"], ["GET"], of_model(lambda service: ollama_models.tags([service]))
    yield ["/api/ps"], ["GET"], of_model(lambda service: ollama_models.running([service]))
    yield ["/api/show"], ["POST"], paths.prepared(ollama_models.NameBody, ollama_models.show)
    yield ["/api/pull"], ["POST"], paths.prepared(ollama_models.NameBody, ollama_models.pull)
    for path, method in (("copy", "POST"), ("delete", "DELETE"), ("push", "POST"), ("create", "POST")):
        yield [f"/api/{path}"], [method], paths.prepared(ollama_models.NameBody, ollama_models.refuse)
    yield ["/api/embed"], ["POST"], paths.work(ollama_models.EmbedBody, EmbedWork, EmbedWork.new)
    yield ["/api/embeddings"], ["POST"], paths.work(ollama_models.EmbedBody, EmbedWork, EmbedWork.old)
    yield ["/props"], ["GET"], of_model(paths.props)
    yield ["/slots"], ["GET"], of_model(paths.slots)
    yield ["/slots/{number}"], ["POST"], paths.slot
    yield ["/lora-adapters"], ["GET"], of_model(state.adapters)
    yield ["/lora-adapters"], ["POST"], paths.set_adapters


def answering(function: Callable[[], Any]) -> Handler:
    """The handler of a path without parameters."""

    async def answer() -> Response:
        return json_response(function())

    return answer


def of_model(function: Callable[[Service], Any]) -> Handler:
    """The handler of a path about a model."""

    async def answer(request: Request) -> Response:
        return json_response(function(service_of(request)))

    return answer


def health(healthy: Callable[[Request], bool]) -> Handler:
    """The handler of ``/health``."""

    async def answer(request: Request) -> Response:
        found = healthy(request)
        return JSONResponse({"status": "ok" if found else "shutting down"}, 200 if found else 503)

    return answer


def metrics_response(metrics: Callable[[Request], Metrics], rules: Rules) -> Handler:
    """The handler of ``/metrics``."""
    begun = str(int(time.time()))

    async def answer(request: Request) -> Response:
        if not rules.metrics:
            raise Problem(501, "this server was started with --no-metrics", code="not_supported")
        return Response(metrics(request).text(), media_type=CONTENT_TYPE, headers={"Process-Start-Time-Unix": begun})

    return answer


class _Paths:
    """The handlers of the other routes."""

    def __init__(self, rules: Rules, bodies: Bodies) -> None:
        self._rules = rules
        self._bodies = bodies

    async def model(self, request: Request, name: str) -> Response:
        service = service_of(request)
        service.check_name(name)
        return json_response(state.model_of(service))

    def props(self, service: Service) -> dict[str, Any]:
        return state.props(service, slots=self._rules.slots, metrics=self._rules.metrics)

    def slots(self, service: Service) -> list[dict[str, Any]]:
        if not self._rules.slots:
            raise Problem(501, "this server was started with --no-slot-status", code="not_supported")
        return state.slots(service)

    async def slot(self, request: Request, number: str) -> Response:
        if not re.fullmatch("[0-9]{1,9}", number):  # int() fails with thousands of digits
            raise HTTPException(404)
        raw = await self._bodies.raw(request, "texts")
        unknown = self._bodies.unknown()
        files = state.SlotFiles(service_of(request), self._rules.slot_files)
        with reported():
            body = state.SlotBody.read(raw or b"{}", unknown)
            found = await files.act(int(number), request.query_params.get("action", ""), body)
        return json_response(found, headers_of(unknown, request.url.path))

    async def set_adapters(self, request: Request) -> Response:
        service = service_of(request)
        raw = await self._bodies.raw(request, "texts")
        with reported():
            asked = state.listed(raw)
            # In the thread for vectors, so that all those of a request have the same scales.
            found = await service.embedded(lambda _: state.set_adapters(service, asked), threading.Event())
        return json_response(found)

    def prepared(self, kind: type[Body], function: Callable[[Service, Any], Any]) -> Handler:
        """The handler of a path whose reply is computed without the model."""

        async def answer(request: Request) -> Response:
            service = service_of(request)
            raw = await self._bodies.raw(request, "texts")
            unknown = self._bodies.unknown()
            with reported():
                found = await service.prepared(lambda: function(service, kind.read(raw, unknown)))
            return json_response(found, headers_of(unknown, request.url.path))

        return answer

    def work(
        self,
        kind: type[Body],
        prepare: Callable[[Service, Any], Any],
        compute: Callable[[Any, threading.Event], Any],
    ) -> Handler:
        """The handler of a path for vectors or scores: ``compute`` runs in the thread for them."""

        async def answer(request: Request) -> Response:
            service = service_of(request)
            raw = await self._bodies.raw(request, "vectors")
            service.enter("vectors")
            cancelled = threading.Event()
            unknown = self._bodies.unknown()
            try:

                def prepared() -> Any:
                    body = kind.read(raw, unknown)
                    service.accept(body, strict=self._rules.strict)
                    return prepare(service, body)

                work = await service.prepared(prepared)
                async with watched(request.receive, cancelled.set):
                    found = await service.embedded(
                        lambda given: json_response(compute(work, given), headers_of(unknown, request.url.path)),
                        cancelled,
                    )
            except (ClientDisconnected, CancelledError) as error:
                if service.draining:
                    raise shutting_down() from error
                return Response(status_code=499)
            except BaseException as error:
                cancelled.set()
                raise logged(error) from error
            finally:
                service.leave("vectors")
            return found

        return answer
