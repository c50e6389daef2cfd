"""A report as text for terminals, and as a page in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ggplug.testing.report import VERDICTS, Finding, Report

FULL = 3
"""Causes that are shown with their lines, where something failed."""

BRIEF = 5
"""Causes beyond these that are shown in a line each."""

ROWS = 5
"""Subjects that the table has where something failed."""

_NOT_RUN = ("not proven", "not applicable", "declined", "never run")

_WIDTH = 200
"""Characters of a line of a reason."""


def text(report: Report) -> str:
    """What failed, cause by cause, and a table.

    Where something failed this is at most about thirty lines, whatever failed; the other reports have everything.
    """
    if report.ok:
        return "\n".join([*table(report), *declined(report)])
    return "\n".join([*failures(report), "", *table(report, bad_only=True)])


def failures(report: Report) -> list[str]:
    """What went wrong, cause by cause, the first few in full."""
    causes = _ordered(report)
    lines = [f"{len(report.bad)} of {len(report.findings)} cases went wrong, {_plural(len(causes), 'cause')}:"]
    for number, same in enumerate(causes[:FULL], 1):
        lines += [f"{number:2}. {line}" if i == 0 else f"    {line}" for i, line in enumerate(_cause(same))]
    for number, same in enumerate(causes[FULL : FULL + BRIEF], FULL + 1):
        where = f" ({same[0].where})" if same[0].where else ""
        lines.append(f"{number:2}. {_heading(same[0])[0]}{where}: {_which(same)}")
    if len(causes) > FULL + BRIEF:
        lines.append(f"    ... and {_plural(len(causes) - FULL - BRIEF, 'more cause')}")
    return lines


def table(report: Report, *, bad_only: bool = False) -> list[str]:
    """A line for each subject with its counts, its largest error, and the case that has it.

    ``bad_only``: only the first few subjects in which something failed, and the total.
    """
    header, *rows, total = _rows(report)
    if bad_only:
        bad = {finding.subject for finding in report.bad}
        rows = [row for row in rows if row[0] in bad]
        left_out = len(rows) - ROWS
        rows = rows[:ROWS] + ([(f"{left_out} others", *("" for _ in header[1:]))] if left_out > 0 else [])
    return aligned([header, *rows, total])


def aligned(shown: Sequence[Sequence[str]]) -> list[str]:
    """Rows in columns, all but the first and the last aligned at the right."""
    widths = [max(len(row[i]) for row in shown) for i in range(len(shown[0]))]
    return [
        "  ".join(
            cell.rjust(width) if 0 < i < len(row) - 1 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in shown
    ]


def declined(report: Report) -> list[str]:
    """Why cases did not run, and how many."""
    counted = Counter(f"{f.verdict}: {f.reason}" for f in report.findings if f.verdict in _NOT_RUN)
    return [f"{count:5d} {reason}" for reason, count in counted.most_common()]


def markdown(report: Report) -> str:
    """The whole report as a page: every subject, every cause, every reason to decline."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.counts().items() if count)
    lines = [f"# Conformance of {report.device}", "", f"{counts}.", ""]
    if not report.ok:
        lines += ["## What went wrong", ""]
        for same in _ordered(report):
            first, *rest = _cause(same)
            lines += [f"1. {_escaped(first)}", "", *("       " + line for line in rest), ""]
    header, *rows = _rows(report)
    lines += ["## Verdicts", "", _row(header), _row(["---", *("---:" for _ in header[1:-1]), "---"]), *map(_row, rows)]
    reasons = declined(report)
    if reasons:
        lines += ["", "## What did not run", "", *(f"- {_escaped(reason.strip())}" for reason in reasons)]
    return "\n".join([*lines, ""])


def _rows(report: Report) -> list[tuple[str, ...]]:
    """The header, a row for each subject, and the total; verdicts that nothing has are left out."""
    total = report.counts()
    occurring = [verdict for verdict in VERDICTS if total[verdict]]
    rows: list[tuple[str, ...]] = [("", *occurring, "largest NMSE", "in")]
    passed = report.passed()
    for subject in report.subjects():
        counts = report.counts(subject)
        worst = passed[subject].worst if subject in passed else None
        shown = (f"{worst.nmse:.1e}", _named(worst)) if worst is not None and worst.nmse else ("", "")
        rows.append((subject, *(str(counts[verdict] or "") for verdict in occurring), *shown))
    rows.append(("total", *(str(total[verdict]) for verdict in occurring), "", ""))
    return rows


def _ordered(report: Report) -> list[list[Finding]]:
    """Causes, those with the most cases first."""
    return sorted(report.causes(), key=len, reverse=True)


def _cause(same: Sequence[Finding]) -> list[str]:
    """What a cause is, where, what it concerns, and how to see it again."""
    first = same[0]
    lines = [*_heading(first), *filter(None, [first.where]), *first.trace, _which(same)]
    return [*lines, f"again: {first.command}"] if first.command else lines


def _heading(finding: Finding) -> list[str]:
    """Verdict and reason, of a long one the beginning."""
    first, *more = (line[:_WIDTH] for line in (f"{finding.verdict}: {finding.reason}".splitlines() or [""]))
    return [first, *more[:2]]


def _which(same: Sequence[Finding]) -> str:
    """The first case of a cause, and what else it concerns."""
    others = Counter(finding.subject for finding in same[1:])
    if not others:
        return f"in {same[0].subject}: {_named(same[0])}"
    shown = f"in {same[0].subject}: {_named(same[0])}; and {_plural(len(same) - 1, 'more case')}"
    if list(others) == [same[0].subject]:
        return shown
    counted = [f"{count} of {subject}" for subject, count in others.most_common()]
    return f"{shown}: {', '.join([*counted[:4], *([_plural(len(counted) - 4, 'other')] if len(counted) > 4 else [])])}"


def _named(finding: Finding) -> str:
    return f"{finding.case} ({finding.types})" if finding.types else finding.case


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
