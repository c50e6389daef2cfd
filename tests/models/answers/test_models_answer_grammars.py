"""The grammar of an answer allows what models of each format write, and holds arguments to their schemas."""

from __future__ import annotations

import json
import lzma
import random
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from paths import DATA

from ggplug.errors import ParameterError
from ggplug_models import ChatTemplate, Tokenizer, load_tokenizer
from ggplug_models.chat.answer import Answer
from ggplug_models.chat.formats.elements import ElementArguments
from ggplug_models.chat.formats.format import Format
from ggplug_models.chat.lark import Lark
from ggplug_models.chat.parsing import AnswerParser, parse
from ggplug_models.chat.prepared import prepared
from ggplug_models.chat.tools import ToolChoice, kinds_of, tools_of, value_of
from ggplug_models.sampling.control_tokens import ControlTokens

pytest.importorskip("jinja2")
pytest.importorskip("llguidance")
pytest.importorskip("tokenizers")

from ggplug_models.sampling.grammar import GrammarConstraint, Grammars
from ggplug_models.tokenizers.byte_pairs import LETTERS

TEMPLATES: dict[str, str] = json.loads(lzma.decompress((DATA / "llama_cpp_templates.json.xz").read_bytes()))[
    "templates"
]
RECORDED: dict[str, Any] = json.loads(lzma.decompress((DATA / "answers.json.xz").read_bytes()))
TOOLS = tools_of(RECORDED["tools"])
ELSEWISE = {
    "LFM2.5-8B-A1B": "strings have other quotes than the grammar's",
    "Reka-Edge": "the text ends with an end token of the model",
    "google-gemma-4-31B-it": "the template writes the text after the calls",
}
"""Templates that write some messages in another way than the grammar, which a model may follow as well."""


def tokenizer_of(control: list[str]) -> Tokenizer:
    """A tokenizer of bytes, with some control tokens."""
    special = ["<unk>", "<s>", "</s>", *control]
    return load_tokenizer(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.tokens": [*special, *LETTERS],
            "tokenizer.ggml.token_type": np.array([2, 3, 3, *[3] * len(control), *[1] * 256], np.int32),
            "tokenizer.ggml.eos_token_id": 2,
        }
    )


@cache
def format_of(template: str) -> Format:
    return ChatTemplate(TEMPLATES[template], tokenizer_of([])).format


@cache
def grammars_of(template: str, controlled: bool) -> tuple[Tokenizer, Grammars]:
    """The marks of the template are control tokens, or plain text."""
    found = {mark for each in format_of(template).marks for mark in re.findall(r"<[^<>\s]+>|\[[A-Z_/]+\]", each)}
    ends = ["<|call|>", "<|return|>"] if "<|channel|>" in found else ["<|flush|>"] if "<|calls|>" in found else []
    tokenizer = tokenizer_of([*sorted(found), *ends] if controlled else [])
    return tokenizer, Grammars(tokenizer)


def constraint(
    template: str, opening: str, choice: ToolChoice, controlled: bool, schema: Any = None
) -> tuple[Tokenizer, GrammarConstraint]:
    """``schema``: that of the answer's text."""
    tokenizer, grammars = grammars_of(template, controlled)
    lark = Lark(ControlTokens(tokenizer))
    content = None if schema is None else lark.schema(schema)
    return tokenizer, grammars.answer(lark.text(format_of(template).grammar(lark, choice, opening, content)))


def refused_at(tokenizer: Tokenizer, allowed: GrammarConstraint, text: str) -> str | None:
    """The rest of a text from where the grammar refuses it; None if all of it is allowed, and may end there."""
    tokens = tokenizer.encode(text, parse_special=True, begins=False)
    for place, token in enumerate(tokens):
        if not allowed.allowed()[token]:
            return tokenizer.decode(tokens[place:])
        allowed.accept(token)
    return None if allowed.complete else ""


CASES = [case for case in RECORDED["cases"] if case[0] not in ELSEWISE]
CALLING = [case for case in CASES if case[4]["calls"]]


@pytest.mark.parametrize("controlled", [False, True], ids=["text", "control tokens"])
@pytest.mark.parametrize("template", sorted({case[0] for case in CASES}))
def test_what_models_write_is_allowed(template: str, controlled: bool) -> None:
    for _, name, generation, text, _ in (case for case in CASES if case[0] == template):
        opening = format_of(template).opening(generation)
        tokenizer, allowed = constraint(template, opening, ToolChoice(tuple(TOOLS)), controlled)
        assert not refused_at(tokenizer, allowed, text), name


