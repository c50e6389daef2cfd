"""Type hints of tools: their JSON schemas, and the values that are made of a model's arguments."""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Dict, List, Literal, Optional, Tuple, Union  # noqa: UP035

import pytest

from ggplug.errors import ParameterError
from ggplug_models import Tool

pydantic = pytest.importorskip("pydantic")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Shape(enum.Enum):
    """Its values are no JSON values, but become such."""

    SQUARE = (2, 2)


class Lenient(enum.Enum):
    ON = "on"

    @classmethod
    def _missing_(cls, value: object) -> Lenient | None:
        return cls.ON if value == "ON" else None


class Point(pydantic.BaseModel):
    x: int = 0
    y: int = 0


class Named(pydantic.BaseModel):
    name: str = ""


class Line(pydantic.BaseModel):
    begin: Point
    end: Point


class Node(pydantic.BaseModel):
    value: int
    children: list[Node] = pydantic.Field(default_factory=list)


def tool_of(hint: Any) -> Callable[..., Any]:
    def given(value) -> Any:  # type: ignore[no-untyped-def]
        return value

    given.__annotations__["value"] = hint
    return given


MADE: list[tuple[Any, Any, Any]] = [
    (Color | int, 3, 3),
    (Color | int, "red", Color.RED),
    (int | Color, "red", Color.RED),
    (Color | str, "green", "green"),
    (Color | str, "red", Color.RED),
    (str | Color, "red", "red"),
    (Color | Level, 2, Level.HIGH),
    (Level | bool, True, True),
    (bool | Level, 1, Level.LOW),
    (Level | float, 1.5, 1.5),
    (Level | Literal[True], True, True),
    (Literal[1] | bool, True, True),
    (Point | str, "here", "here"),
    (Point | str, {"x": 1}, Point(x=1)),
    (str | Point, {"x": 1}, Point(x=1)),
    (Point | None, None, None),
    (Point | None, {"y": 2}, Point(y=2)),
    (Point | Named, {"name": "a"}, Named(name="a")),
    (Point | Line, {"begin": {"x": 1}, "end": {}}, Line(begin=Point(x=1), end=Point())),
    (Optional[Union[Color, int]], None, None),  # noqa: UP007, UP045
    (Optional[Union[Color, int]], 3, 3),  # noqa: UP007, UP045
    (list[Color | int], [3, "red"], [3, Color.RED]),
    (list[Point] | list[Named], [{"name": "a"}], [Named(name="a")]),
    (list[Color] | Color, "red", Color.RED),
    (list[Color] | Color, ["red"], [Color.RED]),
    (list[int] | list[Color], ["red"], [Color.RED]),
    (dict[str, Point | str], {"a": "here", "b": {"x": 1}}, {"a": "here", "b": Point(x=1)}),
    (dict[str, Color] | list[Color], ["red"], [Color.RED]),
    (tuple[Color | int, Point | None], [1, None], (1, None)),
    (tuple[Color, ...] | int, ["red", "blue"], (Color.RED, Color.BLUE)),
    (set[Color] | None, ["red", "red"], {Color.RED}),
    (Annotated[Color | int, "a color"], "red", Color.RED),
    (list[Annotated[Color | int, "a color"]], ["red", 2], [Color.RED, 2]),
    (Sequence[Color | int], ["red"], [Color.RED]),
    (Mapping[str, Level], {"a": 1}, {"a": Level.LOW}),
    (Literal["red", Color.BLUE], "blue", Color.BLUE),
    (Literal[Color.RED] | None, "red", Color.RED),
    (Shape | None, [2, 2], Shape.SQUARE),
    (Lenient, "ON", Lenient.ON),
    (Literal[[1]], [1], [1]),
    (int, 3.0, 3),
    (float, 3, 3),
    (List, [1], [1]),  # noqa: UP006
    (Tuple, [1], (1,)),  # noqa: UP006
    (Dict, {"a": 1}, {"a": 1}),  # noqa: UP006
    (set, [1, 1], {1}),
    (None, None, None),
    (Any, {"a": [1]}, {"a": [1]}),
    (Node, {"value": 1, "children": [{"value": 2}]}, Node(value=1, children=[Node(value=2)])),
]


