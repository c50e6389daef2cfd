"""Wheels with one module each, built here and installed by pip."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from ggplug.backend import API_VERSION


def build(folder: Path, name: str, source: str, version: str) -> Path:
    """The wheel of a distribution ``fake-NAME`` that has the backend ``name`` in a module ``fake_NAME``."""
    module = f"fake_{name.lower()}"
    information = f"{module}-{version}.dist-info"
    files = {
        f"{module}.py": source,
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: fake-{name.lower()}\nVersion: {version}\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{information}/entry_points.txt": f"[ggplug.backends.v{API_VERSION}]\n{name} = {module}\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{information}/RECORD"))
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, f"{information}/RECORD": record}.items():
            archive.writestr(path, text)
    return wheel


def install(wheels: Sequence[Path], target: Path) -> None:
    """Installs them into a folder, in the place of other versions that are there."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--upgrade"]
    subprocess.run([*pip, "--disable-pip-version-check", "--target", str(target), *map(str, wheels)], check=True)
