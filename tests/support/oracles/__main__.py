"""``python -m oracles FOLDER [--exact FOLDER] [NAME ...]``: records these families, or all; ``--check`` compares.

Rerankers are in the folder ``rankers`` in FOLDER, all others in ``oracles``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from oracles.families import FAMILIES
from oracles.rankers import RANKERS
from oracles.recording import check, record


def kind(name: str) -> str:
    """The folder of a family."""
    return "rankers" if name in RANKERS else "oracles"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="oracles", description="Records models of transformers as GGUF files.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="families, by default all")
    parser.add_argument("--exact", type=Path, help="a folder for the same files with matrices in single precision")
    parser.add_argument("--check", action="store_true", help="record in a temporary folder, and compare")
    options = parser.parse_intermixed_args()
    folder = options.folder
    if options.check:
        with tempfile.TemporaryDirectory() as scratch:
            for name in options.names or FAMILIES:
                check(name, Path(scratch), folder / kind(name))
                print(f"{name} is what transformers computes", flush=True)
        sys.exit()
    print("| file | seed | gguf.xz bytes | npz bytes | std | margin |\n|---|---|---|---|---|---|")
    for name in options.names or FAMILIES:
        found = record(name, folder / kind(name), options.exact)
        sizes = " | ".join(str((folder / kind(name) / f"{name}.{end}").stat().st_size) for end in ("gguf.xz", "npz"))
        margin = "-" if found.margin is None else f"{found.margin:.3f}"
        print(f"| `{name}` | {found.seed} | {sizes} | {found.std:.2f} | {margin} |", flush=True)
