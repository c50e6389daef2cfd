"""``ggplug serve``: llama-server's paths, lenient and strict requests."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from held import Doing, until
from oracles.packed import RANKERS, model_file

import ggplug as gg
import ggplug_models
from ggplug.errors import ModelError
from ggplug_models.networks.decoder import Decoder
from ggplug_testing import FakeDevice

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from llama_server.stand_ins import encoder, story
from served import Live, served

from ggplug_models.serve.apis import ollama_models
from ggplug_models.serve.app import Rules
from ggplug_models.serve.request import Progress, Request, Times
from ggplug_models.serve.service import About
from ggplug_models.serve.timings import timings
from ggplug_models.serve.writer import Defaults

PROMPT = "word " * 20


@pytest.fixture(scope="module")
def live(model: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with served(model, Rules(slot_files=tmp_path_factory.mktemp("slots")), slots=2) as running:
        yield running


def post(live: Live, path: str, body: Any) -> Any:
    status, _, found = live.ask("POST", path, body)
    assert status == 200, found
    return found


def test_a_completion_tells_its_settings_and_timings(live: Live, model: Decoder) -> None:
    found = post(live, "/completion", {"prompt": "hello", "n_predict": 4, "temperature": 0.0, "top_k": 3.0})
    assert found["content"] == "".join(model.generate("hello", 4))
    assert (found["stop_type"], found["tokens_predicted"]) == ("limit", 4)
    assert (found["generation_settings"]["top_k"], found["generation_settings"]["n_predict"]) == (3, 4)
    timings = found["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == found["tokens_evaluated"]
    assert timings["predicted_n"] == 4


def test_a_text_without_a_limit_fills_the_context(model: Decoder) -> None:
    asked = {"prompt": "hello", "n_predict": -1, "ignore_eos": True, "seed": -1}
    with served(model, slots=1, context=40) as live:
        found = post(live, "/completion", asked)
    assert (found["stop_type"], found["truncated"]) == ("limit", True)
    assert found["tokens_predicted"] == 40 - found["tokens_evaluated"] + 1


def test_a_text_goes_on_when_the_context_is_full_if_the_server_shifts(model: Decoder) -> None:
    asked = {"prompt": "hello", "n_predict": 80, "ignore_eos": True, "temperature": 0, "n_keep": -1}
    with served(model, slots=1, context=40, defaults=Defaults(shifts=True)) as live:
        found = post(live, "/completion", asked)
    assert (found["stop_type"], found["truncated"], found["tokens_predicted"]) == ("limit", True, 80)
    assert found["timings"]["prompt_n"] == found["tokens_evaluated"]
    assert found["tokens_cached"] <= 41


def test_tokens_and_texts_are_converted(live: Live, model: Decoder) -> None:
    ids = post(live, "/tokenize", {"content": "hello"})["tokens"]
    assert ids == model.tokenizer.encode("hello")
    assert post(live, "/detokenize", {"tokens": ids})["content"] == "hello"
    pieces = post(live, "/tokenize", {"content": "\u00e9", "with_pieces": True})["tokens"]
    assert [each["id"] for each in pieces] == model.tokenizer.encode("\u00e9")


def test_a_prompt_of_texts_and_tokens_is_one_prompt(live: Live, model: Decoder) -> None:
    ids = model.tokenizer.encode("hello")
    found = post(live, "/completion", {"prompt": [*ids, "hello"], "n_predict": 3, "temperature": 0})
    assert found["tokens_evaluated"] == 2 * len(ids)


def test_a_slot_is_saved_erased_and_restored(live: Live) -> None:
    asked = {"prompt": PROMPT, "n_predict": 2, "temperature": 0, "id_slot": 1}
    first = post(live, "/completion", asked)
    saved = post(live, "/slots/1?action=save", {"filename": "one.bin"})
    assert saved["n_saved"] > 32
    assert post(live, "/slots/1?action=erase", {})["n_erased"] > 0
    assert post(live, "/completion", asked)["timings"]["cache_n"] == 0
    assert post(live, "/slots/1?action=erase", {})["n_erased"] > 0
    assert post(live, "/slots/1?action=restore", {"filename": "one.bin"})["n_restored"] == saved["n_saved"]
    again = post(live, "/completion", asked)
    assert again["timings"]["cache_n"] > 0
    assert again["content"] == first["content"]


def test_a_completion_tells_which_slot_computed_it(model: Decoder) -> None:
    with served(model, slots=3) as live:
        assert live.gate is not None
        live.gate.shut()
        asked = {"prompt": ["a", "a b", "a b c"], "n_predict": 2, "ignore_eos": True, "id_slot": 1}
        asking = Doing(lambda: post(live, "/completion", asked))
        until(lambda: live.service.status.active + live.service.status.waiting == 3)
        live.gate.open()
        found = asking.result()
        held = [slot["n_tokens"] for slot in live.ask("GET", "/slots")[2]]
        assert [held[each["id_slot"]] for each in found] == [each["tokens_evaluated"] + 1 for each in found]
        assert sorted(each["id_slot"] for each in found) == [0, 1, 2]
        events = live.ask("POST", "/completion", {"prompt": "a", "n_predict": 2, "id_slot": 2, "stream": True})[2]
        slots = {json.loads(line[6:])["id_slot"] for line in events.splitlines() if line}
        assert slots == {2}


@pytest.mark.parametrize(("name", "length"), [("qwen3", 20), ("mamba", 60), ("mixtral", 60)])
def test_a_slot_without_tokens_that_can_be_reused_is_not_saved_and_keeps_them(
    name: str, length: int, tmp_path: Path
) -> None:
    asked = {"prompt": [5 + number % 20 for number in range(length)], "n_predict": 4, "ignore_eos": True}
    rules = Rules(slot_files=tmp_path)
    with ggplug_models.load(model_file(name), ["CPU"]) as model, served(model, rules, slots=1) as live:
        post(live, "/completion", asked)
        status, _, found = live.ask("POST", "/slots/0?action=save", {"filename": "a"})
        assert (status, found["error"]["code"]) == (400, "nothing_to_save")
        assert [slot["n_tokens"] for slot in live.ask("GET", "/slots")[2]] == [length + 3]
    assert not list(tmp_path.iterdir())


def damaged(saved: bytes, other: bytes) -> dict[str, bytes]:
    """What may lie in the place of a saved slot."""
    lengths = [*range(0, 64, 9), *np.linspace(64, len(saved) - 1, 12, dtype=int)]
    places = [*range(0, 64, 9), *np.linspace(64, len(saved) - 1, 40, dtype=int)]
    return {
        **{f"the first {length} bytes": saved[:length] for length in lengths},
        **{f"byte {at}": saved[:at] + bytes([saved[at] ^ 0xFF]) + saved[at + 1 :] for at in places},
        "a text": b"hello",
        "a file of another kind": other,
    }


def test_a_damaged_file_of_a_slot_is_refused_and_named(model: Decoder, data: Path, tmp_path: Path) -> None:
    asked = {"prompt": PROMPT, "n_predict": 2, "temperature": 0, "id_slot": 0}
    with served(model, Rules(slot_files=tmp_path), slots=1) as live:
        first = post(live, "/completion", asked)["content"]
        post(live, "/slots/0?action=save", {"filename": "good"})
        saved = (tmp_path / "good").read_bytes()
        for what, content in damaged(saved, (data / "bert.gguf").read_bytes()).items():
            (tmp_path / "bad").write_bytes(content)
            status, _, found = live.ask("POST", "/slots/0?action=restore", {"filename": "bad"})
            if status == 200:  # the alignment between two parts of a file means nothing
                assert what.startswith("byte "), what
                continue
            assert (status, found["error"]["param"], found["error"]["code"]) == (400, "filename", "file_refused"), what
            assert "bad" in found["error"]["message"]
            assert str(tmp_path) not in found["error"]["message"]
            again = post(live, "/completion", asked)  # the slot has kept its tokens
            assert again["content"] == first
            assert again["timings"]["cache_n"] > 0
        assert post(live, "/slots/0?action=restore", {"filename": "good"})["n_read"] == len(saved)


def test_a_file_of_a_slot_that_is_none_is_refused_and_named(model: Decoder, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with served(model, Rules(slot_files=tmp_path), slots=1) as live:
        for action, name, code in (
            ("save", "folder", "file_refused"),
            ("restore", "folder", "file_refused"),
            ("restore", "missing", "file_not_found"),
        ):
            status, _, found = live.ask("POST", f"/slots/0?action={action}", {"filename": name})
            assert (status, found["error"]["param"], found["error"]["code"]) == (400, "filename", code)
            assert name in found["error"]["message"]
            assert str(tmp_path) not in found["error"]["message"]


def test_a_damaged_file_of_the_model_is_not_the_fault_of_a_slots_file(
    model: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ModelError("m.gguf was truncated")

    with served(model, Rules(slot_files=tmp_path), slots=1) as live:
        post(live, "/slots/0?action=save", {"filename": "good"})
        monkeypatch.setattr("ggplug_models.weights.files.MappedFiles.check", fail)
        status, _, found = live.ask("POST", "/slots/0?action=restore", {"filename": "good"})
    assert (status, found["error"]["code"]) == (500, "computation_failed")


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "", "a/b", ".hidden", "a" * 200])
def test_a_slot_is_saved_only_in_its_folder(live: Live, name: str) -> None:
    status, _, found = live.ask("POST", "/slots/0?action=save", {"filename": name})
    assert (status, found["error"]["param"]) == (400, "filename")


@pytest.mark.parametrize("number", ["-1", "1.0", "a", "\u0663", "9" * 10, "9" * 5000])
def test_what_is_no_number_of_a_slot_is_an_unknown_path(live: Live, number: str) -> None:
    status, _, found = live.ask("POST", f"/slots/{quote(number)}?action=erase", {})
    assert (status, found["error"]["message"][:13]) == (404, "unknown path:")


def test_a_model_without_tokens_for_gaps_does_not_fill_them(live: Live) -> None:
    status, _, found = live.ask("POST", "/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert (status, found["error"]["code"]) == (501, "model_not_supported")


def test_a_suffix_asks_for_the_text_before_it(tmp_path: Path) -> None:
    path = story(tmp_path / "story.gguf", ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"])
    with ggplug_models.load(path, ["CPU"]) as model, served(model, slots=1, context=256) as live:
        infill = post(live, "/infill", {"input_prefix": "a b", "input_suffix": "c", "n_predict": 4, "temperature": 0})
        asked = {"prompt": "a b", "suffix": "c", "max_tokens": 4, "temperature": 0}
        found = post(live, "/v1/completions", asked)
        assert (found["choices"][0]["text"], found["usage"]["prompt_tokens"]) == (
            infill["content"],
            infill["tokens_evaluated"],
        )
        options = {"num_predict": 4, "temperature": 0}
        asked = {"prompt": "a b", "suffix": "c", "stream": False, "options": options}
        assert post(live, "/api/generate", asked)["response"] == infill["content"]


def test_lm_eval_finds_the_tokens_of_texts(live: Live, model: Decoder) -> None:
    status, _, found = live.ask("GET", "/tokenizer_info")
    assert (status, found["chat_template"]) == (200, live.service.texts.template.source)
    ids = post(live, "/tokenize", {"prompt": "hello", "add_special_tokens": False})["tokens"]
    assert post(live, "/detokenize", {"tokens": ids})["prompt"] == "hello"


def test_an_end_token_after_an_echoed_prompt_has_a_log_probability(live: Live, model: Decoder) -> None:
    end = min(model.tokenizer.ends)
    asked = {"prompt": "hello", "max_tokens": 1, "echo": True, "logprobs": 1, "logit_bias": {str(end): 1e9}}
    (choice,) = post(live, "/v1/completions", asked)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("hello", "stop")
    assert len(choice["logprobs"]["tokens"]) == len(model.tokenizer.encode("hello")) + 1
    assert choice["logprobs"]["tokens"][-1] == ""


def test_a_part_of_a_prompt_is_reported_with_the_time_for_it() -> None:
    request = Request([1] * 10, lambda logits, history: 0)
    request.reused, request.generated = 2, 3  # it has gone on since
    request.times = Times(1.0, 5.0, 9.0)
    found = timings(request, Progress(10, 2, 6, 0.5))
    assert (found["prompt_n"], found["prompt_ms"], found["predicted_n"], found["predicted_ms"]) == (4, 500, 0, 0)
    assert timings(request)["prompt_ms"] == 4000


def test_unknown_parameters_are_named_and_a_strict_server_refuses_them(model: Decoder) -> None:
    asked = {"prompt": "a", "max_tokens": 1, "frob\nnicate": 1, "empty": [], "model": "other"}
    with served(model, slots=1) as live:
        status, headers, _ = live.ask("POST", "/v1/completions", asked)
        assert (status, headers["x-ggplug-ignored"]) == (200, "frob\\nnicate")
    with served(model, Rules(strict=True), slots=1) as live:
        status, _, found = live.ask("POST", "/v1/completions", asked)
        assert (status, found["error"]["code"]) == (400, "unknown_parameter")
        status, _, found = live.ask("POST", "/v1/completions", {"prompt": "a", "model": "other"})
        assert (status, found["error"]["code"]) == (404, "model_not_found")


def test_a_body_needs_no_type_unless_a_page_sends_it(live: Live) -> None:
    asked = b'{"prompt": "a", "n_predict": 1}'
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert live.ask("POST", "/completion", asked, form)[0] == 200
    assert live.ask("POST", "/completion", asked, {**form, "Origin": "https://a.example"})[0] == 415


def test_documents_are_ranked_by_the_classifier(data: Path, tmp_path: Path) -> None:
    documents = ["a machine", "learning is", "paris"]
    path = encoder(data / "bert.gguf", tmp_path / "ranker.gguf", ranks=True)
    with ggplug_models.load(path, ["CPU"]) as model, served(model) as live:
        found = post(live, "/v1/rerank", {"query": "learning", "documents": documents, "top_n": 2})
        scores = model.rank("learning", documents)
    order = np.argsort(-scores)[:2]
    assert [each["index"] for each in found["results"]] == order.tolist()
    assert [each["relevance_score"] for each in found["results"]] == pytest.approx(scores[order].tolist(), abs=1e-5)


def test_documents_are_ranked_by_a_language_model() -> None:
    documents = ["the cat", "rain"]
    with ggplug_models.load(RANKERS / "qwen3-reranker.gguf", ["CPU"]) as model, served(model) as live:
        found = post(live, "/v1/rerank", {"query": "the dog", "documents": documents})
        scores = model.rank("the dog", documents)
        status, _, refused = live.ask("POST", "/v1/rerank", {"query": "the dog", "documents": ["rain", "on " * 99]})
    assert {each["index"]: each["relevance_score"] for each in found["results"]} == pytest.approx(
        dict(enumerate(scores.tolist())), abs=1e-5
    )
    assert (status, "documents[1]" in refused["error"]["message"]) == (400, True)


def test_documents_are_ranked_by_the_label_that_a_client_chooses() -> None:
    body = {"query": "the dog", "documents": ["the cat", "rain"]}
    with ggplug_models.load(RANKERS / "roberta-classifier.gguf", ["CPU"]) as model, served(model) as live:
        found = post(live, "/v1/rerank", body | {"label": "fear"})
        scores = model.rank("the dog", ["the cat", "rain"], label="fear")
        status, _, refused = live.ask("POST", "/v1/rerank", body)
    assert {each["index"]: each["relevance_score"] for each in found["results"]} == pytest.approx(
        dict(enumerate(scores.tolist())), abs=1e-5
    )
    assert (status, "they are joy, fear, anger" in refused["error"]["message"]) == (400, True)


def test_an_instruction_is_part_of_the_prompt_and_refused_by_models_without_one() -> None:
    body = {"query": "the dog", "documents": ["the cat", "rain"], "instruction": "be short"}
    with ggplug_models.load(RANKERS / "qwen3-reranker.gguf", ["CPU"]) as model, served(model) as live:
        found = post(live, "/v1/rerank", body)
        scores = model.rank("the dog", ["the cat", "rain"], instruction="be short")
    assert {each["index"]: each["relevance_score"] for each in found["results"]} == pytest.approx(
        dict(enumerate(scores.tolist())), abs=1e-5
    )
    with ggplug_models.load(RANKERS / "bge-reranker.gguf", ["CPU"]) as model, served(model) as live:
        status, _, refused = live.ask("POST", "/v1/rerank", body)
    assert (status, "no prompt" in refused["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    ("parameters", "written"), [(999, "999"), (99_300, "99.3K"), (134_515_008, "134.5M"), (8_030_261_248, "8.0B")]
)
def test_ollama_gets_the_number_of_parameters_in_its_own_form(parameters: int, written: str) -> None:
    assert ollama_models._counted(parameters) == written


def test_ollama_gets_what_the_model_is(live: Live, model: Decoder) -> None:
    (listed,) = live.ask("GET", "/api/tags")[2]["models"]
    details = listed["details"]
    assert details["parameter_size"] == ollama_models._counted(sum(weight.size for weight in model.weights))
    assert details["quantization_level"] == (model.file_type or "")
    assert post(live, "/api/show", {"model": listed["name"]})["details"] == details


def test_ollama_gets_when_the_file_was_written_and_how_much_is_in_memory_of_a_device(data: Path) -> None:
    device, file = FakeDevice("apart", inner=gg.device("CPU")), data / "qwen3.gguf"
    with ggplug_models.load(file, [device, "CPU"]) as model, served(model, slots=1, about=About(file)) as live:
        (listed,) = live.ask("GET", "/api/ps")[2]["models"]
        assert datetime.datetime.fromisoformat(listed["modified_at"]).timestamp() == pytest.approx(file.stat().st_mtime)
        there = [weight.nbytes for weight in model.weights if weight.buffer.device is device]
        assert listed["size_vram"] == sum(there) > 0
    with ggplug_models.load(file, ["CPU"]) as model, served(model, slots=1, about=About(file)) as live:
        assert any(weight.buffer.type.name == "CPU packed" for weight in model.weights)
        assert live.ask("GET", "/api/ps")[2]["models"][0]["size_vram"] == 0


def test_log_probabilities_of_an_echoed_prompt_end_with_the_text_before_a_stop_string(live: Live) -> None:
    asked = {"prompt": "hello", "max_tokens": 12, "echo": True, "logprobs": 1, "temperature": 0}
    (whole,) = post(live, "/v1/completions", asked)["choices"]
    (plain,) = post(live, "/v1/completions", asked | {"echo": False})["choices"]
    tokens, prompt = plain["logprobs"]["tokens"], len(whole["logprobs"]["tokens"]) - len(plain["logprobs"]["tokens"])
    stop = next(each for each in tokens[2:] if each.strip() and each not in "".join(tokens[:2]))
    (choice,) = post(live, "/v1/completions", asked | {"max_tokens": 200, "stop": [stop]})["choices"]
    assert choice["finish_reason"] == "stop"
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert choice["logprobs"]["token_logprobs"][prompt:][:2] == pytest.approx(plain["logprobs"]["token_logprobs"][:2])


def test_the_last_event_of_a_stream_repeats_no_probabilities(live: Live) -> None:
    asked = {"prompt": "hello", "n_predict": 4, "n_probs": 2, "temperature": 0}
    whole = post(live, "/completion", asked)["completion_probabilities"]
    raw = live.ask("POST", "/completion", asked | {"stream": True})[2]
    events = [json.loads(each.removeprefix("data: ")) for each in raw.decode().split("\n\n") if each]
    assert [each for event in events for each in event.get("completion_probabilities", [])] == whole
