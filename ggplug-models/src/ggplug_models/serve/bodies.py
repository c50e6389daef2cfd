"""What clients send: the bodies of the OpenAI API's requests, checked.

Numbers are checked for their kind alone; which values they may have is told where they are used, such as by
:class:`~ggplug_models.sampling.Sampling`.  A check ends with the first item that is wrong, so that a body of a million
wrong ones is refused as fast as one of a million right ones is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    create_model,
    field_validator,
    model_validator,
)

from ggplug_models.checks.ids import listed_ids
from ggplug_models.sampling.parameters import SETTINGS
from ggplug_models.serve.problems import Problem

MOST_TEXTS = 16
"""Texts that one request may ask for."""

MOST_STOPS = 16
"""Strings of which each ends a text."""

MOST_KEYS = 256
"""Of an object that this module checks."""

MOST_BIASES = 4096
"""Tokens with a bias."""

T = TypeVar("T")

Many: TypeAlias = Annotated[list[T], Field(fail_fast=True)]
Count = Annotated[int, Field(ge=1)]


def _few(value: Any) -> Any:
    """Dictionaries are checked to their ends, whatever is wrong with them, so they may not be large."""
    if isinstance(value, dict) and len(value) > MOST_BIASES:
        raise ValueError(f"{len(value)} tokens have a bias; there may be {MOST_BIASES}")
    return value


def _texts(value: Any) -> Any:
    """Only the kind of the items is looked at: how many there may be is known where they are used."""
    kinds = set(map(type, value)) if isinstance(value, list) else set()
    if not isinstance(value, (str, list)) or len(kinds) > 1 or not kinds <= {str, int, list}:
        raise ValueError("Input should be a text, or a list of what this parameter takes")
    return value


Texts: TypeAlias = Annotated[str | list[int] | list[str] | list[list[int]], PlainValidator(_texts)]
"""A text, token ids, or a list of texts or of lists; what these lists hold is checked by :func:`ids_of`."""


class Body(BaseModel):
    """A JSON object.  A key with null is as one that is not there; other keys than the known ones are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MOST_KEYS:
            raise ValueError(f"an object has {len(value)} keys; there may be {MOST_KEYS}")
        return {key: each for key, each in value.items() if each is not None} if isinstance(value, dict) else value


class Schema(Body):
    """``schema``: a JSON schema."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema", default_factory=dict)
    strict: bool = True


class ResponseFormat(Body):
    """What the text has to be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None

    @model_validator(mode="after")
    def _has_a_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema belongs to the type json_schema, and the type needs it")
        return self


class StreamOptions(Body):
    """``include_usage``: whether the stream ends with how many tokens there were."""

    include_usage: bool = False
    include_obfuscation: bool = False


_SETTINGS: dict[str, Any] = {
    name: (kind | None, None) for name, (kind, _) in SETTINGS.items() if not name.startswith("dynamic_")
}
_Settings = create_model("_Settings", __base__=Body, **_SETTINGS)
"""Settings of :class:`~ggplug_models.sampling.Sampling`, most of which the OpenAI API does not have.

Checked for their kind alone; a temperature that goes up and down is none of what clients may ask for.
"""


class TextBody(_Settings, Body):  # type: ignore[valid-type, misc]
    """What completions and chats have in common."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MOST_TEXTS)] = 1
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS, fail_fast=True)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    logit_bias: Annotated[dict[str, float], BeforeValidator(_few)] | None = None
    seed: int | None = None

    # What changes no text, or says what is so anyway.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="after")
    def _options_of_a_stream(self) -> TextBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options are for stream: true")
        return self

    @property
    def settings(self) -> dict[str, Any]:
        """Those of :class:`~ggplug_models.sampling.Sampling` that the client gave."""
        return {name: value for name in _SETTINGS if (value := getattr(self, name)) is not None}

    @property
    def stops(self) -> list[str]:
        """The strings of which each ends a text."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class CompletionBody(TextBody):
    """``POST /v1/completions``."""

    prompt: Texts
    max_tokens: Count = 16
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None


class TextPart(Body):
    """A part of a message; there are no others than texts."""

    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """A message of a chat; what else it has is for the template."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Many[TextPart] | None = None

    def as_template_sees_it(self) -> dict[str, Any]:
        """With its text as a string; a developer's message is a system's."""
        content = self.content if not isinstance(self.content, list) else "".join(part.text for part in self.content)
        role = "system" if self.role == "developer" else self.role
        return {**(self.model_extra or {}), "role": role, "content": content or ""}


class ChatBody(TextBody):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> ChatBody:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    @field_validator("messages")
    @classmethod
    def _ends_with_one(cls, messages: list[ChatMessage]) -> list[ChatMessage]:
        if [message.role for message in messages[-2:]] == ["assistant"] * 2:
            raise ValueError("the last two are the assistant's; join them, or end with a user's or a tool's message")
        return messages


class EmbeddingBody(Body):
    """``POST /v1/embeddings``."""

    model: str | None = None
    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = None
    user: str | None = None


def several(found: Texts) -> Sequence[str | list[int]]:
    """One text, or the token ids of one, as a list of one."""
    if isinstance(found, str):
        return [found]
    return [found] if found and isinstance(found[0], int) else found  # type: ignore[return-value]


def ids_of(found: list[int], most: int, n_vocab: int, what: str, room: str) -> list[int]:
    """The token ids that a client gave for a text; those of one that is too long are not looked at.

    ``most``: how many there may be, and ``room``: this in words.  ``what``: names them.  Raises Problem, and
    ParameterError as :func:`.token_ids` does.
    """
    check_length(len(found), most, what, room)
    if bool in set(map(type, found)):
        raise Problem(400, f"{what} has true or false among its token ids", param=_param(what), code="invalid_value")
    return listed_ids(found, n_vocab, what)


def check_length(count: int, most: int, what: str, room: str, *, at_least: bool = False) -> None:
    """Raises Problem for more than ``most`` tokens.  ``at_least``: whether there may be more than ``count``."""
    if count > most:
        many = f"at least {count}" if at_least else str(count)
        raise Problem(400, f"{what} has {many} tokens; {room}", param=_param(what), code="context_length_exceeded")


def _param(what: str) -> str:
    return what.partition("[")[0]
