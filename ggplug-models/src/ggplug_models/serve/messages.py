"""Messages of chats in requests, and the prompts that a template makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field, field_validator

from ggplug_models.chat.prepared import PreparedChat, prepared
from ggplug_models.serve.bodies.body import Body, Many, Whole
from ggplug_models.serve.bodies.parameters import TextBody
from ggplug_models.serve.chats import AskedChat
from ggplug_models.serve.problems import Problem
from ggplug_models.serve.writer import Writer

OTHER_KINDS = (
    "image",
    "image_url",
    "input_image",
    "audio",
    "input_audio",
    "video",
    "input_video",
    "file",
    "input_file",
)

RESERVED = ("messages", "tools", "add_generation_prompt", "self")
"""Variables of templates that other parameters set."""


def _kind(value: Any) -> Any:
    if value in OTHER_KINDS:
        kind = value.removeprefix("input_").removesuffix("_url")
        raise ValueError(f"{kind} input is not supported: this model reads text only")
    return value


class TextPart(Body):
    """A text part of a message; other kinds of parts are refused."""

    type: Annotated[
        Literal["text", "input_text", "output_text", "refusal", "thinking", "reasoning_text"], BeforeValidator(_kind)
    ]
    text: str = ""


class ChatMessage(Body):
    """A message of a chat; further keys are passed to the template."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Many[TextPart] | None = None

    def for_template(self) -> dict[str, Any]:
        """The message with its content as one string; the role developer becomes system."""
        role = "system" if self.role == "developer" else self.role
        return {**(self.model_extra or {}), "role": role, "content": self.text}

    @property
    def text(self) -> str:
        """The content as one string, each part on a line of its own, as llama-server and vLLM have it."""
        return self.joined("\n")

    def joined(self, between: str) -> str:
        """The content as one string, with a text between its parts."""
        return (
            between.join(part.text for part in self.content) if isinstance(self.content, list) else self.content or ""
        )


class Messages(TextBody):
    """The parameters of all requests with messages."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    tools: Many[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] = "auto"
    reasoning_budget_tokens: Annotated[Whole, Field(ge=-1)] | None = Field(
        default=None, validation_alias=AliasChoices("reasoning_budget_tokens", "thinking_budget_tokens")
    )
    reasoning_budget_message: Annotated[str, Field(max_length=1000)] = ""

    @field_validator("messages")
    @classmethod
    def _ends_with_one(cls, messages: list[ChatMessage]) -> list[ChatMessage]:
        if [message.role for message in messages[-2:]] == ["assistant"] * 2:
            raise ValueError(
                "the last two messages are the assistant's; join them, or add a user's or a tool's message"
            )
        return messages


class ChatPrompt(NamedTuple):
    """The prompt of a chat as token ids, what its answer may be, and whether that begins after the prompt."""

    ids: list[int]
    chat: AskedChat
    begins: bool


def chat_text(writer: Writer, body: Messages) -> str:
    """The text of the prompt of a chat.  Raises Problem, ParameterError, ModelError."""
    return prepared_chat(writer, body).prompt


def prepared_chat(writer: Writer, body: Messages) -> PreparedChat:
    """The chat of a request.

    A last message of the assistant is continued, unless ``add_generation_prompt`` says whether another one begins.
    Raises Problem, ParameterError, ModelError.
    """
    if body.add_generation_prompt and body.continue_final_message:
        raise Problem(
            400,
            "add_generation_prompt and continue_final_message cannot both be true: an answer begins or is continued",
            param="continue_final_message",
            code="invalid_value",
        )
    last = body.messages[-1]
    if is_continued(body):
        found = rendered(writer, body.messages[:-1], body, begins=True)
        text = last.joined("\n\n")  # so does llama-server
        return found.continued(text, str((last.model_extra or {}).get("reasoning_content") or ""))
    if body.continue_final_message:
        raise Problem(
            400,
            "continue_final_message: the last message is not the assistant's",
            param="continue_final_message",
            code="invalid_value",
        )
    return rendered(writer, body.messages, body, begins=body.add_generation_prompt is not False)


def is_continued(body: Messages) -> bool:
    """Whether the answer continues the last message, the assistant's."""
    last = body.messages[-1]
    if last.role != "assistant" or not body.messages[1:] or (last.model_extra or {}).get("tool_calls"):
        return False
    if body.continue_final_message is None:
        return body.add_generation_prompt is None
    return body.continue_final_message and not body.add_generation_prompt


def rendered(writer: Writer, messages: Sequence[ChatMessage], body: Messages, *, begins: bool) -> PreparedChat:
    """What the template makes of messages.  ``begins``: whether the beginning of an answer follows them."""
    variables = {name: value for name, value in body.chat_template_kwargs.items() if name not in RESERVED}
    thinks = writer.defaults.thinks if body.enable_thinking is None else body.enable_thinking
    if body.enable_thinking is not None or body.reasoning_effort != "none":
        variables.setdefault("enable_thinking", thinks)
    if not isinstance(thinking := variables.get("enable_thinking", True), bool):
        raise Problem(
            400,
            f"chat_template_kwargs: enable_thinking must be a boolean, got {thinking!r:.100}",
            param="chat_template_kwargs",
            code="invalid_value",
        )
    return prepared(
        writer.template,
        [message.for_template() for message in messages],
        tools=body.tools or None,
        tool_choice=body.tool_choice if body.tools or body.tool_choice == "required" else None,
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=body.reasoning_effort,
        variables={**variables, "add_generation_prompt": begins},
    )


def chat_prompt(writer: Writer, body: Messages) -> ChatPrompt:
    """The prompt of a chat.  Raises Problem, ParameterError, ModelError."""
    chat = prepared_chat(writer, body)
    asked = AskedChat(
        chat,
        budget=body.reasoning_budget_tokens,
        budget_message=body.reasoning_budget_message,
        splits=body.reasoning_format != "none",
    )
    return ChatPrompt(writer.prompt(chat.prompt, "messages"), asked, not is_continued(body))