@pytest.mark.parametrize("template", sorted({case[0] for case in CALLING if "Llama-3" not in case[0]}))
def test_only_the_tools_that_were_chosen_may_be_called(template: str) -> None:
    case = next(case for case in CALLING if case[0] == template)
    opening = format_of(template).opening(case[2])
    others = ToolChoice(tuple(tool for tool in TOOLS if tool.name != case[4]["calls"][0][0]))
    tokenizer, allowed = constraint(case[0], opening, others, False)
    refused = refused_at(tokenizer, allowed, case[3])
    assert refused, "the call of another tool is allowed"


def test_arguments_that_break_their_schema_are_refused_where_they_do() -> None:
    template = "Qwen-Qwen2.5-7B-Instruct"
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": %s}}\n</tool_call>'
    for days, rest in [("3", None), ("3.5", ".5"), ('"3"', '"3"')]:
        tokenizer, allowed = constraint(template, "", ToolChoice(tuple(TOOLS)), False)
        refused = refused_at(tokenizer, allowed, call % days)
        assert refused is None if rest is None else str(refused).startswith(rest)
    tokenizer, allowed = constraint(template, "", ToolChoice(tuple(TOOLS), several=False), False)
    assert str(refused_at(tokenizer, allowed, (call % 3 + "\n") * 2)).startswith("\n<tool_call>")


def test_a_text_that_is_no_call_is_allowed_up_to_the_mark_of_calls() -> None:
    tokenizer, allowed = constraint("Qwen-Qwen2.5-7B-Instruct", "", ToolChoice(tuple(TOOLS)), False)
    assert refused_at(tokenizer, allowed, 'Grüße {"name": "x"} <tool_cal') is None
    tokenizer, allowed = constraint("meta-llama-Llama-3.1-8B-Instruct", "", ToolChoice(tuple(TOOLS)), False)
    assert refused_at(tokenizer, allowed, 'As JSON: {"name": "x", "parameters": 3}') is None
    tokenizer, allowed = constraint("meta-llama-Llama-3.1-8B-Instruct", "", ToolChoice(tuple(TOOLS)), False)
    assert str(refused_at(tokenizer, allowed, '{"name": "say", "parameters": 3}')).startswith("3}")


def test_a_required_call_comes_first_or_after_the_reasoning() -> None:
    choice = ToolChoice(tuple(TOOLS), required=True)
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for opening, text, rest in [
        ("", call, None),
        ("", f"<think>hm</think>\n{call}", None),
        ("", f"Sure. {call}", f"Sure. {call}"),
        ("<think>\n", f"hm</think>{call}", None),
        ("<think>\n", "hm</think>Sure.", "Sure."),
        ("<think>\n", "hm", ""),
        ("", "<think>hm", ""),
        ("<think>\n\n</think>\n\n", call, None),
    ]:
        tokenizer, allowed = constraint("Qwen-Qwen3-0.6B", opening, choice, False)
        assert refused_at(tokenizer, allowed, text) == rest


@pytest.mark.parametrize("controlled", [False, True], ids=["text", "control tokens"])
@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("Apertus-8B-Instruct", '<|inner_prefix|>Hm.<|tools_prefix|>[{"now": {}}]<|tools_suffix|>'),
        (
            "moonshotai-Kimi-K2",
            "<think>Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0"
            "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        ),
    ],
)
def test_a_call_may_end_the_reasoning_and_is_held_to_the_tools(template: str, text: str, controlled: bool) -> None:
    for tools, fits in [(TOOLS, True), ([tool for tool in TOOLS if tool.name != "now"], False)]:
        tokenizer, allowed = constraint(template, "", ToolChoice(tuple(tools)), controlled)
        assert bool(refused_at(tokenizer, allowed, text)) != fits


ANSWER = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}


@pytest.mark.parametrize("controlled", [False, True], ids=["text", "control tokens"])
@pytest.mark.parametrize("template", sorted({case[0] for case in CALLING}))
def test_an_answer_that_must_be_json_may_be_a_call(template: str, controlled: bool) -> None:
    for _, name, generation, text, recorded in (case for case in CALLING if case[0] == template):
        if recorded["content"].strip() or '{"type"' in text:  # a key that the template does not write
            continue
        opening = format_of(template).opening(generation)
        for required in (False, True):
            choice = ToolChoice(tuple(TOOLS), required=required)
            tokenizer, allowed = constraint(template, opening, choice, controlled, ANSWER)
            assert not refused_at(tokenizer, allowed, text), name


