"""Tools and reasoning over HTTP, as OpenAI's own client sees them; the texts that the model writes are known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ggplug_models import Decoder
from ggplug_models.sampling import Constraint

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
pytest.importorskip("openai")
pytest.importorskip("llguidance")

import openai
from answers.scripted import HERMES, THINKING, Scripted
from served import Live, served

ASKED: Any = [{"role": "user", "content": "hi"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Ålesund", "days": 3}}</tool_call>'
NOW = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'


@pytest.fixture(scope="module", params=[HERMES, THINKING], ids=["plain", "thinking"])
def live(model: Decoder, request: pytest.FixtureRequest) -> Iterator[Live]:
    with served(model, slots=2, template=request.param) as running:
        yield running


@pytest.fixture
def thinks(live: Live) -> bool:
    assert live.service.writer is not None
    return live.service.writer.template.source == THINKING


@pytest.fixture
def client(live: Live) -> Iterator[Any]:
    with openai.OpenAI(base_url=live.url, api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def write(model: Decoder, monkeypatch: pytest.MonkeyPatch, thinks: bool) -> Any:
    """Makes the model write a text, after a thought if it thinks; each token must be allowed by the constraint."""

    def set_text(text: str) -> None:
        def sampler(*args: Any, constraint: Constraint | None = None, **more: Any) -> Scripted:
            return Scripted(model.tokenizer, [f"Hm.</think>{text}" if thinks else text], constraint)

        monkeypatch.setattr("ggplug_models.serve.writer.Sampler", sampler)

    return set_text


def ask(client: Any, **options: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=ASKED, **options)


def test_calls_are_a_part_of_the_message(client: Any, write: Any, thinks: bool) -> None:
    write(f"Let me see.{CALL}\n{NOW}")
    (choice,) = ask(client, tools=TOOLS).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert [call.function.name for call in choice.message.tool_calls] == ["weather", "now"]
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Ålesund", "days": 3}
    assert choice.message.tool_calls[1].function.arguments == "{}"
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert getattr(choice.message, "reasoning_content", None) == ("Hm." if thinks else None)


def test_streamed_deltas_are_those_of_the_whole_message(client: Any, write: Any, thinks: bool) -> None:
    write(f"Let me see.{CALL}\n{NOW}")
    content, reasoning, calls, finish = "", "", {}, None  # type: ignore[var-annotated]
    for chunk in ask(client, tools=TOOLS, stream=True):
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        finish = choice.finish_reason or finish
        for call in choice.delta.tool_calls or ():
            if call.index not in calls:
                assert call.id
                assert call.type == "function"
                calls[call.index] = [call.function.name, ""]
            calls[call.index][1] += call.function.arguments or ""
    assert (content, reasoning, finish) == ("Let me see.", "Hm." if thinks else "", "tool_calls")
    assert list(calls) == [0, 1]
    assert calls[0][0] == "weather"
    assert json.loads(calls[0][1]) == {"city": "Ålesund", "days": 3}
    assert calls[1] == ["now", "{}"]


def test_the_client_s_own_stream_makes_the_same_calls(client: Any, write: Any) -> None:
    write(f"{CALL}")
    with client.chat.completions.stream(model="tiny", messages=ASKED, tools=TOOLS) as stream:
        stream.until_done()
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Ålesund", "days": 3}


def test_with_tool_choice_none_what_looks_like_a_call_is_text(client: Any, write: Any) -> None:
    write(CALL)
    (choice,) = ask(client, tools=TOOLS, tool_choice="none").choices
    assert choice.message.content == CALL
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_whatever_the_model_prefers_a_required_call_is_made(client: Any, choice: Any) -> None:
    more = {"reasoning_budget_tokens": 2}
    for seed in range(4):
        found = ask(
            client,
            tools=TOOLS,
            tool_choice=choice,
            parallel_tool_calls=False,
            max_tokens=300,
            temperature=1,
            seed=seed,
            extra_body=more,
        ).choices[0]
        (call,) = found.message.tool_calls
        assert found.finish_reason == "tool_calls"
        assert call.function.name in ("weather", "now")
        arguments = json.loads(call.function.arguments)
        assert choice == "required" or isinstance(arguments["city"], str)
        assert arguments.keys() <= {"city", "days"}


def test_a_form_of_the_text_holds_after_the_reasoning(client: Any, write: Any, thinks: bool) -> None:
    schema = {"name": "s", "schema": {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}}
    write('{"a": 1}')
    form = {"type": "json_schema", "json_schema": schema}
    (choice,) = ask(client, response_format=form).choices
    assert choice.message.content == '{"a": 1}'
    assert getattr(choice.message, "reasoning_content", None) == ("Hm." if thinks else None)
    write(CALL)
    (choice,) = ask(client, response_format=form, tools=TOOLS).choices
    assert choice.message.tool_calls[0].function.name == "weather"


def test_the_reasoning_is_a_part_of_the_text_if_the_client_wants_it(client: Any, write: Any, thinks: bool) -> None:
    write("Yes.")
    (choice,) = ask(client, extra_body={"reasoning_format": "none"}).choices
    assert choice.message.content == ("Hm.</think>Yes." if thinks else "Yes.")


def test_thinking_can_be_switched_off(live: Live, thinks: bool) -> None:
    for more in (
        {"enable_thinking": False},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ):
        _, _, found = live.ask("POST", "/apply-template", {"messages": ASKED, **more})
        assert found["prompt"].endswith("<think></think>" if thinks else "<|assistant|>")


def test_results_of_calls_continue_the_chat(live: Live) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    messages = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    status, _, found = live.ask("POST", "/apply-template", {"messages": messages, "tools": TOOLS})
    assert status == 200
    assert '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>' in found["prompt"]
    assert "<|tool|>sunny" in found["prompt"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tools": [{"type": "web_search"}]}, "a tool must have the type function and a function"),
        ({"tools": TOOLS, "tool_choice": "other"}, "tool_choice has the tool 'other'; the tools are: weather, now"),
        ({"tools": [*TOOLS, TOOLS[1]]}, "two tools have the name 'now'"),
        ({"tool_choice": "required"}, "tool_choice requires a call, but there are no tools"),
        ({"reasoning_effort": "huge"}, "reasoning_effort must be one of none"),
        ({"chat_template_kwargs": {"enable_thinking": "yes"}}, "enable_thinking must be a boolean, got 'yes'"),
        ({"tools": TOOLS, "grammar": 'root ::= "a"'}, "grammar and tools cannot both be given"),
        ({"tools": [{"function": {"name": "f", "parameters": {"type": "no"}}}]}, "the JSON schema is not valid"),
    ],
)
def test_what_cannot_be_is_refused_in_words(live: Live, more: dict[str, Any], words: str) -> None:
    status, _, found = live.ask("POST", "/v1/chat/completions", {"messages": ASKED, "max_tokens": 2, **more})
    assert status == 400
    assert words in found["error"]["message"]
