"""``python -m llama_server SOURCE [PYTEST OPTIONS]``: runs llama-server's tests, and compares with what is known.

``SOURCE``: the folder of llama.cpp, such as ``vendor/llama.cpp`` of the source distribution of llama-cpp-python.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from llama_server.plugin import DATA, prepare

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

DOWNLOADS = ("moe_shakespeare15M.gguf", "stories15M-q4_0.gguf")
"""Files that tests would download."""

KNOWN = DATA / "llama_server_cases.json"
"""By reason, the cases that do not pass."""


def run(source: Path, folder: Path, options: list[str]) -> dict[str, str]:
    """Runs the tests in a copy of their folder; returns the outcome of each case: passed, or why not."""
    tests = folder / "tools" / "server" / "tests"
    shutil.copytree(source / "tools" / "server" / "tests", tests, dirs_exist_ok=True)
    (tests / "conftest.py").write_text(CONFTEST)
    (tests / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: needs a large model\n")
    if not (folder / "models").exists():
        (folder / "models").symlink_to(source / "models")
    prepare(folder / "made")
    (tests / "tmp").mkdir(exist_ok=True)
    for name in DOWNLOADS:
        shutil.copy(folder / "made" / "models" / "story.gguf", tests / "tmp" / name)
    (tests / "wget.py").write_text("def download(url, out): raise OSError('no network')\n")
    report = folder / "outcomes.jsonl"
    report.write_text("")
    command = [sys.executable, "-m", "pytest", "-p", "llama_server.plugin", "-m", "not slow"]
    path = f"{os.environ['PYTHONPATH']}{os.pathsep}{tests}"
    environment = os.environ | {"PYTHONPATH": path, "OUTCOMES": str(report)}
    subprocess.run([*command, "-q", "--tb=line", *options], cwd=tests, env=environment, check=False)
    return outcomes(report)


def outcomes(report: Path) -> dict[str, str]:
    """The outcome of each case; one that fails also when it ends has failed."""
    found: dict[str, str] = {}
    for line in report.read_text(encoding="utf-8").splitlines():
        name, outcome, why = json.loads(line)
        if found.get(name, "passed") == "passed":
            found[name] = outcome if outcome == "passed" else f"{outcome}: {why}"
    return found


def main() -> int:
    """Prints the numbers, and what differs from the known cases; returns 1 if a case fails that is not known."""
    parser = argparse.ArgumentParser(prog="llama_server", description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary folder")
    parser.add_argument("--json", type=Path, help="file for the outcome of each case")
    given, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = run(given.source.resolve(), (given.folder or Path(temporary)).resolve(), options)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    known = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    reasons = {name: reason for reason, names in known.items() for name in names}
    failed = {name: why for name, why in found.items() if why != "passed"}
    print(f"{len(found) - len(failed)} of {len(found)} cases pass")
    for reason, count in Counter(_reason(name, reasons) for name in failed).most_common():
        print(f"{count:4} {reason}")
    new = [name for name in failed if _reason(name, reasons) == "unknown"]
    for name in new:
        print(f"not known: {name}: {failed[name]!r:.300}")
    return bool(new)


def _reason(name: str, reasons: dict[str, str]) -> str:
    """The reason why a case does not pass: known for it, for its function, or for its file."""
    function = re.sub(r"\[.*", "", name)
    return next((reasons[each] for each in (name, function, name.partition("::")[0]) if each in reasons), "unknown")


if __name__ == "__main__":
    sys.exit(main())
