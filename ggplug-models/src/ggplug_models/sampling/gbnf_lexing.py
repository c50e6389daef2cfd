"""Which rules of a grammar must not be terminals, because a terminal takes as much text as it can match.

A terminal does harm where it can go on with a character that may also follow it: with ``num ::= [0-9]+``, ``num "0"``
leaves nothing for ``"0"``.  What may follow a terminal is found as for parsers (Aho, Lam, Sethi, Ullman, *Compilers*,
4.4), and with what it can go on by its automaton (Glushkov 1961).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

MOST_PARTS, MOST_CHARACTERS = 2000, 300
"""Parts of a grammar, and different characters of it, that are looked at; in larger grammars all terminals stay."""

MOST_POSITIONS, MOST_STATES, MOST_NESTED = 1000, 200, 50
"""Characters of a terminal, states of its automaton, and terminals inside of each other, that are looked at."""

_RANGE = re.compile(r"\\x\{([0-9a-f]+)\}(?:-\\x\{([0-9a-f]+)\})?")
_OTHER = 0x10FFFE
"""Stands for all characters that a grammar does not name."""

Chars = frozenset[int]
"""Characters by number, of those that :func:`_alphabet` lists."""


class Rule(str):
    """The name of a rule, in the parts of another one."""


class Token(str):
    """A token, in Lark's notation."""


@dataclass(frozen=True)
class _Node:
    """A part of a rule.  ``kind``: ``chars``, ``rule`` (also of a token), ``all`` parts or ``any`` of them.

    ``optional``, ``again``: whether it may be absent, and may occur more than once.
    """

    kind: str
    chars: Chars = frozenset()
    rule: str = ""
    parts: tuple[_Node, ...] = ()
    optional: bool = False
    again: bool = False


def greedy(rules: Mapping[str, Sequence[str]], terminals: Collection[str], rest: Sequence[str]) -> set[str]:
    """The terminals that can go on with a character that may follow them in the rules ``rest``."""
    alphabet = _alphabet(rules.values())
    if len(alphabet) > MOST_CHARACTERS or sum(map(len, rules.values())) > MOST_PARTS:
        return set()
    nodes = {name: _Reader(parts, alphabet).choice() for name, parts in rules.items()}
    follow = _Following(nodes, rest).follow
    return {name for name, after in follow.items() if name in terminals and after & _going_on(nodes, name, alphabet)}


def _alphabet(rules: Iterable[Sequence[str]]) -> Chars:
    """A character of each kind: those of strings, the bounds of classes, and those beside them."""
    found = {_OTHER}
    for part in (part for parts in rules for part in parts):
        if part.startswith('"'):
            found.update(map(ord, json.loads(part)))
        elif part.startswith("/["):
            for bound in (each for pair in _ranges(part) for each in pair):
                found.update((max(bound - 1, 0), bound, min(bound + 1, 0x10FFFF)))
    return frozenset(found)


def _ranges(part: str) -> list[tuple[int, int]]:
    """The first and the last character of each range of a class."""
    return [(int(first, 16), int(last or first, 16)) for first, last in _RANGE.findall(part)]


class _Reader:
    """Reads the parts of a rule."""

    def __init__(self, parts: Sequence[str], alphabet: Chars) -> None:
        self._parts = [part for part in parts if part != " "]
        self._alphabet = alphabet
        self._at = 0

    def choice(self) -> _Node:
        """The alternatives up to the end of the rule or of a group."""
        found = [self._sequence()]
        while self._next == " | ":
            self._at += 1
            found.append(self._sequence())
        return _Node("any", parts=tuple(found))

    @property
    def _next(self) -> str:
        return self._parts[self._at] if self._at < len(self._parts) else ")"

    def _sequence(self) -> _Node:
        found: list[_Node] = []
        while self._next not in (" | ", ")"):
            node = self._part()
            while (count := self._next)[0] in "*+?{":
                self._at += 1
                least, _, most = ("0,", "1,", "0,1", count.strip("{}"))["*+?{".index(count[0])].partition(",")
                node = _Node("all", parts=(node,), optional=int(least) == 0, again=most not in ("0", "1"))
            found.append(node)
        return _Node("all", parts=tuple(found))

    def _part(self) -> _Node:
        part = self._next
        self._at += 1
        if part == "(":
            inner = self.choice()
            self._at += 1
            return inner
        if isinstance(part, Rule | Token):
            return _Node("rule", rule=part)
        if part.startswith('"'):
            return _Node("all", parts=tuple(_Node("chars", frozenset([ord(c)])) for c in json.loads(part)))
        if not part.startswith("/["):
            return _Node("chars", self._alphabet)
        ranges = _ranges(part)
        named = frozenset(c for c in self._alphabet if any(a <= c <= b for a, b in ranges))
        return _Node("chars", self._alphabet - named if part.startswith("/[^") else named)


