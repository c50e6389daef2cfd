"""Type hints of the functions that a model may call: their JSON schemas, and their values made of JSON's types."""

from __future__ import annotations

import enum
import itertools
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ggplug.errors import ParameterError
from ggplug_models.checks.requirements import required
from ggplug_models.metadata.values import short_repr

Make = Callable[[Any], Any]


class Hint(NamedTuple):
    """What a type hint says.

    ``schema``: its JSON schema.  ``make``: a value of the type, made of one in JSON's types; raises ParameterError, or
    what a pydantic model raises, for a value that the type does not allow.
    """

    schema: dict[str, Any]
    make: Make


def hints_of(function: Callable[..., Any], name: str) -> dict[str, Any]:
    """The type hints of a function's parameters.  Raises ParameterError if they cannot be read."""
    try:
        found = typing.get_type_hints(function, include_extras=True)
        if isinstance(function, type):  # whose parameters are its fields, or those of its __init__
            found = {**typing.get_type_hints(function.__init__, include_extras=True), **found}  # type: ignore[misc]
    except Exception as error:  # a hint may be any expression
        raise ParameterError(
            f"the type hints of the tool {name} cannot be read: {type(error).__name__}: {error}",
            got=function,
            remedy="use types that are defined in the module of the function",
        ) from error
    return found


def read_hint(hint: Any, what: str, definitions: dict[str, Any] | None = None) -> Hint:
    """Reads a type hint.

    Supported are str, int, float, bool, None, Any, list, dict, tuple, set, Literal, unions, Optional, enums,
    ``Annotated`` (its first text is the description; pydantic's ``Field`` limits the value), and pydantic's models.
    ``what``: the parameter, for errors.  ``definitions``: the ``$defs`` of the schema that this one will be a part of;
    definitions of models are added.

    Raises ParameterError for other types.
    """
    try:
        return _read(hint, what, {} if definitions is None else definitions)
    except RecursionError:
        raise ParameterError(f"{what} has a type that is nested too deeply", got=what) from None


def made(hint: Any, value: Any, what: str) -> Any:
    """A value of a type hint, made of one in JSON's types; as it is, for a type without a JSON schema."""
    try:
        make = read_hint(hint, what).make
    except ParameterError:
        return value
    return make(value)


def _read(hint: Any, what: str, definitions: dict[str, Any]) -> Hint:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        limited = any(type(each).__module__.partition(".")[0] in _LIMITS for each in inner[1:])
        found = _limited(hint, what, definitions) if limited else _read(inner[0], what, definitions)
        text = next((each for each in inner[1:] if isinstance(each, str)), None)
        return found if text is None else found._replace(schema={**found.schema, "description": text})
    if hint is Any:
        return Hint({}, lambda value: value)
    if origin is typing.Literal:
        return _choice([(each, each) for each in inner], what)
    if origin in (typing.Union, types.UnionType):
        return _union([_read(each, what, definitions) for each in inner])
    kind = type(None) if hint is None else origin or hint
    if isinstance(kind, type):
        if kind in _LISTS:
            return _list(_LISTS[kind], inner, what, definitions)
        if kind in (dict, Mapping) and inner[:1] in ((), (str,)):
            return _dict(inner, what, definitions)
        if kind in _SIMPLE:
            return _simple(kind, what)
        if hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate"):
            return _model(kind, what, definitions)
        if issubclass(kind, enum.Enum):
            return _choice([(member, member.value) for member in kind], what, kind._missing_)
    raise ParameterError(f"{what} has the type {short_repr(hint)}, which has no JSON schema", got=hint)


# -- simple types ---------------------------------------------------------------------------------

_SIMPLE: Mapping[type, tuple[str, type | tuple[type, ...]]] = {
    str: ("string", str),
    int: ("integer", int),
    float: ("number", (int, float)),
    bool: ("boolean", bool),
    type(None): ("null", type(None)),
}
"""The name of each type in JSON schemas, and the types that its values have after JSON was read."""

_LISTS: Mapping[type, Make] = {list: list, Sequence: list, tuple: tuple, set: set, frozenset: frozenset}
"""Types of lists, and what makes them of a list."""


def _checked(value: Any, allowed: bool, kind: str, what: str) -> Any:
    if not allowed:
        raise ParameterError(f"{what} must have the JSON type {kind}, got {short_repr(value)}", got=value, wanted=kind)
    return value


def _simple(hint: type, what: str) -> Hint:
    kind, allowed = _SIMPLE[hint]

    def make(value: Any) -> Any:
        if hint is int and isinstance(value, float) and value.is_integer():
            return int(value)  # 3.0 is an integer in JSON
        return _checked(value, isinstance(value, allowed) and isinstance(value, bool) == (hint is bool), kind, what)

    return Hint({"type": kind}, make)


