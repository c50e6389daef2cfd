"""``model.chat`` and ``run_tools``: what a model writes becomes text, reasoning and calls of Python functions."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from answers.scripted import HERMES, THINKING, Scripted
from word_models import with_vocabulary

import ggplug_models
from ggplug.errors import ModelError, ParameterError
from ggplug_models import ChatTemplate, Decoder, Tokenizer, Tool, load_tokenizer, run_tools
from ggplug_models.calling import _called
from ggplug_models.chat.analysis import format_of
from ggplug_models.chat.answer import ToolCall
from ggplug_models.chat.budget import ReasoningBudget
from ggplug_models.chat.parsing import parse
from ggplug_models.chat.prepared import prepared
from ggplug_models.commands.chat import Chat
from ggplug_models.sampling import Sampler, Sampling
from ggplug_models.tokenizers.byte_pairs import LETTERS

pytest.importorskip("jinja2")
pytest.importorskip("llguidance")

ASKED = [{"role": "user", "content": "hi"}]


def add(a: int, b: Annotated[int, "the second number"] = 1) -> int:
    """Adds two
    numbers.

    Not a part of the description.
    """
    return a + b


def fail(what: str) -> str:
    """Fails."""
    raise KeyError(what)


def template(model: Decoder, source: str = HERMES) -> ChatTemplate:
    return ChatTemplate(source, model.tokenizer)


def chat(model: Decoder, text: str, source: str = HERMES, **options: Any) -> ggplug_models.ChatAnswer:
    return model.chat(ASKED, template=template(model, source), choose=Scripted(model.tokenizer, [text]), **options)


CALL = '<tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>'


def test_an_answer_is_text_and_calls(model: Decoder) -> None:
    answer = chat(model, f"I add. {CALL}", tools=[add])
    assert "".join(answer) == "I add. "
    (call,) = answer.answer.calls
    assert (call.name, call.parsed) == ("add", {"a": 3, "b": 4})
    assert len(call.id) == 9
    assert answer.finish is ggplug_models.Finish.STOP


def test_without_tools_the_same_text_is_text(model: Decoder) -> None:
    answer = chat(model, f"I add. {CALL}")
    assert "".join(answer) == f"I add. {CALL}"
    assert answer.answer.calls == []


def test_the_reasoning_is_apart_from_the_text(model: Decoder) -> None:
    answer = chat(model, "I think.</think>\n\nYes.", THINKING)
    assert "".join(answer) == "Yes."
    assert answer.answer.reasoning == "I think."
    assert answer.answer.message == {"role": "assistant", "content": "Yes.", "reasoning_content": "I think."}
    switched_off = chat(model, "Yes.", THINKING, variables={"enable_thinking": False})
    assert switched_off.complete().message == {"role": "assistant", "content": "Yes."}
    asked_not_to = chat(model, "Yes.", THINKING, reasoning_effort="none")
    assert asked_not_to.complete().reasoning == ""


def test_pieces_of_an_answer_come_as_they_are_generated(model: Decoder) -> None:
    pieces = list(chat(model, f"Hm.</think>{CALL}", THINKING, tools=[add]).pieces())
    assert "".join(piece.reasoning for piece in pieces) == "Hm."
    calls = [piece.call for piece in pieces if piece.call is not None]
    assert calls[0].name == "add"
    assert all(call.name is None and call.index == 0 for call in calls[1:])
    assert "".join(call.arguments for call in calls) == '{"a": 3, "b": 4}'
    assert len(calls) > 5


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("source", [HERMES, THINKING])
def test_whatever_the_logits_a_required_call_matches_its_schema(model: Decoder, source: str, seed: int) -> None:
    tool = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "k": {"enum": ["x", "y"]}},
        "required": ["a", "k"],
    }
    given: Any = {"type": "function", "function": {"name": "pick", "parameters": tool}}
    answer = model.chat(
        ASKED,
        200,
        template=template(model, source),
        tools=[given, add],
        tool_choice="pick",
        parallel_tool_calls=False,
        reasoning_budget=3,
        choose=Sampler(Sampling(temperature=1.0, seed=seed)),
    ).complete()
    (call,) = answer.calls
    assert call.name == "pick"
    assert set(call.parsed) == {"a", "k"}
    assert isinstance(call.parsed["a"], int)
    assert call.parsed["k"] in ("x", "y")
    assert not answer.content.strip()


def test_a_reasoning_ends_where_its_budget_does(model: Decoder) -> None:
    answer = model.chat(
        ASKED, 40, template=template(model, THINKING), reasoning_budget=5, choose=Sampler(Sampling(seed=1))
    )
    assert len(answer.complete().reasoning) <= 5 * 4  # tokens have at most 4 letters
    assert answer.answer.content
    none = model.chat(ASKED, 20, template=template(model, THINKING), reasoning_budget=0)
    assert none.complete().reasoning == ""


@pytest.fixture(scope="module")
def joining() -> Tokenizer:
    """A vocabulary without the marks of reasoning, but with tokens that join their ends with what follows."""
    letters = [chr(code) for code in range(ord("!"), ord("~") + 1)] + ["Ċ", "Ġ"]  # a line break and a space
    tokens = [*letters, "ĊĊ", ">Ċ", ">ĊĊ", "Four", "th", "Ã", "©"]  # the last two: the bytes of é
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["Ċ Ċ", "> Ċ", "> ĊĊ", "t h"],
    }
    return load_tokenizer(metadata)


def written(budget: ReasoningBudget, tokenizer: Tokenizer, pieces: Sequence[str]) -> str:
    """What a model writes that prefers these pieces of text."""
    ids = {tokenizer.piece(token).decode("utf-8", "replace"): token for token in range(tokenizer.n_vocab)}
    found = ""
    for piece in pieces:
        while not budget.allowed()[ids[piece]]:
            forced = int(budget.allowed().argmax())
            found += tokenizer.piece(forced).decode()
            budget.accept(forced)
        found += piece
        budget.accept(ids[piece])
    return found


BEGIN, END = [*"<", "th", *"ink"], [*"</", "th", *"ink"]


@pytest.mark.parametrize(
    ("most", "pieces", "text"),
    [
        (9, ["Four", *END, ">\n\n", *["Four"] * 9], "Four</think>\n\n" + 9 * "Four"),
        (9, [*["Four"] * 9, "\n"], 9 * "Four" + "so</think>\n"),
        (2, ["Four", "<", "Four"], "Four</think>Four"),
        (3, ["Four", "<", "/", "Four"], "Four</think>Four"),
        (0, ["Four"], "so</think>Four"),
        (8, ["Four", *"<call", ">\n", *["Four"] * 9], "Four<call>\n" + 9 * "Four"),
    ],
)
def test_a_budget_sees_and_ends_a_mark_that_no_token_ends_with(
    most: int, pieces: list[str], text: str, joining: Tokenizer
) -> None:
    def budget(*, reasons: bool) -> ReasoningBudget:
        return ReasoningBudget(
            most, "<think>", ["</think>", "<call>"], joining, joining.n_vocab, reasons=reasons, message="so"
        )

    assert written(budget(reasons=True), joining, pieces) == text
    opened = [*BEGIN, ">\n"]
    assert written(budget(reasons=False), joining, [*opened, *pieces]) == "<think>\n" + text


def test_a_budget_ends_no_reasoning_within_a_character(joining: Tokenizer) -> None:
    budget = ReasoningBudget(1, "<think>", ["</think>"], joining, joining.n_vocab, reasons=True)
    first, second = joining.n_vocab - 2, joining.n_vocab - 1
    assert joining.decode([first, second]) == "é"
    budget.accept(first)
    assert budget.allowed().all()
    budget.accept(second)
    assert np.count_nonzero(budget.allowed()) == 1


def test_a_mark_within_the_answer_begins_no_reasoning(joining: Tokenizer) -> None:
    budget = ReasoningBudget(2, "<think>", ["</think>"], joining, joining.n_vocab, reasons=False)
    assert written(budget, joining, ["Four", *BEGIN, ">\n", *["Four"] * 9]) == "Four<think>\n" + 9 * "Four"


def test_each_reasoning_of_a_format_with_several_is_limited(joining: Tokenizer) -> None:
    budget = ReasoningBudget(2, "<think>", ["</think>"], joining, joining.n_vocab, reasons=False, again=True)
    thought = [*BEGIN, ">\n", *["Four"] * 3]
    limited = "<think>\nFourFour</think>Four"
    assert written(budget, joining, [*thought, "\n", *thought, "\n"]) == f"{limited}\n{limited}\n"


def test_a_sampler_with_a_constraint_is_refused_with_tools(model: Decoder) -> None:
    sampler = Sampler(constraint=model.grammars.json_schema({}))
    with pytest.raises(ParameterError, match="the sampler has a constraint, which would replace that of the tools"):
        model.chat(ASKED, template=template(model), tools=[add], choose=sampler)


def test_functions_are_called_until_the_model_answers(model: Decoder) -> None:
    texts = [CALL, '<tool_call>{"name": "fail", "arguments": {"what": "x"}}</tool_call>', "Done."]
    run = run_tools(model, ASKED, [add, fail], template=template(model), choose=Scripted(model.tokenizer, texts))
    assert run.answer.content == "Done."
    roles = [message["role"] for message in run.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert run.messages[2]["content"] == "7"
    assert run.messages[2]["tool_call_id"] == run.messages[1]["tool_calls"][0]["id"]
    assert run.messages[4]["content"] == "error: KeyError: 'x'"


def test_a_model_that_never_stops_calling_is_stopped(model: Decoder) -> None:
    with pytest.raises(ModelError, match="still calls functions after 2 answers"):
        run_tools(model, ASKED, [add], rounds=2, template=template(model), choose=Scripted(model.tokenizer, [CALL] * 3))
    with pytest.raises(ParameterError, match="the tool add has no function"):
        run_tools(model, ASKED, [Tool("add", "", {})])


def test_an_answer_that_is_cut_within_a_call_calls_nothing(model: Decoder) -> None:
    with pytest.raises(ModelError, match="the answer ended within a call"):
        run_tools(model, ASKED, [add], 45, template=template(model), choose=Scripted(model.tokenizer, [CALL]))


class Broken:
    """An object none of whose texts can be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Unprintable(Exception):
    __str__ = Broken.__str__


