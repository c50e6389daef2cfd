"""``ggplug serve``: the OpenAI API, as its own client sees it."""

from __future__ import annotations

import json
import lzma
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import DATA

import ggplug_models
from ggplug_models.chat.template import ChatTemplate
from ggplug_models.networks.decoder import Decoder
from ggplug_models.sampling import Sampler, Sampling

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
pytest.importorskip("openai")

import openai
from served import Live, served
from word_models import with_vocabulary, with_words

from ggplug_models.serve.writer import PLAIN
from ggplug_models.tokenizers.encoders import TextTooLongError, VocabularyTokenizer

HELLO = [{"role": "user", "content": "hello"}]
SAID = {"role": "assistant", "content": "well"}


@pytest.fixture(scope="module")
def live(model: Decoder) -> Iterator[Live]:
    with served(model, slots=8) as running:
        yield running


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[Any]:
    with openai.OpenAI(base_url=live.url, api_key="none", max_retries=0) as made:
        yield made


def text(model: Decoder, prompt: str, most: int, **settings: Any) -> str:
    """What the model goes on with alone."""
    return "".join(model.generate(prompt, most, choose=Sampler(Sampling(**settings))))


def answer(model: Decoder, messages: list[dict[str, str]], most: int, **settings: Any) -> str:
    ids = ChatTemplate(PLAIN, model.tokenizer).encode(messages)
    return "".join(model.texts(ids, most, choose=Sampler(Sampling(**settings))))


def test_the_model_is_listed(client: Any) -> None:
    (found,) = client.models.list().data
    assert found.id == "tiny"
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="unknown model 'large'; the model of this server is 'tiny'"):
        client.models.retrieve("large")


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 0.9, "seed": 8, "top_p": 0.8}])
def test_a_completion_is_what_the_model_generates_without_the_server(
    client: Any, model: Decoder, settings: dict[str, Any]
) -> None:
    wanted = text(model, "hello", 12, **settings)
    found = client.completions.create(model="tiny", prompt="hello", max_tokens=12, **settings)
    assert found.choices[0].text == wanted
    assert found.choices[0].finish_reason == "length"
    assert (found.usage.completion_tokens, found.usage.prompt_tokens) == (12, len(model.tokenizer.encode("hello")))
    chunks = list(client.completions.create(model="tiny", prompt="hello", max_tokens=12, stream=True, **settings))
    assert "".join(chunk.choices[0].text for chunk in chunks) == wanted
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:]] == [None, "length"]


def test_a_chat_is_answered_by_the_template(client: Any, model: Decoder) -> None:
    wanted = answer(model, HELLO, 10, temperature=0)
    found = client.chat.completions.create(model="tiny", messages=HELLO, max_completion_tokens=10, temperature=0)
    assert found.choices[0].message.content == wanted
    assert found.choices[0].message.role == "assistant"
    stream = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=10, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == wanted
    assert chunks[-2].choices[0].finish_reason == "length"
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 10)
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_messages_may_be_in_parts_and_from_developers(client: Any, model: Decoder) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    said = [{"role": "developer", "content": "be short"}, {"role": "user", "content": parts}]
    found = client.chat.completions.create(model="tiny", messages=said, max_tokens=6, temperature=0)
    messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": "one\ntwo"}]
    wanted = answer(model, messages, 6, temperature=0)
    assert found.choices[0].message.content == wanted


def test_an_assistants_messages_may_follow_each_other_before_a_users(client: Any, model: Decoder) -> None:
    messages = [*HELLO, SAID, SAID, *HELLO]
    found = client.chat.completions.create(model="tiny", messages=messages, max_tokens=6, temperature=0)
    assert found.choices[0].message.content == answer(model, messages, 6, temperature=0)


def test_a_last_message_of_the_assistant_is_continued(client: Any, model: Decoder) -> None:
    messages = [*HELLO, SAID]
    found = client.chat.completions.create(model="tiny", messages=messages, max_tokens=6, temperature=0)
    prompt = ChatTemplate(PLAIN, model.tokenizer).render(HELLO) + SAID["content"]
    assert found.choices[0].message.content == text(model, prompt, 6, temperature=0)
    more = {"add_generation_prompt": True}  # another answer begins after it
    found = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=6, temperature=0, extra_body=more
    )
    assert found.choices[0].message.content == answer(model, messages, 6, temperature=0)


