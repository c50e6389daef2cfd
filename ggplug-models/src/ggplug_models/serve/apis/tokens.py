"""llama-server's paths for token ids, templates, and the numbers of tokens of prompts."""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices, Field

from ggplug_models.serve.bodies.body import Body
from ggplug_models.serve.bodies.prompts import checked_ids
from ggplug_models.serve.messages import Messages, chat_text
from ggplug_models.serve.problems import Problem
from ggplug_models.serve.service import Service
from ggplug_models.tokenizers import Tokenizer

MOST_TOKENS = 1 << 20
"""Maximum number of token ids of a request."""


class TokenizeBody(Body):
    """The body of ``/tokenize``; ``prompt`` and ``add_special_tokens`` are vLLM's names."""

    content: str = Field(default="", validation_alias=AliasChoices("content", "prompt"))
    add_special: bool = Field(default=False, validation_alias=AliasChoices("add_special", "add_special_tokens"))
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(Body):
    """The body of ``/detokenize``."""

    tokens: list[Any] = Field(default_factory=list)


class TemplateBody(Messages):
    """The body of ``/apply-template``, and of paths that count tokens."""


def tokenize(service: Service, body: TokenizeBody) -> dict[str, Any]:
    """The token ids of a text, with the bytes that they stand for if wanted."""
    tokenizer = _tokenizer(service)
    ids = tokenizer.encode(body.content, add_special=body.add_special, parse_special=body.parse_special)
    return {"tokens": [_piece(tokenizer, token) for token in ids] if body.with_pieces else ids}


def detokenize(service: Service, body: DetokenizeBody) -> dict[str, Any]:
    """The text of token ids, control tokens included; ``prompt`` is vLLM's name for it."""
    text, limit = "", f"at most {MOST_TOKENS} are allowed"
    if body.tokens:
        ids = checked_ids(body.tokens, MOST_TOKENS, service.model.n_vocab, "tokens", limit)
        text = _tokenizer(service).decode(ids, clean=False)
    return {"content": text, "prompt": text}


def tokenizer_info(service: Service) -> dict[str, Any]:
    """The reply of vLLM's ``/tokenizer_info``, which lm-eval asks for before it uses ``/tokenize``."""
    vocabulary = _tokenizer(service).vocabulary
    found: dict[str, Any] = {
        f"{name}_token": vocabulary.texts[vocabulary.special[name]] if name in vocabulary.special else None
        for name in ("bos", "eos")
    }
    return found | {"add_bos_token": vocabulary.add_bos, "chat_template": service.texts.template.source}


def apply_template(service: Service, body: TemplateBody) -> dict[str, Any]:
    """The prompt of a chat as text."""
    return {"prompt": chat_text(service.texts, body)}


def input_tokens(service: Service, body: TemplateBody) -> dict[str, Any]:
    """The number of tokens of the prompt of a chat."""
    text = chat_text(service.texts, body)
    return {"object": "response.input_tokens", "input_tokens": len(service.texts.tokenizer.prompt(text))}


def _tokenizer(service: Service) -> Tokenizer:
    found = getattr(service.model, "tokenizer", None)
    if not isinstance(found, Tokenizer):
        raise Problem(501, "the tokenizer of this model has no tokens for single texts", code="model_not_supported")
    return found


def _piece(tokenizer: Tokenizer, token: int) -> dict[str, Any]:
    """A token id with its text, or with its bytes if they are not UTF-8."""
    data = tokenizer.piece(token)
    try:
        return {"id": token, "piece": data.decode()}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(data)}
