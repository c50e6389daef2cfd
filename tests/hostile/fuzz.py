"""The command line.

    python -m tests.hostile.fuzz --device CPU --device OpenCL0 --minutes 30 --children 2
    python -m tests.hostile.fuzz --device CPU --case soft_max/x/packed/f32/17             # one case, in words
    python -m tests.hostile.fuzz --device CPU --case soft_max/x/packed/f32/17 --with n0=3 --script

Devices are ``CPU``, ``CPU:generic`` (forced instructions), ``OpenCL0``.  Ends with exit status 1 if it found anything.
"""

from __future__ import annotations

import argparse
import ast
import shlex
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ggplug.types import TYPES
from ggplug_testing.drawing.drawers import drawable

from .child import LIMIT, Child
from .coverage import Coverage
from .draw import describe, draw
from .minimise import minimise
from .outcome import Outcome
from .script import script

PRINTED = 6000
"""Characters of a program that is printed with a fault."""


@dataclass
class Found:
    """A fault: the first case that showed it, and how many did."""

    device: str
    name: str
    outcome: Outcome
    history: list[str]
    count: int = 1
    fixed: dict[str, Any] = field(default_factory=dict)
    reproducible: bool = True
    """Whether the case shows it in a process of its own."""


class Fuzzer:
    """Draws cases for a device and gives them to its children until time or cases are used up."""

    def __init__(
        self,
        device: str,
        *,
        seed: int = 0,
        ops: Sequence[str] = (),
        types: Sequence[str] = (),
        limit: float = LIMIT,
        wanted: int = 200,
        fixed: Mapping[str, Any] | None = None,
    ) -> None:
        self.device = device
        self.fixed = dict(fixed or {})
        self.limit = limit
        self.coverage = Coverage(ops or drawable(), types or [t.name for t in TYPES], seed, wanted)
        self.found: dict[tuple[str, str], Found] = {}
        self.count = 0
        self._ended = False
        self._lock = threading.Lock()

    def run(self, *, cases: int | None = None, seconds: float | None = None, children: int = 1) -> None:
        """Runs so many cases, or for so long."""
        end = None if seconds is None else time.monotonic() + seconds
        threads = [threading.Thread(target=self._work, args=(cases, end)) for _ in range(children)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def stop(self) -> None:
        """Ends the run when the children have computed the cases that they are at."""
        self._ended = True

    def _work(self, cases: int | None, end: float | None) -> None:
        with Child(self.device, self.limit) as child:
            while not self._ended and (end is None or time.monotonic() < end):
                with self._lock:
                    if cases is not None and self.count >= cases:
                        return
                    self.count += 1
                    name = self.coverage.next()
                history = [*child.history, name]
                outcome = child.ask(name, self.fixed)
                with self._lock:
                    self.coverage.note(name, outcome)
                    if outcome.how == "fault":
                        self._note(name, outcome, history)

    def _note(self, name: str, outcome: Outcome, history: list[str]) -> None:
        # These have nothing to do with the op.
        op = "" if outcome.kind in ("place", "vast", "numpy", "set") else name.partition("/")[0]
        key = op, outcome.kind
        known = self.found.get(key)
        if known is not None:
            known.count += 1
            return
        self.found[key] = Found(self.device, name, outcome, history)
        print(f"{self.device}: {name}: {outcome.kind}: {_line(outcome)}", flush=True)

    def shrink(self) -> None:
        """Makes what was found small."""
        with Child(self.device, self.limit) as child:
            for (_, kind), found in self.found.items():

                def same(fixed: dict[str, Any], found: Found = found, kind: str = kind) -> bool:
                    outcome = child.ask(found.name, {**self.fixed, **fixed})
                    if outcome.kind != kind:
                        return False
                    found.outcome = outcome
                    return True

                found.fixed = dict(self.fixed)
                found.reproducible = same({})
                if found.reproducible:
                    found.fixed |= minimise(found.name, same, 60 if kind.startswith(("crash", "hang")) else 200)


def _line(outcome: Outcome) -> str:
    lines = [line for line in outcome.text.strip().splitlines() if line.strip()]
    chosen = lines[-1] if lines and lines[0].startswith("Traceback") else lines[0] if lines else ""
    return chosen[:300]


def command(device: str, name: str, fixed: dict[str, Any]) -> str:
    """What repeats a case."""
    choices = "".join(f" --with {shlex.quote(f'{what}={value}')}" for what, value in fixed.items())
    return f"python -m tests.hostile.fuzz --device {device} --case {shlex.quote(name)}{choices}"


def report(found: Found) -> str:
    """A fault with everything that is needed to repeat it."""
    lines = [f"== {found.device}: {found.outcome.kind}, {found.count} times", found.outcome.text.rstrip()]
    if not found.reproducible:
        lines.append(f"Only after other cases; the process had run: {' '.join(found.history)}")
    case = draw(found.name, found.fixed)
    program = script(case, found.device)
    lines += [describe(case), command(found.device, found.name, found.fixed)]
    lines.append(_indented(program) if len(program) < PRINTED else "    (--script prints the case as a program)")
    return "\n".join(lines)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the command line says; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--device", action="append", help="CPU, CPU:generic, OpenCL0 (default CPU); repeatable")
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--cases", type=int, help="so many cases a device, whatever time they take")
    parser.add_argument("--children", type=int, default=1, help="processes a device")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ops", default="", help="only these, separated by commas")
    parser.add_argument("--types", default="", help="only these, separated by commas")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds that a case may take")
    parser.add_argument("--no-table", action="store_true")
    parser.add_argument("--no-shrink", action="store_true", help="report cases as they were drawn")
    parser.add_argument("--case", action="append", help="run this one; several run in one process")
    parser.add_argument("--with", action="append", dest="choices", default=[], metavar="CHOICE=VALUE")
    parser.add_argument("--script", action="store_true", help="print the case as a program")
    options = parser.parse_args(arguments)
    devices = options.device or ["CPU"]
    if options.case:
        return _repeat(devices[0], options.case, _choices(options.choices), as_script=options.script)
    seconds = options.seconds + 60 * options.minutes
    fuzzers = [
        Fuzzer(
            device,
            seed=options.seed,
            ops=_names(options.ops),
            types=_names(options.types),
            limit=options.limit,
            fixed=_choices(options.choices),
        )
        for device in devices
    ]
    limits: dict[str, Any] = {"cases": options.cases, "seconds": seconds or (None if options.cases else 60)}
    threads = [
        threading.Thread(target=fuzzer.run, kwargs={**limits, "children": options.children}) for fuzzer in fuzzers
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:  # by Ctrl-C, too
        for fuzzer in fuzzers:
            fuzzer.stop()
    return finish(fuzzers, table=not options.no_table, shrink=not options.no_shrink)


def finish(fuzzers: Sequence[Fuzzer], *, table: bool, shrink: bool) -> int:
    """Prints what was drawn and found; 1 if anything was."""
    total: Counter[str] = Counter()
    for fuzzer in fuzzers:
        if table:
            print(f"\n{fuzzer.device}\n{fuzzer.coverage.table()}")
        if shrink:
            fuzzer.shrink()
        for found in fuzzer.found.values():
            print(f"\n{report(found)}")
        outcomes = ", ".join(f"{count} {how}" for how, count in sorted(fuzzer.coverage.outcomes.items()))
        print(f"\n{fuzzer.device}: {fuzzer.count} cases: {outcomes}; {len(fuzzer.found)} different faults")
        total += fuzzer.coverage.outcomes
    return 1 if total["fault"] else 0


def _repeat(device: str, names: Sequence[str], fixed: dict[str, Any], *, as_script: bool) -> int:
    failed = False
    with Child(device) as child:
        for name in names:
            case = draw(name, fixed)
            print(script(case, device) if as_script else describe(case))
            if not as_script:
                outcome = child.ask(name, fixed)
                print(f"{outcome.how} {outcome.kind}\n{outcome.text}".rstrip())
                failed |= outcome.how == "fault"
    return int(failed)


def _choices(texts: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in texts:
        what, _, value = each.partition("=")
        try:
            found[what] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[what] = value
    return found


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


if __name__ == "__main__":
    sys.exit(main())
