"""Checks the request bodies of the OpenAI API.

Only the types of numbers are checked here; their ranges are checked where they are used, for instance by
:class:`~ggplug_models.sampling.Sampling`.  A check stops at the first wrong item, so that a body with a million wrong
items does not take longer than a body with a million right ones.
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
"""Maximum number of texts of a request."""

MOST_STOPS = 16
"""Maximum number of stop strings."""

MOST_KEYS = 256
"""Maximum number of keys of a JSON object."""

MOST_BIASES = 4096
"""Maximum number of tokens with a bias."""

T = TypeVar("T")

Many: TypeAlias = Annotated[list[T], Field(fail_fast=True)]
Count = Annotated[int, Field(ge=1)]


def _few(value: Any) -> Any:
    """Limits the size of a dict, because pydantic checks all items of dicts, also after an error."""
    if isinstance(value, dict) and len(value) > MOST_BIASES:
        raise ValueError(f"has {len(value)} tokens; at most {MOST_BIASES} are allowed")
    return value


def _texts(value: Any) -> Any:
    """Checks only the type of the items; their number is limited where they are used."""
    kinds = set(map(type, value)) if isinstance(value, list) else set()
    if not isinstance(value, (str, list)) or len(kinds) > 1 or not kinds <= {str, int, list}:
        raise ValueError("Input should be a string, a list of strings, token ids, or a list of lists of token ids")
    return value


Texts: TypeAlias = Annotated[str | list[int] | list[str] | list[list[int]], PlainValidator(_texts)]
"""A text, token ids, a list of texts, or a list of lists of token ids, which :func:`ids_of` checks."""


class Body(BaseModel):
    """A JSON object.  A key with null counts as missing; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MOST_KEYS:
            raise ValueError(f"an object has {len(value)} keys; at most {MOST_KEYS} are allowed")
        return {key: each for key, each in value.items() if each is not None} if isinstance(value, dict) else value


class Schema(Body):
    """The OpenAI API's object around a JSON schema."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema", default_factory=dict)
    strict: bool = True


class ResponseFormat(Body):
    """The format that the answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None

    @model_validator(mode="after")
    def _has_a_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("the type json_schema requires json_schema, and no other type allows it")
        return self


class StreamOptions(Body):
    """``include_usage``: whether the last chunk of the stream has the numbers of tokens."""

    include_usage: bool = False
    include_obfuscation: bool = False


_SETTINGS: dict[str, Any] = {
    name: (kind | None, None) for name, (kind, _) in SETTINGS.items() if not name.startswith("dynamic_")
}
_Settings = create_model("_Settings", __base__=Body, **_SETTINGS)
"""The settings of :class:`~ggplug_models.sampling.Sampling`, of which the OpenAI API has only some.

Only their types are checked.  Clients cannot set the dynamic temperature.
"""


class TextBody(_Settings, Body):  # type: ignore[valid-type, misc]
    """The parameters that completions and chats have in common."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MOST_TEXTS)] = 1
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS, fail_fast=True)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    logit_bias: Annotated[dict[str, float], BeforeValidator(_few)] | None = None
    seed: int | None = None

    # Accepted and ignored: these do not change the text.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="after")
    def _options_of_a_stream(self) -> TextBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options require stream: true")
        return self

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of :class:`~ggplug_models.sampling.Sampling` in the request."""
        return {name: value for name in _SETTINGS if (value := getattr(self, name)) is not None}

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class CompletionBody(TextBody):
    """``POST /v1/completions``."""

    prompt: Texts
    max_tokens: Count = 16
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None


class TextPart(Body):
    """A text part of a message; other kinds of parts are refused."""

    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """A message of a chat; further keys are passed to the template."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Many[TextPart] | None = None

    def for_template(self) -> dict[str, Any]:
        """The message with its content as one string; the role developer becomes system."""
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
            raise ValueError("top_logprobs requires logprobs: true")
        return self

    @field_validator("messages")
    @classmethod
    def _ends_with_one(cls, messages: list[ChatMessage]) -> list[ChatMessage]:
        if [message.role for message in messages[-2:]] == ["assistant"] * 2:
            raise ValueError(
                "the last two messages are the assistant's; join them, or add a user's or a tool's message"
            )
        return messages


class EmbeddingBody(Body):
    """``POST /v1/embeddings``."""

    model: str | None = None
    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = None
    user: str | None = None


def several(found: Texts) -> Sequence[str | list[int]]:
    """The texts of ``found`` as a list; a single text, or the token ids of one, becomes a list of one."""
    if isinstance(found, str):
        return [found]
    return [found] if found and isinstance(found[0], int) else found  # type: ignore[return-value]


def ids_of(found: list[int], most: int, n_vocab: int, what: str, limit: str) -> list[int]:
    """Checks the token ids of a request; if there are too many, without looking at them.

    ``most``: maximum number.  ``limit``: the same in words.  ``what``: their name in errors.  Raises Problem, and
    ParameterError as :func:`.token_ids` does.
    """
    check_length(len(found), most, what, limit)
    if bool in set(map(type, found)):
        raise Problem(400, f"{what} has a boolean among its token ids", param=_param(what), code="invalid_value")
    return listed_ids(found, n_vocab, what)


def check_length(count: int, most: int, what: str, limit: str, *, at_least: bool = False) -> None:
    """Raises Problem if ``count`` is more than ``most``.  ``at_least``: whether ``count`` is only a lower bound."""
    if count > most:
        many = f"at least {count}" if at_least else str(count)
        raise Problem(400, f"{what} has {many} tokens; {limit}", param=_param(what), code="context_length_exceeded")


def _param(what: str) -> str:
    return what.partition("[")[0]
