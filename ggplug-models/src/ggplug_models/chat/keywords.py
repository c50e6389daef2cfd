"""The keywords of the JSON schema of a tool's arguments, checked before templates and grammars read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ggplug.errors import ParameterError
from ggplug_models.metadata.values import short_repr


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_SCHEMA = ("additionalProperties", "items", "not")
"""Keywords whose value is a schema."""

_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")
"""Keywords whose value is a list of schemas."""

_NAMED = ("$defs", "definitions", "patternProperties", "properties")
"""Keywords whose value is an object with schemas."""

_KEYWORDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(_SCHEMA, ("an object or a boolean", lambda value: isinstance(value, (dict, bool, list)))),
    **dict.fromkeys(_SCHEMAS, ("a list", lambda value: isinstance(value, list))),
    **dict.fromkeys(_NAMED, ("an object", lambda value: isinstance(value, dict))),
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), ("an integer of at least 0", _is_count)),
    **dict.fromkeys(("pattern", "$ref"), ("a string", lambda value: isinstance(value, str))),
    "enum": ("a list", lambda value: isinstance(value, list)),
    "required": ("a list of strings", _is_texts),
    "type": ("a string or a list of strings", lambda value: isinstance(value, str) or _is_texts(value)),
}
"""What the value of each keyword must be, in words, and whether a value is that."""


def checked_schema(schema: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The JSON schema of an object, in types that JSON has, and without keywords that are ``null``.

    ``what``: for errors.  Raises ParameterError, with the place, for a schema that cannot be written as JSON, or has a
    keyword of another type than templates and grammars read.
    """
    try:
        found = json.loads(json.dumps(schema, allow_nan=False, default=_as_dict))
        checked: dict[str, Any] = _checked(found, what)
    except ParameterError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise ParameterError(
            f"{what} cannot be written as JSON: {type(error).__name__}: {error}", got=schema
        ) from error
    return checked


def _as_dict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"JSON has no {type(value).__name__}")


def _checked(schema: Any, what: str, place: str = "") -> Any:
    if not isinstance(schema, dict):
        return _of_type(schema, isinstance(schema, bool), "an object or a boolean", f"{what}: {place}")
    found = {}
    for key, value in schema.items():
        inner = f"{place}/{key}".lstrip("/")
        words, allowed = _KEYWORDS.get(key, ("", None))
        if allowed is not None and value is None:
            continue  # what programs write for a keyword that is not there
        found[key] = value if allowed is None else _of_type(value, allowed(value), words, f"{what}: {inner}")
        if key in _NAMED:
            found[key] = {name: _checked(each, what, f"{inner}/{name}") for name, each in value.items()}
        elif key in _SCHEMAS or (key == "items" and isinstance(value, list)):
            found[key] = [_checked(each, what, f"{inner}/{n}") for n, each in enumerate(value)]
        elif key in _SCHEMA:
            found[key] = _checked(value, what, inner)
    return found


def _of_type(value: Any, allowed: bool, words: str, where: str) -> Any:
    if not allowed:
        raise ParameterError(f"{where} must be {words}, got {short_repr(value)}", got=value, wanted=words)
    return value
