"""Distributions that exist only in a folder: metadata and a module, as installers leave them behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ggplug.backend import API_VERSION

GOOD = """
from ggplug.backend import API_VERSION, Device, Memory, Registration
from ggplug.hookspecs import hookimpl
from ggplug.host import HOST
from ggplug.types import DeviceKind

class TheDevice(Device):
    name, description, kind, buffer_type = "{name}0", "a device on paper", DeviceKind.GPU, HOST
    device_id = "0000:01:00.0"
    def memory(self):
        return Memory(2**30, 2**31)

class TheRegistration(Registration):
    name, version, api_version = "{name}", "{version}", API_VERSION
    def __init__(self):
        self.given = (TheDevice(),)
    def devices(self):
        return self.given

@hookimpl
def ggplug_backend_registration():
    return TheRegistration()
"""


#: A good plugin whose device adds, by the function ``addition`` of two arrays that is written after it.
ADDING = (
    GOOD
    + """
import numpy as np
from ggplug.ops import Add

TheDevice.supports_buffer_type = lambda self, kind: kind.is_host
TheDevice.kernels = {{Add: lambda op, dst, a, b: np.copyto(dst.array(), addition(a.array(), b.array()))}}
"""
)


class Site:
    """A folder of distributions that a child process finds on its path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add(
        self,
        distribution: str,
        entry_points: dict[str, dict[str, str]],
        modules: dict[str, str],
        *,
        version: str = "1.0",
        requires: str = "",
    ) -> None:
        """``entry_points``: group -> name -> value; ``modules``: name -> source."""
        information = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        information.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        (information / "METADATA").write_text(metadata + (f"Requires-Dist: {requires}\n" if requires else ""), "utf-8")
        groups = [
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
            for group, points in entry_points.items()
        ]
        (information / "entry_points.txt").write_text("\n".join(groups), "utf-8")
        for name, source in modules.items():
            (self.folder / f"{name}.py").write_text(source, "utf-8")

    def add_backend(
        self,
        name: str,
        source: str | None = None,
        *,
        distribution: str = "",
        requires: str = "",
        group: str = f"ggplug.backends.v{API_VERSION}",
    ) -> None:
        """A backend's plugin, in a distribution ``fake-NAME`` with a module ``fake_NAME``; a good one by default."""
        distribution = distribution or f"fake-{name.lower()}"
        module = distribution.replace("-", "_")
        text = GOOD.format(name=name, version="1.0") if source is None else source
        self.add(distribution, {group: {name: module}}, {module: text}, requires=requires)

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs Python with this folder on its path."""
        path = os.pathsep.join([str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("GGPLUG_", "COLUMNS"))}
        return subprocess.run(
            [sys.executable, "-P", *command],
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=120,
            cwd=self.folder,
            env={**clean, "PYTHONPATH": path, "PYTHONWARNINGS": "error", **environment},
        )

    def ggplug(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs the command line."""
        return self.run("-m", "ggplug", *arguments, **environment)
