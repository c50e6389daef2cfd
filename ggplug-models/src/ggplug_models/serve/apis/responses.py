"""OpenAI's ``/v1/responses``."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from ggplug_models.chat.answer import AnswerPiece
from ggplug_models.serve.answers import Answers, Delta, kind_of
from ggplug_models.serve.apis.openai import ResponseFormat
from ggplug_models.serve.bodies.asked import Asked
from ggplug_models.serve.bodies.asking import asked
from ggplug_models.serve.bodies.body import Body, Many
from ggplug_models.serve.bodies.parameters import TextBody
from ggplug_models.serve.http.event_stream import named_event
from ggplug_models.serve.messages import Messages, chat_prompt
from ggplug_models.serve.problems import Problem, wrong
from ggplug_models.serve.reply import Reply, Served
from ggplug_models.serve.service import Service
from ggplug_models.serve.writer import Writer


class TextFormat(Body):
    """The parameter ``text``; a schema lies next to the type."""

    format: dict[str, Any] | None = None


class ResponsesBody(TextBody):
    """The body of ``/v1/responses``."""

    NO_EFFECT = TextBody.NO_EFFECT | {"max_tool_calls", "stream_options"}

    input: str | Many[dict[str, Any]] = Field(min_length=1)
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    text: TextFormat | None = None


def ask(writer: Writer, body: ResponsesBody) -> Asked:
    """What a response asks for.  Raises Problem, ParameterError, ModelError."""
    if body.previous_response_id is not None:
        raise Problem(
            400,
            "previous_response_id is not supported: this server keeps no responses; send the whole conversation",
            param="previous_response_id",
            code="unsupported_parameter",
        )
    form = None if body.text is None or body.text.format is None else _format(body.text.format).form
    prompt = chat_prompt(writer, chat_of(body))
    return asked(body, [prompt.ids], begins=prompt.begins, chat=prompt.chat, form=form, n=1)


def input_tokens(service: Service, body: ResponsesBody) -> dict[str, Any]:
    """The number of tokens of the prompt."""
    return {"object": "response.input_tokens", "input_tokens": len(chat_prompt(service.texts, chat_of(body)).ids)}


def _format(given: Mapping[str, Any]) -> ResponseFormat:
    if given.get("type") == "json_schema" and "json_schema" not in given:
        return ResponseFormat.model_validate({"type": "json_schema", "json_schema": {"schema": given.get("schema")}})
    return ResponseFormat.model_validate(dict(given))


def chat_of(body: ResponsesBody) -> Messages:
    """The input and the tools in the form of a chat.  Raises Problem, ValidationError."""
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    for number, item in enumerate(items):
        _add(messages, item, f"input.{number}")
    tools = [
        {"type": "function", "function": {name: value for name, value in each.items() if name != "type"}}
        for each in body.tools or ()
        if each.get("type") == "function"
    ]
    effort = (body.reasoning or {}).get("effort")
    found: Messages = Messages.model_validate(
        {
            "messages": messages,
            "tools": tools or None,
            "tool_choice": body.tool_choice,
            "parallel_tool_calls": body.parallel_tool_calls,
            "reasoning_effort": effort if isinstance(effort, str) else None,
        }
    )
    return found


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any], what: str) -> None:
    """Adds an item to the messages; calls and reasoning belong to the assistant's message before or after them."""
    kind = item.get("type", "message")
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if kind == "message":
        content = item.get("content")
        if last is not None and item.get("role") == "assistant" and not last["content"] and "tool_calls" not in last:
            last["content"] = content
        else:
            messages.append({"role": item.get("role"), "content": content})
    elif kind == "function_call":
        if last is None:
            last = {"role": "assistant", "content": ""}
            messages.append(last)
        function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
        last.setdefault("tool_calls", []).append({"id": item.get("call_id"), "type": "function", "function": function})
    elif kind == "function_call_output":
        output = item.get("output")
        content = output if isinstance(output, str | list) else json.dumps(output, ensure_ascii=False)
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
    elif kind == "reasoning":
        parts = item.get("content") or item.get("summary") or []
        if not isinstance(parts, list):
            raise wrong((what,), "the reasoning must be a list of parts")
        text = "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
        messages.append({"role": "assistant", "content": "", "reasoning_content": text})
    else:
        raise Problem(
            400, f"{what}: items of the type {kind!s:.40} are not supported", param=what, code="invalid_value"
        )


class _Item:
    """An item of the output: ``kind`` is reasoning, message, or the number of a call; ``text`` is its own part."""

    def __init__(self, kind: str | int, text: str = "") -> None:
        self.kind = kind
        self.text = text
        prefix = {"reasoning": "rs", "message": "msg"}.get(str(kind), "fc")
        self.id = f"{prefix}_{secrets.token_hex(24)}"