@pytest.mark.parametrize(("hint", "value", "wanted"), MADE, ids=str)
def test_an_argument_is_made_of_what_the_model_wrote(hint: Any, value: Any, wanted: Any) -> None:
    tool = Tool.of(tool_of(hint))
    found = tool.call({"value": value})
    assert (found, type(found)) == (wanted, type(wanted))
    assert json.loads(json.dumps(tool.message)) == tool.message


def test_limits_of_an_argument_are_in_the_schema_and_hold() -> None:
    limited = Annotated[int, pydantic.Field(ge=1, description="how many")]
    texts = list[Annotated[str, pydantic.Field(max_length=2), "a code"]]
    properties = Tool.of(tool_of(limited)).properties["value"], Tool.of(tool_of(texts)).properties["value"]
    assert properties[0] == {"type": "integer", "minimum": 1, "description": "how many"}
    assert properties[1]["items"] == {"type": "string", "maxLength": 2, "description": "a code"}
    assert Tool.of(tool_of(limited)).call({"value": 1}) == 1
    for hint, value in ((limited, 0), (texts, ["abc"])):
        with pytest.raises(pydantic.ValidationError):
            Tool.of(tool_of(hint)).call({"value": value})


@pytest.mark.parametrize(
    ("hint", "value", "words"),
    [
        (int, "3", r"given\(value\) must have the JSON type integer, got '3'"),
        (int, True, "must have the JSON type integer, got True"),
        (float, False, "must have the JSON type number"),
        (str, None, "must have the JSON type string"),
        (list[int], [1, "2"], "must have the JSON type integer, got '2'"),
        (tuple[int, int], [1, 2, 3], r"must have the JSON type array of length 2, got \[1, 2, 3\]"),
        (dict[str, int], [], "must have the JSON type object"),
        (Color, "green", r"must be one of \['red', 'blue'\], got 'green'"),
        (Literal[1, 2], True, r"must be one of \[1, 2\], got True"),
        (Color | int, "green", "must be one of .*; or .* must have the JSON type integer"),
        (Point | int, {"x": "far"}, "Input should be a valid integer.*\n?.*"),
    ],
    ids=str,
)
def test_an_argument_that_its_type_does_not_allow_is_refused(hint: Any, value: Any, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        Tool.of(tool_of(hint)).call({"value": value})


def test_a_tool_with_a_schema_of_its_own_may_have_types_without_one() -> None:
    tool = Tool("given", "", {"type": "object"}, tool_of(bytes))
    assert tool.call({"value": "a"}) == "a"


# -- schemas --------------------------------------------------------------------------------------


def same_name(field: str, kind: Any) -> Any:
    """A model whose inner model is named like those of others."""
    inner = pydantic.create_model("Inner", **{field: (kind, ...)})
    return pydantic.create_model("Outer", inner=(inner, ...), more=(list[inner], ...))


FIRST, SECOND = same_name("a", int), same_name("b", str)


def references(schema: Any) -> list[str]:
    if isinstance(schema, dict):
        own = [schema["$ref"]] if isinstance(schema.get("$ref"), str) else []
        return own + [each for value in schema.values() for each in references(value)]
    return [each for value in schema for each in references(value)] if isinstance(schema, list) else []


def validated(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether the grammar of a schema allows a value."""
    llguidance = pytest.importorskip("llguidance")
    vocabulary = llguidance.LLTokenizer("byte")
    matcher = llguidance.LLMatcher(vocabulary, llguidance.LLMatcher.grammar_from_json_schema(dict(schema)))
    assert not matcher.is_error(), matcher.get_error()
    return bool(matcher.consume_tokens(vocabulary.tokenize_str(json.dumps(value)))) and bool(matcher.is_accepting())


def draw(line: Line, node: Node | None = None, others: dict[str, list[Line]] = {}) -> None: ...  # noqa: B006
def both(first: FIRST, second: SECOND, again: FIRST) -> None: ...  # type: ignore[valid-type]
def recursive(node: Annotated[Node, "a tree"]) -> None: ...


POINTS = {"begin": {"x": 1, "y": 1}, "end": {"x": 1, "y": 1}}
TREE = {"value": 1, "children": [{"value": 2, "children": []}]}


@pytest.mark.parametrize(
    ("function", "names", "allowed", "refused"),
    [
        (draw, {"Point", "Node"}, {"line": POINTS, "node": TREE}, {"line": {"begin": {"x": 1}, "end": 3}}),
        (recursive, {"Node"}, {"node": TREE}, {"node": {"value": 1, "children": [3]}}),
        (
            both,
            {"Inner", "Inner_2"},
            {name: {"inner": inner, "more": [inner]} for name, inner in [("first", {"a": 1}), ("second", {"b": "x"})]}
            | {"again": {"inner": {"a": 1}, "more": []}},
            {"first": {"inner": {"a": 1}, "more": []}, "second": {"inner": {"a": 1}, "more": []}},
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_definitions_of_models_are_where_references_look_for_them(
    function: Any, names: set[str], allowed: Any, refused: Any
) -> None:
    parameters = Tool.of(function).parameters
    assert set(parameters["$defs"]) == names
    assert "$defs" not in json.dumps(parameters["properties"]).replace("#/$defs/", "")
    for reference in references(dict(parameters)):
        assert reference.removeprefix("#/$defs/") in names
    assert validated(parameters, allowed)
    assert not validated(parameters, refused)


def test_a_text_that_only_looks_like_a_reference_is_kept() -> None:
    class Inner(pydantic.BaseModel):
        text: str = "#/$defs/Inner"

    class Outer(pydantic.BaseModel):
        inner: Inner

    Other = pydantic.create_model("Other", inner=(same_name("c", int), ...))

    def texts(other: Other, outer: Outer) -> None: ...  # type: ignore[valid-type]

    texts.__annotations__.update(other=Other, outer=Outer)
    definitions = Tool.of(texts).parameters["$defs"]
    assert definitions["Inner_2"]["properties"]["text"]["default"] == "#/$defs/Inner"


def nested(depth: int) -> Any:
    hint: Any = int
    for _ in range(depth):
        hint = list[hint]
    return hint


class Callback(pydantic.BaseModel):
    """A model without a JSON schema."""

    call: Callable[[int], int]


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (bytes, "has the type <class 'bytes'>, which has no JSON schema"),
        ([int], r"has the type \[<class 'int'>\], which has no JSON schema"),
        ({"a": int}, "which has no JSON schema"),
        (3, "has the type 3, which has no JSON schema|cannot be read"),
        (dict[int, str], "which has no JSON schema"),
        (Literal[b"x"], "may have the value b'x', which JSON does not have"),
        (enum.Enum("Odd", {"A": object()}), "which JSON does not have"),
        (enum.Enum("Endless", {"A": float("nan")}), "may have the value nan, which JSON does not have"),
        (Callback, "has the type .*Callback.*, which has no JSON schema"),
        (list[Callback | None], "which has no JSON schema"),
        ("Undefined", r"the type hints of the tool given cannot be read: NameError"),
        ("list[", "the type hints of the tool given cannot be read: SyntaxError"),
        ("json.nothing", "the type hints of the tool given cannot be read: AttributeError"),
        ("1 / 0", "the type hints of the tool given cannot be read: ZeroDivisionError"),
        (nested(5_000), "has a type that is nested too deeply|cannot be read: RecursionError"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else type(value).__name__,
)
def test_a_type_without_a_schema_is_an_error_that_names_the_parameter(hint: Any, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        Tool.of(tool_of(hint))


class Callable_:  # noqa: N801
    def __call__(self, a: int) -> int:
        return a


class Unnamed:
    def __init__(self, width: int, color: Color | None = None) -> None:
        self.given = (width, color)


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (functools.partial(draw), "a tool must be a function with a name, got functools.partial"),
        (Callable_(), "a tool must be a function with a name"),
        (min, "the parameters of the tool min are not known"),
        (len, "the parameter obj of the tool len cannot be passed by name"),
        (object(), "a tool must be a function, or a dict"),
    ],
    ids=["partial", "an object with a call", "min", "len", "an object"],
)
def test_what_can_be_called_but_is_no_tool_is_refused_in_words(tool: Any, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        Tool.of(tool)


def test_a_class_is_a_tool_with_the_parameters_of_its_init() -> None:
    tool = Tool.of(Unnamed)
    assert tool.properties["width"] == {"type": "integer"}
    assert tool.call({"width": 3, "color": "red"}).given == (3, Color.RED)
    assert Tool.of(Point).call({"x": 3, "y": 4}) == Point(x=3, y=4)
