"""``ggplug serve --draft``: texts are those without drafts, under load too; what was accepted is reported."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import ggplug_models
from ggplug.errors import ModelError, ParameterError
from ggplug_models.generation.drafts import Drafts, PromptLookup
from ggplug_models.networks.decoder import Decoder
from ggplug_models.sampling import Sampler, Sampling
from ggplug_models.serve.batcher import Batcher
from ggplug_models.serve.request import Request
from ggplug_models.serve.slot_drafts import SlotDrafts
from ggplug_models.state.session import Session

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from heads import ORACLES, TARGET, write_eagle, write_next
from served import served

from ggplug_models.serve.service import serving
from ggplug_models.serve.writer import Defaults

PROMPTS = ["the the the the the", "a hen in the inn", "on on on", "1 2 3 4 1 2 3", "an ant at tea", "ten hats"]


@pytest.fixture(scope="module")
def headed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decoder]:
    """GLM 4.5 with a block that guesses."""
    with ggplug_models.load(write_next("glm4moe", tmp_path_factory.mktemp("m") / "a.gguf"), ["CPU"]) as model:
        yield model


@pytest.fixture(scope="module")
def llama() -> Iterator[Decoder]:
    with ggplug_models.load(ORACLES / f"{TARGET}.gguf", ["CPU"]) as model:
        yield model


def texts(live: Any, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """The completions of all prompts, asked for at the same time."""
    found: dict[str, Any] = {}

    def ask(prompt: str) -> None:
        found[prompt] = live.ask("POST", "/completion", {"prompt": prompt, "ignore_eos": True, **parameters})[2]

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in PROMPTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[prompt] for prompt in PROMPTS]


@pytest.mark.parametrize("what", ["mtp", "ngrams", "lookup", "eagle3", "smaller"])
@pytest.mark.parametrize("slots", [1, 3])
def test_each_text_is_the_one_without_drafts(
    what: str, slots: int, headed: Decoder, llama: Decoder, tmp_path: Path
) -> None:
    model = llama if what in ("eagle3", "smaller") else headed
    draft: Any = {"eagle3": tmp_path / "eagle3.gguf", "smaller": ORACLES / f"{TARGET}.gguf"}.get(what, what)
    if what == "eagle3":
        write_eagle("eagle3", draft)
    for parameters in ({"n_predict": 24, "temperature": 0}, {"n_predict": 24, "seed": 5, "repeat_penalty": 1.1}):
        with served(model, slots=slots, context=60) as live:
            plain = [each["content"] for each in texts(live, parameters)]
        with served(model, slots=slots, context=60, draft=draft, draft_tokens=3) as live:
            found = texts(live, parameters)
            again = texts(live, parameters)
            metrics = live.ask("GET", "/metrics")[2].decode()
        assert [each["content"] for each in found] == plain
        assert [each["content"] for each in again] == plain
        drafted = sum(each["timings"].get("draft_n", 0) for each in (*found, *again))
        accepted = sum(each["timings"].get("draft_n_accepted", 0) for each in (*found, *again))
        assert 0 <= accepted <= drafted
        assert drafted > 0 or what == "lookup"  # texts of random weights repeat little
        assert f"llamacpp:spec_decode_num_draft_tokens_total {drafted}\n" in metrics
        assert f"llamacpp:spec_decode_num_accepted_tokens_total {accepted}\n" in metrics


def test_timings_without_drafts_have_no_numbers_of_drafts(llama: Decoder) -> None:
    with served(llama, slots=1, context=60) as live:
        assert "draft_n" not in live.ask("POST", "/completion", {"prompt": "a", "n_predict": 3})[2]["timings"]


class Known(Drafts):
    """Guesses a text that is known."""

    def __init__(self, text: Sequence[int], most: int = 3) -> None:
        super().__init__(most)
        self.text = list(text)
        self.asked: list[int] = []

    def guess(self, text: Sequence[int], most: int) -> list[int]:
        self.asked.append(most)
        return self.text[len(text) : len(text) + most]


def test_right_guesses_save_steps_and_end_where_the_text_does(llama: Decoder) -> None:
    prompt = [5, 6, 7]
    plain = list(llama.generate_ids(prompt, 21))
    known = Known([*prompt, *plain])
    with Session(llama, 60) as session, Batcher(session, drafts=SlotDrafts([known], llama.n_vocab)) as batcher:
        request = Request(prompt, lambda logits, history: int(logits.argmax()), 21)
        batcher.submit(request)
        assert list(request.tokens()) == plain
        status = batcher.status
        assert (status.steps, status.drafted, status.accepted, status.drafts) == (1 + 5, 15, 15, 5)
        assert (request.drafted, request.accepted) == (15, 15)
        ended = Request(prompt, lambda logits, history: int(logits.argmax()), 21, ends=[plain[6]])
        batcher.submit(ended)
        assert list(ended.tokens()) == plain[: plain.index(plain[6])]
        after = Request(prompt, Sampler(Sampling(temperature=0)), 21)
        batcher.submit(after)
        assert list(after.tokens()) == plain


def test_the_more_texts_are_generated_the_fewer_tokens_are_guessed() -> None:
    for texts_at_once, most in ((1, 3), (2, 3), (3, 1), (4, 1), (8, 0)):
        each = [Known([], most=3) for _ in range(8)]
        slots = SlotDrafts(each, 50)
        slots.next({number: ([1, 2], 9) for number in range(texts_at_once)})
        assert each[0].asked == ([most] if most else [])


class Failing(PromptLookup):
    def guess(self, text: Sequence[int], most: int) -> list[int]:
        raise ValueError("no guess")


def test_an_error_of_a_draft_ends_the_texts_of_its_step_and_no_others(llama: Decoder) -> None:
    with Session(llama, 60) as session, Batcher(session, drafts=SlotDrafts([Failing()], llama.n_vocab)) as batcher:
        request = Request([5, 6], Sampler(Sampling(temperature=0)), 5)
        batcher.submit(request)
        with pytest.raises(ValueError, match="no guess"):
            list(request.tokens())
        one = Request([5, 6], Sampler(Sampling(temperature=0)), 1)
        batcher.submit(one)
        assert len(list(one.tokens())) == 1


def test_drafts_that_a_model_cannot_use_are_refused_when_the_server_starts(llama: Decoder, data: Path) -> None:
    with pytest.raises(ModelError, match="no block that guesses further tokens"):
        serving(llama, "a", draft="mtp").__enter__()
    wanted = pytest.raises(ParameterError, match="a generates no text, so it can have no drafts")
    with ggplug_models.load(data / "bert.gguf", ["CPU"]) as encoder, wanted:
        serving(encoder, "a", draft="lookup").__enter__()


@pytest.mark.parametrize("what", ["mtp", "lookup", "eagle3", "smaller"])
def test_texts_that_go_on_when_the_context_is_full_are_those_without_drafts(
    what: str, headed: Decoder, llama: Decoder, tmp_path: Path
) -> None:
    model = llama if what in ("eagle3", "smaller") else headed
    draft: Any = {"eagle3": tmp_path / "eagle3.gguf", "smaller": ORACLES / f"{TARGET}.gguf"}.get(what, what)
    if what == "eagle3":
        write_eagle("eagle3", draft)
    settings: Any = {"slots": 2, "context": 40, "defaults": Defaults(shifts=True)}
    parameters = {"n_predict": 90, "temperature": 0, "n_keep": 3}
    with served(model, **settings) as live:
        plain = texts(live, parameters)
    with served(model, draft=draft, draft_tokens=3, **settings) as live:
        found = texts(live, parameters)
        assert all(slot["speculative"] for slot in live.ask("GET", "/slots")[2])
    assert [each["content"] for each in found] == [each["content"] for each in plain]
    assert all(each["truncated"] and each["tokens_predicted"] == 90 for each in found)
    drafted = sum(each["timings"].get("draft_n", 0) for each in found)
    # Heads always guess: also when the context was full.
    assert drafted > (40 * len(PROMPTS) if what in ("mtp", "eagle3") else 0)
