"""Tool calls that are JSON objects, as Hermes, Qwen, Llama 3, Mistral Nemo, Command-R and others write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ggplug_models.chat.formats.format import CallSyntax
from ggplug_models.chat.lark import ID, SPACES, Lark, Pattern, escaped, loose_pattern, regex
from ggplug_models.chat.scanning import Scanner, Waiting
from ggplug_models.chat.tools import Tool, ToolChoice

_OPEN, _CLOSE = r"\[", r"\]"
_ARGUMENTS = {"$ref": "#"}


@dataclass
class JsonCalls(CallSyntax):
    """Calls such as ``<tool_call>{"name": "f", "arguments": {}}</tool_call>``.

    ``section``: marks around all calls.  ``each``: marks around each call.  ``array``: whether the calls are items of a
    JSON array.  ``shape``: the parts of a call's object before the name, between name and arguments, and after these.
    ``name``, ``arguments``, ``id``: their keys; an empty ``name``: the name is the key of the arguments.  ``openings``:
    other marks that may be before a call.  Without marks, a call begins with its object.
    """

    section: tuple[str, str] = ("", "")
    each: tuple[str, str] = ("", "")
    array: bool = False
    shape: tuple[str, str, str] = ('{"name": ', ', "arguments": ', "}")
    name: str = "name"
    arguments: str = "arguments"
    id: str = ""
    openings: tuple[str, ...] = ()
    ends_reasoning: bool = False
    starts: tuple[str, ...] = field(init=False)
    marks: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        first = self.section[0] or self.each[0] or "{"
        self.starts = (first, *self.openings)
        self.marks = tuple(mark for mark in (*self.section, *self.each) if mark)

    # -- reading -----------------------------------------------------------------------------------

    def read(self, scan: Scanner, tools: Sequence[Tool]) -> Waiting[bool]:
        names = {tool.name for tool in tools}
        for opening in self.openings:
            yield from scan.skip(opening)
        if self.section[0] and not (yield from scan.skip(self.section[0])):
            return False
        found = False
        while True:
            if self.each[0] and not (yield from scan.skip(self.each[0])):
                break
            yield from scan.skip("[")
            if not (yield from self._read_call(scan, names)):
                break
            found = True
            yield from scan.spaces()
            between = yield from scan.at(*(mark for mark in (self.each[1], "]", ",", ";") if mark))
            while between is not None:
                scan.take(len(between))
                yield from scan.spaces()
                between = yield from scan.at(*(mark for mark in (self.each[1], "]", ",", ";") if mark))
            if self.section[1] and (yield from scan.skip(self.section[1])):
                return True
            yield from scan.spaces()
            if (yield from scan.at(self.each[0] or "{")) is None:
                break
        return found

    def _read_call(self, scan: Scanner, names: set[str]) -> Waiting[bool]:
        """Reads the object of a call."""
        call = _Call(self, names)
        yield from scan.spaces()
        if not (yield from call.read_object(scan)):
            return call.begun
        if not call.begun:
            return call.begin(scan)
        return True

    # -- grammar -----------------------------------------------------------------------------------

    def options(self, lark: Lark, choice: ToolChoice) -> list[tuple[str, str]]:
        if self.starts[0] == "{":
            # The beginning of an object is a call only if the name of a tool follows.
            found: list[tuple[str, str]] = []
            for tool in choice.tools:
                before = self.shape[0].lstrip().removeprefix("{")
                name = Pattern(r"\{" + loose_pattern(before) + escaped(json.dumps(tool.name)))
                more = (
                    f" ({lark.terminal('/;' + SPACES + '/')} {self._objects(lark, choice)})*" if choice.several else ""
                )
                found.append((name, f"{self._rest(lark, tool)}{more}"))
            return found
        call = self._objects(lark, choice)
        gap = lark.terminal(regex(SPACES))
        if self.array:
            comma = lark.terminal(regex(SPACES + "," + SPACES))
            items = f"{call} ({comma} {call})*" if choice.several else call
            call = f"{lark.terminal(regex(SPACES + _OPEN + SPACES))} {items} {lark.terminal(regex(SPACES + _CLOSE))}"
        elif self.each[0]:
            one = f"{gap}? {call} {gap}? {lark.literal(self.each[1])}"
            call = one if not choice.several else f"{one} ({gap}? {lark.literal(self.each[0])} {one})*"
            if self.section[0]:
                call = f"{gap}? {lark.literal(self.each[0])} {call}"
        elif choice.several:
            call = f"{call} ({gap}? {call})*"
        end = lark.literal(self.section[1])
        rest = f"{gap}? {call} {gap}? {end}" if self.section[0] else call
        return [(self.section[0] or self.each[0], lark.rule(rest))]

    def required(self, lark: Lark, choice: ToolChoice) -> str:
        if self.starts[0] != "{":
            return super().required(lark, choice)
        # A schema has the same words as that of an answer's text, which may be the alternative to a call.
        call = lark.rule(" | ".join(lark.schema(self._schema(lark, tool), tool.parameters) for tool in choice.tools))
        return f"{call} ({lark.terminal(regex(SPACES + ';' + SPACES))} {call})*" if choice.several else call

    def _schema(self, lark: Lark, tool: Tool) -> dict[str, Any]:
        """The schema of the object of a call, in which ``#`` is that of the arguments."""
        before, between, after = self.shape

        def of(value: Any) -> dict[str, Any]:
            if value == _ARGUMENTS:
                return _ARGUMENTS
            if isinstance(value, dict):
                properties = {key: of(each) for key, each in value.items()}
                return {"type": "object", "properties": properties, "required": [*value]}
            return {"type": "string", "pattern": f"^(?:{lark.id})$"} if value == ID else {"const": value}

        written = f"{before}{json.dumps(tool.name)}{between}{json.dumps(_ARGUMENTS)}{after}"
        return of(json.loads(written, strict=False))

    def _objects(self, lark: Lark, choice: ToolChoice) -> str:
        """One object of a call."""
        calls = (
            f"{lark.loosely(self.shape[0])} {lark.literal(json.dumps(tool.name))} {self._rest(lark, tool)}"
            for tool in choice.tools
        )
        return lark.rule(" | ".join(calls))

    def _rest(self, lark: Lark, tool: Tool) -> str:
        """The rest of an object after the name."""
        return f"{lark.loosely(self.shape[1])} {lark.schema(tool.parameters)} {lark.loosely(self.shape[2])}"


