"""Ollama's API for texts: ``/api/chat`` and ``/api/generate``; streams are lines of JSON."""

from __future__ import annotations

import datetime
import itertools
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, create_model

from ggplug_models.serve.answers import Delta, Written, arguments_of
from ggplug_models.serve.apis.infill import gap
from ggplug_models.serve.bodies.asked import Asked, Form
from ggplug_models.serve.bodies.asking import asked
from ggplug_models.serve.bodies.body import Body, Many
from ggplug_models.serve.bodies.parameters import SAMPLER, TEXTS, TextBody, fields
from ggplug_models.serve.http.event_stream import json_of
from ggplug_models.serve.messages import ChatMessage, Messages, chat_prompt
from ggplug_models.serve.problems import Problem
from ggplug_models.serve.reply import Reply
from ggplug_models.serve.writer import Writer

OPTIONS = (
    "max_tokens",
    "stop",
    "seed",
    "logit_bias",
    "ignore_eos",
    "samplers",
    "grammar",
    "json_schema",
    "lora",
    "n_keep",
    "n_discard",
    "id_slot",
)
"""Parameters of texts that are among Ollama's options, with those of the sampler."""

_Declared = create_model("_Declared", __base__=Body, **fields({**SAMPLER, **{name: TEXTS[name] for name in OPTIONS}}))


