"""What a conformance run found: verdicts, and how they travel."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

Verdict = Literal[
    "passed",
    "failed",
    "raised",
    "claimed but failed",
    "crashed",
    "hung",
    "not proven",
    "not applicable",
    "declined",
    "never run",
]

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""What can become of a case.

``passed``; ``failed``: computed, but wrong; ``raised``: the device's code raised where it had to compute; ``claimed but
failed``: the device said that it supports something and then declined it; ``crashed`` and ``hung``: the process that
computed it died, or did not go on (only where cases run in a worker);
``not proven``: nothing was wrong, but the device gives no way to provoke what a clause is about; ``not applicable``: it
cannot happen on the device; ``declined``: the device said no; ``never run``: there was nothing that could be run.
"""

BAD: frozenset[Verdict] = frozenset({"failed", "raised", "claimed but failed", "crashed", "hung"})

TRAITS = 3
"""How many traits a hint names at most."""

GROUND = ("bytes come back as they were stored", "tensors keep their values")
"""Clauses that all values of ops build on: how they come to the device, and back."""


class Finding(NamedTuple):
    """One case of an op, or one clause of the contract.

    ``subject``: the op's name, or ``"contract"``, ``"graph"``, ``"groups"``; ``case``: which one; ``nmse``: the error,
    where there is one; ``types``: those of the op's sources.

    Of what is bad: ``where``: file, line and function of the author's code, and the text of the line; ``trace``: the
    lines around it; ``cause``: findings in which it is equal have the same fault; ``command``: what runs only this;
    ``builds_on``: ops, and clauses of the contract, that it takes for right: where one of them is bad, too, this may be
    a consequence.  ``traits``: what :mod:`ggplug_testing.running.traits` says of the case; of what passed, too.
    """

    subject: str
    case: str
    verdict: Verdict
    reason: str = ""
    nmse: float = 0.0
    types: str = ""
    where: str = ""
    trace: tuple[str, ...] = ()
    cause: str = ""
    command: str = ""
    builds_on: tuple[str, ...] = ()
    traits: tuple[str, ...] = ()

    @property
    def bad(self) -> bool:
        return self.verdict in BAD

    @property
    def fault(self) -> str:
        """``cause``, or else what the reason says but for its numbers, for this subject."""
        return self.cause or f"{self.subject} {self.verdict} {without_numbers(self.reason)}"

    def __str__(self) -> str:
        return f"{self.subject}: {self.case}: {self.verdict}" + (f": {self.reason}" if self.reason else "")


class Cause(NamedTuple):
    """What has one fault: ``findings``, and ``consequences``, which build on one of these.

    Cases of ops come before clauses of the contract: what a clause computes is one of them.  ``hint``: what the cases
    of the first op have in common, and none that passed has; or empty.
    """

    findings: list[Finding]
    consequences: list[Finding]
    hint: str = ""

    @property
    def cases(self) -> int:
        """The number of cases that went wrong, consequences included."""
        return len(self.findings) + len(self.consequences)


class Passed(NamedTuple):
    """What passed of one subject: how many cases, the one with the largest error, and the traits of all together."""

    cases: int
    worst: Finding
    traits: frozenset[str] = frozenset()


