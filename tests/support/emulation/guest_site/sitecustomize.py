"""Python on an emulated processor imports this when it starts: its kernels are compiled by the host.

:mod:`emulation.compiling` puts this folder on the path of such processes and says why.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType


class _HostCompiler(MetaPathFinder):
    """Finds ``host_machine_code.py`` in the place of the module that compiles."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "ggplug_cpu.language.machine_code":
            return None
        return importlib.util.spec_from_file_location(name, Path(__file__).with_name("host_machine_code.py"))


sys.meta_path.insert(0, _HostCompiler())
