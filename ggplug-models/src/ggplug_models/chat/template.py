"""Converts chats to prompts with the chat template of a GGUF file.

Templates are Jinja templates, as Hugging Face's ``apply_chat_template`` defines them.  Their variables are
``messages``, ``tools``, ``documents``, ``add_generation_prompt``, ``bos_token`` and ``eos_token``; they may call
``raise_exception`` and ``strftime_now``.  As in llama.cpp, there are also ``enable_thinking``, which is true by
default, and ``date_string`` and ``datetime``, today's date; arguments of tool calls are objects, None can be looped
over, and the content of a message without one is an empty text.  A template that has no ``tools``, such as
firefunction's, gets them as JSON in ``functions``.  Templates come with model files, which may be malicious, so they
run in a sandbox (``sandbox.py``).
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ggplug.display.escapes import on_one_line
from ggplug.errors import GGPlugError, ModelError, ParameterError
from ggplug_models.chat.thoughts import with_thoughts
from ggplug_models.chat.tool_arguments import with_objects
from ggplug_models.checks.requirements import required
from ggplug_models.metadata.values import Values, short_repr
from ggplug_models.tokenizers import Tokenizer

if TYPE_CHECKING:
    from jinja2 import Template

    from ggplug_models.chat.formats.format import Format

KEY = "tokenizer.chat_template"

TOOL_USE = "tool_use"
"""The name of the template for chats with tools, in files that have one."""

Message = Mapping[str, Any]
"""A dict with ``role`` and ``content``, and other keys that the template uses, such as ``tool_calls``."""

NAMED = ("bos", "eos", "unk", "pad", "sep")
"""Special tokens whose texts are variables of templates: ``bos_token`` and so on."""

_FUNCTIONS, _TOOLS = re.compile(r"[+{(]\s*functions\b"), re.compile(r"[{%][^}]*\btools\b")
"""How templates use these variables."""

LONGEST = 1 << 18
"""Maximum length of a template in characters: compiling that many takes up to some seconds and 300 MB.  The longest of
llama.cpp's collection has 17,000."""


class TemplateError(ModelError):
    """A chat template refuses, or cannot format, these messages."""


