"""Ctrl-C at any time, and forks while another thread computes: afterwards every result is right."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("ggplug_cpu")

import ggplug as gg

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals, and no fork"),
]

INTERRUPTS, FORKS = 332, 40

GRAPHS = """
import json, os, random, signal, sys, threading, time
import numpy as np
import ggplug as gg

device = gg.device(sys.argv[1])
scheduler = gg.Scheduler([device, gg.device("CPU")] if sys.argv[1] != "CPU" else [device])
draw = np.random.default_rng(0)

def made(columns):
    # Graphs of equal structure over other memory, as plans are bound to one after the other.
    w = gg.tensor(draw.standard_normal((96, 64)).astype(np.float32), "q8_0" if columns % 2 else "f32")
    x = gg.tensor(draw.standard_normal((columns, 64)).astype(np.float32))
    return gg.Graph(gg.rms_norm(gg.add(gg.silu(gg.mul_mat(w, x)), gg.mul_mat(w, x))))

graphs = [made(columns) for columns in (1, 1, 4, 4, 33, 33, 200, 200)]

def result(scheduler, graph):
    scheduler.compute(graph)
    return graph.outputs[0].numpy().tobytes()

wanted = [result(scheduler, graph) for graph in graphs]
"""

INTERRUPTED = (
    GRAPHS
    + """
random.seed(1)
signal.signal(signal.SIGALRM, signal.default_int_handler)  # what SIGINT does, sent by the system's timer
counts = {"interrupted": 0, "right": 0, "wrong": 0}
until = int(sys.argv[2])
while counts["interrupted"] < until:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 3e-3))
        while True:
            number = random.randrange(len(graphs))
            right = result(scheduler, graphs[number]) == wanted[number]
            counts["right" if right else "wrong"] += 1
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        counts["interrupted"] += 1
        for graph, want in zip(graphs, wanted):
            counts["right" if result(scheduler, graph) == want else "wrong"] += 1
print(json.dumps(counts))
"""
)

FORKED = (
    GRAPHS
    + """
done, computed, wrong = threading.Event(), 0, 0

def compute():
    global computed, wrong
    own = gg.Scheduler([device])
    mine = [made(columns) for columns in (1, 4, 33)]
    want = [result(own, graph) for graph in mine]
    while not done.is_set():
        for graph, each in zip(mine, want):
            wrong += result(own, graph) != each
            computed += 1

thread = threading.Thread(target=compute)
thread.start()
ended = []
for _ in range(int(sys.argv[2])):
    time.sleep(random.uniform(0, 0.01))
    child = os.fork()
    if not child:
        fresh = gg.Scheduler([device])
        os._exit(0 if all(result(fresh, graph) == each for graph, each in zip(graphs, wanted)) else 3)
    patience = time.monotonic() + 60
    while not (status := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > patience:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.001)
    ended.append(os.waitstatus_to_exitcode(status[1]))
    wrong += result(scheduler, graphs[0]) != wanted[0]
done.set()
thread.join()
print(json.dumps({"children": sorted(set(ended)), "forks": len(ended), "computed": computed, "wrong": wrong}))
"""
)


def ran(program: str, device: str, times: int) -> dict[str, object]:
    try:
        gg.device(device)
    except gg.DeviceNotFoundError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-c", program, device, str(times)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert not done.stderr, done.stderr[-4000:]
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("device", ["CPU", "OpenCL0"])
def test_after_each_of_many_interrupts_every_graph_is_computed_right(device: str) -> None:
    found = ran(INTERRUPTED, device, INTERRUPTS)
    assert found["interrupted"] == INTERRUPTS
    assert found["wrong"] == 0


def test_children_forked_while_another_thread_computes_compute_right_and_so_does_the_parent() -> None:
    found = ran(FORKED, "CPU", FORKS)
    assert found["children"] == [0]
    assert found["forks"] == FORKS
    assert found["wrong"] == 0