LLAMA = "meta-llama-Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ('{"answer": "x"}', None),
        ('{"name": "say", "parameters": {"text": "x"}}', None),
        ('{"name": "say", "parameters": {"node": {"v": true, "next": {"v": false}}}}', None),
        ('{"name": "say", "parameters": {"node": {"next": 3}}}', 'next": 3}}}'),
        ('{"name": "say", "parameters": {"words": "x"}}', 'words": "x"}}'),
        ('{"name": "shout", "parameters": {"text": "x"}}', 'hout", "parameters": {"text": "x"}}'),
        ('{"name": "say"}', "}"),
        ("As JSON", "As JSON"),
    ],
)
def test_a_call_without_marks_and_an_answer_of_json_are_told_apart(text: str, rest: str | None) -> None:
    parameters = {
        "type": "object",
        "properties": {"text": {"type": "string"}, "node": {"$ref": "#/$defs/Node"}},
        "$defs": {"Node": NODE},
    }
    choice = ToolChoice(tuple(tools_of([{"name": "say", "parameters": parameters}])))
    tokenizer, allowed = constraint(LLAMA, "", choice, False, ANSWER)
    assert refused_at(tokenizer, allowed, text) == rest


@pytest.mark.parametrize("controlled", [False, True], ids=["text", "control tokens"])
@pytest.mark.parametrize("template", sorted({case[0] for case in CALLING}))
def test_a_text_that_is_given_goes_on(template: str, controlled: bool) -> None:
    format = format_of(template)
    generation = next(case[2] for case in CALLING if case[0] == template)
    opening = format.continued(format.opening(generation), "The weather is", "")
    tokenizer, allowed = constraint(template, opening, ToolChoice(tuple(TOOLS)), controlled)
    assert refused_at(tokenizer, allowed, " fine.\n") is None
    assert parse(format, " fine.\n", TOOLS, opening).content == " fine.\n"


MESSAGES = {
    "meetkai-functionary-medium-v3.2": ("", "", ">>>now\n{}"),
    "muse-glimmer": (
        "<|eom|><|start|>assistant",
        " to=user<|message|>",
        ' to=now<|message|><atem:function_calls>\n<atem:invoke name="now">\n</atem:invoke>\n</atem:function_calls>',
    ),
    "openai-gpt-oss-120b": (
        "<|end|><|start|>assistant",
        "<|channel|>final<|message|>",
        "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}",
    ),
}
"""For formats of messages what is between two of them, and how texts and calls begin."""


@pytest.mark.parametrize("controlled", [False, True], ids=["text", "control tokens"])
@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("schema", [None, ANSWER], ids=["text", "JSON"])
@pytest.mark.parametrize("template", sorted(MESSAGES))
def test_messages_that_are_given_go_on_and_others_follow(
    template: str, schema: Any, required: bool, controlled: bool
) -> None:
    format, choice = format_of(template), ToolChoice(tuple(TOOLS), required=required)
    between, final, call = MESSAGES[template]
    said = "" if schema is None else '{"answer": "x"}'
    given = [("The weather is", "", said or " fine.", False), ("The weather is", "", between + call, True)]
    if between:  # a format with reasoning
        given += [("", "Hm", f", well.{between}{final}{said or 'Fine.'}", False), ("", "Hm", f".{between}{call}", True)]
        given += [("Yes", "Hm", said or ", fine.", False), ("Yes", "Hm", between + call, True)]
    for content, reasoning, text, calls in given:
        opening = format.continued("", content, reasoning)
        tokenizer, allowed = constraint(template, opening, choice, controlled, schema)
        assert (refused_at(tokenizer, allowed, text) is None) == (calls or not required), (opening, text)
        answer = parse(format, text, TOOLS, opening)
        assert [each.name for each in answer.calls] == ["now"] * calls
        assert bool(answer.content) != calls
        assert bool(answer.reasoning) == (bool(reasoning) and not content)
        assert said in answer.content or calls