class ChatTemplate:
    """A chat template with the tokenizer for its prompts.

    ``source``: the text of the template.  Raises ModelError if it is not a valid template, or if the library ``jinja2``
    is missing.
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        self.for_tools: ChatTemplate | None = None
        """The template to use for chats with tools; None: this one."""
        self.source = source
        self.tokenizer = tokenizer
        self._template = _compiled(source)
        self._reads_functions = bool(_FUNCTIONS.search(source)) and not _TOOLS.search(source)

    @cached_property
    def format(self) -> Format:
        """The format of the answers that the template's model writes, found by rendering some chats."""
        from ggplug_models.chat.analysis import format_of

        return format_of(self.source, self.render)

    @classmethod
    def of(cls, metadata: Mapping[str, Any], tokenizer: Tokenizer, name: str | None = None) -> ChatTemplate:
        """The chat template in a file's metadata, or the one with a ``name`` such as ``tool_use``.

        Without ``name``, the template named ``tool_use`` is the one for chats with tools.  Raises ModelError if there
        is none.
        """
        key = KEY if name is None else f"{KEY}.{name}"
        source = Values(metadata).text(key, None)
        if source is None:
            others = sorted(each.removeprefix(f"{KEY}.") for each in metadata if each.startswith(f"{KEY}."))
            named = f"; it has templates with the names {', '.join(others)}" if others else ""
            raise ModelError(
                f"the file has no chat template ({key}){named}",
                got=name,
                remedy="pass template=ChatTemplate(source, model.tokenizer)",
            )
        found = cls(source, tokenizer)
        if name is None and f"{KEY}.{TOOL_USE}" in metadata:
            found.for_tools = cls.of(metadata, tokenizer, TOOL_USE)
        return found

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt as a text.

        ``messages``: the chat so far, the oldest first; arguments of tool calls are objects, or JSON as in the OpenAI
        API, and the template gets a ``reasoning_content`` under the key that it reads.  ``add_generation_prompt``:
        whether the prompt ends with the beginning of an answer.  ``tools``: JSON schemas of functions that the model
        may call.  ``variables``: further variables of the template, or other values of the default ones, such as
        ``enable_thinking=False``.

        Raises ParameterError for messages that are not valid, or that the template refuses; ModelError if the template
        fails.
        """
        check_messages(messages)
        whole = [message if message.get("content") is not None else {**message, "content": ""} for message in messages]
        checked = [with_objects(message) for message in with_thoughts(self.source, whole)]
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
        if self._reads_functions:
            everything.setdefault("functions", json.dumps(list(tools), indent=4) if tools else "")
        from jinja2.exceptions import SecurityError

        from ggplug_models.chat.allowance import Allowance
        from ggplug_models.chat.sandbox import RefusedError, allowed

        try:
            allowance = Allowance(everything, len(checked))
        except SecurityError as error:
            raise ParameterError(
                f"these messages, tools or variables are too large: {_shown(error)}", got=messages
            ) from None
        try:
            with allowed(allowance):
                return self._template.render(everything)
        except RefusedError as refused:
            raise ParameterError(f"the chat template refuses these messages: {_shown(refused)}", got=messages) from None
        except GGPlugError:
            raise
        except Exception as error:  # a template calls whatever Jinja has
            what = f"{type(error).__name__}: {_shown(error)}"
            raise TemplateError(f"the chat template ({KEY}) fails with these messages: {what}", got=messages) from error

    def encode(self, messages: Sequence[Message], **options: Any) -> list[int]:
        """The prompt as token ids, see :meth:`.Tokenizer.prompt`.  ``options``: those of :meth:`render`."""
        return self.tokenizer.prompt(self.render(messages, **options))


def check_messages(messages: Sequence[Message]) -> None:
    """Raises ParameterError for what is not a list of messages, and for a message that is not valid, with its place."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise ParameterError(
            f"messages must be a list of dicts with role and content, got {type(messages).__name__}", got=messages
        )
    if not messages:
        raise ParameterError("messages is empty; a chat needs at least one message", got=messages)
    for n, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ParameterError(
                f"messages[{n}] must be a dict with role and content, got {type(message).__name__}", got=message
            )
        if not isinstance(message.get("role"), str):
            role = message.get("role")
            raise ParameterError(f"the role of messages[{n}] must be a string, got {short_repr(role)}", got=message)
        content = message.get("content")
        if content is None and ("content" in message or "tool_calls" in message):
            continue
        parts = content if isinstance(content, (list, tuple)) else ()
        if not isinstance(content, str) and not (parts and all(isinstance(part, Mapping) for part in parts)):
            raise ParameterError(
                f"the content of messages[{n}] must be a string or a list of dicts, got {short_repr(content)}",
                got=message,
            )
        for place, part in enumerate(parts):
            if not isinstance(text := part.get("text"), str | None):
                raise ParameterError(
                    f"the text of messages[{n}].content[{place}] must be a string, got {short_repr(text)}", got=message
                )


def _shown(error: Exception) -> str:
    """The message of an error, which may have the template's or a message's text; without control characters."""
    return on_one_line(str(error)[:2000])


def now() -> datetime.datetime:
    """The local time, for ``strftime_now``."""
    return datetime.datetime.now()


def _compiled(source: str) -> Template:
    with required("jinja2", "chat templates"):
        from ggplug_models.chat.sandbox import Sandbox
    if len(source) > LONGEST:
        raise ModelError(
            f"the chat template ({KEY}) has {len(source)} characters; at most {LONGEST} are allowed", got=len(source)
        )
    try:
        return Sandbox(lambda: now()).from_string(source)  # now is looked up late, so that tests can replace it
    except Exception as error:  # Jinja compiles to Python, which has errors of its own
        raise ModelError(f"the chat template ({KEY}) is not valid: {_shown(error)}", got=source) from error