class Options(_Declared):  # type: ignore[valid-type, misc]
    """The parameter ``options``."""

    NO_EFFECT = frozenset(["num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "use_mmap", "low_vram"])


def _format(value: Any) -> Any:
    return None if value == "" else value


def _no_images(value: Any) -> Any:
    if value:
        raise ValueError("image input is not supported: this model reads text only")
    return value


UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Units of durations, in seconds."""

DURATION = re.compile(r"[+-]?(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:h|ms|m|us|ns|s)){1,6}")


def _seconds(value: Any) -> Any:
    """A duration such as ``5m`` or ``1h30m`` in seconds; numbers are seconds already."""
    if not isinstance(value, str):
        return value
    if not DURATION.fullmatch(value):
        raise ValueError("must be a duration such as 5m or 1h30m, or a number of seconds")
    parts = re.findall(r"([0-9.]+)([a-z]+)", value)
    return sum(float(count) * UNITS[unit] for count, unit in parts) * (-1 if value[0] == "-" else 1)


KeepAlive: TypeAlias = Annotated[float, BeforeValidator(_seconds)]
"""For how many seconds a model stays loaded after a request; negative: until the end."""


class OllamaBody(Body):
    """What both paths have in common.  ``format``: ``json``, or a JSON schema."""

    NO_EFFECT = frozenset(["logprobs", "top_logprobs", "template"])

    model: str | None = None
    keep_alive: KeepAlive | None = None
    stream: bool = True
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    options: Options = Field(default_factory=Options)
    format: Annotated[Literal["json"] | dict[str, Any] | None, BeforeValidator(_format)] = None
    images: Annotated[Any, AfterValidator(_no_images)] = None

    @property
    def text_body(self) -> TextBody:
        """The parameters in the form that other APIs have, too."""
        options = self.options
        given = {name: getattr(options, name) for name in (*SAMPLER, *OPTIONS) if getattr(options, name) is not None}
        found: TextBody = TextBody.model_construct(**{**given, "stream": self.stream})
        return found

    @property
    def only_loads(self) -> bool:
        """Whether no text is asked for, but that the model is loaded."""
        raise NotImplementedError

    @property
    def form(self) -> Form | None:
        """The form of the text."""
        if self.format is None:
            return None
        return Form("json") if self.format == "json" else Form("schema", self.format)


class OllamaMessage(ChatMessage):
    """A message; ``images``: those in it, of which there may be none."""

    images: Annotated[Any, AfterValidator(_no_images)] = None


class OllamaChatBody(OllamaBody):
    """The body of ``/api/chat``."""

    messages: Many[OllamaMessage] = Field(default_factory=list)
    tools: list[dict[str, Any]] | None = None

    @property
    def only_loads(self) -> bool:
        return not self.messages


class OllamaGenerateBody(OllamaBody):
    """The body of ``/api/generate``.

    ``raw``: whether the prompt is used without the template.  ``suffix``: what comes after the text.
    """

    prompt: str = ""
    suffix: str = ""
    system: str | None = None
    raw: bool = False
    context: list[int] | None = None

    @property
    def only_loads(self) -> bool:
        return not self.prompt


def ask_chat(writer: Writer, body: OllamaChatBody) -> Asked:
    """What a chat asks for.  Raises Problem, ParameterError, ModelError."""
    if body.only_loads:
        return asked(body.text_body, [])
    return _answering(writer, body, with_whole_calls(body.messages), body.tools)


def with_whole_calls(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The messages with calls as templates know them from OpenAI's API: with a type, an id, and arguments as text.

    Ollama's have arguments that are objects, and its clients need not send ids; then the results of tools belong to the
    calls in their order, or by their names.
    """
    numbers = itertools.count(1)
    unanswered: list[dict[str, Any]] = []
    found = []
    for message in messages:
        more = dict(message.model_extra or {})
        calls = more.get("tool_calls")
        if isinstance(calls, list) and all(isinstance(each, Mapping) for each in calls):
            more["tool_calls"] = [_whole(each, f"call{next(numbers):05}") for each in calls]
            unanswered = list(more["tool_calls"])
        elif message.role == "tool" and not more.get("tool_call_id") and unanswered:
            names = [_name_of(each) for each in unanswered]
            place = names.index(more["tool_name"]) if more.get("tool_name") in names else 0
            more["tool_call_id"] = unanswered.pop(place)["id"]
        found.append(ChatMessage(**{**more, "role": message.role, "content": message.content}))
    return found


def _whole(call: Mapping[str, Any], id: str) -> dict[str, Any]:
    function = call.get("function")
    if isinstance(function, Mapping) and isinstance(function.get("arguments"), Mapping):
        function = {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}
    return {"type": "function", **call, "id": call.get("id") or id, "function": function}


def _name_of(call: Mapping[str, Any]) -> Any:
    function = call["function"]
    return function.get("name") if isinstance(function, Mapping) else None


def ask_generate(writer: Writer, body: OllamaGenerateBody) -> Asked:
    """What a text asks for.  Raises Problem, ParameterError, ModelError."""
    if body.only_loads:
        return asked(body.text_body, [])
    if body.suffix:
        ids = gap(writer, body.prompt, body.suffix, param="suffix")
        return _asked(body, writer.prompt(ids, "prompt"), begins=False)
    if body.raw:
        return _asked(body, writer.prompt(body.prompt, "prompt"), begins=False)
    said = [{"role": "system", "content": body.system}] if body.system else []
    messages = [ChatMessage.model_validate(each) for each in [*said, {"role": "user", "content": body.prompt}]]
    return _answering(writer, body, messages, None)


def _answering(writer: Writer, body: OllamaBody, messages: list[ChatMessage], tools: Any) -> Asked:
    thinks: dict[str, Any] = {} if body.think is None else {"enable_thinking": bool(body.think)}
    if isinstance(body.think, str):  # how much, for models that distinguish it
        thinks["reasoning_effort"] = body.think
    chat = Messages.model_construct(messages=messages, tools=tools, chat_template_kwargs={}, **thinks)
    prompt = chat_prompt(writer, chat)
    return _asked(body, prompt.ids, begins=prompt.begins, chat=prompt.chat)


def _asked(body: OllamaBody, prompt: list[int], **more: Any) -> Asked:
    return asked(body.text_body, [prompt], form=body.form, **more)


class OllamaReply(Reply):
    """The replies of both paths; a stream is one object for each piece, and a last one with the numbers."""

    MEDIA_TYPE = "application/x-ndjson"

    def whole(self) -> dict[str, Any]:
        written = self._written
        return self._text(written.content, written.reasoning, _calls(written)) | self._end()

    def piece(self, delta: Delta) -> Iterator[bytes]:
        content = "".join(piece.content for piece in delta.pieces)
        reasoning = "".join(piece.reasoning for piece in delta.pieces)
        if content or reasoning:
            yield self.event(self._text(content, reasoning, []))

    def end(self) -> Iterator[bytes]:
        calls = _calls(self._written)
        if calls:  # a call is sent when it is complete
            yield self.event(self._text("", "", calls))
        yield self.event(self._text("", "", []) | self._end())

    @property
    def _written(self) -> Written:
        """What was written: nothing, if the model was only to be loaded."""
        return self.answers.written[0] if self.answers.written else Written()

    def failed(self, problem: Problem) -> bytes:
        return self.event(error_body(problem))

    def event(self, data: Mapping[str, Any]) -> bytes:
        return json_of(data) + b"\n"

    def _text(self, content: str, reasoning: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        raise NotImplementedError

    def _common(self) -> dict[str, Any]:
        return {"model": self.served.name, "created_at": as_time(time.time()), "done": False}

    def _end(self) -> dict[str, Any]:
        answers = self.answers
        if not answers.requests:
            return {"done": True, "done_reason": "unload" if self.body.keep_alive == 0 else "load"}
        request = answers.requests[0]
        times = request.times
        return {
            "done": True,
            "done_reason": "length" if answers.written[0].finish == "length" else "stop",
            "total_duration": _nanoseconds(times.prompt_seconds + times.generating_seconds),
            "load_duration": 0,
            "prompt_eval_count": answers.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(times.prompt_seconds),
            "eval_count": answers.generated_tokens,
            "eval_duration": _nanoseconds(times.generating_seconds),
        }


class OllamaChatReply(OllamaReply):
    """The replies of ``/api/chat``."""

    def _text(self, content: str, reasoning: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if reasoning:
            message["thinking"] = reasoning
        if calls:
            message["tool_calls"] = calls
        return self._common() | {"message": message}


class OllamaGenerateReply(OllamaReply):
    """The replies of ``/api/generate``."""

    def _text(self, content: str, reasoning: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        return self._common() | {"response": content} | ({"thinking": reasoning} if reasoning else {})


def error_body(problem: Problem) -> dict[str, Any]:
    """An error in Ollama's form."""
    return {"error": problem.message}


def as_time(seconds: float) -> str:
    """A time, in seconds since 1970, as Ollama writes it."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat().replace("+00:00", "Z")


def _calls(written: Written) -> list[dict[str, Any]]:
    return [{"id": call.id, "function": {"name": call.name, "arguments": arguments_of(call)}} for call in written.calls]


def _nanoseconds(seconds: float) -> int:
    return round(1e9 * seconds)
