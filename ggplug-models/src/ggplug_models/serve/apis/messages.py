"""Anthropic's ``/v1/messages``, and ``/v1/messages/count_tokens``."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from ggplug_models.chat.answer import AnswerPiece
from ggplug_models.serve.answers import Answers, Delta, arguments_of
from ggplug_models.serve.bodies.asked import Asked
from ggplug_models.serve.bodies.asking import asked
from ggplug_models.serve.bodies.body import Body, Many
from ggplug_models.serve.bodies.parameters import TextBody
from ggplug_models.serve.http.event_stream import named_event
from ggplug_models.serve.messages import ChatMessage, Messages, chat_prompt
from ggplug_models.serve.problems import Problem, wrong
from ggplug_models.serve.reply import Reply, Served
from ggplug_models.serve.service import Service
from ggplug_models.serve.writer import Writer

KINDS: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Anthropic's types of errors, by status."""


class Message(Body):
    """A message: text, or blocks of several kinds."""

    role: Literal["user", "assistant", "system"]
    content: str | Many[dict[str, Any]]


class Choice(Body):
    """The parameter ``tool_choice``.  ``name``: of the tool that must be called, for the type ``tool``."""

    type: str = "auto"
    name: str | None = None
    disable_parallel_tool_use: bool = False


class AnthropicBody(TextBody):
    """The body of ``/v1/messages``."""

    NO_EFFECT = TextBody.NO_EFFECT | {"betas", "context_management", "mcp_servers", "container"}

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    system: str | Many[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Choice = Field(default_factory=Choice)
    thinking: dict[str, Any] | None = None


def ask(writer: Writer, body: AnthropicBody) -> Asked:
    """What the messages ask for.  Raises Problem, ParameterError, ModelError."""
    prompt = chat_prompt(writer, chat_of(body))
    return asked(body, [prompt.ids], begins=prompt.begins, chat=prompt.chat)


def count_tokens(service: Service, body: AnthropicBody) -> dict[str, Any]:
    """The number of tokens of the prompt."""
    return {"input_tokens": len(chat_prompt(service.texts, chat_of(body)).ids)}


def chat_of(body: AnthropicBody) -> Messages:
    """The messages and tools in OpenAI's form.  Raises Problem for blocks that are not text, and if there are none."""
    messages = [{"role": "system", "content": _text(body.system)}] if body.system else []
    for number, message in enumerate(body.messages):
        messages += _converted(message, f"messages.{number}")
    if not messages:
        raise wrong(("messages",), "no message has any content")
    tools = [
        {
            "type": "function",
            "function": {
                "name": each.get("name"),
                "description": each.get("description", ""),
                "parameters": each.get("input_schema", {"type": "object", "properties": {}}),
            },
        }
        for each in body.tools or ()
    ]
    thinking = body.thinking or {}
    more: dict[str, Any] = {}
    if thinking.get("type") in ("enabled", "disabled"):
        more["enable_thinking"] = thinking["type"] == "enabled"
    if isinstance(budget := thinking.get("budget_tokens"), int) and budget >= 0:
        more["reasoning_budget_tokens"] = budget
    choice = body.tool_choice
    named = {"type": "function", "function": {"name": choice.name}}
    found: Messages = Messages.model_construct(
        tool_choice={"any": "required", "tool": named}.get(choice.type, choice.type) if tools else None,
        parallel_tool_calls=False if choice.disable_parallel_tool_use else None,
        **more,
        messages=[ChatMessage.model_validate(each) for each in messages],
        tools=tools or None,
        chat_template_kwargs={},
    )
    return found


def _converted(message: Message, what: str) -> Iterator[dict[str, Any]]:
    """The messages that one stands for: results of tools are messages of their own, which come first."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    texts, reasoning, calls = [], [], []
    for block in message.content:
        kind = block.get("type")
        if kind == "text":
            texts.append(str(block.get("text", "")))
        elif kind in ("thinking", "redacted_thinking"):
            reasoning.append(str(block.get("thinking", "")))
        elif kind == "tool_use":
            function = {
                "name": block.get("name"),
                "arguments": json.dumps(block.get("input") or {}, ensure_ascii=False),
            }
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            content = _text(block.get("content") or "", what)
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}
        else:
            raise _unsupported(kind, what)
    more: dict[str, Any] = {}
    if reasoning:
        more["reasoning_content"] = "".join(reasoning)
    if calls:
        more["tool_calls"] = calls
    if texts or more:
        yield {"role": message.role, "content": "\n".join(texts), **more}


def _text(content: Any, what: str = "system") -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong((what,), "the content must be a text, or a list of blocks of the type text")
    for block in content:
        if not isinstance(block, dict) or block.get("type") != "text":
            raise _unsupported(block.get("type") if isinstance(block, dict) else None, what)
    return "\n".join(str(block.get("text", "")) for block in content)


def _unsupported(kind: Any, what: str) -> Problem:
    return Problem(
        400,
        f"{what}: {kind!s:.40} input is not supported: this model reads text only",
        param=what,
        code="invalid_value",
    )


def error_body(problem: Problem) -> dict[str, Any]:
    """An error in Anthropic's form."""
    kind = KINDS.get(problem.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": problem.message}}


class AnthropicReply(Reply):
    """The replies of ``/v1/messages``: blocks of thinking, of text, and of calls of tools."""

    def __init__(self, served: Served, body: Any, asked: Asked, answers: Answers) -> None:
        super().__init__(served, body, asked, answers)
        self.id = f"msg_{secrets.token_hex(12)}"
        self._blocks = 0
        self._open: str | int | None = None
        """What the open block of a stream is: text, thinking, or the number of a call."""

    def whole(self) -> dict[str, Any]:
        written = self.answers.written[0]
        content: list[dict[str, Any]] = []
        for part in written.parts or [AnswerPiece()]:
            if part.call is not None:
                call = written.calls[part.call.index]
                content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_of(call)})
            elif part.reasoning:
                content.append({"type": "thinking", "thinking": part.reasoning, "signature": ""})
            else:
                content.append({"type": "text", "text": part.content})
        return self._message(content, self.answers.generated_tokens) | self._stop()

    def begin(self) -> Iterator[bytes]:
        yield self._event("message_start", message=self._message([], 0) | {"stop_reason": None, "stop_sequence": None})

    def piece(self, delta: Delta) -> Iterator[bytes]:
        for piece in delta.pieces:
            yield from self._piece(piece)

    def _piece(self, piece: AnswerPiece) -> Iterator[bytes]:
        if piece.reasoning:
            yield from self._in("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": piece.reasoning})
        if piece.content:
            yield from self._in("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": piece.content})
        if piece.call is not None:
            block: dict[str, Any] = {"type": "tool_use", "id": piece.call.id, "name": piece.call.name, "input": {}}
            yield from self._in(piece.call.index, block)
            if piece.call.arguments:
                yield self._delta({"type": "input_json_delta", "partial_json": piece.call.arguments})

    def end(self) -> Iterator[bytes]:
        if not self._blocks:
            yield from self._in("text", {"type": "text", "text": ""})
        yield from self._close()
        usage = {"output_tokens": self.answers.generated_tokens}
        yield self._event("message_delta", delta=self._stop(), usage=usage)
        yield self._event("message_stop")

    def failed(self, problem: Problem) -> bytes:
        return named_event("error", error_body(problem))

    def _in(self, kind: str | int, block: dict[str, Any]) -> Iterator[bytes]:
        """Begins a block, unless one of its kind is open."""
        if self._open == kind:
            return
        yield from self._close()
        yield self._event("content_block_start", index=self._blocks, content_block=block)
        self._open = kind
        self._blocks += 1

    def _close(self) -> Iterator[bytes]:
        if self._open is None:
            return
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": ""})
        yield self._event("content_block_stop", index=self._blocks - 1)
        self._open = None

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return self._event("content_block_delta", index=self._blocks - 1, delta=delta)

    def _event(self, kind: str, **more: Any) -> bytes:
        return named_event(kind, {"type": kind, **more})

    def _message(self, content: list[dict[str, Any]], generated: int) -> dict[str, Any]:
        reused = self.answers.reused_tokens
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.served.name,
            "content": content,
            "usage": {
                "input_tokens": self.answers.prompt_tokens - reused,
                "cache_read_input_tokens": reused,
                "cache_creation_input_tokens": 0,
                "output_tokens": generated,
            },
        }

    def _stop(self) -> dict[str, Any]:
        written = self.answers.written[0]
        reasons = {"length": "max_tokens", "tool_calls": "tool_use"}
        reason = "stop_sequence" if written.stop is not None else reasons.get(written.finish or "", "end_turn")
        return {"stop_reason": reason, "stop_sequence": written.stop}
