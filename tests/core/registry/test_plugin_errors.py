"""Wherever ggplug wraps what a plugin raises in an error of its own, that has the class and the plugin's line.

A ``KeyError`` is the case that matters: all that it says itself is a key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import ggplug as gg
from ggplug.backend import Device
from ggplug.cli.new_backend.files import files
from ggplug.errors import GGPlugError, PluginError, in_one_line
from ggplug.registry.registry import Registry

HELPER = """
import numpy as np
TABLE = {}
def looked_up(*given, **more):
    return np.take(TABLE["x"], 0)  # the line

def through_a_library(op, dst, *src):
    np.apply_along_axis(lambda row: looked_up(), 0, np.zeros(3))

class Fails:
    def __get__(self, device, cls):
        return looked_up()
"""
INSIDE = {
    "loading": "looked_up()",
    "the hook": "ggplug_backend_registration = hookimpl(lambda: looked_up())",
    "listing devices": "ToyRegistration.devices = lambda self: looked_up()",
    "a property of a device": "ToyDevice.description = property(looked_up)",
    "starting a stream": "ToyDevice.init = looked_up",
    "match": "ToyDevice.match = looked_up",
    "supports_op": "ToyDevice.supports_op = looked_up",
    "the patterns": "ToyDevice.patterns = property(looked_up)",
    "the groups": "ToyDevice.groups = looked_up",
    "a kernel": "from ggplug.ops import Add\nToyDevice.kernels = {Add: looked_up}\nToyDevice.operand = lambda *a: None",
    "a kernel through a library": "from ggplug.ops import Add\nToyDevice.kernels = {Add: through_a_library}\n"
    "ToyDevice.operand = lambda *a: None",
    "a placement policy": "ggplug_placement = hookimpl(lambda graph, node, devices: looked_up())",
}
"""What the plugin's module does at its end."""


def plugin(folder: Path, memory: str, inside: str) -> Path:
    """A backend as `ggplug new-backend` writes it, with a mistake."""
    source = folder / "ggplug_toy"
    source.mkdir()
    for path, text in files("toy", memory, ["add"]).items():
        if path.parent.name == "ggplug_toy":
            (source / path.name).write_text(text, encoding="utf-8")
    with open(source / "__init__.py", "a", encoding="utf-8") as file:
        file.write(HELPER + inside + "\n")
    return source


@pytest.fixture
def use(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str, str], None]]:
    """Loads such a backend, and computes with it."""
    registry = Registry(plugins=(), hooks=gg.hookspecs.HOOKS)
    caplog.set_level(logging.CRITICAL, "ggplug")

    def load_and_compute(memory: str, inside: str) -> None:
        registry.load(plugin(tmp_path, memory, inside))
        device: Device = registry.device("Toy")
        registry.init_by_name("Toy").free()
        graph = gg.Graph(gg.add(gg.tensor(np.ones(3)), gg.tensor(np.ones(3))).set_output())
        with gg.Scheduler([device]) as scheduler:
            scheduler.compute(graph)
            scheduler.synchronize()

    yield load_and_compute
    for status in registry.status():
        registry.unload(status.name)


@pytest.mark.parametrize("memory", ["host", "discrete"])
@pytest.mark.parametrize("where", INSIDE)
def test_a_key_error_of_a_plugin_is_reported_with_its_class_and_its_line(
    where: str, memory: str, use: Callable[[str, str], None], tmp_path: Path
) -> None:
    with pytest.raises(GGPlugError) as caught:
        use(memory, INSIDE[where])
    file = tmp_path / "ggplug_toy" / "__init__.py"
    line = file.read_text(encoding="utf-8").splitlines().index('    return np.take(TABLE["x"], 0)  # the line') + 1
    assert f"KeyError: 'x' ({file}:{line} in looked_up)" in str(caught.value)


def test_what_is_registered_by_the_program_itself_is_reported_as_well() -> None:
    class Broken(Device):
        @property
        def name(self) -> str:  # type: ignore[override]
            return {}["x"]

        def memory(self) -> gg.backend.Memory:
            return gg.backend.Memory(None, None)

        buffer_type = gg.host.HOST

    with pytest.raises(PluginError, match=r"device: KeyError: 'x' \(.*test_plugin_errors\.py:\d+ in name\)"):
        Registry(plugins=()).register_device(Broken())


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AssertionError(), "AssertionError"),
        (KeyError("x"), "KeyError: 'x'"),
        (IndexError(3), "IndexError: 3"),
        (StopIteration(), "StopIteration"),
        (Mute(), "Mute"),
        (ValueError("two\n lines"), "ValueError: two lines"),
        (gg.ShapeError("3 is not 4", remedy="make it 4"), "3 is not 4 (make it 4)"),
    ],
)
def test_an_exception_is_described_in_one_line_with_its_class(error: Exception, words: str) -> None:
    assert in_one_line(error) == words
