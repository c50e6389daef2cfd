"""Arguments of tool calls in the messages of a chat, in a form that suits all templates.

The OpenAI API has them as a text with a JSON object.  Most templates need an object, whose items they loop over or
which they print as JSON; others append the arguments to a text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ggplug.errors import ParameterError
from ggplug_models.metadata.values import short_repr


class Arguments(dict[str, Any]):
    """A dict made from a JSON text; when printed, or added to a text, it is that JSON text.

    An empty text means no arguments.  Raises ValueError for a text that is not a JSON object.
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
    """A copy of a message in which JSON texts as arguments of tool calls are :class:`Arguments`."""
    calls = message.get("tool_calls")
    if not isinstance(calls, (list, tuple)):
        return dict(message)
    return {**message, "tool_calls": [_call(call) for call in calls]}


def check_calls(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raises ParameterError for tool calls in the messages of a chat that are not valid, with their place."""
    for n, message in enumerate(messages):
        _check_calls(message.get("tool_calls"), f"messages[{n}]")


def _check_calls(calls: Any, where: str) -> None:
    if not isinstance(calls, list | tuple | None):
        raise ParameterError(f"{where}.tool_calls must be a list, got {short_repr(calls)}", got=calls)
    for n, call in enumerate(calls or ()):
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ParameterError(
                f"{where}.tool_calls[{n}]: a call of a tool must have a function with a name, got {short_repr(call)}",
                got=call,
            )
        try:
            json.dumps(function.get("arguments"))
        except (TypeError, ValueError, RecursionError) as error:
            raise ParameterError(
                f"the arguments of {where}.tool_calls[{n}] cannot be written as JSON: {type(error).__name__}: {error}",
                got=call,
            ) from error


def _call(call: Any) -> Any:
    """Converts a tool call: the OpenAI API's with a ``function``, or only name and arguments."""
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
