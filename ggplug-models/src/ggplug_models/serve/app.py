"""The ASGI application of a server: its routes, who may use them, and that models are loaded for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from ggplug_models.serve.answers import ClientDisconnected
from ggplug_models.serve.apis.errors import response_of
from ggplug_models.serve.http import predictions, streams
from ggplug_models.serve.http.access import AccessControl, HeaderNames
from ggplug_models.serve.http.endpoint import IGNORED
from ggplug_models.serve.http.incoming import Incoming, RestOfBody
from ggplug_models.serve.http.models_routes import routes_of_models
from ggplug_models.serve.http.predictions import Predictions
from ggplug_models.serve.http.replicas import HEADER, Replicas
from ggplug_models.serve.http.routes import Route, routes_of_a_model
from ggplug_models.serve.http.routes import Rules as Rules
from ggplug_models.serve.http.routing import Choosing, Waking
from ggplug_models.serve.metrics import Metrics
from ggplug_models.serve.models import Models
from ggplug_models.serve.problems import Problem, problem_of
from ggplug_models.serve.service import Service


def application(served: Service | Models | Replicas, rules: Rules | None = None) -> ASGIApp:
    """Creates the ASGI application for the service of a model, for several models, or for copies of one."""
    rules = rules or Rules()
    if isinstance(served, Replicas):
        return _guarded(served, rules, Metrics(), ())
    routes = list(routes_of_a_model(rules))
    if isinstance(served, Service):
        return _guarded(of_a_model(served, rules, routes), rules, served.metrics, routes)
    metrics, incoming = Metrics(), Incoming(rules.body_limit)
    routes_of_all = list(routes_of_models(served, rules, metrics))
    own = _routed(routes_of_all)
    app = Choosing(served, own, _routed(routes), incoming)
    _add_predictions(own, app, routes, incoming)  # each of the instances names its model
    return _guarded(app, rules, metrics, [*routes_of_all, *routes])


def of_a_model(service: Service, rules: Rules, routes: Sequence[Route]) -> ASGIApp:
    """The application of a model, without access control.  ``routes``: those of :func:`.routes_of_a_model`."""
    app = _routed(routes)
    _add_predictions(app, app, routes, Incoming(rules.body_limit))
    return Waking(app, service)


def _add_predictions(app: FastAPI, answering: ASGIApp, routes: Iterable[Route], incoming: Incoming) -> None:
    """Adds ``/predict``.  ``answering``: the application that answers the requests in it, which are for ``routes``."""
    paths = [path for paths, methods, _ in routes for path in paths if "POST" in methods and "{" not in path]
    app.add_api_route(predictions.PATH, Predictions(answering, paths, incoming).answer, methods=["POST"])


def _routed(routes: Iterable[Route]) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    for paths, methods, handler in routes:
        for path in paths:
            app.add_api_route(path, handler, methods=[*methods])
    app.add_exception_handler(Problem, _error_response)
    app.add_exception_handler(HTTPException, _error_response)
    app.add_exception_handler(ClientDisconnected, _client_closed)
    return app


def _guarded(app: ASGIApp, rules: Rules, metrics: Metrics, routes: Iterable[Route]) -> ASGIApp:
    """The application behind access control, for web pages of other origins, too."""
    guarded: ASGIApp = AccessControl(
        streams.Streams(app),
        keys=rules.keys,
        hosts=None if rules.keys else rules.hosts,
        metrics=metrics,
        paths=[predictions.PATH, streams.PATH, *(path for paths, _, _ in routes for path in paths if "{" not in path)],
    )
    if rules.origins:
        guarded = Origins(
            guarded,
            allow_origins=[origin for origin in rules.origins if origin != "localhost"],
            allow_origin_regex=LOCAL if "localhost" in rules.origins else None,
            allow_methods=["GET", "POST", "DELETE", "OPTIONS"],
            allow_headers=["*"],  # clients send headers of their own, of any name
            allow_credentials=True,
            expose_headers=["Retry-After", IGNORED, HEADER],
        )
    return HeaderNames(RestOfBody(guarded))


class Origins(CORSMiddleware):
    """ASGI middleware that allows pages of some origins to read responses.

    The response before a request of another page (preflight) has the status 200 too, as llama-server's, but not the
    header without which a browser does not send the request.
    """

    def preflight_response(self, request_headers: Headers) -> Response:
        allowed = self.is_allowed_origin(request_headers["origin"])
        return super().preflight_response(request_headers) if allowed else Response(headers={"Vary": "Origin"})


LOCAL = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"
"""The origins of web pages from this machine."""


def _error_response(request: Request, error: Exception) -> Response:
    """The response to a request that failed before its response was started."""
    headers: Mapping[str, str] = {}
    if isinstance(error, HTTPException):
        headers = error.headers or {}
        what = "unknown path" if error.status_code == 404 else error.detail
        error = Problem(error.status_code, f"{what}: {request.method} {request.url.path}")
    problem = problem_of(error)
    return response_of(problem, request.url.path, headers)


def _client_closed(request: Request, error: Exception) -> Response:
    return Response(status_code=499)
