"""``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, model_validator

from ggplug_models.serve.answers import Delta, Written
from ggplug_models.serve.apis.openai import OpenAIReply, ResponseFormat, StreamOptions, as_text, others
from ggplug_models.serve.bodies.asked import Asked
from ggplug_models.serve.bodies.asking import asked
from ggplug_models.serve.bodies.body import Whole
from ggplug_models.serve.bodies.parameters import MOST_SCORES
from ggplug_models.serve.log_probabilities import Scored
from ggplug_models.serve.messages import Messages, chat_prompt
from ggplug_models.serve.writer import Writer


class ChatBody(Messages):
    """The body of ``/v1/chat/completions``."""

    logprobs: bool = False
    top_logprobs: Annotated[Whole, Field(ge=0, le=MOST_SCORES)] | None = None
    response_format: ResponseFormat | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> ChatBody:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs requires logprobs: true")
        return self


def ask(writer: Writer, body: ChatBody) -> Asked:
    """What a chat asks for.  Raises Problem, ParameterError, ModelError."""
    prompt = chat_prompt(writer, body)
    return asked(
        body,
        [prompt.ids],
        begins=prompt.begins,
        chat=prompt.chat,
        form=None if body.response_format is None else body.response_format.form,
        scores=body.top_logprobs or 0 if body.logprobs else None,
        usage_in_stream=body.stream_options is not None and body.stream_options.include_usage,
    )


class ChatReply(OpenAIReply):
    """The replies of ``/v1/chat/completions``."""

    PREFIX, WHOLE, CHUNK = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def first(self, index: int) -> dict[str, Any] | None:
        return {"delta": {"role": "assistant", "content": None}}

    def text(self, written: Written, index: int) -> dict[str, Any]:
        return {"message": {**written.message, "refusal": None}}

    def delta(self, delta: Delta) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for piece in delta.pieces:
            if piece.content:
                found["content"] = found.get("content", "") + piece.content
            if piece.reasoning:
                found["reasoning_content"] = found.get("reasoning_content", "") + piece.reasoning
            if piece.call is not None:
                function: dict[str, Any] = {"arguments": piece.call.arguments}
                call: dict[str, Any] = {"index": piece.call.index, "function": function}
                if piece.call.name is not None:
                    function["name"] = piece.call.name
                    call |= {"id": piece.call.id, "type": "function"}
                found.setdefault("tool_calls", []).append(call)
        return {"delta": found}

    def scores(self, scores: Sequence[Scored], index: int) -> dict[str, Any]:
        content = []
        for scored in scores:
            best = [
                _score(token, as_text(data), value, data)
                for token, data, value in others(self.served.tokenizer, scored)
            ]
            own = _score(scored.score.token, scored.token_text.text, scored.score.value, scored.token_text.data)
            content.append(own | {"top_logprobs": best})
        return {"content": content, "refusal": None}


def _score(token: int, text: str, value: float, data: bytes) -> dict[str, Any]:
    return {"id": token, "token": text, "logprob": value, "bytes": list(data)}
