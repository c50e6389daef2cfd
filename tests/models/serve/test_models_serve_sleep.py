"""``ggplug serve``: memory is released while nothing is asked for, and the next request loads the model again."""

from __future__ import annotations

import asyncio
import datetime
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from held import Doing, until

import ggplug_models
from ggplug.errors import ModelError
from ggplug_models.networks.decoder import Decoder

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from paths import DATA
from served import Live, running, served

from ggplug_models.serve.batcher import Counts
from ggplug_models.serve.loaded import Loaded, loaded
from ggplug_models.serve.service import Service, State, opened

SOON = 0.05
BODY = {"prompt": "hello", "max_tokens": 4, "temperature": 0}


class Opening:
    """Loads the small model from its file; knows the models that it loaded."""

    def __init__(self) -> None:
        self.models: list[Decoder] = []
        self.fails = False

    @contextmanager
    def __call__(self, counts: Counts) -> Iterator[Loaded]:
        if self.fails:
            raise ModelError("the file is gone")
        with loaded(lambda: ggplug_models.load(DATA / "qwen3.gguf", ["CPU"]), "tiny", counts, slots=2) as found:
            assert isinstance(found.model, Decoder)
            self.models.append(found.model)
            yield found


@contextmanager
def sleeping(opening: Opening, idle: float | None = SOON) -> Iterator[Live]:
    """A server whose model is released after some time without requests."""
    with opened(Service("tiny", opening, slots=2, idle=idle)) as service, running(service) as live:
        yield live


def asleep(live: Live) -> bool:
    return live.service.state is State.SLEEPING


def text(live: Live) -> str:
    status, _, found = live.ask("POST", "/v1/completions", BODY)
    assert status == 200
    return str(found["choices"][0]["text"])


def test_a_client_that_goes_while_the_model_is_loaded_does_not_make_it_one_that_cannot_be_loaded() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    @contextmanager
    def opens(counts: Counts) -> Iterator[Loaded]:
        begun.set()
        goes_on.wait(60)
        raise ModelError("nobody waits for this")
        yield

    async def load_and_go(service: Service) -> None:
        loading = asyncio.create_task(service.wake())
        await asyncio.to_thread(begun.wait, 60)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        goes_on.set()

    service = Service("tiny", opens, slots=2)
    asyncio.run(load_and_go(service))
    assert begun.is_set()
    assert not service.failed


def test_a_model_is_released_when_nothing_is_asked_for_and_loaded_again_by_a_request() -> None:
    opening = Opening()
    with sleeping(opening) as live:
        until(lambda: asleep(live))
        until(lambda: opening.models[0].freed)
        first = text(live)
        until(lambda: len(opening.models) == 2 and opening.models[1].freed)
        assert text(live) == first
    assert all(model.freed for model in opening.models)


def test_what_is_known_is_answered_without_loading_the_model() -> None:
    opening = Opening()
    with sleeping(opening) as live:
        text(live)
        awake = live.ask("GET", "/v1/models")[2]["data"][0]
        until(lambda: asleep(live))
        assert live.ask("GET", "/health")[0] == 200
        assert live.ask("GET", "/props")[2]["is_sleeping"] is True
        assert live.ask("GET", "/v1/models")[2]["data"][0] == {
            **awake,
            "status": {"value": "sleeping", "failed": False},
        }
        assert [slot["n_tokens"] for slot in live.ask("GET", "/slots")[2]] == [0, 0]
        assert live.ask("GET", "/tokenizer_info")[0] == 200
        assert live.ask("GET", "/api/ps")[2] == {"models": []}
        assert live.ask("POST", "/else", {})[0] == 404
        assert asleep(live)
        assert live.ask("POST", "/tokenize", {"content": "hello"})[0] == 200
        assert live.ask("GET", "/props")[2]["is_sleeping"] is False or asleep(live)
    assert len(opening.models) == 2


def test_counters_go_on_after_the_model_was_released() -> None:
    with sleeping(Opening()) as live:
        for count in (1, 2):
            text(live)
            until(lambda: asleep(live))
            lines = live.ask("GET", "/metrics")[2].decode().splitlines()
            assert f"llamacpp:tokens_predicted_total {4 * count}" in lines
            assert f"ggplug_texts_finished_total {count}.0" in lines


