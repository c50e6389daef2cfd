"""Chats to prompts, by the template that a GGUF file carries.

Templates are Jinja's, as Hugging Face's ``apply_chat_template`` defines them: they see ``messages``, ``tools``,
``documents``, ``add_generation_prompt``, ``bos_token`` and ``eos_token``, and may call ``raise_exception`` and
``strftime_now``.  Files are also made for llama.cpp, which says more: ``enable_thinking`` is true unless the caller
says otherwise, ``date_string`` and ``datetime`` are today's date, arguments of tool calls are objects, and what is none
has no items.  Templates come with files from anywhere, so they run in a sandbox (``sandbox.py``).
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ggplug.errors import GGPlugError, ModelError, ParameterError
from ggplug_models.chat.tool_arguments import with_objects
from ggplug_models.checks.requirements import required
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers import Tokenizer

if TYPE_CHECKING:
    from jinja2 import Template

KEY = "tokenizer.chat_template"

Message = Mapping[str, Any]
"""``role`` and ``content``, and whatever else the template knows, such as ``tool_calls``."""

NAMED = ("bos", "eos", "unk", "pad", "sep")
"""Special tokens whose texts templates see, as ``bos_token`` and so on."""

LONGEST = 1 << 20
"""Characters of a template."""


class ChatTemplate:
    """A chat template and the tokeniser that its prompts are for.

    ``source``: the template's text.  Raises ModelError for a template that is no Jinja, and where the library
    ``jinja2`` is missing.
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        self.source = source
        self.tokenizer = tokenizer
        self._template = _compiled(source)

    @classmethod
    def of(cls, metadata: Mapping[str, Any], tokenizer: Tokenizer, name: str | None = None) -> ChatTemplate:
        """The template of a file, or the one that it has under a ``name``, such as ``tool_use``.

        Raises ModelError where there is none.
        """
        key = KEY if name is None else f"{KEY}.{name}"
        source = Values(metadata).text(key, None)
        if source is None:
            others = sorted(each.removeprefix(f"{KEY}.") for each in metadata if each.startswith(f"{KEY}."))
            there = f"; it has templates named {', '.join(others)}" if others else ""
            raise ModelError(
                f"the file has no {key}{there}",
                got=name,
                remedy="give one: template=ChatTemplate(source, model.tokenizer)",
            )
        return cls(source, tokenizer)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt's text.

        ``messages``: the chat so far, the oldest first; arguments of tool calls may be objects, or JSON as the OpenAI
        API has it.  ``add_generation_prompt``: whether the answer's beginning is part of it.  ``tools``: JSON schemas
        of functions that the model may call.  ``variables``: what else the template knows, or another value of what it
        is told by default, such as ``enable_thinking=False``.

        Raises ParameterError for messages that are none, or that the template refuses; ModelError if the template
        fails.
        """
        checked = _checked(messages)
        special, texts = self.tokenizer.vocabulary.special, self.tokenizer.vocabulary.texts
        today = now()
        everything: dict[str, Any] = {
            "enable_thinking": True,
            "date_string": today.strftime("%d %b %Y"),
            "datetime": today.strftime("%b %d %Y"),
            "bos_token": "",
            "eos_token": "",
            **{f"{name}_token": texts[special[name]] for name in NAMED if name in special},
            "messages": checked,
            "add_generation_prompt": add_generation_prompt,
            "tools": None if tools is None else list(tools),
            "documents": None,
            **variables,
        }
        from jinja2.exceptions import SecurityError

        from ggplug_models.chat.allowance import Allowance
        from ggplug_models.chat.sandbox import RefusedError, allowed

        try:
            allowance = Allowance(everything, len(checked))
        except SecurityError as error:
            raise ParameterError(f"these messages, tools or variables are no chat: {error}", got=messages) from None
        try:
            with allowed(allowance):
                return self._template.render(everything)
        except RefusedError as refused:
            raise ParameterError(f"{KEY} refuses these messages: {refused!s:.2000}", got=messages) from None
        except GGPlugError:
            raise
        except Exception as error:  # a template calls whatever Jinja has
            what = f"{type(error).__name__}: {error!s:.2000}"
            raise ModelError(f"{KEY} fails with these messages: {what}", got=messages) from error

    def encode(self, messages: Sequence[Message], **options: Any) -> list[int]:
        """The prompt's token ids, as :meth:`.Tokenizer.prompt` makes them; ``options`` are those of :meth:`render`."""
        return self.tokenizer.prompt(self.render(messages, **options))


def _checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise ParameterError(
            f"messages are a list of dicts with role and content, got {type(messages).__name__}", got=messages
        )
    if not messages:
        raise ParameterError("messages are empty; a chat has at least one", got=messages)
    for n, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ParameterError(
                f"messages[{n}] is {type(message).__name__}, not a dict with role and content", got=message
            )
        if not isinstance(message.get("role"), str):
            role = message.get("role")
            raise ParameterError(f"messages[{n}] has the role {role!r}; it must be a string", got=message)
        content = message.get("content")
        if content is None and ("content" in message or "tool_calls" in message):
            continue
        parts = content if isinstance(content, (list, tuple)) else ()
        if not isinstance(content, str) and not (parts and all(isinstance(part, Mapping) for part in parts)):
            raise ParameterError(
                f"messages[{n}] has the content {content!r:.100}; it must be a string, or a list of dicts", got=message
            )
    return [with_objects(message) for message in messages]


def now() -> datetime.datetime:
    """The local time, for templates that ask for it."""
    return datetime.datetime.now()


def _compiled(source: str) -> Template:
    with required("jinja2", "making prompts of chats"):
        from ggplug_models.chat.sandbox import Sandbox
    if len(source) > LONGEST:
        raise ModelError(f"{KEY} has {len(source)} characters; a template has {LONGEST} at the most", got=len(source))
    try:
        return Sandbox(lambda: now()).from_string(source)  # late, so that tests can set the clock
    except Exception as error:  # Jinja makes Python of it, which Python may refuse in its own words
        raise ModelError(f"{KEY} is no template: {error}", got=source) from error
