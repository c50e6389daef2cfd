"""Finds the format of answers of a chat template: renders some chats, and looks at what the template adds for calls.

The calls have names, ids and arguments that occur nowhere else, so the text around them are the format's marks.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from ggplug.errors import GGPlugError
from ggplug_models.chat.formats.format import CallSyntax, Format, PlainFormat, Reasoning
from ggplug_models.chat.formats.json_calls import JsonCalls
from ggplug_models.chat.formats.named_calls import Field, JsonArguments, NamedCalls, Part, TaggedArguments
from ggplug_models.chat.formats.special import special_calls, special_format
from ggplug_models.chat.lark import ANY_ID, ID, NINE
from ggplug_models.checks.ids import in_common

Render = Callable[..., str]
"""A function that renders messages, such as :meth:`.ChatTemplate.render`."""

NAMES = ("probe_first", "probe_second")
IDS = ("probe0001", "probe0002")
LONG_ID = "call_probe-0001"
KEYS = ("key_alpha", "key_beta")
VALUES = ("valuealpha", "valuebeta")
TEXT, THOUGHT = "Probetext", "Probethought"
NUMBER = 70717
SPECIAL = f"{VALUES[0]}<&\n{VALUES[1]}"
"""A text with characters that some formats put between marks."""

_PROPERTIES = {
    KEYS[0]: {"type": "string", "description": "the first"},
    KEYS[1]: {"type": "string", "description": "the second"},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "a probe",
            "parameters": {"type": "object", "properties": _PROPERTIES, "required": [KEYS[0]]},
        },
    }
    for name in NAMES
]
SECONDS = 2.0
"""Processor time after which no more chats are rendered, because a template may be malicious."""

ASKED = {"role": "user", "content": "Probequestion"}


def _call(number: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": NAMES[number], "arguments": json.dumps(arguments)}
    return {"id": IDS[number], "type": "function", "function": function}


ONE = [_call(0, {KEYS[0]: VALUES[0]})]
TWO = [*ONE, _call(1, {KEYS[0]: VALUES[1]})]
ONE_OF_TWO = [_call(0, {KEYS[0]: VALUES[0], KEYS[1]: VALUES[1]})]
ONE_NUMBER = [_call(0, {KEYS[0]: NUMBER})]
ONE_SPECIAL = [_call(0, {KEYS[0]: SPECIAL})]


class Probes:
    """Renders answers with a template: what they add to the prompt.

    ``generation``: what the template adds for an answer that is to be generated.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self._seconds = SECONDS
        self._prompt = self._try([ASKED], TOOLS) or ""
        asked = self._try([ASKED], TOOLS, add_generation_prompt=True) or ""
        self.generation = asked[_common(self._prompt, asked) :]

    def _try(self, messages: Sequence[Mapping[str, Any]], tools: Any, **options: Any) -> str | None:
        begun = time.thread_time()
        try:
            if self._seconds <= 0:
                return None
            return self._render(messages, tools=tools, **{"add_generation_prompt": False, **options})
        except GGPlugError:
            return None
        finally:
            self._seconds -= time.thread_time() - begun

    def answer(self, **message: Any) -> str | None:
        """What an answer adds to the prompt; None if the template refuses it."""
        for content in (message.pop("content", ""), None):
            text = self._try([ASKED, {"role": "assistant", "content": content, **message}], TOOLS)
            if text is not None:
                return text[_common(self._prompt, text) :]
        return None

    def refuses(self, **message: Any) -> bool:
        """Whether the template refuses an answer; False if there is no time left to find that out."""
        return self.answer(**message) is None and self._seconds > 0


def _common(first: str, second: str) -> int:
    """The length of the common beginning of two texts, up to the last mark that is whole."""
    length = in_common(first, second)
    if length == len(first):
        return length
    opened = re.search(r"[<\[][^<>\[\]\s]*\Z", first[:length])
    return opened.start() if opened else length


# -- reasoning ------------------------------------------------------------------------------------

KNOWN_REASONING = (
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
)
"""Marks of reasoning, for templates that leave out the reasoning of earlier answers: these have the end mark."""


