"""Ollama's Python client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("ollama")

import ollama
from scripted import CALL, Scripted

HELLO: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(url: str) -> Any:
    return ollama.Client(host=url)


def test_a_chat_is_answered_whole_and_streamed(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["Hello there."] * 2
    assert client.chat("tiny", HELLO, options={"temperature": 0, "num_predict": 50}).message.content == "Hello there."
    parts = list(client.chat("tiny", HELLO, stream=True, keep_alive="5m"))
    assert "".join(part.message.content for part in parts) == "Hello there."
    assert (parts[-1].done, parts[-1].done_reason) == (True, "stop")
    assert parts[-1].eval_count > 0


def test_a_tool_is_called(client: Any, scripted: Scripted) -> None:
    def weather(city: str) -> str:
        """The weather of a city."""
        return city

    scripted.texts += [CALL] * 2
    (call,) = client.chat("tiny", HELLO, tools=[weather]).message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", {"city": "Lyon"})
    parts = list(client.chat("tiny", HELLO, tools=[weather], stream=True))
    calls = [call for part in parts for call in part.message.tool_calls or ()]
    assert [each.function.arguments for each in calls] == [{"city": "Lyon"}]


def test_a_text_is_generated(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["blue", '{"a": 1}', "raw"]
    assert client.generate("tiny", "the sky is", system="be short").response == "blue"
    assert client.generate("tiny", "the sky is", format="json").response == '{"a": 1}'
    assert client.generate("tiny", "the sky is", raw=True).response == "raw"
    assert scripted.asked[2] == "the sky is"


def test_a_text_is_streamed(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["one two"]
    assert "".join(part.response for part in client.generate("tiny", "zero", stream=True)) == "one two"


def test_an_answer_is_json_of_a_schema(client: Any, scripted: Scripted) -> None:
    scripted.texts += ['{"a": 1}']
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert client.chat("tiny", HELLO, format=schema).message.content == '{"a": 1}'


def test_a_result_of_a_tool_is_read(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["It rains."]
    call = {"function": {"name": "weather", "arguments": {"city": "Lyon"}}}
    messages = [*HELLO, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "rain"}]
    assert client.chat("tiny", messages).message.content == "It rains."
    assert "<tool_response>\nrain\n</tool_response>" in scripted.asked[0]


def test_a_model_is_loaded_without_a_text(client: Any, scripted: Scripted) -> None:
    assert client.generate("tiny", keep_alive=-1).done_reason == "load"
    assert client.chat("tiny").done_reason == "load"
    assert [part.done_reason for part in client.generate("tiny", stream=True)] == ["load"]
    assert scripted.asked == []


def test_a_suffix_needs_a_model_that_fills_gaps(client: Any) -> None:
    with pytest.raises(ollama.ResponseError, match="cannot fill gaps"):
        client.generate("tiny", "a", suffix="c")


def test_the_asynchronous_client_answers(scripted: Scripted, url: str) -> None:
    scripted.texts += ["Hi."]
    found = asyncio.run(ollama.AsyncClient(host=url).chat("tiny", HELLO))
    assert found.message.content == "Hi."


def test_models_are_listed_and_shown(client: Any) -> None:
    assert [each.model for each in client.list().models] == ["tiny"]
    assert [each.model for each in client.ps().models] == ["tiny"]
    assert client.show("tiny").details.family == "qwen3"
    with pytest.raises(ollama.ResponseError, match="loads no others") as caught:
        client.pull("other")
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="neither copies nor deletes"):
        client.delete("tiny")


def test_texts_are_embedded(client: Any) -> None:
    assert len(client.embed("tiny", ["a", "b"]).embeddings) == 2
    assert len(client.embeddings("tiny", "a").embedding) == 64
