"""Chat templates give the prompts that `transformers` renders, and cannot do harm.

``tests/data/chat_templates.json`` was rendered by ``render_jinja_template`` of `transformers` 5; null is what it
refuses.  ``tests/data/llama_cpp_templates.json.xz`` has the templates that llama.cpp brings, and what its own Jinja
makes of them in its server; null is what it refuses.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import lzma
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from paths import DATA

from ggplug.errors import ModelError, ParameterError
from ggplug_models import ChatTemplate, Tokenizer, load_tokenizer

pytest.importorskip("jinja2")

RENDERED: dict[str, Any] = json.loads((DATA / "chat_templates.json").read_text("utf-8"))
SERVED: dict[str, Any] = json.loads(lzma.decompress((DATA / "llama_cpp_templates.json.xz").read_bytes()))
HELLO = [{"role": "user", "content": "Hi"}]

METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", *map(chr, range(33, 127))],
    "tokenizer.ggml.token_type": np.array([2, 3, 3, 3, 3, *[1] * 94], np.int32),
    "tokenizer.ggml.add_space_prefix": False,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(METADATA)


@pytest.mark.parametrize("name", sorted(RENDERED["templates"]))
def test_prompts_are_those_of_transformers(tokenizer: Tokenizer, name: str) -> None:
    template = ChatTemplate(RENDERED["templates"][name], tokenizer)
    cases = [each for each in RENDERED["rendered"] if each["template"] == name]
    assert any(each["text"] for each in cases)
    for case in cases:
        messages = RENDERED["chats"][case["chat"]]
        options = {"add_generation_prompt": case["add_generation_prompt"]}
        if case["tools"]:
            options["tools"] = RENDERED["tools"]
        if case["text"] is None and any(message.get("content") is None for message in messages):
            continue  # which is an empty text here
        if case["text"] is None:
            with pytest.raises((ModelError, ParameterError)):
                template.render(messages, **options)
        else:
            assert template.render(messages, **options) == case["text"], case


@pytest.mark.parametrize("name", sorted(SERVED["templates"]))
def test_a_message_without_content_is_one_whose_content_is_empty(tokenizer: Tokenizer, name: str) -> None:
    template = ChatTemplate(SERVED["templates"][name], tokenizer)
    call = {"id": "123456789", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    answer = {"role": "assistant", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "123456789", "name": "f", "content": "1"}
    prompts = []
    for content in ({"content": ""}, {"content": None}, {}):
        try:
            prompts.append(template.render([{"role": "user", "content": "hi"}, {**answer, **content}, result]))
        except (ModelError, ParameterError) as error:
            prompts.append(str(error))
    assert prompts[0] == prompts[1] == prompts[2]


@pytest.mark.parametrize("name", sorted(SERVED["templates"]))
def test_prompts_are_those_of_llama_cpps_server(
    tokenizer: Tokenizer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ggplug_models.chat.template.now", lambda: datetime.datetime.fromisoformat(SERVED["date"]))
    template = ChatTemplate(SERVED["templates"][name], tokenizer)
    for chat, text in SERVED["rendered"][name].items():
        messages = SERVED["chats"][chat]
        if text is None:
            with pytest.raises((ModelError, ParameterError)):
                template.render(messages)
        else:
            assert template.render(messages) == text, chat


def call(arguments: Any) -> list[dict[str, Any]]:
    function = {"name": "f", "arguments": arguments}
    return [*HELLO, {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}]


@pytest.mark.parametrize(
    "source",
    [
        "{{ call.arguments }}",
        "{{ 'x ' + call.arguments + ' y' }}",
        "{{ 'x ' ~ call.arguments }}",
        "{{ call.arguments|string }}",
        "{{ '%s' % call.arguments }}",
        "{{ '{}'.format(call.arguments) }}",
        "{{ [call.arguments, 'z']|join }}",
        "{{ call.arguments|trim }}",
    ],
)
def test_arguments_of_calls_are_the_text_where_a_template_writes_them(tokenizer: Tokenizer, source: str) -> None:
    given = '{"b":"\u00e9",  "a": [1]}'
    render = ChatTemplate("{% set call = messages[1].tool_calls[0].function %}" + source, tokenizer).render
    assert given in render(call(given))


def test_arguments_of_calls_are_an_object_where_a_template_looks_into_them(tokenizer: Tokenizer) -> None:
    source = """{% set a = messages[1].tool_calls[0].function.arguments %}{{ a is mapping }} {{ a is string }} {{ a.b }}
{%- for key, value in a.items() %} {{ key }}={{ value }}{% endfor %}{{ a|items|list|length }} {{ a|tojson }}"""
    found = ChatTemplate(source, tokenizer).render(call('{"b":"\u00e9",  "text": [1]}'))
    assert found == 'True False \u00e9 b=\u00e9 text=[1]2 {"b": "\u00e9", "text": [1]}'
    assert ChatTemplate("{{ messages[1].tool_calls[0].function.arguments|tojson }}", tokenizer).render(call("")) == "{}"


@pytest.mark.parametrize("given", ["{", "[1]", "1", "[" * 100_000, "9" * 10_000])
def test_arguments_that_are_no_json_object_stay_text(tokenizer: Tokenizer, given: str) -> None:
    source = "{% set a = messages[1].tool_calls[0].function.arguments %}{{ a is string }}{{ a }}"
    assert ChatTemplate(source, tokenizer).render(call(given)) == "True" + given


def test_messages_are_the_callers_and_stay_as_they_are(tokenizer: Tokenizer) -> None:
    messages = call('{"a": 1}')
    ChatTemplate("{{ messages }}", tokenizer).render(messages)
    assert messages == call('{"a": 1}')
    assert type(messages[1]["tool_calls"][0]["function"]["arguments"]) is str


def test_of_functions_within_functions_only_the_first_is_looked_into(tokenizer: Tokenizer) -> None:
    nested: dict[str, Any] = {"arguments": '{"a": 7}'}
    for _ in range(5000):
        nested = {"function": nested}
    message = {"role": "assistant", "content": "", "tool_calls": [nested]}
    with pytest.raises(ParameterError, match="nested deeper than 100"):
        ChatTemplate("{{ messages[0].content }}", tokenizer).render([message])


def test_calls_may_have_no_function_around_their_arguments_and_may_be_none(tokenizer: Tokenizer) -> None:
    source = "{{ messages[0].tool_calls[0].arguments.a }}"
    message = {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": '{"a": 7}'}]}
    assert ChatTemplate(source, tokenizer).render([message]) == "7"
    for calls in (None, [], ["f"], [{"name": "f"}], "f"):
        assert ChatTemplate("x", tokenizer).render([{**message, "tool_calls": calls}]) == "x"


def test_tools_that_nobody_gave_are_none_and_have_no_items(tokenizer: Tokenizer) -> None:
    source = "{{ tools is none }} {{ tools is defined }}{% for t in tools %} {{ t }}{% else %} no tool{% endfor %}"
    assert ChatTemplate(source, tokenizer).render(HELLO) == "True True no tool"
    assert ChatTemplate(source, tokenizer).render(HELLO, tools=[{"a": 1}]) == "False True {'a': 1}"


def test_templates_are_those_of_the_file_by_name(tokenizer: Tokenizer) -> None:
    metadata = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools"}
    assert ChatTemplate.of(metadata, tokenizer).render(HELLO) == "plain"
    assert ChatTemplate.of(metadata, tokenizer, "tool_use").render(HELLO) == "tools"
    with pytest.raises(
        ModelError,
        match=r"no chat template \(tokenizer\.chat_template\.rag\); it has templates with the names tool_use",
    ):
        ChatTemplate.of(metadata, tokenizer, "rag")
    with pytest.raises(ModelError, match=r"the file has no chat template"):
        ChatTemplate.of({}, tokenizer)


def test_special_tokens_of_a_prompt_are_tokens_and_bos_stands_there_once(tokenizer: Tokenizer) -> None:
    once = ChatTemplate("<|im_start|>{{ messages[0].content }}<|im_end|>", tokenizer).encode(HELLO)
    twice = ChatTemplate("{{ bos_token }}<|im_start|>{{ messages[0].content }}<|im_end|>", tokenizer).encode(HELLO)
    assert once == twice == [1, 3, *tokenizer.encode("Hi"), 4]


def test_the_time_is_what_the_clock_says(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggplug_models.chat.template.now", lambda: datetime.datetime(2031, 2, 3))
    source = "{{ strftime_now('%d %b %Y') }}, {{ date_string }}, {{ datetime }}"
    assert ChatTemplate(source, tokenizer).render(HELLO) == "03 Feb 2031, 03 Feb 2031, Feb 03 2031"
    assert ChatTemplate("{{ date_string }}", tokenizer).render(HELLO, date_string="today") == "today"


def test_templates_get_further_variables(tokenizer: Tokenizer) -> None:
    template = ChatTemplate("{{ 'think' if enable_thinking else 'answer' }}", tokenizer)
    assert template.render(HELLO, enable_thinking=False) == "answer"
    assert template.render(HELLO) == "think"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("Hi", "messages must be a list of dicts with role and content, got str"),
        (HELLO[0], "messages must be a list of dicts with role and content, got dict"),
        ([], "messages is empty"),
        (["Hi"], r"messages\[0\] must be a dict with role and content, got str"),
        ([{"content": "Hi"}], r"the role of messages\[0\] must be a string, got None"),
        ([*HELLO, {"role": "user"}], r"the content of messages\[1\] must be .*, got None"),
        ([{"role": "user", "content": 7}], r"the content of messages\[0\] must be .*, got 7"),
        ([{"role": "user", "content": ["Hi"]}], r"the content of messages\[0\] must be .*, got \['Hi'\]"),
    ],
)
def test_messages_that_are_none_are_refused(tokenizer: Tokenizer, messages: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        ChatTemplate("{{ messages }}", tokenizer).render(messages)


def test_what_a_template_refuses_is_reported_in_its_words(tokenizer: Tokenizer) -> None:
    with pytest.raises(ParameterError, match="refuses these messages: no system here"):
        ChatTemplate("{{ raise_exception('no system here') }}", tokenizer).render(HELLO)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception(messages[0].content) }}",
        "{{ dict()[messages[0].content].x }}",
        "{{ messages | attr(messages[0].content) | upper + 1 }}",
        "{{ ['a'] | map(messages[0].content) | list }}",
    ],
)
def test_errors_show_control_characters_and_do_not_obey_them(tokenizer: Tokenizer, source: str) -> None:
    messages = [{"role": "user", "content": "\x1b[2Jgone\r\x07\nerror: \u202efine"}]
    with pytest.raises((ModelError, ParameterError)) as caught:
        ChatTemplate(source, tokenizer).render(messages)
    assert str(caught.value).isprintable()


def test_an_error_in_a_template_shows_its_control_characters(tokenizer: Tokenizer) -> None:
    with pytest.raises(ModelError, match="is not valid") as caught:
        ChatTemplate("{% \x1b[2J %}", tokenizer)
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% for %}{% endfor %}", "{% unknown %}"])
def test_what_is_no_template_is_an_error(tokenizer: Tokenizer, source: str) -> None:
    with pytest.raises(ModelError, match=r"\(tokenizer\.chat_template\) is not valid"):
        ChatTemplate(source, tokenizer)


@pytest.mark.parametrize("source", ["{% break %}", "{{ dict(a=1, a=2) }}", "{% if 1 %}" * 120 + "{% endif %}" * 120])
def test_what_python_refuses_of_a_template_is_the_templates_fault(tokenizer: Tokenizer, source: str) -> None:
    with pytest.raises(ModelError, match="is not valid"):
        ChatTemplate(source, tokenizer)


@pytest.mark.parametrize("source", ["{{ cycler() }}", "{{ 'aaaa'|truncate(1) }}"])
def test_whatever_a_template_raises_is_the_templates_fault(tokenizer: Tokenizer, source: str) -> None:
    with pytest.raises(ModelError, match="fails with these messages"):
        ChatTemplate(source, tokenizer).render([{"role": "user", "content": "hello"}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ strftime_now.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{% include 'file' %}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ 10 ** 100000000 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ messages[7].content.x.y }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(tokenizer: Tokenizer, source: str) -> None:
    template = ChatTemplate(source, tokenizer)
    messages = [dict(HELLO[0])]
    found = ""
    with contextlib.suppress(ModelError):
        found = template.render(messages)
    assert found == ""  # an attribute that templates may not see is undefined
    assert messages == HELLO


def test_without_jinja2_an_error_says_how_to_get_it() -> None:
    code = """
import sys
sys.modules["jinja2"] = None
from ggplug_models.chat.template import ChatTemplate, ModelError
try:
    ChatTemplate("x", None)
except ModelError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install jinja2" in done.stdout
