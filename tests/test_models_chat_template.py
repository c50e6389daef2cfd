"""Chat templates give the prompts that `transformers` renders, and cannot do harm.

``tests/data/chat_templates.json`` was rendered by ``render_jinja_template`` of `transformers` 5; null is what it
refuses.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggplug.errors import ModelError, ParameterError
from ggplug_models import ChatTemplate, Tokenizer, load_tokenizer

pytest.importorskip("jinja2")

RENDERED: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "chat_templates.json").read_text("utf-8"))
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
        if case["text"] is None:
            with pytest.raises((ModelError, ParameterError)):
                template.render(messages, **options)
        else:
            assert template.render(messages, **options) == case["text"], case


def test_templates_are_those_of_the_file_by_name(tokenizer: Tokenizer) -> None:
    metadata = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools"}
    assert ChatTemplate.of(metadata, tokenizer).render(HELLO) == "plain"
    assert ChatTemplate.of(metadata, tokenizer, "tool_use").render(HELLO) == "tools"
    with pytest.raises(ModelError, match=r"no tokenizer\.chat_template\.rag; it has templates named tool_use"):
        ChatTemplate.of(metadata, tokenizer, "rag")
    with pytest.raises(ModelError, match=r"the file has no tokenizer\.chat_template"):
        ChatTemplate.of({}, tokenizer)


def test_special_tokens_of_a_prompt_are_tokens_and_bos_stands_there_once(tokenizer: Tokenizer) -> None:
    once = ChatTemplate("<|im_start|>{{ messages[0].content }}<|im_end|>", tokenizer).encode(HELLO)
    twice = ChatTemplate("{{ bos_token }}<|im_start|>{{ messages[0].content }}<|im_end|>", tokenizer).encode(HELLO)
    assert once == twice == [1, 3, *tokenizer.encode("Hi"), 4]


def test_the_time_is_what_the_clock_says(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    import datetime

    monkeypatch.setattr("ggplug_models.chat_template.now", lambda: datetime.datetime(2024, 7, 26))
    assert ChatTemplate("{{ strftime_now('%d %b %Y') }}", tokenizer).render(HELLO) == "26 Jul 2024"


def test_what_a_template_knows_else_can_be_given(tokenizer: Tokenizer) -> None:
    template = ChatTemplate("{{ 'think' if enable_thinking else 'answer' }}", tokenizer)
    assert template.render(HELLO, enable_thinking=True) == "think"
    assert template.render(HELLO) == "answer"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("Hi", "messages are a list of dicts with role and content, got str"),
        (HELLO[0], "messages are a list of dicts with role and content, got dict"),
        ([], "messages are empty"),
        (["Hi"], r"messages\[0\] is str, not a dict"),
        ([{"content": "Hi"}], r"messages\[0\] has the role None"),
        ([*HELLO, {"role": "user"}], r"messages\[1\] has the content None"),
        ([{"role": "user", "content": 7}], r"messages\[0\] has the content 7"),
        ([{"role": "user", "content": ["Hi"]}], r"messages\[0\] has the content \['Hi'\]"),
    ],
)
def test_messages_that_are_none_are_refused(tokenizer: Tokenizer, messages: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        ChatTemplate("{{ messages }}", tokenizer).render(messages)


def test_what_a_template_refuses_is_told_in_its_words(tokenizer: Tokenizer) -> None:
    with pytest.raises(ParameterError, match="refuses these messages: no system here"):
        ChatTemplate("{{ raise_exception('no system here') }}", tokenizer).render(HELLO)


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% for %}{% endfor %}", "{% unknown %}"])
def test_what_is_no_template_is_an_error(tokenizer: Tokenizer, source: str) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.chat_template is no template"):
        ChatTemplate(source, tokenizer)


@pytest.mark.parametrize("source", ["{% break %}", "{{ dict(a=1, a=2) }}", "{% if 1 %}" * 120 + "{% endif %}" * 120])
def test_what_python_refuses_of_a_template_is_the_templates_fault(tokenizer: Tokenizer, source: str) -> None:
    with pytest.raises(ModelError, match="is no template"):
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
from ggplug_models.chat_template import ChatTemplate, ModelError
try:
    ChatTemplate("x", None)
except ModelError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install jinja2" in done.stdout
