"""The whole conformance suite as one call, and as a command, for programs that are not tests.

``ggplug conformance NAME`` puts a device to it; ``--help`` says more.
"""

from __future__ import annotations

import argparse
import gc
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ggplug.backend import Device
from ggplug.errors import GGPlugError, ParameterError
from ggplug.ops.base import OPS, Op
from ggplug.system.durations import seconds
from ggplug.system.files import check_differs
from ggplug_testing.cases.chains import SUBJECT as GROUPS
from ggplug_testing.cases.graphs import SUBJECT as GRAPH
from ggplug_testing.contracts import CLAUSES, CONTRACT, Clause, run_clauses
from ggplug_testing.reporting.progress import bar
from ggplug_testing.reporting.rendering import markdown, text
from ggplug_testing.reporting.report import Finding, Report
from ggplug_testing.reporting.watching import EVERYTHING, IN_THE_PLACE, Following, One, Watch
from ggplug_testing.running.groups import run_groups
from ggplug_testing.running.isolation import Channel, Worker
from ggplug_testing.running.runner import run_graphs, run_op
from ggplug_testing.running.stopping import in_words, number_of, stoppable
from ggplug_testing.vectors import find_device


class Unit(NamedTuple):
    """What runs as one: a clause, or all cases of an op, of graphs, or of groups."""

    subject: str
    clause: Clause | None = None

    @property
    def name(self) -> str:
        return self.subject if self.clause is None else f"{self.subject} {self.clause.name}"

    def run(self, device: Device, watch: Watch) -> list[Finding]:
        if self.clause is not None:
            return run_clauses(device, [self.clause], watch)
        if self.subject == GRAPH:
            return run_graphs(device, watch=watch)
        if self.subject == GROUPS:
            return run_groups(device, watch=watch)
        return run_op(device, OPS[self.subject], watch=watch)


def check(
    device: Device,
    *,
    ops: Iterable[type[Op] | str] | None = None,
    clauses: Iterable[Clause | str] | None = None,
    graphs: bool = True,
    groups: bool = True,
    case: str | None = None,
) -> Report:
    """Checks a device with these clauses of the contract, all cases of these ops, graphs, and groups (default: all).

    ``case``: only cases with this label.  Never raises for what the device does: that is in ``report.ok`` and
    ``report.bad``.  Raises ParameterError for a name that is none.
    """
    report = Report(device.name)
    watch = Following(_chosen(case))
    _fill(report, list(units(ops, clauses, graphs, groups)), lambda unit: unit.run(device, watch), watch)
    return report


def _chosen(case: str | None) -> Watch:
    return EVERYTHING if case is None else One(case)


def _fill(
    report: Report,
    units: Sequence[Unit],
    run: Callable[[Unit], list[Finding]],
    watch: Following,
    done: Callable[[], object] = lambda: None,
) -> None:
    """Adds what ``run`` finds, and calls ``done`` after each unit.

    ``watch`` is called for each case.  What they were until a KeyboardInterrupt is added, too, before it goes on.
    """
    for number, unit in enumerate(units):
        watch.forget()
        findings: list[Finding] = []
        try:
            findings = run(unit)
        except KeyboardInterrupt as stop:
            findings, left = watch.findings, units[number + 1 :]
            rest = f"{len(left)} of {len(units)} parts had not begun, {left[0].name} the first of them" if left else ""
            report.stopped = in_words(stop, watch.where or unit.name, rest)
            raise
        finally:
            report.add(*(f._replace(command=_command(report.device, f)) if f.bad else f for f in findings))
        done()


def _command(device: str, finding: Finding) -> str:
    """The command that runs one case."""
    what = {CONTRACT: ["--clause", finding.case], GRAPH: ["--graphs"], GROUPS: ["--groups"]}.get(
        finding.subject, ["--op", finding.subject]
    )
    case = [] if finding.subject == CONTRACT else ["--case", finding.case]
    return shlex.join(["ggplug", "conformance", device, *what, *case])


def units(
    ops: Iterable[type[Op] | str] | None = None,
    clauses: Iterable[Clause | str] | None = None,
    graphs: bool = True,
    groups: bool = True,
) -> Iterator[Unit]:
    """What the suite consists of: these clauses and ops (default: all), graphs, groups.  Raises ParameterError."""
    for clause in [*map(_clause, CLAUSES if clauses is None else clauses)]:
        yield Unit(CONTRACT, clause)
    for op in [*map(_op, OPS.values() if ops is None else ops)]:
        yield Unit(op.name)
    if graphs:
        yield Unit(GRAPH)
    if groups:
        yield Unit(GROUPS)


_LISTED = "`ggplug conformance --list` lists them"


def _op(name: type[Op] | str) -> type[Op]:
    if not isinstance(name, str):
        return name
    if name not in OPS:
        raise ParameterError(f"there is no op {name!r}", got=name, remedy=_LISTED)
    return OPS[name]


def _clause(name: Clause | str) -> Clause:
    if isinstance(name, Clause):
        return name
    for clause in CLAUSES:
        if clause.name == name:
            return clause
    raise ParameterError(f"the contract has no clause {name!r}", got=name, remedy=_LISTED)


def serve(channel: Channel, name: str) -> None:
    """Runs in a worker: the units that are requested."""
    device = find_device(name)
    known = {unit.name: unit for unit in units()}
    channel.serve(lambda unit, watch: (device.name, known[unit].run(device, watch)))


