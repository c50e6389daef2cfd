"""OpenAI's Python client: chats, tools, schemas, completions, responses, embeddings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("pydantic")

import openai
import pydantic
from scripted import CALL, Scripted

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
FUNCTION = {
    "name": "weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOLS: list[Any] = [{"type": "function", "function": FUNCTION}]


class City(pydantic.BaseModel):
    name: str
    people: int


@pytest.fixture
def client(scripted: Scripted) -> Iterator[Any]:
    with openai.OpenAI(base_url=scripted.url, api_key="none", max_retries=0) as made:
        yield made


def test_any_model_name_and_unknown_parameters_are_accepted(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["Hi."]
    found = client.chat.completions.with_raw_response.create(
        model="gpt-4o", messages=HELLO, user="me", temperature=1.0, extra_body={"frobnicate": 1, "n": 1.0}
    )
    assert found.headers["x-ggplug-ignored"] == "frobnicate"
    assert found.parse().choices[0].message.content == "Hi."


def test_a_tool_is_called_and_its_result_is_read(client: Any, scripted: Scripted) -> None:
    scripted.texts += [CALL, "It rains."]
    found = client.chat.completions.create(model="m", messages=HELLO, tools=TOOLS)
    (choice,) = found.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Lyon"})
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    found = client.chat.completions.create(model="m", messages=[*HELLO, choice.message, result], tools=TOOLS)
    assert found.choices[0].message.content == "It rains."
    assert "<tool_response>\nrain\n</tool_response>" in scripted.asked[1]


def test_a_call_is_streamed(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["I look. " + CALL]
    with client.chat.completions.stream(model="m", messages=HELLO, tools=TOOLS) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.delta" in kinds
    assert message.content.strip() == "I look."
    assert message.tool_calls[0].function.name == "weather"


def test_an_answer_is_parsed_to_a_pydantic_model(client: Any, scripted: Scripted) -> None:
    scripted.texts += ['{"name": "Lyon", "people": 500000}']
    found = client.chat.completions.parse(model="m", messages=HELLO, response_format=City)
    assert found.choices[0].message.parsed == City(name="Lyon", people=500000)


def test_a_chat_is_streamed_with_usage(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["one two"]
    chunks = list(
        client.chat.completions.create(model="m", messages=HELLO, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "one two"
    assert chunks[-1].usage.completion_tokens > 0


def test_several_texts_and_stop_strings(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["a STOP b", "c"]
    found = client.chat.completions.create(model="m", messages=HELLO, n=2, stop=["STOP", ""])
    assert [choice.message.content for choice in found.choices] == ["a ", "c"]


def test_completions_are_echoed_with_log_probabilities(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["not reached"]
    found = client.completions.create(model="m", prompt="hello", max_tokens=0, echo=True, logprobs=1)
    scores = found.choices[0].logprobs
    assert found.choices[0].text == "".join(scores.tokens) == "hello"
    assert scores.token_logprobs[0] is None
    assert all(value < 0 for value in scores.token_logprobs[1:])


def test_a_response_is_created(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["Hello there."]
    found = client.responses.create(model="m", input="hello", instructions="be short")
    assert (found.output_text, found.status) == ("Hello there.", "completed")
    assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens
    assert "be short" in scripted.asked[0]


def test_a_response_is_streamed(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["Hello there."]
    with client.responses.stream(model="m", input=HELLO) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        found = stream.get_final_response()
    assert text == found.output_text == "Hello there."


def test_a_response_calls_a_function_and_reads_its_result(client: Any, scripted: Scripted) -> None:
    scripted.texts += [CALL, "It rains."]
    tools = [{"type": "function", "strict": True, **FUNCTION}]
    found = client.responses.create(model="m", input=HELLO, tools=tools)
    (call,) = (item for item in found.output if item.type == "function_call")
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Lyon"})
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    found = client.responses.create(model="m", input=[*HELLO, *found.output, result], tools=tools)
    assert found.output_text == "It rains."
    assert "rain" in scripted.asked[1]


def test_a_response_is_parsed_to_a_pydantic_model(client: Any, scripted: Scripted) -> None:
    scripted.texts += ['{"name": "Lyon", "people": 500000}']
    found = client.responses.parse(model="m", input="hello", text_format=City)
    assert found.output_parsed == City(name="Lyon", people=500000)


def test_vectors_may_be_shorter(client: Any) -> None:
    found = client.embeddings.create(model="m", input="hello", dimensions=8)
    assert len(found.data[0].embedding) == 8
    assert sum(value**2 for value in found.data[0].embedding) == pytest.approx(1, abs=1e-5)
