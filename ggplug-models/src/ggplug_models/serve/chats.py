"""Chats in requests: tools, reasoning, and the prompt that the template makes of the messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ggplug_models.chat.constraint import Speaks, constraint_of
from ggplug_models.chat.parsing import AnswerParser
from ggplug_models.chat.prepared import PreparedChat
from ggplug_models.sampling import Constraint


@dataclass(frozen=True)
class AskedChat:
    """A chat, and how its answer is limited and split.

    ``budget``: maximum number of tokens of the reasoning; None or -1: no limit.  ``budget_message``: ends a reasoning
    that reaches it.  ``splits``: whether the reasoning is separate from the answer's text.
    """

    prepared: PreparedChat
    budget: int | None = None
    budget_message: str = ""
    splits: bool = True

    @property
    def is_constrained(self) -> bool:
        """Whether an answer, of any form, has a constraint."""
        return bool(self.prepared.choice.tools) or (self.budget is not None and self.budget >= 0)

    def parser(self) -> AnswerParser:
        """A parser of an answer."""
        return self.prepared.parser(reasoning=self.splits)

    def constraint(self, model: Speaks, schema: Any = None) -> Constraint | None:
        """The constraint of an answer.  ``schema``: that of its text.  Raises ParameterError, ModelError."""
        return constraint_of(
            self.prepared, model, schema=schema, reasoning_budget=self.budget, budget_message=self.budget_message
        )
