"""Arguments as nested elements, ``<key>value</key>``, as MiniMax-M3 writes them, each mark after a token of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ggplug_models.chat.formats.named_calls import Arguments, text_or_json
from ggplug_models.chat.formats.names import readable
from ggplug_models.chat.lark import SPACES, Lark, regex
from ggplug_models.chat.scanning import Marks, Scanner, Waiting
from ggplug_models.chat.tools import Tool, kinds_of, options_of, resolved, value_of

ITEM = "item"
"""The key of the items of a list."""

EMPTY = {"array": "[]", "object": "{}", "null": "null"}
"""What an element without a text is, by the first of these types that its schema allows."""

DEEPEST = 64
"""Maximum depth of elements within an argument; those that are deeper are text."""

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
            schema = tool.properties.get(key)
            text = yield from self._inner(scan, key, nests=_nests(kinds_of(schema, tool.parameters)))
            if text is None:
                return False
            value = self._json(text, schema, tool.parameters)
            scan.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: {value}")
            separator = ", "

    def _inner(self, scan: Scanner, key: str, *, nests: bool) -> Waiting[str | None]:
        """The text up to the mark at the end of an element, which is read; None if the text ends before.

        ``nests``: whether elements with the same key may be within it.
        """
        opening, end = self._marks(key)
        marks = Marks((opening, end) if nests else (end,))
        parts: list[str] = []
        depth = 1
        while depth:
            mark = yield from scan.until(marks, parts.append)
            if mark is None:
                return None
            depth += 1 if mark == opening else -1
            parts.append(scan.take(len(mark)))
        return "".join(parts[:-1])

    def _marks(self, key: str) -> tuple[str, str]:
        """The marks at the beginning and the end of an element."""
        return f"{self._token}<{key}>", f"{self._token}</{key}>"

    def _json(self, text: str, schema: Any, root: Mapping[str, Any], depth: int = 0) -> str:
        """The JSON of a value."""
        kinds = kinds_of(schema, root)
        parts = self._children(text.strip()) if _nests(kinds) and depth < DEEPEST else []
        if parts and "array" in kinds and all(key == ITEM for key, _ in parts):
            items = _option(schema, "array", root).get("items")
            return "[" + ", ".join(self._json(each, items, root, depth + 1) for _, each in parts) + "]"
        if parts:
            option = _option(schema, "object", root)
            properties, other = option.get("properties"), option.get("additionalProperties")
            known = properties if isinstance(properties, Mapping) else {}
            members = (
                f"{json.dumps(key, ensure_ascii=False)}: {self._json(each, known.get(key, other), root, depth + 1)}"
                for key, each in parts
            )
            return "{" + ", ".join(members) + "}"
        if "string" in kinds and kinds != kinds_of(None, root):
            kinds -= {"null"}  # which models leave out
        empty = "" if text.strip() or "string" in kinds else next((EMPTY[kind] for kind in EMPTY if kind in kinds), "")
        return empty or value_of(text, kinds)

    def _children(self, text: str) -> list[tuple[str, str]]:
        """The elements in a text, with their keys; none if it has other text."""
        found = []
        token = f"{self._token}<"
        while text.startswith(token):
            key = text[len(token) :].partition(">")[0]
            opening, end = self._marks(key)
            depth = 0
            for mark in re.finditer(f"{re.escape(opening)}|{re.escape(end)}", text):
                depth += 1 if mark[0] == opening else -1
                if not depth:
                    found.append((key, text[len(opening) : mark.start()]))
                    text = text[mark.end() :].lstrip()
                    break
            else:
                return []
        return [] if text else found

    # -- grammar -----------------------------------------------------------------------------------

    def grammar(self, lark: Lark, tool: Tool) -> str:
        return self._members(lark, tool.parameters, tool.parameters, 0) or '""'

    def _members(self, lark: Lark, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
        gap = lark.terminal(regex(SPACES))
        required = schema.get("required", ())
        found = []
        for key, each in schema.get("properties", {}).items():
            opening = lark.literal(f"{self._token}<{readable('argument', key, *_KEY_END.texts)}>")
            element = f"{gap}? {opening} {self._value(lark, key, each, root, depth + 1)}"
            found.append(element if key in required else f"({element})?")
        return " ".join(found)

    def _value(self, lark: Lark, key: str, schema: Any, root: Mapping[str, Any], depth: int) -> str:
        """A value, with the mark after it."""
        kinds, end = kinds_of(schema, root), f"{self._token}</{key}>"
        gap = lark.terminal(regex(SPACES))
        if "string" in kinds:
            return text_or_json(lark, schema, root, end)
        if kinds == {"object"} and isinstance(schema, Mapping) and schema.get("properties") and depth < 8:
            return f"{self._members(lark, schema, root, depth)} {gap}? {lark.literal(end)}"
        if kinds == {"array"} and isinstance(schema, Mapping) and schema.get("items") and depth < 8:
            opening = lark.literal(f"{self._token}<{ITEM}>")
            item = f"{gap}? {opening} {self._value(lark, ITEM, schema['items'], root, depth + 1)}"
            return f"{lark.repeated(item, '', schema)} {gap}? {lark.literal(end)}"
        return f"{lark.schema(schema, root)} {lark.literal(end)}"


def _nests(kinds: frozenset[str]) -> bool:
    """Whether there may be elements in a value of these types."""
    return "string" not in kinds or bool(kinds & {"array", "object"})


def _option(schema: Any, kind: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of the values of a type: of the alternatives in ``schema``, the first one that allows it."""
    schema = resolved(schema, root)
    for _ in range(DEEPEST):
        options = options_of(schema)
        if options is None:
            break
        schema = resolved(next((each for each in options if kind in kinds_of(each, root)), None), root)
    return schema if isinstance(schema, Mapping) else {}
