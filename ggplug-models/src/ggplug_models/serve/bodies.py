"""What clients send: the bodies of the OpenAI API's requests, checked.

Numbers are checked for their kind alone; which values they may have is told where they are used, such as by
:class:`~ggplug_models.sampling.Sampling`.  A check ends with the first item that is wrong, so that a body of a million
wrong ones is refused as fast as one of a million right ones is read.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

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
Texts: TypeAlias = str | Many[int] | Many[str] | Many[Many[int]]
"""A text, token ids, or a list of texts or of lists of token ids."""


def _few(value: Any) -> Any:
    """Dictionaries are checked to their ends, whatever is wrong with them, so they may not be large."""
    if isinstance(value, dict) and len(value) > MOST_BIASES:
        raise ValueError(f"{len(value)} tokens have a bias; there may be {MOST_BIASES}")
    return value


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


class TextBody(Body):
    """What completions and chats have in common.

    From ``top_k`` on: settings that the OpenAI API does not have; they are those of
    :class:`~ggplug_models.sampling.Sampling`, as are the defaults of all of them.
    """

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MOST_TEXTS)] = 1
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS, fail_fast=True)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    logit_bias: Annotated[dict[str, float], BeforeValidator(_few)] | None = None
    seed: int | None = None

    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    repeat_penalty: float | None = None
    penalty_last_n: int | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_last_n: int | None = None

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


class EmbeddingBody(Body):
    """``POST /v1/embeddings``."""

    model: str | None = None
    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = None
    user: str | None = None


def several(found: Texts) -> list[str] | list[list[int]]:
    """One text, or the token ids of one, as a list of one."""
    if isinstance(found, str):
        return [found]
    if found and isinstance(found[0], int):
        return [[each for each in found if isinstance(each, int)]]
    return found  # type: ignore[return-value]