def reasoning_of(source: str, probes: Probes) -> Reasoning | None:
    """The marks of reasoning; None if there are none."""
    text = probes.answer(content=TEXT, reasoning_content=THOUGHT)
    if text is not None and THOUGHT in text:
        before, _, after = text.partition(THOUGHT)
        start, end = _marks(before)[-1:], _marks(after.partition(TEXT)[0])[:1]
        if start and end and re.search("think|thought|reason", start[0], re.IGNORECASE):
            header = end[0] + probes.generation  # if the reasoning is a message of its own
            return Reasoning(start[0], header if after.startswith(header) else end[0])
    return next((Reasoning(start, end) for start, end in KNOWN_REASONING if end in source), None)


def _after_header(text: str, generation: str) -> str:
    """The rest of an answer after its header, which the template adds for an answer that is to be generated too."""
    return text[_common(generation, text) :] if not text.startswith(generation) else text[len(generation) :]


_MARK = re.compile(r"<[^<>\s][^<>]*>|\[[^\[\]\s]+\]")


def _marks(text: str) -> list[str]:
    return _MARK.findall(text)


def wrappers_of(probes: Probes, reasoning: Reasoning | None) -> tuple[str, ...]:
    """The marks around the text of an answer."""
    text = probes.answer(content=TEXT)
    if text is None or TEXT not in text:
        return ()
    before, _, after = text.partition(TEXT)
    before = _without_reasoning(_after_header(before, probes.generation), reasoning)
    found = _marks(before)[-1:]
    return (*found, *_marks(after)[:1]) if found else ()


def _without_reasoning(text: str, reasoning: Reasoning | None) -> str:
    if reasoning is None:
        return text
    place = text.find(reasoning.end)
    return text if place < 0 else text[place + len(reasoning.end) :]


# -- calls ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Frame:
    """The text around calls: ``section`` around all of them, ``each`` around each."""

    section: tuple[str, str]
    each: tuple[str, str]


def calls_of(probes: Probes, reasoning: Reasoning | None) -> CallSyntax | None:
    """The syntax of calls; None if the template does not write any."""
    ended = probes.answer(content=TEXT)
    one = probes.answer(tool_calls=ONE)
    if one is None or NAMES[0] not in one or KEYS[0] not in one:
        return None
    tail = "" if ended is None else ended.partition(TEXT)[2]
    two = probes.answer(tool_calls=TWO)
    first = _Written(one, probes.generation, reasoning, tail)
    second = first if two is None or NAMES[1] not in two else _Written(two, probes.generation, reasoning, tail)
    return _json_calls(first, second) or _named_calls(probes, first, second, reasons=reasoning is not None)


class _Written:
    """A rendered answer with calls: ``text`` without its header, reasoning and end, and ``full``, with them."""

    def __init__(self, text: str, generation: str, reasoning: Reasoning | None, tail: str) -> None:
        text = _without_reasoning(_after_header(text, generation), reasoning)
        while tail and not text.endswith(tail):
            tail = tail[len(_segments(tail)[0]) :]
        self.text = text[: len(text) - len(tail)]


def _segments(text: str) -> list[str]:
    """The marks of a text, and what is between them."""
    return re.findall(r"<[^<>\s][^<>]*>|\[[^\[\]\s]+\]|\s+|[^<\[\s]+|.", text, re.DOTALL)


def _frame(first: str, between: str | None, after: str) -> _Frame:
    """What is around all calls and each call, from the text before, between and after two calls."""
    if between is None:
        return _Frame(("", ""), (first, after))
    starts, gaps, ends = _segments(first), _segments(between), _segments(after)
    count = in_common(starts[::-1], gaps[::-1])
    each = starts[len(starts) - count :]
    gaps = gaps[: len(gaps) - count]
    closing = in_common(gaps, ends)
    last = _marks("".join(ends[closing:]))[:1] or ["".join(ends[closing:])]
    return _Frame(("".join(starts[: len(starts) - count]), last[0]), ("".join(each), "".join(ends[:closing])))


