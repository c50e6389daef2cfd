"""OpenAI's Python client: chats, tools, schemas, responses."""

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


def test_calls_are_parsed_to_pydantic_models(client: Any, scripted: Scripted) -> None:
    scripted.texts += ['<tool_call>\n{"name": "City", "arguments": {"name": "Lyon", "people": 5}}\n</tool_call>']
    tools = [openai.pydantic_function_tool(City)]
    found = client.chat.completions.parse(model="m", messages=HELLO, tools=tools)
    assert found.choices[0].message.tool_calls[0].function.parsed_arguments == City(name="Lyon", people=5)


def test_an_answer_is_streamed_to_a_pydantic_model(client: Any, scripted: Scripted) -> None:
    scripted.texts += ['{"name": "Lyon", "people": 500000}']
    with client.chat.completions.stream(model="m", messages=HELLO, response_format=City) as stream:
        parsed = [event.parsed for event in stream if event.type == "content.delta" and event.parsed is not None]
        found = stream.get_final_completion().choices[0].message
    assert parsed[-1] == {"name": "Lyon", "people": 500000}
    assert found.parsed == City(name="Lyon", people=500000)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_may_be_required(client: Any, scripted: Scripted, choice: Any) -> None:
    scripted.texts += [CALL]
    found = client.chat.completions.create(model="m", messages=HELLO, tools=TOOLS, tool_choice=choice)
    assert found.choices[0].message.tool_calls[0].function.name == "weather"


def test_with_tool_choice_none_a_call_is_text(client: Any, scripted: Scripted) -> None:
    scripted.texts += [CALL]
    found = client.chat.completions.create(model="m", messages=HELLO, tools=TOOLS, tool_choice="none")
    assert found.choices[0].message.tool_calls is None
    assert "Lyon" in found.choices[0].message.content


def test_several_calls_at_once(client: Any, scripted: Scripted) -> None:
    scripted.texts += [f"{CALL}\n{CALL}"] * 2
    found = client.chat.completions.create(model="m", messages=HELLO, tools=TOOLS, parallel_tool_calls=True)
    first, second = found.choices[0].message.tool_calls
    assert first.id != second.id
    chunks = client.chat.completions.create(model="m", messages=HELLO, tools=TOOLS, stream=True)
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert {call.index for call in calls} == {0, 1}


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_an_answer_is_json(client: Any, scripted: Scripted, kind: str) -> None:
    scripted.texts += ['{"a": 1}']
    form: dict[str, Any] = {"type": kind}
    if kind == "json_schema":
        form["json_schema"] = {"name": "a", "strict": True, "schema": {"type": "object"}}
    found = client.chat.completions.create(model="m", messages=HELLO, response_format=form)
    assert json.loads(found.choices[0].message.content) == {"a": 1}


def test_messages_of_all_roles_and_parts_are_read(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["Hi."]
    messages = [
        {"role": "developer", "content": "be short"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "three"},
        {"role": "user", "content": "four", "name": "me"},
    ]
    client.chat.completions.create(model="m", messages=messages)
    assert all(text in scripted.asked[0] for text in ("be short", "one", "two", "three", "four"))


def test_settings_of_the_sampler_are_accepted(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["Hi."]
    found = client.chat.completions.with_raw_response.create(
        model="m",
        messages=HELLO,
        max_completion_tokens=50,
        seed=7,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={"65": -100},
        reasoning_effort="low",
        extra_body={"top_k": 20, "min_p": 0.1, "grammar": 'root ::= "Hi."'},
    )
    assert "x-ggplug-ignored" not in found.headers
    assert found.parse().choices[0].message.content == "Hi."


def test_an_answer_that_is_cut_says_so(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["one two three"]
    found = client.chat.completions.create(model="m", messages=HELLO, max_tokens=2)
    assert found.choices[0].finish_reason == "length"
    assert found.usage.completion_tokens == 2


def test_a_last_message_of_the_assistant_is_continued(client: Any, scripted: Scripted) -> None:
    scripted.texts += [" wide web"]
    messages = [*HELLO, {"role": "assistant", "content": "The world"}]
    found = client.chat.completions.create(model="m", messages=messages)
    assert found.choices[0].message.content.endswith("wide web")
    assert scripted.asked[0].endswith("The world")


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


def test_a_response_streams_a_call(client: Any, scripted: Scripted) -> None:
    scripted.texts += [CALL]
    with client.responses.stream(model="m", input="hello", tools=[{"type": "function", **FUNCTION}]) as stream:
        deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        (call,) = (item for item in stream.get_final_response().output if item.type == "function_call")
    assert json.loads("".join(deltas)) == json.loads(call.arguments) == {"city": "Lyon"}


def test_a_response_that_is_cut_is_incomplete(client: Any, scripted: Scripted) -> None:
    scripted.texts += ["one two three"]
    found = client.responses.create(model="m", input="hello", max_output_tokens=2)
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")


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