def test_many_clients_at_once_get_what_each_gets_by_itself(client: Any, model: Decoder) -> None:
    prompts = [f"{'word ' * (9 * n)}{n}" for n in range(12)]
    wanted = [text(model, prompt, 15, temperature=n % 2, seed=n) for n, prompt in enumerate(prompts)]
    found: dict[int, str] = {}

    def ask(number: int) -> None:
        stream = client.completions.create(
            model="tiny", prompt=prompts[number], max_tokens=15, temperature=number % 2, seed=number, stream=True
        )
        found[number] = "".join(chunk.choices[0].text for chunk in stream)

    for _ in range(2):  # the second time parts of the prompts are there already
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [found.pop(number) for number in range(len(prompts))] == wanted


def test_several_texts_in_one_request(client: Any, model: Decoder) -> None:
    found = client.completions.create(model="tiny", prompt=["a", "b"], n=2, max_tokens=7, temperature=1, seed=5)
    wanted = [text(model, prompt, 7, temperature=1, seed=seed) for prompt in "ab" for seed in (5, 6)]
    assert [choice.text for choice in found.choices] == wanted
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    chunks = client.chat.completions.create(
        model="tiny", messages=HELLO, n=2, max_tokens=7, temperature=1, seed=5, stream=True
    )
    parts = ["", ""]
    for chunk in chunks:
        parts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert parts == [answer(model, HELLO, 7, temperature=1, seed=seed) for seed in (5, 6)]


def test_token_ids_are_prompts_too(client: Any, model: Decoder) -> None:
    ids = model.tokenizer.encode("hello")
    found = client.completions.create(model="tiny", prompt=ids, max_tokens=5, temperature=0)
    assert found.choices[0].text == text(model, "hello", 5, temperature=0)


def test_a_stop_string_ends_a_text_and_is_no_part_of_it(client: Any, model: Decoder) -> None:
    whole = text(model, "hello", 12, temperature=0)
    stop = whole[4:6]
    found = client.completions.create(model="tiny", prompt="hello", max_tokens=12, temperature=0, stop=[stop, "@@"])
    assert found.choices[0].text == whole[: whole.index(stop)]
    assert found.choices[0].finish_reason == "stop"


def test_settings_reach_the_sampler(client: Any, model: Decoder) -> None:
    first = model.tokenizer.encode(text(model, "hello", 1, temperature=0))[0]
    found = client.completions.create(
        model="tiny",
        prompt="hello",
        max_tokens=9,
        temperature=0,
        logit_bias={str(first): -100},
        frequency_penalty=1.5,
        extra_body={"penalty_last_n": 20, "repeat_penalty": 1.3},
    )
    settings = {"logit_bias": {first: -100}, "frequency_penalty": 1.5, "penalty_last_n": 20, "repeat_penalty": 1.3}
    assert found.choices[0].text == text(model, "hello", 9, temperature=0, **settings)


def test_log_probabilities_are_those_of_the_model(client: Any, model: Decoder) -> None:
    found = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3
    )
    ids = ChatTemplate(PLAIN, model.tokenizer).encode(HELLO)
    written = list(model.generate_ids(ids, 6))
    logits = model.logits([*ids, *written])[len(ids) - 1 : -1].astype(np.float64)
    wanted = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    content = found.choices[0].logprobs.content
    assert [bytes(score.bytes) for score in content] == [model.tokenizer.piece(token) for token in written]
    assert [score.logprob for score in content] == pytest.approx([row.max() for row in wanted], abs=1e-3)
    for score, row in zip(content, wanted, strict=True):
        assert [each.logprob for each in score.top_logprobs] == pytest.approx(np.sort(row)[:-4:-1], abs=1e-3)
    old = client.completions.create(model="tiny", prompt=ids, max_tokens=6, temperature=0, logprobs=2)
    assert old.choices[0].logprobs.token_logprobs == pytest.approx([score.logprob for score in content], abs=1e-3)
    assert old.choices[0].logprobs.text_offset[0] == 0