class ResponsesReply(Reply):
    """The replies of ``/v1/responses``: items of reasoning, of text, and of calls of functions."""

    def __init__(self, served: Served, body: Any, asked: Asked, answers: Answers) -> None:
        super().__init__(served, body, asked, answers)
        self.id = f"resp_{secrets.token_hex(24)}"
        self.created = int(time.time())
        self._items: list[_Item] = []
        self._number = 0

    def whole(self) -> dict[str, Any]:
        parts = self.answers.written[0].parts or [AnswerPiece()]
        self._items = [_Item(kind_of(part), part.content or part.reasoning) for part in parts]
        return self._response(done=True) | {"timings": self.answers.timings()}

    def begin(self) -> Iterator[bytes]:
        yield self._event("response.created", response=self._response(done=False))
        yield self._event("response.in_progress", response=self._response(done=False))

    def piece(self, delta: Delta) -> Iterator[bytes]:
        if delta.progress is not None:
            progress = delta.progress._asdict() | {"time_ms": round(self.answers.timings()["prompt_ms"])}
            response = self._response(done=False)
            yield self._event("response.in_progress", response=response, prompt_progress=progress)
        for piece in delta.pieces:
            yield from self._piece(piece)

    def _piece(self, piece: AnswerPiece) -> Iterator[bytes]:
        more = {"timings": self.answers.timings()} if self.asked.timings_per_token else {}
        if piece.reasoning:
            yield from self._in("reasoning", piece.reasoning)
            yield self._of_item("response.reasoning_text.delta", content_index=0, delta=piece.reasoning, **more)
        if piece.content:
            yield from self._in("message", piece.content)
            yield self._of_item("response.output_text.delta", content_index=0, delta=piece.content, logprobs=[], **more)
        if piece.call is not None:
            yield from self._in(piece.call.index)
            if piece.call.arguments:
                yield self._of_item("response.function_call_arguments.delta", delta=piece.call.arguments, **more)

    def end(self) -> Iterator[bytes]:
        if not self._items:
            yield from self._in("message")
        yield from self._close()
        response = self._response(done=True)
        kind = "response.completed" if response["status"] == "completed" else "response.incomplete"
        yield self._event(kind, response=response, timings=self.answers.timings())

    def failed(self, problem: Problem) -> bytes:
        error = {"code": problem.code or "server_error", "message": problem.message}
        response = self._response(done=False) | {"status": "failed", "error": error}
        return self._event("response.failed", response=response)

    # -- items ---------------------------------------------------------------------------------------

    def _in(self, kind: str | int, text: str = "") -> Iterator[bytes]:
        """Adds text to the last item, or begins an item if that is of another kind."""
        if self._items and self._items[-1].kind == kind:
            self._items[-1].text += text
            return
        yield from self._close()
        self._items.append(_Item(kind, text))
        item = self._item(self._items[-1]) | ({"status": "in_progress"} if kind != "reasoning" else {})
        empty: dict[str, Any] = {"arguments": ""} if isinstance(kind, int) else {"content": []}
        item |= empty
        yield self._event("response.output_item.added", output_index=len(self._items) - 1, item=item)
        if kind == "message":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield self._of_item("response.content_part.added", content_index=0, part=part)

    def _close(self) -> Iterator[bytes]:
        """Ends the last item."""
        if not self._items:
            return
        last = self._items[-1]
        item = self._item(last)
        if last.kind == "message":
            (part,) = item["content"]
            yield self._of_item("response.output_text.done", content_index=0, text=part["text"], logprobs=[])
            yield self._of_item("response.content_part.done", content_index=0, part=part)
        elif last.kind == "reasoning":
            yield self._of_item("response.reasoning_text.done", content_index=0, text=last.text)
        else:
            yield self._of_item("response.function_call_arguments.done", name=item["name"], arguments=item["arguments"])
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _item(self, item: _Item) -> dict[str, Any]:
        """An item of the output, as far as it is written."""
        if item.kind == "reasoning":
            content = [{"type": "reasoning_text", "text": item.text}]
            return {"id": item.id, "type": "reasoning", "summary": [], "content": content}
        if isinstance(item.kind, int):
            call = self.answers.written[0].calls[item.kind]
            return {
                "id": item.id,
                "type": "function_call",
                "status": "completed",
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
            }
        part = {"type": "output_text", "text": item.text, "annotations": [], "logprobs": []}
        return {
            "id": item.id,
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [part],
        }

    # -- events --------------------------------------------------------------------------------------

    def _of_item(self, kind: str, **more: Any) -> bytes:
        place = {"item_id": self._items[-1].id, "output_index": len(self._items) - 1}
        return self._event(kind, **place, **more)

    def _event(self, kind: str, **more: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return named_event(kind, {"type": kind, "sequence_number": number, **more})

    def _response(self, *, done: bool) -> dict[str, Any]:
        cut = self.answers.written[0].finish == "length"
        body = self.body
        found: dict[str, Any] = {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": "in_progress" if not done else "incomplete" if cut else "completed",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if done and cut else None,
            "instructions": body.instructions,
            "max_output_tokens": self.asked.max_tokens,
            "model": self.served.name,
            "output": [self._item(item) for item in self._items] if done else [],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "temperature": body.temperature,
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": body.top_p,
            "metadata": {},
        }
        return found | ({"usage": self._usage()} if done else {"usage": None})

    def _usage(self) -> dict[str, Any]:
        answers = self.answers
        return {
            "input_tokens": answers.prompt_tokens,
            "input_tokens_details": {"cached_tokens": answers.reused_tokens},
            "output_tokens": answers.generated_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answers.prompt_tokens + answers.generated_tokens,
        }
