"""``ggplug serve``: streams that can be read again, and several requests in one (``/predict``)."""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from held import Doing, until

from ggplug_models.networks.decoder import Decoder

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from served import WAIT, Live, served

from ggplug_models.serve.http import streams

COMPLETIONS = "/v1/completions"
STREAM = "/v1/stream?conv_id=one"
BODY = {"prompt": "hello", "max_tokens": 6, "temperature": 0, "stream": True}
NAMED = {"X-Conversation-Id": "one"}


@contextlib.contextmanager
def sent(live: Live, headers: dict[str, str]) -> Iterator[http.client.HTTPConnection]:
    """A connection on which a request was sent, until the end of the block."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", live.port, timeout=WAIT)) as connection:
        connection.request("POST", COMPLETIONS, json.dumps(BODY), headers)
        yield connection


def test_a_stream_can_be_read_again_from_any_byte(model: Decoder) -> None:
    with served(model, slots=1) as live:
        whole = live.ask("POST", COMPLETIONS, BODY, NAMED)[2]
        assert whole.endswith(b"data: [DONE]\n\n")
        for place in (0, 10, len(whole) - 1, len(whole)):
            status, headers, found = live.ask("GET", f"{STREAM}&from={place}")
            assert (status, found) == (200, whole[place:])
            assert headers["content-type"].startswith("text/event-stream")


def test_a_response_that_is_no_stream_can_be_read_from_any_byte(model: Decoder) -> None:
    with served(model, slots=1) as live:
        live.ask("POST", COMPLETIONS, {**BODY, "stream": False}, NAMED)

        def read(place: int) -> bytes:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", live.port, timeout=WAIT)) as connection:
                connection.request("GET", f"{STREAM}&from={place}")
                return connection.getresponse().read()

        whole = read(0)
        assert json.loads(whole)["usage"]["completion_tokens"] == 6
        for place in (10, len(whole) - 1, len(whole), len(whole) + 1):
            assert read(place) == whole[place:]


def test_a_response_that_another_one_replaced_is_not_kept(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: weakref.WeakSet[Any] = weakref.WeakSet()

    class Recorded(streams.Recorded):
        def __init__(self) -> None:
            super().__init__()
            kept.add(self)

    monkeypatch.setattr(streams, "Recorded", Recorded)
    with served(model, slots=1) as live:
        for _ in range(3):
            live.ask("POST", COMPLETIONS, BODY, NAMED)
        until(lambda: gc.collect() is not None and len(kept) == 1)


def test_a_text_goes_on_when_its_client_disconnects(model: Decoder) -> None:
    with served(model, slots=1) as live:
        assert live.gate is not None
        live.gate.shut()
        with sent(live, NAMED):
            live.gate.wait()
        live.gate.open()
        until(lambda: live.service.status.finished == 1)
        found = live.ask("GET", STREAM)[2]
        assert found.endswith(b"data: [DONE]\n\n")
        assert live.service.status.generated_tokens == 6


def test_a_stream_ends_when_a_client_says_so(model: Decoder) -> None:
    with served(model, slots=1) as live:
        assert live.gate is not None
        live.gate.shut()
        with sent(live, NAMED) as connection:
            live.gate.wait()
            assert live.ask("DELETE", STREAM)[0] == 204
            until(lambda: live.service.texts.batcher.slots[0].request.cancelled)
            live.gate.open()
            assert b"[DONE]" not in connection.getresponse().read()
        until(lambda: live.service.inside == 0)
        assert live.service.status.generated_tokens < 6
        assert live.ask("GET", STREAM)[2]["error"]["code"] == "stream_not_found"
        assert live.ask("DELETE", STREAM)[0] == 204  # it is gone already


def test_a_new_request_with_the_same_name_takes_the_place_of_the_old_one(model: Decoder) -> None:
    with served(model, slots=2) as live:
        assert live.gate is not None
        live.gate.shut()
        with sent(live, NAMED):
            live.gate.wait()
            with sent(live, NAMED) as new:
                live.gate.open()
                found = new.getresponse().read()
        assert live.ask("GET", STREAM)[2] == found
        assert b"[DONE]" in found


def test_the_oldest_stream_is_forgotten_when_there_are_too_many(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MOST", 2)
    with served(model, slots=1) as live:
        for name in "abc":
            live.ask("POST", COMPLETIONS, BODY, {"X-Conversation-Id": name})
        assert [live.ask("GET", f"/v1/stream?conv_id={name}")[0] for name in "abc"] == [404, 200, 200]


def test_a_stream_that_is_too_long_is_sent_but_not_kept(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_BYTES", 100)
    with served(model, slots=1) as live:
        assert live.ask("POST", COMPLETIONS, BODY, NAMED)[2].endswith(b"data: [DONE]\n\n")
        assert live.ask("GET", STREAM)[0] == 404


@pytest.mark.parametrize("too", ["long", "many"])
def test_a_text_whose_response_is_not_kept_ends_when_a_client_says_so(
    model: Decoder, monkeypatch: pytest.MonkeyPatch, too: str
) -> None:
    monkeypatch.setattr(streams, "MOST_BYTES" if too == "long" else "MOST", 1)
    monkeypatch.setattr("held.PATIENCE", WAIT / 3)  # less than the gate's, at whose end the request ends, too
    with served(model, slots=2) as live:
        assert live.gate is not None
        live.gate.shut()
        with sent(live, NAMED) as connection:
            live.gate.let()
            assert connection.getresponse().read(1)
        if too == "many":
            others = Doing(lambda: live.ask("POST", COMPLETIONS, BODY, {"X-Conversation-Id": "two"}))
            until(lambda: live.service.inside == 2)
        until(lambda: live.ask("GET", STREAM)[0] == 404)
        assert live.ask("DELETE", STREAM)[0] == 204
        (request,) = (each.request for each in live.service.texts.batcher.slots if each.number == 0)
        until(lambda: request.cancelled)
        live.gate.open()
        if too == "many":
            assert others.result()[0] == 200


@pytest.mark.parametrize("place", ["-1", "x", "", "1.0", "9" * 99])
def test_a_wrong_place_is_refused(model: Decoder, place: str) -> None:
    with served(model, slots=1) as live:
        live.ask("POST", COMPLETIONS, BODY, NAMED)
        status, _, found = live.ask("GET", f"{STREAM}&from={place}")
        assert (status, found["error"]["param"]) == (400, "from")


def test_a_long_name_is_refused(model: Decoder) -> None:
    with served(model, slots=1) as live:
        assert live.ask("POST", COMPLETIONS, BODY, {"X-Conversation-Id": "x" * 257})[0] == 400


# -- /predict --------------------------------------------------------------------------------------


def test_several_requests_in_one_are_answered_in_their_order(model: Decoder) -> None:
    text = {"prompt": "hello", "max_tokens": 4, "temperature": 0}
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "temperature": 0}
    with served(model, slots=2) as live:
        wanted = [live.ask("POST", path, body)[2] for path, body in ((COMPLETIONS, text), ("/chat/completions", chat))]
        instances = [
            {"@requestFormat": COMPLETIONS, **text, "stream": True},  # which is not possible here
            {"@requestFormat": "chatCompletions", **chat},
            {"@requestFormat": "chatCompletions", "messages": 1},
            {"@requestFormat": "applyTemplate", "messages": chat["messages"]},
        ]
        status, _, found = live.ask("POST", "/predict", {"instances": instances})
        assert status == 200
        first, second, third, fourth = found["predictions"]
        assert first["choices"][0]["text"] == wanted[0]["choices"][0]["text"]
        assert second["choices"][0]["message"] == wanted[1]["choices"][0]["message"]
        assert third["error"]["param"] == "messages"
        assert "prompt" in fourth


@pytest.mark.parametrize(
    "instances", [[], None, [1], [{}], [{"@requestFormat": "predict"}], [{"@requestFormat": "props"}], [{}] * 17]
)
def test_wrong_requests_in_one_are_refused(model: Decoder, instances: Any) -> None:
    with served(model, slots=1) as live:
        status, _, found = live.ask("POST", "/predict", {"instances": instances})
        assert (status, found["error"]["param"].split(".")[0]) == (400, "instances")
