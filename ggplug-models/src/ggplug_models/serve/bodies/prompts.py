"""Prompts of requests: texts, token ids, and both together, one or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from pydantic import PlainValidator

from ggplug_models.checks.ids import listed_ids
from ggplug_models.serve.problems import Problem, too_long
from ggplug_models.tokenizers import Tokenizer

Prompt: TypeAlias = str | list[int] | list[int | str]
"""A text, token ids, or parts of both kinds."""

TEXT, PARTS, MEDIA = "prompt_string", "content", "multimodal_data"
"""Keys of an object that stands for a prompt: llama-server's, and that of a message of a chat."""

KINDS = "a string, a list of strings, token ids, or a list of lists of token ids"


def _texts(value: Any) -> Any:
    """Checks only the types of the outermost items; their number is limited where they are used."""
    kinds = set(map(type, value)) if isinstance(value, list) else set()
    mixed = int in kinds and kinds & {list, dict}
    if not isinstance(value, (str, list, dict)) or not kinds <= {str, int, list, dict} or mixed:
        raise ValueError(f"Input should be {KINDS}")
    return text_of(value) if isinstance(value, dict) else value


Texts: TypeAlias = Annotated[Any, PlainValidator(_texts)]
"""A prompt or a list of prompts; :func:`several` lists them."""


def text_of(value: dict[str, Any]) -> str:
    """The text of an object that stands for a prompt.  Raises ValueError."""
    if isinstance(text := value.get(TEXT), str):
        if value.get(MEDIA):
            raise ValueError(f"{MEDIA}: this model reads text only")
        return text
    parts = value.get(PARTS)
    if not isinstance(parts, list) or not parts:
        raise ValueError(f"Input should be {KINDS}; an object needs {TEXT}, or {PARTS} with a list of parts")
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise ValueError(f"{PARTS}: this model reads parts of the type text only, got {kind!r:.40}")
    return "".join(part["text"] for part in parts)


def several(found: Any, what: str) -> Sequence[Prompt]:
    """The prompts in checked :data:`Texts`; a single one becomes a list of one.  Raises Problem."""
    if isinstance(found, str):
        return [found]
    if any(type(each) is int for each in found[:1]) or (found and int in set(map(type, found))):
        return [found]
    if dict not in set(map(type, found)):
        return found  # type: ignore[no-any-return]
    try:
        return [text_of(each) if isinstance(each, dict) else each for each in found]
    except ValueError as error:
        raise Problem(400, f"{what}: {error}", param=what, code="invalid_value") from None


def ids_of(tokenizer: Tokenizer, prompt: Prompt, most: int, n_vocab: int, what: str, limit: str) -> list[int]:
    """The token ids of a prompt; too long a one is refused before all of it is read.

    ``most``: maximum number.  ``limit``: the same in words.  ``what``: the prompt's name in errors.  Raises Problem,
    ParameterError, ModelError.
    """
    if isinstance(prompt, str):
        check_length(tokenizer.at_least(prompt), most, what, limit, at_least=True)
        found = tokenizer.prompt(prompt)
    elif str in set(map(type, prompt)):
        found = _mixed(tokenizer, prompt, most, n_vocab, what, limit)
    else:
        return checked_ids(prompt, most, n_vocab, what, limit)
    if not found:
        raise Problem(400, f"{what} has no tokens", param=_param(what), code="invalid_value")
    check_length(len(found), most, what, limit)
    return found


def _mixed(tokenizer: Tokenizer, parts: Sequence[Any], most: int, n_vocab: int, what: str, limit: str) -> list[int]:
    """The token ids of a prompt with parts of both kinds; a text at its beginning gets the special tokens."""
    check_length(len(parts), most, what, limit, at_least=True)
    found: list[int] = []
    for part in parts:
        if isinstance(part, str):
            check_length(len(found) + tokenizer.at_least(part), most, what, limit, at_least=True)
            found += tokenizer.encode(part, parse_special=True) if found else tokenizer.prompt(part)
        else:
            found += checked_ids([part], most, n_vocab, what, limit)
    return found


def checked_ids(found: list[Any], most: int, n_vocab: int, what: str, limit: str) -> list[int]:
    """Checks the token ids of a request; if there are too many, without looking at them.

    Raises Problem, and ParameterError as :func:`.token_ids` does.
    """
    check_length(len(found), most, what, limit)
    if bool in set(map(type, found)):
        raise Problem(400, f"{what} has a boolean among its token ids", param=_param(what), code="invalid_value")
    return listed_ids(found, n_vocab, what)


def check_length(count: int, most: int, what: str, limit: str, *, at_least: bool = False) -> None:
    """Raises Problem if ``count`` is more than ``most``.  ``at_least``: whether ``count`` is only a lower bound."""
    if count > most:
        raise too_long(count, most, what, limit, at_least=at_least)


def _param(what: str) -> str:
    return what.partition("[")[0]