@pytest.mark.parametrize("controlled", [False, True], ids=["text", "control tokens"])
def test_a_note_is_content_and_so_comes_before_no_answer_that_must_be_json(controlled: bool) -> None:
    template = "openai-gpt-oss-120b"
    note = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    for schema, rest in [(None, None), (ANSWER, "<|message|>I look.")]:
        tokenizer, allowed = constraint(template, "", ToolChoice(tuple(TOOLS)), controlled, schema)
        text = f'{note}<|channel|>final<|message|>{{"answer": "x"}}'
        refused = refused_at(tokenizer, allowed, text)
        assert refused is None if rest is None else str(refused).startswith(rest)
        assert parse(format_of(template), text).content == 'I look.{"answer": "x"}'


EACH_SYNTAX = [
    "Apertus-8B-Instruct",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "GLM-4.6",
    "LFM2-8B-A1B",
    "Qwen-Qwen3-0.6B",
    "Qwen3-Coder",
    "deepseek-ai-DeepSeek-V3.2",
    "google-gemma-4-31B-it",
    "meetkai-functionary-medium-v3.2",
    "meta-llama-Llama-3.1-8B-Instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "moonshotai-Kimi-K2",
    "openai-gpt-oss-120b",
    "openbmb-MiniCPM5-1B",
]
PROPERTIES = {
    "text": {"type": "string", "maxLength": 6},
    "n": {"type": "integer", "minimum": 0, "maximum": 99},
    "kind": {"enum": ["a", "b c"]},
    "inner": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]},
    "list": {"type": "array", "items": {"enum": ["p", "q"]}, "maxItems": 3},
}
NODE = {
    "type": "object",
    "properties": {"v": {"type": "boolean"}, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
    "required": ["v"],
}
OTHERS = {
    "choice": {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]},
    "code": {"type": ["string", "null"], "pattern": "^[a-c]{2}$"},
    "counts": {"type": "object", "additionalProperties": {"type": "boolean"}},
    "mixed": {"enum": [1, "one", None]},
    "node": {"$ref": "#/$defs/Node"},
    "only": {"allOf": [{"type": "boolean"}]},
    "pair": {"type": "array", "prefixItems": [{"type": "boolean"}, {"enum": ["p"]}], "minItems": 2, "maxItems": 2},
}


def is_node(value: Any) -> bool:
    links = isinstance(value, dict) and {"v"} <= value.keys() <= {"v", "next"} and type(value["v"]) is bool
    return links and (value.get("next") is None or is_node(value["next"]))


def fits_others(arguments: dict[str, Any]) -> bool:
    """Whether the arguments match :data:`OTHERS`."""
    checks = {
        "choice": lambda value: value in ("a", "b", None),
        "code": lambda value: value is None or re.fullmatch("[a-c]{2}", value) is not None,
        "counts": lambda value: isinstance(value, dict) and all(type(each) is bool for each in value.values()),
        "mixed": lambda value: value in ("one", None) or (type(value) is int and value == 1),
        "node": is_node,
        "only": lambda value: type(value) is bool,
        "pair": lambda value: value in ([True, "p"], [False, "p"]),
    }
    return all(checks[name](value) for name, value in arguments.items())


def fits(arguments: dict[str, Any]) -> bool:
    """Whether the arguments match :data:`PROPERTIES`, of which the first two are required."""
    checks = {
        "text": lambda value: isinstance(value, str) and len(value) <= 6,
        "n": lambda value: type(value) is int and 0 <= value <= 99,
        "kind": lambda value: value in ("a", "b c"),
        "inner": lambda value: value in ({"x": True}, {"x": False}),
        "list": lambda value: isinstance(value, list) and len(value) <= 3 and set(value) <= {"p", "q"},
    }
    return {"text", "n"} <= arguments.keys() and all(checks[name](value) for name, value in arguments.items())


def drawn(tokenizer: Tokenizer, allowed: GrammarConstraint, marks: list[str], chosen: random.Random) -> str:
    """A text of random tokens that are allowed, up to where it may end; now and then it tries to write a mark."""
    text, plan = b"", list[int]()
    for _ in range(800):
        mask = allowed.allowed()
        if mask[2]:
            break
        possible = np.flatnonzero(mask)
        if not (plan and mask[plan[0]]):
            plan = tokenizer.encode(chosen.choice(marks), parse_special=True, begins=False)
        if not mask[plan[0]] or (len(possible) > 60 and chosen.random() < 0.3):
            plan = [
                int(chosen.choice([each for each in possible if not tokenizer.piece(int(each)).isspace()] or possible))
            ]
        token = plan.pop(0)
        allowed.accept(token)
        text += tokenizer.piece(token)
    return text.decode("utf-8", "replace")


