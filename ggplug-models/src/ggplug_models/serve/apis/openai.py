"""What OpenAI's APIs for texts have in common, with the additions of llama-server's."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from ggplug_models.serve.answers import Answers, Delta, Written
from ggplug_models.serve.apis.llama_server import final
from ggplug_models.serve.bodies.asked import Asked, Form
from ggplug_models.serve.bodies.body import Body
from ggplug_models.serve.http.event_stream import DONE
from ggplug_models.serve.log_probabilities import Scored
from ggplug_models.serve.reply import Reply, Served
from ggplug_models.serve.request import Progress
from ggplug_models.tokenizers import Tokenizer


class Schema(Body):
    """The OpenAI API's object around a JSON schema."""

    model_config = ConfigDict(populate_by_name=True)

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema", default_factory=dict)
    strict: bool = True


class ResponseFormat(Body):
    """The format that the answer must have, in OpenAI's form, or with llama-server's ``schema`` next to the type."""

    model_config = ConfigDict(populate_by_name=True)

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: Schema | None = None
    schema_: dict[str, Any] | None = Field(alias="schema", default=None)

    @model_validator(mode="after")
    def _has_a_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None and self.schema_ is None:
            raise ValueError("the type json_schema requires json_schema")
        return self

    @property
    def form(self) -> Form | None:
        """The form of the text."""
        if self.type == "text":
            return None
        if self.json_schema is not None and self.type == "json_schema":
            return Form("schema", self.json_schema.schema_)
        return Form("json") if self.schema_ is None else Form("schema", self.schema_)


class StreamOptions(Body):
    """``include_usage``: whether the last chunk of the stream has the numbers of tokens."""

    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: bool = False


class OpenAIReply(Reply):
    """Makes the JSON objects of the answers to one request."""

    PREFIX: ClassVar[str]
    WHOLE: ClassVar[str]
    CHUNK: ClassVar[str]

    def __init__(self, served: Served, body: Any, asked: Asked, answers: Answers) -> None:
        super().__init__(served, body, asked, answers)
        self.id = f"{self.PREFIX}-{secrets.token_hex(12)}"
        self.created = int(time.time())

    def whole(self) -> dict[str, Any]:
        choices = []
        for index, written in enumerate(self.answers.written):
            scores = self.scores(written.scores, index) if self._is_scored(index) else None
            choice = {"index": index, **self.text(written, index), "logprobs": scores}
            choices.append({**choice, "finish_reason": written.finish})
        more = {"usage": usage(self.answers), "timings": self.answers.timings()}
        if self.asked.verbose:
            more["__verbose"] = final(self.served, self.asked, self.answers, 0)
        return self._object(self.WHOLE, choices) | more

    def begin(self) -> Iterator[bytes]:
        for index in range(len(self.answers.texts)):
            first = self.first(index)
            if first is not None:
                yield self.event(self._chunk({"index": index, **first, "logprobs": None, "finish_reason": None}))

    def piece(self, delta: Delta) -> Iterator[bytes]:
        if delta.progress is not None:
            choice = {"index": delta.index, **self.delta(delta), "logprobs": None, "finish_reason": None}
            chunk = self._chunk(choice, delta.index, delta.progress)
            yield self.event(chunk | {"prompt_progress": delta.progress.fields})
            return
        if not (delta.pieces or delta.scores or delta.finish):
            return
        scores = self.scores(delta.scores, delta.index) if self._is_scored(delta.index) else None
        choice = {"index": delta.index, **self.delta(delta), "logprobs": scores, "finish_reason": delta.finish}
        more = {}
        if delta.finish is not None and not self.asked.usage_in_stream:
            more["timings"] = self.answers.timings(delta.index)
        yield self.event(self._chunk(choice, delta.index) | more)

    def end(self) -> Iterator[bytes]:
        if self.asked.usage_in_stream:
            more = {"usage": usage(self.answers), "timings": self.answers.timings()}
            yield self.event(self._object(self.CHUNK, []) | more)
        yield DONE

    def first(self, index: int) -> dict[str, Any] | None:
        """The part of the first chunk of a text; None if there is no such chunk."""
        return None

    def text(self, written: Written, index: int) -> dict[str, Any]:
        """The part of a choice with a whole text."""
        raise NotImplementedError

    def delta(self, delta: Delta) -> dict[str, Any]:
        """The part of a choice with a piece of a text."""
        raise NotImplementedError

    def scores(self, scores: Sequence[Scored], index: int) -> dict[str, Any]:
        """The log probabilities of the next tokens of the text with the number ``index``."""
        raise NotImplementedError

    def _is_scored(self, index: int) -> bool:
        return self.answers.texts[index].scores is not None

    def _chunk(
        self, choice: dict[str, Any], index: int | None = None, progress: Progress | None = None
    ) -> dict[str, Any]:
        more: dict[str, Any] = {"usage": None} if self.asked.usage_in_stream else {}
        if self.asked.timings_per_token and index is not None:
            more["timings"] = self.answers.timings(index, progress)
        return self._object(self.CHUNK, [choice]) | more

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.served.name,
            "system_fingerprint": self.served.fingerprint,
            "choices": choices,
        }


def others(tokenizer: Tokenizer, scored: Scored) -> list[tuple[int, bytes, float]]:
    """The most probable tokens at a position: ids, bytes (of control tokens their names), and log probabilities."""
    pieces = [(token, tokenizer.piece(token), value) for token, value in scored.score.others]
    if not scored.token_text.bare:
        return pieces
    return [(token, piece.removeprefix(b" "), value) for token, piece, value in pieces]


def as_text(data: bytes) -> str:
    """The text of a token's bytes."""
    return data.decode("utf-8", "replace")


def usage(answers: Answers) -> dict[str, Any]:
    """The numbers of tokens of a request."""
    return {
        "prompt_tokens": answers.prompt_tokens,
        "completion_tokens": answers.generated_tokens,
        "total_tokens": answers.prompt_tokens + answers.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": answers.reused_tokens},
    }
