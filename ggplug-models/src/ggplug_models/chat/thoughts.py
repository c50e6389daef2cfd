"""The reasoning in messages of a chat, in the form that a template reads.

The APIs have it as ``reasoning_content``, which most templates read.  Others read another key, or parts of a content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_KEYS = ("thinking", "reasoning", "thought", "tool_plan")
_READ = r"(?:message|msg|\bm)(?:\.|\[['\"]|\.get\(['\"]){}\b"
_USUAL = re.compile(r"[.'\"]reasoning_content\b")
_PART = re.compile(r"\[['\"]type['\"]\] == ['\"]thinking['\"]")
_EITHER = "Cannot pass both content and thinking"


def with_thoughts(source: str, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The messages for the template with the text ``source``."""
    if not any("reasoning_content" in message for message in messages) or _USUAL.search(source):
        return messages
    key = next((key for key in _KEYS if re.search(_READ.format(key), source)), None)
    if key is None and not _PART.search(source):
        return messages
    return [_with_thought(message, key, either=_EITHER in source) for message in messages]


def _with_thought(message: Mapping[str, Any], key: str | None, *, either: bool) -> Mapping[str, Any]:
    """The message with its reasoning as ``key``; None: as a part of the content.

    ``either``: whether the template refuses a content with it in a message with calls.
    """
    thought = message.get("reasoning_content")
    if not isinstance(thought, str) or not thought or (key or "thinking") in message:
        return message
    if key is None:
        content = message.get("content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) and content else content or []
        return {**message, "content": [{"type": "thinking", "thinking": thought}, *parts]}
    found = {**message, key: thought}
    if message.get("tool_calls") and either:
        found["content"] = ""
    return found