def test_rates_are_those_since_the_metrics_were_last_asked_for(model: Decoder) -> None:
    def rate(live: Live) -> float:
        (line,) = [
            line
            for line in live.ask("GET", "/metrics")[2].decode().splitlines()
            if line.startswith("llamacpp:predicted_tokens_seconds ")
        ]
        return float(line.partition(" ")[2])

    with served(model, slots=1) as live:
        text(live)
        assert rate(live) > 0
        assert rate(live) == 0


@pytest.mark.parametrize("stream", [False, True])
def test_the_first_token_is_observed_when_it_comes(model: Decoder, stream: bool) -> None:
    with served(model, slots=1) as live:
        assert live.gate is not None
        live.gate.shut()
        asking = Doing(lambda: live.ask("POST", "/v1/completions", BODY | {"stream": stream})[0])
        live.gate.wait()
        live.gate.let()
        live.gate.wait()  # the step for the second token
        until(lambda: b"\nggplug_time_to_first_token_seconds_count 1.0\n" in live.ask("GET", "/metrics")[2])
        assert live.service.inside == 1
        live.gate.open()
        assert asking.result() == 200


def test_a_model_stays_loaded_while_a_text_is_generated(model: Decoder) -> None:
    with served(model, slots=1, idle=0) as live:
        until(lambda: asleep(live))
        text(live)
        until(lambda: asleep(live))
        assert text(live)


def test_a_model_that_cannot_be_loaded_again_is_a_typed_error(caplog: pytest.LogCaptureFixture) -> None:
    opening = Opening()
    with sleeping(opening) as live:
        until(lambda: asleep(live))
        opening.fails = True
        status, _, found = live.ask("POST", "/v1/completions", BODY)
        assert (status, found["error"]["code"]) == (500, "model_not_loaded")
        assert "the file is gone" not in found["error"]["message"]
        assert "the file is gone" in caplog.text
        assert live.ask("GET", "/v1/models")[2]["data"][0]["status"]["failed"] is True
        opening.fails = False
        assert text(live)


# -- Ollama's keep_alive ---------------------------------------------------------------------------


def test_keep_alive_says_how_long_a_model_stays_loaded_after_a_request() -> None:
    with sleeping(Opening(), None) as live:
        asked = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "a"}],
            "stream": False,
            "options": {"num_predict": 1},
        }
        assert live.ask("POST", "/api/chat", {**asked, "keep_alive": "50ms"})[0] == 200
        until(lambda: asleep(live))
        assert live.ask("POST", "/api/chat", asked)[0] == 200  # without it, the server's own rule: never
        (found,) = live.ask("GET", "/api/ps")[2]["models"]
        assert found["expires_at"].startswith("9999")


@pytest.mark.parametrize(
    ("value", "seconds"), [("1h30m", 5400), (300, 300), ("1.5s", 1.5), ("-1m", math.inf), (-1, math.inf)]
)
def test_durations_are_those_of_ollama(model: Decoder, value: Any, seconds: float) -> None:
    with served(model, slots=1) as live:
        before = datetime.datetime.now(datetime.UTC)
        status, _, found = live.ask("POST", "/api/generate", {"model": "tiny", "stream": False, "keep_alive": value})
        assert (status, found["done_reason"]) == (200, "load")
        (found,) = live.ask("GET", "/api/ps")[2]["models"]
        if seconds == math.inf:
            assert found["expires_at"].startswith("9999")
        else:
            expires = datetime.datetime.fromisoformat(found["expires_at"])
            assert seconds - 1 <= (expires - before).total_seconds() <= seconds + 60


def test_keep_alive_of_zero_releases_a_model(model: Decoder) -> None:
    with served(model, slots=1) as live:
        found = live.ask("POST", "/api/generate", {"model": "tiny", "stream": False, "keep_alive": 0})[2]
        assert found["done_reason"] == "unload"
        until(lambda: asleep(live))


@pytest.mark.parametrize("value", ["soon", "5", "1y", "", True, [], {}, "9" * 400 + "h"])
def test_what_is_no_duration_is_refused(model: Decoder, value: Any) -> None:
    with served(model, slots=1) as live:
        status, _, found = live.ask("POST", "/api/generate", {"model": "tiny", "keep_alive": value})
        assert (status, "keep_alive" in found["error"]) == (400, True)
