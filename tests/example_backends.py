"""The backends of ``examples/``, loaded from their folders as plugins, without an installation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ggplug as gg
from ggplug.backend import Device

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@contextmanager
def example_device(distribution: str, name: str) -> Iterator[Device]:
    """The device of an example; it is unloaded at the end."""
    source = EXAMPLES / distribution / "src"
    sys.path.insert(0, str(source))
    try:
        gg.load(source / distribution.replace("-", "_"))
        yield gg.device(name)
        gg.unload(name)
    finally:
        sys.path.remove(str(source))
