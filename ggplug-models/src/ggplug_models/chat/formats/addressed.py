"""The format of Muse Glimmer: messages with a recipient, which is the model itself, the user, or a function."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ggplug_models.chat.formats.format import Format, Reasoning
from ggplug_models.chat.formats.named_calls import Field, NamedCalls, TaggedArguments
from ggplug_models.chat.lark import Lark
from ggplug_models.chat.scanning import Marks, Scanner, Waiting
from ggplug_models.chat.tools import Tool, ToolChoice

START, MESSAGE, NEXT, END = "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"
_HEADER, _ENDS = Marks((MESSAGE,)), Marks((NEXT, END))
_RECIPIENT = re.compile(r"to=(\S+)")

CALLS = NamedCalls(
    ('<atem:invoke name="', Field("name"), '">'),
    TaggedArguments('<atem:parameter name="', '">', "</atem:parameter>"),
    "</atem:invoke>",
    ("<atem:function_calls>", "</atem:function_calls>"),
)


class AddressedFormat(Format):
    """Messages such as `` to=self<|message|>...<|eom|>``, the last of which ends with ``<|eot|>``."""

    reasoning = Reasoning(f" to=self{MESSAGE}", NEXT)
    reasons_again = True

    @property
    def calls(self) -> bool:
        return True

    @property
    def marks(self) -> tuple[str, ...]:
        return (START, MESSAGE, NEXT, END, *CALLS.marks)

    def opening(self, prompt: str) -> str:
        return ""

    def continued(self, opening: str, content: str, reasoning: str) -> str:
        thought = f" to=self{MESSAGE}{reasoning}" if reasoning else ""
        if not content:
            return thought
        return f"{f'{thought}{NEXT}{START}assistant' if thought else ''} to=user{MESSAGE}{content}"

    def read(self, scan: Scanner, tools: Sequence[Tool]) -> Waiting[None]:
        while (yield from scan.next()):
            yield from scan.skip(START)
            yield from scan.skip("assistant")
            if not (yield from scan.skip_to("to=", MESSAGE)):
                yield from scan.until(_ENDS, scan.content)  # a text without the marks of the format
            else:
                header, mark = yield from scan.text(_HEADER)
                scan.take(len(mark or ""))
                recipient = _RECIPIENT.search(header)
                to = "user" if recipient is None else recipient[1]
                if to not in ("self", "user") and tools and (yield from scan.skip_to(*CALLS.starts)):
                    yield from CALLS.read(scan, tools)
                    yield from scan.spaces()
                yield from scan.until(_ENDS, scan.reasoning if to == "self" else scan.content)
            mark = yield from scan.at(NEXT, END)
            scan.take(len(mark or ""))

    def grammar(self, lark: Lark, choice: ToolChoice, opening: str, content: str | None) -> str:
        message, again = lark.literal(MESSAGE), f'{lark.literal(START)} "assistant"'
        before = lark.rule(f'(" to=self" {message} {lark.until(NEXT)} {again})*')
        text, calls = content or lark.branches([], ends=True), ""
        options = [] if choice.required else [f'{before} " to=user"? {message} {text}']
        if not choice.required and content is None:
            options.append(f'{before} " to=self" {message} {text}')
        if choice.tools:
            (mark, rest), *_ = CALLS.options(lark, choice)
            name = lark.terminal("/ to=[A-Za-z0-9_.-]{1,64}/")
            call = lark.rule(f"{name} {message} {lark.literal(mark)} {rest}")
            more = f" ({lark.literal(NEXT)} {again} {call})*" if choice.several else ""
            calls = f"{before} {call}{more}"
            options.append(calls)
        answer = lark.rule(" | ".join(options))
        if not opening:
            return answer
        return self.rest(lark, choice, opening, content, NEXT, f"{again} {answer}", calls and f"{again} {calls}")