def _json_calls(one: _Written, two: _Written) -> JsonCalls | None:
    """The syntax, if a call is a JSON object with the name and the arguments."""
    first = _object(one.text, NAMES[0])
    if first is None:
        return None
    start, end = first
    second = _object(two.text, NAMES[1]) if two is not one else None
    before, after = one.text[:start], one.text[end:]
    between = None
    if second is not None and two.text[:start] == before:
        between, after = two.text[end : second[0]], two.text[second[1] :]
    array = before.rstrip().endswith("[")
    if array:
        before, after = before.rstrip()[:-1], after.lstrip().removeprefix("]")
        frame = _Frame((before, (_marks(after)[:1] or [after])[0]), ("", ""))
    else:
        frame = _frame(before, between, after)
    written = one.text[start:end]
    name, arguments, id = _keys(json.loads(written))
    if id:
        written = re.sub(rf'("{re.escape(id)}"\s*:\s*)"[^"]*"', lambda found: f'{found[1]}"{ID}"', written)
    quoted = json.dumps(NAMES[0])
    place = written.index(quoted) + len(quoted)
    values = written.index("{", place)
    rest = json.JSONDecoder().raw_decode(written, values)[1]
    shape = written[: place - len(quoted)], written[place:values], written[rest:]
    return JsonCalls(
        section=(frame.section[0].strip(), frame.section[1].strip()),
        each=(frame.each[0].strip(), frame.each[1].strip()),
        array=array,
        shape=shape,
        name=name,
        arguments=arguments,
        id=id,
    )


def _object(text: str, name: str) -> tuple[int, int] | None:
    """Where the innermost JSON object lies that has the name of a function, and its arguments."""
    place = text.find(json.dumps(name))
    decoder = json.JSONDecoder()
    start = place
    while place >= 0 and (start := text.rfind("{", 0, start)) >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except ValueError:
            continue
        if end > place and isinstance(value, dict) and KEYS[0] in json.dumps(value):
            return start, end
    return None


def _keys(call: Mapping[str, Any]) -> tuple[str, str, str]:
    """The keys of the name, of the arguments and of the id."""
    name = arguments = id = ""
    for key, value in call.items():
        if key == NAMES[0]:
            return "", key, ""
        if value == NAMES[0]:
            name = key
        elif isinstance(value, dict) and KEYS[0] in value:
            arguments = key
        elif isinstance(value, dict):
            name, arguments, id = _keys(value)
        elif isinstance(value, str) and (value == IDS[0] or "id" in key.lower()):
            id = key
    return name, arguments, id


def _named_calls(probes: Probes, one: _Written, two: _Written, *, reasons: bool) -> NamedCalls | None:
    """The syntax, if a call has the name between marks, and then its arguments."""
    place = one.text.find(NAMES[0])
    after_name = one.text[place + len(NAMES[0]) :]
    key = after_name.find(KEYS[0])
    if place < 0 or key < 0:
        return None
    opened = after_name.rfind("{", 0, key)
    try:
        length = json.JSONDecoder().raw_decode(after_name, opened)[1] - opened if opened >= 0 else 0
    except ValueError:
        length = 0
    if length:
        return _with_json(one, two, place, after_name[:opened], length)
    return _with_tags(probes, one, two, reasons=reasons)


def _with_json(one: _Written, two: _Written, place: int, middle: str, length: int) -> NamedCalls:
    end = place + len(NAMES[0]) + len(middle) + length
    first, after = one.text[:place], one.text[end:]
    middles = [middle]
    between = None
    second = two.text.find(NAMES[1])
    if two is not one and second >= 0:
        between = two.text[end:second]
        opened = two.text.index("{", second)
        middles.append(two.text[second + len(NAMES[1]) : opened])
        after = two.text[json.JSONDecoder().raw_decode(two.text, opened)[1] :]
    frame = _frame(_placed(first), None if between is None else _placed(between), after)
    before = (*_parts(frame.each[0]), Field("name"), *_parts(_numbered(*map(_placed, middles))))
    return NamedCalls(before, JsonArguments(), frame.each[1], frame.section)


_NUMBER = "\x00number\x00"


def _placed(text: str) -> str:
    """A text with a placeholder for the id."""
    return text.replace(IDS[0], ID).replace(IDS[1], ID)


def _numbered(first: str, second: str | None = None) -> str:
    """A text with a placeholder for a number, if two calls differ in it."""
    if second is None or first == second:
        return first
    return re.sub(r"\d+", _NUMBER, first, count=1) if re.sub(r"\d+", "", first) == re.sub(r"\d+", "", second) else first


def _parts(text: str) -> tuple[Part, ...]:
    """The marks and the fields of a text.  White space separates marks, so that a call begins with the first one."""
    parts = re.split(f"({ID}|{_NUMBER}|(?<=>)(?=\\s+<))", text)
    return tuple(Field(part.strip("\x00")) if part in (ID, _NUMBER) else part for part in parts if part)


