"""The format of functionary 3.2: each part of an answer begins with its recipient, ``>>>all`` or ``>>>f``."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ggplug_models.chat.formats.format import Format
from ggplug_models.chat.formats.names import readable
from ggplug_models.chat.lark import Lark
from ggplug_models.chat.scanning import Marks, Scanner, Waiting
from ggplug_models.chat.tools import Tool, ToolChoice

MARK = ">>>"
_MARKS, _LINE = Marks((MARK,)), Marks(("\n",))


class RecipientFormat(Format):
    """Answers such as ``>>>all\\ntext>>>f\\n{"a": 1}``."""

    @property
    def calls(self) -> bool:
        return True

    @property
    def marks(self) -> tuple[str, ...]:
        return (MARK,)

    def opening(self, prompt: str) -> str:
        return MARK if prompt.endswith(MARK) else ""

    def continued(self, opening: str, content: str, reasoning: str) -> str:
        return f"{opening or MARK}all\n{content}"

    def read(self, scan: Scanner, tools: Sequence[Tool]) -> Waiting[None]:
        known = {tool.name for tool in tools}
        while (yield from scan.until(_MARKS, scan.content)) is not None:
            scan.hold()
            scan.take(len(MARK))
            name, mark = yield from scan.text(_LINE)
            if mark is None or name.strip() not in {"all", *known}:
                scan.rewind()
                scan.content(scan.take(len(MARK)))
                continue
            scan.take(1)
            scan.release()
            if name.strip() != "all":
                scan.call(name.strip())
                yield from scan.spaces()
                yield from scan.json(scan.arguments)
                yield from scan.spaces()

    def grammar(self, lark: Lark, choice: ToolChoice, opening: str, content: str | None) -> str:
        more = lark.rule(" | ".join(self._call(lark, tool) for tool in choice.tools)) if choice.tools else ""
        calls = f"{more} ({lark.literal(MARK)} {more})*" if choice.several and more else more
        text = self.rest(lark, choice, opening, content, MARK, "", calls)
        if opening not in ("", MARK):
            return text
        begin = "" if opening else lark.literal(MARK) + " "
        options = [] if choice.required else [f'{begin}"all\\n" {text}']
        return lark.rule(" | ".join([*options, *([f"{begin}{calls}"] if calls else [])]))

    def _call(self, lark: Lark, tool: Tool) -> str:
        name = readable("tool", tool.name, *_LINE.texts, taken=("all",))
        return f"{json.dumps(name + chr(10))} {lark.schema(tool.parameters)}"