@pytest.mark.parametrize("controlled", [False, True], ids=["text", "control tokens"])
@pytest.mark.parametrize("template", EACH_SYNTAX)
@pytest.mark.parametrize(
    ("properties", "required", "fit"),
    [(PROPERTIES, ["text", "n"], fits), *(({name: each}, [name], fits_others) for name, each in OTHERS.items())],
    ids=["several", *OTHERS],
)
def test_whatever_is_drawn_the_arguments_match_their_schemas(
    properties: dict[str, Any],
    required: list[str],
    fit: Callable[[dict[str, Any]], bool],
    template: str,
    controlled: bool,
) -> None:
    chosen = random.Random(f"{template}{controlled}")
    definitions = {"$defs": {"Node": NODE}}
    parameters = {"type": "object", "properties": properties, "required": required, **definitions}
    tools = tools_of([{"name": "f", "parameters": parameters}, {"name": "g"}])
    marks = [*(mark for mark in format_of(template).marks if mark), " to=functions.f", '"', "}", "]", '", "', "\n"]
    complete = 0
    for _ in range(10):
        tokenizer, allowed = constraint(template, "", ToolChoice(tuple(tools), required=True), controlled)
        text = drawn(tokenizer, allowed, marks, chosen)
        if allowed.complete:
            answer = parse(format_of(template), text, tools)
            assert answer.calls, text
            assert all(call.parsed == {} if call.name == "g" else fit(call.parsed) for call in answer.calls), text
            complete += 1
    assert complete


def called(template: str, tool: str, argument: str) -> list[tuple[str, list[str]]]:
    """The names of tools and arguments in an answer of random tokens that must call ``tool`` with ``argument``."""
    parameters = {"type": "object", "properties": {argument: {"enum": ["b"]}}, "required": [argument]}
    choice = ToolChoice(tuple(tools_of([{"name": tool, "parameters": parameters}])), required=True)
    format, chosen = format_of(template), random.Random(template)
    marks = [*(mark for mark in format.marks if mark), f" to=functions.{tool}", '"', "}", "]", "\n"]
    complete = False
    while not complete:
        tokenizer, allowed = constraint(template, "", choice, True)
        text, complete = drawn(tokenizer, allowed, marks, chosen), allowed.complete
    return [(call.name, [*call.parsed]) for call in parse(format, text, choice.tools).calls]


@pytest.mark.parametrize("template", EACH_SYNTAX)
@pytest.mark.parametrize("name", ["/f/", "github/search", "x.y-z"])
def test_the_name_of_a_tool_may_be_a_path(name: str, template: str) -> None:
    calls = called(template, name, "a")
    assert calls
    assert all(call == (name, ["a"]) for call in calls)


REFUSED = {
    "LFM2-8B-A1B": [("f", " a"), ("f", "a=b"), ("f(x)", "a")],
    "MiniMax-M3": [("f", "a>b"), ("f\n", "a")],
    "Qwen3-Coder": [("f", "a>b"), ("f>g", "a")],
    "google-gemma-4-31B-it": [("f", "a:b"), ("f{", "a")],
    "meetkai-functionary-medium-v3.2": [("all", "a"), ("f\ng", "a")],
    "moonshotai-Kimi-K2": [("x:0", "a")],
    "openai-gpt-oss-120b": [("assistant", "a"), ("f<", "a"), ("x y", "a")],
}
"""Names of a tool and an argument of which one would be read as another one."""


@pytest.mark.parametrize("template", sorted({*EACH_SYNTAX, *REFUSED}))
def test_names_are_read_back_or_refused_in_words(template: str) -> None:
    for tool, argument in REFUSED.get(template, []):
        kind, name = ("tool", tool) if argument == "a" else ("argument", argument)
        words = f"the {kind} {name!r} cannot be written in the tool calls of this chat template: "
        with pytest.raises(ParameterError, match=re.escape(words)):
            called(template, tool, argument)
    for tool, argument in sorted(pair for pairs in REFUSED.values() for pair in pairs):
        try:
            calls = called(template, tool, argument)
        except ParameterError:
            continue
        assert calls
        assert all(call == (tool, [argument]) for call in calls)