def test_texts_and_bytes_of_an_answers_tokens_are_the_answer(data: Path, tmp_path: Path) -> None:
    words = [*(f"\u2581{letter}" for letter in "abcdefghijklmnopqrst"), "\u00e9", "\u65e5\u672c", "st"]
    words += map(str, range(18))
    vocabulary = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words],
        "tokenizer.ggml.token_type": np.array([2, 3, 3, *[6] * 256, *[1] * len(words)], np.int32),
        "tokenizer.ggml.scores": np.zeros(300, np.float32),
    }
    path = with_vocabulary(data / "qwen3.gguf", tmp_path / "words.gguf", vocabulary)
    whole = {str(3 + byte): -100 for byte in range(128, 256)}  # no parts of characters
    found, begun = set(), 0
    with (
        ggplug_models.load(path, ["CPU"]) as model,
        served(model, slots=4) as live,
        openai.OpenAI(base_url=live.url, api_key="none", max_retries=0) as client,
    ):
        for seed in range(8):
            how: dict[str, Any] = {
                "model": "tiny",
                "max_tokens": 30,
                "temperature": 2,
                "seed": seed,
                "stop": ["st"],
                "logit_bias": whole if seed % 2 else {},
            }
            chat = {**how, "messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 3}
            choice = client.chat.completions.create(**chat).choices[0]
            said, scores = choice.message.content, choice.logprobs.content
            assert "".join(score.token for score in scores) == said
            if "\ufffd" not in said:
                assert b"".join(bytes(score.bytes) for score in scores) == said.encode()
            chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**chat, stream=True)]
            streamed = [score for chunk in chunks if chunk.logprobs for score in chunk.logprobs.content]
            assert "".join(chunk.delta.content or "" for chunk in chunks) == said
            assert streamed == scores
            old = client.completions.create(**how, prompt="a", logprobs=3).choices[0]
            assert "".join(old.logprobs.tokens) == old.text
            offsets = old.logprobs.text_offset
            for offset, token in zip(offsets, old.logprobs.tokens, strict=True):
                assert old.text[offset : offset + len(token)] == token
            found.add(("\ufffd" in said, choice.finish_reason))
            begun += not any(each.token[:1] == " " for each in scores[0].top_logprobs)
    assert {fault for fault, _ in found} == {True, False}
    assert {finish for _, finish in found} == {"stop", "length"}
    assert begun == 8  # the space that begins an answer is none of it, whichever token might have had it


def test_answers_follow_a_json_schema(client: Any) -> None:
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "count": {"type": "integer", "maximum": 99}},
        "required": ["kind", "count"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, "strict": True}}
    for seed in range(3):
        found = client.chat.completions.create(
            model="tiny", messages=HELLO, response_format=form, seed=seed, max_tokens=400, temperature=1
        )
        assert found.choices[0].finish_reason == "stop"
        assert json.loads(found.choices[0].message.content).keys() == {"kind", "count"}
    bad = {"type": "json_schema", "json_schema": {"name": "thing", "schema": {"type": "nothing"}}}
    with pytest.raises(openai.BadRequestError, match="the JSON schema is not valid"):
        client.chat.completions.create(model="tiny", messages=HELLO, response_format=bad)


def test_vectors_of_a_language_model(client: Any, model: Decoder) -> None:
    texts = ["hello", "a longer text"]
    found = client.embeddings.create(model="tiny", input=texts)
    np.testing.assert_allclose([each.embedding for each in found.data], model.embed(texts), atol=1e-6)
    assert found.usage.prompt_tokens == sum(len(model.tokenizer.encode(each)) for each in texts)
    plain = client.embeddings.create(model="tiny", input=model.tokenizer.encode("hello"), encoding_format="float")
    np.testing.assert_allclose(plain.data[0].embedding, model.embed(["hello"])[0], atol=1e-6)


def test_vectors_of_an_encoder(data: Path) -> None:
    with ggplug_models.load(data / "bert.gguf", ["CPU"]) as encoder, served(encoder) as live:
        ids = [[2, 5, 7, 3], [2, 4, 3]]
        with openai.OpenAI(base_url=live.url, api_key="none", max_retries=0) as client:
            found = client.embeddings.create(model="tiny", input=ids)
            np.testing.assert_allclose([each.embedding for each in found.data], encoder.embed_ids(ids), atol=1e-6)
            with pytest.raises(openai.BadRequestError, match="bert model, which cannot generate text"):
                client.chat.completions.create(model="tiny", messages=HELLO)
        assert live.ask("GET", "/v1/models")[2]["data"][0]["writes"] is False
        assert live.ask("GET", "/metrics")[0] == 200


