r"""Translates grammars in llama.cpp's notation (GBNF) to the notation of the library ``llguidance``, which is Lark's.

A grammar has rules ``name ::= text``; the rule ``root`` matches the whole text.  Parts of a text are strings, classes
of characters such as ``[^a-z]``, ``.`` (any character), names of rules, tokens, and groups in parentheses, with ``|``
between alternatives.  After a part, ``*``, ``+``, ``?``, ``{2}``, ``{2,}`` and ``{2,5}`` say how often it occurs.
``\x41``, ``\u00e9`` and ``\U0001F600`` are characters by their number.  A token is ``<name>`` or ``<[id]>``, and
``!<name>`` any other one.  ``#`` begins a comment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping

from ggplug.errors import ParameterError
from ggplug_models.sampling.gbnf_lexing import Rule, Token, greedy
from ggplug_models.sampling.grammar_limits import MOST_PARENTHESES

_NAME = re.compile(r"[\w-]+")
_SPACES = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACES_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_ESCAPE = re.compile(r'\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([trn\\"\[\]-]))')
_COUNT = re.compile(r"\{[ \t\r\n]*([0-9]{1,9})[ \t\r\n]*(,[ \t\r\n]*([0-9]{0,9})[ \t\r\n]*)?\}")
_TOKEN = re.compile(r"(!?)(<(?:\[([0-9]+)\]|[^>]*)>)")
_LETTERS = {"t": "\t", "r": "\r", "n": "\n"}

MOST_ROUNDS = 5
"""How often the grammar is searched for rules that must not be terminals."""

_LARGEST = 0x10FFFF
"""The largest number of a character."""


def to_lark(grammar: str, token_of: Callable[[str], int | None]) -> str:
    """The grammar in Lark's notation.

    ``token_of``: the id of the token that a text such as ``<think>`` is as a whole, or None.

    A rule whose parts have no tokens, and no rules but such ones, becomes a terminal, which the library reads much
    faster, unless that would take what has to follow (:mod:`.gbnf_lexing`); in terminals it is one all the same.
    Raises ParameterError.
    """
    rules = _Parser(grammar, token_of).rules()
    for each in ("root", *(part for parts in rules.values() for part in parts if isinstance(part, Rule))):
        if each not in rules:
            raise _refused(grammar, f"it has no rule {str(each)!r}")
    terminals: set[str] = set()
    while found := {name for name in rules if name not in terminals and _is_terminal(rules[name], terminals)}:
        terminals |= found
    # The terminals that rules read as such.
    read = {"root"} if "root" in terminals else set(terminals)
    if "root" not in read:
        for _ in range(MOST_ROUNDS):  # a rule that ceases to be a terminal reads those that were inside of it
            read -= greedy(rules, read, [name for name in rules if name not in read])
    numbers = {name: number for number, name in enumerate(rules)}

    def line(name: str, names: Collection[str]) -> str:
        """A rule, or a terminal; ``names``: the rules that are called as terminals in it."""
        return "".join(_called(part, numbers, names) if isinstance(part, Rule) else part for part in rules[name])

    lines = [
        *(f"TERMINAL_{numbers[name]}: {line(name, terminals)}" for name in rules if name in terminals),
        *(f"rule_{numbers[name]}: {line(name, read)}" for name in rules if name not in read),
    ]
    return "\n".join(("%llguidance {}", f"start: {_called('root', numbers, read)}", *lines))


def _called(name: str, numbers: Mapping[str, int], terminals: Collection[str]) -> str:
    """The name of a rule in Lark's notation."""
    return f"{'TERMINAL' if name in terminals else 'rule'}_{numbers[name]}"


def _is_terminal(parts: list[str], terminals: set[str]) -> bool:
    return all(part in terminals if isinstance(part, Rule) else not isinstance(part, Token) for part in parts)


def _refused(grammar: str, why: str) -> ParameterError:
    return ParameterError(f"the grammar is not valid: {why}", got=grammar)