@pytest.mark.parametrize("controlled", [False, True], ids=["text", "control tokens"])
@pytest.mark.parametrize("template", ["GLM-4.6", "Qwen3-Coder", "openbmb-MiniCPM5-1B"])
def test_strings_without_quotes_are_held_to_their_schemas_too(template: str, controlled: bool) -> None:
    calls = {
        "GLM-4.6": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
        "Qwen3-Coder": "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>",
        "openbmb-MiniCPM5-1B": '<function name="f"><param name="a"><![CDATA[{}]]></param></function>',
    }
    schemas: list[tuple[dict[str, Any], list[str], list[str]]] = [
        ({"enum": ["a", "ab", "c <d"]}, ["a", "ab", "c <d"], ["b", "abc"]),
        ({"maxLength": 3}, ["", "é<b", "xyz"], ["four"]),
        ({"minLength": 2}, ["ab", "</arg"], ["a"]),
        ({"pattern": "^[a-c]+$"}, ["abc"], ["abd", "1", ""]),
        ({"pattern": "x"}, ["axb", "x"], ["ab", ""]),
        ({"pattern": "x", "maxLength": 3}, ["axb", "x"], ["axbc", ""]),
        ({"pattern": r"^[0-9]+\$"}, ["12$", "12$ off"], ["12", "$"]),
        ({"pattern": "^a|b$"}, ["a", "ab", "ax", "xb"], ["xax", "bx"]),
        ({"pattern": r"^(?:[|$]|\|+c)$"}, ["|", "$", "||c"], ["a", ""]),
        ({"pattern": "^(x|y)*$"}, ["", "xy"], ["xz"]),
        ({}, ["", "any </a> text\n\nof lines"], []),
    ]
    for schema, fitting, others in schemas:
        parameters = {"type": "object", "properties": {"a": {"type": "string", **schema}}, "required": ["a"]}
        choice = ToolChoice(tuple(tools_of([{"name": "f", "parameters": parameters}])))
        for value in [*fitting, *others]:
            tokenizer, allowed = constraint(template, "", choice, controlled)
            refused = refused_at(tokenizer, allowed, calls[template].format(value))
            assert (refused is None) == (value in fitting), (schema, value, refused)


@pytest.mark.parametrize(
    ("text", "kinds", "wanted"),
    [
        ("59.91, 10.75", "string null", "59.91, 10.75"),
        ("(1, 2)", "string null", "(1, 2)"),
        ("12,", "string number", "12,"),
        ("()", "string null", "()"),
        ("1,000", "number null", "1,000"),
        ("0x10", "number", "0x10"),
        ("'a' 'b'", "string null", "'a' 'b'"),
        ("True", "boolean string", True),
        ("None", "string null", None),
        ("[1, 'a', None]", "array null", [1, "a", None]),
        ("{'a': True}", "object", {"a": True}),
        ("{'a'}", "object string", "{'a'}"),
        (" 12 ", "string number", 12),
        ("null", "string null", None),
        ("null", "string", "null"),
    ],
)
def test_a_value_between_marks_is_of_a_type_that_its_schema_allows_or_a_string(
    text: str, kinds: str, wanted: Any
) -> None:
    assert json.loads(value_of(text, frozenset(kinds.split()))) == wanted


def test_what_follows_an_end_token_in_a_mark_is_whole() -> None:
    tokenizer = tokenizer_of([])
    mark = "</s><next>"
    for write in (lambda lark: lark.until(mark), lambda lark: lark.branches([(mark, "")], ends=False)):
        lark = Lark(ControlTokens(tokenizer))
        allowed = Grammars(tokenizer).answer(lark.text(write(lark)))
        assert refused_at(tokenizer, allowed, "any text<next>") is None


MARK = "]<]minimax[>["
ELEMENTS = (
    f'{MARK}<tool_call>\n{MARK}<invoke name="f">{MARK}<a>{{0}}{MARK}</a>{MARK}<b>{{1}}{MARK}</b>{MARK}</invoke>\n'
    f"{MARK}</tool_call>"
)