def _seconds(text: str) -> float:
    """A time limit as an argument of a command.  Raises ArgumentTypeError."""
    found = seconds(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return found


def _times(text: str) -> int:
    """A number of runs as an argument of a command.  Raises ArgumentTypeError."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is no whole number above 0")
    return int(text)


def main(arguments: list[str] | None = None, program: str = "python -m ggplug_testing.conformance") -> int:
    """The command line, which help and errors call ``program``.

    Answers the exit code: 0 nothing went wrong, 1 something did, 2 there is nothing to test, 128 and the number of a
    signal that stopped the run.
    """
    parser = argparse.ArgumentParser(
        prog=program,
        description="Check a device with the conformance suite: all of it, or the parts that the options name.",
    )
    parser.add_argument("device", nargs="?", help="a device's name, or 'reference' for the ops' references")
    parser.add_argument("--list", action="store_true", help="list the names of ops and clauses, and test nothing")
    parser.add_argument("--op", action="append", metavar="NAME", help="the cases of this op; may be repeated")
    parser.add_argument("--clause", action="append", metavar="NAME", help="this clause; may be repeated")
    parser.add_argument("--contract", action="store_true", help="every clause of the contract")
    parser.add_argument("--graphs", action="store_true", help="graphs of many ops, as in models")
    parser.add_argument("--groups", action="store_true", help="chains that the device computes as groups")
    parser.add_argument("--case", metavar="LABEL", help="only the cases with this label")
    parser.add_argument(
        "--isolate", action="store_true", help="compute in a child process, so that a crash or a hang ends one case"
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=Worker.TIMEOUT,
        metavar="SECONDS",
        help="with --isolate: a case that takes longer counts as hung (default: %(default)g)",
    )
    parser.add_argument(
        "--repeat",
        type=_times,
        default=1,
        metavar="N",
        help="run it N times, and report the cases whose results differ",
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show all ops and clauses, passed ones too, and every reason"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every finding as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report as a page")
    options = parser.parse_args(arguments)
    try:
        if options.json is not None and options.markdown is not None:
            check_differs(options.json, [options.markdown])
        # First: the package that it comes from may bring ops.
        device = None if options.device is None else find_device(options.device)
        if options.list:
            print("ops:", *(f"  {name}" for name in OPS), "clauses:", *(f"  {each.name}" for each in CLAUSES), sep="\n")
            return 0
        if device is None:
            parser.error("name a device: `ggplug devices` lists them")
        some = bool(options.op or options.clause or options.contract or options.graphs or options.groups)
        chosen = list(
            units(
                options.op or () if some else None,
                None if options.contract or not some else options.clause or (),
                options.graphs or not some,
                options.groups or not some,
            )
        )
        reports, code = _computed(device, options, chosen)
    except GGPlugError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    report = next((each for each in reports if not each.ok), reports[-1])
    write(report, options.json, options.markdown)
    flakes = differences([each for each in reports if not each.stopped])
    if options.repeat > 1:
        print(f"{len(flakes)} cases came out differently in {len(reports)} runs", *flakes, "", sep="\n")
    print(text(report, verbose=options.verbose))
    if not (report.counts()["passed"] or report.bad):
        return code or 2
    return code or (0 if report.ok and not flakes else 1)


def differences(reports: Sequence[Report]) -> list[str]:
    """The cases that do not have one verdict in all of these runs, with how often they have which."""
    verdicts: dict[tuple[str, str], Counter[str]] = {}
    for report in reports:
        for finding in report.findings:
            subject, case = finding.subject, finding.case.partition(IN_THE_PLACE)[0]
            verdicts.setdefault((subject, case), Counter())[finding.verdict] += 1
    return [
        f"{subject}: {case}: " + ", ".join(f"{count} times {verdict}" for verdict, count in found.most_common())
        for (subject, case), found in verdicts.items()
        if len(found) > 1 or found.total() != len(reports)
    ]


def _computed(device: Device, options: argparse.Namespace, chosen: Sequence[Unit]) -> tuple[list[Report], int]:
    """A report for each run, and 128 and a signal's number, if one has stopped the last run; else 0."""
    reports: list[Report] = []
    try:
        with stoppable(), bar(len(chosen) * options.repeat) as progress, ExitStack() as ending:
            ending.callback(gc.set_threshold, *gc.get_threshold())
            gc.set_threshold(10_000)  # cases leave little garbage, and each collection searches all that is kept
            watch = Following(_chosen(options.case), progress.at)
            name, run = _runner(device, options, watch, ending)
            for _ in range(options.repeat):
                reports.append(Report(name))
                _fill(reports[-1], chosen, run, watch, progress.done)
    except KeyboardInterrupt as stop:
        if not reports or not reports[-1].stopped:
            reports.append(Report(options.device))
            reports[-1].stopped = in_words(stop, "")
        return reports, 128 + number_of(stop)
    return reports, 0


def _runner(
    device: Device, options: argparse.Namespace, watch: Following, ending: ExitStack
) -> tuple[str, Callable[[Unit], list[Finding]]]:
    """The device's name, and what runs a unit on it: here, or in a worker, which ``ending`` closes."""
    if not options.isolate:
        return device.name, lambda unit: unit.run(device, watch)
    worker = ending.enter_context(Worker(partial(serve, name=options.device), options.timeout))
    return options.device, lambda unit: worker.run(unit.name, unit.subject, options.case, watch=watch)


def write(report: Report, json: Path | None, page: Path | None) -> None:
    """Writes the files that the options name: every finding as JSON, the report as a page in Markdown."""
    if json is not None:
        json.write_text(report.as_json(), encoding="utf-8")
    if page is not None:
        page.write_text(markdown(report), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
