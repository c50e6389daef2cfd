"""Tool calls that name the function between marks, and then give its arguments.

The arguments are JSON (Mistral, DeepSeek, Kimi, functionary) or are between marks of their own (Qwen3-Coder, GLM,
MiniMax, Seed, DeepSeek 3.2).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ggplug_models.chat.formats.format import CallSyntax
from ggplug_models.chat.formats.names import readable
from ggplug_models.chat.lark import SPACES, Lark, regex
from ggplug_models.chat.scanning import Marks, Scanner, Waiting
from ggplug_models.chat.tools import Tool, ToolChoice, alternatives, kinds_of, value_of, values_of


class Arguments(ABC):
    """How the arguments of a call are written.  ``marks``: their marks."""

    marks: tuple[str, ...] = ()

    @abstractmethod
    def read(self, scan: Scanner, tool: Tool) -> Waiting[bool]:
        """Reads the arguments and emits them as JSON; False if the text ends before their end."""

    @abstractmethod
    def grammar(self, lark: Lark, tool: Tool) -> str:
        """The grammar of the arguments of a tool."""


class JsonArguments(Arguments):
    """Arguments that are a JSON object."""

    def read(self, scan: Scanner, tool: Tool) -> Waiting[bool]:
        yield from scan.spaces()
        if (yield from scan.next()) == "{":
            return (yield from scan.json(scan.arguments))
        scan.arguments("{}")
        return not scan.exhausted

    def grammar(self, lark: Lark, tool: Tool) -> str:
        return lark.schema(tool.parameters)


@dataclass
class TaggedArguments(Arguments):
    """Arguments such as ``<parameter=key>value</parameter>``.

    ``before``: the mark before a key.  ``after``: the mark after it.  ``end``: the mark after a value.  ``attributes``:
    if there are attributes after the key, the mark that ends them.  ``of_strings``: the attributes of a string.
    ``quotes``: marks that may be around a string, which may then have the other marks in it.  ``escapes``: characters
    of a key, and how they are written.
    """

    before: str
    after: str
    end: str
    attributes: str = ""
    of_strings: str = ""
    quotes: tuple[str, str] = ("", "")
    escapes: tuple[tuple[str, str], ...] = ()
    marks: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        marks = (self.before, self.after, self.end, self.attributes, *self.quotes)
        self.marks = tuple(mark.strip() for mark in marks)
        ends = [self.end] if self.end.strip() == self.end else [self.end, self.end.strip()]
        self._ends = Marks(each for each in ends if each)
        after = self.after.strip()
        self._after = Marks([after])
        self._close = Marks([self.attributes.strip()]) if self.attributes else None
        self._quote = Marks([self.quotes[1]])

    def read(self, scan: Scanner, tool: Tool) -> Waiting[bool]:
        first = True
        while True:
            yield from scan.spaces()
            if (yield from scan.at(self.before.strip())) is None:
                scan.arguments("{}" if first else "}")
                return not scan.exhausted
            scan.take(len(self.before.strip()))
            name, mark = yield from scan.text(self._after)
            if mark is None:
                return False
            scan.take(len(mark))
            attributes = ""
            if self._close is not None:
                attributes, mark = yield from scan.text(self._close)
                if mark is None:
                    return False
                scan.take(len(mark))
            yield from self._skip_line(scan)
            name = self._unescaped(name.strip())
            kinds = kinds_of(tool.properties.get(name), tool.parameters)
            if "string" in kinds and attributes and attributes.strip() == self.of_strings.strip():
                kinds = frozenset({"string"})
            scan.arguments(("{" if first else ", ") + json.dumps(name, ensure_ascii=False) + ": ")
            first = False
            if not (yield from self._read_value(scan, kinds)):
                return False

    def _skip_line(self, scan: Scanner) -> Waiting[None]:
        """Reads the white space that the format writes before a value."""
        tail = (self.attributes or self.after).rstrip()
        spaces = (self.attributes or self.after)[len(tail) :]
        if spaces and (yield from scan.at(spaces)):
            scan.take(len(spaces))

    def _unescaped(self, key: str) -> str:
        for character, written in reversed(self.escapes):
            key = key.replace(written, character)
        return key

    def _read_value(self, scan: Scanner, kinds: frozenset[str]) -> Waiting[bool]:
        quoted = yield from self._opens_quotes(scan)
        if kinds == {"string"} or (quoted and "string" in kinds):
            scan.arguments('"')
            closed = yield from self._read_text(
                scan, lambda text: scan.arguments(json.dumps(text, ensure_ascii=False)[1:-1]), quoted=quoted
            )
            scan.arguments('"' if closed else "")
        else:
            parts: list[str] = []
            closed = yield from self._read_text(scan, parts.append, quoted=quoted)
            scan.arguments(value_of("".join(parts), kinds) if closed else "")
        return closed

    def _opens_quotes(self, scan: Scanner) -> Waiting[bool]:
        """Reads the mark before a quoted string, with white space before it; False: there is none."""
        if not self.quotes[0]:
            return False
        scan.hold()
        if (yield from scan.skip(self.quotes[0])):
            scan.release()
            return True
        scan.rewind()
        return False

    def _read_text(self, scan: Scanner, emit: Callable[[str], None], *, quoted: bool) -> Waiting[bool]:
        """Reads a value and the mark after it; False if the text ends before.

        A ``quoted`` one ends only where the mark after its text is followed by the one after a value.
        """
        while quoted:
            mark = yield from scan.until(self._quote, emit)
            if mark is None:
                return False
            scan.hold()
            scan.take(len(mark))
            if (yield from scan.skip(*self._ends.texts)):
                scan.release()
                return True
            scan.rewind()
            emit(scan.take(len(mark)))
        mark = yield from scan.until(self._ends, emit)
        scan.take(len(mark or ""))
        return mark is not None

    def grammar(self, lark: Lark, tool: Tool) -> str:
        gap = lark.terminal(regex(SPACES))
        found = []
        for name, schema in tool.properties.items():
            value = self._value(lark, schema, tool.parameters)
            attributes = ""
            if self.attributes:
                attributes = f"{lark.terminal(regex('[^<>]{0,40}'))}? {lark.literal(self.attributes)}"
            key = name
            for character, escape in self.escapes:
                key = key.replace(character, escape)
            key = json.dumps(readable("argument", key, self.after.strip()))
            key = f"{lark.literal(self.before.strip())} {key} {lark.literal(self.after)}"
            argument = f"{key} {attributes} {value}"
            found.append(f"{gap}? {argument}" if name in tool.required else f"({gap}? {argument})?")
        return " ".join(found) or '""'

    def _value(self, lark: Lark, schema: Any, root: Mapping[str, Any]) -> str:
        """A value, with the mark after it."""
        kinds = kinds_of(schema, root)
        if "string" not in kinds:
            return f"{lark.schema(schema, root)} {lark.literal(self.end)}"
        start, end = self.quotes
        ways = [text_or_json(lark, schema, root, self.end, start)]
        if start:
            for each in alternatives(schema, root):
                if "string" in kinds_of(each, root):
                    values = values_of(each)
                    texts = each if values is None else {"enum": [value for value in values if isinstance(value, str)]}
                    ways.append(f"{lark.literal(start)} {lark.string(texts, end + self.end)}")
        return f"({' | '.join(ways)})"


def text_or_json(lark: Lark, schema: Any, root: Mapping[str, Any], mark: str, other: str = "") -> str:
    """A text without quotes, or JSON of another type, that matches a schema, and the mark after it.

    ``other``: what a text may not begin with.
    """
    found = []
    for each in alternatives(schema, root):
        if "string" in kinds_of(each, root):
            text = lark.string(each, mark, other)
            if text == lark.until(mark, other):
                return text  # any text, also JSON
            found.append(text)
        if values_of(each) is None and isinstance(each, Mapping) and "type" in each:
            kinds = [each["type"]] if isinstance(each["type"], str) else each["type"]
            others = {**each, "type": [kind for kind in kinds if kind != "string"]}
            if others["type"]:
                found.append(f"{lark.schema(others, root)} {lark.literal(mark)}")
    return lark.rule(" | ".join(found))


@dataclass(frozen=True)
class Field:
    """A part of a call that differs: ``name``, ``id``, or ``number``, the call's position."""

    kind: str


