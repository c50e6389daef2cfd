"""``python -m llama_server SOURCE [PYTEST OPTIONS]``: runs llama-server's tests.

``SOURCE``: the folder of llama.cpp, such as ``vendor/llama.cpp`` of the source distribution of llama-cpp-python.  The
cases in ``tests/data/llama_server_cases.json`` do not pass, each for the reason that is given there; the run fails if
one of them passes, or if another one does not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from llama_server.plugin import prepare

CONFTEST = """
import pytest
from utils import *

@pytest.fixture(autouse=True)
def stop_server_after_each_test():
    yield
    for server in set(server_instances):
        server.stop()
"""
"""llama-server's own one loads the models of the hub first."""

DOWNLOADS = {"moe_shakespeare15M.gguf": "adapter.gguf", "stories15M-q4_0.gguf": "tale.gguf"}
"""Files that tests would download, with those that stand in for them."""


def run(source: Path, folder: Path, options: list[str]) -> int:
    """Runs the tests in a copy of their folder; returns the exit status of pytest."""
    tests = folder / "tools" / "server" / "tests"
    shutil.copytree(source / "tools" / "server" / "tests", tests, dirs_exist_ok=True)
    (tests / "conftest.py").write_text(CONFTEST)
    (tests / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: needs a large model\n")
    if not (folder / "models").exists():
        (folder / "models").symlink_to(source / "models")
    prepare(folder / "made")
    (tests / "tmp").mkdir(exist_ok=True)
    for name, made in DOWNLOADS.items():
        shutil.copy(folder / "made" / "models" / made, tests / "tmp" / name)
    (tests / "wget.py").write_text("def download(url, out): raise OSError('no network')\n")
    command = [sys.executable, "-m", "pytest", "-p", "llama_server.plugin", "-m", "not slow", "-q", "--tb=line"]
    path = f"{os.environ['PYTHONPATH']}{os.pathsep}{tests}"
    found = subprocess.run([*command, *options], cwd=tests, env=os.environ | {"PYTHONPATH": path}, check=False)
    return found.returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="llama_server", description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary folder")
    given, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as temporary:
        return run(given.source.resolve(), (given.folder or Path(temporary)).resolve(), options)


if __name__ == "__main__":
    sys.exit(main())