@pytest.mark.parametrize("url", ["/v1/embeddings", "/embedding", "/api/embed"])
def test_vectors_are_cut_to_the_lengths_of_the_file_only(data: Path, tmp_path: Path, url: str) -> None:
    with ggplug_models.load(with_words(data / "bert.gguf", tmp_path / "words.gguf"), ["CPU"]) as encoder:
        encoder.dimensions = (8, 16)
        with served(encoder) as live:
            status, _, found = live.ask("POST", url, {"input": "w1", "dimensions": 8})
            (vector,) = re.findall(r"\[[^\[\]]+\]", json.dumps(found))
            assert (status, len(json.loads(vector))) == (200, 8)
            status, _, found = live.ask("POST", url, {"input": "w1", "dimensions": 7})
            assert (status, "dimensions must be one of 8, 16 or 64, got 7" in str(found)) == (400, True)


def test_a_text_longer_than_the_context_of_an_encoder_is_refused_and_not_truncated(data: Path, tmp_path: Path) -> None:
    with ggplug_models.load(with_words(data / "bert.gguf", tmp_path / "words.gguf"), ["CPU"]) as encoder:
        most = encoder.n_ctx
        with served(encoder) as live:
            status, _, found = live.ask("POST", "/v1/embeddings", {"input": "w1 " * (most - 2)})
            assert (status, found["usage"]["prompt_tokens"]) == (200, most)
            for words in (most - 1, 3 * most, 20_000):  # the last in pieces
                status, _, found = live.ask("POST", "/v1/embeddings", {"input": ["w1", "w2 " * words]})
                assert status == 400
                assert found["error"] == {
                    "message": f"input[1] has {words + 2} tokens, which is too large and exceeds the available context "
                    f"size: this model reads at most {most} tokens of a text",
                    "type": "exceed_context_size_error",
                    "param": "input",
                    "code": "context_length_exceeded",
                    "n_prompt_tokens": words + 2,
                    "n_ctx": most,
                }
        assert [len(ids) for ids in encoder.tokenizer.encode(["w1", "w2 " * 3 * most])] == [3, most]


def test_a_text_is_too_long_by_the_tokens_that_it_has(data: Path) -> None:
    with ggplug_models.load(data / "qwen3.gguf", ["CPU"]) as model:
        tokenizer = VocabularyTokenizer(model.tokenizer, 8, model.n_vocab)
        count = len(model.tokenizer.encode("hello " * 9, add_special=True))
        with pytest.raises(
            TextTooLongError, match=rf"texts\[1\] has {count} tokens; the model reads at most 8"
        ) as caught:
            tokenizer.encode_whole(["a", "hello " * 9])
    assert (caught.value.position, caught.value.got, caught.value.wanted) == (1, count, 8)


