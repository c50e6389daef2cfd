"""Records folders; see :mod:`oracles.folders.recording`."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

parser = argparse.ArgumentParser(prog="oracles.folders", description="Records tiny folders of Hugging Face.")
parser.add_argument("llama_cpp", type=Path, help="the folder of llama.cpp's source")
parser.add_argument("out", type=Path)
parser.add_argument("names", nargs="*", help="folders, by default all")
options = parser.parse_args()
source = options.llama_cpp
if not (source / "convert_hf_to_gguf.py").exists():
    parser.error(f"{source} is not llama.cpp's source: it has no convert_hf_to_gguf.py")
sys.path[:0] = [str(source), str(source / "gguf-py")]  # its package gguf is newer than the published one
recording = importlib.import_module("oracles.folders.recording")
families = importlib.import_module("oracles.families")
tables = dict(recording.FOLDERS)
for module in ("checkpoints", "published", "published_mixtures", "published_encoders"):
    tables |= importlib.import_module(f"oracles.folders.{module}").FOLDERS
for name in families.known(parser, options.names, tables):
    recording.record(name, tables[name], source, options.out)
    print(name, flush=True)
