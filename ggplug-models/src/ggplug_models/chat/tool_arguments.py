"""Arguments of tool calls in a chat's history, as templates take them.

The OpenAI API has them as the text of a JSON object.  Most templates want the object: they go through its items, or
write it down as JSON by themselves.  Others write what they get behind a text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class Arguments(dict[str, Any]):
    """The object that a text of JSON holds; written out, or joined to a text, it is that text.

    Raises ValueError for a text that holds no object.  An empty one stands for no arguments.
    """

    def __init__(self, text: str) -> None:
        self._text = text or "{}"
        found = json.loads(self._text)
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
        super().__init__(found)

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: Any) -> str:
        return self._text + str(other)

    def __radd__(self, other: Any) -> str:
        return str(other) + self._text


def with_objects(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose tool calls have :class:`Arguments` where they had texts; other texts than JSON's stay texts."""
    calls = message.get("tool_calls")
    if not isinstance(calls, (list, tuple)):
        return dict(message)
    return {**message, "tool_calls": [_call(call) for call in calls]}


def _call(call: Any) -> Any:
    """Of the OpenAI API, with a ``function``, or that function's name and arguments alone."""
    if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping):
        return {**call, "function": _function(call["function"])}
    return _function(call)


def _function(called: Any) -> Any:
    text = called.get("arguments") if isinstance(called, Mapping) else None
    if not isinstance(text, str):
        return called
    try:
        return {**called, "arguments": Arguments(text)}
    except (ValueError, RecursionError):
        return called
