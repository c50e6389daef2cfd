"""What overrides a method of the interface fits it, or making the class raises an error with the author's line."""

from __future__ import annotations

import inspect
import operator
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ggplug.backend import Backend, Buffer, BufferType, Device, Event, Plan, Registration, WalkPlan
from ggplug.discrete import DiscreteBuffer, DiscreteDevice, QueuedBackend, QueuedEvent, QueuedPlan
from ggplug.errors import InterfaceError, PluginError
from ggplug.registry import Registry, Settings

INTERFACE = (
    Registration,
    Device,
    BufferType,
    Buffer,
    Backend,
    Plan,
    Event,
    WalkPlan,
    DiscreteBuffer,
    DiscreteDevice,
    QueuedBackend,
    QueuedEvent,
    QueuedPlan,
)


def methods(base: type) -> list[str]:
    """What others may override, of a class and of its bases."""
    found = []
    for name in dir(base):
        member = inspect.getattr_static(base, name)
        public = not name.startswith("_") or getattr(member, "__isabstractmethod__", False)
        if public and inspect.isfunction(member):
            found.append(name)
    return found


EVERY = [(base, name) for base in INTERFACE for name in methods(base)]


def made(base: type, name: str, member: Any) -> type:
    return type("Own", (base,), {name: member})


@pytest.mark.parametrize(("base", "name"), EVERY, ids=lambda each: getattr(each, "__name__", each))
def test_a_method_without_a_parameter_is_refused_where_the_class_is_made(base: type, name: str) -> None:
    parameters = list(inspect.signature(inspect.getattr_static(base, name)).parameters.values())[1:]
    given = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
    made(base, name, lambda self, *args, **kwargs: None)
    names = {f"renamed_{n}" if each.kind is not each.KEYWORD_ONLY else each.name: each for n, each in enumerate(given)}
    made(base, name, evaluated(names))
    with pytest.raises(InterfaceError, match=f"{Path(__file__).name}:[0-9]+.* unlike the parameters"):
        made(base, name, evaluated({"further": None, **names}))
    for left_out in names:
        with pytest.raises(InterfaceError, match=f"{Path(__file__).name}:[0-9]+.* does not take the parameter"):
            made(base, name, evaluated({each: kind for each, kind in names.items() if each != left_out}))


def evaluated(names: Mapping[str, inspect.Parameter | None]) -> Callable[..., None]:
    """A function with these parameters: with the kinds and defaults of others, or none."""
    spelt = ["self"]
    for name, each in names.items():
        if each is not None and each.kind is each.KEYWORD_ONLY and "*" not in spelt:
            spelt.append("*")
        spelt.append(f"{name}=None" if each is not None and each.default is not each.empty else name)
    code = compile(f"lambda {', '.join(spelt)}: None", __file__, "eval")
    function: Callable[..., None] = eval(code)
    return function


def test_a_parameter_that_has_a_default_in_the_interface_has_one() -> None:
    with pytest.raises(InterfaceError, match=r"has no default for 'groups', unlike the parameters of Backend\.plan"):

        class Stream(Backend):
            def plan(self, graph, groups):  # type: ignore[no-untyped-def]
                return None


def test_the_error_names_class_and_line_and_what_the_interface_has() -> None:
    with pytest.raises(InterfaceError) as caught:

        class Stream(Backend):
            def plan(self, graph):  # type: ignore[no-untyped-def, override]
                return None

    line = caught.value.got.__code__.co_firstlineno
    text = str(caught.value)
    assert f"Stream.plan ({__file__}:{line}) does not take the parameter 'groups' of Backend.plan" in text
    assert "plan(self, graph, groups)" in text


def test_a_method_in_the_place_of_a_property_and_the_other_way_round() -> None:
    with pytest.raises(InterfaceError, match=r"is a method, and Buffer\.is_read_only a property"):
        made(Buffer, "is_read_only", lambda self: True)
    made(Device, "patterns", ())


@pytest.mark.parametrize("getter", [None, operator.attrgetter("inner.plan"), partial(getattr), lambda self: None])
def test_a_property_in_the_place_of_a_method_says_itself_what_its_value_takes(getter: Any) -> None:
    assert isinstance(inspect.getattr_static(made(Backend, "plan", property(getter)), "plan"), property)


@pytest.mark.parametrize("member", [None, 5, classmethod(print), staticmethod(print), partial(print), print, int])
@pytest.mark.parametrize(("base", "name"), [(Backend, "plan"), (Buffer, "is_read_only")])
def test_what_is_no_function_is_left_as_it_is(base: type, name: str, member: Any) -> None:
    assert inspect.getattr_static(made(base, name, member), name) is member


def test_what_comes_from_a_mixin_and_static_methods_are_looked_at_too() -> None:
    class Mixin:
        def match(self) -> None: ...

    with pytest.raises(InterfaceError, match=r"Mixin\.match .* does not take the parameter 'group' of Device\.match"):
        type("Own", (Mixin, Device), {})
    made(Device, "match", staticmethod(lambda group: None))
    with pytest.raises(InterfaceError, match="does not take the parameter 'group'"):
        made(Device, "match", staticmethod(lambda: None))


def test_a_plugin_is_refused_when_it_is_loaded_with_its_own_line(tmp_path: Path) -> None:
    file = tmp_path / "short.py"
    file.write_text(
        textwrap.dedent(
            """
            from ggplug.backend import Backend

            class Stream(Backend):
                def plan(self, graph):
                    return None
            """
        ),
        encoding="utf-8",
    )
    with pytest.raises(PluginError) as caught:
        Registry([], settings=Settings()).load(file)
    text = str(caught.value)
    assert f"Stream.plan ({file}:5) does not take the parameter 'groups' of Backend.plan" in text
    assert isinstance(caught.value.__cause__, InterfaceError)
