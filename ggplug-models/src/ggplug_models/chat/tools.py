"""Functions that a model may call: their names, descriptions, and JSON schemas of their arguments."""

from __future__ import annotations

import enum
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ggplug.errors import ParameterError
from ggplug_models.metadata.values import short_repr

NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}
"""The schema of a function without arguments."""

MOST_TOOLS = 512
"""Maximum number of tools of a chat."""


@dataclass(frozen=True)
class Tool:
    """A function that a model may call.

    ``parameters``: the JSON schema of the arguments, an object.  ``function``: is called by :func:`.run_tools`.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable[..., Any] | None = None

    @classmethod
    def of(cls, tool: Tool | Mapping[str, Any] | Callable[..., Any]) -> Tool:
        """The tool of a Python function, or of a dict as in the OpenAI API.

        A Python function gives its name, the first paragraph of its docstring, and its parameters with their type
        hints.  Raises ParameterError for a dict that is not a tool, and for type hints without a JSON schema.
        """
        if isinstance(tool, Tool):
            return tool
        if isinstance(tool, Mapping):
            return cls._of_dict(tool)
        if callable(tool):
            return cls._of_function(tool)
        raise ParameterError(
            f"a tool must be a function, or a dict with the type function, got {short_repr(tool)}", got=tool
        )

    @classmethod
    def _of_dict(cls, tool: Mapping[str, Any]) -> Tool:
        function = tool.get("function", tool)
        if tool.get("type", "function") != "function" or not isinstance(function, Mapping):
            raise ParameterError(
                f"a tool must have the type function and a function, got {short_repr(tool)}",
                got=tool,
                wanted={"type": "function", "function": {"name": "", "description": "", "parameters": {}}},
            )
        name, description = function.get("name"), function.get("description") or ""
        if not isinstance(name, str) or not name or not isinstance(description, str):
            raise ParameterError(f"a tool must have a name and a description, got {short_repr(function)}", got=tool)
        parameters = function.get("parameters") or NO_ARGUMENTS
        if not isinstance(parameters, Mapping):
            raise ParameterError(
                f"the parameters of the tool {name} must be a JSON schema, got {short_repr(parameters)}", got=parameters
            )
        return cls(name, description, parameters)

    @classmethod
    def _of_function(cls, function: Callable[..., Any]) -> Tool:
        name = getattr(function, "__name__", "")
        hints = typing.get_type_hints(function, include_extras=True)
        properties: dict[str, Any] = {}
        required = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ParameterError(
                    f"the parameter {parameter.name} of the tool {name} cannot be passed by name", got=function
                )
            properties[parameter.name] = schema_of(hints.get(parameter.name, str), f"{name}({parameter.name})")
            if parameter.default is parameter.empty:
                required.append(parameter.name)
        paragraph = (inspect.getdoc(function) or "").partition("\n\n")[0]
        parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        return cls(name, " ".join(paragraph.split()), parameters, function)

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """Calls the function with arguments in JSON's types, of which enums and pydantic's models are made."""
        assert self.function is not None
        hints = typing.get_type_hints(self.function)
        return self.function(**{name: _made(hints.get(name), value) for name, value in arguments.items()})

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schemas of the arguments, by name."""
        found = self.parameters.get("properties")
        return found if isinstance(found, Mapping) else {}

    @property
    def required(self) -> frozenset[str]:
        """The arguments that must be there."""
        found = self.parameters.get("required")
        return frozenset(found) if isinstance(found, list) else frozenset()

    @property
    def message(self) -> dict[str, Any]:
        """The tool as a template gets it, as in the OpenAI API."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


AnyTool = Tool | Mapping[str, Any] | Callable[..., Any]


def tools_of(tools: Sequence[AnyTool] | None) -> list[Tool]:
    """The tools of a chat.  Raises ParameterError as :meth:`Tool.of` does, and for two of the same name."""
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence | None):
        raise ParameterError(f"tools must be a list, got {short_repr(tools)}", got=tools)
    if tools is not None and len(tools) > MOST_TOOLS:
        raise ParameterError(f"there are {len(tools)} tools; at most {MOST_TOOLS} are allowed", got=len(tools))
    found = [Tool.of(tool) for tool in tools or ()]
    names = [tool.name for tool in found]
    for name in names:
        if names.count(name) > 1:
            raise ParameterError(f"two tools have the name {name!r}", got=name)
    return found


@dataclass(frozen=True)
class ToolChoice:
    """Which of the tools a model may call.

    ``tools``: those that it may call; none: it may not call any.  ``required``: whether it must call one.  ``several``:
    whether it may call more than one in an answer.
    """

    tools: tuple[Tool, ...] = ()
    required: bool = False
    several: bool = True

    @classmethod
    def of(cls, tools: Sequence[Tool], choice: Any = None, *, several: bool = True) -> ToolChoice:
        """The choice in the words of the OpenAI API.

        ``choice``: ``"auto"`` (the default), ``"none"``, ``"required"``, the name of a tool, or a dict with the type
        ``function`` or ``allowed_tools``.  Raises ParameterError.
        """
        if choice is None or choice == "auto":
            return cls(tuple(tools), several=several)
        if choice == "none":
            return cls(several=several)
        if choice in ("required", "any"):
            return cls._among(tools, [tool.name for tool in tools], several=several)
        if isinstance(choice, str):
            return cls._among(tools, [choice], several=several)
        kind = choice.get("type") if isinstance(choice, Mapping) else None
        if kind in ("function", "tool"):
            function = choice.get("function", choice)
            return cls._among(tools, [_name(function, choice)], several=several)
        if kind == "allowed_tools":
            allowed = choice.get("allowed_tools", choice)
            listed = allowed.get("tools") if isinstance(allowed, Mapping) else None
            if not isinstance(listed, list):
                raise _not_a_choice(choice)
            names = [
                _name(each.get("function", each) if isinstance(each, Mapping) else None, choice) for each in listed
            ]
            found = cls._among(tools, names, several=several)
            return found if allowed.get("mode") == "required" else cls(found.tools, several=several)
        raise _not_a_choice(choice)

    @classmethod
    def _among(cls, tools: Sequence[Tool], names: Sequence[str], *, several: bool) -> ToolChoice:
        known = {tool.name: tool for tool in tools}
        for name in names:
            if name not in known:
                listed = ", ".join(known) or "none"
                raise ParameterError(f"tool_choice has the tool {name!r:.100}; the tools are: {listed:.500}", got=name)
        if not names:
            raise ParameterError("tool_choice requires a call, but there are no tools", got=names)
        return cls(tuple(known[name] for name in names), required=True, several=several)


def _name(function: Any, choice: Any) -> str:
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise _not_a_choice(choice)
    return name


def _not_a_choice(choice: Any) -> ParameterError:
    wanted = "auto, none, required, or an object with the type function and a name"
    return ParameterError(f"tool_choice must be {wanted}, got {short_repr(choice)}", got=choice, wanted=wanted)


# -- type hints -----------------------------------------------------------------------------------

_SIMPLE: Mapping[Any, Mapping[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    dict: {"type": "object"},
    list: {"type": "array"},
    Any: {},
}


def schema_of(hint: Any, what: str) -> dict[str, Any]:
    """The JSON schema of a type hint.

    Supported are str, int, float, bool, None, Any, list, dict, tuple, set, Literal, unions, Optional, enums,
    ``Annotated`` (its first text is the description), and pydantic's models.  ``what``: the parameter, for the error.
    Raises ParameterError for other types.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        found = schema_of(arguments[0], what)
        described = next((each for each in arguments[1:] if isinstance(each, str)), None)
        return found if described is None else {**found, "description": described}
    if hint in _SIMPLE:
        return dict(_SIMPLE[hint])
    if hasattr(hint, "model_json_schema"):
        return dict(hint.model_json_schema())
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of(each, what) for each in arguments]}
    if origin in (list, set, frozenset, Sequence):
        return {"type": "array", "items": schema_of(arguments[0], what)}
    if origin is tuple and arguments[-1] is not Ellipsis:
        items = [schema_of(each, what) for each in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin is tuple:
        return {"type": "array", "items": schema_of(arguments[0], what)}
    if origin in (dict, Mapping) and arguments[0] is str:
        return {"type": "object", "additionalProperties": schema_of(arguments[1], what)}
    raise ParameterError(f"{what} has the type {hint!r}, which has no JSON schema", got=hint)


def _made(hint: Any, value: Any) -> Any:
    """A value of a type hint, made of one of JSON's types; other values are left as they are."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    if hasattr(hint, "model_validate"):
        return hint.model_validate(value)
    if origin in (list, set, frozenset, tuple, Sequence) and isinstance(value, list):
        items = arguments if origin is tuple and arguments[-1] is not Ellipsis else [arguments[0]] * len(value)
        made = [_made(item, each) for item, each in zip(items, value, strict=False)]
        return made if origin in (list, Sequence) else origin(made)
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {key: _made(arguments[1], each) for key, each in value.items()}
    if origin in (typing.Union, types.UnionType):
        return (
            _made(next((each for each in arguments if each is not type(None)), None), value)
            if value is not None
            else None
        )
    return value


# -- types of values ------------------------------------------------------------------------------


def kinds_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema may allow: ``string``, ``number`` (also integers), ``object`` and so on.

    ``root``: the schema that references refer to.  All types, if the schema does not say it.
    """
    every = frozenset(("string", "number", "boolean", "null", "object", "array"))
    if not isinstance(schema, Mapping) or depth > 16:
        return every
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found: Any = root
        for key in reference[2:].split("/"):
            found = found.get(key) if isinstance(found, Mapping) else None
        return kinds_of(found, root, depth + 1)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return frozenset().union(*(kinds_of(each, root, depth + 1) for each in schema[key]))
    values = (
        schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else None
    )
    if values is not None:
        return frozenset(map(_kind_of, values))
    kind = schema.get("type")
    listed = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else None
    if listed is None:
        return frozenset(("object",)) if "properties" in schema else every
    return frozenset("number" if each == "integer" else str(each) for each in listed)


def _kind_of(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "number", float: "number", dict: "object", list: "array"}
    return names.get(type(value), "null")


def value_of(text: str, kinds: frozenset[str]) -> str:
    """The JSON of a value that a model wrote without quotes, for the types that its schema allows.

    It is JSON if it is a value of one of these types, and a string otherwise.
    """
    if kinds != {"string"}:
        try:
            if _kind_of(json.loads(text, parse_constant=refused)) in kinds:
                return text.strip()
        except (ValueError, RecursionError):
            value = _pythonic(text)
            if value is not text and _kind_of(value) in kinds:
                return json.dumps(value, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False)


def refused(constant: str) -> Any:
    """Raises ValueError for NaN and infinity, which Python's reader of JSON would take."""
    raise ValueError(f"{constant} is not JSON")


def _pythonic(text: str) -> Any:
    """The value of a literal of Python, such as ``True`` or ``{'a': None}``; the text itself if it is none."""
    import ast

    try:
        found = ast.literal_eval(text.strip())
        json.dumps(found, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text
    return found
