"""Tool calls of Gemma 4, ``<|tool_call>call:f{a:<|"|>x<|"|>,b:3}<tool_call|>``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ggplug_models.chat.formats.format import CallSyntax
from ggplug_models.chat.formats.names import readable
from ggplug_models.chat.lark import Lark
from ggplug_models.chat.scanning import Marks, Scanner, Waiting
from ggplug_models.chat.tools import Tool, ToolChoice, alternatives, kinds_of, options_of, resolved, values_of

START, END, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_NAME_END, _CALL_END = Marks(("{",)), Marks((END,))
_KEY_ENDS = (":", *'",{}[]', END, QUOTE)
_COMMA = '","'
_PLAIN = ("integer", "number", "boolean", "null")
_LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_CLOSED = {"additionalProperties": False}
_ANY: Mapping[str, Any] = {}
"""The schema of any value."""
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
            f"{json.dumps('call:' + readable('tool', tool.name, *_NAME_END.texts))} "
            f"{self._object(lark, {**_CLOSED, **tool.parameters}, tool.parameters)}"
            for tool in choice.tools
        )
        call = f"({' | '.join(calls)}) {lark.literal(END)}"
        more = f" ({lark.literal(START)} {call})*" if choice.several else ""
        return [(START, lark.rule(call + more))]

    def _value(self, lark: Lark, schema: Any, root: Mapping[str, Any]) -> str:
        """A value that matches a schema."""
        schema = resolved(schema, root)
        if not isinstance(schema, Mapping):
            schema = _ANY
        return lark.rule_of(schema, lambda: " | ".join(self._ways(lark, schema, root)))

    def _ways(self, lark: Lark, schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[str]:
        values = values_of(schema)
        if options_of(schema):
            return [self._value(lark, each, root) for each in alternatives(schema, root) or [_ANY]]
        if values is not None:
            return [self._literal(lark, each) for each in values]
        kinds = kinds_of(schema, root)
        found = []
        if "string" in kinds:
            found.append(f"{lark.literal(QUOTE)} {lark.string(schema, QUOTE)}")
        if "object" in kinds:
            found.append(self._object(lark, schema, root))
        if "array" in kinds:
            found.append(f'"[" {self._items(lark, schema, root)} "]"')
        given = schema.get("type", [])
        named = [given] if isinstance(given, str) else given
        plain = [kind for kind in named or sorted(kinds) if kind in _PLAIN]
        if plain:
            limits = {key: schema[key] for key in _LIMITS if key in schema}
            found.append(lark.schema({"type": plain, **limits}))
        return found

    def _object(self, lark: Lark, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
        properties, other = schema.get("properties"), schema.get("additionalProperties")
        required = schema.get("required", ())
        if properties or other is False:
            items = [
                (f"{self._key(name)} {self._value(lark, each, root)}", name in required)
                for name, each in sorted((properties or {}).items())  # as the template writes them
            ]
            return f'"{{" {lark.listed(items, _COMMA)} "}}"'
        key = lark.terminal(r"/[A-Za-z_][A-Za-z0-9_ -]{0,60}:/")
        value = self._value(lark, other, root)
        return f'"{{" ({key} {value} ("," {key} {value})*)? "}}"'

    def _key(self, name: str) -> str:
        return json.dumps(readable("argument", name, *_KEY_ENDS) + ":")

    def _items(self, lark: Lark, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
        first = schema.get("prefixItems")
        if not first:
            return lark.repeated(self._value(lark, schema.get("items"), root), _COMMA, schema)
        found, least = "", schema.get("minItems", 0)
        for place, each in reversed([*enumerate(first)]):
            item = f"{_COMMA if place else ''} {self._value(lark, each, root)} {found}"
            found = item if place < least else f"({item})?"
        return found

    def _literal(self, lark: Lark, value: Any) -> str:
        """A value that a schema lists."""
        if isinstance(value, str):
            return f"{lark.literal(QUOTE)} {json.dumps(value)} {lark.literal(QUOTE)}"
        if isinstance(value, list):
            return f'"[" {f" {_COMMA} ".join(self._literal(lark, each) for each in value)} "]"'
        if isinstance(value, dict):
            members = (f"{json.dumps(key + ':')} {self._literal(lark, each)}" for key, each in sorted(value.items()))
            return f'"{{" {f" {_COMMA} ".join(members)} "}}"'
        return json.dumps(json.dumps(value))


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
