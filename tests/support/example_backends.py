"""The backends of ``examples/``: as they are installed, or loaded from their folders as plugins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from paths import ROOT

import ggplug as gg
from ggplug.backend import Device

EXAMPLES = ROOT / "examples"


@contextmanager
def example_device(distribution: str, name: str) -> Iterator[Device]:
    """The device of an example; one that is not installed is unloaded at the end."""
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        pass
    else:
        yield gg.device(name)
        return
    source = EXAMPLES / distribution / "src"
    sys.path.insert(0, str(source))
    try:
        gg.load(source / distribution.replace("-", "_"))
        yield gg.device(name)
        gg.unload(name)
    finally:
        sys.path.remove(str(source))
