"""The HTTP routes of the server: the OpenAI API, the chat page, health and metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from ggplug.errors import in_one_line
from ggplug_models.serve.access import AccessControl
from ggplug_models.serve.answers import Answers, ClientDisconnected
from ggplug_models.serve.bodies import ChatBody, CompletionBody, EmbeddingBody, TextBody
from ggplug_models.serve.event_stream import DONE, EventStream, event, watched
from ggplug_models.serve.incoming import Incoming, RestOfBody
from ggplug_models.serve.metrics import CONTENT_TYPE
from ggplug_models.serve.page import Page
from ggplug_models.serve.problems import Problem, problem_of
from ggplug_models.serve.replies import ChatReply, CompletionReply, Reply
from ggplug_models.serve.service import Service
from ggplug_models.serve.vectors import CancelledError, embeddings
from ggplug_models.serve.writer import Text, Writer

LOG = logging.getLogger("ggplug.serve")

CHAT, COMPLETIONS, EMBEDDINGS, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models"


@dataclass(frozen=True)
class Rules:
    """Who may use a server, and the maximum size of requests.

    ``keys``: API keys; empty: no key is required.  ``hosts``: host names that requests may have besides those of this
    machine, if there are no keys; None: any.  ``origins``: origins whose web pages may read responses (CORS).
    ``body_limit``: maximum size of a request body in bytes.
    """

    keys: Sequence[str] = ()
    hosts: Collection[str] | None = ()
    origins: Sequence[str] = ()
    body_limit: int = 8 << 20


def application(service: Service, rules: Rules | None = None) -> ASGIApp:
    """Creates the ASGI application for a service."""
    rules = rules or Rules()
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    paths = _Paths(service, rules)
    page = Page()
    app.add_api_route("/", page.response, methods=["GET", "HEAD"])
    app.add_api_route("/health", paths.health, methods=["GET", "HEAD"])
    app.add_api_route("/metrics", paths.metrics)
    app.add_api_route(MODELS, paths.models)
    app.add_api_route(MODELS + "/{name:path}", paths.model)
    app.add_api_route(COMPLETIONS, paths.completions, methods=["POST"])
    app.add_api_route(CHAT, paths.chat, methods=["POST"])
    app.add_api_route(EMBEDDINGS, paths.embeddings, methods=["POST"])
    app.add_exception_handler(Problem, _error_response)
    app.add_exception_handler(HTTPException, _error_response)
    app.add_exception_handler(ClientDisconnected, _client_closed)
    known = ["/", "/health", "/metrics", MODELS, COMPLETIONS, CHAT, EMBEDDINGS]
    guarded: ASGIApp = AccessControl(
        app, keys=rules.keys, hosts=None if rules.keys else rules.hosts, metrics=service.metrics, paths=known
    )
    if rules.origins:
        guarded = CORSMiddleware(
            guarded,
            allow_origins=rules.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],  # clients send headers of their own, of any name
        )
    return RestOfBody(guarded)


def _error_response(request: Request, error: Exception) -> Response:
    """The response to a request that failed before its response was started."""
    headers: Mapping[str, str] = {}
    if isinstance(error, HTTPException):
        headers = error.headers or {}
        what = "unknown path" if error.status_code == 404 else error.detail
        error = Problem(error.status_code, f"{what}: {request.method} {request.url.path}")
    problem = problem_of(error)
    return JSONResponse(problem.body, problem.status, {**problem.headers, **headers})


def _client_closed(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


class _Paths:
    """The handlers of the routes."""

    def __init__(self, service: Service, rules: Rules) -> None:
        self._service = service
        self._incoming = Incoming(rules.body_limit)

    async def _body(self, request: Request, kind: str) -> bytes:
        """Reads the body of a request for texts or vectors, which only counts as a request when it is complete."""
        self._service.check_capacity(kind)
        return await self._incoming.read(request)

    async def health(self) -> Response:
        healthy = self._service.healthy
        return JSONResponse({"status": "ok" if healthy else "shutting down"}, 200 if healthy else 503)

    async def metrics(self) -> Response:
        return Response(self._service.metrics.text(), media_type=CONTENT_TYPE)

    async def models(self) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, name: str) -> Response:
        self._service.check_name(name)
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        service = self._service
        context = service.model.n_ctx if service.writer is None else service.writer.session.n_ctx
        return {
            "id": service.name,
            "object": "model",
            "created": service.created,
            "owned_by": "ggplug",
            "architecture": service.model.architecture,
            "writes": service.writer is not None,
            "context": context,
            "embedding_length": service.model.n_embd,
        }

    # -- texts -------------------------------------------------------------------------------------

    async def completions(self, request: Request) -> Response:
        return await self._texts(request, CompletionBody, Writer.completion, CompletionReply)

    async def chat(self, request: Request) -> Response:
        return await self._texts(request, ChatBody, Writer.chat, ChatReply)

    async def _texts(
        self,
        request: Request,
        body_type: type[TextBody],
        texts_of: Callable[[Writer, Any], list[Text]],
        reply_type: type[Reply],
    ) -> Response:
        begun = time.monotonic()
        service = self._service
        writer = service.texts
        raw = await self._body(request, "texts")
        service.enter("texts")
        answers: Answers | None = None
        try:

            def prepare() -> tuple[TextBody, list[Text]]:
                body = body_type.model_validate_json(raw)
                service.check_name(body.model)
                return body, texts_of(writer, body)

            body, texts = await service.prepared(prepare)
            answers = Answers(texts, writer.tokenizer.ends)
            answers.submit(writer.batcher)
            reply = reply_type(service.name, writer.tokenizer)
            if body.stream:
                usage = body.stream_options is not None and body.stream_options.include_usage
                events = self._events(answers, reply, begun, usage=usage)
                return EventStream(events, answers.leave, lambda: self._leave(answers))
            async with watched(request.receive, answers.leave):
                deltas = [delta async for delta in answers.deltas()]
        except ClientDisconnected:
            await self._leave(answers)
            return Response(status_code=499)  # which is not sent
        except BaseException as error:
            await self._leave(answers)
            raise _logged(error) from error
        await self._leave(answers)
        service.metrics.first.observe(time.monotonic() - begun)
        return JSONResponse(reply.whole(deltas, answers))

    async def _leave(self, answers: Answers | None) -> None:
        if answers is not None:
            answers.cancel()
        self._service.leave("texts")

    async def _events(self, answers: Answers, reply: Reply, begun: float, *, usage: bool) -> AsyncIterator[bytes]:
        """Yields the chunks of the answers.  An error becomes an event, because the status was sent already."""
        more: dict[str, Any] = {"usage": None} if usage else {}
        try:
            for index in range(len(answers.texts)):
                if (chunk := reply.begin(index)) is not None:
                    yield event(chunk | more)
            waits = True
            async for delta in answers.deltas():
                if waits:
                    self._service.metrics.first.observe(time.monotonic() - begun)
                    waits = False
                yield event(reply.chunk(delta, scored=answers.texts[delta.index].scores is not None) | more)
            if usage:
                yield event(reply.last(answers))
            yield DONE
        except ClientDisconnected:
            return
        except Exception as error:
            yield event(_logged(error).body)

    # -- vectors -----------------------------------------------------------------------------------

    async def embeddings(self, request: Request) -> Response:
        service = self._service
        raw = await self._body(request, "vectors")
        service.enter("vectors")
        cancelled = threading.Event()
        try:

            def prepare() -> tuple[EmbeddingBody, list[list[int]]]:
                body = EmbeddingBody.model_validate_json(raw)
                service.check_name(body.model)
                return body, service.embedder.ids(body)

            body, ids = await service.prepared(prepare)

            def compute(cancelled: threading.Event) -> bytes:
                vectors = service.embedder.vectors(ids, cancelled)
                found = embeddings(service.name, ids, vectors, body.encoding_format)
                return json.dumps(found, allow_nan=False).encode()

            async with watched(request.receive, cancelled.set):
                found = await service.embedded(compute, cancelled)
        except (ClientDisconnected, CancelledError):
            return Response(status_code=499)
        except BaseException as error:
            cancelled.set()
            raise _logged(error) from error
        finally:
            service.leave("vectors")
        return Response(found, media_type="application/json")


def _logged(error: BaseException) -> Problem:
    """The problem to send to the client; errors of the server are logged with their traceback."""
    if isinstance(error, asyncio.CancelledError):  # the server is stopped
        raise error
    problem = problem_of(error)
    if problem.status >= 500 and not isinstance(error, Problem):
        LOG.error("%s: %s", problem.message, in_one_line(error), exc_info=error)
    return problem
