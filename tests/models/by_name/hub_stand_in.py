"""A server on this machine that speaks the API of the Hugging Face hub, and fails when a test asks for it.

It answers what ``huggingface_hub`` asks for a model: the list of files with their hashes, where a file is, and its
bytes, which come from another address than the rest, as on the hub.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" * 6 + "c0ff"
WAIT = 60
"""Seconds after which the server gives up holding a download."""


@dataclass
class Hub:
    """Repositories by name, each with its files, and the faults of the server.

    ``gated``: repositories that need ``token``.  ``wrong``: files whose bytes arrive changed.  ``cuts``: of the next
    downloads, after which bytes of the file the connection ends.  ``hold``: the byte before which downloads wait until
    ``released``.  ``sent``: for each download the first byte, and how many were sent.  ``parts``: the files of which
    only the beginning was asked for, and how many bytes of it.  ``status``: of all answers.
    ``sizes``: what the list of files says instead of a file's size.
    ``failing``: whether downloads are answered with an error.  ``ranges``: whether they may begin within a file.
    """

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commit: str = COMMIT
    gated: set[str] = field(default_factory=set)
    token: str = "hf_secret"
    wrong: set[str] = field(default_factory=set)
    cuts: list[int] = field(default_factory=list)
    sizes: dict[str, Any] = field(default_factory=dict)
    hold: int | None = None
    status: int | None = None
    held: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    sent: list[tuple[str, int, int]] = field(default_factory=list)
    parts: list[tuple[str, int]] = field(default_factory=list)
    tokens_of_downloads: list[str | None] = field(default_factory=list)
    url: str = ""
    failing: bool = False
    ranges: bool = True
    stopped: bool = False
    server: ThreadingHTTPServer | None = None

    def stop(self) -> None:
        """Ends the server; its address then refuses connections."""
        assert self.server is not None
        self.stopped = True
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def serving() -> Iterator[Hub]:
    """A running stand-in; ``url`` is its address."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.server, hub.url = server, f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        hub.stop()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        parts = path.strip("/").split("/")
        if hub.stopped:  # the connection was kept from an earlier request
            self.close_connection = True
            return None
        if hub.status is not None:
            return self._answer(hub.status)
        if parts[:2] == ["api", "models"]:
            return self._about("/".join(parts[2:4]))
        if parts[0] == "bytes":
            return self._bytes("/".join(parts[1:3]), "/".join(parts[3:]))
        name, file = "/".join(parts[:2]), "/".join(parts[4:])
        files = hub.repositories.get(name)
        if files is None:
            return self._answer(404, {"X-Error-Code": "RepoNotFound"})
        if name in hub.gated and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self._answer(401, {"X-Error-Code": "GatedRepo"})
        if file not in files:
            return self._answer(404, {"X-Error-Code": "EntryNotFound"})
        digest, size = hashlib.sha256(files[file]).hexdigest(), str(len(files[file]))
        other = hub.url.replace("127.0.0.1", "localhost")
        about = {"X-Repo-Commit": hub.commit, "X-Linked-Etag": f'"{digest}"', "X-Linked-Size": size}
        self._answer(302, {**about, "Location": f"{other}/bytes/{name}/{file}"})

    def _about(self, name: str) -> None:
        files = self.hub.repositories.get(name)
        if files is None:
            return self._answer(401, {"X-Error-Code": "RepoNotFound"})
        siblings = []
        for file, content in files.items():
            lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            size = self.hub.sizes.get(file, len(content))
            siblings.append({"rfilename": file, "size": size, "blobId": "0" * 40, "lfs": lfs})
        about = {"id": name, "modelId": name, "sha": self.hub.commit, "siblings": siblings}
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(about).encode())

    def _bytes(self, name: str, file: str) -> None:
        hub, content = self.hub, self.hub.repositories[name][file]
        if file in hub.wrong:
            content = content[:-1] + bytes([content[-1] ^ 1])
        size = len(content)
        if hub.failing:
            return self._answer(500, {"Content-Type": "application/json"}, b'{"error": "out of order"}')
        if hub.ranges and "-" in self.headers.get("Range", "-").rstrip("-"):  # the beginning of a file
            count = min(int(self.headers["Range"].rpartition("-")[2]) + 1, size)
            hub.parts.append((file, count))
            self._head(206, {"Content-Range": f"bytes 0-{count - 1}/{size}", "Content-Length": str(count)})
            self.wfile.write(content[:count])
            return None
        first = (
            int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
            if hub.ranges and "Range" in self.headers
            else 0
        )
        hub.tokens_of_downloads.append(self.headers.get("Authorization"))
        end = hub.cuts.pop(0) if hub.cuts else size
        ranged = {"Content-Range": f"bytes {first}-{size - 1}/{size}"} if first else {}
        self._head(206 if first else 200, {**ranged, "Content-Length": str(size - first)})
        hold = hub.hold
        if hold is not None and hold > first:
            self.wfile.write(content[first:hold])
            self.wfile.flush()
            hub.held.set()
            hub.released.wait(WAIT)
            end = hold
        hub.sent.append((file, first, max(end - first, 0)))  # before the client can have everything
        if hold is None or hold <= first:
            self.wfile.write(content[first:end])
        if end < size:
            self.close_connection = True

    def _answer(self, status: int, headers: dict[str, str] | None = None, content: bytes = b"") -> None:
        self._head(status, {"Content-Length": str(len(content)), **(headers or {})})
        if self.command != "HEAD":
            self.wfile.write(content)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass
