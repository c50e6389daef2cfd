"""The suite's own score: how many of the seeded faults it finds, and by which case.

``python -m tests.mutation.score`` runs every fault of :mod:`tests.mutation` in worker processes, up to the first
case that finds it; a crash or a hang finds it, too.  ``--help`` tells more.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ggplug_testing.isolation import Channel, Worker
from ggplug_testing.progress import bar
from ggplug_testing.rendering import aligned
from ggplug_testing.report import Finding
from ggplug_testing.stopping import in_words, number_of, stoppable
from tests.mutation import mechanical, trial
from tests.mutation.fault import Fault
from tests.mutation.seeding import Edit, SeedError
from tests.mutation.trial import CONFORMING, PARTS, Part, every_fault, part_of

WANTED = 0.98
"""The share of faults that the suite has to find."""

HANGS = 30.0
"""Seconds without a word after which a case hangs."""


class ScoreError(RuntimeError):
    """The score itself cannot be computed."""


class Outcome(NamedTuple):
    """What became of a fault.  ``finding``: what found it, or None.  ``seconds``: how long that took."""

    fault: Fault
    part: Part
    finding: Finding | None
    seconds: float

    @property
    def caught(self) -> bool:
        return self.finding is not None

    @property
    def by(self) -> str:
        """The case that found it."""
        if self.finding is None:
            return ""
        subject, case = self.finding.subject, self.finding.case
        return f"{subject}: {case}" if subject else case


def serve(channel: Channel, quick: bool) -> None:
    """Runs in a worker: the faults that it is asked for, by name."""
    faults = {fault.name: fault for fault in [CONFORMING, *every_fault()]}
    channel.serve(lambda name, watch: (name, trial.trial(faults[name], watch, quick=quick)))


def score(
    faults: Sequence[Fault],
    *,
    jobs: int,
    timeout: float = HANGS,
    quick: bool = False,
    told: Callable[[Outcome], object] = id,
) -> list[Outcome]:
    """Puts the suite to these faults, in that order, in ``jobs`` processes; ``told`` hears of each as it is done.

    ``quick``: only what concerns each fault, and not the rest of the suite.  Raises ScoreError if a process dies before
    it has begun with a case.  A KeyboardInterrupt ends the processes.
    """
    stopped = threading.Event()
    workers = threading.local()
    made: list[Worker] = []

    def run(fault: Fault) -> Outcome:
        if not hasattr(workers, "own"):
            workers.own = Worker(partial(serve, quick=quick), timeout)
            made.append(workers.own)
        start = time.perf_counter()
        findings = workers.own.run(fault.name, "", again=False)
        if stopped.is_set():  # what it was computed in was ended
            raise ScoreError("it was stopped")
        found = next((finding for finding in findings if finding.bad), None)
        if found is not None and not found.case:
            raise ScoreError(f"{fault.name}: the worker {found.verdict} before the first case: {found.reason}")
        outcome = Outcome(fault, part_of(fault), found, time.perf_counter() - start)
        told(outcome)
        return outcome

    pool = ThreadPoolExecutor(jobs)
    try:
        return list(pool.map(run, faults))
    except BaseException:
        stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in made:
            worker.kill()
        raise
    finally:
        pool.shutdown()
        for worker in made:
            worker.close()


def check_seeds() -> None:
    """Raises SeedError if a fault is recorded for another source than there is."""
    known = {each.seed for each in mechanical.recorded()}
    now = set(mechanical.found())
    for each, what in ((now - known, "is not recorded"), (known - now, "is recorded and no longer there")):
        if each:
            names = sorted(seed.name for seed in each)
            raise SeedError(
                f"{names[0]}: {what}, and {len(names) - 1} more; record them by python -m tests.mutation.score --record"
            )
    for fault in every_fault():
        for seed in fault.seeds:
            if isinstance(seed, Edit):
                seed.source()


def summary(outcomes: Iterable[Outcome]) -> list[str]:
    """A line for each part of a backend, and the total."""
    told = list(outcomes)
    rows = [("part", "faults", "caught", "", "slowest")]
    for part in (*PARTS, "total"):
        own = [each for each in told if part in (each.part, "total")]
        if own:
            caught = sum(each.caught for each in own)
            slowest = max(own, key=lambda each: each.seconds)
            rows.append((part, str(len(own)), str(caught), f"{caught / len(own):.1%}", f"{slowest.seconds:.1f} s"))
    return aligned(rows)


def missed(outcomes: Iterable[Outcome]) -> list[str]:
    """What was not caught, with the reason that is recorded."""
    return [
        f"not caught: {each.fault.name}\n    {each.fault.missed or 'NO REASON IS RECORDED'}"
        for each in outcomes
        if not each.caught
    ]


def as_dict(outcome: Outcome) -> dict[str, object]:
    finding = outcome.finding
    return {
        "fault": outcome.fault.name, "part": outcome.part, "caught": outcome.caught, "by": outcome.by,
        "verdict": "" if finding is None else finding.verdict, "reason": "" if finding is None else finding.reason,
        "missed": outcome.fault.missed, "seconds": round(outcome.seconds, 3),
    }  # fmt: skip


def passes(outcomes: Sequence[Outcome]) -> bool:
    """Whether enough is caught, and what is not has a reason."""
    caught = sum(each.caught for each in outcomes)
    return caught >= WANTED * len(outcomes) and all(each.caught or each.fault.missed for each in outcomes)


def main(arguments: list[str] | None = None) -> int:
    """The command line.

    Answers the exit code: 0 enough is caught, 1 it is not, 2 there is nothing to be said, 128 and the number of a
    signal that stopped it; then what was found until then is told.
    """
    given = _parsed(arguments)
    if given.record:
        mechanical.record()
        return 0
    try:
        check_seeds()
    except SeedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    chosen = [fault for fault in every_fault() if _wanted(fault, given.only)]
    if given.list:
        print("\n".join(aligned([("part", "fault"), *((part_of(fault), fault.name) for fault in chosen)])))
        return 0
    if not chosen:
        print(f"error: no fault has a name or part like {' or '.join(given.only)}", file=sys.stderr)
        return 2
    start = time.perf_counter()
    done: list[Outcome] = []
    stop: KeyboardInterrupt | None = None
    with bar(len(chosen) + 1) as shown:

        def note(outcome: Outcome) -> None:
            done.append(outcome)
            shown.at(outcome.part, outcome.fault.name)
            shown.done()
            _told(outcome, verbose=given.verbose)

        try:
            with stoppable():
                score([CONFORMING, *chosen], jobs=given.jobs, timeout=given.timeout, quick=given.quick, told=note)
        except KeyboardInterrupt as given_signal:
            stop = given_signal
    order = {fault: number for number, fault in enumerate([CONFORMING, *chosen])}
    done.sort(key=lambda each: order[each.fault])
    outcomes = [each for each in done if each.fault is not CONFORMING]
    first = next((each for each in done if each.fault is CONFORMING), None)
    if given.json is not None:
        given.json.write_text(json.dumps([as_dict(each) for each in outcomes], indent=1), encoding="utf-8")
    print("\n".join([*missed(outcomes), "", *summary(outcomes)]))
    print(f"in {time.perf_counter() - start:.0f} seconds, {given.jobs} at a time")
    if stop is not None:
        left = f"{len(chosen) - len(outcomes)} of {len(chosen)} faults were not put to the suite"
        print(f"STOPPED {in_words(stop, '', left)}")
        return 128 + number_of(stop)
    if first is not None and first.finding is not None:
        print(f"error: the device without a fault fails, too: {first.by}: {first.finding.reason}", file=sys.stderr)
        return 2
    return 0 if passes(outcomes) else 1


def _told(outcome: Outcome, *, verbose: bool) -> None:
    if verbose:
        found = f"{outcome.finding.verdict}: {outcome.by}" if outcome.finding is not None else "NOT CAUGHT"
        print(f"{outcome.seconds:6.1f} s  {outcome.fault.name}\n          {found}", flush=True)


def _wanted(fault: Fault, patterns: Sequence[str]) -> bool:
    return not patterns or any(
        part_of(fault) == each or each in fault.name or fnmatch.fnmatchcase(fault.name, each) for each in patterns
    )


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation.score",
        description="Put the conformance suite to devices with one fault each, and tell how many it finds.",
    )
    parser.add_argument(
        "--only", metavar="PATTERN", action="append", default=[],
        help="faults of this part, or whose name contains or matches this (*, ?); may be repeated",
    )
    parser.add_argument("--list", action="store_true", help="list the faults and run none")
    parser.add_argument(
        "--quick", action="store_true", help="only what concerns each fault, and not the rest of the suite"
    )
    parser.add_argument("--verbose", action="store_true", help="tell of each fault by which case it was caught")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (%(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=HANGS, metavar="SECONDS", help="after how long a case hangs (%(default)g)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what became of each fault as JSON")
    parser.add_argument(
        "--record", action="store_true", help="write the list of mechanical faults anew, from the source as it is"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
