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