REFUSED = [
    ("completions", {}, 400, "prompt is missing"),
    ("completions", {"prompt": "a", "max_tokens": -3}, 400, "max_tokens: Input should be greater than or equal to 0"),
    ("completions", {"prompt": "a", "max_tokens": "9"}, 400, "max_tokens: Input should be a valid integer"),
    ("completions", {"prompt": "a", "temperature": -1}, 400, "temperature must be a number of at least 0, got -1"),
    ("completions", {"prompt": "a", "temperature": 1e300}, 400, "a number from 0 to 3.4028235e+38, got 1e+300"),
    ("completions", {"prompt": "a", "top_k": 2**31}, 400, "top_k must be an integer from 0 to 2147483647, got"),
    ("completions", {"prompt": "a", "top_p": 1.5}, 400, "top_p must be a number from 0 to 1"),
    ("completions", {"prompt": "a", "n": 17}, 400, "n: Input should be less than or equal to 16"),
    ("completions", {"prompt": ["a"] * 9, "n": 2}, 400, "1 to 16 texts are allowed"),
    ("completions", {"prompt": []}, 400, "1 to 16 texts are allowed"),
    ("completions", {"prompt": ""}, 400, "prompt has no tokens"),
    ("completions", {"prompt": [1, 300]}, 400, "is 300; the token ids of the vocabulary are 0 to 299"),
    ("completions", {"prompt": "a " * 600}, 400, "the context length is 512 tokens"),
    ("completions", {"prompt": "a" * 1_000_000}, 400, "tokens, which is too large"),
    ("completions", {"prompt": ["a", "a" * 1_000_000]}, 400, "prompt[1] has at least"),
    ("completions", {"prompt": [1] * 1_000_000}, 400, "prompt has 1000000 tokens, which is too large"),
    ("completions", {"prompt": [[1], [None] * 600]}, 400, "prompt[1] has 600 tokens, which is too large"),
    ("completions", {"prompt": [[1, True]]}, 400, "prompt has a boolean among its token ids"),
    ("completions", {"prompt": [[1, None]]}, 400, "prompt must be a sequence of token ids, got [1, None]"),
    ("completions", {"prompt": [True]}, 400, "prompt: Input should be a string, a list of"),
    ("completions", {"prompt": {}}, 400, "prompt: Input should be a string, a list of"),
    ("completions", {"prompt": [[1]] * 500_000}, 400, "500000 prompts times n = 1 texts; 1 to 16"),
    ("completions", {"prompt": "a", "logit_bias": {"300": 1}}, 400, "the token '300'; token ids are 0 to 299"),
    ("completions", {"prompt": [None] * 300_000}, 400, "prompt: Input should be a string, a list of"),
    ("completions", {"prompt": "a", "stop": [None] * 300_000}, 400, "stop.0: Input should be a valid string"),
    ("completions", {"prompt": "a", "logit_bias": {"9" * 5000: 1}}, 400, "logit_bias has the token"),
    (
        "completions",
        {"prompt": "a", "logit_bias": dict.fromkeys(map(str, range(100_000)))},
        400,
        "at most 4096 are allowed",
    ),
    (
        "completions",
        dict.fromkeys(map(str, range(100_000)), 1),
        400,
        "an object has 100000 keys; at most 256 are allowed",
    ),
    ("completions", [], 400, "Input should be an object"),
    ("completions", b"{", 400, "the body is not valid JSON"),
    ("completions", b'{"prompt": "\xff"}', 400, "the body is not valid JSON"),
    ("completions", b'{"prompt": "a", "temperature": NaN}', 400, "temperature: Input should be a finite number"),
    ("completions", b"[" * 100_000, 400, "the body is not valid JSON: recursion limit exceeded"),
    ("completions", b"", 400, "the body is not valid JSON"),
    ("chat/completions", {"messages": []}, 400, "messages: List should have at least 1 item"),
    ("chat/completions", {"messages": [{"role": "cat", "content": "a"}]}, 400, "messages.0.role"),
    ("chat/completions", {"messages": HELLO, "top_logprobs": 3}, 400, "top_logprobs requires logprobs: true"),
    ("chat/completions", {"messages": [None] * 300_000}, 400, "messages.0: Input should be an object"),
    ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "content.0.type"),
    ("chat/completions", {"messages": [{"role": "user", "content": 5}]}, 400, "content: Input should be a string, or"),
    ("chat/completions", {"messages": HELLO, "response_format": {"type": "json_schema"}}, 400, "requires json_schema"),
    ("chat/completions", {"messages": [{"role": "user", "content": "a " * 600}]}, 400, "messages has"),
    (
        "chat/completions",
        {"messages": [*HELLO, SAID, SAID]},
        400,
        "messages: the last two messages are the assistant's",
    ),
    ("embeddings", {"input": []}, 400, "input has 0 texts"),
    ("embeddings", {"input": "a", "dimensions": 65}, 400, "dimensions must be an integer from 1 to 64, got 65"),
    ("embeddings", {"input": [[1], [300]]}, 400, "is 300; the token ids of the vocabulary are 0 to 299"),
    ("embeddings", {"input": ["a", ""]}, 400, "has no tokens"),
    ("embeddings", {"input": "a " * 600}, 400, "this model reads at most 512"),
    ("embeddings", {"input": "a" * 1_000_000}, 400, "this model reads at most 512"),
    (
        "embeddings",
        {"input": [[1], [None] * 600]},
        400,
        "input[1] has 600 tokens, which is too large",
    ),
    ("chat/completions", {"messages": [{"role": "user", "content": "a" * 1_000_000}]}, 400, "messages has at least"),
]


