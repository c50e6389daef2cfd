"""A small choice of recorded cases: ``python tests/core/ops/vectors_choice.py FULL.npz CHOICE.npz``.

Every kind of case is in it that has a case of a bearable size, and of every combination of ops and types a small case
if there is one.  The same recording always gives the same file.
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ggplug_testing.vectors import Recording

LARGEST = 145_000
"""Bytes of the largest case that is taken because it is the smallest of its kind."""

LARGE = 6_500
"""Bytes of the largest case that is taken because no other has its combination of ops and types."""

SMALL = 1_000
"""Bytes up to which a second case of a combination is taken."""


def choose(recording: Recording) -> list[int]:
    """Positions of the chosen cases, ascending."""
    by_kind: dict[str, list[tuple[int, int]]] = {}
    by_types: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    for position, record in enumerate(recording.cases):
        sized = (_bytes(record), position)
        by_kind.setdefault(record["op"], []).append(sized)
        by_types.setdefault(_types(record), []).append(sized)
    chosen = {position for size, position in map(min, by_kind.values()) if size <= LARGEST}
    for group in by_types.values():
        ordered = sorted(group)
        chosen.update(position for size, position in ordered[:1] if size <= LARGE)
        chosen.update(position for size, position in ordered[1:2] if size <= SMALL)
    return sorted(chosen)


def cut(recording: Recording, positions: list[int]) -> tuple[list[dict[str, Any]], bytes]:
    """The cases at ``positions`` and their data, each tensor's bytes at a multiple of 16."""
    cases = []
    data = bytearray()
    for position in positions:
        record = json.loads(json.dumps(recording.cases[position]))
        for tensor in record["tensors"]:
            for role in ("input", "output"):
                if role in tensor:
                    raw = recording.bytes(tensor[role]).tobytes()
                    tensor[role] = [len(data), len(raw)]
                    data += raw + bytes(-len(raw) % 16)
        cases.append(record)
    return cases, bytes(data)


def write(path: Path, cases: list[dict[str, Any]], data: bytes) -> None:
    """A file of recorded cases; without time stamps, so that equal content gives equal bytes."""
    text = json.dumps(cases, separators=(",", ":")).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (("cases", text), ("data", data)):
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w") as file:
                np.lib.format.write_array(file, np.frombuffer(content, np.uint8))


def _types(record: dict[str, Any]) -> tuple[Any, ...]:
    tensors = record["tensors"]
    nodes = (
        (t["op"], t["type"], *(tensors[i]["type"] if i >= 0 else "" for i in t["src"]), t["view_src"] >= 0)
        for t in tensors
        if t["op"] != "NONE"
    )
    return (record["op"], *nodes)


def _bytes(record: dict[str, Any]) -> int:
    return sum(t[role][1] for t in record["tensors"] for role in ("input", "output") if role in t)


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    recording = Recording(given[0])
    cases, data = cut(recording, choose(recording))
    write(Path(given[1]), cases, data)
    print(f"{len(cases)} of {len(recording)} cases, {Path(given[1]).stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
