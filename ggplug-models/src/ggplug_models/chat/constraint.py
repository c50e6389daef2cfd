"""The constraint of the answer to a chat: the grammar of its calls, and the limit of its reasoning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ggplug_models.chat.budget import ReasoningBudget
from ggplug_models.chat.prepared import PreparedChat
from ggplug_models.checks.arguments import whole
from ggplug_models.sampling.control_tokens import ControlTokens
from ggplug_models.sampling.sampler import Constraint
from ggplug_models.tokenizers import Tokenizer

if TYPE_CHECKING:
    from ggplug_models.sampling.grammar import Grammars


class Speaks(Protocol):
    """What a constraint needs of a language model."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""

    @property
    def n_vocab(self) -> int:
        """Number of logits."""

    @property
    def control(self) -> ControlTokens:
        """The control tokens."""

    @property
    def grammars(self) -> Grammars:
        """Makes constraints to grammars."""


def constraint_of(
    chat: PreparedChat,
    model: Speaks,
    *,
    schema: Any = None,
    reasoning_budget: int | None = None,
    budget_message: str = "",
) -> Constraint | None:
    """The constraint of an answer; None if it may be any text.

    ``schema``: the JSON schema of its text.  ``reasoning_budget``: maximum number of tokens of the reasoning; None or
    -1: no limit.  ``budget_message``: a text that ends a reasoning that reaches the limit.  Raises ParameterError,
    ModelError.
    """
    found: Constraint | None = None
    if schema is not None and chat.is_plain:
        found = model.grammars.json_schema(schema, lenient=True)
    elif (grammar := chat.grammar(model.control, schema)) is not None:
        found = model.grammars.answer(grammar)
    budget = -1 if reasoning_budget is None else whole("reasoning_budget", reasoning_budget, -1)
    form = chat.format
    if budget < 0 or form.reasoning is None or (chat.opening and not chat.reasons and not form.reasons_again):
        return found
    return ReasoningBudget(
        budget,
        form.reasoning.start,
        form.reasoning_ends(calls=bool(chat.choice.tools)),
        model.tokenizer,
        model.n_vocab,
        reasons=chat.reasons,
        again=form.reasons_again,
        message=budget_message,
        inner=found,
    )