class _Call:
    """The call that is read: its keys may be in any order, and nested, as in ``{"function": {"name": "f"}}``."""

    def __init__(self, syntax: JsonCalls, names: set[str]) -> None:
        self._syntax = syntax
        self._names = names
        self._name: str | None = None
        self._id = ""
        self._arguments = ""
        self.begun = False

    def begin(self, scan: Scanner) -> bool:
        """Emits the call, with the arguments that came before its name; False if it is no call."""
        if self._name not in self._names:
            return False
        scan.call(self._name or "", self._id)
        self.begun = True
        if self._arguments:
            scan.arguments(self._arguments)
        return True

    def read_object(self, scan: Scanner, depth: int = 0) -> Waiting[bool]:
        """Reads an object; False if it is not complete, or no call."""
        if (yield from scan.next()) != "{":
            return False
        scan.take(1)
        yield from scan.spaces()
        if (yield from scan.next()) == "}":
            scan.take(1)
            return depth > 0
        while True:
            yield from scan.spaces()
            if (yield from scan.next()) != '"':
                return False
            key = yield from scan.json_text()
            if key is None or not (yield from scan.skip(":")):
                return False
            yield from scan.spaces()
            if not (yield from self._read_value(scan, _string(key), depth)):
                return False
            yield from scan.spaces()
            character = yield from scan.next()
            if character not in (",", "}"):
                return False
            scan.take(1)
            if character == "}":
                return depth > 0 or self._complete(scan)

    def _complete(self, scan: Scanner) -> bool:
        if self.begun and not self._arguments:
            scan.arguments("{}")
        elif not self.begun and self._name is not None and not self._arguments:
            self._arguments = "{}"
        return self._name is not None

    def _read_value(self, scan: Scanner, key: str, depth: int) -> Waiting[bool]:
        syntax = self._syntax
        if key == syntax.arguments or (not syntax.name and not depth and key in self._names):
            if not syntax.name:
                self._name = key
            if self._name is None and syntax.starts[0] == "{":
                return False
            return (yield from self._read_arguments(scan))
        opened = (yield from scan.next()) == "{"
        if opened and key == "function" and depth < 2:
            return (yield from self.read_object(scan, depth + 1))
        if syntax.starts[0] == "{" and self._name is None and (yield from scan.next()) != '"':
            return False  # objects within objects would be read again and again
        value = yield from scan.json_text()
        if value is None:
            return False
        if key == syntax.name:
            self._name = _string(value)
            return self._name in self._names
        if key == syntax.id:
            self._id = _string(value)
        # An object without marks is a call only if its first keys are those of calls.
        return syntax.starts[0] != "{" or self._name is not None or key in (syntax.id, "type", "id")

    def _read_arguments(self, scan: Scanner) -> Waiting[bool]:
        if (yield from scan.next()) == "{":
            if self._name is None or (self._syntax.id and not self._id and self._id_is_last()):
                text = yield from scan.json_text()
                self._arguments = text or ""
                return text is not None
            if not self.begin(scan):
                return False
            self._arguments = "{}"  # so that none are added
            return (yield from scan.json(scan.arguments))
        text = yield from scan.json_text()
        if text is None:
            return False
        found = _string(text) if text.startswith('"') else "{}" if text == "null" else text
        self._arguments = found or "{}"
        return True

    def _id_is_last(self) -> bool:
        return f'"{self._syntax.id}"' in self._syntax.shape[2]


def _string(text: str) -> str:
    """The value of a JSON string; the text itself if it is none."""
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        return text