def _with_tags(probes: Probes, one: _Written, two: _Written, *, reasons: bool) -> NamedCalls | None:
    both = probes.answer(tool_calls=ONE_OF_TWO)
    number = probes.answer(tool_calls=ONE_NUMBER)
    if both is None or number is None or any(text not in both for text in (*VALUES, KEYS[1])):
        return None
    place, key = one.text.find(NAMES[0]), one.text.find(KEYS[0])
    value = one.text.find(VALUES[0], key)
    if not 0 <= place < key < value:
        return None
    middle = one.text[place + len(NAMES[0]) : key]
    after_key = one.text[key + len(KEYS[0]) : value]
    of_number = number.partition(KEYS[0])[2].partition(str(NUMBER))[0]
    # Between two arguments is the end of the first and the beginning of the second.
    gap = both[both.index(VALUES[0]) + len(VALUES[0]) : both.index(KEYS[1])]
    rest = one.text[value + len(VALUES[0]) :]
    end = _shared_beginning(gap, rest)
    before = gap[len(end) :]
    if not before.strip() or not middle.endswith(before.strip()):
        before = _shared_ending(gap, middle)
        end = gap[: len(gap) - len(before)]
    middle = middle[: len(middle) - len(before.lstrip())]
    quotes = _quotes(probes.answer(tool_calls=ONE_SPECIAL) or "", after_key, end.strip())
    attributes = of_strings = ""
    if of_number != after_key:
        opened, attributes = _split_of(after_key, of_number)
        of_strings = after_key[len(opened) :].removesuffix(attributes)
        after_key = opened
    arguments = TaggedArguments(before.lstrip(), after_key, end.rstrip(), attributes, of_strings, quotes)
    after = rest[len(end) :]
    between = None
    second = two.text.find(NAMES[1])
    middles = [middle]
    if two is not one and second >= 0:
        between = two.text[value + len(VALUES[0]) + len(end) : second]
        value = two.text.find(VALUES[1], second)
        after = two.text[value + len(VALUES[1]) + len(end) :]
        key = two.text.find(KEYS[0], second)
        middles.append(two.text[second + len(NAMES[1]) : key][: len(middle)])
    first = one.text[:place]
    frame = _frame(first, between, after)
    parts = (*_parts(frame.each[0]), Field("name"), *_parts(_numbered(*middles)))
    # Qwen3-Coder, which does not reason, sometimes leaves out the first mark.
    late = len(parts) > 2 and str(parts[1]).strip() == "<function=" and not reasons
    return NamedCalls(parts, arguments, frame.each[1], frame.section, begins_late=late, ends_reasoning=True)


def _quotes(special: str, before: str, end: str) -> tuple[str, str]:
    """The marks around a text with special characters, within those of the value; empty if there are none."""
    opened, found, rest = special.partition(KEYS[0])[2].partition(SPECIAL)
    if not found or not end:
        return "", ""
    marks = opened.removeprefix(before).strip(), rest.partition(end)[0].strip()
    return marks if opened.startswith(before) and all(marks) else ("", "")


def _shared_beginning(first: str, second: str) -> str:
    pairs = zip(_segments(first), _segments(second), strict=False)
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _shared_ending(first: str, second: str) -> str:
    pairs = zip(reversed(_segments(first)), reversed(_segments(second)), strict=False)
    return "".join(reversed([a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]))


def _split_of(first: str, second: str) -> tuple[str, str]:
    """What two texts begin with, up to where their attributes differ, and the mark with which both end."""
    length = in_common(first, second)
    quote = first.find('"', 0, length)
    ending = _segments(first)[-1] if _segments(first)[-1].startswith("<") else first[-1]
    return first[: quote + 1] if quote >= 0 else first[:length], ending


# -- formats --------------------------------------------------------------------------------------


def format_of(source: str, render: Render) -> Format:
    """The format of the answers of a chat template.  ``source``: its text."""
    if (found := special_format(source)) is not None:
        return found
    probes = Probes(render)
    reasoning = reasoning_of(source, probes)
    syntax = special_calls(source) or calls_of(probes, reasoning)
    wrappers = wrappers_of(probes, reasoning)
    if syntax is None or probes.refuses(tool_calls=ONE):
        return PlainFormat(reasoning, syntax, wrappers)
    id = NINE if probes.refuses(tool_calls=[{**ONE[0], "id": LONG_ID}]) else ANY_ID
    return PlainFormat(reasoning, syntax, wrappers, several=not probes.refuses(tool_calls=TWO), id=id)
