"""Texts that are known: a function that chooses their tokens, whatever the logits are, and short chat templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ggplug_models.sampling import Constraint
from ggplug_models.tokenizers import Tokenizer

HERMES = """{%- for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}
{%- for c in m.tool_calls or [] %}{% set f = c.function %}<tool_call>
{{- {"name": f.name, "arguments": f.arguments} | tojson }}</tool_call>{% endfor %}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
"""A short template in the format of Hermes; the tools are not in the prompt."""

THINKING = """{%- for m in messages %}<|{{ m.role }}|>
{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}
{%- for c in m.tool_calls or [] %}{% set f = c.function %}<tool_call>
{{- {"name": f.name, "arguments": f.arguments} | tojson }}</tool_call>{% endfor %}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|assistant|><think>{% if not enable_thinking %}</think>{% endif %}{% endif %}"""
"""The same for a model that reasons: the prompt begins the reasoning, unless ``enable_thinking`` is false."""


class Scripted:
    """Chooses the tokens of ``texts``, one text for each answer, and an end token after each.

    ``constraint``: each token must be allowed.
    """

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str], constraint: Constraint | None = None) -> None:
        end = min(tokenizer.ends)
        self._tokens = [token for text in texts for token in [*tokenizer.encode(text, begins=False), end]]
        self._constraint = constraint
        self.refused: list[int] = []

    def __call__(self, logits: Any, history: Sequence[int]) -> int:
        token = self._tokens.pop(0)
        if self._constraint is not None:
            assert self._constraint.allowed()[token], f"token {token} is not allowed"
            self._constraint.accept(token)
        return token
