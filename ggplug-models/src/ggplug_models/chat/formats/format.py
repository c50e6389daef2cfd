"""The format of an answer: where its reasoning is, and how tool calls are written."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ggplug_models.chat.lark import ANY, ANY_ID, SPACES, Lark, escaped, regex
from ggplug_models.chat.scanning import Marks, Scanner, Waiting
from ggplug_models.chat.tools import Tool, ToolChoice


class CallSyntax(ABC):
    """How a format writes tool calls.

    ``starts``: the marks with which calls begin.  ``marks``: all marks, some of which may be control tokens.
    ``ends_reasoning``: whether a call may come before the mark at the end of the reasoning.
    """

    starts: tuple[str, ...]
    marks: tuple[str, ...] = ()
    ends_reasoning: bool = False

    @abstractmethod
    def read(self, scan: Scanner, tools: Sequence[Tool]) -> Waiting[bool]:
        """Reads calls, from a start mark on; False if the text is no call of one of ``tools``, and nothing was read."""

    @abstractmethod
    def options(self, lark: Lark, choice: ToolChoice) -> list[tuple[str, str]]:
        """The grammar: start marks, and what may follow them, to the end of the answer.  See :meth:`.Lark.branches`."""

    def required(self, lark: Lark, choice: ToolChoice) -> str:
        """The grammar of an answer that begins with a call."""
        return lark.rule(" | ".join(f"{lark.literal(mark)} {rest}" for mark, rest in self.options(lark, choice)))


@dataclass(frozen=True)
class Reasoning:
    """The marks around the reasoning, which comes before the answer's text."""

    start: str
    end: str


class Format(ABC):
    """How a model writes answers.

    ``reasoning``: None if it does not reason, or this is not known.  ``reasons_again``: whether there may be several
    reasonings, anywhere in an answer, and not only one at its beginning.  ``several``: whether the template takes
    answers with several calls.  ``id``: the regular expression of the ids of calls that it takes.
    """

    reasoning: Reasoning | None = None
    reasons_again: bool = False
    several: bool = True
    id: str = ANY_ID

    @property
    @abstractmethod
    def calls(self) -> bool:
        """Whether answers may have tool calls."""

    @property
    @abstractmethod
    def marks(self) -> tuple[str, ...]:
        """The marks that :meth:`read` needs, some of which may be control tokens."""

    @abstractmethod
    def opening(self, prompt: str) -> str:
        """The part of an answer with which the prompt ends, such as the mark at the beginning of the reasoning."""

    @abstractmethod
    def read(self, scan: Scanner, tools: Sequence[Tool]) -> Waiting[None]:
        """Reads an answer.  ``tools``: the tools that may be called; none: text that looks like a call is text."""

    @abstractmethod
    def grammar(self, lark: Lark, choice: ToolChoice, opening: str, content: str | None) -> str:
        """The grammar of answers.

        ``opening``: the part that is in the prompt already.  ``content``: the grammar of the answer's text; None: any
        text.
        """

    @abstractmethod
    def continued(self, opening: str, content: str, reasoning: str) -> str:
        """The part of an answer that is in the prompt, if its beginning is given.

        ``opening``: what the template writes.  ``content``, ``reasoning``: the beginning of the answer's text, and the
        reasoning before it; without ``content``, the reasoning is continued.
        """

    def rest(
        self, lark: Lark, choice: ToolChoice, opening: str, content: str | None, end: str, answer: str, calls: str
    ) -> str:
        """The grammar of an answer of several messages that goes on within the last one of ``opening``.

        ``choice``, ``content``: as for :meth:`grammar`.  ``end``: the mark after a message.  ``answer``: what follows
        it after a reasoning.  ``calls``: what may follow it after a text; empty: there are no tools.
        """
        if self.reasons_at(opening):
            return lark.branches([(end, answer)], ends=content is None and not choice.required)
        if content is not None and not choice.required:
            return lark.rule(f"{content} | {lark.literal(end)} {calls}" if calls else content)
        return lark.branches([(end, calls)] if calls else [], ends=not choice.required)

    def without_reasoning(self) -> Format:
        """The format in which the reasoning, with its marks, is a part of the answer's text."""
        return self

    def reasoning_ends(self, *, calls: bool) -> tuple[str, ...]:
        """The marks at which a reasoning ends, its own one first.  ``calls``: whether there are tools to call."""
        return () if self.reasoning is None else (self.reasoning.end,)

    def reasons_at(self, opening: str) -> bool:
        """Whether an answer is within the reasoning after ``opening``."""
        marks = self.reasoning
        return marks is not None and opening.rfind(marks.start) > opening.rfind(marks.end)


