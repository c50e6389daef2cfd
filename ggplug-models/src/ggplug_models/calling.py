"""A loop in which a model calls functions, until it answers without a call."""

from __future__ import annotations

import enum
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ggplug.errors import ModelError, ParameterError
from ggplug_models.chat.answer import Answer, AnswerPiece, ToolCall
from ggplug_models.chat.template import Message, check_messages
from ggplug_models.chat.tools import AnyTool, Tool, tools_of
from ggplug_models.checks.arguments import whole
from ggplug_models.state.session import Session

if TYPE_CHECKING:
    from ggplug_models.networks.decoder import Decoder


@dataclass
class ToolRun:
    """A chat in which functions were called.

    ``messages``: all messages, with the calls, their results, and the last answer.  ``answer``: the last answer.
    """

    messages: list[Message]
    answer: Answer


def run_tools(
    model: Decoder,
    messages: Sequence[Message],
    tools: Sequence[AnyTool],
    max_tokens: int | None = None,
    *,
    rounds: int = 16,
    on_piece: Callable[[AnswerPiece], None] | None = None,
    session: Session | None = None,
    **options: Any,
) -> ToolRun:
    """Answers a chat, and calls the functions that the model asks for, until it answers without a call.

    ``tools``: Python functions, which are called with the arguments that the model wrote.  What they return is the
    result as text, or as JSON.  The message of an exception is the result, too, so that the model can try again; so is
    an error that says why a result cannot be written as JSON.  ``rounds``: maximum number of answers.
    ``on_piece(piece)``: called with each piece of an answer.  ``session``: by default one is made for the chat.
    ``max_tokens``, ``options``: of each answer, see :meth:`.Decoder.chat`; a ``tool_choice`` that requires a call
    applies to the first answer only.

    Raises ParameterError for a tool that is no function or a coroutine function, ModelError if the last round still has
    calls, or if an answer is cut within a call.
    """
    known = {tool.name: tool for tool in tools_of(tools)}
    for tool in known.values():
        if tool.function is None:
            raise ParameterError(
                f"the tool {tool.name} has no function that could be called",
                got=tool.name,
                remedy="pass a Python function, or call model.chat() and the tools yourself",
            )
        if inspect.iscoroutinefunction(tool.function):
            raise ParameterError(
                f"the tool {tool.name} is a coroutine function, which would not be awaited",
                got=tool.function,
                remedy="pass a function that runs it, for instance with asyncio.run()",
            )
    check_messages(messages)
    chat = list(messages)
    rounds = whole("rounds", rounds, 1)
    with model.session() if session is None else nullcontext(session) as used:
        for _ in range(rounds):
            answered = model.chat(chat, max_tokens, tools=list(known.values()), session=used, **options)
            for piece in answered.pieces():
                if on_piece is not None:
                    on_piece(piece)
            answer = answered.answer
            chat.append(answer.message)
            if not answer.calls:
                return ToolRun(chat, answer)
            chat += [_result(known[call.name], call) for call in answer.calls]
            options.pop("tool_choice", None)
    raise ModelError(f"the model still calls functions after {rounds} answers", got=rounds, remedy="allow more rounds")


def _result(tool: Tool, call: ToolCall) -> Message:
    """Calls the function, and returns the message with its result."""
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": _called(tool, call)}


def _called(tool: Tool, call: ToolCall) -> str:
    try:
        arguments = call.parsed
    except json.JSONDecodeError as error:
        raise ModelError(f"the answer ended within a call: {error}", got=call.arguments) from error
    except (ValueError, RecursionError) as error:  # an integer of too many digits, or lists nested too deeply
        return _failure(error, "the arguments cannot be read: ")
    try:
        found = tool.call(arguments)
    except Exception as error:
        return _failure(error)
    return _text(found)


def _failure(error: Exception, what: str = "") -> str:
    try:
        return f"error: {what}{type(error).__name__}: {error}"
    except Exception:  # the function's own exception cannot be printed
        return f"error: {what}{type(error).__name__}"


def _text(found: Any) -> str:
    """What a function returned, as text or JSON; the error, if JSON does not have it."""
    if isinstance(found, str):
        return found
    try:
        if hasattr(found, "model_dump_json"):
            return str(found.model_dump_json())
        return json.dumps(found, ensure_ascii=False, default=_plain)
    except Exception as error:  # the methods of an object may raise anything
        return _failure(error, "the result cannot be written as JSON: ")


def _plain(value: Any) -> Any:
    """An object that JSON does not have, as one that it has."""
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, enum.Enum):
        return value.value
    if hasattr(value, "model_dump"):  # a model of pydantic
        return value.model_dump(mode="json")
    return dict(value) if isinstance(value, Mapping) else str(value)
