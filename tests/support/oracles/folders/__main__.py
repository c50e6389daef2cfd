"""Records folders; see :mod:`oracles.folders.recording`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

llama_cpp, out = Path(sys.argv[1]), Path(sys.argv[2])
sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]  # its package gguf is newer than the published one
recording = importlib.import_module("oracles.folders.recording")
tables = {**recording.FOLDERS, **importlib.import_module("oracles.folders.checkpoints").FOLDERS}
for name in sys.argv[3:] or tables:
    recording.record(name, tables[name], llama_cpp, out)
    print(name, flush=True)