Part = str | Field


@dataclass
class NamedCalls(CallSyntax):
    """Calls such as ``[TOOL_CALLS]f[CALL_ID]1[ARGS]{}``.

    ``before``: the parts of a call before its arguments: marks and fields.  ``arguments``: how these are written.
    ``after``: the mark after a call.  ``section``: marks around all calls, which may be missing.  ``id``: a form of the
    id, in which ``{name}`` and ``{number}`` stand for these.  ``begins_late``: whether the first mark of a call may be
    missing.
    """

    before: tuple[Part, ...]
    arguments: Arguments
    after: str = ""
    section: tuple[str, str] = ("", "")
    id: str = ""
    begins_late: bool = False
    ends_reasoning: bool = False
    starts: tuple[str, ...] = field(init=False)
    marks: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        # An empty line that the template writes before calls is not a part of the answer's text.
        spaced = [self.section[0]] if self.section[0].startswith("\n\n") and self.section[0].strip() else []
        self.section = self.section[0].strip(), self.section[1].strip()
        parts = [part.strip() for part in self.before if isinstance(part, str)]
        self._firsts = tuple(parts[: 2 if self.begins_late else 1])
        self.starts = tuple(mark for mark in (self.section[0], *self._firsts, *spaced) if mark)
        self.marks = tuple(each.strip() for each in (*self.section, *parts, self.after, *self.arguments.marks))

    # -- reading -----------------------------------------------------------------------------------

    def read(self, scan: Scanner, tools: Sequence[Tool]) -> Waiting[bool]:
        known = {tool.name: tool for tool in tools}
        if self.section[0]:
            yield from scan.skip(self.section[0])
        found = False
        while True:
            if found:
                scan.hold()
            if not (yield from self._read_call(scan, known)):
                if found:
                    scan.rewind()
                return found
            found = True
            if self.section[1] and (yield from scan.skip(self.section[1])):
                return True
            if not (yield from scan.skip_to(*self._firsts)):
                return True

    def _read_call(self, scan: Scanner, known: Mapping[str, Tool]) -> Waiting[bool]:
        yield from scan.spaces()
        start = yield from scan.at(*self._firsts)
        if start is None:
            return False
        scan.take(len(start))
        parts = self.before[1 + self._firsts.index(start) :]
        fields: dict[str, str] = {}
        for place, part in enumerate(parts):
            if isinstance(part, str):
                found = not part.strip() or (yield from scan.skip(part.strip()))
                if not found and parts[place + 1 : place + 2] != (Field("id"),):
                    return False  # only an id may be missing
                continue
            if fields and (ends := _texts(parts[place + 1 :])) and (yield from scan.at(ends[0])):
                continue  # the field is missing, with the mark before it
            text, mark = yield from scan.text(Marks(self._ends(parts[place + 1 :])))
            if mark is None and not (part.kind == "name" and text.strip() in known):
                return False
            fields[part.kind] = text.strip()
        tool = known.get(fields.get("name", ""))
        if tool is None:
            return False
        id = self.id.format(name=tool.name, number=fields.get("number", "0")) if self.id else fields.get("id", "")
        scan.call(tool.name, id)
        if (yield from self.arguments.read(scan, tool)) and self.after:
            yield from scan.skip(self.after.strip())
        return True

    def _ends(self, parts: Sequence[Part]) -> list[str]:
        """What a field ends with; ``parts``: those of a call that follow it."""
        arguments = (*self.arguments.marks[:1], self.after.strip(), "{", "\n")
        return _shortest(_texts(parts)[:2] or [mark for mark in arguments if mark])

    # -- grammar -----------------------------------------------------------------------------------

    def options(self, lark: Lark, choice: ToolChoice) -> list[tuple[str, str]]:
        gap = lark.terminal(regex(SPACES))
        first = lark.literal(self._firsts[0])
        again = f"({gap}? {first} {self._calls(lark, choice, 0)})*" if choice.several else ""
        found = [(mark, f"{self._calls(lark, choice, place)} {again}") for place, mark in enumerate(self._firsts)]
        if self.section[0]:
            end = lark.literal(self.section[1])
            found.insert(0, (self.section[0], lark.rule(f"{gap}? {first} {found[0][1]} {gap}? {end}")))
        return found

    def _calls(self, lark: Lark, choice: ToolChoice, place: int) -> str:
        """A call of one of the tools, after the mark at ``place``."""
        return lark.rule(" | ".join(self._call(lark, tool, place) for tool in choice.tools))

    def _call(self, lark: Lark, tool: Tool, place: int) -> str:
        begun = str(self.before[place])
        found = [lark.literal(begun[len(begun.rstrip()) :])]
        for after, part in enumerate(self.before[place + 1 :], place + 2):
            if isinstance(part, str):
                found.append(lark.literal(part))
            elif part.kind == "name":
                found.append(json.dumps(readable("tool", tool.name, *self._ends(self.before[after:]))))
            else:
                found.append(lark.terminal("/[0-9]{1,3}/" if part.kind == "number" else f"/{lark.id}/"))
        gap = lark.terminal(regex(SPACES))
        end = f"{gap}? {lark.literal(self.after.strip())}" if self.after.strip() else ""
        return " ".join([*found, self.arguments.grammar(lark, tool), end])


def _texts(parts: Sequence[Part]) -> list[str]:
    """The marks among the parts of a call."""
    return [part.strip() for part in parts if isinstance(part, str) and part.strip()]


def _shortest(marks: Sequence[str]) -> list[str]:
    """The marks without those that begin with another one."""
    return [mark for mark in marks if not any(mark != other and mark.startswith(other) for other in marks)]
