"""The runtime of ggplug_simt runs a library in another language, on a device with WebGPU's limits (see ``tiny``)."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest
from paths import SUPPORT

pytest.importorskip("ggplug_simt")

from tiny.driver import DEADLY
from tiny.scenarios import MISTAKES, SCENARIOS


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tiny", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SUPPORT)},
    )


@functools.cache
def outcome() -> subprocess.CompletedProcess[str]:
    """All scenarios, in one process."""
    return run()


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_runtime_keeps_to_the_limits_of_a_device_with_another_language(name: str) -> None:
    done = outcome()
    assert f"passed {name}" in done.stdout.splitlines(), done.stderr[-4000:]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_driver_ends_the_process_where_the_runtime_makes_a_mistake(mistake: str) -> None:
    done = run(mistake)
    assert done.returncode == DEADLY, done.stderr[-4000:]
