"""How much a chat template may make: a bound on its work, whatever operations it does.

Templates come with files from anywhere.  Everything that one makes (the result of each call, filter and operator, each
list, each piece of text) is measured and taken off an :class:`Allowance`, each step of a loop as well; and where one
operation can make far more than it is given, how much is estimated beforehand.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set, Sized, ValuesView
from typing import Any

from jinja2.exceptions import SecurityError

from ggplug_models.chat.tool_arguments import Arguments

SMALLEST = 1 << 22
"""Characters and items that a template may make, however short the chat is."""

LARGEST = 1 << 32
"""The same, however long the chat is."""

STEP = 4
"""What a step of a loop, a call or a filter takes off, besides what it makes."""

SECONDS = 10.0
"""Processor time that a template may take."""

DEEPEST = 100
"""Lists and dicts in each other."""

MOST = 1 << 20
"""Items of lists and dicts, with those of what they hold."""

INTEGER_BITS = 1 << 16
"""The largest integer that a product or power may give; what follows of it is quadratic in its digits."""

WIDEST = 1 << 12
"""The largest width, indentation, number of columns or of digits."""

SHORT = 1 << 14
"""Characters of a text for filters whose time is quadratic in it."""


class Allowance:
    """What one rendering may still make.

    ``chat``: what it is rendered for.  A template may write the whole chat a few times for each message, so that the
    allowance grows with both.
    """

    def __init__(self, chat: Any, messages: int) -> None:
        self.left = min(LARGEST, SMALLEST + 8 * measured(chat)[0] * (messages + 8))
        self._until = time.thread_time() + SECONDS

    def check(self, amount: int, what: str) -> None:
        """Raises SecurityError where ``what`` makes more than is left."""
        if amount > self.left:
            raise SecurityError(f"{what} makes more than a template may: {amount} characters or items")

    def spend(self, amount: int, what: str) -> None:
        """Takes ``amount`` off.  Raises SecurityError where that, or the time, is more than is left."""
        self.check(amount, what)
        self.left -= amount
        if time.thread_time() > self._until:
            raise SecurityError(f"the template takes longer than {SECONDS:g} seconds")


def measured(value: Any) -> tuple[int, int]:
    """Characters and items of a value, with all that it holds, as often as it holds it; and how deep it is.

    Raises SecurityError for what is deeper than DEEPEST, or holds more than MOST items.
    """
    size = items = depth = 0
    unread: list[Iterator[Any]] = [iter((value,))]
    while unread:
        for part in unread[-1]:
            items += 1
            size += 1
            if isinstance(part, (str, bytes)):
                size += len(part)
            elif isinstance(part, int):
                size += part.bit_length() // 8
            elif isinstance(part, Mapping):
                size += len(str(part)) if isinstance(part, Arguments) else 0  # which may be written out
                unread.append(each for pair in part.items() for each in pair)
                break
            elif isinstance(part, _COLLECTIONS):
                unread.append(iter(part))
                break
        else:
            unread.pop()
        depth = max(depth, len(unread) - 1)
        if depth > DEEPEST or items > MOST:
            raise SecurityError(f"lists and dicts are nested deeper than {DEEPEST}, or hold more than {MOST} items")
    return size, depth


_COLLECTIONS = (list, tuple, Set, ValuesView)


def operation(operator: str, left: Any, right: Any) -> int:
    """How much an operator makes at the most.  Raises SecurityError for integers that become too large."""
    if isinstance(left, int) and isinstance(right, int):
        bits, more = left.bit_length(), right.bit_length()
        bits = {"**": bits * abs(right), "*": bits + more}.get(operator, 0)
        if bits > INTEGER_BITS:
            raise SecurityError(f"{operator} makes an integer of {bits} bits; a template's may have {INTEGER_BITS}")
        return 1
    if operator == "*":
        times, of = (left, right) if isinstance(left, int) else (right, left)
        return max(0, times) * measured(of)[0] if isinstance(times, int) else 1
    if operator == "%" and isinstance(left, (str, bytes)):
        return formatted(left, (right,))
    return measured(left)[0] + measured(right)[0]


def formatted(form: str | bytes, arguments: Iterable[Any]) -> int:
    """How many characters a form with arguments gives at the most, of ``%``'s language or of ``str.format``'s."""
    text = form.decode("latin-1") if isinstance(form, bytes) else form
    given = list(arguments)
    numbers = [int(number[:9]) for number in re.findall(r"\d+", text)]
    if _WIDTH_ARGUMENT.search(text):
        numbers += [abs(number) for number in _integers(given)]
    if max(numbers, default=0) > WIDEST and _FIELDS.search(text):
        raise SecurityError(f"a form has the number {max(numbers)}; a template's widths go to {WIDEST}")
    fields = len(_FIELDS.findall(text))
    return len(text) + fields * (max(numbers, default=0) + measured(given)[0])


_FIELDS = re.compile(r"[%{]")
_WIDTH_ARGUMENT = re.compile(r"%[^%a-zA-Z]*\*|\{[^{}]*\{")


def _integers(values: Iterable[Any]) -> Iterator[int]:
    for value in values:
        if isinstance(value, int):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _integers(value)
        elif isinstance(value, Mapping):
            yield from _integers(value.values())


# -- what methods and filters make ----------------------------------------------------------------

Estimate = Callable[[Any, list[Any]], int]
"""How much is made at the most: of what a method or filter is for, and of its other arguments."""


def linear(subject: Any, arguments: list[Any]) -> int:
    """What makes no more than a few times what it is given."""
    return 0


def widened(subject: Any, arguments: list[Any]) -> int:
    """What fills up, indents or cuts into lines."""
    width = max((abs(number) for number in _integers(arguments)), default=4)
    if width > WIDEST:
        raise SecurityError(f"the width {width} is more than a template may have: {WIDEST}")
    size, depth = measured(subject)
    return (size + 1) * (1 + width * max(1, depth) + sum(len(text) for text in arguments if isinstance(text, str)))


def replaced(subject: Any, arguments: list[Any]) -> int:
    """``replace(old, new)``."""
    text, old, new = str(subject), *(str(each) for each in [*arguments, "", ""][:2])
    return len(text) + text.count(old) * len(new)


def joined(subject: Any, arguments: list[Any]) -> int:
    """``separator.join(items)``."""
    return sum(measured(items)[0] + len(subject) * len(items) for items in arguments if isinstance(items, Sized))


def summed(subject: Any, arguments: list[Any]) -> int:
    """``sum`` of numbers; a sum of lists copies each as often as there are."""
    if any(isinstance(each, (list, tuple)) for each in arguments):
        raise SecurityError("sum adds numbers in templates")
    return 0


def translated(subject: Any, arguments: list[Any]) -> int:
    """``translate(table)``."""
    tables = [table for table in arguments if isinstance(table, Mapping)]
    return len(subject) * max((measured(new)[0] for table in tables for new in table.values()), default=1)


def searched(subject: Any, arguments: list[Any]) -> int:
    """What Python searches from behind, or a character at a time: its time is the product of both lengths."""
    return len(subject) * (1 + sum(len(text) for text in arguments if isinstance(text, str)))


def percented(subject: Any, arguments: list[Any]) -> int:
    """``form % arguments``."""
    return formatted(str(subject), arguments)


def written(subject: Any, arguments: list[Any]) -> int:
    """``form.format(arguments)`` and ``form.format_map(arguments)``."""
    if _ATTRIBUTE.search(str(subject)):
        raise SecurityError("a form names an attribute of what it writes")
    return formatted(subject, arguments)


_ATTRIBUTE = re.compile(r"\{[^{}:!]*\.")


def short(subject: Any, arguments: list[Any]) -> int:
    """What takes time that is quadratic in the text."""
    size = measured(subject)[0]
    if size > SHORT:
        raise SecurityError(f"{size} characters are more than a template may do that with: {SHORT}")
    return widened(subject, arguments)
