"""The reasoning in messages of a chat, in the form that a template reads.

The APIs have it as ``reasoning_content``, which most templates read.  Others read ``thinking``, or parts of a content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ggplug_models.chat.template import Message

_KEY = re.compile(r"message\.thinking\b|message\[['\"]thinking['\"]\]")
_PART = re.compile(r"\[['\"]type['\"]\] == ['\"]thinking['\"]")
_EITHER = "Cannot pass both content and thinking"


def with_thoughts(source: str, messages: Sequence[Message]) -> Sequence[Message]:
    """The messages for the template with the text ``source``."""
    if "reasoning_content" in source or not (_KEY.search(source) or _PART.search(source)):
        return messages
    return [_with_thought(source, message) for message in messages]


def _with_thought(source: str, message: Message) -> Message:
    thought = message.get("reasoning_content") if isinstance(message, Mapping) else None
    if not isinstance(thought, str) or not thought or "thinking" in message:
        return message
    if not _KEY.search(source):
        content = message.get("content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) and content else content or []
        return {**message, "content": [{"type": "thinking", "thinking": thought}, *parts]}
    found = {**message, "thinking": thought}
    if message.get("tool_calls") and _EITHER in source:
        found["content"] = ""
    return found
