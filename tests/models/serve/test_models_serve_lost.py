"""After a device was lost, the model is loaded again, and what was asked for goes on if that is allowed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from held import until
from test_models_batcher import Held, alone, sampler

import ggplug as gg
import ggplug_models
from ggplug.errors import DeviceLostError
from ggplug_models import Decoder
from ggplug_models.serve import Batcher, Request
from ggplug_models.serve.batcher import MOST_REPLAYS
from ggplug_models.serve.request import Shift
from ggplug_testing import FakeDevice

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from served import Live, running

from ggplug_models.serve.batcher import Counts
from ggplug_models.serve.loaded import Loaded, loaded
from ggplug_models.serve.opening import Opening
from ggplug_models.serve.service import About, Service, opened
from ggplug_models.weights.placement import Placement

LOST = DeviceLostError("the device was lost")
PROMPTS = ([1, 2, 3], [4, 5, 6, 7], [8] * 20)


class Losing(Held):
    """Sequences whose device is lost in the step with a number, from 0; None: never."""

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self._at = at

    def decode(self, batch: Any) -> Any:
        if len(self.steps) == self._at:
            raise LOST
        return super().decode(batch)


def texts(batcher: Batcher) -> list[list[int] | DeviceLostError]:
    """What three clients get at the same time: tokens, or the error."""
    requests = [Request(prompt, sampler(number), 12) for number, prompt in enumerate(PROMPTS)]
    for request in requests:
        batcher.submit(request)
    found: list[list[int] | DeviceLostError] = []
    for request in requests:
        try:
            found.append(list(request.tokens()))
        except DeviceLostError as error:
            found.append(error)
    return found


WANTED = [alone(prompt, sampler(number), 12) for number, prompt in enumerate(PROMPTS)]


@pytest.mark.parametrize("at", [0, 1, 3, 7])
def test_texts_go_on_after_losses_at_any_step(at: int) -> None:
    following = iter([Losing(4), Losing(6), Losing()])
    with Batcher(Losing(at), again=lambda: (next(following), None), replays=True) as batcher:
        assert texts(batcher) == WANTED
        assert (batcher.status.restored, batcher.status.failed, batcher.status.active) == (3, 0, 0)


def test_a_text_goes_on_after_a_loss_as_it_was_after_its_context_was_full() -> None:
    def tokens(sequences: Held, again: Any) -> list[int]:
        with Batcher(sequences, again=again, replays=True) as batcher:
            request = Request([1, 2, 3], sampler(0), 60, shift=Shift(2))
            batcher.submit(request)
            return list(request.tokens())

    assert tokens(Losing(50), lambda: (Losing(), None)) == tokens(Losing(), None)


def test_a_text_whose_context_has_just_become_full_goes_on_after_a_loss_in_the_prompt_of_another() -> None:
    first, prompt = [*range(1, 40)], [5, 6]

    def tokens(sequences: Losing) -> list[int]:
        with Batcher(sequences, again=lambda: (Losing(), None), replays=True) as batcher:
            text, other = (Request(each, sampler(0), 30, shift=Shift(2)) for each in (first, prompt))
            sequences.go.clear()
            batcher.submit(text)
            sequences.begun.acquire()
            batcher.submit(other)
            sequences.go.set()
            assert list(other.tokens()) == alone(prompt, sampler(0), 30)
            return list(text.tokens())

    # After step 1 the text has a token too many for its context; step 2, of the same round, is the other one.
    wanted = Losing()
    assert tokens(Losing(2)) == tokens(wanted)
    assert wanted.steps[1:3] == [{0: 1}, {1: 2}]


def test_without_permission_texts_end_with_the_error_and_the_next_ones_are_right() -> None:
    with Batcher(Losing(5), again=lambda: (Losing(), None)) as batcher:
        assert texts(batcher) == [LOST] * 3
        assert texts(batcher) == WANTED
        assert (batcher.status.restored, batcher.status.failed, batcher.status.replayed) == (1, 3, 0)


def test_a_text_that_loses_every_device_ends_with_the_error() -> None:
    with Batcher(Losing(0), again=lambda: (Losing(0), None), replays=True) as batcher:
        assert texts(batcher) == [LOST] * 3
        assert batcher.status.restored == MOST_REPLAYS


def test_while_the_model_cannot_be_loaded_requests_get_the_error() -> None:
    failing = [gg.errors.OutOfMemoryError("full"), LOST]

    def again() -> tuple[Held, None]:
        if failing:
            raise failing.pop()
        return Losing(), None

    with Batcher(Losing(5), again=again, replays=True) as batcher:
        assert texts(batcher) == [LOST] * 3
        call = batcher.call(lambda: 1)
        with pytest.raises(DeviceLostError):
            call.result(30)
        assert texts(batcher) == WANTED
        failing.append(LOST)
        restoring = batcher.call(lambda: batcher.restore(LOST))
        with pytest.raises(DeviceLostError):
            restoring.result(30)
        assert texts(batcher) == WANTED


class Failing:
    """A model that is loaded on a device which can be lost, and then on the CPU."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.device = FakeDevice("failing", inner=gg.device("CPU"))
        self.loaded: list[Any] = []

    def open(self) -> Any:
        devices = ["CPU"] if self.device.lost else [self.device, "CPU"]
        self.loaded.append(ggplug_models.load(self.path, devices))
        return self.loaded[-1]

    @contextmanager
    def served(self, **settings: Any) -> Iterator[Live]:
        @contextmanager
        def opens(counts: Counts) -> Iterator[Loaded]:
            with loaded(self.open, "tiny", counts, slots=2, **settings) as found:
                yield found

        about = About(adapters=settings.get("adapters", ()))
        with opened(Service("tiny", opens, slots=2, about=about)) as service, running(service) as live:
            yield live
        assert all(model.freed for model in self.loaded)