@pytest.mark.parametrize(
    ("template", "call"),
    [
        (
            "Qwen-Qwen2.5-7B-Instruct",
            '<tool_call>\n{{"name": "f", "arguments": {{"a": "{0}", "b": {1}}}}}\n</tool_call>',
        ),
        (
            "Qwen3-Coder",
            "<tool_call>\n<function=f>\n<parameter=a>\n{0}\n</parameter>\n<parameter=b>\n{1}\n</parameter>\n</function>\n</tool_call>",
        ),
        ("MiniMax-M3", ELEMENTS),
        ("LFM2-8B-A1B", '<|tool_call_start|>[f(a="{0}", b={1})]<|tool_call_end|>'),
        ("google-gemma-4-31B-it", '<|tool_call>call:f{{a:<|"|>{0}<|"|>,b:{1}}}<tool_call|>'),
    ],
)
def test_arguments_are_held_to_the_schemas_that_they_refer_to(template: str, call: str) -> None:
    colors, number = {"type": "string", "enum": ["red", "blue"]}, {"type": "integer"}
    sources: list[tuple[Any, Any, dict[str, Any]]] = [
        ({"$ref": "#/$defs/Color~1RGB"}, {"$ref": "#/$defs/N"}, {"$defs": {"Color/RGB": colors, "N": number}}),
        ({"$ref": "#/definitions/C"}, {"$ref": "#/definitions/N"}, {"definitions": {"C": colors, "N": number}}),
        ({"$ref": "#/properties/c"}, {"$ref": "#/properties/d"}, {"$id": "http://example.org/f"}),
        (colors, {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]}, {"$defs": {"N": {"$ref": "#/properties/d"}}}),
    ]
    for first, second, more in sources:
        properties = {"a": first, "b": second, "c": colors, "d": number}
        parameters = {"type": "object", "properties": properties, "required": ["a", "b"], **more}
        tools = tools_of([{"name": "f", "parameters": parameters}])
        for value, count in [("red", "3"), ("blue", "4"), ("green", "3"), ("red", "true")]:
            tokenizer, allowed = constraint(template, "", ToolChoice(tuple(tools)), False)
            text = call.format(value, count)
            refused = refused_at(tokenizer, allowed, text)
            assert (refused is None) == (value != "green" and count != "true"), (first, value, refused)
            if refused is None:
                (found,) = parse(format_of(template), text, tools).calls
                assert found.parsed == {"a": value, "b": int(count)}


def test_nested_elements_are_read_by_the_schemas_that_they_refer_to() -> None:
    place = {"type": "object", "properties": {"code": {"type": "string"}, "floor": {"type": "integer"}}}
    parameters = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/Place"}, "more": {"type": "array", "items": {"$ref": "#/$defs/Place"}}},
        "$defs": {"Place": place},
    }
    tool = tools_of([{"name": "f", "parameters": parameters}])[0]
    reader: Any = ElementArguments(MARK)
    text = f"{MARK}<code>150{MARK}</code>{MARK}<floor>3{MARK}</floor>"
    assert json.loads(reader._json(text, tool.properties["at"], tool.parameters)) == {"code": "150", "floor": 3}
    listed = f"{MARK}<item>{text}{MARK}</item>"
    assert json.loads(reader._json(listed, tool.properties["more"], tool.parameters)) == [{"code": "150", "floor": 3}]


STRING, NUMBER = {"type": "string"}, {"type": "integer"}
LIST = {"type": "array", "items": STRING}
INNER = {"type": "object", "properties": {"node": {"type": "object", "properties": {"x": NUMBER}}, "x": NUMBER}}


@pytest.mark.parametrize("controlled", [False, True], ids=["text", "control tokens"])
@pytest.mark.parametrize(
    ("template", "end", "given"),
    [
        ("openbmb-MiniCPM5-1B", "</function>", [(STRING, "if a < b:\n    c & d"), (STRING, "3"), (NUMBER, 3)]),
        ("openbmb-MiniCPM5-1B", "</function>", [(STRING, "<param></param>"), ({"type": ["string", "number"]}, "\n3")]),
        ("MiniMax-M3", f"{MARK}</tool_call>", [(LIST, ["a", "b"]), (STRING, "")]),
        ("MiniMax-M3", f"{MARK}</tool_call>", [({"type": "array", "items": LIST}, [["1"], [], ["a", "b"]])]),
        ("MiniMax-M3", f"{MARK}</tool_call>", [(INNER, {"node": {"x": 1}, "x": 2}), (NUMBER, 3)]),
        ("MiniMax-M3", f"{MARK}</tool_call>", [(INNER, {"node": {}}), (INNER, {}), (LIST, [])]),
        ("MiniMax-M3", f"{MARK}</tool_call>", [({"type": "array", "items": INNER}, [{}, {"x": 1}])]),
        ("upstage-Solar-Open-100B", "<|tool_call:end|>", [(STRING, "a"), (NUMBER, 3)]),
    ],
)
def test_what_a_template_writes_is_allowed_and_read_back(
    template: str, end: str, given: list[tuple[Any, Any]], controlled: bool
) -> None:
    names = ["item" if "array" in str(given) else "node", "a", "b"][: len(given)]
    properties = {name: schema for name, (schema, _) in zip(names, given, strict=True)}
    arguments = {name: value for name, (_, value) in zip(names, given, strict=True)}
    tools = tools_of([{"name": "f", "description": "d", "parameters": {"type": "object", "properties": properties}}])
    call = {"id": "abcde1234f", "type": "function", "function": {"name": "f", "arguments": json.dumps(arguments)}}
    asked: list[Any] = [{"role": "user", "content": "?"}]
    said = {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call]}
    source = ChatTemplate(TEMPLATES[template], tokenizer_of([]))
    chat = prepared(source, asked, tools=tools)
    answered = prepared(source, [*asked, said], tools=tools, variables={"add_generation_prompt": False}).prompt
    before = chat.prompt.removesuffix(chat.opening)
    assert answered.startswith(before)
    text = answered[len(before) : answered.rindex(end) + len(end)]
    answer, parser = parse(chat.format, text, tools), AnswerParser(chat.format, tools)
    assert (answer.reasoning.strip(), answer.content.strip()) == ("Hm.", "")
    assert [found.parsed for found in answer.calls] == [arguments]
    cut = Answer.of([*(piece for each in text for piece in parser.push(each)), *parser.finish()])
    assert [found.arguments for found in cut.calls] == [found.arguments for found in answer.calls]
    if not controlled or "</param>" not in str(arguments):  # which is text of the value, and not the token
        tokenizer, allowed = constraint(template, "", ToolChoice(tuple(tools)), controlled)
        assert not refused_at(tokenizer, allowed, text)


