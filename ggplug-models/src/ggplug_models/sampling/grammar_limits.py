"""Limits of grammars, so that the library that reads them neither overflows its stack nor computes for minutes.

The library follows the references of a JSON schema by recursion, each definition once.  With 8 MiB of stack it
overflows, and the process crashes, at 2,100 to 3,000 levels; with less stack earlier.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from ggplug.errors import ParameterError
from ggplug_models.metadata.values import short_repr

MOST_BYTES = 1 << 17
"""Size of a JSON schema in bytes."""

MOST_NESTED = 64
"""Nesting depth of objects and lists of a JSON schema."""

MOST_LEVELS = 256
"""Nesting depth of a JSON schema with its references, each followed once."""

MOST_NAMED = 32
"""Parts of a JSON schema with a name, such as ``$id`` or ``$anchor``, that references may use."""

MOST_PROPERTIES = 2000
"""Keys of an object, and items of a list other than ``enum``."""

MOST_PATTERN = 4096
"""Length of a regular expression, also in a JSON schema."""

MOST_PARENTHESES = 100
"""Nesting depth of parentheses in a regular expression."""

MOST_REPEATED = 10_000
"""Largest count of a repetition, such as ``{1,10000}``; counts of nested repetitions are multiplied."""

MOST_CHARACTERS = 1 << 16
"""Length of a grammar in the notation of Lark or llama.cpp."""

MOST_LINES = 5000
"""Lines of a grammar: the library's time grows with the square of the number of those that are empty."""

MOST_RULES = 500
"""Lines of a grammar that may start a rule: those with a colon."""

_NAMES = ("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_SPECIAL = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()]|\{(\d+)(?:,(\d*))?\}|[^?*+]", re.DOTALL)
_EMBEDDED = re.compile(r"%json(?:\s|//[^\n]*\n)*")


def read_schema(schema: Any) -> dict[str, Any]:
    """Reads a JSON schema: an object, or its text.

    Raises ParameterError if it is not valid JSON, or exceeds the limits of this module.
    """
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ParameterError(f"the JSON schema is not valid: {error}", got=schema) from error
    _check(len(text.encode("utf-8", "surrogatepass")), MOST_BYTES, "bytes", "the JSON schema")
    try:
        found = json.loads(text)
    except RecursionError:
        raise _too_much("the JSON schema", "more", MOST_NESTED, "nested objects and lists") from None
    except ValueError as error:
        raise ParameterError(f"the JSON schema is not valid: {error}", got=text) from error
    if not isinstance(found, dict):
        raise ParameterError(f"a JSON schema must be an object, got {short_repr(schema)}", got=schema)
    _Parts(found).check()
    return found


def check_pattern(pattern: str, what: str = "the regular expression") -> None:
    """Raises ParameterError for a regular expression that exceeds the limits of this module."""
    _check_text(pattern, what)
    _check(len(pattern), MOST_PATTERN, "characters", what)
    nested = deepest = 0
    repeated = [1]
    inner = 1  # how often the expression before the next count repeats its own parts
    for found in _SPECIAL.finditer(pattern):
        if found[0] == "(":
            nested += 1
            deepest = max(deepest, nested)
            repeated.append(1)
            inner = 1
        elif found[0] == ")":
            nested = max(nested - 1, 0)
            inner = repeated.pop() if len(repeated) > 1 else 1
            repeated[-1] = max(repeated[-1], inner)
        elif found[1] is not None:
            counts = [count for count in found.groups() if count]
            if any(len(count.lstrip("0")) > 9 for count in counts):
                raise _too_much(what, "more", MOST_REPEATED, "repetitions")
            inner *= max(1, *map(int, counts))
            repeated[-1] = max(repeated[-1], inner)
            _check(inner, MOST_REPEATED, "repetitions", what)
        else:
            inner = 1
    _check(deepest, MOST_PARENTHESES, "nested parentheses", what)


def check_grammar(grammar: str) -> None:
    """Raises ParameterError for a grammar, or a JSON schema in it, that exceeds the limits of this module."""
    _check_text(grammar, "the grammar")
    _check(len(grammar), MOST_CHARACTERS, "characters", "the grammar")
    _check(grammar.count("\n") + 1, MOST_LINES, "lines", "the grammar")
    _check(sum(":" in line for line in grammar.splitlines()), MOST_RULES, "lines with a colon", "the grammar")
    decoder = json.JSONDecoder()
    for found in _EMBEDDED.finditer(grammar):
        try:
            schema, _ = decoder.raw_decode(grammar, found.end())
        except json.JSONDecodeError:
            continue  # the library refuses it as well, unless it is inside of a string
        except (RecursionError, ValueError):
            raise ParameterError("the grammar has a JSON schema that cannot be read", got=grammar) from None
        _Parts(schema).check()


