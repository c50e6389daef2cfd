"""Functions that a model may call: their names, descriptions, and JSON schemas of their arguments."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ggplug.errors import ParameterError
from ggplug_models.chat.hints import hints_of, made, read_hint
from ggplug_models.chat.keywords import checked_schema
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
        hints.  Raises ParameterError for a dict that is not a tool, for type hints without a JSON schema, and for a
        schema that is not valid.
        """
        if isinstance(tool, Tool):
            return tool._checked()
        if isinstance(tool, Mapping):
            return cls._of_dict(tool)._checked()
        if callable(tool):
            return cls._of_function(tool)._checked()
        raise ParameterError(
            f"a tool must be a function, or a dict with the type function, got {short_repr(tool)}", got=tool
        )

    def _checked(self) -> Tool:
        """The tool, with a schema in types that JSON has."""
        if not isinstance(self.name, str) or not self.name or not isinstance(self.description, str):
            named = {"name": self.name, "description": self.description}
            raise ParameterError(f"a tool must have a name and a description, got {short_repr(named)}", got=self)
        what = f"the parameters of the tool {self.name:.100}"
        if not isinstance(self.parameters, Mapping):
            raise ParameterError(
                f"{what} must be a JSON schema, got {short_repr(self.parameters)}", got=self.parameters
            )
        return replace(self, parameters=checked_schema(self.parameters, what))

    @classmethod
    def _of_dict(cls, tool: Mapping[str, Any]) -> Tool:
        function = tool.get("function", tool)
        if tool.get("type", "function") != "function" or not isinstance(function, Mapping):
            raise ParameterError(
                f"a tool must have the type function and a function, got {short_repr(tool)}",
                got=tool,
                wanted={"type": "function", "function": {"name": "", "description": "", "parameters": {}}},
            )
        name: Any = function.get("name")
        return cls(name, function.get("description") or "", function.get("parameters") or NO_ARGUMENTS)

    @classmethod
    def _of_function(cls, function: Callable[..., Any]) -> Tool:
        name = getattr(function, "__name__", None)
        if not isinstance(name, str) or not name:
            raise ParameterError(
                f"a tool must be a function with a name, got {short_repr(function)}",
                got=function,
                remedy="write a function with def, which calls it",
            )
        try:
            given = inspect.signature(function).parameters.values()
        except (TypeError, ValueError) as error:
            raise ParameterError(f"the parameters of the tool {name} are not known: {error}", got=function) from error
        hints = hints_of(function, name)
        properties: dict[str, Any] = {}
        definitions: dict[str, Any] = {}
        required = []
        for parameter in given:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ParameterError(
                    f"the parameter {parameter.name} of the tool {name} cannot be passed by name", got=function
                )
            hint = hints.get(parameter.name, str)
            properties[parameter.name] = read_hint(hint, f"{name}({parameter.name})", definitions).schema
            if parameter.default is parameter.empty:
                required.append(parameter.name)
        paragraph = (inspect.getdoc(function) or "").partition("\n\n")[0]
        parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        if definitions:
            parameters["$defs"] = definitions
        return cls(name, " ".join(paragraph.split()), parameters, function)

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """Calls the function with arguments in JSON's types, of which enums and pydantic's models are made.

        Of a union, a value becomes the first member that allows it; of several models, the one with the most of its
        fields.  Raises ParameterError, or pydantic's ValidationError, for a value that the type of its parameter does
        not allow; TypeError for arguments that are missing or that the function does not have.
        """
        assert self.function is not None
        hints = hints_of(self.function, self.name)
        return self.function(
            **{name: made(hints.get(name, Any), value, f"{self.name}({name})") for name, value in arguments.items()}
        )

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


# -- types of values ------------------------------------------------------------------------------


def resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """The schema that a reference refers to within ``root``; the schema itself, if it is none.

    None for a reference to nothing, to another document, or to itself.  ``allOf`` with one schema is a reference, too.
    """
    for _ in range(16):
        if not isinstance(schema, Mapping):
            return schema
        reference, all_of = schema.get("$ref"), schema.get("allOf")
        if isinstance(reference, str):
            schema = root if reference == "#" or reference.startswith("#/") else None
            for key in reference.split("/")[1:]:
                key = key.replace("~1", "/").replace("~0", "~")
                schema = schema.get(key) if isinstance(schema, Mapping) else None
        elif isinstance(all_of, list) and len(all_of) == 1 and not {"type", "properties"} & schema.keys():
            schema = all_of[0]
        else:
            return schema
    return None


def kinds_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a schema may allow: ``string``, ``number`` (also integers), ``object`` and so on.

    ``root``: the schema that references refer to.  All types, if the schema does not say it.
    """
    return frozenset(kind for each in alternatives(schema, root) for kind in _own_kinds(each))


def alternatives(schema: Any, root: Mapping[str, Any]) -> list[Any]:
    """The schemas without alternatives and references of which a schema allows the values."""
    found: list[Any] = []
    waiting, known = [schema], set()
    while waiting:  # no recursion, because alternatives may refer to one another in circles
        one = resolved(waiting.pop(), root)
        if id(one) not in known:
            known.add(id(one))
            options = options_of(one)
            waiting += reversed(options or ())
            found += [one] if options is None else []
    return found


def options_of(schema: Any) -> list[Any] | None:
    """The alternatives of a schema; None if it has none."""
    given = (schema.get(key) for key in ("anyOf", "oneOf")) if isinstance(schema, Mapping) else ()
    return next((each for each in given if isinstance(each, list)), None)


def values_of(schema: Any) -> list[Any] | None:
    """The values that a schema without alternatives lists; None if it lists none."""
    if not isinstance(schema, Mapping):
        return None
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return values if isinstance(values, list) and values else None


def _own_kinds(schema: Any) -> set[str]:
    """The JSON types that a schema without alternatives may allow."""
    every = {"string", "number", "boolean", "null", "object", "array"}
    if not isinstance(schema, Mapping):
        return every
    if isinstance(values := schema.get("enum"), list):
        return set(map(_kind_of, values))
    if "const" in schema:
        return {_kind_of(schema["const"])}
    kind = schema.get("type")
    if not isinstance(kind, (str, list)):
        return {"object"} if "properties" in schema else every
    return {"number" if each == "integer" else str(each) for each in ([kind] if isinstance(kind, str) else kind)}


def _kind_of(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "number", float: "number", dict: "object", list: "array"}
    return names.get(type(value), "null")


def value_of(text: str, kinds: frozenset[str]) -> str:
    """The JSON of a value that a model wrote without quotes, for the types that its schema allows.

    It is JSON, or an array, an object or a constant in Python's words, if it is a value of one of these types, and a
    string otherwise.
    """
    if kinds != {"string"}:
        try:
            if _kind_of(json.loads(text, parse_constant=refused)) in kinds:
                return text.strip()
        except (ValueError, RecursionError):
            value = _pythonic(text)
            if not isinstance(value, str) and _kind_of(value) in kinds:
                return json.dumps(value, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False)


def refused(constant: str) -> Any:
    """Raises ValueError for NaN and infinity, which Python's reader of JSON would take."""
    raise ValueError(f"{constant} is not JSON")


def _pythonic(text: str) -> Any:
    """The value of ``True``, ``False``, ``None``, or an array or object as Python writes it; other text itself."""
    import ast

    text = text.strip()
    if text not in ("True", "False", "None") and not text.startswith(("[", "{")):
        return text
    try:
        found = ast.literal_eval(text)
        json.dumps(found, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text
    return found
