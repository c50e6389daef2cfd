"""What a conformance run found, and the table of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

Verdict = Literal["passed", "failed", "claimed but failed", "declined", "never run"]

VERDICTS: tuple[Verdict, ...] = ("passed", "failed", "claimed but failed", "declined", "never run")
"""What can become of a case.

``passed``; ``failed``: computed, but wrong; ``claimed but failed``: the device said that it supports it and then
raised;
``declined``: the device said no; ``never run``: there was nothing that could be run.
"""

BAD: frozenset[Verdict] = frozenset({"failed", "claimed but failed"})


class Finding(NamedTuple):
    """One case of an op, or one clause of the contract.

    ``subject``: the op's name, or ``"contract"``; ``case``: which one; ``nmse``: the error, where there is one.
    """

    subject: str
    case: str
    verdict: Verdict
    reason: str = ""
    nmse: float = 0.0

    @property
    def bad(self) -> bool:
        return self.verdict in BAD

    def __str__(self) -> str:
        return f"{self.subject}: {self.case}: {self.verdict}" + (f": {self.reason}" if self.reason else "")


class Report:
    """The findings about one device."""

    def __init__(self, device: str = "", findings: Iterable[Finding] = ()) -> None:
        self.device = device
        self.findings = list(findings)

    def add(self, *findings: Finding) -> None:
        self.findings.extend(findings)

    @property
    def bad(self) -> list[Finding]:
        """What failed, in order."""
        return [finding for finding in self.findings if finding.bad]

    @property
    def ok(self) -> bool:
        return not self.bad

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

    def table(self, *, reasons: bool = True) -> str:
        """A line for each op with its counts and largest error; then why things failed or were declined."""
        header = ("", *VERDICTS, "largest NMSE")
        rows: list[tuple[str, ...]] = [header]
        for subject in self.subjects():
            counts = self.counts(subject)
            passed = [f.nmse for f in self.findings if f.subject == subject and f.verdict == "passed"]
            worst = max(passed, default=0.0)
            shown = f"{worst:.1e}" if worst else ""
            rows.append((subject, *(str(counts[verdict] or "") for verdict in VERDICTS), shown))
        rows.append(("total", *(str(count) for count in self.counts().values()), ""))
        widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
        lines = [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        if reasons:
            lines += [f"{finding}" for finding in self.bad]
            declined: dict[str, int] = {}
            for finding in self.findings:
                if finding.verdict in ("declined", "never run"):
                    key = f"{finding.verdict}: {finding.reason}"
                    declined[key] = declined.get(key, 0) + 1
            lines += [f"{count:5d} {reason}" for reason, count in sorted(declined.items(), key=lambda item: -item[1])]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Plain data; an error that is not finite is None."""
        return {"device": self.device, "counts": self.counts(), "findings": [_plain(f) for f in self.findings]}

    def to_json(self) -> str:
        """One line; what passed only as a count and the largest error of each subject.  See :meth:`merge`."""
        passed: dict[str, tuple[int, float]] = {}
        for finding in self.findings:
            if finding.verdict == "passed":
                count, worst = passed.get(finding.subject, (0, 0.0))
                passed[finding.subject] = (count + 1, max(worst, finding.nmse))
        others = [_plain(finding) for finding in self.findings if finding.verdict != "passed"]
        return json.dumps({"device": self.device, "passed": passed, "others": others})

    @classmethod
    def merge(cls, device: str, parts: Iterable[dict[str, Any]]) -> Report:
        """A report of what several :meth:`to_json` tell; cases that passed have lost their names."""
        report = cls(device)
        for part in parts:
            for subject, (count, worst) in part["passed"].items():
                report.add(*(Finding(subject, "", "passed", "", worst) for _ in range(count)))
            for other in part["others"]:
                nmse = float("inf") if other["nmse"] is None else other["nmse"]
                report.add(Finding(other["subject"], other["case"], other["verdict"], other["reason"], nmse))
        return report


def _plain(finding: Finding) -> dict[str, Any]:
    return {**finding._asdict(), "nmse": finding.nmse if math.isfinite(finding.nmse) else None}