def circular() -> list[Any]:
    found: list[Any] = []
    found.append({"again": found})
    return found


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def raises(error: Exception) -> Any:
    raise error


RETURNED: list[tuple[Callable[[], Any], str]] = [
    (lambda: {(1, 2): 3}, "error: the result cannot be written as JSON: TypeError: keys must be str, .*"),
    (circular, "error: the result cannot be written as JSON: ValueError: Circular reference detected"),
    (lambda: nested(200_000), "error: the result cannot be written as JSON: RecursionError: .*"),
    (Broken, "error: the result cannot be written as JSON: RuntimeError: no text"),
    (lambda: {"a": [Broken()]}, "error: the result cannot be written as JSON: RuntimeError: no text"),
    (lambda: raises(Unprintable()), "error: Unprintable"),
    (lambda: {"a": raises(Unprintable())}, "error: Unprintable"),
    (lambda: 10**5000, "error: the result cannot be written as JSON: ValueError: Exceeds the limit .*"),
    (lambda: Colour.RED, '"red"'),
    (
        lambda: {"a": {1}, "b": (2, None), "c": Path("x"), "d": [Colour.RED]},
        r'{"a": \[1\], "b": \[2, null\], .* \["red"\]}',
    ),
    (lambda: None, "null"),
    (lambda: "text", "text"),
]


