"""Copies of a model: each request is answered by one of them, and goes on to another one if that is lost."""

from __future__ import annotations

import asyncio
import http.client
import importlib
import json
import os
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from held import until

from ggplug.errors import DeviceLostError, ModelError
from ggplug_models import Decoder

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from served import Live, running

from ggplug_models.serve.app import Rules
from ggplug_models.serve.http.replicas import HEADER, Replicas, beginnings_of
from ggplug_models.serve.opening import Offer, Opening
from ggplug_models.serve.service import About
from ggplug_models.weights.placement import Placement


class Nearby:
    """A machine, and the actor on it, both of which are this process.  A test can hold its answers, and lose it."""

    devices: Sequence[str] = ("CPU",)

    def __init__(self, name: str) -> None:
        self.name = name
        self.lost = self.fails = False
        self.asked = 0
        self.held, self.begins = threading.Event(), threading.Event()
        self.held.set()
        self.begins.set()
        self._made: Any = None

    def start(self, factory: str, *given: Any) -> Nearby:
        if self.fails:
            raise ModelError("the file is gone")
        self.end()
        module, _, name = factory.partition(":")
        self._made = getattr(importlib.import_module(module), name)(*given)
        self.lost = False
        return self

    def call(self, what: str, *given: Any) -> Any:
        if what == "load":
            self._made._service.open()
            return None
        raise AssertionError(what)

    def post(self, what: str, *given: Any) -> None:
        asyncio.get_running_loop().create_task(getattr(self._made, what)(*given))

    async def stream(self, what: str, *given: Any) -> AsyncIterator[Any]:
        self.asked += 1
        while not self.begins.is_set():
            await asyncio.sleep(0.01)
        async for each in getattr(self._made, what)(*given):
            while not self.held.is_set() and not self.lost:
                await asyncio.sleep(0.01)
            if self.lost:
                raise DeviceLostError(f"{self.name} was lost")
            yield each

    def end(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made._service.close()


@pytest.fixture
def machines() -> list[Nearby]:
    return [Nearby("a"), Nearby("b")]


@contextmanager
def served(machines: Sequence[Nearby], data: Path) -> Iterator[Live]:
    opening = Opening(["CPU"], Placement(), (), (), "ggml", {}, None, "f16", 200, 2, {})
    given = (os.getcwd(), Offer(data / "qwen3.gguf", "tiny", opening, About(), 8, None), Rules(hosts=None))
    replicas = Replicas(machines, lambda _: given, slots=2, most_inside=40, body_limit=1 << 20)
    try:
        replicas.open()
        with running(replicas, Rules(keys=["secret"])) as live:
            yield live
    finally:
        replicas.close()
        for machine in machines:  # those that are lost, too
            machine.end()


KEY = {"Authorization": "Bearer secret"}


def asked(live: Live, prompt: str, headers: dict[str, str] | None = None) -> tuple[str, str]:
    """The text, and the replica that wrote it."""
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0}
    status, found, answer = live.ask("POST", "/v1/completions", body, KEY | (headers or {}))
    assert status == 200, answer
    return answer["choices"][0]["text"], found[HEADER.lower()]


CONVERSATIONS = ["hello " * 15, "good morning " * 7]


def test_conversations_stay_with_the_copy_that_began_them(machines: list[Nearby], data: Path, model: Decoder) -> None:
    with served(machines, data) as live:
        machines[0].held.clear()
        first: list[tuple[str, str]] = []
        thread = threading.Thread(target=lambda: first.append(asked(live, CONVERSATIONS[0])))
        thread.start()
        until(lambda: machines[0].asked == 1)
        second = asked(live, CONVERSATIONS[1])
        machines[0].held.set()
        thread.join(60)
        assert [name for _, name in (*first, second)] == ["0", "1"]
        for number, text in enumerate(CONVERSATIONS):
            wanted = "".join(model.generate(text + "and on", 4))
            assert asked(live, text + "and on") == (wanted, str(number))
        assert asked(live, CONVERSATIONS[0], {HEADER: "1"})[1] == "1"


def test_access_is_checked_before_a_copy_is_asked(machines: list[Nearby], data: Path) -> None:
    with served(machines, data) as live:
        assert live.ask("POST", "/v1/completions", {"prompt": "hello"})[0] == 401
        assert live.ask("POST", "/v1/completions", b"x" * (2 << 20), KEY)[0] == 413
        assert [machine.asked for machine in machines] == [0, 0]
        assert live.ask("GET", "/v1/models", headers=KEY)[2]["data"][0]["id"] == "tiny"


def test_a_request_that_was_not_answered_goes_to_another_copy_and_the_lost_one_is_started_again(
    machines: list[Nearby], data: Path
) -> None:
    with served(machines, data) as live:
        machines[0].lost = machines[0].fails = True
        assert asked(live, "hello")[1] == "1"
        machines[1].lost = machines[1].fails = True
        status, _, found = live.ask("POST", "/v1/completions", {"prompt": "hello"}, KEY)
        assert (status, found["error"]["code"]) == (503, "device_lost")


def test_a_lost_copy_is_started_again(machines: list[Nearby], data: Path) -> None:
    with served(machines, data) as live:
        machines[0].lost = True
        assert asked(live, "hello")[1] == "1"
        until(lambda: live.server.service.replicas[0].actor is not None)  # type: ignore[union-attr]
        assert asked(live, "hello", {HEADER: "0"})[1] == "0"


def test_a_client_that_leaves_ends_its_text(machines: list[Nearby], data: Path) -> None:
    with served(machines[:1], data) as live:
        connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=60)
        body = {"prompt": "hello", "max_tokens": 150, "temperature": 0, "stream": True, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {**KEY, "Content-Type": "application/json"})
        response = connection.getresponse()
        machines[0].held.clear()
        response.close()
        connection.close()
        service = machines[0]._made._service
        until(lambda: service.inside == 0)
        assert service.status.generated_tokens < 150
        machines[0].held.set()


def test_a_client_that_leaves_before_its_copy_knows_of_the_request_ends_its_text(
    machines: list[Nearby], data: Path
) -> None:
    with served(machines[:1], data) as live:
        machines[0].begins.clear()
        connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=60)
        body = {"prompt": "hello", "max_tokens": 150, "temperature": 0, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {**KEY, "Content-Type": "application/json"})
        until(lambda: machines[0].asked == 1)
        connection.close()
        until(lambda: not live.server.server_state.connections)
        machines[0].begins.set()
        service = machines[0]._made._service
        until(lambda: service.status.finished == 1)
        assert service.status.generated_tokens < 150


def test_beginnings_of_a_conversation_stay_as_it_goes_on() -> None:
    messages = [{"role": "user", "content": "hello " * 50}]
    before = list(beginnings_of(json.dumps({"messages": messages}).encode()))
    messages.append({"role": "assistant", "content": "good morning"})
    after = list(beginnings_of(json.dumps({"messages": messages, "max_tokens": 3}).encode()))
    assert before
    assert after[: len(before)] == before
    others = list(beginnings_of(json.dumps({"messages": [{"role": "user", "content": "hullo " * 50}]}).encode()))
    assert not set(others) & set(after)
    for raw in (b"", b"[1]", b"{", b'{"prompt": "short"}'):
        assert list(beginnings_of(raw)) == []
