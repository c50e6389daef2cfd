"""Tool calls that look like Python, ``[f(a="x", b=3)]``, as LFM2 writes them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence

from ggplug_models.chat.formats.format import CallSyntax
from ggplug_models.chat.formats.names import readable
from ggplug_models.chat.lark import SPACES, Lark, regex
from ggplug_models.chat.scanning import Marks, Scanner, Waiting
from ggplug_models.chat.tools import Tool, ToolChoice, refused

_NAME_END, _KEY_END = Marks(("(",)), Marks(("=", ")"))


class PythonicCalls(CallSyntax):
    """Calls between two marks; ``start`` and ``end``."""

    def __init__(self, start: str = "<|tool_call_start|>", end: str = "<|tool_call_end|>") -> None:
        self.starts = (start,)
        self.end = end
        self.marks = (end,)

    # -- reading -----------------------------------------------------------------------------------

    def read(self, scan: Scanner, tools: Sequence[Tool]) -> Waiting[bool]:
        known = {tool.name for tool in tools}
        yield from scan.skip(self.starts[0])
        yield from scan.skip("[")
        found = False
        while True:
            yield from scan.spaces()
            name, mark = yield from scan.text(_NAME_END)
            if mark is None or name.strip() not in known:
                return found
            scan.take(1)
            scan.call(name.strip())
            found = True
            if not (yield from self._read_arguments(scan)):
                return True
            if not (yield from scan.skip(",")):
                break
        yield from scan.skip("]")
        yield from scan.skip(self.end)
        return True

    def _read_arguments(self, scan: Scanner) -> Waiting[bool]:
        separator = "{"
        while True:
            yield from scan.spaces()
            key, mark = yield from scan.text(_KEY_END)
            if mark is None:
                return False
            scan.take(1)
            if mark == ")":
                scan.arguments("{}" if separator == "{" else "}")
                return True
            yield from scan.spaces()
            value = yield from scan.python()
            scan.arguments(separator + json.dumps(key.strip(), ensure_ascii=False) + ": " + json_of(value))
            separator = ", "
            yield from scan.skip(",")
            if scan.exhausted:
                return False

    # -- grammar -----------------------------------------------------------------------------------

    def options(self, lark: Lark, choice: ToolChoice) -> list[tuple[str, str]]:
        call = lark.rule(" | ".join(self._call(lark, tool) for tool in choice.tools))
        comma = lark.terminal(regex(SPACES + "," + SPACES))
        calls = f"{call} ({comma} {call})*" if choice.several else call
        return [(self.starts[0], lark.rule(f'"[" {calls} "]" {lark.literal(self.end)}'))]

    def _call(self, lark: Lark, tool: Tool) -> str:
        items = []
        for name, schema in tool.properties.items():
            value = lark.schema(schema, tool.parameters)
            key = json.dumps(readable("argument", name, *_KEY_END.texts[::-1]) + "=")
            items.append((f"{key} {value}", name in tool.required))
        arguments = lark.listed(items, lark.terminal(regex("," + SPACES)))
        return f'{json.dumps(readable("tool", tool.name, *_NAME_END.texts) + "(")} {arguments} ")"'


_LITERALS = re.compile(r"\b(true|false|null)\b")
_NAMES = {"true": "True", "false": "False", "null": "None"}


def json_of(text: str) -> str:
    """The JSON of a literal of Python, in which ``true``, ``false`` and ``null`` are allowed; else that of the text."""
    try:
        json.loads(text, parse_constant=refused)
        return text.strip()
    except (ValueError, RecursionError):
        pass
    try:
        return json.dumps(ast.literal_eval(_translated(text)), ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return json.dumps(text, ensure_ascii=False)


def _translated(text: str) -> str:
    """A literal with the words of JSON outside of its strings replaced by those of Python."""
    parts = re.split(r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")", text.strip(), flags=re.DOTALL)
    for place, part in enumerate(parts):
        quoted = place % 2
        parts[place] = part.replace("\n", r"\n") if quoted else _LITERALS.sub(lambda found: _NAMES[found[0]], part)
    return "".join(parts)