@pytest.mark.parametrize(("function", "wanted"), RETURNED, ids=[wanted[:60] for _, wanted in RETURNED])
def test_whatever_a_function_returns_the_model_gets_a_text(
    model: Decoder, function: Callable[[], Any], wanted: str
) -> None:
    tool = Tool("add", "", {"type": "object", "properties": {}}, function)
    texts = ['<tool_call>{"name": "add", "arguments": {}}</tool_call>', "Done."]
    run = run_tools(model, ASKED, [tool], template=template(model), choose=Scripted(model.tokenizer, texts))
    assert run.answer.content == "Done."
    assert re.fullmatch(wanted, run.messages[2]["content"])


def test_models_of_pydantic_in_a_result_are_objects() -> None:
    pydantic = pytest.importorskip("pydantic")
    town = pydantic.create_model("Town", name=(str, ...))(name="Oslo")
    tools = {"one": Tool("one", "", {}, lambda: town), "all": Tool("all", "", {}, lambda: [town, {"a": town}])}
    assert _called(tools["one"], ToolCall("one", "{}")) == '{"name":"Oslo"}'
    assert _called(tools["all"], ToolCall("all", "{}")) == '[{"name": "Oslo"}, {"a": {"name": "Oslo"}}]'


def test_arguments_that_python_cannot_read_are_an_error_for_the_model() -> None:
    tool = Tool("add", "", {}, add)
    for arguments in ('{"a": ' + "[" * 200_000 + "]" * 200_000 + "}", '{"a": ' + "1" * 5000 + "}", "[]"):
        assert _called(tool, ToolCall("add", arguments)).startswith("error: the arguments cannot be read: ")