class PlainFormat(Format):
    """An answer of optional reasoning, then text, then calls in a :class:`CallSyntax`.

    ``wrappers``: marks around the text, which are not part of it.
    """

    def __init__(
        self,
        reasoning: Reasoning | None = None,
        syntax: CallSyntax | None = None,
        wrappers: Collection[str] = (),
        *,
        several: bool = True,
        id: str = ANY_ID,
    ) -> None:
        self.reasoning = reasoning
        self.syntax = syntax
        self.wrappers = tuple(wrappers)
        self.several = several
        self.id = id

    @property
    def calls(self) -> bool:
        return self.syntax is not None

    @property
    def marks(self) -> tuple[str, ...]:
        reasoning = () if self.reasoning is None else (self.reasoning.start, self.reasoning.end)
        syntax = () if self.syntax is None else (*self.syntax.starts, *self.syntax.marks)
        return tuple(mark for mark in (*reasoning, *syntax, *self.wrappers) if mark)

    def opening(self, prompt: str) -> str:
        marks = self.reasoning
        if marks is None:
            return ""
        found = re.search(rf"{re.escape(marks.start)}\s*(?:{re.escape(marks.end)}\s*)?\Z", prompt)
        return "" if found is None else found[0]

    def continued(self, opening: str, content: str, reasoning: str) -> str:
        marks = self.reasoning
        if marks is None or not (reasoning or self.reasons_at(opening)):
            return opening + content
        space = opening.rpartition(marks.start)[2] if self.reasons_at(opening) else ""
        return f"{marks.start}{space}{reasoning}" + (f"{marks.end}{content}" if content else "")

    def without_reasoning(self) -> Format:
        return PlainFormat(None, self.syntax, self.wrappers, several=self.several, id=self.id)

    def reasoning_ends(self, *, calls: bool) -> tuple[str, ...]:
        starts = self.syntax.starts if self.syntax is not None and self.syntax.ends_reasoning and calls else ()
        return (*super().reasoning_ends(calls=calls), *starts, *self.wrappers[:1])

    # -- reading -----------------------------------------------------------------------------------

    def read(self, scan: Scanner, tools: Sequence[Tool]) -> Waiting[None]:
        syntax = self.syntax if tools else None
        if self.reasoning is not None:
            yield from self._read_reasoning(scan, self.reasoning, syntax)
        starts = () if syntax is None else syntax.starts
        marks = Marks((*starts, *self.wrappers))
        while (mark := (yield from scan.until(marks, scan.content))) is not None:
            if mark in self.wrappers and mark not in starts:
                scan.take(len(mark))
            elif syntax is not None:
                scan.hold()
                if (yield from syntax.read(scan, tools)):
                    scan.release()
                    yield from scan.spaces()
                elif scan.exhausted and mark != "{":
                    scan.release()  # the answer ended within the first words of a call
                elif scan.exhausted:
                    scan.rewind()  # reading on from each brace in it would take quadratic time
                    yield from scan.until(Marks(()), scan.content)
                else:
                    scan.rewind()
                    scan.content(scan.take(1))

    def _read_reasoning(self, scan: Scanner, reasoning: Reasoning, syntax: CallSyntax | None) -> Waiting[None]:
        scan.hold()
        yield from scan.spaces()
        found = yield from scan.at(reasoning.start, reasoning.end)
        if found is None:
            scan.rewind()
            return
        scan.take(len(found))
        scan.release()
        if found == reasoning.end:  # some models write it before an answer without reasoning
            yield from scan.spaces()
            return
        yield from scan.spaces()
        mark = yield from scan.until(Marks(self.reasoning_ends(calls=syntax is not None)), scan.reasoning)
        if mark == reasoning.end:
            scan.take(len(mark))
            yield from scan.spaces()

    # -- grammar -----------------------------------------------------------------------------------

    def grammar(self, lark: Lark, choice: ToolChoice, opening: str, content: str | None) -> str:
        options = self.syntax.options(lark, choice) if self.syntax is not None and choice.tools else []
        closing = "".join(f" ({lark.literal(mark)})?" for mark in self.wrappers[2:])
        options = [(mark, rest + closing) for mark, rest in options]
        free = content is None and not (choice.required and self.syntax is not None)
        reasoning = self.reasoning
        if reasoning is None:
            return self._body(lark, choice, options, content)
        body = lark.rule(self._body(lark, choice, options, content))
        calls_end_it = self.syntax is not None and self.syntax.ends_reasoning
        within = () if self.syntax is None or calls_end_it else self.syntax.starts  # a reasoning may mention them
        early = options if calls_end_it else []
        thought = lark.branches([(reasoning.end, body), *early], ends=free, skipped=within)
        if self.reasons_at(opening):
            return thought
        if opening:
            return body
        start = lark.literal(reasoning.start)
        if free and not start.startswith("<["):  # else the lexer would take the mark for a part of the text
            begins = rf"\s*{escaped(reasoning.start)}{ANY}"
            spaced = lark.terminal(regex(SPACES + escaped(reasoning.start)))
            return f"{self._body(lark, choice, options, content, [begins])} | {spaced} {thought}"
        gap = f"{lark.terminal(regex(SPACES))}?"
        return f"{body} | {gap} {start} {thought} | {gap} {lark.literal(reasoning.end)} {body}"

    def _body(
        self,
        lark: Lark,
        choice: ToolChoice,
        options: list[tuple[str, str]],
        content: str | None,
        excluded: Sequence[str] = (),
    ) -> str:
        """The answer after its reasoning."""
        around = [f"({lark.literal(mark)})?" for mark in self.wrappers]
        call = ""
        if self.syntax is not None and choice.tools:
            gap = f"{lark.terminal(regex(SPACES))}?"
            call = " ".join([*around[:2], gap, self.syntax.required(lark, choice), *around[2:]])
        if choice.required and call:
            return call
        if content is not None:
            wrapped = " ".join([*around[:1], content, *around[1:]])
            return f"{wrapped} | {call}" if call else wrapped
        return lark.branches(options, ends=True, skipped=self.wrappers, excluded=excluded)
