"""OpenCL and threads: free while a queue is busy, and leaving the interpreter while daemon threads compute."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

pytest.importorskip("ggplug_opencl")

from held import Doing

import ggplug as gg
from ggplug import ops
from ggplug.errors import BufferUseError, TensorStateError
from ggplug.graph import Graph
from ggplug.memory import allocate_graph


def test_memory_is_freed_while_its_queue_is_full() -> None:
    device = gg.device("OpenCL0")
    for _ in range(3):
        with gg.Context("weights") as weights:
            w = weights.new_tensor("f32", (512, 512), "w")
            gg.allocate(weights, device)
            w.set(np.ones((512, 512), np.float32))
            y = w
            for _ in range(30):
                y = ops.add(y, w)
            graph = Graph(y.set_output())
            allocation = allocate_graph(graph, device.buffer_type)
            with device.init() as stream:
                for _ in range(5):
                    stream.compute(graph, allocation)  # returns before it is done
                Doing(weights.free).result()
                assert (y.numpy() == 31).all()
                with pytest.raises((BufferUseError, TensorStateError)):
                    stream.compute(graph, allocation)


_LEAVING = """
    import atexit, sys, threading
    import numpy as np
    import ggplug as gg
    from ggplug import ops

    device = gg.device("OpenCL0")
    begun = threading.Semaphore(0)

    def compute(nodes):
        weights = gg.Context("weights")
        w = weights.new_tensor("f32", (256, 256), "w")
        gg.allocate(weights, device)
        w.set(np.ones((256, 256), np.float32))
        y = w
        for _ in range(nodes):
            y = ops.add(y, w)
        graph = gg.Graph(y.set_output())
        scheduler = gg.Scheduler([device])
        scheduler.compute(graph)
        begun.release()
        while True:
            scheduler.compute(graph)
            y.numpy()
            w.set(np.ones((256, 256), np.float32))

    for nodes in (1, 60):
        threading.Thread(target=compute, args=(nodes,), daemon=True).start()
    for _ in range(2):
        begun.acquire()
    {more}
    print("leaving")
    sys.exit(5)
"""


@pytest.mark.parametrize("more", ["", "atexit.register(device.buffer_type.alloc(64).free)"], ids=["plainly", "freeing"])
def test_leaving_the_interpreter_while_daemon_threads_compute_is_quiet(more: str) -> None:
    text = textwrap.dedent(_LEAVING).format(more=more)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("leaving\n", "", 5)