class _Following:
    """What may follow the rules that the rules ``rest`` read.  ``follow``: the characters, by name."""

    def __init__(self, nodes: Mapping[str, _Node], rest: Sequence[str]) -> None:
        self._begin: dict[str, tuple[Chars, bool]] = {}
        self.follow: dict[str, Chars] = {}
        names, known = [*nodes], None
        while known != self._begin:
            known = dict(self._begin)
            names.reverse()  # rules that read later ones are found in one round, and those that read earlier ones
            for name in names:
                self._begin[name] = self._beginning(nodes[name])
        order, before = [*rest], None
        while before != self.follow:
            before = dict(self.follow)
            for name in order:
                self._walk(nodes[name], self.follow.get(name, frozenset()))
            order.reverse()

    def _beginning(self, node: _Node) -> tuple[Chars, bool]:
        """The characters with which a text may begin, and whether it may be empty."""
        if node.kind == "chars":
            return node.chars, False
        if node.kind == "rule":
            return self._begin.get(node.rule, (frozenset(), False))
        found = [self._beginning(part) for part in node.parts]
        if node.kind == "any":
            return frozenset().union(*(chars for chars, _ in found)), any(empty for _, empty in found)
        chars: Chars = frozenset()
        for begin, empty in found:
            chars |= begin
            if not empty:
                return chars, node.optional
        return chars, True

    def _walk(self, node: _Node, after: Chars) -> None:
        if node.again:
            after |= self._beginning(node)[0]
        if node.kind == "rule":
            self.follow[node.rule] = self.follow.get(node.rule, frozenset()) | after
        for part in reversed(node.parts):
            self._walk(part, after)
            if node.kind == "all":
                begin, empty = self._beginning(part)
                after = begin | after if empty else begin


def _going_on(nodes: Mapping[str, _Node], name: str, alphabet: Chars) -> Chars:
    """The characters with which a terminal can go on where a text of it is complete."""
    automaton = _Automaton(nodes)
    try:
        empty, first, last = automaton.add(nodes[name])
    except _LargeError:
        return frozenset()
    found: set[int] = set()
    # The states are sets of positions; the first one is before all text.
    waiting, seen = [(frozenset(first), empty)], set[frozenset[int]]()
    while waiting and len(seen) < MOST_STATES:
        following, is_end = waiting.pop()
        for char in alphabet:
            state = frozenset(each for each in following if char in automaton.chars[each])
            if not state:
                continue
            if is_end:
                found.add(char)
            if state not in seen:
                seen.add(state)
                after = frozenset().union(*(automaton.follow[each] for each in state))
                waiting.append((after, not state.isdisjoint(last)))
    return frozenset(found)


class _LargeError(Exception):
    """A terminal is too large to be looked at."""


class _Automaton:
    """The positions of the characters of a terminal.  ``follow``: by position, those that may come next."""

    def __init__(self, nodes: Mapping[str, _Node]) -> None:
        self._nodes = nodes
        self.chars: list[Chars] = []
        self.follow: list[set[int]] = []

    def add(self, node: _Node, depth: int = 0) -> tuple[bool, set[int], set[int]]:
        """Whether a part may be empty, its first positions, and its last ones.  Raises _LargeError."""
        if depth > MOST_NESTED or len(self.chars) > MOST_POSITIONS:
            raise _LargeError
        if node.kind == "rule":
            return self.add(self._nodes[node.rule], depth + 1)
        if node.kind == "chars":
            self.chars.append(node.chars)
            self.follow.append(set())
            return False, {len(self.chars) - 1}, {len(self.chars) - 1}
        empty, first, last = node.kind == "all", set[int](), set[int]()
        for part in node.parts:
            part_empty, begin, end = self.add(part, depth)
            if node.kind == "any":
                empty, first, last = empty or part_empty, first | begin, last | end
            else:
                for each in last:
                    self.follow[each] |= begin
                first, last = first | begin if empty else first, last | end if part_empty else end
                empty = empty and part_empty
        if node.again:
            for each in last:
                self.follow[each] |= first
        return empty or node.optional, first, last
