"""Tools and reasoning in the other APIs: Anthropic's messages, OpenAI's responses, and Ollama's."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ggplug_models import ChatTemplate, Decoder
from ggplug_models.sampling import Constraint

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
pytest.importorskip("llguidance")

from answers.scripted import THINKING, Scripted
from paths import DATA
from served import Live, served

from ggplug_models.serve.apis import ollama
from ggplug_models.serve.apis.messages import AnthropicBody, chat_of
from ggplug_models.serve.apis.ollama import with_whole_calls
from ggplug_models.serve.apis.responses import ResponsesReply
from ggplug_models.serve.messages import ChatMessage

ASKED: Any = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WRITTEN = 'Hm.</think>I look.<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'


@pytest.fixture(scope="module")
def live(model: Decoder) -> Iterator[Live]:
    with served(model, template=THINKING) as running:
        yield running


@pytest.fixture
def written(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    says(live, monkeypatch, WRITTEN)


def says(live: Live, monkeypatch: pytest.MonkeyPatch, text: str, *, freely: bool = False) -> None:
    """Has the model write a text.  ``freely``: also what its grammar does not allow."""
    assert isinstance(live.service.model, Decoder)
    tokenizer = live.service.model.tokenizer

    def sampler(*args: Any, constraint: Constraint | None = None, **more: Any) -> Scripted:
        return Scripted(tokenizer, [text], None if freely else constraint)

    monkeypatch.setattr("ggplug_models.serve.writer.Sampler", sampler)


def test_anthropics_messages_have_blocks_of_thoughts_and_calls(live: Live, written: None) -> None:
    tools = [{"name": "weather", "input_schema": SCHEMA}]
    body = {"model": "tiny", "max_tokens": 200, "messages": ASKED, "tools": tools, "tool_choice": {"type": "auto"}}
    status, _, found = live.ask("POST", "/v1/messages", body)
    assert status == 200
    assert [block["type"] for block in found["content"]] == ["thinking", "text", "tool_use"]
    assert found["content"][0]["thinking"] == "Hm."
    assert found["content"][2]["name"] == "weather"
    assert found["content"][2]["input"] == {"city": "Rome"}
    assert found["stop_reason"] == "tool_use"


def test_openais_responses_have_items_of_reasoning_and_calls(live: Live, written: None) -> None:
    tools = [{"type": "function", "name": "weather", "parameters": SCHEMA}]
    status, _, found = live.ask("POST", "/v1/responses", {"model": "tiny", "input": "hi", "tools": tools})
    assert status == 200
    assert [item["type"] for item in found["output"]] == ["reasoning", "message", "function_call"]
    assert json.loads(found["output"][2]["arguments"]) == {"city": "Rome"}


def test_text_after_a_call_is_a_block_or_an_item_after_it(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    text = f"Hm.</think>First.{call}Then.{call}"
    says(live, monkeypatch, text, freely=True)
    tools: Any = [{"name": "weather", "input_schema": SCHEMA}]
    body = {"model": "tiny", "max_tokens": 300, "messages": ASKED, "tools": tools}
    found = live.ask("POST", "/v1/messages", body)[2]["content"]
    assert [block["type"] for block in found] == ["thinking", "text", "tool_use", "text", "tool_use"]
    assert [block["text"].strip() for block in found if block["type"] == "text"] == ["First.", "Then."]
    assert [block["input"] for block in found if block["type"] == "tool_use"] == [{"city": "Rome"}] * 2
    tools = [{"type": "function", "name": "weather", "parameters": SCHEMA}]
    says(live, monkeypatch, text, freely=True)
    found = live.ask("POST", "/v1/responses", {"model": "tiny", "input": "hi", "tools": tools})[2]["output"]
    assert [item["type"] for item in found] == ["reasoning", "message", "function_call", "message", "function_call"]
    texts = [item["content"][0]["text"] for item in found if item["type"] == "message"]
    assert [text.strip() for text in texts] == ["First.", "Then."]


def test_each_item_of_a_streamed_response_has_its_own_part_of_the_text() -> None:
    calls = [SimpleNamespace(id=f"call_{n}", name="weather", arguments="{}", index=n) for n in (0, 1)]
    written = SimpleNamespace(content="One two", reasoning="", calls=calls, finish="stop")
    answers: Any = SimpleNamespace(
        written=[written], timings=dict, prompt_tokens=1, reused_tokens=0, generated_tokens=9, reasoning_tokens=0
    )
    body: Any = SimpleNamespace(instructions=None, temperature=1, tool_choice=None, tools=None, top_p=1)
    asked: Any = SimpleNamespace(max_tokens=9, timings_per_token=False)
    served: Any = SimpleNamespace(name="tiny")
    reply = ResponsesReply(served, body, asked, answers)
    parts = [("On", None), ("e ", None), ("", calls[0]), ("two", None), ("", calls[1])]
    pieces = [SimpleNamespace(reasoning="", content=text, call=call) for text, call in parts]
    delta: Any = SimpleNamespace(progress=None, pieces=pieces)
    raw = b"".join([*reply.begin(), *reply.piece(delta), *reply.end()]).decode()
    events = [json.loads(line[5:]) for line in raw.splitlines() if line.startswith("data:")]
    items = events[-1]["response"]["output"]
    assert [item["type"] for item in items] == ["message", "function_call"] * 2
    assert [item["content"][0]["text"] for item in items[::2]] == ["One ", "two"]
    assert len({item["id"] for item in items}) == 4
    assert [event["text"] for event in events if event["type"] == "response.output_text.done"] == ["One ", "two"]


def test_ollamas_chats_have_thinking_and_calls(live: Live, written: None) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    body = {"model": "tiny", "messages": ASKED, "tools": tools, "stream": False}
    status, _, found = live.ask("POST", "/api/chat", body)
    assert status == 200
    assert found["message"]["content"] == "I look."
    assert found["message"]["thinking"] == "Hm."
    assert found["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Rome"}}


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/messages", {"max_tokens": 60, "messages": ASKED, "thinking": {"type": "disabled"}}),
        ("/v1/responses", {"max_output_tokens": 60, "input": "hi", "reasoning": {"effort": "none"}}),
        ("/api/chat", {"messages": ASKED, "stream": False, "think": False, "options": {"num_predict": 60}}),
    ],
)
def test_thinking_can_be_switched_off_in_each(live: Live, path: str, more: dict[str, Any]) -> None:
    status, _, found = live.ask("POST", path, {"model": "tiny", **more})
    assert status == 200
    assert '"thinking"' not in json.dumps(found)
    assert live.service.writer is not None
    prompts = [live.service.writer.session.tokens(number) for number in range(live.service.writer.slots)]
    assert any("<think></think>" in live.service.writer.tokenizer.decode(prompt) for prompt in prompts)


def test_arguments_of_anthropics_clients_have_their_characters() -> None:
    used = {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Zürich"}}
    body = AnthropicBody.model_validate({"max_tokens": 9, "messages": [{"role": "assistant", "content": [used]}]})
    (message,) = chat_of(body).messages
    assert message.for_template()["tool_calls"][0]["function"]["arguments"] == '{"city": "Zürich"}'


@pytest.mark.parametrize(
    ("think", "effort", "thinks"), [(True, None, True), (False, None, False), ("high", "high", True)]
)
def test_how_much_ollamas_clients_have_a_model_think_reaches_the_template(
    think: Any, effort: str | None, thinks: bool, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    made = ollama.chat_prompt
    monkeypatch.setattr(ollama, "chat_prompt", lambda writer, body: given.append(body) or made(writer, body))
    body = {"model": "tiny", "messages": ASKED, "stream": False, "options": {"num_predict": 1}}
    assert live.ask("POST", "/api/chat", {**body, "think": think})[0] == 200
    assert [(each.reasoning_effort, each.enable_thinking) for each in given] == [(effort, thinks)]
    assert live.ask("POST", "/api/chat", {**body, "think": "nonsense"})[0] == 400


TEMPLATES = json.loads(lzma.decompress((DATA / "llama_cpp_templates.json.xz").read_bytes()))["templates"]


@pytest.mark.parametrize("name", ["Mistral-Small-3.2-24B-Instruct-2506", "moonshotai-Kimi-K2", "unsloth-Apriel-1.5"])
def test_calls_without_ids_of_ollamas_clients_reach_the_template_as_those_of_other_apis(
    name: str, model: Decoder
) -> None:
    def called(*ids: str, arguments: Any) -> dict[str, Any]:
        functions = [{"name": each, "arguments": arguments} for each in ("weather", "time")]
        given = [{"id": id, "type": "function"} for id in ids] or [{}, {}]
        calls = [{**more, "function": each} for more, each in zip(given, functions, strict=True)]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    results = [{"role": "tool", "content": "noon"}, {"role": "tool", "content": "sunny"}]
    ids = ["call00001", "call00002"]
    whole = [
        called(*ids, arguments='{"city": "Rome"}'),
        *({**each, "tool_call_id": id} for each, id in zip(results, reversed(ids), strict=True)),
    ]
    bare = [
        called(arguments={"city": "Rome"}),
        *({**each, "tool_name": of} for each, of in zip(results, ("time", "weather"), strict=True)),
    ]
    tools = [{"type": "function", "function": {"name": each, "parameters": SCHEMA}} for each in ("weather", "time")]
    template = ChatTemplate(TEMPLATES[name], model.tokenizer)
    wanted = template.render([*ASKED, *whole], tools=tools)
    for calls in (whole, bare):
        sent = with_whole_calls([ChatMessage(**each) for each in (*ASKED, *calls)])
        assert template.render([each.for_template() for each in sent], tools=tools) == wanted


def test_the_calls_of_ollamas_answers_have_ids(live: Live, written: None) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    body = {"messages": ASKED, "tools": tools, "stream": False}
    first, second = (live.ask("POST", "/api/chat", body)[2]["message"]["tool_calls"][0]["id"] for _ in range(2))
    assert first
    assert first != second


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "?", "images": ["aGk="]}]}, "messages.0.images"),
        ("/api/generate", {"prompt": "?", "images": ["aGk="]}, "images"),
    ],
)
def test_images_of_ollamas_clients_are_refused(path: str, body: dict[str, Any], param: str, live: Live) -> None:
    status, _, found = live.ask("POST", path, body | {"stream": False})
    assert status == 400
    assert found["error"].startswith(f"{param}: image input is not supported")
    for each in (body, *body.get("messages", ())):
        if "images" in each:
            each["images"] = []
    assert live.ask("POST", path, body | {"stream": False, "options": {"num_predict": 1}})[0] == 200
