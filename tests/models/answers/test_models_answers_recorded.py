"""Answers of models are read as llama.cpp reads them: in the formats of its templates, whole and in pieces.

``tests/data/answers.json.xz`` has what the C++ sources of llama.cpp made of them (``tests/support/answers/record.py``).
"""

from __future__ import annotations

import json
import lzma
import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from paths import DATA

from ggplug_models import ChatTemplate, load_tokenizer
from ggplug_models.chat.answer import Answer
from ggplug_models.chat.formats.format import Format
from ggplug_models.chat.parsing import AnswerParser, parse
from ggplug_models.chat.tools import tools_of

pytest.importorskip("jinja2")

TEMPLATES: dict[str, str] = json.loads(lzma.decompress((DATA / "llama_cpp_templates.json.xz").read_bytes()))[
    "templates"
]
RECORDED: dict[str, Any] = json.loads(lzma.decompress((DATA / "answers.json.xz").read_bytes()))
CASES = [(f"{template}, {name}", template, *rest) for template, name, *rest in RECORDED["cases"]]
TOOLS = tools_of(RECORDED["tools"])
METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>"],
    "tokenizer.ggml.token_type": np.array([2, 3, 3], np.int32),
}


@cache
def format_of(template: str) -> Format:
    return ChatTemplate(TEMPLATES[template], load_tokenizer(METADATA)).format


def read(answer: Answer) -> dict[str, Any]:
    """An answer in the form of the recorded ones; white space around texts is a matter of taste."""
    calls = [[call.name, call.parsed] for call in answer.calls]
    return {"content": answer.content.strip(), "reasoning": answer.reasoning.strip(), "calls": calls}


def test_there_are_recorded_answers_in_each_format() -> None:
    assert len(CASES) >= 200
    assert len({template for _, template, *_ in CASES}) >= 60


@pytest.mark.parametrize(
    ("template", "generation", "text", "recorded"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_answers_are_read_as_llama_cpp_reads_them(
    template: str, generation: str, text: str, recorded: dict[str, Any]
) -> None:
    format = format_of(template)
    answer = parse(format, text, TOOLS, format.opening(generation))
    calls = [[name, json.loads(arguments, strict=False)] for name, arguments, _ in recorded["calls"]]
    # llama.cpp takes what Apriel's template writes at the beginning of the reasoning for a part of it.
    reasoning = recorded["reasoning"].removeprefix("Here are my reasoning steps:\n")
    expected = {"content": recorded["content"].strip(), "reasoning": reasoning.strip(), "calls": calls}
    assert read(answer) == expected
    assert all(call.id == id or not id for call, (_, _, id) in zip(answer.calls, recorded["calls"], strict=True))


@pytest.mark.parametrize("template", sorted({template for _, template, *_ in CASES}))
def test_an_answer_is_the_same_however_its_text_is_cut(template: str) -> None:
    format = format_of(template)
    chosen = random.Random(template)
    for _, other, generation, text, _ in CASES:
        if other != template:
            continue
        whole = parse(format, text, TOOLS, format.opening(generation))
        for longest in (1, 2, 7, 40):
            parser = AnswerParser(format, TOOLS, format.opening(generation))
            pieces, place = [], 0
            while place < len(text):
                end = place + chosen.randint(1, longest)
                pieces += parser.push(text[place:end])
                place = end
            pieces += parser.finish()
            assert read(Answer.of(pieces)) == read(whole)


@pytest.mark.parametrize("template", sorted(TEMPLATES))
def test_whatever_a_model_writes_is_read_without_an_error_and_alike_however_it_is_cut(template: str) -> None:
    format = format_of(template)
    chosen = random.Random(template)
    texts = [text for _, other, _, text, _ in CASES if other == template] or ["a"]
    parts = [
        *format.marks,
        "{",
        "}",
        "[",
        "]",
        '"',
        ":",
        ", ",
        "\n",
        " ",
        "say",
        "now",
        "(",
        ")",
        "=",
        '"name"',
        "é\\",
        "1",
    ]
    for _ in range(60):
        text = "".join(chosen.choice(parts) for _ in range(chosen.randint(1, 20)))
        if chosen.random() < 0.7:  # a valid answer with something else in it
            valid = chosen.choice(texts)
            place = chosen.randint(0, len(valid))
            text = valid[:place] + chosen.choice([text, ""]) + valid[place + chosen.randint(0, 5) :]
        whole = parse(format, text, TOOLS)
        parser = AnswerParser(format, TOOLS)
        pieces = [piece for character in text for piece in parser.push(character)]
        cut = Answer.of([*pieces, *parser.finish()])
        for one, other in zip(whole.calls, cut.calls, strict=True):
            other.id = one.id  # which is random, if the model writes none
        assert cut == whole, text


# -- what the sources of llama.cpp do not read, or read in another way --------------------------------

CALL_OF_SAY = '{"say": {"text": "hi"}}'


@pytest.mark.parametrize(
    ("template", "text", "reasoning", "content", "calls"),
    [
        (
            "upstage-Solar-Open-100B",
            "<|think|>Hm <b>.<|end|><|begin|>assistant<|content|>Hi.<|end|>",
            "Hm <b>.",
            "Hi.",
            [],
        ),
        ("upstage-Solar-Open-100B", "<|content|>Hi.<|end|>", "", "Hi.", []),
        ("LFM2.5-Instruct", "<think>Hm.</think>Hi.", "Hm.", "Hi.", []),
        ("unsloth-Apriel-1.5", "Here are my reasoning steps:\nHm.\n[BEGIN FINAL RESPONSE]\nHi.", "Hm.", "Hi.", []),
        ("Apertus-8B-Instruct", "<|inner_prefix|>Hm.<|inner_suffix|>Hi.", "Hm.", "Hi.", []),
        (
            "Apertus-8B-Instruct",
            f"<|inner_prefix|>Hm.<|tools_prefix|>[{CALL_OF_SAY}]<|tools_suffix|>",
            "Hm.",
            "",
            [["say", {"text": "hi"}]],
        ),
    ],
)
def test_the_reasoning_of_models_is_apart_from_the_text(
    template: str, text: str, reasoning: str, content: str, calls: list[Any]
) -> None:
    assert read(parse(format_of(template), text, TOOLS)) == {"content": content, "reasoning": reasoning, "calls": calls}


@pytest.mark.parametrize(
    ("written", "days"),
    [
        ("<![CDATA[a</param>]]>", "<![CDATA[3]]>"),
        ("\n<![CDATA[a</param>]]>\n", "3"),
        ("<![CDATA[a</param>]]>", "\n3\n"),
    ],
)
def test_a_block_of_cdata_ends_where_it_does(written: str, days: str) -> None:
    call = (
        f'<function name="get_weather"><param name="city">{written}</param><param name="days">{days}</param></function>'
    )
    answer = parse(format_of("openbmb-MiniCPM5-1B"), call, TOOLS)
    assert read(answer) == {
        "content": "",
        "reasoning": "",
        "calls": [["get_weather", {"city": "a</param>", "days": 3}]],
    }


def test_elements_have_the_types_of_the_alternatives_in_their_schema() -> None:
    mark = "]<]minimax[>["
    names = {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "string"}}]}
    place = {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"id": {"type": "string"}}}]}
    codes = {"type": "object", "additionalProperties": {"type": "string"}}
    properties = {"names": names, "place": place, "codes": codes, "count": {"type": ["string", "integer", "null"]}}
    tools = tools_of([{"name": "f", "parameters": {"type": "object", "properties": properties}}])
    for text, expected in [
        (f"{mark}<names>{mark}<item>3{mark}</item>{mark}</names>", {"names": ["3"]}),
        (f"{mark}<place>{mark}<id>3{mark}</id>{mark}</place>", {"place": {"id": "3"}}),
        (f"{mark}<place>at 3{mark}</place>", {"place": "at 3"}),
        (f"{mark}<codes>{mark}<a>3{mark}</a>{mark}</codes>", {"codes": {"a": "3"}}),
        (f"{mark}<count>3{mark}</count>", {"count": 3}),
        (f"{mark}<count>null{mark}</count>", {"count": "null"}),
    ]:
        call = f'{mark}<tool_call>{mark}<invoke name="f">{text}{mark}</invoke>{mark}</tool_call>'
        (found,) = parse(format_of("MiniMax-M3"), call, tools).calls
        assert found.parsed == expected