class _Parser:
    """Reads a grammar from front to back.  Rules are lists of parts, in Lark's notation but for the names of rules."""

    def __init__(self, grammar: str, token_of: Callable[[str], int | None]) -> None:
        self.grammar = grammar
        self.token_of = token_of
        self.at = 0

    def rules(self) -> dict[str, list[str]]:
        """All rules by name; of several with one name the last."""
        found: dict[str, list[str]] = {}
        self.skip(_SPACES_AND_LINES)
        while self.at < len(self.grammar):
            name = self.expect(_NAME, "the name of a rule")[0]
            self.skip(_SPACES)
            self.expect(re.compile("::="), "'::='")
            self.skip(_SPACES_AND_LINES)
            found[name] = self.alternatives(0)
            if self.next not in ("\r", "\n", ""):
                raise self.unexpected("a part of the rule, or the end of its line")
            self.skip(_SPACES_AND_LINES)
        return found

    def alternatives(self, depth: int) -> list[str]:
        """The parts up to the end of a rule, or of a group inside of ``depth`` parentheses."""
        found = self.sequence(depth)
        while self.next == "|":
            self.at += 1
            self.skip(_SPACES_AND_LINES)
            found += [" | ", *self.sequence(depth)]
        return found

    def sequence(self, depth: int) -> list[str]:
        spaces = _SPACES_AND_LINES if depth else _SPACES
        found: list[str] = []
        while (part := self.part(depth)) is not None:
            self.skip(spaces)
            for _ in range(MOST_PARENTHESES):
                count = self.count()
                if count is None:
                    break
                one = len(part) == 1 or part[-1] == ")"
                part = [*(part if one else ("(", *part, ")")), count] if count else ['""']
                self.skip(spaces)
            found += [" ", *part]
        return found[1:] or ['""']

    def part(self, depth: int) -> list[str] | None:
        """The next part, or None at the end of a sequence."""
        first = self.next
        if first == '"':
            return [self.string()]
        if first == "[":
            return [self.characters()]
        if first == ".":
            self.at += 1
            return ["/(?s:.)/"]
        if first in ("<", "!"):
            return [self.token()]
        if first == "(":
            if depth == MOST_PARENTHESES:
                raise self.refused(f"more than {MOST_PARENTHESES} nested parentheses")
            self.at += 1
            self.skip(_SPACES_AND_LINES)
            inner = self.alternatives(depth + 1)
            self.expect(re.compile(r"\)"), "')'")
            return ["(", *inner, ")"]
        name = _NAME.match(self.grammar, self.at)
        if name is None:
            return None
        self.at = name.end()
        return [Rule(name[0])]

    def count(self) -> str | None:
        """How often the part before occurs; "" for never, None if nothing says so."""
        if self.next in ("*", "+", "?"):
            self.at += 1
            return self.grammar[self.at - 1]
        if self.next != "{":
            return None
        found = self.expect(_COUNT, "a count such as {2}, {2,} or {2,5}")
        least = int(found[1])
        most = least if found[2] is None else int(found[3]) if found[3] else None
        if most is not None and most < least:
            raise self.refused(f"a part cannot occur {least} to {most} times")
        return "" if most == 0 else f"{{{least},{'' if most is None else most}}}"

    def string(self) -> str:
        self.at += 1
        found: list[str] = []
        while self.next != '"':
            found.append(chr(self.character()))
        self.at += 1
        return json.dumps("".join(found), ensure_ascii=False)

    def characters(self) -> str:
        """A class of characters; like llama.cpp's, an empty one matches no characters but an empty text."""
        self.at += 1
        inverse = "^" if self.next == "^" else ""
        self.at += len(inverse)
        found: list[str] = []
        while self.next != "]":
            found.append(f"\\x{{{self.character():x}}}")
            if self.next == "-" and self.grammar[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                found.append(f"-\\x{{{self.character():x}}}")
        self.at += 1
        return f"/[{inverse}{''.join(found)}]/" if found else '""'

    def character(self) -> int:
        """The number of the next character of a string or a class."""
        if self.next == "":
            raise self.unexpected("the end of the string or class")
        if self.next != "\\":
            number = ord(self.next)
            self.at += 1
        else:
            *numbers, letter = self.expect(
                _ESCAPE, 'an escape such as \\n, \\", \\x41, \\u00e9 or \\U0001F600'
            ).groups()
            number = ord(_LETTERS.get(letter, letter)) if letter else int(next(filter(None, numbers)), 16)
        if 0xD800 <= number < 0xE000 or number > _LARGEST:
            raise self.refused(f"U+{number:04X} is no character; write those above U+FFFF as \\U0001F600")
        return number

    def token(self) -> str:
        found = self.expect(_TOKEN, "a token, such as <think> or <[1000]>")
        inverse, text, number = found.groups()
        token = self.token_of(text) if number is None else number
        if token is None:
            raise self.refused(f"the vocabulary has no token {text!r}")
        return Token(f"<[{'^' if inverse else ''}{token}]>")

    # -- reading -----------------------------------------------------------------------------------

    @property
    def next(self) -> str:
        """The next character; "" at the end."""
        return self.grammar[self.at : self.at + 1]

    def skip(self, spaces: re.Pattern[str]) -> None:
        found = spaces.match(self.grammar, self.at)
        assert found is not None
        self.at = found.end()

    def expect(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.match(self.grammar, self.at)
        if found is None:
            raise self.unexpected(what)
        self.at = found.end()
        return found

    def unexpected(self, wanted: str) -> ParameterError:
        got = repr(self.grammar[self.at : self.at + 20]) if self.next else "the end of the grammar"
        return self.refused(f"expected {wanted}, got {got}")

    def refused(self, why: str) -> ParameterError:
        line = self.grammar.count("\n", 0, self.at) + 1
        return _refused(self.grammar, f"in line {line}, {why}")
