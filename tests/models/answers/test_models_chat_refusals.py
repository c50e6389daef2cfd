"""Schemas and messages that are not valid are errors that name the place, before a template or a grammar reads them."""

from __future__ import annotations

import json
import lzma
import re
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from answers.scripted import HERMES
from paths import DATA

from ggplug.errors import ParameterError
from ggplug_models import ChatTemplate, Decoder, Tool, run_tools
from ggplug_models.chat.lark import Lark
from ggplug_models.chat.prepared import prepared

pytest.importorskip("jinja2")
pytest.importorskip("llguidance")

ASKED: dict[str, Any] = {"role": "user", "content": "hi"}
PLAIN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
"""A template without tools, which are described in the chat."""


class Silent:
    """An object that cannot be printed."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def add(a: int) -> int:
    return a


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def nested_schema(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"type": "object", "properties": {"a": found}}
    return found


CIRCLE: dict[str, Any] = {}
CIRCLE["properties"] = {"a": CIRCLE}


def of(schema: Any) -> dict[str, Any]:
    """The schema of arguments with an argument ``a``."""
    return {"type": "object", "properties": {"a": schema}}


# -- schemas --------------------------------------------------------------------------------------

WRITTEN = "the parameters of the tool f cannot be written as JSON: "
WRONG: list[Any] = ["x", -1, 1.5, [], [[1]], {}, [{}], True, 10**30]
SORTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "minItems": ("an integer of at least 0", (8,)),
    "maxItems": ("an integer of at least 0", (8,)),
    "minLength": ("an integer of at least 0", (8,)),
    "maxLength": ("an integer of at least 0", (8,)),
    "pattern": ("a string", (0,)),
    "$ref": ("a string", (0,)),
    "enum": ("a list", (3, 4, 6)),
    "required": ("a list of strings", (3,)),
    "type": ("a string or a list of strings", (0, 3)),
    "properties": ("an object", (5,)),
    "$defs": ("an object", (5,)),
    "items": ("an object or a boolean", (3, 5, 6, 7)),
    "additionalProperties": ("an object or a boolean", (5, 7)),
    "anyOf": ("a list", (3, 6)),
}
"""For each keyword what it must be, and which of ``WRONG`` are that."""

REFUSED: list[tuple[Any, str]] = [
    ({"properties": {"a": {1}}}, WRITTEN + "TypeError: JSON has no set"),
    (of({"const": b"x"}), WRITTEN + "TypeError: JSON has no bytes"),
    (of({"minItems": np.int64(3)}), WRITTEN + "TypeError: JSON has no int64"),
    (of(Silent()), WRITTEN + "TypeError: JSON has no Silent"),
    (of({"const": float("nan")}), WRITTEN + "ValueError: Out of range float"),
    ({"properties": {(1,): {}}}, WRITTEN + "TypeError: keys must be str"),
    (CIRCLE, WRITTEN + "ValueError: Circular reference"),
    (nested_schema(5_000), WRITTEN + "RecursionError"),
    (of({"enum": nested(200_000)}), WRITTEN + "RecursionError"),
    (3, "the parameters of the tool f must be a JSON schema, got 3"),
    (Silent(), "the parameters of the tool f must be a JSON schema, got Silent"),
    (of(3), "the parameters of the tool f: properties/a must be an object or a boolean, got 3"),
    (of(None), "the parameters of the tool f: properties/a must be an object or a boolean, got None"),
    (of({"type": ["string", ["x"]]}), "properties/a/type must be a string or a list of strings"),
    (of(of({"items": {"minItems": "x"}})), "properties/a/properties/a/items/minItems must be an integer"),
    (of({"anyOf": [{}, {"required": 3}]}), "properties/a/anyOf/1/required must be a list of strings, got 3"),
    ({"required": [["a"]]}, r"the parameters of the tool f: required must be a list of strings, got \[\['a'\]\]"),
    *(
        (of({key: value}), rf"properties/a/{re.escape(key)}(/0)? must be ({words}|an object or a boolean), got ")
        for key, (words, fitting) in SORTS.items()
        for number, value in enumerate(WRONG)
        if number not in fitting
    ),
]


@pytest.mark.parametrize(("schema", "words"), REFUSED, ids=[words[:60] for _, words in REFUSED])
def test_a_schema_that_is_not_valid_is_refused_with_its_place(schema: Any, words: str) -> None:
    for tool in ({"function": {"name": "f", "parameters": schema}}, Tool("f", "", schema)):
        with pytest.raises(ParameterError, match=words):
            Tool.of(tool)


@pytest.mark.parametrize("key", SORTS)
def test_a_keyword_that_is_null_is_not_there(key: str) -> None:
    tool = Tool.of({"function": {"name": "f", "parameters": of({"type": "string", key: None, "default": None})}})
    kept = {"default": None} if key == "type" else {"type": "string", "default": None}
    assert tool.properties == {"a": kept}


ODD = [
    MappingProxyType({"type": "object", "properties": MappingProxyType({"a": {"enum": ("x", 1, None)}})}),
    {"type": "object", "properties": None, "required": None},
    {"type": "object", "properties": {1: {"type": "string"}}, "required": ["1", "missing"]},
    of(True),
    of({"type": "strin"}),
    of({"type": "array", "items": [{}]}),
    of({"type": "array", "minItems": 10**30}),
    of({"type": "array", "minItems": 3, "maxItems": 1, "items": {"type": "integer"}}),
    of({"type": "string", "minLength": 10**12}),
    of({"type": "string", "pattern": "("}),
    of({"type": "object", "properties": {"b": {"type": "string"}}, "required": ["c"]}),
    of({"enum": []}),
    of({"anyOf": []}),
    of({"$ref": "#/$defs/missing"}),
    of({"$ref": "#/properties/a"}),
    nested_schema(40),
    nested_schema(200),
]
FORMATS = [
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen3-Coder",
    "MiniMax-M3",
    "LFM2-8B-A1B",
    "google-gemma-4-31B-it",
    "openai-gpt-oss-120b",
]
"""A template for each way in which arguments are written."""


@pytest.mark.parametrize("name", FORMATS)
def test_a_schema_is_refused_in_words_by_the_grammar_of_every_format(model: Decoder, name: str) -> None:
    templates = json.loads(lzma.decompress((DATA / "llama_cpp_templates.json.xz").read_bytes()))["templates"]
    template = ChatTemplate(templates[name], model.tokenizer)
    accepted = 0
    for schema in ODD:
        try:
            chat = prepared(template, [ASKED], tools=[{"function": {"name": "f", "parameters": schema}}])
            grammar = chat.grammar(model.control)
            assert grammar is not None
            model.grammars.answer(grammar)
        except ParameterError:
            continue
        accepted += 1
    assert accepted >= 5


@pytest.mark.parametrize("schema", [{1}, CIRCLE, nested(200_000), float("nan"), 3, [], None, True, "3", "{"], ids=type)
def test_the_schema_of_an_answer_is_refused_in_words(model: Decoder, schema: Any) -> None:
    with pytest.raises(ParameterError, match="JSON schema"):
        Lark(model.control).schema(schema)


# -- messages -------------------------------------------------------------------------------------


def with_calls(calls: Any) -> list[Any]:
    return [ASKED, {"role": "assistant", "content": None, "tool_calls": calls}, {"role": "tool", "content": "x"}]


def with_arguments(arguments: Any) -> list[Any]:
    return with_calls(
        [{"function": {"name": "f", "arguments": {}}}, {"function": {"name": "f", "arguments": arguments}}]
    )


def with_content(content: Any) -> list[Any]:
    return [ASKED, {"role": "user", "content": content}]


CALLS = r"messages\[1\].tool_calls\[0\]: a call of a tool must have a function with a name, got "
ARGUMENTS = r"the arguments of messages\[1\].tool_calls\[1\] cannot be written as JSON: "
MESSAGES: list[tuple[Any, str]] = [
    *((each, "messages must be a list of dicts with role and content, got ") for each in (3, None, "x", {1}, Silent())),
    *(
        ([each], r"messages\[0\] must be a dict with role and content, got ")
        for each in (3, None, Silent(), nested(9999))
    ),
    *(
        ([{"role": each}], r"the role of messages\[0\] must be a string, got ")
        for each in (3, None, Silent(), nested(9999))
    ),
    *(
        (with_content(each), r"the content of messages\[1\] must be a string or a list of dicts, got ")
        for each in (3, [], [3], {"a": 1}, Silent(), nested(200_000))
    ),
    *(
        (
            with_content([{"text": "a"}, {"text": each}]),
            r"the text of messages\[1\].content\[1\] must be a string, got ",
        )
        for each in (3, Silent(), nested(200_000))
    ),
    *((with_calls(each), r"messages\[1\].tool_calls must be a list, got ") for each in (3, "x", {"a": 1}, Silent())),
    *(
        (with_calls([each]), CALLS)
        for each in (
            *(3, "x", None, {}, Silent(), [], {"function": "f"}, {"function": None}, {"function": []}),
            *({"function": {}}, {"function": {"name": 3}}, {"function": {"name": {1}}}, {"name": None}),
        )
    ),
    (with_arguments({1}), ARGUMENTS + "TypeError"),
    (with_arguments({"a": Silent()}), ARGUMENTS + "TypeError"),
    (with_arguments({(1, 2): 3}), ARGUMENTS + "TypeError"),
    (with_arguments(CIRCLE), ARGUMENTS + "ValueError: Circular reference"),
    (with_arguments(nested(200_000)), ARGUMENTS + "RecursionError"),
]


@pytest.mark.parametrize(
    ("messages", "words"), MESSAGES, ids=[f"{n} {words[:40]}" for n, (_, words) in enumerate(MESSAGES)]
)
def test_a_message_that_is_not_valid_is_refused_with_its_place(model: Decoder, messages: Any, words: str) -> None:
    for source in (PLAIN, HERMES):
        template = ChatTemplate(source, model.tokenizer)
        for tools in ([add], None):
            with pytest.raises(ParameterError, match=words):
                prepared(template, messages, tools=tools)
    with pytest.raises(ParameterError, match=words):
        run_tools(model, messages, [add], template=template)


@pytest.mark.parametrize(
    "messages",
    [
        with_calls(None),
        with_calls([]),
        with_calls(({"function": {"name": "f", "arguments": {}}},)),
        with_calls([{"name": "f", "arguments": '{"a": 1}'}]),
        with_calls([{"function": {"name": "f"}}]),
        with_arguments("[" * 100_000),
        with_content([{"type": "text", "text": None}, {"type": "image"}]),
    ],
    ids=lambda messages: repr(messages[1])[:80],
)
def test_messages_that_may_lack_a_part_are_described(model: Decoder, messages: Any) -> None:
    assert "[system] You may call" in prepared(ChatTemplate(PLAIN, model.tokenizer), messages, tools=[add]).prompt
