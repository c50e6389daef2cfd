"""The format of gpt-oss, "harmony": messages on channels, of which one is the reasoning and one the answer."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ggplug_models.chat.formats.format import Format, Reasoning
from ggplug_models.chat.formats.names import readable
from ggplug_models.chat.lark import Lark
from ggplug_models.chat.scanning import Marks, Scanner, Waiting
from ggplug_models.chat.tools import Tool, ToolChoice

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
_ENDS = Marks((END, "<|call|>", "<|return|>"))
_HEADER = Marks((MESSAGE,))
_FUNCTION = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w*)")


class HarmonyFormat(Format):
    """Messages such as ``<|channel|>analysis<|message|>...<|end|>``; a call has a recipient, ``to=functions.f``."""

    reasoning = Reasoning(f"{CHANNEL}analysis{MESSAGE}", END)
    reasons_again = True

    @property
    def calls(self) -> bool:
        return True

    @property
    def marks(self) -> tuple[str, ...]:
        return (START, CHANNEL, MESSAGE, END, "<|constrain|>")

    def opening(self, prompt: str) -> str:
        return ""

    def continued(self, opening: str, content: str, reasoning: str) -> str:
        thought = f"{CHANNEL}analysis{MESSAGE}{reasoning}" if reasoning else ""
        if not content:
            return thought
        closed = f"{thought}{END}{START}assistant" if thought else ""
        return f"{closed}{CHANNEL}final{MESSAGE}{content}"

    # -- reading -----------------------------------------------------------------------------------

    def read(self, scan: Scanner, tools: Sequence[Tool]) -> Waiting[None]:
        known = {tool.name for tool in tools}
        while (yield from scan.next()):
            yield from scan.skip(START)
            yield from scan.skip("assistant")
            if not (yield from scan.skip_to(CHANNEL, "to=")):
                yield from scan.until(_ENDS, scan.content)  # a text without the marks of the format
            else:
                header, mark = yield from scan.text(_HEADER)
                if mark is None:
                    return
                scan.take(len(mark))
                yield from self._read_message(scan, header, known)
            mark = yield from scan.at(*_ENDS.texts)
            scan.take(len(mark or ""))

    def _read_message(self, scan: Scanner, header: str, known: set[str]) -> Waiting[None]:
        recipient, channel = _FUNCTION.search(header), _CHANNEL.search(header)
        emit = scan.content
        if recipient is not None and recipient[1] != "assistant":
            emit = _ignore
            if recipient[1] in known:
                scan.call(recipient[1])
                yield from scan.spaces()
                if (yield from scan.next()) == "{":  # whose strings may have marks in them
                    yield from scan.json(scan.arguments)
                emit = scan.arguments
        elif channel is not None and channel[1] == "analysis":
            emit = scan.reasoning
        yield from scan.until(_ENDS, emit)

    # -- grammar -----------------------------------------------------------------------------------

    def grammar(self, lark: Lark, choice: ToolChoice, opening: str, content: str | None) -> str:
        channel, message = lark.literal(CHANNEL), lark.literal(MESSAGE)
        again = f'{lark.literal(START)} "assistant"'
        thought = f'{channel} "analysis" {message} {lark.until(END)} {again}'
        note = f'{channel} "commentary" {message} {lark.until(END)} {again}'
        before = lark.rule(f"({thought} | {note})*" if content is None else f"({thought})*")  # a note is content
        text = content or lark.branches([], ends=True)
        last = [f'{before} {channel} "final" {message} {text}'] if not choice.required else []
        if not choice.required and content is None:
            last.append(f'{before} {channel} ("analysis" | "commentary") {message} {lark.branches([], ends=True)}')
        calls = []
        constrained = f'(" " {lark.literal("<|constrain|>")} "json" | " json")?'
        for tool in choice.tools:
            name = readable("tool", tool.name, *" \t\n<", taken=("assistant",))
            name = json.dumps(f" to=functions.{name}")
            schema = lark.schema(tool.parameters)
            calls.append(f'{before} {channel} "commentary" {name} {constrained} {message} {schema}')
            calls.append(f'{before} {name} {channel} "commentary" {constrained} {message} {schema}')
        answer = lark.rule(" | ".join([*last, *calls]))
        if not opening:
            return answer
        called = f"{again} {lark.rule(' | '.join(calls))}" if calls else ""
        return self.rest(lark, choice, opening, content, END, f"{again} {answer}", called)


def _ignore(text: str) -> None:
    """Drops the text of a message to a tool that is not known."""
