"""The suite's own score: how many of the seeded faults it finds, and by which case.

``python -m tests.mutation.score`` runs every fault of :mod:`tests.mutation` in worker processes, up to the first
case that finds it; a crash or a hang finds it, too.  ``--help`` says more.
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
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from ggplug_testing.reporting.progress import bar
from ggplug_testing.reporting.rendering import aligned
from ggplug_testing.reporting.report import Finding
from ggplug_testing.running.isolation import Channel, Worker
from ggplug_testing.running.stopping import in_words, number_of, stoppable
from tests.mutation import FAULTS, lists, trial
from tests.mutation.fault import PARTS, Fault
from tests.mutation.seeding import SeedError, source
from tests.mutation.trial import CONFORMING, every_fault

WANTED = 0.98
"""The fraction of faults that the suite has to find."""

HANGS = 30.0
"""Seconds without a word after which a case hangs."""


class ScoreError(RuntimeError):
    """The score itself cannot be computed."""


class Outcome(NamedTuple):
    """What became of a fault.  ``finding``: what found it, or None.  ``seconds``: how long that took."""

    fault: Fault
    finding: Finding | None
    seconds: float

    @property
    def by(self) -> str:
        """The case that found it."""
        if self.finding is None:
            return ""
        return ": ".join(filter(None, (self.finding.subject, self.finding.case)))

    def as_dict(self) -> dict[str, object]:
        return {
            "fault": self.fault.name,
            "part": self.fault.part,
            "caught": self.finding is not None,
            "by": self.by,
            "verdict": "" if self.finding is None else self.finding.verdict,
            "reason": "" if self.finding is None else self.finding.reason,
            "missed": self.fault.missed,
            "seconds": round(self.seconds, 3),
        }


def serve(channel: Channel, quick: bool) -> None:
    """Runs in a worker: the faults that are requested, by name."""
    faults = {fault.name: fault for fault in [CONFORMING, *every_fault()]}
    channel.serve(lambda name, watch: (name, trial.trial(faults[name], watch, quick=quick)))


def score(
    faults: Sequence[Fault], report: Callable[[Outcome], object], *, jobs: int, timeout: float, quick: bool
) -> None:
    """Puts the suite to these faults, in that order, in ``jobs`` processes; ``report`` is called after each.

    ``quick``: only what concerns each fault, and not the rest of the suite.  Raises ScoreError if a process dies before
    it has begun with a case.  A KeyboardInterrupt ends the processes.
    """
    stopped = threading.Event()
    free: SimpleQueue[Worker] = SimpleQueue()

    def run(fault: Fault) -> None:
        worker, start = free.get(), time.perf_counter()
        findings = worker.run(fault.name, "", again=False)
        free.put(worker)
        if stopped.is_set():  # what it was computed in was ended
            raise ScoreError("it was stopped")
        found = next((finding for finding in findings if finding.bad), None)
        if found is not None and not found.case:
            raise ScoreError(f"{fault.name}: the worker {found.verdict} before the first case: {found.reason}")
        report(Outcome(fault, found, time.perf_counter() - start))

    with ExitStack() as ending:
        workers = [ending.enter_context(Worker(partial(serve, quick=quick), timeout)) for _ in range(jobs)]
        for worker in workers:
            free.put(worker)
        pool = ending.enter_context(ThreadPoolExecutor(jobs))
        try:
            list(pool.map(run, faults))
        except BaseException:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.kill()
            raise


def check_seeds() -> None:
    """Raises SeedError if a fault is recorded for another source than there is."""
    known, now = {each.seed for each in lists.recorded()}, set(lists.found())
    for each, what in ((now - known, "is not recorded"), (known - now, "is recorded and no longer there")):
        if each:
            first = min(seed.name for seed in each)
            raise SeedError(
                f"{first}: {what}, and {len(each) - 1} more; record them by python -m tests.mutation.score --record"
            )
    for seed in (seed for fault in FAULTS for seed in fault.seeds):
        source(seed)


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for each part of a backend, and the total."""
    rows = [("part", "faults", "caught", "", "slowest")]
    for part in (*PARTS, "total"):
        own = [each for each in outcomes if part in (each.fault.part, "total")]
        if own:
            caught = sum(each.finding is not None for each in own)
            slowest = max(each.seconds for each in own)
            rows.append((part, str(len(own)), str(caught), f"{caught / len(own):.1%}", f"{slowest:.1f} s"))
    return aligned(rows)


def missed(outcomes: Iterable[Outcome]) -> list[str]:
    """What was not caught, with the reason that is recorded."""
    return [
        f"not caught: {each.fault.name}\n    {each.fault.missed or 'NO REASON IS RECORDED'}"
        for each in outcomes
        if each.finding is None
    ]


def passes(outcomes: Sequence[Outcome]) -> bool:
    """Whether enough is caught, and what is not has a reason."""
    left = [each for each in outcomes if each.finding is None]
    return len(outcomes) - len(left) >= WANTED * len(outcomes) and all(each.fault.missed for each in left)


def main(arguments: list[str] | None = None) -> int:
    """The command line.

    Answers the exit code: 0 enough is caught, 1 it is not, 2 there is nothing to be said, 128 and the number of a
    signal that stopped it; then what was found until then is reported.
    """
    options = _parsed(arguments)
    if options.record:
        lists.record()
        return 0
    try:
        check_seeds()
    except SeedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    chosen = [fault for fault in every_fault() if not options.only or _is_one_of(fault, options.only)]
    if options.list:
        print("\n".join(aligned([("part", "fault"), *((fault.part, fault.name) for fault in chosen)])))
        return 0
    if not chosen:
        print(f"error: no fault has a name or part like {' or '.join(options.only)}", file=sys.stderr)
        return 2
    start = time.perf_counter()
    done: dict[str, Outcome] = {}
    stop: KeyboardInterrupt | None = None
    with bar(len(chosen) + 1) as progress:

        def note(outcome: Outcome) -> None:
            done[outcome.fault.name] = outcome
            progress.at(outcome.fault.part, outcome.fault.name)
            progress.done()
            if options.verbose:
                found = f"{outcome.finding.verdict}: {outcome.by}" if outcome.finding is not None else "NOT CAUGHT"
                print(f"{outcome.seconds:6.1f} s  {outcome.fault.name}\n          {found}", flush=True)

        try:
            with stoppable():
                score([CONFORMING, *chosen], note, jobs=options.jobs, timeout=options.timeout, quick=options.quick)
        except KeyboardInterrupt as given_signal:
            stop = given_signal
    outcomes = [done[fault.name] for fault in chosen if fault.name in done]
    if options.json is not None:
        options.json.write_text(json.dumps([each.as_dict() for each in outcomes], indent=1), encoding="utf-8")
    print("\n".join([*missed(outcomes), "", *summary(outcomes)]))
    print(f"in {time.perf_counter() - start:.0f} seconds, {options.jobs} at a time")
    if stop is not None:
        left = f"{len(chosen) - len(outcomes)} of {len(chosen)} faults were not put to the suite"
        print(f"STOPPED {in_words(stop, '', left)}")
        return 128 + number_of(stop)
    first = done[CONFORMING.name]
    if first.finding is not None:
        print(f"error: the device without a fault fails, too: {first.by}: {first.finding.reason}", file=sys.stderr)
        return 2
    return 0 if passes(outcomes) else 1


def _is_one_of(fault: Fault, patterns: Sequence[str]) -> bool:
    return any(fault.part == each or each in fault.name or fnmatch.fnmatchcase(fault.name, each) for each in patterns)


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation.score",
        description="Put the conformance suite to devices with one fault each, and report how many it finds.",
    )
    only = "faults of this part, or whose name contains or matches this (*, ?); may be repeated"
    quick = "only what concerns each fault, and not the rest of the suite"
    hangs = "after how long a case hangs (%(default)g)"
    record = "write the list of mechanical faults anew, from the source as it is"
    parser.add_argument("--only", metavar="PATTERN", action="append", default=[], help=only)
    parser.add_argument("--list", action="store_true", help="list the faults and run none")
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--verbose", action="store_true", help="show for each fault which case caught it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (%(default)s)")
    parser.add_argument("--timeout", type=float, default=HANGS, metavar="SECONDS", help=hangs)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what became of each fault as JSON")
    parser.add_argument("--record", action="store_true", help=record)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
