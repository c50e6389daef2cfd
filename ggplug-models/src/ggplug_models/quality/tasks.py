"""Tasks with several answers, of which a model is to find the most probable: HellaSwag, WinoGrande, multiple choice.

The files are llama-perplexity's, and so is the choice of some of their tasks.
"""

from __future__ import annotations

import csv
import io
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ggplug.errors import ParameterError

ENDINGS = 4
"""The number of endings of a task of HellaSwag."""

MOST_ANSWERS = 100
"""The largest number of answers of a multiple choice, for llama.cpp too."""


@dataclass(frozen=True)
class Task:
    """``texts``: a whole text with each answer in it.  ``right``: the numbers of the right answers.

    ``heads``: of WinoGrande, the beginning of each text up to the answer: what follows is compared.  Of other tasks
    none: then everything behind the beginning that the texts have in common is compared.
    """

    texts: tuple[str, ...]
    right: frozenset[int]
    heads: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kind:
    """A kind of tasks.

    ``title``: its name, for people.  ``parse``: reads a file, and raises ParameterError for one that is no such file.
    ``select``: chooses some tasks.  ``count``: how many are chosen by default; None: all.
    """

    title: str
    parse: Callable[[bytes], list[Task]]
    select: Callable[[list[Task], int], list[Task]]
    count: int | None = None

    def read(self, data: bytes, count: int | None = None) -> list[Task]:
        """``count`` tasks of a file (default: :attr:`count`), or all if there are no more."""
        tasks = self.parse(data)
        if not tasks:
            raise ParameterError(f"there are no tasks of {self.title} in the file", got=0)
        count = self.count if count is None else count
        if count is not None and count < 1:
            raise ParameterError(f"the number of tasks must be at least 1, got {count}", got=count)
        return self.select(tasks, len(tasks) if count is None else min(count, len(tasks)))


# -- files ---------------------------------------------------------------------------------------------


def _lines(data: bytes) -> list[str]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ParameterError(f"the tasks are not valid UTF-8 at byte {error.start}", got=error.start) from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def hellaswag(data: bytes) -> list[Task]:
    """Reads six lines for each task: context, number of the right ending (from 0), four endings."""
    lines, size = _lines(data), ENDINGS + 2
    if len(lines) % size:
        raise ParameterError(
            f"a task of HellaSwag has {size} lines, and {len(lines)} lines are no whole number of tasks",
            got=len(lines),
            remedy="give a file of context, number of the right ending, and four endings, each on a line",
        )
    found = []
    for at in range(0, len(lines), size):
        context, label, *endings = lines[at : at + size]
        right = label.strip()
        if right not in map(str, range(ENDINGS)):
            raise ParameterError(
                f"line {at + 2} must be the number of the right ending, 0 to {ENDINGS - 1}, got {label[:40]!r}",
                got=label,
            )
        found.append(Task(tuple(f"{context} {ending}" for ending in endings), frozenset([int(right)])))
    return found


def winogrande(data: bytes) -> list[Task]:
    """Reads CSV: number, sentence with ``_`` for the answer, two answers, the right one (1 or 2)."""
    found = []
    for number, fields in enumerate(_rows("\n".join(_lines(data))), 1):
        if not fields:
            continue
        if len(fields) != 5 or "_" not in fields[1] or fields[4].strip() not in ("1", "2"):
            raise ParameterError(
                f"row {number} is no task of WinoGrande: it must have a number, a sentence with _, two answers, and "
                f"1 or 2 for the right one, got {','.join(fields)[:60]!r}",
                got=fields,
            )
        before, _, after = fields[1].partition("_")
        heads = tuple(before + answer for answer in fields[2:4])
        found.append(Task(tuple(head + after for head in heads), frozenset([int(fields[4]) - 1]), heads))
    return found


def _rows(text: str) -> Iterator[list[str]]:
    rows = csv.reader(io.StringIO(text, newline=""))
    try:
        yield from rows
    except csv.Error as error:
        raise ParameterError(
            f"the row that ends at line {rows.line_num} is no CSV: {error}",
            got=rows.line_num,
            remedy="look for a quotation mark that is not closed",
        ) from None


