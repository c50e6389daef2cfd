"""Messages of chats in requests, and the prompts that a template makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, ConfigDict, Field, field_validator

from ggplug_models.serve.body import Body, Many
from ggplug_models.serve.parameters import TextBody
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
        """The content as one string."""
        return "".join(part.text for part in self.content) if isinstance(self.content, list) else self.content or ""


class Messages(TextBody):
    """The parameters of all requests with messages."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    tools: list[dict[str, Any]] | None = None

    @field_validator("messages")
    @classmethod
    def _ends_with_one(cls, messages: list[ChatMessage]) -> list[ChatMessage]:
        if [message.role for message in messages[-2:]] == ["assistant"] * 2:
            raise ValueError(
                "the last two messages are the assistant's; join them, or add a user's or a tool's message"
            )
        return messages


class ChatPrompt(NamedTuple):
    """The prompt of a chat as text and as token ids."""

    text: str
    ids: list[int]


def chat_text(writer: Writer, body: Messages) -> str:
    """The text of the prompt of a chat.

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
    messages = body.messages
    continued = ""
    begins = body.add_generation_prompt
    if body.continue_final_message is not False and begins is not True and messages[-1].role == "assistant":
        if begins is None or body.continue_final_message:
            continued, messages, begins = messages[-1].text, messages[:-1], True
    elif body.continue_final_message:
        raise Problem(
            400,
            "continue_final_message: the last message is not the assistant's",
            param="continue_final_message",
            code="invalid_value",
        )
    return rendered(writer, messages, body, begins=begins is not False) + continued


def rendered(writer: Writer, messages: Sequence[ChatMessage], body: Messages, *, begins: bool) -> str:
    """What the template makes of messages.  ``begins``: whether the beginning of an answer follows them."""
    return writer.template.render(
        [message.for_template() for message in messages],
        add_generation_prompt=begins,
        tools=body.tools or None,
        **{name: value for name, value in body.chat_template_kwargs.items() if name not in RESERVED},
    )


def chat_prompt(writer: Writer, body: Messages) -> ChatPrompt:
    """The prompt of a chat.  Raises Problem, ParameterError, ModelError."""
    text = chat_text(writer, body)
    return ChatPrompt(text, writer.prompt(text, "messages"))