def test_types_of_schemas_that_refer_to_one_another_are_found_in_time() -> None:
    circle = {name: {"anyOf": [{"$ref": f"#/$defs/{other}"} for other in "abcdefgh"]} for name in "abcdefg"}
    root = {"$defs": {**circle, "h": {"type": ["integer", "null"]}}}
    assert kinds_of({"$ref": "#/$defs/a"}, root) == {"number", "null"}
    assert kinds_of({"$ref": "#/$defs/x"}, {"$defs": {"x": {"$ref": "#/$defs/x"}}}) == kinds_of({}, {})
    assert kinds_of({"$ref": "#"}, {"type": "object"}) == {"object"}


def test_a_schema_that_is_not_valid_is_refused_in_words() -> None:
    tools = tools_of([{"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "nothing"}}}}])
    with pytest.raises(ParameterError, match="the JSON schema is not valid: Invalid type: nothing"):
        constraint("Qwen-Qwen2.5-7B-Instruct", "", ToolChoice(tuple(tools)), False)


# -- what the template takes back ------------------------------------------------------------------

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    ("name", "several", "ids"),
    [
        ("meta-llama-Llama-3.1-8B-Instruct", False, ["call_a-1", "abc12EFGH"]),
        ("meta-llama-Llama-3.3-70B-Instruct", False, ["call_a-1", "abc12EFGH"]),
        ("mistralai-Mistral-Nemo-Instruct-2407", True, ["abc12EFGH"]),
        ("Mistral-Small-3.2-24B-Instruct-2506", True, ["abc12EFGH"]),
        ("Qwen-Qwen2.5-7B-Instruct", True, ["call_a-1", "abc12EFGH"]),
    ],
)
def test_answers_have_the_calls_and_ids_that_the_template_takes_back(name: str, several: bool, ids: list[str]) -> None:
    tokenizer = tokenizer_of([])
    template, asked = ChatTemplate(TEMPLATES[name], tokenizer), [{"role": "user", "content": "?"}]

    def taken(count: int, id: str) -> bool:
        calls = [{"id": id, "type": "function", "function": {"name": "f", "arguments": {}}}] * count
        try:
            template.render([*asked, {"role": "assistant", "content": "", "tool_calls": calls}], tools=[TOOL])
        except ParameterError:
            return False
        return True

    chat = prepared(template, asked, tools=[TOOL])
    assert chat.choice.several == several == taken(2, "abc12EFGH")
    assert prepared(template, asked, tools=[TOOL], parallel_tool_calls=True).choice.several
    for id in ("call_a-1", "abc12EFGH"):
        assert bool(re.fullmatch(chat.format.id, id)) == (id in ids) == taken(1, id)
    assert chat.format.without_reasoning().id == chat.format.id
    if "call_a-1" not in ids:
        assert chat.format.id in str(chat.grammar(ControlTokens(tokenizer)))
