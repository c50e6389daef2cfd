"""``ggplug serve``: who may come in, who has to wait, who leaves early, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from held import PATIENCE, Doing, until

from ggplug.errors import ModelError
from ggplug_models.networks.decoder import Decoder

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from served import Live, port_of, served

from ggplug_models.serve.app import Rules
from ggplug_models.serve.batcher import LEAST
from ggplug_models.serve.connections import Connection
from ggplug_models.serve.http.access import is_loopback
from ggplug_models.serve.http.event_stream import EventStream, event
from ggplug_models.serve.http.incoming import LARGE_BODIES, SMALL, Incoming

COMPLETIONS = "/v1/completions"


def body(prompt: str = "hello", most: int = 4, **settings: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": most, "temperature": 0, **settings}


def text(model: Decoder, prompt: str = "hello", most: int = 4) -> str:
    return "".join(model.generate(prompt, most))


class Client:
    """A connection with one request, which is not waited for."""

    def __init__(self, live: Live, sent: dict[str, Any]) -> None:
        data = json.dumps(sent).encode()
        self._socket = socket.create_connection(("127.0.0.1", live.port), PATIENCE)
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._socket.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)

    def answer(self) -> tuple[int, bytes]:
        """Status and body."""
        with self._socket, contextlib.closing(http.client.HTTPResponse(self._socket)) as found:
            found.begin()
            return found.status, found.read()

    def text(self) -> str:
        """What was written."""
        status, data = self.answer()
        assert status == 200
        return str(json.loads(data)["choices"][0]["text"])

    def events(self) -> list[Any]:
        """What a stream says."""
        lines = [line.removeprefix("data: ") for line in self.answer()[1].decode().split("\n\n") if line]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    def leave(self) -> None:
        """Closes the connection, as a process that ends does."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


# -- who may come in -------------------------------------------------------------------------------


def test_without_a_key_nobody_comes_in_where_one_is_set(model: Decoder) -> None:
    with served(model, Rules(keys=["first key", "sécond"]), slots=1) as live:
        for path in ("/v1/models", "/v1/models/tiny", COMPLETIONS, "/metrics", "/else"):
            for given in (
                {},
                {"Authorization": "Bearer other"},
                {"Authorization": "first key"},
                {"Authorization": "Basic first key"},
                {"Authorization": "Bearer "},
            ):
                method = "POST" if path == COMPLETIONS else "GET"
                status, headers, reply = live.ask(method, path, body() if method == "POST" else None, given)
                assert (status, headers["www-authenticate"]) == (401, "Bearer")
                assert reply["error"]["code"] == "invalid_api_key"
        for path in ("/", "/health"):
            assert live.ask("GET", path)[0] == 200
        for key in ("first key", "sécond"):
            header = {"Authorization": f"Bearer {key}".encode().decode("latin-1")}
            assert live.ask("GET", "/v1/models", None, header)[0] == 200
        assert live.service.writer is not None
        assert live.service.writer.batcher.status.finished == 0


def test_pages_under_other_names_do_not_reach_a_server_without_keys(model: Decoder) -> None:
    with served(model, Rules(hosts=["model.example"]), slots=1) as live:
        for host in ("localhost:8080", "127.0.0.1", "[::1]:80", "model.example:1"):
            assert live.ask("GET", "/v1/models", None, {"Host": host})[0] == 200, host
        status, _, reply = live.ask("GET", "/v1/models", None, {"Host": "evil.example"})
        assert (status, reply["error"]["code"]) == (403, "host_not_allowed")
        assert "access-control-allow-origin" not in live.ask("GET", "/health", None, {"Origin": "https://a.example"})[1]


