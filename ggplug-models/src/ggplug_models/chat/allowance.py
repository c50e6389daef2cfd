"""Limits the memory and time of a chat template, whatever operations it uses.

Templates come with model files, which may be malicious.  The size of everything that a template makes (the result of
each call, filter and operator, each list, each text) is subtracted from an :class:`Allowance`, and so is a constant for
each iteration of a loop.  If one operation can make much more than its arguments, its size is estimated beforehand.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set, Sized, ValuesView
from typing import Any

from jinja2.exceptions import SecurityError

from ggplug_models.chat.tool_arguments import Arguments

SMALLEST = 1 << 22
"""The smallest allowance, in characters and items, for a short chat."""

LARGEST = 1 << 32
"""The largest allowance, for a long chat."""

STEP = 4
"""The cost of an iteration, a call or a filter, in addition to the size of its result."""

SECONDS = 10.0
"""Maximum processor time of a template."""

DEEPEST = 100
"""Maximum nesting depth of lists and dicts."""

MOST = 1 << 20
"""Maximum number of items of lists and dicts, with nested ones."""

INTEGER_BITS = 1 << 16
"""Maximum bits of a product or power, because printing an integer takes quadratic time."""

WIDEST = 1 << 12
"""Largest width, indentation, or number of columns or digits."""

SHORT = 1 << 14
"""Maximum length of a text for filters that take quadratic time."""


class Allowance:
    """The characters and items that one rendering may still make, and its time limit.

    ``chat``: the variables of the template.  The allowance grows with the size of the chat times the number of
    messages, because a template may print the whole chat a few times for each message.
    """

    def __init__(self, chat: Any, messages: int) -> None:
        self.left = min(LARGEST, SMALLEST + 8 * measured(chat)[0] * (messages + 8))
        self._until = time.thread_time() + SECONDS

    def check(self, amount: int, what: str) -> None:
        """Raises SecurityError if ``amount`` exceeds the allowance.  ``what``: the operation, for the message."""
        if amount > self.left:
            raise SecurityError(f"{what} makes {amount} characters or items, more than a template is allowed")

    def spend(self, amount: int, what: str) -> None:
        """Subtracts ``amount``.  Raises SecurityError if that exceeds the allowance, or the time limit is reached."""
        self.check(amount, what)
        self.left -= amount
        if time.thread_time() > self._until:
            raise SecurityError(f"the template exceeds the time limit of {SECONDS:g} seconds")


def measured(value: Any) -> tuple[int, int]:
    """The size of a value in characters and items, with everything that it contains, and its nesting depth.

    Raises SecurityError if it is deeper than DEEPEST, or has more than MOST items.
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
                size += len(str(part)) if isinstance(part, Arguments) else 0  # which may be printed
                unread.append(each for pair in part.items() for each in pair)
                break
            elif isinstance(part, _COLLECTIONS):
                unread.append(iter(part))
                break
        else:
            unread.pop()
        depth = max(depth, len(unread) - 1)
        if depth > DEEPEST or items > MOST:
            raise SecurityError(f"lists and dicts are nested deeper than {DEEPEST}, or have more than {MOST} items")
    return size, depth


_COLLECTIONS = (list, tuple, Set, ValuesView)


def operation(operator: str, left: Any, right: Any) -> int:
    """An upper bound of the size of an operator's result.  Raises SecurityError for integers that become too large."""
    if isinstance(left, int) and isinstance(right, int):
        bits, more = left.bit_length(), right.bit_length()
        bits = {"**": bits * abs(right), "*": bits + more}.get(operator, 0)
        if bits > INTEGER_BITS:
            raise SecurityError(f"{operator} makes an integer of {bits} bits; at most {INTEGER_BITS} are allowed")
        return 1
    if operator == "*":
        times, of = (left, right) if isinstance(left, int) else (right, left)
        return max(0, times) * measured(of)[0] if isinstance(times, int) else 1
    if operator == "%" and isinstance(left, (str, bytes)):
        return formatted(left, (right,))
    return measured(left)[0] + measured(right)[0]


