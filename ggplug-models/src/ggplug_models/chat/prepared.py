"""A chat that is ready to be answered: its prompt, and what the answer may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ggplug.errors import ParameterError
from ggplug_models.chat.described import described, without_system
from ggplug_models.chat.formats.format import Format, PlainFormat
from ggplug_models.chat.formats.special import hermes
from ggplug_models.chat.lark import Lark
from ggplug_models.chat.parsing import AnswerParser
from ggplug_models.chat.template import ChatTemplate, Message, check_messages
from ggplug_models.chat.tool_arguments import check_calls
from ggplug_models.chat.tools import AnyTool, Tool, ToolChoice, tools_of
from ggplug_models.sampling.control_tokens import ControlTokens

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Values of ``reasoning_effort``; ``none``: no reasoning."""


@dataclass(frozen=True)
class PreparedChat:
    """A prompt, with the format of its answer.

    ``choice``: the tools that the answer may call.  ``opening``: the part of the answer with which the prompt ends.
    """

    prompt: str
    format: Format
    choice: ToolChoice
    opening: str

    @property
    def reasons(self) -> bool:
        """Whether the answer begins within the reasoning."""
        return self.format.reasons_at(self.opening)

    @property
    def is_plain(self) -> bool:
        """Whether the answer can only be text, without calls, reasoning and marks."""
        return not self.choice.tools and not self.format.marks

    def continued(self, content: str, reasoning: str = "") -> PreparedChat:
        """The chat whose answer begins with a given text, or with a reasoning only, and is continued."""
        opening = self.format.continued(self.opening, content, reasoning)
        kept = self.prompt[: len(self.prompt) - len(self.opening)]
        return replace(self, prompt=kept + opening, opening=opening)

    def parser(self, *, reasoning: bool = True) -> AnswerParser:
        """A parser of the answer.  ``reasoning``: whether the reasoning is separate from the text."""
        if reasoning:
            return AnswerParser(self.format, self.choice.tools, self.opening)
        return AnswerParser(self.format.without_reasoning(), self.choice.tools)

    def grammar(self, control: ControlTokens, schema: Any = None) -> str | None:
        """The grammar of the answer, in the notation of Lark; None if it may be any text.

        ``schema``: the JSON schema of the answer's text; None: any text.  Raises ParameterError for a schema that is
        not valid.
        """
        if not self.choice.tools and schema is None:
            return None
        lark = Lark(control, self.format.id)
        content = None if schema is None else lark.schema(schema)
        return lark.text(self.format.grammar(lark, self.choice, self.opening, content))


def prepared(
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    tools: Sequence[AnyTool] | None = None,
    tool_choice: Any = None,
    parallel_tool_calls: bool | None = None,
    reasoning_effort: str | None = None,
    variables: Mapping[str, Any] | None = None,
) -> PreparedChat:
    """Renders a chat for an answer.

    ``tools``: functions that the model may call, as Python functions or as in the OpenAI API.  ``tool_choice``: see
    :meth:`.ToolChoice.of`.  ``parallel_tool_calls``: whether an answer may have several calls, by default whether the
    template takes such answers.  ``reasoning_effort``: one of :data:`EFFORTS`, which templates of some models use;
    ``"none"``: the model is asked not to reason.
    ``variables``: those of the template, see :meth:`.ChatTemplate.render`.

    Raises ParameterError, ModelError as that method does.
    """
    check_messages(messages)
    check_calls(messages)
    known = tools_of(tools)
    variables = variables or {}
    if reasoning_effort is not None:
        if reasoning_effort not in EFFORTS:
            listed = ", ".join(EFFORTS)
            raise ParameterError(
                f"reasoning_effort must be one of {listed}, got {reasoning_effort!r:.100}", got=reasoning_effort
            )
        variables = {**_effort(reasoning_effort), **variables}
    if known and template.for_tools is not None:
        template = template.for_tools
    format = template.format
    several = format.several if parallel_tool_calls is None else parallel_tool_calls
    choice = ToolChoice.of(known, tool_choice, several=several)
    if not known:
        text = template.render(messages, **variables)
    elif format.calls:
        text = template.render(messages, tools=[tool.message for tool in known], **variables)
    else:
        format = PlainFormat(format.reasoning, hermes())
        text = _described(template, messages, known, variables)
    return PreparedChat(text, format, choice, format.opening(text))


def _effort(effort: str) -> dict[str, Any]:
    """The variables of templates for an effort."""
    if effort == "none":
        return {"enable_thinking": False}
    return {"reasoning_effort": effort, "reasoning_strength": effort}


def _described(
    template: ChatTemplate, messages: Sequence[Message], tools: Sequence[Tool], variables: Mapping[str, Any]
) -> str:
    """The prompt with a description of the tools, for a template that does not support them."""
    found = described(messages, tools)
    try:
        return template.render(found, **variables)
    except ParameterError:  # some templates refuse a system message
        return template.render(without_system(found), **variables)