def test_pages_of_named_origins_may_use_the_server(model: Decoder) -> None:
    # What the JavaScript client of OpenAI sends, of its own and for its settings, and what a page may add.
    names = [
        "authorization",
        "content-type",
        "openai-organization",
        "openai-project",
        "x-stainless-arch",
        "x-stainless-helper-method",
        "x-stainless-lang",
        "x-stainless-os",
        "x-stainless-package-version",
        "x-stainless-retry-count",
        "x-stainless-runtime",
        "x-stainless-runtime-version",
        "x-stainless-timeout",
        "x-else",
    ]
    with served(model, Rules(keys=["key"], origins=["https://a.example"]), slots=1) as live:
        for method in ("GET", "POST"):
            asked = {
                "Origin": "https://a.example",
                "Access-Control-Request-Method": method,
                "Access-Control-Request-Headers": ",".join(names),
            }
            status, headers, _ = live.ask("OPTIONS", COMPLETIONS, None, asked)
            assert (status, headers["access-control-allow-origin"]) == (200, "https://a.example")
            assert {*names} <= {*headers["access-control-allow-headers"].replace(" ", "").split(",")}
            status, headers, _ = live.ask("OPTIONS", COMPLETIONS, None, {**asked, "Origin": "https://b.example"})
            assert (status, "access-control-allow-origin" in headers) == (200, False)  # a browser then sends nothing
        for key, status in (("key", 200), ("other", 401)):  # a page can read why it was refused, and when to come again
            given = {"Origin": "https://a.example", "Authorization": f"Bearer {key}"}
            found, headers, _ = live.ask("GET", "/v1/models", None, given)
            assert (found, headers["access-control-allow-origin"]) == (status, "https://a.example")
            assert headers["access-control-expose-headers"] == "Retry-After, X-Ggplug-Ignored, X-Ggplug-Replica"


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("localhost", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("[::1]", True),
        ("a.localhost", True),
        ("0.0.0.0", False),
        ("example.org", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_names_of_this_machine(host: str, wanted: bool) -> None:
    assert is_loopback(host) is wanted


def test_bodies_that_are_too_long_are_refused(model: Decoder) -> None:
    with served(model, Rules(body_limit=1000), slots=1) as live:
        status, _, reply = live.ask("POST", COMPLETIONS, b"x" * 1001)
        assert (status, reply["error"]["code"]) == (413, "body_too_long")
        connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=PATIENCE)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", COMPLETIONS, iter([b"x" * 600] * 2), headers, encode_chunked=True)
        with contextlib.closing(connection), connection.getresponse() as response:
            assert response.status == 413
        assert live.ask("POST", COMPLETIONS, body())[0] == 200


@pytest.mark.parametrize("path", [COMPLETIONS, "/unknown"])
def test_a_client_that_sends_its_whole_body_first_sees_why_it_was_refused(model: Decoder, path: str) -> None:
    with served(model, Rules(body_limit=1000), slots=1) as live:
        connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=PATIENCE)
        headers = {"Content-Type": "application/json", "Connection": "close"}
        connection.request("POST", path, b"x" * (30 << 20), headers)
        with contextlib.closing(connection), connection.getresponse() as response:
            assert response.status == (413 if path == COMPLETIONS else 404)


