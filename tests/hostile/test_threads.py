"""Whatever two threads do to one device at the same time: right results or typed errors, never anything else.

What is done, and how it is checked, is in ``threads.py``; here are the pairs.  A short selection runs with the other
tests, every pair of actors with ``-m long``.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ggplug_cpu")

import ggplug as gg

from .threads import ACTORS

CHILD = Path(__file__).parent / "threads.py"
COMPUTING = ["compute", "plan", "embed"]
DISTURBING = {
    "CPU": ["free", "drop", "clear", "set", "copy", "abort", "threads", "load", "unload-model", "unload"],
    "OpenCL0": ["free", "drop", "clear", "set", "stream", "unload-model", "unload"],
}
ALIKE = ["compute+compute", "plan+plan", "embed+embed", "shared+shared", "immediate+immediate", "observed+compute-host"]
ROUNDS, MANY_ROUNDS = 3, 40
CHUNK = 33
"""Pairs of a child in the long form, so that a crash takes only so many with it."""
DEVICES = list(DISTURBING)


def check(device: str, pairs: list[str], rounds: int, folder: Path, seed: int) -> None:
    """A child that runs these pairs."""
    try:
        gg.device(device)
    except gg.DeviceNotFoundError as error:
        if device == "CPU":
            raise
        pytest.skip(str(error))
    arguments = [sys.executable, str(CHILD), device, str(folder), str(seed), str(rounds), *pairs]
    print(f"seed {seed}")
    environment = {**os.environ, "GGPLUG_THREADS": "2"}
    patience = 120 + 60 * len(pairs)
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=patience, env=environment)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    ended = {line["end"]: line["outcomes"] for line in lines if "end" in line}
    said = {line["end"]: line["said"] for line in lines if "end" in line}
    began = [line["begin"] for line in lines if "begin" in line]
    what = f"{began[-1] if began else 'nothing'} was last; exit code {done.returncode}\n{done.stderr[-6000:]}"
    assert done.returncode == 0, what
    assert set(ended) == set(pairs), what
    wrong = [key for outcomes in ended.values() for each in outcomes for key in each if "WRONG" in key]
    assert not wrong, f"{wrong} in {ended}\n{done.stderr[-6000:]}"
    assert not done.stderr, done.stderr[-6000:]
    idle = [pair for pair, outcomes in ended.items() if not any(each.get("right") for each in outcomes)]
    assert not idle, f"nothing ever succeeded in {idle}: {[(ended[pair], said[pair]) for pair in idle]}"


@pytest.mark.parametrize("device", DEVICES)
def test_computing_while_another_thread_disturbs(device: str, tmp_path: Path) -> None:
    pairs = [f"{a}+{b}" for a in COMPUTING for b in DISTURBING[device]] + ALIKE
    check(device, pairs, ROUNDS, tmp_path, seed=0)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("device", DEVICES)
def test_every_pair_of_actors(device: str, seed: int, tmp_path: Path) -> None:
    pairs = [f"{a}+{b}" for a, b in itertools.combinations_with_replacement(ACTORS, 2)]
    if device != "CPU":
        pairs.remove("share+share")  # the host does not see this memory: every attempt is refused
    for begin in range(0, len(pairs), CHUNK):
        check(device, pairs[begin : begin + CHUNK], MANY_ROUNDS, tmp_path, seed)
