"""``python -m oracles FOLDER [NAME ...]``: records these families, or all; ``--check`` compares.

Rerankers are in the folder ``rankers`` in FOLDER, all others in ``oracles``.  For each family it prints the row of the
README there; who records it writes in the place of ``...`` what the file exercises.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from oracles.families import FAMILIES, known
from oracles.rankers import RANKERS
from oracles.recording import check, record
from oracles.theirs import THEIRS


def kind(name: str) -> str:
    """The folder of a family."""
    return "rankers" if name in RANKERS else "oracles"


def row(name: str, folder: Path) -> str:
    """Records a family; returns its row."""
    with tempfile.TemporaryDirectory() as exact:
        found = record(name, folder, Path(exact))
        print(f"{name}: seed {found.seed}", file=sys.stderr, flush=True)
        sizes = [str((folder / f"{name}.{end}").stat().st_size) for end in ("gguf.xz", "npz")]
        if name in RANKERS:
            return cells(name, "...", *sizes)
        margin = "-" if found.margin is None else f"{found.margin:.3f}"
        # In a process of its own, which llama.cpp may end.
        compare = [sys.executable, "-m", "oracles.llama_cpp", str(folder), exact, name]
        done = subprocess.run(compare, stdout=subprocess.PIPE, text=True, check=False)
        distances = ("-", "-") if done.returncode else done.stdout.split()[:2]
    if name in THEIRS:
        return cells(name, "...; outputs of llama.cpp", sizes[0], f"{found.std:.2f}", margin, "-", distances[1])
    return cells(name, "...", sizes[0], f"{found.std:.2f}", margin, *distances)


def cells(name: str, *values: str) -> str:
    return f"| {' | '.join([f'`{name}`', *values])} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="oracles", description="Records tiny models as GGUF files.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="families, by default all")
    parser.add_argument("--check", action="store_true", help="record in a temporary folder, and compare")
    options = parser.parse_intermixed_args()
    names = known(parser, options.names, FAMILIES)
    if (not options.check or THEIRS.keys() & set(names)) and importlib.util.find_spec("llama_cpp") is None:
        parser.error("llama.cpp computes outputs too: pip install llama-cpp-python, or use nox -s oracles")
    for name in names:
        there = options.folder / kind(name)
        if options.check:
            with tempfile.TemporaryDirectory() as scratch:
                check(name, Path(scratch), there)
            print(f"{name} is as it was recorded", flush=True)
        else:
            print(row(name, there), flush=True)
