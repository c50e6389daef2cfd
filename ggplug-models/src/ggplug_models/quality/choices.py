"""Which of several answers a model finds the most probable."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ggplug.errors import ModelError, ParameterError
from ggplug.types import Type
from ggplug_models.checks.ids import in_common
from ggplug_models.perplexity import surprises
from ggplug_models.quality.tasks import Task
from ggplug_models.state.session import LanguageModel, Session
from ggplug_models.state.steps import Outputs

_FEW = 3
"""WinoGrande: if no more tokens than this differ, the answer itself is compared too."""

_NORMAL = 1.95996398454
"""The quantile of the normal distribution for an interval of 95 %."""


class Choice(NamedTuple):
    """``logs``: the mean of log p of the compared tokens, for each answer.  ``chosen``: the number of the best one."""

    logs: tuple[float, ...]
    chosen: int
    right: bool


class Accuracy(NamedTuple):
    """How many tasks a model solved.  ``chance``: the fraction that random answers would solve."""

    right: int
    tasks: int
    chance: float

    @property
    def value(self) -> float:
        """The fraction of the tasks that were solved."""
        return self.right / self.tasks

    @property
    def error(self) -> float:
        """The standard error of the fraction."""
        return math.sqrt(self.value * (1 - self.value) / max(self.tasks - 1, 1))

    @property
    def interval(self) -> tuple[float, float]:
        """The fractions between which the true one is with a probability of 95 % (Wilson's score interval)."""
        share = _NORMAL**2 / self.tasks
        middle = self.value + share / 2
        half = math.sqrt(share * (self.value * (1 - self.value) + share / 4))
        return (middle - half) / (1 + share), (middle + half) / (1 + share)


@dataclass(frozen=True)
class _Answers:
    """The texts of a task as tokens; ``common``: how many all have in common; ``compared``: which of each count."""

    tokens: list[list[int]]
    common: int
    compared: list[range]

    @property
    def needed(self) -> int:
        """The number of tokens of the longest text that are decoded."""
        return max(each.stop - 1 for each in self.compared)


def choose(model: LanguageModel, tasks: Sequence[Task], cache_type: str | Type = "f16") -> Iterator[Choice]:
    """Yields for each task which answer a model finds the most probable, by the mean of log p of its tokens.

    Of tokens that an answer begins with, those that all answers have in common do not count.  WinoGrande compares the
    tokens behind the answers but the last one, and the answers too if few tokens follow them.

    Raises ParameterError for a task whose texts have no first token in common, or are longer than the model's context
    length; ModelError if logits are not finite; and what sessions raise.
    """
    prepared = [_answers(model, task, number) for number, task in enumerate(tasks)]
    n_seq, n_ctx = (max(map(of, prepared)) for of in (lambda each: len(each.tokens), lambda each: each.needed))
    with model.session(n_ctx, n_seq, cache_type) as session:
        for number, (task, answers) in enumerate(zip(tasks, prepared, strict=True)):
            logs = tuple(_logs(session, answers))
            if not all(map(math.isfinite, logs)):
                raise ModelError(f"the logits of task {number} are not finite", got=number)
            chosen = int(np.argmax(logs))
            yield Choice(logs, chosen, chosen in task.right)


def accuracy(tasks: Sequence[Task], choices: Sequence[Choice]) -> Accuracy:
    """How many of the tasks that were chosen for were solved; at least one."""
    done = len(choices)
    return Accuracy(sum(each.right for each in choices), done, done / sum(len(task.texts) for task in tasks[:done]))


def _answers(model: LanguageModel, task: Task, number: int) -> _Answers:
    tokens = [model.tokenizer.encode(text, add_special=True) for text in task.texts]
    shortest = min(map(len, tokens))
    common = min(shortest - 1, *(in_common(tokens[0], each) for each in tokens))
    if common < 1:
        raise ParameterError(
            f"the texts of task {number} have no first token in common, so nothing predicts their first one", got=number
        )
    heads = [len(model.tokenizer.encode(head, add_special=True)) for head in task.heads] or [common] * len(tokens)
    if shortest - common <= _FEW:
        heads = [common] * len(tokens)
    compared = []
    for each, head in zip(tokens, heads, strict=True):
        first = max(head, common) if head < len(each) else common
        drops = bool(task.heads) and len(each) - first > 1
        compared.append(range(first, len(each) - drops))
    answers = _Answers(tokens, common, compared)
    if answers.needed > model.n_ctx:
        raise ParameterError(
            f"task {number} has {answers.needed} tokens; the context length of the model is {model.n_ctx}",
            got=answers.needed,
            wanted=model.n_ctx,
        )
    return answers


def _logs(session: Session, answers: _Answers) -> Iterator[float]:
    """The mean of log p of the compared tokens of each answer."""
    session.clear()
    start = answers.common - 1
    if start:
        session.decode({0: answers.tokens[0][:start]}, Outputs.NONE)
        for seq in range(1, len(answers.tokens)):
            session.copy(0, seq)
    pairs = list(zip(answers.tokens, answers.compared, strict=True))
    decoded = {seq: tokens[start : compared.stop - 1] for seq, (tokens, compared) in enumerate(pairs)}
    logits = session.decode(decoded, Outputs.ALL, few=session.n_ctx)
    for seq, (tokens, compared) in enumerate(pairs):
        rows = logits[seq][compared.start - 1 - start :]
        yield -float(surprises(rows, np.array(tokens[compared.start : compared.stop])).mean())
