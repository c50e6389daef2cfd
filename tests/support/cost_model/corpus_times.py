"""Predicted times of the corpus's graphs compared with measured ones, as ``ggplug bench placement`` prints them.

``python -m cost_model.corpus_times DEVICE... [--every N]``, with ``tests/support`` on the path.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import corpus

import ggplug as gg
from ggplug.backend import Device
from ggplug.bench.placement import Make, compared


def maker(name: str, content: bytes, where: Device) -> Make:
    def make(held: ExitStack) -> tuple[gg.Graph, Callable[[], None]]:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        graph = held.enter_context(corpus.load(name, content, folder, where))
        return graph, graph.set_inputs

    return make


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("devices", nargs="+")
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    devices = [gg.device(name) for name in options.devices]
    graphs = list(corpus.graphs().items())[:: options.every]
    for row in compared(devices, {name: maker(name, content, devices[0]) for name, content in graphs}):
        print(*(f"{key}={value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
