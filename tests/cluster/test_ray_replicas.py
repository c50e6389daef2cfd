"""``ggplug serve --replicas``: copies of a model on the nodes of a cluster."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from held import until
from nodes import processes_of
from paths import DATA
from served import port_of

import ggplug_models

pytest.importorskip("ray")
pytestmark = pytest.mark.long

WAIT = 120
HEADER = "X-Ggplug-Replica"


@pytest.fixture
def port(cluster: Any) -> Iterator[int]:
    """The port of a server with copies on two nodes, whose processes end with it."""
    command = [sys.executable, "-m", "ggplug", "serve", str(DATA / "qwen3.gguf"), "--port", "0", "--context", "200"]
    command += ["--replicas", "2", "--device", "Ray/b/CPU", "--device", "Ray/c/CPU"]
    environment = os.environ | {"GGPLUG_RAY": cluster.address}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield port_of(process)
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT) == 0
            until(lambda: not processes_of(cluster, "ActorHost"))
        finally:
            process.kill()


def asked(port: int, headers: dict[str, str], **more: Any) -> tuple[int, str | None, bytes]:
    body = {"prompt": "hello", "max_tokens": 8, "temperature": 0, **more}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        return response.status, response.headers[HEADER], response.read()


def text(answer: tuple[int, str | None, bytes]) -> str:
    return str(json.loads(answer[2])["choices"][0]["text"])


def test_each_copy_answers_as_the_model_does_and_goes_on_after_the_other_was_killed(cluster: Any, port: int) -> None:
    with ggplug_models.load(DATA / "qwen3.gguf", ["CPU"]) as model:
        wanted = "".join(model.generate("hello", 8))
    for number in ("0", "1"):
        answer = asked(port, {HEADER: number})
        assert (*answer[:2], text(answer)) == (200, number, wanted)
        _, _, events = asked(port, {HEADER: number}, stream=True)
        pieces = [json.loads(line[6:]) for line in events.splitlines() if line.startswith(b"data: {")]
        assert "".join(piece["choices"][0]["text"] for piece in pieces) == wanted
    first, second = processes_of(cluster, "ActorHost")
    for process, fault in ((first, signal.SIGKILL), (second, signal.SIGSTOP)):
        os.kill(process, fault)
        for number in ("0", "1"):
            assert text(asked(port, {HEADER: number})) == wanted
    until(lambda: len(set(processes_of(cluster, "ActorHost")) - {first, second}) == 2)
    for number in ("0", "1"):
        until(lambda: asked(port, {HEADER: number})[1] == number)  # noqa: B023