def test_a_function_that_would_not_be_awaited_is_refused(model: Decoder) -> None:
    async def later(a: int) -> int:
        return a

    with pytest.raises(ParameterError, match="the tool later is a coroutine function"):
        run_tools(model, ASKED, [later])


# -- tools ----------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def paint(colour: Colour, walls: list[Literal["n", "s"]], note: str | None = None, sizes: dict[str, float] = {}) -> str:  # noqa: B006
    """Paints."""
    return f"{colour.name} {walls}"


def test_a_function_becomes_a_schema() -> None:
    assert Tool.of(add).message == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer"},
                    "b": {"type": "integer", "description": "the second number"},
                },
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }
    assert Tool.of(paint).properties == {
        "colour": {"enum": ["red", "blue"]},
        "walls": {"type": "array", "items": {"enum": ["n", "s"]}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "sizes": {"type": "object", "additionalProperties": {"type": "number"}},
    }
    assert Tool.of(paint).call({"colour": "red", "walls": ["n"]}) == "RED ['n']"


def test_what_is_no_tool_is_refused_in_words(model: Decoder) -> None:
    def stars(*args: int) -> None: ...

    def odd(x: bytes) -> None: ...

    refused: list[tuple[Any, str]] = [
        (3, "a tool must be a function, or a dict with the type function, got 3"),
        ({"type": "web_search"}, "a tool must have the type function and a function"),
        ({"type": "function", "function": {"name": ""}}, "a tool must have a name and a description"),
        (stars, "the parameter args of the tool stars cannot be passed by name"),
        (odd, r"odd\(x\) has the type <class 'bytes'>, which has no JSON schema"),
    ]
    for tool, words in refused:
        with pytest.raises(ParameterError, match=words):
            model.chat(ASKED, template=template(model), tools=[tool])
    with pytest.raises(ParameterError, match="two tools have the name 'add'"):
        model.chat(ASKED, template=template(model), tools=[add, add])
    for choice, words in [
        ("sub", "tool_choice has the tool 'sub'; the tools are: add"),
        (3, "tool_choice must be auto"),
    ]:
        with pytest.raises(ParameterError, match=words):
            model.chat(ASKED, template=template(model), tools=[add], tool_choice=choice)
    with pytest.raises(ParameterError, match="reasoning_effort must be one of none, minimal"):
        model.chat(ASKED, template=template(model), reasoning_effort="huge")


def test_a_template_without_tools_gets_them_in_the_system_message(model: Decoder) -> None:
    plain = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    messages = [
        *ASKED,
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 1}'}}]},
        {"role": "tool", "content": "2"},
    ]
    found = prepared(template(model, plain), messages, tools=[add]).prompt
    assert found.startswith("[system] You may call functions.")
    assert '{"name": "add", "description": "Adds two numbers."' in found
    assert '[assistant] <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n' in found
    assert "[user] <tool_response>\n2\n</tool_response>\n" in found
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + plain
    assert prepared(template(model, refuses), ASKED, tools=[add]).prompt.startswith("[user] You may call functions.")
    (call,) = chat(model, CALL, "{{ messages|length }}", tools=[add]).complete().calls
    assert call.parsed == {"a": 3, "b": 4}


def test_a_chat_that_is_continued_begins_with_the_given_text(model: Decoder) -> None:
    for source, effort, added in [
        (HERMES, None, "<|assistant|>Well"),
        (THINKING, None, "<|assistant|><think></think>Well"),
        (THINKING, "none", "<|assistant|><think></think>Well"),
    ]:
        found = prepared(template(model, source), ASKED, reasoning_effort=effort).continued("Well")
        assert found.prompt.endswith(added)
        assert json.dumps(found.parser().finish()) == "[]"
    thought = prepared(template(model, THINKING), ASKED).continued("", "I think")
    assert thought.prompt.endswith("<|assistant|><think>I think")
    parser = thought.parser()
    assert [*parser.push(" so.</think>A"), *parser.finish()] == [("", " so.", None), ("A", "", None)]


def test_a_file_may_have_another_template_for_chats_with_tools(model: Decoder) -> None:
    metadata = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": HERMES}
    both = ChatTemplate.of(metadata, model.tokenizer)
    assert prepared(both, ASKED).prompt == "plain"
    assert prepared(both, ASKED, tools=[add]).prompt == "<|user|>hi<|end|><|assistant|>"