def formatted(form: str | bytes, arguments: Iterable[Any]) -> int:
    """An upper bound of the length of a formatted text.  ``form``: a format string of ``%`` or ``str.format``."""
    text = form.decode("latin-1") if isinstance(form, bytes) else form
    values = list(arguments)
    numbers = [int(number[:9]) for number in re.findall(r"\d+", text)]
    if _WIDTH_ARGUMENT.search(text):
        numbers += [abs(number) for number in _integers(values)]
    if max(numbers, default=0) > WIDEST and _FIELDS.search(text):
        raise SecurityError(f"a format string has the width {max(numbers)}; at most {WIDEST} is allowed")
    fields = len(_FIELDS.findall(text))
    return len(text) + fields * (max(numbers, default=0) + measured(values)[0])


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


# -- sizes of the results of methods and filters --------------------------------------------------

Estimate = Callable[[Any, list[Any]], int]
"""A function from the object and the arguments of a method or filter to an upper bound of its result's size."""


def linear(subject: Any, arguments: list[Any]) -> int:
    """For operations whose result is not much larger than their arguments."""
    return 0


def widened(subject: Any, arguments: list[Any]) -> int:
    """An upper bound of the result's size, for operations that pad, indent or wrap.  Raises SecurityError."""
    width = max((abs(number) for number in _integers(arguments)), default=4)
    if width > WIDEST:
        raise SecurityError(f"the width {width} exceeds the limit of {WIDEST}")
    size, depth = measured(subject)
    return (size + 1) * (1 + width * max(1, depth) + sum(len(text) for text in arguments if isinstance(text, str)))


def replaced(subject: Any, arguments: list[Any]) -> int:
    """For ``replace(old, new)``."""
    text, old, new = str(subject), *(str(each) for each in [*arguments, "", ""][:2])
    return len(text) + text.count(old) * len(new)


def joined(subject: Any, arguments: list[Any]) -> int:
    """For ``separator.join(items)``."""
    return sum(measured(items)[0] + len(subject) * len(items) for items in arguments if isinstance(items, Sized))


def summed(subject: Any, arguments: list[Any]) -> int:
    """For ``sum`` of numbers; a sum of lists is refused, because it takes quadratic time."""
    if any(isinstance(each, (list, tuple)) for each in arguments):
        raise SecurityError("sum supports only numbers in templates")
    return 0


def appended(subject: Any, arguments: list[Any]) -> int:
    """For ``append`` of a text or number to a list; a list could be within itself, or many times in another one."""
    if not isinstance(arguments[0] if arguments else None, (str, int, float, type(None))):
        raise SecurityError("append supports only texts and numbers in templates")
    return measured(arguments[:1])[0]


def translated(subject: Any, arguments: list[Any]) -> int:
    """For ``translate(table)``."""
    tables = [table for table in arguments if isinstance(table, Mapping)]
    return len(subject) * max((measured(new)[0] for table in tables for new in table.values()), default=1)


def searched(subject: Any, arguments: list[Any]) -> int:
    """For searches that take time proportional to the product of both lengths."""
    return len(subject) * (1 + sum(len(text) for text in arguments if isinstance(text, str)))


def percented(subject: Any, arguments: list[Any]) -> int:
    """For ``form % arguments``."""
    return formatted(str(subject), arguments)


def str_formatted(subject: Any, arguments: list[Any]) -> int:
    """For ``form.format(arguments)`` and ``form.format_map(arguments)``."""
    if _ATTRIBUTE.search(str(subject)):
        raise SecurityError("a format string reads an attribute of its argument")
    return formatted(subject, arguments)


_ATTRIBUTE = re.compile(r"\{[^{}:!]*\.")


def short(subject: Any, arguments: list[Any]) -> int:
    """For operations that take quadratic time."""
    size = measured(subject)[0]
    if size > SHORT:
        raise SecurityError(
            f"the text has {size} characters, more than the {SHORT} that this operation allows in templates"
        )
    return widened(subject, arguments)
