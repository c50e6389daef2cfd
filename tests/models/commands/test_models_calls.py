"""What a model's methods refuse, and how freeing it meets calls of other threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from held import Doing, Gate, held

import ggplug as gg
import ggplug_models
from ggplug.errors import BusyError, FreedError, ParameterError
from ggplug_models import LongText


@pytest.fixture
def encoder(data: Path) -> Any:
    pytest.importorskip("ggplug_cpu")
    with ggplug_models.load(data / "bert.gguf", ["CPU"]) as model:
        yield model


def test_free_waits_for_a_whole_call(encoder: Any) -> None:
    gate = Gate()
    ids = [[1, 2, 3], [1, 2], [2, 1]]
    encoder.embed_ids(ids, batch=1)  # compiles
    encoder.embed_ids(ids)
    with held(lambda: encoder.embed_ids(ids, batch=1, progress=gate), gate) as embedding:
        other = Doing(lambda: encoder.embed_ids(ids))  # other threads compute between its batches
        assert other.result().shape[0] == 3
        freeing = Doing(encoder.free)
        assert freeing.settled()
        assert not encoder.freed
    assert embedding.result().shape[0] == 3
    freeing.result()
    for refused in (lambda: encoder.embed_ids(ids), lambda: encoder.embed_ids([]), lambda: encoder.hidden_states([1])):
        with pytest.raises(FreedError, match="was freed") as seen:
            refused()
        assert seen.value.thing is encoder
    encoder.free()


def test_a_model_is_not_freed_from_within_its_own_call(encoder: Any) -> None:
    with pytest.raises(BusyError):
        encoder.embed_ids([[1, 2]], progress=lambda n: encoder.free())
    assert encoder.embed_ids([[1, 2]]).shape[0] == 1


@pytest.mark.parametrize(
    "texts", [5, None, (t for t in ("a",)), {"a": 1}, {"a"}, b"a"], ids=lambda texts: type(texts).__name__
)
def test_texts_that_are_no_sequence_are_refused(encoder: Any, texts: Any) -> None:
    with pytest.raises(ParameterError, match="texts must be a sequence"):
        encoder.embed(texts)


@pytest.mark.parametrize("batch", ["8", 2.5, None, True, 0, -1])
def test_a_batch_that_is_no_positive_integer_is_refused(encoder: Any, batch: Any) -> None:
    with pytest.raises(ParameterError, match="batch must be an integer of at least 1"):
        encoder.embed_ids([[1]], batch=batch)


NO_TOKENS = [1, "abc", [[1]], [1.5], [True], [10**6], [-1], [2**70], [None], [], [[1], [1, 2]]]


@pytest.mark.parametrize("tokens", NO_TOKENS, ids=repr)
def test_ids_that_are_no_tokens_are_refused(encoder: Any, tokens: Any) -> None:
    with pytest.raises(ParameterError, match=r"ids\[0\]"):
        encoder.embed_ids([tokens])
    with pytest.raises(ParameterError, match="ids"):
        encoder.hidden_states(tokens)


def test_a_text_of_too_many_tokens_is_refused_by_hidden_states(encoder: Any) -> None:
    with pytest.raises(ParameterError, match="the context length of the model is"):
        encoder.hidden_states([1] * (encoder.n_ctx + 1))


def test_ids_may_be_arrays(encoder: Any) -> None:
    ids = [[1, 2, 3], [2, 1]]
    wanted = encoder.embed_ids(ids)
    assert np.array_equal(encoder.embed_ids([np.array(each) for each in ids]), wanted)


@pytest.mark.parametrize("devices", ["CPU", 5, [0]])
def test_devices_that_are_no_list_of_devices_are_refused(devices: Any) -> None:
    with pytest.raises(ParameterError, match=r"devices must be a list|neither a Device"):
        ggplug_models.load("no such file", devices)
    with pytest.raises(ParameterError):
        gg.Scheduler(devices)


def test_what_the_source_of_a_long_text_raises_is_not_blamed_on_the_file(encoder: Any) -> None:
    def broken(*_: Any) -> str:
        return str(1 // 0)

    with pytest.raises(ZeroDivisionError):
        encoder.embed([LongText(broken)])