def _choice(choices: Sequence[tuple[Any, Any]], what: str, missing: Make = lambda value: None) -> Hint:
    """One of some values, each with what stands for it in JSON.  ``missing(value)``: makes others, or returns None."""
    written = []
    for _, value in choices:
        plain = value.value if isinstance(value, enum.Enum) else value
        try:
            written.append(json.loads(json.dumps(plain, allow_nan=False)))
        except (TypeError, ValueError, RecursionError) as error:
            raise ParameterError(
                f"{what} may have the value {short_repr(plain)}, which JSON does not have", got=plain
            ) from error

    def make(value: Any) -> Any:
        for (each, _), known in zip(choices, written, strict=True):
            if known == value and isinstance(known, bool) == isinstance(value, bool):
                return each
        if (other := missing(value)) is not None:
            return other
        listed = short_repr(written)
        raise ParameterError(f"{what} must be one of {listed}, got {short_repr(value)}", got=value, wanted=listed)

    return Hint({"enum": written}, make)


# -- types with inner ones ------------------------------------------------------------------------


def _list(build: Make, inner: Sequence[Any], what: str, definitions: dict[str, Any]) -> Hint:
    if build is tuple and inner and inner[-1] is not Ellipsis:
        return _tuple([_read(each, what, definitions) for each in inner], what)
    item = _read(inner[0] if inner else Any, what, definitions)

    def make(value: Any) -> Any:
        return build([item.make(each) for each in _checked(value, isinstance(value, list), "array", what)])

    return Hint({"type": "array", **({"items": item.schema} if inner else {})}, make)


def _tuple(items: Sequence[Hint], what: str) -> Hint:
    def make(value: Any) -> Any:
        _checked(value, isinstance(value, list) and len(value) == len(items), f"array of length {len(items)}", what)
        return tuple(item.make(each) for item, each in zip(items, value, strict=True))

    limits = {"minItems": len(items), "maxItems": len(items)}
    return Hint({"type": "array", "prefixItems": [item.schema for item in items], **limits}, make)


def _dict(inner: Sequence[Any], what: str, definitions: dict[str, Any]) -> Hint:
    item = _read(inner[1] if inner else Any, what, definitions)

    def make(value: Any) -> Any:
        _checked(value, isinstance(value, dict), "object", what)
        return {key: item.make(each) for key, each in value.items()}

    return Hint({"type": "object", **({"additionalProperties": item.schema} if inner else {})}, make)


def _union(members: Sequence[Hint]) -> Hint:
    def make(value: Any) -> Any:
        """Of the members that allow the value, the first one, or that whose models have the most of its fields."""
        found, errors = [], []
        for member in members:
            try:
                found.append(member.make(value))
            except Exception as error:  # a model's validators raise what they like
                errors.append(str(error))
        if not found:
            raise ParameterError("; or ".join(dict.fromkeys(errors)), got=value)
        return max(found, key=_fields)

    return Hint({"anyOf": [member.schema for member in members]}, make)


def _fields(value: Any) -> int:
    """Number of fields that were set in the models of a value."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return sum(map(_fields, value))
    if isinstance(value, dict):
        return sum(map(_fields, value.values()))
    return sum(1 + _fields(getattr(value, name)) for name in getattr(value, "model_fields_set", ()))


# -- models of pydantic ---------------------------------------------------------------------------


_LIMITS = ("annotated_types", "pydantic")
"""Packages of what ``Annotated`` has for limits of a value, such as ``Field(ge=1)``."""


def _model(model: Any, what: str, definitions: dict[str, Any]) -> Hint:
    return Hint(_moved(_schema_of(model, model.model_json_schema, what), definitions), model.model_validate)


def _limited(hint: Any, what: str, definitions: dict[str, Any]) -> Hint:
    with required("pydantic", "limits of a tool's arguments"):
        from pydantic import TypeAdapter
    adapter = TypeAdapter(hint)
    return Hint(_moved(_schema_of(hint, adapter.json_schema, what), definitions), adapter.validate_python)


def _schema_of(hint: Any, make: Callable[[], dict[str, Any]], what: str) -> dict[str, Any]:
    try:
        return dict(make())
    except Exception as error:  # pydantic has an error of its own for fields without a schema
        raise ParameterError(f"{what} has the type {hint!r}, which has no JSON schema: {error}", got=hint) from error


def _moved(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema without its ``$defs``, which are added to ``definitions``, where references will look for them.

    If one of the names is taken by another definition, all get new names.
    """
    own = schema.pop("$defs", {})
    for number in itertools.count(1):
        names = {f"#/$defs/{name}": name if number == 1 else f"{name}_{number}" for name in own}
        renamed = {names[f"#/$defs/{name}"]: _renamed(each, names) for name, each in own.items()}
        if all(definitions.get(name, each) == each for name, each in renamed.items()):
            break
    definitions.update(renamed)
    found: dict[str, Any] = _renamed(schema, names)
    return found


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    """A schema in which references to definitions have their new names."""
    if isinstance(schema, dict):
        kept = ("enum", "const", "default", "examples")
        return {key: each if key in kept else _renamed(each, names) for key, each in schema.items()}
    if isinstance(schema, list):
        return [_renamed(each, names) for each in schema]
    return f"#/$defs/{names[schema]}" if isinstance(schema, str) and schema in names else schema
