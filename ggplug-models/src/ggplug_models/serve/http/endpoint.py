"""Answers requests for texts, in any API: reads a body, generates, and writes the reply whole or as a stream."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ggplug.errors import in_one_line
from ggplug_models.serve.answers import Answers, ClientDisconnected, Delta
from ggplug_models.serve.bodies.asked import Asked
from ggplug_models.serve.bodies.body import Body, Unknown
from ggplug_models.serve.http.event_stream import EventStream, json_of, watched
from ggplug_models.serve.http.incoming import Incoming
from ggplug_models.serve.metrics import Metrics
from ggplug_models.serve.problems import Problem, problem_of
from ggplug_models.serve.reply import Reply
from ggplug_models.serve.service import Service
from ggplug_models.serve.writer import Text, Writer

LOG = logging.getLogger("ggplug.serve")

IGNORED = "X-Ggplug-Ignored"
"""Header of responses that names the parameters that were ignored."""


SERVICE = "ggplug.service"
"""What a request's scope has the service under that answers it."""


def service_of(request: Request) -> Service:
    """The service that answers a request."""
    service: Service = request.scope[SERVICE]
    return service


@dataclass(frozen=True)
class TextApi:
    """An API for texts: the type of its bodies, what they ask for, and how the answers are written."""

    body: type[Body]
    ask: Callable[[Writer, Any], Asked]
    reply: type[Reply]


class Bodies:
    """Reads the bodies of requests.  ``strict``: whether unknown parameters and model names are refused."""

    def __init__(self, incoming: Incoming, *, strict: bool) -> None:
        self.incoming = incoming
        self.strict = strict

    async def raw(self, request: Request, kind: str) -> bytes:
        """The body of a request for texts or vectors, which only counts as a request when it is complete."""
        service_of(request).check_capacity(kind)
        return await self.incoming.read(request)

    def unknown(self) -> Unknown:
        """A new record of unknown parameters."""
        return Unknown(self.strict)


def headers_of(unknown: Unknown, path: str) -> dict[str, str]:
    """The headers of a response to a request with unknown parameters, which the log lists, too."""
    if (names := unknown.header) is None:
        return {}
    LOG.warning("%s: ignored parameters that this server does not know: %s", path, names)
    return {IGNORED: names}


class TextEndpoint:
    """Answers the requests of an API for texts."""

    def __init__(self, bodies: Bodies, api: TextApi) -> None:
        self._bodies = bodies
        self._api = api

    async def answer(self, request: Request) -> Response:
        begun = time.monotonic()
        service = service_of(request)
        writer = service.texts
        raw = await self._bodies.raw(request, "texts")
        unknown = self._bodies.unknown()
        service.enter("texts")
        answers: Answers | None = None

        async def leave() -> None:
            if answers is not None:
                answers.cancel()
            service.leave("texts")

        try:

            def prepare() -> tuple[Body, Asked, list[Text]]:
                body = self._api.body.read(raw, unknown)
                service.accept(body, strict=self._bodies.strict)
                asked = self._api.ask(writer, body)
                if writer.defaults.verbose:
                    asked = replace(asked, verbose=True)
                return body, asked, writer.texts(asked)

            body, asked, texts = await service.prepared(prepare)
            headers = headers_of(unknown, request.url.path)
            answers = Answers(texts)
            answers.submit(writer.batcher)
            reply = self._api.reply(service.served, body, asked, answers)
            deltas = self._timed(answers, begun, service.metrics)
            if asked.stream:
                return EventStream(self._events(deltas, reply), answers.leave, leave, reply.MEDIA_TYPE, headers)
            async with watched(request.receive, answers.leave):
                async for _ in deltas:
                    pass
        except ClientDisconnected:
            await leave()
            return Response(status_code=499)  # which is not sent
        except BaseException as error:
            await leave()
            raise logged(error) from error
        await leave()
        return json_response(reply.whole(), headers)

    @staticmethod
    async def _timed(answers: Answers, begun: float, metrics: Metrics) -> AsyncIterator[Delta]:
        """Yields the pieces of the answers, and observes when the first of them came."""
        waits = True
        async for delta in answers.deltas():
            if waits and delta.progress is None:
                metrics.first.observe(time.monotonic() - begun)
                waits = False
            yield delta

    @staticmethod
    async def _events(deltas: AsyncIterator[Delta], reply: Reply) -> AsyncIterator[bytes]:
        """Yields the events of the answers.  An error becomes an event, because the status was sent already."""
        try:
            for data in reply.begin():
                yield data
            async for delta in deltas:
                for data in reply.piece(delta):
                    yield data
            for data in reply.end():
                yield data
        except ClientDisconnected:
            return
        except Exception as error:
            yield reply.failed(logged(error))


def json_response(found: Any, headers: dict[str, str] | None = None) -> Response:
    """A response with JSON."""
    return Response(json_of(found), media_type="application/json", headers=headers)


@contextmanager
def reported() -> Iterator[None]:
    """A block whose errors are those that the client gets; see :func:`logged`."""
    try:
        yield
    except BaseException as error:
        raise logged(error) from error


def logged(error: BaseException) -> Problem:
    """The problem to send to the client; errors of the server are logged with their traceback."""
    if isinstance(error, asyncio.CancelledError):  # the server is stopped
        raise error
    problem = problem_of(error)
    if problem.status >= 500 and not isinstance(error, Problem):
        LOG.error("%s: %s", problem.message, in_one_line(error), exc_info=error)
    return problem