@pytest.mark.parametrize(("path", "body", "status", "message"), REFUSED, ids=[f"{n}" for n in range(len(REFUSED))])
def test_malformed_requests_are_refused_in_words(live: Live, path: str, body: Any, status: int, message: str) -> None:
    found, headers, reply = live.ask("POST", f"/v1/{path}", body)
    assert found == status
    assert reply["error"].keys() >= {"message", "type", "param", "code"}
    assert message in reply["error"]["message"]
    assert headers["content-type"] == "application/json"


def test_offsets_of_tokens_are_counted_in_each_text_of_a_stream(live: Live) -> None:
    asked = {"prompt": ["hello", "other"], "n": 2, "max_tokens": 6, "temperature": 0, "logprobs": 0, "seed": 1}
    _, _, found = live.ask("POST", "/v1/completions", asked)
    wanted = {each["index"]: each["logprobs"]["text_offset"] for each in found["choices"]}
    _, _, raw = live.ask("POST", "/v1/completions", {**asked, "stream": True})
    chunks = [json.loads(line.removeprefix("data: ")) for line in raw.decode().split("\n\n") if "{" in line]
    offsets: dict[int, list[int]] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        offsets.setdefault(choice["index"], []).extend(choice["logprobs"]["text_offset"])
    assert offsets == wanted
    assert all(each[0] == 0 and len(each) == 6 for each in offsets.values())


def test_other_paths_methods_and_types_are_refused(live: Live) -> None:
    assert live.ask("GET", "/v2/else")[::2] == (404, _error("unknown path: GET /v2/else"))
    status, headers, _ = live.ask("GET", "/v1/completions")
    assert (status, headers["allow"]) == (405, "POST")
    page = {"Content-Type": "text/plain", "Origin": "https://a.example"}
    status, _, reply = live.ask("POST", "/v1/completions", b"{}", page)
    assert (status, reply["error"]["message"]) == (415, "the Content-Type must be application/json, got 'text/plain'")


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


def test_a_template_that_refuses_the_chat_is_reported(model: Decoder) -> None:
    template = "{{ raise_exception('only users may speak') }}"
    with served(model, slots=1, template=template) as live:
        status, _, reply = live.ask("POST", "/v1/chat/completions", {"messages": HELLO})
    assert (status, reply["error"]["message"]) == (
        400,
        "the chat template refuses these messages: only users may speak",
    )


@pytest.mark.parametrize("name", ["Qwen-Qwen2.5-7B-Instruct", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use"])
def test_a_history_with_calls_of_tools_is_what_the_client_of_openai_makes(model: Decoder, name: str) -> None:
    recorded = json.loads(lzma.decompress((DATA / "llama_cpp_templates.json.xz").read_bytes()))
    messages = [{**each, "refusal": None} for each in recorded["chats"]["calls"]]  # nulls as in what it was answered
    messages[1] |= {"content": None, "function_call": None}
    with (
        served(model, slots=1, context=2048, template=recorded["templates"][name]) as live,
        openai.OpenAI(base_url=live.url, api_key="none", max_retries=0) as client,
    ):
        found = client.chat.completions.create(model="tiny", messages=messages, max_tokens=1)
    bos = model.tokenizer.piece(model.tokenizer.bos).decode() if model.tokenizer.bos is not None else ""
    text = recorded["rendered"][name]["calls"].replace("<s>", bos)
    assert found.usage.prompt_tokens == len(model.tokenizer.prompt(text))


def test_without_the_libraries_an_error_says_how_to_get_them(data: Path) -> None:
    code = "import sys; sys.modules['uvicorn'] = None; from ggplug.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", str(data / "qwen3.gguf")], capture_output=True, text=True, check=False
    )
    assert done.returncode
    assert 'pip install "ggplug-core[serve]"' in done.stderr