def test_elements_may_be_nested_as_deeply_as_a_model_likes() -> None:
    mark, deep = "]<]minimax[>[", 3000
    nested = f"{mark}<options>" + f"{mark}<a>" * deep + f"{mark}</a>" * deep + f"{mark}</options>"
    call = f'{mark}<tool_call>{mark}<invoke name="plan">{nested}{mark}</invoke>{mark}</tool_call>'
    (found,) = parse(format_of("MiniMax-M3"), call, TOOLS).calls
    assert list(found.parsed["options"]) == ["a"]


def test_keys_are_read_as_a_template_escapes_them() -> None:
    tools = tools_of([{"name": "f", "parameters": {"type": "object", "properties": {'a&"b': {"type": "integer"}}}}])
    argument = '<|open|>argument key="a&amp;&quot;b" type="number"<|sep|>3<|close|>argument<|sep|>'
    call = (
        f'<|open|>tools<|sep|><|open|>call tool="f" index="0"<|sep|>{argument}<|close|>call<|sep|><|close|>tools<|sep|>'
    )
    (found,) = parse(format_of("Kimi-K3"), call, tools).calls
    assert found.parsed == {'a&"b': 3}


@pytest.mark.parametrize(
    ("template", "call"),
    [
        (
            "Kimi-K3",
            '<|open|>tools<|sep|><|open|>call tool="f" index="0"<|sep|><|open|>argument key="a" type="{0}"<|sep|>{1}'
            "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        ),
        (
            "deepseek-ai-DeepSeek-V3.2",
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="{2}">{1}'
            "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        ),
    ],
)
def test_an_argument_of_several_types_has_the_one_that_the_model_says(template: str, call: str) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": ["string", "number"]}}}
    tools = tools_of([{"name": "f", "parameters": parameters}])
    for kind, is_string, expected in [("string", "true", "3"), ("number", "false", 3)]:
        (found,) = parse(format_of(template), call.format(kind, 3, is_string), tools).calls
        assert found.parsed == {"a": expected}
