"""Asking herd7 which outcomes a model of memory allows."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

#: How often herd7 goes round a loop again.  The loops of the team only read until they find what they wait for, or try
#: again what a store-exclusive failed to write.  What they read in vain they read with acquire, which can only forbid
#: more: every outcome of an execution with such rounds is one of the execution without them too.
_UNROLL = 0


def herd7() -> str | None:
    """The program's path, or None where herdtools7 is not installed."""
    return shutil.which("herd7")


def is_reachable(program: str, test: Path) -> bool:
    """Whether any execution that Arm's model allows ends with the condition of the litmus test."""
    command = [program, "-model", "aarch64.cat", "-unroll", str(_UNROLL), "-speedcheck", "fast", str(test)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    verdict = re.search(r"^Observation .* (Never|Sometimes|Always) (\d+) (\d+)$", done.stdout, re.MULTILINE)
    if verdict is None:
        raise RuntimeError(f"herd7 gave no verdict on {test}:\n{done.stdout}\n{done.stderr}")
    return verdict[1] != "Never"