def multiple_choice(data: bytes) -> list[Task]:
    """Reads llama.cpp's binary file.

    It has the number of tasks, the position of each, then for each the question and two lists of answers with labels
    (1: right); only the first list counts.
    """
    fields = _Fields(data)
    count = fields.integer("the number of tasks")
    if count > len(data) // 4:
        raise fields.wrong(f"it would have {count} tasks")
    fields.at += 4 * count
    return [_task_of(fields, number) for number in range(count)]


class _Fields:
    """Reads the fields of a binary file one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def wrong(self, why: str) -> ParameterError:
        return ParameterError(
            f"the tasks are no multiple choice of llama.cpp, or are truncated: {why} at byte {self.at} of "
            f"{len(self._data)}",
            got=self.at,
        )

    def integer(self, what: str) -> int:
        return self.integers(1, what)[0]

    def integers(self, count: int, what: str) -> tuple[int, ...]:
        return struct.unpack(f"<{count}I", self._take(4 * count, what))

    def text(self, what: str) -> str:
        piece = self._take(self.integer(f"the length of {what}"), what)
        try:
            return piece.decode("utf-8")
        except UnicodeDecodeError:
            raise self.wrong(f"{what} is not valid UTF-8") from None

    def _take(self, size: int, what: str) -> bytes:
        if size > len(self._data) - self.at:
            raise self.wrong(f"{what} does not fit")
        self.at += size
        return self._data[self.at - size : self.at]


def _task_of(fields: _Fields, number: int) -> Task:
    question = fields.text(f"question {number}")
    (answers, right), _ = (_answers(fields, number) for _ in range(2))
    if not question or not answers or not all(answers):
        raise fields.wrong(f"task {number} has an empty question, no answers, or an empty one")
    return Task(tuple(f"{question} {answer}" for answer in answers), right)


def _answers(fields: _Fields, number: int) -> tuple[list[str], frozenset[int]]:
    count = fields.integer(f"the number of answers of task {number}")
    if count > MOST_ANSWERS:
        raise fields.wrong(f"task {number} would have {count} answers")
    texts = [fields.text(f"answer {place} of task {number}") for place in range(count)]
    labels = fields.integers(count, f"the labels of task {number}")
    return texts, frozenset(place for place, label in enumerate(labels) if label == 1)


# -- choice --------------------------------------------------------------------------------------------


def _random() -> Iterator[int]:
    """The numbers of ``std::mt19937`` with the seed 1, which llama-perplexity draws from."""
    random = np.random.RandomState(1)
    while True:
        yield from map(int, random.randint(0, 1 << 32, 256, np.uint32))


def shuffled(tasks: Sequence[Task], count: int) -> list[Task]:
    """``count`` tasks, each drawn from those that are left (``std::uniform_int_distribution`` of GNU's library)."""
    left, random, found = list(tasks), _random(), []
    for _ in range(count):
        size = len(left)
        product = next(random) * size
        while product % (1 << 32) < (1 << 32) % size:  # so that all have the same probability
            product = next(random) * size
        found.append(left.pop(product >> 32))
    return found


def drawn(tasks: list[Task], count: int) -> list[Task]:
    """All tasks in their order; if ``count`` is less, so many drawn ones, whose places the last ones take."""
    if count == len(tasks):
        return tasks
    left, random, found = list(tasks), _random(), []
    for _ in range(count):
        fraction = np.float32(next(random)) * np.float32(2.0**-32)
        place = min(int(fraction * np.float32(len(left))), len(left) - 1)
        found.append(left[place])
        left[place] = left[-1]
        left.pop()
    return found


KINDS = {
    "hellaswag": Kind("HellaSwag", hellaswag, shuffled, 400),
    "winogrande": Kind("WinoGrande", winogrande, drawn),
    "multiple-choice": Kind("multiple choice", multiple_choice, drawn),
}
