"""Kernels of a guest are compiled by the host; the guest here is another process on the host, without emulation."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from paths import SUPPORT

pytest.importorskip("ggplug_cpu")

from emulation.compiling import on_host

GUEST = """
import ctypes, sys
from ggplug_cpu.compiler import kernel
from ggplug_cpu.context import store_word
from guest_kernels import refused_by_the_host, writing

def run(wanted):
    word = ctypes.c_int64()
    ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(wanted.address())(0, ctypes.addressof(word))
    return word.value

assert (run(writing(1)), run(writing(True)), run(writing(2))) == (1, 1, 2)
assert "ret" in writing(1).assembly()
assert "ggplug_cpu.language.functions" not in sys.modules
assert run(refused_by_the_host()) == 3
assert "ggplug_cpu.language.functions" in sys.modules
"""


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets")
def test_the_host_compiles_for_a_guest_and_leaves_to_it_what_it_cannot(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with on_host(sys.executable, 1, tmp_path) as environment:
        assert environment["GGPLUG_CACHE_DIR"] == str(tmp_path)
        subprocess.run([sys.executable, "-c", GUEST], check=True, cwd=SUPPORT, env={**os.environ, **environment})
    assert not os.path.exists(environment["GGPLUG_COMPILER"])
    assert capfd.readouterr().out.splitlines() == [
        "The host compiled 4 kernels for the guest.",
        "The host left guest_kernels.refused_by_the_host() to the guest: ValueError: not here",
    ]


def test_what_every_computation_needs_is_compiled_by_the_guest(tmp_path: Path) -> None:
    """Nothing answers at the address, and nothing asks."""
    code = (
        "import sys; from ggplug_cpu import walker; walker.team_dismiss().address(); "
        "assert 'ggplug_cpu.language.functions' in sys.modules"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(SUPPORT / "emulation" / "guest_site"),
        "GGPLUG_COMPILER": str(tmp_path / "nobody"),
        "GGPLUG_CACHE_DIR": str(tmp_path),
    }
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
