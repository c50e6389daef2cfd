"""Formats that are recognised by words of their templates, because rendering a chat does not show them."""

from __future__ import annotations

from collections.abc import Callable

from ggplug_models.chat.formats.addressed import AddressedFormat
from ggplug_models.chat.formats.elements import ElementArguments
from ggplug_models.chat.formats.format import CallSyntax, Format, PlainFormat, Reasoning
from ggplug_models.chat.formats.gemma import GemmaCalls
from ggplug_models.chat.formats.harmony import HarmonyFormat
from ggplug_models.chat.formats.json_calls import JsonCalls
from ggplug_models.chat.formats.named_calls import Field, JsonArguments, NamedCalls, TaggedArguments
from ggplug_models.chat.formats.pythonic import PythonicCalls
from ggplug_models.chat.formats.recipients import RecipientFormat


def _kimi_3() -> Format:
    calls = NamedCalls(
        ('<|open|>call tool="', Field("name"), '" index="', Field("number"), '"<|sep|>'),
        TaggedArguments(
            '<|open|>argument key="',
            '"',
            "<|close|>argument<|sep|>",
            "<|sep|>",
            ' type="string"',
            escapes=(("&", "&amp;"), ('"', "&quot;")),
        ),
        "<|close|>call<|sep|>",
        ("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
    )
    wrappers = ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>")
    return PlainFormat(Reasoning("<|open|>think<|sep|>", "<|close|>think<|sep|>"), calls, wrappers)


def _gemma_4() -> Format:
    return PlainFormat(Reasoning("<|channel>thought", "<channel|>"), GemmaCalls(), ("<|tool_response>",))


def _minimax_3() -> CallSyntax:
    token = "]<]minimax[>["
    return NamedCalls(
        (f'{token}<invoke name="', Field("name"), '">'),
        ElementArguments(token),
        f"{token}</invoke>",
        (f"{token}<tool_call>", f"{token}</tool_call>"),
    )


def _lfm_2() -> CallSyntax:
    return PythonicCalls()


def _kimi_2() -> Format:
    calls = NamedCalls(
        ("<|tool_call_begin|>", "functions.", Field("name"), ":", Field("number"), "<|tool_call_argument_begin|>"),
        JsonArguments(),
        "<|tool_call_end|>",
        ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        id="functions.{name}:{number}",
        ends_reasoning=True,
    )
    return PlainFormat(Reasoning("<think>", "</think>"), calls)


def hermes() -> CallSyntax:
    """The syntax of Hermes and Qwen, which other models understand, too, if the prompt describes it."""
    return JsonCalls(each=("<tool_call>", "</tool_call>"))


def _apertus() -> CallSyntax:
    section = ("<|tools_prefix|>", "<|tools_suffix|>")
    return JsonCalls(section=section, array=True, shape=("{", ": ", "}"), name="", ends_reasoning=True)


def _granite_3() -> CallSyntax:
    return JsonCalls(section=("<|tool_call|>", ""), array=True)


def _firefunction() -> CallSyntax:
    return JsonCalls(section=("functools", ""), array=True)


def _command_r_plus() -> CallSyntax:
    shape = ('{"tool_name": ', ', "parameters": ', "}")
    section = ("Action:\n```json", "```")
    return JsonCalls(section=section, array=True, shape=shape, name="tool_name", arguments="parameters")


FORMATS: tuple[tuple[tuple[str, ...], Callable[[], Format]], ...] = (
    (("<|channel|>",), HarmonyFormat),
    ((">>>all", ">>>${recipient}"), RecipientFormat),
    (("<atem:function_calls>", "<|eom|>"), AddressedFormat),
    (("<|tool_calls_section_begin|>", "<|tool_call_begin|>"), _kimi_2),
    (("<|open|>", "<|close|>", "<|end_of_msg|>"), _kimi_3),
    (("'<|tool_call>call:'",), _gemma_4),
)
"""Formats, by words that all occur in the template."""

CALLS: tuple[tuple[tuple[str, ...], Callable[[], CallSyntax]], ...] = (
    (("]<]minimax[>[", "<tool_call>", "<invoke name="), _minimax_3),
    (("<|tools_prefix|>", "<|inner_prefix|>"), _apertus),
    (("<|tool_list_start|>", "<|tool_list_end|>"), _lfm_2),
    (("List of tools: [",), _lfm_2),
    ((" functools[",), _firefunction),
    (("Action:\\n```json\\n", "tool_name"), _command_r_plus),
    (("respond only with <|tool_call|> followed by a JSON list",), _granite_3),
)
"""Syntaxes of calls, by words that all occur in the template."""


def special_format(source: str) -> Format | None:
    """The format of a template by its words; None if they are not known."""
    return next((make() for words, make in FORMATS if all(word in source for word in words)), None)


def special_calls(source: str) -> CallSyntax | None:
    """The syntax of the calls of a template by its words; None if they are not known."""
    return next((make() for words, make in CALLS if all(word in source for word in words)), None)
