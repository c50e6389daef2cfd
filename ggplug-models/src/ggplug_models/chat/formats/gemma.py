"""Tool calls of Gemma 4, ``<|tool_call>call:f{a:<|"|>x<|"|>,b:3}<tool_call|>``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ggplug_models.chat.formats.format import CallSyntax
from ggplug_models.chat.lark import Lark
from ggplug_models.chat.scanning import Marks, Scanner, Waiting
from ggplug_models.chat.tools import Tool, ToolChoice, kinds_of, resolved

START, END, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_NAME_END, _CALL_END = Marks(("{",)), Marks((END,))
_COMMA = '","'
_UNQUOTED = re.compile(r"([{,]\s*)([^\s{}\[\]:,\"\x00][^:{}\[\],\x00]*?)(\s*:)")


class GemmaCalls(CallSyntax):
    """Calls whose strings are between special quotes, and whose keys have none."""

    starts = (START,)
    marks = (END, QUOTE)
    ends_reasoning = True

    def read(self, scan: Scanner, tools: Sequence[Tool]) -> Waiting[bool]:
        known = {tool.name for tool in tools}
        yield from scan.skip(START)
        if not (yield from scan.skip("call:")):
            return False
        name, mark = yield from scan.text(_NAME_END)
        if mark is None or name.strip() not in known:
            return False
        scan.call(name.strip())
        arguments, mark = yield from scan.text(_CALL_END)
        scan.arguments(json_of(arguments) if mark is not None else "{")
        scan.take(len(mark or ""))
        return True

    def options(self, lark: Lark, choice: ToolChoice) -> list[tuple[str, str]]:
        calls = (
            f"{json.dumps('call:' + tool.name)} {self._object(lark, tool.properties, tool.required, tool.parameters)}"
            for tool in choice.tools
        )
        call = f"({' | '.join(calls)}) {lark.literal(END)}"
        more = f" ({lark.literal(START)} {call})*" if choice.several else ""
        return [(START, lark.rule(call + more))]

    def _object(self, lark: Lark, properties: Mapping[str, Any], required: Any, root: Mapping[str, Any]) -> str:
        properties = dict(sorted(properties.items()))  # as the template writes them
        items = [
            (f"{json.dumps(name + ':')} {self._value(lark, schema, root)}", name in required)
            for name, schema in properties.items()
        ]
        return f'"{{" {lark.listed(items, _COMMA)} "}}"'

    def _value(self, lark: Lark, schema: Any, root: Mapping[str, Any], depth: int = 0) -> str:
        kinds = kinds_of(schema, root)
        found = []
        if "string" in kinds:
            found.append(f"{lark.literal(QUOTE)} {lark.string(resolved(schema, root), QUOTE)}")
        if "object" in kinds and isinstance(schema, Mapping) and schema.get("properties") and depth < 8:
            required = schema.get("required", ())
            found.append(self._object(lark, schema["properties"], required, root))
        elif "object" in kinds and depth < 8:
            key = lark.terminal(r"/[A-Za-z_][A-Za-z0-9_ -]{0,60}:/")
            value = self._any(lark)
            found.append(f'"{{" ({key} {value} ("," {key} {value})*)? "}}"')
        if "array" in kinds and depth < 8:
            items = schema.get("items", {}) if isinstance(schema, Mapping) else {}
            item = self._value(lark, items, root, depth + 1) if items else self._any(lark)
            found.append(f'"[" {lark.repeated(item, _COMMA, schema)} "]"')
        if kinds & {"number", "boolean", "null"}:
            plain = schema if isinstance(schema, Mapping) and kinds <= {"number", "boolean", "null"} else {}
            found.append(lark.schema(plain or {"type": sorted(kinds & {"number", "boolean", "null"})}, root))
        return lark.rule(" | ".join(found))

    def _any(self, lark: Lark) -> str:
        return lark.rule(
            f"{lark.literal(QUOTE)} {lark.until(QUOTE)} | {lark.schema({'type': ['number', 'boolean', 'null']})}"
        )


def json_of(text: str) -> str:
    """The JSON of arguments in this notation; an empty object if they are not valid."""
    parts = text.replace("\x00", "").split(QUOTE)
    strings = [json.dumps(part, ensure_ascii=False) for part in parts[1::2]]
    # Strings are replaced by their numbers while keys are quoted, because they may have braces and colons.
    outside = "".join(part + (f"\x00{n}\x00" if n < len(strings) else "") for n, part in enumerate(parts[::2]))
    quoted = _UNQUOTED.sub(
        lambda found: f"{found[1]}{json.dumps(found[2].strip(), ensure_ascii=False)}{found[3]}", outside
    )
    found = re.sub("\x00(\\d+)\x00", lambda number: strings[int(number[1])], quoted)
    try:
        json.loads(found)
    except (ValueError, RecursionError):
        return "{}"
    return found
