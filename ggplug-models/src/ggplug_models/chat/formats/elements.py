"""Arguments as nested elements, ``<key>value</key>``, as MiniMax-M3 writes them, each mark after a token of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ggplug_models.chat.formats.named_calls import Arguments
from ggplug_models.chat.lark import SPACES, Lark, regex
from ggplug_models.chat.scanning import Marks, Scanner, Waiting
from ggplug_models.chat.tools import Tool, kinds_of, resolved, value_of

ITEM = "item"
"""The key of the items of a list."""

_KEY_END = Marks((">",))


class ElementArguments(Arguments):
    """Arguments as elements.  ``token``: the text before each ``<``."""

    def __init__(self, token: str) -> None:
        self._token = token
        self.marks = (token,)

    # -- reading -----------------------------------------------------------------------------------

    def read(self, scan: Scanner, tool: Tool) -> Waiting[bool]:
        separator = "{"
        while True:
            yield from scan.spaces()
            if (yield from scan.at(f"{self._token}</", f"{self._token}<")) != f"{self._token}<":
                scan.arguments("{}" if separator == "{" else "}")
                return not scan.exhausted
            scan.take(len(self._token) + 1)
            key, mark = yield from scan.text(_KEY_END)
            if mark is None:
                return False
            scan.take(1)
            end = f"{self._token}</{key}>"
            text, mark = yield from scan.text(Marks((end,)))
            if mark is None:
                return False
            scan.take(len(end))
            value = self._json(text, tool.properties.get(key), tool.parameters)
            scan.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: {value}")
            separator = ", "

    def _json(self, text: str, schema: Any, root: Mapping[str, Any]) -> str:
        """The JSON of a value."""
        schema = resolved(schema, root)
        kinds = kinds_of(schema, root)
        if "string" in kinds and kinds != kinds_of(None, root):
            return json.dumps(text, ensure_ascii=False)
        parts = self._children(text.strip())
        if not parts:
            return "[]" if kinds == {"array"} and not text.strip() else value_of(text, kinds)
        inner = schema if isinstance(schema, Mapping) else {}
        if all(key == ITEM for key, _ in parts) and "array" in kinds:
            return "[" + ", ".join(self._json(each, inner.get("items"), root) for _, each in parts) + "]"
        properties = inner.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        members = (
            f"{json.dumps(key, ensure_ascii=False)}: {self._json(each, known.get(key), root)}" for key, each in parts
        )
        return "{" + ", ".join(members) + "}"

    def _children(self, text: str) -> list[tuple[str, str]]:
        """The elements in a text, with their keys; none if it has other text."""
        found = []
        opening = f"{self._token}<"
        while text.startswith(opening):
            key, _, rest = text[len(opening) :].partition(">")
            end = f"{self._token}</{key}>"
            inner, closed, text = rest.partition(end)
            if not closed:
                return []
            while inner.count(f"{opening}{key}>") > inner.count(end):  # elements of the same key within this one
                more, closed, text = text.partition(end)
                if not closed:
                    return []
                inner += end + more
            found.append((key, inner))
            text = text.lstrip()
        return [] if text else found

    # -- grammar -----------------------------------------------------------------------------------

    def grammar(self, lark: Lark, tool: Tool) -> str:
        return self._members(lark, tool.parameters, tool.parameters, 0) or '""'

    def _members(self, lark: Lark, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
        gap = lark.terminal(regex(SPACES))
        required = schema.get("required", ())
        found = []
        for key, each in schema.get("properties", {}).items():
            element = f"{gap}? {lark.literal(f'{self._token}<{key}>')} {self._value(lark, key, each, root, depth + 1)}"
            found.append(element if key in required else f"({element})?")
        return " ".join(found)

    def _value(self, lark: Lark, key: str, schema: Any, root: Mapping[str, Any], depth: int) -> str:
        """A value, with the mark after it."""
        kinds, end = kinds_of(schema, root), f"{self._token}</{key}>"
        gap = lark.terminal(regex(SPACES))
        if "string" in kinds:
            return lark.string(resolved(schema, root), end)
        if kinds == {"object"} and isinstance(schema, Mapping) and schema.get("properties") and depth < 8:
            return f"{self._members(lark, schema, root, depth)} {gap}? {lark.literal(end)}"
        if kinds == {"array"} and isinstance(schema, Mapping) and schema.get("items") and depth < 8:
            opening = lark.literal(f"{self._token}<{ITEM}>")
            item = f"{gap}? {opening} {self._value(lark, ITEM, schema['items'], root, depth + 1)}"
            return f"{lark.repeated(item, '', schema)} {gap}? {lark.literal(end)}"
        return f"{lark.schema(schema, root)} {lark.literal(end)}"
