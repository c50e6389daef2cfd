"""A server whose model says known texts."""

from __future__ import annotations

from served import Live

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Lyon"}}\n</tool_call>'
"""A call of a tool, as the model of these tests writes it."""


class Scripted(Live):
    """A server with the texts that it says next; ``asked``: the prompts that it got, as texts."""

    texts: list[str]
    asked: list[str]