def test_an_error_of_the_servers_files_is_not_the_clients(
    model: Decoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise ModelError("/secret/m.gguf was truncated from 2 to 1 bytes while the model uses it")

    with served(model, slots=1) as live:
        monkeypatch.setattr("ggplug_models.weights.files.MappedFiles.check", fail)
        status, _, reply = live.ask("POST", COMPLETIONS, body())
    assert (status, reply["error"]["code"]) == (500, "computation_failed")
    assert "secret" not in json.dumps(reply)
    assert "/secret/m.gguf was truncated" in caplog.text


def test_a_lost_connection_is_noticed_before_the_next_event() -> None:
    lost: list[bool] = []
    sent: list[bool] = []

    async def events() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x"

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        if message.get("body"):
            sent.append(bool(lost))
            asyncio.get_running_loop().call_soon(lost.append, True)

    async def close() -> None:
        pass

    asyncio.run(EventStream(events(), lambda: None, close)({}, receive, send))
    assert sent == [False] + [True] * 9


# -- who has to wait, and who leaves ---------------------------------------------------------------


def test_more_than_may_wait_are_refused_with_retry_after(model: Decoder) -> None:
    with served(model, slots=1, waiting=1) as live:
        assert live.gate is not None
        live.gate.shut()
        first = Client(live, body())
        live.gate.wait()
        second = Client(live, body())
        until(lambda: _status(live).waiting == 1)
        status, headers, reply = live.ask("POST", COMPLETIONS, body())
        assert (status, reply["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(headers["retry-after"]) > 0
        live.gate.open()
        for client in (first, second):
            assert client.text() == text(model)
        assert live.ask("POST", COMPLETIONS, body())[0] == 200
        status, _, reply = live.ask("POST", COMPLETIONS, body(n=3))  # more than the capacity of this server
        assert (status, reply["error"]["message"]) == (
            400,
            "a request for 3 texts exceeds the capacity of 2 active and waiting texts",
        )


def _status(live: Live) -> Any:
    assert live.service.writer is not None
    return live.service.writer.batcher.status


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot_at_once(model: Decoder, stream: bool) -> None:
    with served(model, slots=1) as live:
        assert live.gate is not None
        live.gate.shut()
        leaving = Client(live, body(most=400, stream=stream))
        live.gate.wait()
        live.gate.let(3)
        for _ in range(3):
            live.gate.wait()
        coming = Client(live, body())
        until(lambda: _status(live).waiting == 1)
        leaving.leave()
        until(lambda: _cancelled(live, 0))
        live.gate.open()
        assert coming.text() == text(model)
        assert _status(live).generated_tokens <= 3 + 1 + 4


def _cancelled(live: Live, number: int) -> bool:
    assert live.service.writer is not None
    return live.service.writer.batcher._slots[number].request.cancelled


def test_a_client_that_disconnects_while_it_waits_frees_its_place_in_the_queue(model: Decoder) -> None:
    with served(model, slots=1, waiting=1) as live:
        assert live.gate is not None
        live.gate.shut()
        working = Client(live, body())
        live.gate.wait()
        leaving = Client(live, body(stream=True))
        until(lambda: _status(live).waiting == 1)
        leaving.leave()
        until(lambda: _status(live).waiting == 0)
        coming = Client(live, body("other"))
        until(lambda: _status(live).waiting == 1)
        live.gate.open()
        assert working.text() == text(model)
        assert coming.text() == text(model, "other")


def test_the_prompt_of_a_client_that_leaves_is_read_no_further(model: Decoder) -> None:
    with served(model, slots=1) as live:
        assert live.gate is not None
        live.gate.shut()
        leaving = Client(live, body("word " * 80))
        live.gate.wait()
        leaving.leave()
        until(lambda: _cancelled(live, 0))
        live.gate.open()
        until(lambda: _status(live).active == 0)
        (first,) = live.gate.batches[0].values()
        assert LEAST <= first < 300
        assert _status(live).prompt_tokens == first
        assert live.ask("POST", COMPLETIONS, body())[2]["choices"][0]["text"] == text(model)


@pytest.fixture
def incoming(monkeypatch: pytest.MonkeyPatch) -> list[Incoming]:
    """What reads the bodies of each server that is made."""
    made: list[Incoming] = []

    def kept(limit: int) -> Incoming:
        made.append(Incoming(limit))
        return made[-1]

    monkeypatch.setattr("ggplug_models.serve.http.routes.Incoming", kept)
    return made


def _unfinished(live: Live, path: str, sent: int, length: int) -> socket.socket:
    """A connection whose body does not go on."""
    client = socket.create_connection(("127.0.0.1", live.port), PATIENCE)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    client.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + b"{" * sent)
    return client


def test_a_client_that_leaves_within_its_body_is_forgotten(model: Decoder, incoming: list[Incoming]) -> None:
    with served(model, slots=1, waiting=0) as live:
        for _ in range(3):
            client = _unfinished(live, COMPLETIONS, 1, 100)
            until(lambda: incoming[0].reading == 1)
            client.close()
            until(lambda: incoming[0].reading == 0)
        assert live.ask("POST", COMPLETIONS, body())[0] == 200


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/embeddings"])
def test_bodies_that_do_not_go_on_keep_nobody_out(model: Decoder, incoming: list[Incoming], path: str) -> None:
    with served(model, slots=1, waiting=1) as live, contextlib.ExitStack() as left:
        for _ in range(5):
            left.enter_context(_unfinished(live, path, 1, 100))
        until(lambda: incoming[0].reading == 5)
        asked = body() if path == COMPLETIONS else {"input": "a"}
        assert live.ask("POST", path, asked)[0] == 200
        assert live.service.inside == 0


def test_long_bodies_that_do_not_go_on_hold_a_bounded_part_of_memory(model: Decoder, incoming: list[Incoming]) -> None:
    limit = 2 * SMALL
    most = LARGE_BODIES * limit // SMALL
    with served(model, Rules(body_limit=limit), slots=1) as live, contextlib.ExitStack() as left:
        for _ in range(most):
            left.enter_context(_unfinished(live, COMPLETIONS, limit - 1, limit))
        until(lambda: incoming[0].held == most * (SMALL - 1))
        long = json.dumps(body()).encode().ljust(limit)
        status, headers, reply = live.ask("POST", COMPLETIONS, long)
        assert (status, reply["error"]["code"], "retry-after" in headers) == (429, "rate_limit_exceeded", True)
        assert live.ask("POST", COMPLETIONS, body())[0] == 200
        left.close()
        until(lambda: incoming[0].reading == 0)
        assert live.ask("POST", COMPLETIONS, long)[0] == 200
    assert incoming[0].held == 0


def test_a_body_that_pauses_too_long_is_refused(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggplug_models.serve.http.incoming.PAUSE_SECONDS", 0.05)
    with served(model, slots=1) as live:
        client = _unfinished(live, COMPLETIONS, 1, 100)
        with client, contextlib.closing(http.client.HTTPResponse(client)) as found:
            found.begin()
            assert found.status == 408
            assert "0.05 seconds without data" in json.loads(found.read())["error"]["message"]


# -- connections -----------------------------------------------------------------------------------

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


def _rest(client: socket.socket) -> bytes:
    """What a connection says until it is closed."""
    with client, contextlib.suppress(ConnectionError):
        return b"".join(iter(lambda: client.recv(1 << 16), b""))
    return b""


def _connected(live: Live, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", live.port), PATIENCE)
    client.sendall(sent)
    return client


@pytest.mark.parametrize("sent", [b"", b"G", GET], ids=["nothing", "a letter", "half a head"])
def test_a_head_that_does_not_arrive_ends_the_connection(
    model: Decoder, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr("ggplug_models.serve.connections.HEAD_SECONDS", 0.05)
    with served(model, slots=1) as live:
        assert _rest(_connected(live, sent)) == b""
        assert live.ask("GET", "/health")[0] == 200


def test_the_head_of_a_second_request_has_to_arrive_too(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggplug_models.serve.connections.HEAD_SECONDS", 0.05)
    with served(model, slots=1) as live, _connected(live, GET + b"\r\n") as client:
        found = b""
        while b'{"status":"ok"}' not in found:
            found += client.recv(1 << 16)
        client.sendall(GET)
        assert _rest(client) == b""


def test_a_head_that_comes_letter_by_letter_gets_no_more_time(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggplug_models.serve.connections.HEAD_SECONDS", 0.05)
    with served(model, slots=1) as live, _connected(live, GET + b"X: ") as client:
        client.setblocking(False)

        def closed() -> bool:
            try:
                client.send(b"a")
                return client.recv(1) == b""
            except BlockingIOError:
                return False
            except ConnectionError:
                return True

        until(closed)


def test_what_is_left_of_a_refused_body_gets_no_more_time(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggplug_models.serve.connections.HEAD_SECONDS", 0.05)
    with served(model, Rules(body_limit=1000), slots=1) as live:
        client = _unfinished(live, COMPLETIONS, 1, 2000)
        assert client.recv(12) == b"HTTP/1.1 413"
        client.sendall(b"x")
        _rest(client)


def test_an_answer_may_take_longer_than_the_head_of_its_request(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(model, slots=1) as live:
        assert live.gate is not None
        live.gate.shut()
        client = Client(live, body())
        live.gate.wait()
        (connection,) = live.server.server_state.connections
        assert isinstance(connection, Connection)
        assert connection.head_timer is None
        live.gate.open()
        assert client.text() == text(model)


def test_a_client_that_does_not_read_its_answers_is_left(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggplug_models.serve.connections.UNREAD_SECONDS", 0.05)
    with served(model, slots=1) as live, _connected(live) as client:
        until(lambda: live.server.server_state.connections)
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        until(lambda: not live.server.server_state.connections)


def test_of_too_many_connections_one_more_is_refused(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggplug_models.serve.connections.SPARE", 0)
    with served(model, slots=1, waiting=0) as live, contextlib.ExitStack() as left:
        first = left.enter_context(_connected(live))
        left.enter_context(_connected(live))
        until(lambda: len(live.server.server_state.connections) == 2)
        assert _rest(_connected(live)).endswith(b"\r\n\r\ntoo many connections")
        first.close()
        until(lambda: len(live.server.server_state.connections) == 1)
        assert live.ask("GET", "/health")[0] == 200


def test_vectors_for_a_client_that_left_are_not_computed(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(model, slots=1) as live:
        computed, embed = [], model.embed_ids

        def counted(ids: Any, progress: Any) -> Any:
            def one(done: int) -> None:
                computed.append(done)
                if len(computed) == 1:
                    connection.close()
                    until(lambda: _gone(progress))
                progress(done)

            return embed(ids, progress=one)

        monkeypatch.setattr(model, "embed_ids", counted)
        connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=PATIENCE)
        sent = json.dumps({"input": ["a"] * 100})
        connection.request("POST", "/v1/embeddings", sent, {"Content-Type": "application/json"})
        until(lambda: computed and live.service.inside == 0)
        assert len(computed) == 1
        assert sum(computed) < 100


def test_vectors_under_way_end_when_the_server_does_and_their_clients_get_an_error(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def endless(ids: Any, progress: Any) -> None:
        begun.set()
        while True:
            progress(1)

    monkeypatch.setattr(model, "embed_ids", endless)
    with served(model, slots=1, patience=0) as live:
        asking = [Doing(lambda: live.ask("POST", "/v1/embeddings", {"input": "a"})) for _ in range(2)]
        until(lambda: begun.is_set() and live.service.inside == 2)
        live.server.stop()
        for each in asking:
            status, _, found = each.result()
            assert (status, found["error"]["code"]) == (503, "shutting_down")


def test_requests_that_wait_for_a_thread_when_the_server_ends_get_an_error(model: Decoder) -> None:
    goes_on = threading.Event()
    with served(model, slots=1, patience=0) as live:
        for _ in range(live.service._prompts._max_workers):
            live.service._prompts.submit(goes_on.wait)
        asking = Doing(lambda: live.ask("POST", "/tokenize", {"content": "a"}))
        until(lambda: live.service._prompts._work_queue.qsize())
        live.server.stop()
        status, _, found = asking.result()
        goes_on.set()
        assert (status, found["error"]["code"]) == (503, "shutting_down")


def _gone(progress: Any) -> bool:
    try:
        progress(1)
    except Exception:
        return True
    return False


# -- what fails, and the end -----------------------------------------------------------------------


def test_a_failed_computation_is_reported_and_the_server_continues(
    model: Decoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with served(model, slots=1) as live:
        assert live.service.writer is not None
        with monkeypatch.context() as patched:
            patched.setattr(live.service.writer.session, "decode", _out_of_memory)
            status, _, reply = live.ask("POST", COMPLETIONS, body())
            assert (status, reply["error"]["type"]) == (500, "server_error")
            assert reply["error"]["message"] == "the computation failed; see the server's log for the reason"
            found = Client(live, body(stream=True)).events()
            assert [each["error"]["code"] for each in found] == ["computation_failed"]
            patched.setattr(live.service.writer.session, "decode", _without_a_file)
            for failed in (live.ask("POST", COMPLETIONS, body())[2], *Client(live, body(stream=True)).events()):
                assert failed["error"]["message"] == "internal server error; see the server's log for the reason"
        assert "MemoryError: no memory" in caplog.text
        assert "/secret/place" in caplog.text
        assert live.ask("POST", COMPLETIONS, body())[2]["choices"][0]["text"] == text(model)


def _strict(data: bytes) -> Any:
    """What JSON says, which has no NaN and no infinity."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(data, parse_constant=refuse)


def test_logits_that_are_no_numbers_are_a_fault_of_the_server(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(model, slots=1) as live:
        assert live.service.writer is not None
        decode = live.service.writer.session.decode
        for wrong in (np.nan, np.inf, -np.inf):

            def damaged(batch: Any, wrong: float = wrong) -> Any:
                return {seq: np.full_like(each, wrong) for seq, each in decode(batch).items()}

            monkeypatch.setattr(live.service.writer.session, "decode", damaged)
            for temperature in (0, 1):
                sent = body(temperature=temperature, logprobs=2)
                status, found = Client(live, sent).answer()
                assert (status, _strict(found)["error"]["code"]) == (500, "computation_failed")
                assert "NaN or infinity, or all are -inf" in _strict(found)["error"]["message"]
                (reply,) = Client(live, sent | {"stream": True}).events()
                assert reply["error"]["code"] == "computation_failed"


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_an_echoed_prompt_whose_logits_are_no_numbers_is_a_fault_of_the_server(
    model: Decoder, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    with served(model, slots=1) as live:
        assert live.service.writer is not None
        decode = live.service.writer.session.decode

        def damaged(batch: Any, *outputs: Any) -> Any:
            found = decode(batch, *outputs)
            for each in found.values():
                if each.ndim == 2:
                    each[1] = wrong
            return found

        monkeypatch.setattr(live.service.writer.session, "decode", damaged)
        for stream in (False, True):
            sent = body(logprobs=1, echo=True, stream=stream)
            found = Client(live, sent).events()[-1] if stream else _strict(Client(live, sent).answer()[1])
            assert found["error"]["code"] == "computation_failed"
            assert "NaN or infinity, or all are -inf" in found["error"]["message"]


def test_tokens_that_are_impossible_have_the_least_log_probability(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(model, slots=1) as live:
        assert live.service.writer is not None
        decode = live.service.writer.session.decode

        def only_two(batch: Any) -> Any:
            found = {seq: np.full_like(each, -np.inf) for seq, each in decode(batch).items()}
            for each in found.values():
                each[[65, 66]] = 3e38, -3e38
            return found

        monkeypatch.setattr(live.service.writer.session, "decode", only_two)
        status, data = Client(live, body(most=1, logprobs=3)).answer()
        (choice,) = _strict(data)["choices"]
        assert (status, choice["logprobs"]["token_logprobs"]) == (200, [0])
        assert sorted(choice["logprobs"]["top_logprobs"][0].values()) == [-9999, -9999, 0]
        streamed = Client(live, body(most=1, logprobs=3, stream=True)).answer()[1].split(b"\n\n")
        assert [_strict(line[6:]) for line in streamed if line and not line.endswith(b"[DONE]")]


@pytest.mark.parametrize("form", ["float", "base64"])
def test_vectors_that_are_not_finite_are_a_fault_of_the_server(
    model: Decoder, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    found = np.ones((2, model.n_embd), np.float32)
    found[1, 3] = np.nan
    with served(model, slots=1) as live:
        monkeypatch.setattr(model, "embed_ids", lambda ids, progress: found)
        status, _, reply = live.ask("POST", "/v1/embeddings", {"input": ["a", "b"], "encoding_format": form})
        assert (status, reply["error"]["code"]) == (500, "computation_failed")
        assert reply["error"]["message"].startswith("the embedding of input 1 is not finite: the model's weights are")


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_an_event_is_json_or_an_error(number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        event({"number": number})


def _out_of_memory(batch: Any) -> Any:
    raise MemoryError("no memory")


def _without_a_file(batch: Any) -> Any:
    raise FileNotFoundError(2, "No such file", "/secret/place")


def test_answers_under_way_end_before_the_server_does_and_no_more_are_begun(model: Decoder) -> None:
    with served(model, slots=1) as live:
        assert live.gate is not None
        live.gate.shut()
        under_way = Client(live, body(stream=True))
        live.gate.wait()
        live.server.stop()
        until(lambda: not live.service.healthy)
        assert live.ask("GET", "/health")[::2] == (503, {"status": "shutting down"})
        status, headers, reply = live.ask("POST", COMPLETIONS, body())
        assert (status, reply["error"]["code"], "retry-after" in headers) == (503, "shutting_down", True)
        live.gate.open()
        found = under_way.events()
        assert "".join(each["choices"][0]["text"] for each in found[:-1]) == text(model)
        assert found[-1] == "[DONE]"


def test_an_answer_that_takes_too_long_is_cut_off_and_its_client_gets_an_error(model: Decoder) -> None:
    with served(model, slots=1, patience=0) as live:
        assert live.gate is not None
        live.gate.shut()
        streamed, whole = Client(live, body(most=400, stream=True)), Client(live, body(most=400))
        live.gate.wait()
        until(lambda: _status(live).waiting == 1)
        live.server.stop()
        assert live.service.writer is not None
        until(lambda: live.service.writer.batcher.closed)
        live.gate.open()
        assert streamed.events()[-1]["error"]["code"] == "shutting_down"
        status, reply = whole.answer()
        assert (status, json.loads(reply)["error"]["code"]) == (503, "shutting_down")


def test_metrics_count_what_was_done(model: Decoder) -> None:
    with served(model, slots=2) as live:
        live.ask("POST", COMPLETIONS, body(most=5))
        live.ask("POST", COMPLETIONS, {})
        live.ask("GET", "/some/thing")
        status, headers, found = live.ask("GET", "/metrics")
        assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
        lines = found.decode().splitlines()
        for line in (
            'ggplug_http_requests_total{path="/v1/completions",status="200"} 1.0',
            'ggplug_http_requests_total{path="/v1/completions",status="400"} 1.0',
            'ggplug_http_requests_total{path="other",status="404"} 1.0',
            "ggplug_slots 2.0",
            "ggplug_texts_active 0.0",
            "ggplug_texts_waiting 0.0",
            "ggplug_texts_finished_total 1.0",
            "ggplug_generated_tokens_total 5.0",
            "ggplug_time_to_first_token_seconds_count 1.0",
        ):
            assert line in lines


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are Unicode there")
def test_a_file_whose_name_is_not_utf_8_is_served_under_one_that_is(data: Path, tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"m\xff.gguf")
    file.symlink_to(data / "qwen3.gguf")
    command = [sys.executable, "-m", "ggplug", "serve", str(file), "--port", "0", "--device", "CPU"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"})
    reading = Doing(lambda: port_of(process))
    try:
        port = reading.result()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", "/v1/models")
            assert json.load(connection.getresponse())["data"][0]["id"] == "m\N{REPLACEMENT CHARACTER}"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C cannot be sent to one process there")
def test_the_command_serves_until_ctrl_c(data: Path) -> None:
    command = [sys.executable, "-m", "ggplug", "serve", str(data / "qwen3.gguf"), "--port", "0", "--device", "CPU"]
    environment = {**os.environ, "GGPLUG_API_KEY": "key", "COLUMNS": "200"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    reading = Doing(lambda: port_of(process))
    try:
        port = reading.result()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        headers = {"Content-Type": "application/json", "Authorization": "Bearer key"}
        with contextlib.closing(connection):
            connection.request("POST", COMPLETIONS, json.dumps(body()), headers)
            found = json.load(connection.getresponse())
        assert (found["model"], found["usage"]["completion_tokens"]) == ("qwen3", 4)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        assert "Traceback" not in errors
        with pytest.raises(OSError), contextlib.closing(socket.create_connection(("127.0.0.1", port), 5)):
            pass
    finally:
        process.kill()
        process.communicate()


# -- open files ------------------------------------------------------------------------------------

FEW_FILES = """
import asyncio, logging, os, resource, socket, sys
from ggplug_models.serve import connections
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 64))
given = connections.allowed(1000)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
assert (soft, hard) == (64, 64) and 0 < given < 64 - len(os.listdir("/dev/fd")), (soft, hard, given)
assert connections.allowed(1) == 1

async def main():
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(connections.Complaints())
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    clients = []
    while True:
        try:
            clients.append(socket.create_connection(server.sockets[0].getsockname()))
        except OSError:
            break
    await asyncio.sleep(0.1)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the system has no such limit")
def test_where_few_files_may_be_open_there_are_fewer_connections_and_one_line_about_it() -> None:
    done = subprocess.run([sys.executable, "-c", FEW_FILES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == ["the process has too many open files: new connections wait (see: ulimit -n)"]
