"""Prints the peak of the resident memory of a few steps of training, in bytes beyond what is there after imports.

``python -m ggplug_models.benchmarks.resident '{"name": "ours", "device": "CPU", "threads": null, "sizes": {}}'``; the
name may be ``torch``, and the sizes are those of :class:`.Transformer`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import ggplug as gg
from ggplug.registry.extras import Options
from ggplug_models.benchmarks import torch_training
from ggplug_models.benchmarks.training import PEAK_STEPS, RESIDENT, trained
from ggplug_models.benchmarks.transformer import Transformer


def main(asked: str) -> int:
    """Trains, and prints the bytes."""
    options = json.loads(asked)
    shape, device = Transformer(**options["sizes"]), gg.device(options["device"])
    if options["name"] == "torch":
        torch_training.imported()
    texts = shape.texts(PEAK_STEPS)
    before = _bytes("VmRSS")
    RESIDENT.write_text("5")
    if options["name"] == "torch":
        step = torch_training.transformer(shape, options["threads"])
    else:
        step = trained(shape, device, Options(threads=options["threads"])).step
    for each in texts:
        step(each[:, :-1], each[:, 1:])
    print(_bytes("VmHWM") - before)
    return 0


def _bytes(what: str) -> int:
    found = re.search(rf"^{what}:\s*(\d+) kB$", Path("/proc/self/status").read_text(encoding="ascii"), re.M)
    assert found is not None
    return 1024 * int(found[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
