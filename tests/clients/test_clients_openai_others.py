"""OpenAI's Python client: completions, embeddings, models, errors, and the asynchronous client."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openai")

import openai
from scripted import Scripted

HELLO: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(scripted: Scripted) -> Iterator[Any]:
    with openai.OpenAI(base_url=scripted.url, api_key="none", max_retries=0) as made:
        yield made


def test_models_are_listed_and_found_by_name(client: Any) -> None:
    assert [each.id for each in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "ggplug"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_completion_is_created(client: Any, scripted: Scripted) -> None:
    scripted.texts += [" blue"]
    found = client.completions.create(model="m", prompt="the sky is", max_tokens=20)
    assert (found.choices[0].text, found.choices[0].finish_reason) == (" blue", "stop")
    assert scripted.asked == ["the sky is"]


def test_a_completion_is_streamed(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["one two"]
    chunks = list(client.completions.create(model="m", prompt="zero ", max_tokens=20, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "one two"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_several_prompts_are_completed(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["x", "y"]
    found = client.completions.create(model="m", prompt=["a", "b"], max_tokens=20)
    assert [choice.text for choice in found.choices] == ["x", "y"]


def test_token_ids_are_completed(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["x"]
    assert client.completions.create(model="m", prompt=[65, 66], max_tokens=20).choices[0].text == "x"
    with pytest.raises(openai.BadRequestError, match="token"):
        client.completions.create(model="m", prompt=[10**9], max_tokens=20)


def test_the_best_of_several_completions_are_chosen(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["a", "b", "c"]
    asked = {"model": "m", "prompt": "hello", "max_tokens": 0, "best_of": 3, "n": 2}
    assert len(client.completions.create(**asked).choices) == 2
    with pytest.raises(openai.BadRequestError, match="best_of must be at least n"):
        client.completions.create(**asked | {"best_of": 1})


def test_completions_have_log_probabilities_of_their_tokens(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["blue"]
    found = client.completions.create(model="m", prompt="hello", max_tokens=20, logprobs=3).choices[0]
    assert "".join(found.logprobs.tokens) == found.text == "blue"
    assert all(0 < len(best) <= 3 for best in found.logprobs.top_logprobs)


def test_a_suffix_needs_a_model_that_fills_gaps(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="cannot fill gaps"):
        client.completions.create(model="m", prompt="a", suffix="c")


def test_completions_are_echoed_with_log_probabilities(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["not reached"]
    found = client.completions.create(model="m", prompt="hello", max_tokens=0, echo=True, logprobs=1)
    scores = found.choices[0].logprobs
    assert found.choices[0].text == "".join(scores.tokens) == "hello"
    assert scores.token_logprobs[0] is None
    assert all(value < 0 for value in scores.token_logprobs[1:])


def test_several_texts_have_vectors(client: Any) -> None:
    found = client.embeddings.create(model="m", input=["hello", "there"])
    assert [len(each.embedding) for each in found.data] == [64, 64]
    assert found.usage.prompt_tokens > 5


def test_token_ids_have_the_vectors_of_their_text(client: Any, scripted: Scripted) -> None:
    ids = scripted.service.texts.tokenizer.encode("hello")
    of_text = client.embeddings.create(model="m", input="hello", encoding_format="float").data[0].embedding
    of_ids = client.embeddings.create(model="m", input=[ids], encoding_format="float").data[0].embedding
    assert of_ids == of_text


def test_vectors_may_be_base64(client: Any) -> None:
    floats = client.embeddings.create(model="m", input="hello", encoding_format="float").data[0].embedding
    found = client.embeddings.create(model="m", input="hello", encoding_format="base64").data[0].embedding
    assert np.frombuffer(base64.b64decode(found), np.float32).tolist() == np.float32(floats).tolist()


def test_vectors_may_be_shorter(client: Any) -> None:
    found = client.embeddings.create(model="m", input="hello", dimensions=8)
    assert len(found.data[0].embedding) == 8
    assert sum(value**2 for value in found.data[0].embedding) == pytest.approx(1, abs=1e-5)


def test_a_prompt_that_is_too_long_is_refused_with_its_length(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "word " * 5000}])
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.body["n_prompt_tokens"] > caught.value.body["n_ctx"] == 4096


def test_wrong_values_are_refused_and_named(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=HELLO, temperature=-3)
    assert "temperature" in caught.value.message


def test_images_are_refused(client: Any) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    with pytest.raises(openai.BadRequestError, match="image"):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": [image]}])


def test_the_asynchronous_client_answers_and_streams(scripted: Scripted) -> None:
    scripted.texts += ["Hi."] * 2

    async def asked() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=scripted.url, api_key="none", max_retries=0) as client:
            whole = await client.chat.completions.create(model="m", messages=HELLO)
            stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return str(whole.choices[0].message.content), "".join(parts)

    assert asyncio.run(asked()) == ("Hi.", "Hi.")


def test_many_asynchronous_requests_are_answered_at_once(scripted: Scripted) -> None:
    scripted.texts += ["Hi."] * 6

    async def asked() -> list[str]:
        async with openai.AsyncOpenAI(base_url=scripted.url, api_key="none", max_retries=0) as client:
            found = await asyncio.gather(
                *(client.completions.create(model="m", prompt="a", max_tokens=9) for _ in range(6))
            )
            return [each.choices[0].text for each in found]

    assert asyncio.run(asked()) == ["Hi."] * 6


def test_a_client_that_leaves_a_stream_frees_its_slot(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["one two three four", "Hi."]
    with client.completions.create(model="m", prompt="a", max_tokens=30, stream=True) as stream:
        next(iter(stream))
    assert client.completions.create(model="m", prompt="a", max_tokens=30).choices[0].text == "Hi."