class _Parts:
    """The objects and lists of a schema, outer ones before inner ones."""

    def __init__(self, schema: Any) -> None:
        self.values: list[Any] = []
        self.above: list[int] = []
        self._numbers: dict[int, int] = {}
        waiting: list[tuple[Any, int, int]] = [(schema, -1, 1)]
        while waiting:
            value, above, nested = waiting.pop()
            if not isinstance(value, (dict, list)):
                continue
            _check(nested, MOST_NESTED, "nested objects and lists", "the JSON schema")
            number = len(self.values)
            self._numbers[id(value)] = number
            self.values.append(value)
            self.above.append(above)
            inner = value.values() if isinstance(value, dict) else value
            waiting += [(each, number, nested + 1) for each in inner]

    def check(self) -> None:
        """Raises ParameterError if the schema exceeds the limits."""
        self._check_sizes()
        _check(self._levels(), MOST_LEVELS, "levels with its references", "the JSON schema")

    def _check_sizes(self) -> None:
        choices = {id(value["enum"]) for value in self.values if isinstance(value, dict) and "enum" in value}
        for value in self.values:
            if id(value) not in choices:
                _check(len(value), MOST_PROPERTIES, "keys or items in one object or list", "the JSON schema")
            if isinstance(value, dict):
                if isinstance(pattern := value.get("pattern"), str):
                    check_pattern(pattern, "a pattern of the JSON schema")
                if isinstance(patterns := value.get("patternProperties"), dict):
                    for pattern in patterns:
                        check_pattern(pattern, "a pattern of the JSON schema")

    def _levels(self) -> int:
        """An upper bound of the depth of the schema, if each reference is followed once.

        For definitions that refer to one another in a circle, the depths of all of them are added.
        """
        if not self.values:
            return 0
        heights = [1] * len(self.values)
        for number in range(len(self.values) - 1, 0, -1):
            above = self.above[number]
            heights[above] = max(heights[above], heights[number] + 1)
        references = self._references()
        targets = {0, *(target for _, found in references for target in found)}
        edges: dict[int, set[int]] = defaultdict(set)
        for number, found in references:
            place = number
            while place >= 0:
                if place in targets:
                    edges[place] |= found
                place = self.above[place]
        longest = 0
        ways: dict[int, int] = {}
        for circle in _circles(sorted(targets), edges):
            behind = max((ways[each] for one in circle for each in edges[one] if each in ways), default=0)
            levels = sum(heights[one] for one in circle) + behind
            ways |= dict.fromkeys(circle, levels)
            longest = max(longest, levels)
        return longest

    def _references(self) -> list[tuple[int, set[int]]]:
        """The parts with a reference, and all parts that the library might find it to refer to."""
        objects = [(number, value) for number, value in enumerate(self.values) if isinstance(value, dict)]
        named = [n for n, value in objects if n and any(isinstance(value.get(name), str) for name in _NAMES)]
        references = [
            (number, value[key]) for number, value in objects for key in _REFERENCES if isinstance(value.get(key), str)
        ]
        if not references:
            return []
        _check(len(named), MOST_NAMED, "parts with an $id or $anchor, in addition to references", "the JSON schema")
        known: dict[str, set[int]] = {}
        for _, reference in references:
            if reference not in known:
                known[reference] = set(self._targets(reference, named))
        return [(number, known[reference]) for number, reference in references]

    def _targets(self, reference: str, named: Sequence[int]) -> Iterator[int]:
        pointer = unquote(reference.partition("#")[2])
        if pointer and not pointer.startswith("/"):
            yield from named
            return
        steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
        for start in (0, *named):
            place = self.values[start]
            for step in steps:
                if isinstance(place, dict):
                    place = place.get(step)
                elif isinstance(place, list) and step.isdecimal() and len(step) < 10:
                    place = place[int(step)] if int(step) < len(place) else None
                else:
                    place = None
            if (number := self._numbers.get(id(place))) is not None:
                yield number


def _circles(nodes: Sequence[int], edges: dict[int, set[int]]) -> Iterator[list[int]]:
    """The strongly connected components of a graph, targets of edges first (Tarjan 1972)."""
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    open_nodes: list[int] = []
    is_open: set[int] = set()
    for first in nodes:
        if first in order:
            continue
        way = [(first, iter(edges[first]))]
        order[first] = lowest[first] = len(order)
        open_nodes.append(first)
        is_open.add(first)
        while way:
            node, left = way[-1]
            for other in left:
                if other not in order:
                    order[other] = lowest[other] = len(order)
                    open_nodes.append(other)
                    is_open.add(other)
                    way.append((other, iter(edges[other])))
                    break
                if other in is_open:
                    lowest[node] = min(lowest[node], order[other])
            else:
                way.pop()
                if way:
                    lowest[way[-1][0]] = min(lowest[way[-1][0]], lowest[node])
                if lowest[node] == order[node]:
                    place = open_nodes.index(node)
                    circle = open_nodes[place:]
                    del open_nodes[place:]
                    is_open.difference_update(circle)
                    yield circle


def _check_text(value: Any, what: str) -> None:
    if not isinstance(value, str):
        raise ParameterError(f"{what} must be a string, got {short_repr(value)}", got=value)
    surrogate = re.search("[\ud800-\udfff]", value)
    if surrogate is not None:
        raise ParameterError(f"{what} has {surrogate[0]!r} at {surrogate.start()}, which is no character", got=value)


def _check(found: int, most: int, what: str, where: str) -> None:
    if found > most:
        raise _too_much(where, found, most, what)


def _too_much(where: str, found: object, most: int, what: str) -> ParameterError:
    return ParameterError(
        f"{where} has {found} {what}; at most {most} are allowed", got=found, wanted=f"at most {most}"
    )
