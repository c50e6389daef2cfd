"""Writes grammars of answers in the notation of Lark, for the library ``llguidance``.

A mark of a format, such as ``<tool_call>``, is a control token of some vocabularies and plain text of others.  A
model generates it in the one way or the other, and the library distinguishes them, so a grammar is for a vocabulary.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ggplug_models.chat.tools import values_of
from ggplug_models.sampling.control_tokens import ControlTokens
from ggplug_models.sampling.grammar_limits import check_pattern, read_schema

SPACES = r"[ \t\n]{0,20}"
"""White space that may be between the parts of a call."""

ANY = r"(?s:.*)"

ID = "\x00id\x00"
"""Stands for the id of a call in a text of a format."""

ANY_ID, NINE = "[a-zA-Z0-9_-]{1,40}", "[a-zA-Z0-9]{9}"
"""The ids that most templates take, and those of Mistral's templates that refuse others."""


class Pattern(str):
    """A mark that is a regular expression, where others are exactly their text."""


class Lark:
    """A grammar that is written rule by rule.  Its methods return expressions for other rules.

    ``id``: the regular expression of ids of calls.
    """

    def __init__(self, control: ControlTokens, id: str = ANY_ID) -> None:
        self.control = control
        self.id = id
        self._lines: list[str] = []
        self._named: dict[str, str] = {}
        self._parts: dict[int, str] = {}

    def text(self, start: str) -> str:
        """The whole grammar, which begins with the expression ``start``."""
        return "\n".join([f"start: {start}", *self._lines, ""])

    def rule(self, expression: str) -> str:
        """A rule."""
        return self._defined("rule", "", expression)

    def terminal(self, expression: str) -> str:
        """A terminal: an expression of regular expressions."""
        return self._defined("TERMINAL", "", expression)

    def lazily(self, pattern: str, excluded: Sequence[str] = ()) -> str:
        """The shortest text that matches a regular expression, and none of ``excluded``."""
        return self._defined("rule", "[lazy]", self.terminal(_without(pattern, excluded)))

    def _defined(self, kind: str, attribute: str, expression: str) -> str:
        known = self._named.get(attribute + expression)
        if known is None:
            known = self._named[attribute + expression] = f"{kind}_{len(self._lines)}"
            self._lines.append(f"{known}{attribute}: {expression}")
        return known

    def rule_of(self, schema: Any, make: Callable[[], str]) -> str:
        """The rule for a schema; ``make`` returns its expression, which may refer to this rule."""
        known = self._parts.get(id(schema))
        if known is None:
            place = len(self._lines)
            known = self._parts[id(schema)] = f"rule_{place}"
            self._lines.append("")
            self._lines[place] = f"{known}: {make()}"
        return known

    def literal(self, text: str) -> str:
        """Exactly this text; empty for an empty text."""
        return _written(self.control.parts(text))

    def loosely(self, text: str) -> str:
        """This text, in which white space may be any, also around the punctuation of JSON."""
        found = []
        for part in self.control.parts(text):
            if isinstance(part, int):
                found.append(f"<[{part}]>")
            elif pattern := loose_pattern(part).replace(escaped(ID), self.id):
                found.append(self.terminal(regex(pattern)))
        return " ".join(found)

    def schema(self, schema: Any, root: Mapping[str, Any] | None = None) -> str:
        """JSON that matches a schema.

        ``root``: the schema that references refer to, if this one is a part of it.  Raises ParameterError for a schema
        that is not valid or exceeds the limits.
        """
        read = read_schema(schema if root is None else _with_root(schema, root))
        found = {**closed(read), "x-guidance": {"whitespace_pattern": r"\n?[ \t]{0,20}"}}
        return self.rule(f"%json {json.dumps(found)}")

    def until(self, mark: str, other: str = "") -> str:
        """Any text, up to a mark and with it.  ``other``: what it may not begin with."""
        parts = self.control.parts(mark)
        excluded = [escaped(other) + ANY] if other else []
        free = self.terminal(_without(ANY, excluded))
        if not parts:  # an end token, which ends the answer
            return f"{free}?"
        if len(parts) > 1 and not str(parts[0]).strip():
            parts = parts[1:]  # white space before a control token is in the text
        elif isinstance(parts[0], str):
            return f"{self.lazily(ANY + escaped(parts[0]), excluded)} {_written(parts[1:])}"
        return f"{free}? {_written(parts)}"

    def string(self, schema: Any, mark: str, other: str = "") -> str:
        """A text without quotes that matches the schema of a string, and the mark after it.

        Its values, lengths and pattern hold; its ``format`` does not.  ``other``: what it may not begin with, unless it
        is one of the values.  Raises ParameterError for a pattern that exceeds the limits.
        """
        if not isinstance(schema, dict):
            return self.until(mark, other)
        values = values_of(schema)
        if values is not None:
            texts = dict.fromkeys(value if isinstance(value, str) else json.dumps(value) for value in values)
            return f"({' | '.join(map(json.dumps, texts))}) {self.literal(mark)}"
        parts = self.control.parts(mark)
        # What is not a control token is one lexeme with the text, because the lexer takes the longest match.
        first = str(parts[0]) if parts and isinstance(parts[0], str) else ""
        spelled = escaped(first)
        conditions, pattern = [], schema.get("pattern")
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        if least or most != "":
            conditions.append(regex(f"(?s:.{{{least},{most}}}){spelled}"))
        if isinstance(pattern, str):
            check_pattern(pattern, "a pattern of the JSON schema")
            conditions.append(regex(f"(?:{_containing(pattern)}){spelled}"))
        if not conditions:
            return self.until(mark, other)
        if other:
            conditions.append("~" + regex(escaped(other) + ANY))
        if first.strip():
            conditions.append("~" + regex(f"{ANY}{spelled}(?s:.+)"))
        optional = "" if least or first or not _allows_nothing(pattern) else "?"
        return f"{self.terminal(' & '.join(conditions))}{optional} {_written(parts[1:] if first else parts)}"

    def branches(
        self,
        options: Sequence[tuple[str, str]],
        *,
        ends: bool,
        skipped: Sequence[str] = (),
        excluded: Sequence[str] = (),
    ) -> str:
        """Any text up to one of several marks, which decides how it continues.

        ``options``: marks, of which some may be a :class:`Pattern`, with the expressions that follow them.
        ``ends``: whether the text may also end without a mark.  ``skipped``: control tokens that may be in the text.
        ``excluded``: regular expressions of texts that do not count as such a text.
        """
        ways = [self._begun(mark, rest) for mark, rest in options]
        spelled = [pattern or escaped(mark) for (pattern, _), (mark, _) in zip(ways, options, strict=True)]
        within = [f"{ANY}(?:{'|'.join(spelled)}){ANY}"] if spelled else []
        plain = self.terminal(_without(ANY, [*within, *excluded]))
        specials = [f"<[{part}]>" for mark in skipped for part in self.control.parts(mark) if isinstance(part, int)]
        several = f"({' | '.join([plain, *dict.fromkeys(specials)])})*" if specials else ""
        free = several or f"{plain}?"
        alternatives = [free] if ends else []
        for pattern, rest in ways:
            before = f"{several} {self.lazily(ANY + pattern, excluded)}" if pattern else free
            alternatives.append(f"{before} {rest}")
        return self.rule(" | ".join(alternatives))

    def _begun(self, mark: str, rest: str) -> tuple[str, str]:
        """The regular expression with which a mark begins, empty for a control token, and what follows it."""
        if isinstance(mark, Pattern):
            return mark, rest
        parts = self.control.parts(mark)
        if len(parts) > 1 and not str(parts[0]).strip():
            parts = parts[1:]  # white space before a control token is in the text
        if parts and isinstance(parts[0], int):
            return "", f"{_written(parts)} {rest}"
        first = str(parts[0]) if parts else mark
        return escaped(first), f"{_written(parts[1:])} {rest}"

    def repeated(self, item: str, comma: str, schema: Any) -> str:
        """The items of an array with commas between them, as many as its schema allows."""
        given = schema if isinstance(schema, dict) else {}
        least, most = given.get("minItems", 0), given.get("maxItems")
        if most == 0:
            return '""'
        more = f"({comma} {item}){{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        return self.rule(f"{item} {more}") if least else f"{self.rule(f'{item} {more}')}?"

    def listed(self, items: Sequence[tuple[str, bool]], comma: str) -> str:
        """Items with commas between them, in their order.  The booleans: whether an item must be there."""
        alternatives = []
        for place, (item, needed) in enumerate(items):
            later = (f" {comma} {each}" if must else f" ({comma} {each})?" for each, must in items[place + 1 :])
            alternatives.append(item + "".join(later))
            if needed:
                return self.rule(" | ".join(alternatives))
        return f"{self.rule(' | '.join(alternatives))}?" if alternatives else '""'