class Report:
    """The findings about one device.

    ``stopped``: of a run that was stopped, by what and where, and what did not run; else empty.
    """

    def __init__(self, device: str = "", findings: Iterable[Finding] = ()) -> None:
        self.device = device
        self.findings = list(findings)
        self.stopped = ""

    def add(self, *findings: Finding) -> None:
        self.findings.extend(findings)

    @property
    def bad(self) -> list[Finding]:
        """What failed, in order."""
        return [finding for finding in self.findings if finding.bad]

    @property
    def ok(self) -> bool:
        """Whether no case failed and the run was not stopped."""
        return not self.bad and not self.stopped

    def counts(self, subject: str | None = None) -> dict[Verdict, int]:
        """How many findings of each verdict, of one subject or of all."""
        counted: dict[Verdict, int] = dict.fromkeys(VERDICTS, 0)
        for finding in self.findings:
            if subject in (None, finding.subject):
                counted[finding.verdict] += 1
        return counted

    def subjects(self) -> list[str]:
        """Ops (and ``"contract"``) in order of appearance."""
        return list(dict.fromkeys(finding.subject for finding in self.findings))

    def passed(self) -> dict[str, Passed]:
        """Of each subject what passed, and the case that came closest to failing."""
        found: dict[str, list[Finding]] = {}
        for finding in self.findings:
            if finding.verdict == "passed":
                found.setdefault(finding.subject, []).append(finding)
        return {
            subject: Passed(
                len(cases),
                max(cases, key=lambda each: each.nmse),
                frozenset().union(*(each.traits for each in cases)),
            )
            for subject, cases in found.items()
        }

    def causes(self) -> list[Cause]:
        """What failed, by cause, in the order in which causes came up; consequences are with what they build on."""
        same: dict[str, list[Finding]] = {}
        for finding in self.bad:
            same.setdefault(finding.fault, []).append(finding)
        at = {name: fault for fault, findings in reversed(same.items()) for name in map(_name, findings)}
        causes = {fault: Cause(sorted(each, key=is_clause), []) for fault, each in same.items()}
        for fault, findings in same.items():
            first = _first_cause(fault, same, at)
            if first != fault:
                causes[first].consequences.extend(findings)
                del causes[fault]
        passed = self.passed()
        return [cause._replace(hint=_hint(cause, passed)) for cause in causes.values()]

    def as_dict(self) -> dict[str, Any]:
        """Plain data; an error that is not finite is None, and traits are left out."""
        stopped = {"stopped": self.stopped} if self.stopped else {}
        findings = [_plain(finding._replace(traits=())) for finding in self.findings]
        return {"device": self.device, **stopped, "counts": self.counts(), "findings": findings}

    def as_json(self) -> str:
        """:meth:`as_dict` as a document."""
        return json.dumps(self.as_dict(), indent=1)

    def to_json(self) -> str:
        """One line; what passed only as a count and the case with the largest error of each subject, with all traits.

        See :meth:`merge`.
        """
        passed = {
            subject: (count, _plain(worst._replace(traits=tuple(sorted(traits)))))
            for subject, (count, worst, traits) in self.passed().items()
        }
        others = [_plain(finding) for finding in self.findings if finding.verdict != "passed"]
        return json.dumps({"device": self.device, "passed": passed, "others": others, "stopped": self.stopped})

    @classmethod
    def merge(cls, device: str, parts: Iterable[dict[str, Any]]) -> Report:
        """One report made of several :meth:`to_json`; cases that passed have lost their names but for the worst."""
        report = cls(device)
        for part in parts:
            for subject, (count, worst) in part["passed"].items():
                report.add(finding_of(worst), *(Finding(subject, "", "passed") for _ in range(count - 1)))
            report.add(*map(finding_of, part["others"]))
            report.stopped = report.stopped or part["stopped"]
        return report


def is_clause(finding: Finding) -> bool:
    """Whether a finding is about a clause of the contract; its ``case`` is then the name of the clause."""
    return finding.subject == "contract"


def _name(finding: Finding) -> str:
    """What others call a finding by that build on it: a clause's name, or an op's."""
    return finding.case if is_clause(finding) else finding.subject


def _bases(finding: Finding) -> tuple[str, ...]:
    wrong = finding.verdict == "failed" and not is_clause(finding)
    return (*finding.builds_on, *GROUND) if wrong else finding.builds_on


def _first_cause(fault: str, same: Mapping[str, Sequence[Finding]], at: Mapping[str, str]) -> str:
    """The fault that this one is a consequence of, in the end: itself, unless each of its findings builds on others.

    ``same``: the findings of each fault; ``at``: the fault of each op and clause that is bad, by name.
    """
    seen = [fault]
    while True:
        builds_on = [next((at[name] for name in _bases(each) if name in at), "") for each in same[seen[-1]]]
        if not all(builds_on):
            return seen[-1]
        if builds_on[0] in seen:
            return fault
        seen.append(builds_on[0])


def hint(op: str, failed: Sequence[Sequence[str]], passed: Iterable[str]) -> str:
    """What all of several cases that failed have and none that passed, in words; empty if that is nothing.

    ``failed``: the traits of each case of the op; ``passed``: those of all of its cases that passed, together.  Of
    traits that differ only in a number the last one counts.
    """
    lacked = set(passed)
    if len(failed) < 2 or not lacked:
        return ""
    common = set.intersection(*map(set, failed)) - lacked
    common_traits = list({re.sub(r"\d[\d,]*", "#", each): each for each in failed[0] if each in common}.values())
    if not common_traits:
        return ""
    more = f" (and {len(common_traits) - TRAITS} more such things)" if len(common_traits) > TRAITS else ""
    return f"all {len(failed)} of {op} have {', '.join(common_traits[:TRAITS])}{more}, and no case that passed has"


def _hint(cause: Cause, passed: Mapping[str, Passed]) -> str:
    op = cause.findings[0].subject
    failed = [each.traits for each in cause.findings if each.subject == op]
    return hint(op, failed, passed[op].traits if op in passed else ())


def without_numbers(reason: str) -> str:
    """A reason with its numbers left out: what differs in nothing else has one cause."""
    return re.sub(r"[-+]?(?:\b\d[\w.]*(?:[-+]\d+)?|\bnan\b|\binf\b)", "#", reason)


def finding_of(plain: dict[str, Any]) -> Finding:
    """A finding of what :meth:`Report.as_dict` has for it."""
    nmse = float("inf") if plain["nmse"] is None else plain["nmse"]
    lists = {name: tuple(plain.get(name, ())) for name in ("trace", "builds_on", "traits")}
    return Finding(**{**plain, "nmse": nmse, **lists})


def _plain(finding: Finding) -> dict[str, Any]:
    """The fields of a finding that say something."""
    nmse = finding.nmse if math.isfinite(finding.nmse) else None
    fields = {name: value for name, value in finding._asdict().items() if value or name in ("case", "subject")}
    return {**fields, "nmse": nmse}
