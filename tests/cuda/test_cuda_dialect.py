"""The kernels conform as CUDA C++ too: the text that NVRTC gets, cut as for a GPU, run by the processor."""

from __future__ import annotations

import dataclasses
import functools
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from paths import SUPPORT

from ggplug.backend import Device
from ggplug.ops.base import OPS
from ggplug_testing import BackendSuite
from ggplug_testing.running.runner import cases_of, run_op
from ggplug_testing.vectors import Recording, replay, report

pytest.importorskip("ggplug_simt")
pytest.importorskip("ziglang")

from cuda_on_host import GPU, HostDevice, HostProgram
from simt_devices import PartOfTheSuite


@functools.cache
def on_host() -> Device:
    """One device for all tests, so that each program is compiled once."""
    return HostDevice()


class TestCudaOnHost(PartOfTheSuite):
    """The next class has all cases."""

    step = 48

    @pytest.fixture
    def device(self) -> Device:
        return on_host()


@pytest.mark.long
class TestAllOfCudaOnHost(BackendSuite):
    @pytest.fixture
    def device(self) -> Device:
        return on_host()


@pytest.mark.parametrize(
    ("most", "step", "least"),
    [(1, 15, 3), *(pytest.param(most, 5, 6, marks=pytest.mark.long) for most in (1, 12))],
)
def test_kernels_conform_where_groups_are_small(most: int, step: int, least: int) -> None:
    device = HostDevice(dataclasses.replace(GPU, max_lanes=most, local_bytes=8192))
    for name in ("norm", "soft_max", "sum", "argmax", "argsort", "mul_mat", "mul_mat_id"):
        cases = list(cases_of(OPS[name]))[::step]
        findings = run_op(device, OPS[name], cases=cases)
        assert [str(finding) for finding in findings if finding.bad] == []
        assert len(findings) >= least


def test_a_recorded_case_of_each_op_of_ggml_passes(data: Path) -> None:
    found = report(replay({case.op: case for case in Recording(data / "ggml_ops_compact.npz")}.values(), on_host()))
    assert found["failed"] == []
    assert found["passed"] > 90


@pytest.mark.long
def test_recorded_cases_of_ggml_pass(data: Path) -> None:
    found = report(replay(Recording(data / "ggml_ops_compact.npz"), on_host()))
    assert found["failed"] == []
    assert found["passed"] > 100


@pytest.mark.long
@pytest.mark.parametrize("side", ["begin", "end"])
def test_no_kernel_touches_a_byte_outside_of_its_tensors(side: str) -> None:
    script = SUPPORT / "bounds_on_host.py"
    done = subprocess.run([sys.executable, script, side], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert int(done.stdout.split()[0]) > 4000


def test_touching_a_byte_outside_is_found() -> None:
    for side, offset in (("begin", -1), ("end", 100)):
        touch = f"ctypes.string_at(FencedDriver('{side}').allocate(100).ctypes.data + {offset}, 1)"
        code = f"import ctypes; from bounds_on_host import FencedDriver; {touch}"
        assert subprocess.run([sys.executable, "-c", code], cwd=SUPPORT).returncode == -signal.SIGSEGV


def test_a_barrier_that_only_some_items_reach_is_found() -> None:
    program = HostProgram(
        """
#define SOME 1
#define GLOBAL
#define KERNEL extern "C" __global__
#define BARRIER() __syncthreads()
typedef struct { int n; } arguments;
#define PARAMETERS GLOBAL char *x_data, const arguments args
KERNEL void some(PARAMETERS) { if (threadIdx.x < args.n) BARRIER(); }
"""
    )
    for reach, fails in ((0, False), (8, False), (3, True), (8, False), (0, False)):
        struct, pointer = np.array([reach], np.int32), np.zeros(1, np.uintp)
        addresses = np.array([pointer.ctypes.data, struct.ctypes.data], np.uintp)
        if fails:
            with pytest.raises(AssertionError, match="barrier"):
                program.launch(2, 8, addresses.ctypes.data)
        else:
            program.launch(2, 8, addresses.ctypes.data)