def closed(schema: Any) -> Any:
    """A schema whose objects have no other keys than their ``properties``, unless it says that they may."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: each if key in _VALUES else closed(each) for key, each in schema.items()}
    if isinstance(schema.get("properties"), dict) and not _OPEN & schema.keys():
        found["additionalProperties"] = False
    return found


_VALUES = ("enum", "const", "default", "examples")
_OPEN = {"additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "$ref", "if"}


def _with_root(schema: Any, root: Mapping[str, Any]) -> Any:
    """A part of a schema by itself: if it has references, ``root`` is one of its definitions, to which they refer."""
    if not isinstance(schema, Mapping):
        return {}
    if '"$ref": "#' not in json.dumps(schema):
        return schema
    whole = {key: value for key, value in root.items() if key not in ("$id", "$schema")}
    text = json.dumps({**schema, "$defs": {"root": whole}})
    return json.loads(text.replace('"$ref": "#', '"$ref": "#/$defs/root'))


def escaped(text: str) -> str:
    """A regular expression that matches exactly this text."""
    return re.escape(text).replace("\\\n", r"\n")


def regex(pattern: str) -> str:
    """A regular expression in the notation of Lark."""
    return "/" + pattern.replace("/", r"\/").replace("\n", r"\n") + "/"


def _written(parts: Sequence[str | int]) -> str:
    """Exactly these texts and control tokens."""
    return " ".join(f"<[{part}]>" if isinstance(part, int) else json.dumps(part) for part in parts)


def _without(pattern: str, excluded: Sequence[str]) -> str:
    return " & ".join([regex(pattern), *("~" + regex(each) for each in excluded)])


def _containing(pattern: str) -> str:
    """A regular expression of the whole texts in which another one is found."""
    alternatives: list[list[str]] = [[]]
    nested = 0
    for part in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", pattern, re.DOTALL):
        nested += (part == "(") - (part == ")")
        if part == "|" and not nested:
            alternatives.append([])
        else:
            alternatives[-1].append(part)
    found = []
    for parts in alternatives:
        begins, ends = parts[:1] == ["^"], parts[-1:] == ["$"]
        inner = "".join(parts[begins : len(parts) - ends])
        found.append(f"{'' if begins else ANY}(?:{inner}){'' if ends else ANY}")
    return "|".join(found)


def _allows_nothing(pattern: Any) -> bool:
    """Whether an empty text matches a pattern of a schema, if there is one."""
    try:
        return not isinstance(pattern, str) or re.search(pattern, "") is not None
    except re.error:  # in other words than Python's
        return False


def loose_pattern(text: str) -> str:
    """A regular expression for a text, in which white space may be any, also around the punctuation of JSON."""
    parts = re.findall(r'"(?:[^"\\]|\\.)*"|\s+|[{}\[\]:,]|[^\s{}\[\]:,"]+|"', text)
    found: list[str] = []
    for part in parts:
        punctuation = part in "{}[]:,"
        if (part.isspace() or punctuation) and found[-1:] != [SPACES]:
            found.append(SPACES)
        if not part.isspace():
            found.append(escaped(part))
        if punctuation:
            found.append(SPACES)
    return "".join(found)
