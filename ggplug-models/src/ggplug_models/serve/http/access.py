"""Access control: API keys and host names; security headers and request counters for every response."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections.abc import Collection, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ggplug_models.serve.apis.errors import response_of
from ggplug_models.serve.metrics import Metrics
from ggplug_models.serve.problems import Problem

OPEN = frozenset(["/", "/health", "/v1/health"])
"""Paths that need no API key: the chat page, which asks for the key, and the health check."""

OTHER = "x-api-key"
"""The header in which clients of Anthropic's API send the key."""

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


def is_loopback(host: str) -> bool:
    """Whether a host name or address is the loopback interface of this machine."""
    host = host.strip("[]")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class AccessControl:
    """ASGI middleware that refuses requests without a key or for another host, counts requests, and adds headers.

    ``keys``: accepted API keys; empty: no key is required.  ``hosts``: accepted host names besides those of this
    machine; None: any.  Without keys, host names are checked, so that a web page of another site cannot reach the
    server under its own name (DNS rebinding).  ``paths``: paths with counters of their own.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Sequence[str],
        hosts: Collection[str] | None,
        metrics: Metrics,
        paths: Collection[str],
    ) -> None:
        self._app = app
        self._keys = [_digest(key.strip().encode("utf-8", "surrogateescape")) for key in keys]
        self._hosts = hosts
        self._metrics = metrics
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.monotonic()
        path = scope["path"] if scope["path"] in self._paths else "other"
        status = 499  # nginx's status for a client that disconnected before the response

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            problem = self._refused(scope)
            if problem is not None:
                await response_of(problem, scope["path"])(scope, receive, counted)
            else:
                await self._app(scope, receive, counted)
        finally:
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.whole.labels(path).observe(time.monotonic() - begun)

    def _refused(self, scope: Scope) -> Problem | None:
        headers = Headers(scope=scope)
        if self._hosts is not None:
            host = _name(headers.get("host", ""))
            if not is_loopback(host) and host not in self._hosts:
                return Problem(
                    403,
                    f"the host name {host!r} is not allowed; start the server with --allow-host NAME or --api-key KEY",
                    code="host_not_allowed",
                )
        if self._keys and scope["path"] not in OPEN and not self._knows(headers):
            given = "authorization" in headers or OTHER in headers
            sent = "wrong API key" if given else "this server requires an API key"
            return Problem(
                401, f"{sent}: send it as 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'", code="invalid_api_key"
            )
        return None

    def _knows(self, headers: Headers) -> bool:
        kind, _, key = headers.get("authorization", "").encode("latin-1").partition(b" ")
        if kind.lower() == b"bearer" and self._is_known(key):
            return True
        return OTHER in headers and self._is_known(headers[OTHER].encode("latin-1"))

    def _is_known(self, key: bytes) -> bool:
        digest = _digest(key.strip())
        # Every key is compared, each in constant time, so that the time reveals nothing about the keys.
        matches = [hmac.compare_digest(digest, known) for known in self._keys]
        return any(matches)


class HeaderNames:
    """ASGI middleware that writes header names with capitals, because some clients compare them as they are."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [(name.title(), value) for name, value in message["headers"]]}
            await send(message)

        await self._app(scope, receive, named)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _name(host: str) -> str:
    """The host name of a Host header, without the port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()
