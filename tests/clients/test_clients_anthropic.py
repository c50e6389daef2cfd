"""Anthropic's Python client: messages, streams, tools, counting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("anthropic")

import anthropic
from scripted import CALL, Scripted

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
TOOLS: list[Any] = [
    {
        "name": "weather",
        "description": "The weather of a city",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
]


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as made:
        yield made


def test_a_message_is_answered(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["Hello there."]
    found = client.messages.create(model="m", max_tokens=50, messages=HELLO, system="be short")
    assert [block.text for block in found.content] == ["Hello there."]
    assert found.stop_reason == "end_turn"
    assert found.usage.output_tokens > 0
    assert "be short" in scripted.asked[0]


def test_a_message_is_streamed(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["Hello there."]
    with client.messages.stream(model="m", max_tokens=50, messages=HELLO) as stream:
        assert "".join(stream.text_stream) == "Hello there."
        assert stream.get_final_message().stop_reason == "end_turn"


@pytest.mark.parametrize("streams", [False, True])
def test_a_tool_is_used_and_its_result_is_read(client: Any, scripted: Scripted, streams: bool) -> None:
    scripted.texts += ["I look. " + CALL, "It rains."]
    asked = {"model": "m", "max_tokens": 200, "messages": HELLO, "tools": TOOLS}
    if streams:
        with client.messages.stream(**asked) as stream:
            found = stream.get_final_message()
    else:
        found = client.messages.create(**asked)
    assert found.stop_reason == "tool_use"
    text, use = found.content
    assert (text.text.strip(), use.name, use.input) == ("I look.", "weather", {"city": "Lyon"})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "rain"}
    messages = [*HELLO, {"role": "assistant", "content": found.content}, {"role": "user", "content": [result]}]
    found = client.messages.create(model="m", max_tokens=50, messages=messages, tools=TOOLS)
    assert found.content[0].text == "It rains."
    assert "<tool_response>\nrain\n</tool_response>" in scripted.asked[1]


def test_a_stop_sequence_is_named(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["one END two"]
    found = client.messages.create(model="m", max_tokens=50, messages=HELLO, stop_sequences=["END"])
    assert (found.stop_reason, found.stop_sequence, found.content[0].text) == ("stop_sequence", "END", "one ")


def test_tokens_are_counted(client: Any) -> None:
    found = client.messages.count_tokens(model="m", messages=HELLO)
    assert found.input_tokens > 5


def test_errors_have_the_types_of_anthropic(client: Any) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    with pytest.raises(anthropic.BadRequestError, match="image input is not supported") as caught:
        client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": [image]}])
    assert caught.value.body["error"]["type"] == "invalid_request_error"
