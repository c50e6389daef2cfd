"""Tools for chat templates that do not support them: they are described in the chat, and calls are written as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ggplug.errors import ParameterError
from ggplug_models.chat.tools import Tool
from ggplug_models.metadata.values import short_repr

_INSTRUCTIONS = """You may call functions. These are available, as JSON with a schema of their arguments:
{tools}
To call a function, write a JSON object with its name and arguments between the tags <tool_call> and </tool_call>:
<tool_call>
{{"name": "function", "arguments": {{"argument": "value"}}}}
</tool_call>
The results are in the next message. Answer without a call if no function is needed."""


def described(messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The messages with a description of the tools in the system message, and calls and results as text.

    Raises ParameterError for a call without a function.
    """
    listed = "\n".join(json.dumps(tool.message["function"], ensure_ascii=False) for tool in tools)
    instructions = _INSTRUCTIONS.format(tools=listed)
    found = [_as_text(message) for message in messages]
    if found and found[0].get("role") == "system":
        found[0] = {**found[0], "content": _joined(found[0].get("content"), instructions)}
    else:
        found.insert(0, {"role": "system", "content": instructions})
    return found


def without_system(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the system message at the beginning of the first one of the user."""
    found = [dict(message) for message in messages]
    if len(found) > 1 and found[0].get("role") == "system" and found[1].get("role") == "user":
        found[1]["content"] = _joined(found[0].get("content"), found[1].get("content"))
        del found[0]
    return found


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<tool_response>\n{_text(message.get('content'))}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not isinstance(calls, (list, tuple)) or not calls:
        return dict(message)
    written = "\n".join(f"<tool_call>\n{_call(call)}\n</tool_call>" for call in calls)
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": _joined(message.get("content"), written)}


def _call(call: Any) -> str:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise ParameterError(f"a call of a tool must have a function with a name, got {short_repr(call)}", got=call)
    arguments = function.get("arguments", "{}")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'{{"name": {json.dumps(function.get("name", ""))}, "arguments": {text or "{}"}}}'


def _joined(first: Any, second: Any) -> str:
    return "\n\n".join(text for text in (_text(first), _text(second)) if text)


def _text(content: Any) -> str:
    """The text of a message's content."""
    if isinstance(content, (list, tuple)):
        return "".join(part.get("text") or "" for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""