def test_a_template_that_took_long_is_not_rendered_again_and_again(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = []
    monkeypatch.setattr("ggplug_models.chat.analysis.SECONDS", 1e-9)
    format_of(HERMES, lambda messages, **options: rendered.append(messages) or "")
    assert len(rendered) == 1


def test_a_text_after_a_call_is_a_part_of_the_text(model: Decoder) -> None:
    answer = parse(template(model).format, f"Before. {CALL}\n{CALL}\nAfter.", [Tool.of(add)])
    assert answer.content == "Before. After."
    assert len(answer.calls) == 2


def test_a_call_that_is_cut_has_the_beginning_of_its_arguments(model: Decoder) -> None:
    cut = model.chat(
        ASKED, 50, template=template(model), tools=[add], choose=Scripted(model.tokenizer, ["I add. " + CALL])
    )
    assert "".join(cut) == "I add. "
    assert cut.finish is ggplug_models.Finish.LENGTH
    (call,) = cut.answer.calls
    assert '{"a": 3, "b": 4}'.startswith(call.arguments)
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        _ = call.parsed


def test_marks_that_are_control_tokens_are_read_as_well(data: Path, tmp_path: Path) -> None:
    marks = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
    tokens = ["<unk>", "<s>", "</s>", *marks, *LETTERS, "hi", *(f"<unused{n}>" for n in range(36))]
    vocabulary = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.merges": ["h i"],
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([2, *[3] * 6, *[1] * 257, *[4] * 36], np.int32),
        "tokenizer.ggml.eos_token_id": 2,
    }
    with ggplug_models.load(
        with_vocabulary(data / "qwen3.gguf", tmp_path / "marks.gguf", vocabulary), ["CPU"]
    ) as marked:
        choose = Scripted(marked.tokenizer, [f"Hm.</think>I add. {CALL}"])
        answer = marked.chat(ASKED, template=template(marked, THINKING), tools=[add], choose=choose).complete()
        assert (answer.reasoning, answer.content) == ("Hm.", "I add. ")
        assert answer.calls[0].parsed == {"a": 3, "b": 4}
        for seed in range(3):
            required = marked.chat(
                ASKED,
                300,
                template=template(marked, THINKING),
                tools=[add],
                tool_choice="required",
                reasoning_budget=4,
                parallel_tool_calls=False,
                choose=Sampler(Sampling(seed=seed)),
            ).complete()
            assert isinstance(required.calls[0].parsed["a"], int)


def test_the_reasoning_of_earlier_answers_has_the_form_that_a_template_reads(model: Decoder) -> None:
    said: dict[str, Any] = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    call = {"function": {"name": "add", "arguments": "{}"}}
    by_key = "{{ messages[1].content }}|{% for message in messages %}{{ message.thinking }}{% endfor %}"
    assert prepared(template(model, by_key), [*ASKED, said]).prompt == "Yes.|Hm."
    either = by_key + "{# Cannot pass both content and thinking #}"
    assert prepared(template(model, either), [*ASKED, {**said, "tool_calls": [call]}]).prompt == "|Hm."
    by_part = (
        "{% for p in messages[1].content %}{% if p['type'] == 'thinking' %}{{ p.thinking }}|{% else %}{{ p.text }}"
    )
    assert prepared(template(model, by_part + "{% endif %}{% endfor %}"), [*ASKED, said]).prompt == "Hm.|Yes."
    assert prepared(template(model, "{{ messages[1].reasoning_content }}"), [*ASKED, said]).prompt == "Hm."
    for source in (
        "{% for msg in messages %}{% set reasoning_content = msg.reasoning %}{{ reasoning_content }}{% endfor %}",
        "{% for message in messages %}{% if 'thought' in message %}{{ message['thought'] }}{% endif %}{% endfor %}",
        "{% for m in messages %}{{ m.get('tool_plan', '') }}{% endfor %}",
    ):
        assert prepared(template(model, source), [*ASKED, said]).prompt == "Hm."


def test_a_chat_in_the_terminal_shows_the_reasoning_and_remembers_it_apart(model: Decoder) -> None:
    choose: Any = Scripted(model.tokenizer, ["I think.</think>Yes.", "So.</think>No."])
    with model.session() as session:
        talk = Chat(model, session, choose, template=template(model, THINKING))
        assert "".join(talk.answer("hi")) == "<think>\nI think.\n</think>\n\nYes."
        assert talk.messages[1] == {"role": "assistant", "content": "Yes.", "reasoning_content": "I think."}
        assert "".join(talk.answer("sure?")) == "<think>\nSo.\n</think>\n\nNo."
