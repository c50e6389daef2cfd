"""Results do not depend on which thread of the CPU device begins a kernel first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from paths import SUPPORT

pytest.importorskip("ggplug_cpu")

from litmus.late_threads import changes

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_cpu.device import CpuDevice
from ggplug_cpu.team import Team


@pytest.fixture(params=[0, 1])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[CpuDevice]:
    for change in changes(request.param):
        monkeypatch.setattr(*change)
    cpu = CpuDevice()
    cpu.set_team(Team(2))
    yield cpu
    cpu.team.close()


WRITTEN, LARGE = 64, 1024
AFTER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "behind fewer rows": lambda few, cache: gg.concat(few, cache, dim=1),
    "before fewer rows": lambda few, cache: gg.concat(cache, few, dim=1),
    "with rows of zeros": lambda few, cache: gg.pad(cache, 0, 8),
    "moved": lambda few, cache: gg.roll(cache, 0, 8),
    "normalised in groups": lambda few, cache: gg.group_norm(gg.reshape(cache, 32, 1, LARGE), 7),
    "multiplied": lambda few, cache: gg.mul_mat(cache, few),
}
"""What reads rows that one thread has written; most are computed by several kernels that do not wait for each other."""


@pytest.mark.parametrize("name", AFTER)
def test_rows_that_one_thread_has_written_are_read_by_all_kernels_of_the_next_node(
    device: CpuDevice, name: str
) -> None:
    rng = np.random.default_rng(0)
    few, new = (rng.standard_normal((n, 32)).astype(np.float32) for n in (16, WRITTEN))
    whole = np.concatenate([np.zeros((LARGE - WRITTEN, 32), np.float32), 2 * new])
    scheduler = gg.Scheduler([device.init()])
    cache = gg.tensor(np.zeros((LARGE, 32), np.float32))
    rows = gg.tensor(np.arange(LARGE - WRITTEN, LARGE, dtype=np.int32))
    written = gg.set_rows(cache, gg.scale(gg.tensor(new), 2.0), rows)
    alone = AFTER[name](gg.tensor(few), gg.tensor(whole)).set_output()
    scheduler.compute(gg.Graph(alone))
    wanted = alone.numpy()
    found = AFTER[name](gg.tensor(few), written).set_output()
    graph = gg.Graph(found)
    for _ in range(3):
        cache.set(np.zeros((LARGE, 32), np.float32))
        scheduler.compute(graph)
        np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.long
@pytest.mark.parametrize("thread", ["0", "1"])
def test_the_cpu_device_conforms_with_a_late_thread(thread: str) -> None:
    command = [sys.executable, "-m", "litmus.late_threads", thread, "conformance", "CPU"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(SUPPORT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