BODY = {"prompt": "hello", "max_tokens": 12, "temperature": 0}


def asked(live: Live, **more: Any) -> tuple[int, Any]:
    status, _, found = live.ask("POST", "/v1/completions", BODY | more)
    return status, found["choices"][0]["text"] if status == 200 else found["error"]["code"]


def test_a_server_s_answer_goes_on_with_the_model_that_was_loaded_again(data: Path, model: Decoder) -> None:
    failing, found = Failing(data / "qwen3.gguf"), []
    with failing.served(replays=True) as live:
        assert live.gate is not None
        live.gate.shut()
        client = threading.Thread(target=lambda: found.append(asked(live)))
        client.start()
        for _ in range(5):
            live.gate.wait()
            live.gate.let()
        live.gate.wait()
        failing.device.lose()
        live.gate.open()
        client.join(60)
        _, _, metrics = live.ask("GET", "/metrics")
    assert found == [(200, "".join(model.generate("hello", 12)))]
    assert b"\nggplug_restored_total 1.0\n" in metrics
    assert b"\nggplug_texts_replayed_total 1.0\n" in metrics
    assert len(failing.loaded) == 2


def test_without_permission_a_server_s_answer_is_a_problem_and_the_next_one_is_right(
    data: Path, model: Decoder
) -> None:
    failing = Failing(data / "qwen3.gguf")
    with failing.served() as live:
        failing.device.lose()
        assert asked(live) == (503, "device_lost")
        assert asked(live) == (200, "".join(model.generate("hello", 12)))


def test_texts_keep_the_scales_of_their_adapters_when_the_model_is_loaded_again(data: Path, model: Decoder) -> None:
    failing, adapter = Failing(data / "qwen3.gguf"), data / "adapters" / "qwen3-lora.gguf"
    chosen = [{}, {"lora": [{"id": 0, "scale": 0.5}]}, {"lora": [{"id": 0, "scale": 3}]}]  # one of them waits
    with failing.served(replays=True, adapters=[(adapter, 1.0)]) as live, ThreadPoolExecutor() as clients:
        assert live.gate is not None
        live.ask("POST", "/lora-adapters", [{"id": 0, "scale": -2}])
        live.gate.shut()
        running_texts = [clients.submit(asked, live, **chosen[0])]
        live.gate.wait()
        running_texts += [clients.submit(asked, live, **each) for each in chosen[1:]]
        until(lambda: live.service.status.waiting == 2)
        live.gate.let()
        live.gate.wait()
        assert (live.service.status.active, live.service.status.waiting) == (2, 1)
        failing.device.lose()
        live.gate.open()
        found = [text.result(60) for text in running_texts]
        assert [each["scale"] for each in live.ask("GET", "/lora-adapters")[2]] == [-2]
        afterwards = asked(live)
    assert len(failing.loaded) == 2
    with model.adapt(adapter) as there:
        wanted = [(200, "".join(model.generate("hello", 12, lora={there: scale}))) for scale in (-2, 0.5, 3)]
    assert found == wanted
    assert afterwards == wanted[0]
    assert len(set(wanted)) == 3


@pytest.mark.parametrize("name", ["qwen3", "bert"])
@pytest.mark.parametrize("replays", [False, True])
def test_vectors_are_computed_again_if_that_is_allowed(name: str, replays: bool, data: Path) -> None:
    failing = Failing(data / f"{name}.gguf")
    with failing.served(replays=replays) as live:
        assert live.ask("POST", "/v1/embeddings", {"input": "hello"})[0] == 200
        failing.device.lose()
        found = [live.ask("POST", "/v1/embeddings", {"input": "hello"}) for _ in range(2)]
    assert [status for status, _, _ in found] == [200 if replays else 503, 200]
    with ggplug_models.load(failing.path, ["CPU"]) as model:
        wanted = model.embed(["hello"])[0]
    np.testing.assert_array_equal(np.float32(found[1][2]["data"][0]["embedding"]), wanted)


def test_a_lost_device_is_left_out_and_the_others_hold_the_model(data: Path, request: pytest.FixtureRequest) -> None:
    names, path = ["kept", "gone"], data / "qwen3.gguf"
    kept, gone = [gg.register_device(FakeDevice(name, inner=gg.device("CPU"))) for name in names]
    for each in names:
        request.addfinalizer(partial(gg.unload, each))
    split = Placement.parse([("--split", "1,1")])
    opening = Opening(names, split, (), (), "ggml", {}, None, "f16", 64, 1, {}, replays=True)

    def used() -> set[Any]:
        with opening.of(path, "tiny")(Counts()) as found:
            return {weight.buffer.device for weight in found.model.weights if weight.buffer is not None}

    assert used() == {kept, gone}
    gone.lose()
    assert used() == {kept}
