"""A report as text for terminals, and as a page in Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from ggplug.types import TYPES
from ggplug_testing.reporting.report import VERDICTS, Cause, Finding, Report, Verdict, is_clause, without_numbers

LINES = 26
"""Lines that causes may take where something failed; those that do not fit are counted."""

ROWS = 5
"""Subjects that the table has where something failed."""

_NOT_RUN: tuple[Verdict, ...] = ("not proven", "not applicable", "declined", "never run")

_WIDTH = 200
"""Characters of a line of a reason."""

REASONS = 15
"""Reasons not to run that are shown where nothing failed."""

_TENSOR = re.compile(r"<Tensor (?P<leaf>[^<>=]*?)(?: = (?P<op>\w+)[^<>]*)?>")
"""A tensor as ``repr`` has it."""

_LINE = 120
"""Characters of a line where nothing failed."""


def text(report: Report, *, verbose: bool = False) -> str:
    """What became of a device: what failed, cause by cause, or what did not run, reason by reason; last the verdict.

    Without ``verbose`` this is a screen at most if nothing failed, and else about thirty lines, whatever failed.
    ``verbose``: every subject and every reason, too.
    """
    shown = failures(report, verbose=verbose) if report.bad else []
    if verbose:
        shown = [*shown, *([""] if shown else []), *table(report), *declined(report)]
    elif report.bad:
        shown += ["", *table(report, bad_only=True)]
    else:
        shown = grouped(report)
    return "\n".join([*shown, *([""] if shown else []), *verdict(report)])


def verdict(report: Report) -> list[str]:
    """In a line or two: whether the device passed what was run, and how much that was."""
    counts = report.counts()
    cases = len(report.findings)
    others = [f"{counts[each]:,} {each}" for each in _NOT_RUN if counts[each]]
    proven = f"{counts['passed']:,} of {_plural(cases, 'case')} passed"
    counted = "; ".join([proven, *([", ".join(others)] if others else [])])
    named = report.device or "the device"
    if report.bad:
        causes = _plural(len(report.causes()), "cause")
        lines = [f"FAILED: {named}: {len(report.bad):,} of {_plural(cases, 'case')} went wrong, {causes}; {counted}"]
    elif report.stopped:
        lines = [f"until then: {counted}; none went wrong"]
    elif not counts["passed"]:
        return [f"NOTHING WAS PROVEN: {named}: {counted}"]
    else:
        return [f"PASSED: {named}: {counted}"]
    return [*lines, f"STOPPED: {named}: {report.stopped}"] if report.stopped else lines


def grouped(report: Report) -> list[str]:
    """What did not run, similar reasons together, those with the most cases first, and the largest error."""
    found: dict[tuple[str, str], list[Finding]] = {}
    for finding in report.findings:
        if finding.verdict in _NOT_RUN:
            found.setdefault((finding.verdict, _alike(finding)), []).append(finding)
    groups = sorted(found.values(), key=lambda same: (_NOT_RUN.index(same[0].verdict), -len(same)))
    lines = [_reason(same) for same in groups[:REASONS]]
    if groups[REASONS:]:
        left = sum(map(len, groups[REASONS:]))
        lines.append(f"{left:5,d} for {_plural(len(groups) - REASONS, 'more reason')}, which -v shows")
    passed = [each.worst for each in report.passed().values() if each.worst.nmse]
    if passed:
        worst = max(passed, key=lambda each: each.nmse)
        lines.append(f"      largest NMSE: {worst.nmse:.1e} in {worst.subject}: {_named(worst)}"[:_LINE])
    return lines


def _alike(finding: Finding) -> str:
    """Equal for reasons that differ in tensors, types, numbers and the op, or in what else is not as it should be."""
    words = _TENSOR.sub("...", finding.reason.partition("; ")[0])
    words = re.sub(rf"\b{re.escape(finding.subject)}\b", "...", words)
    words = re.sub(rf"\b({'|'.join(type.name for type in TYPES)})\b", "...", words)
    return without_numbers(re.sub(r"\.\.\.(?:, \.\.\.)+", "...", words))


def _of_tensor(found: re.Match[str]) -> str:
    """``<relu>`` in the place of ``<Tensor f32 [40x6] = relu>``."""
    return f"<{found['op'] or found['leaf']}>"


def _reason(same: Sequence[Finding]) -> str:
    """How many cases did not run for a reason, in which subjects, and the first of these reasons."""
    subjects = list(dict.fromkeys(each.subject for each in same))
    named = ", ".join(subjects[:2]) + (f" and {_plural(len(subjects) - 2, 'other')}" if len(subjects) > 2 else "")
    others = len({each.reason for each in same}) - 1
    tail = f" ({_plural(others, 'reason')} like it)" if others else ""
    line = f"{len(same):5,d} {same[0].verdict} in {named}: {_TENSOR.sub(_of_tensor, same[0].reason)}"
    return (line if len(line) + len(tail) <= _LINE else line[: _LINE - len(tail) - 3] + "...") + tail


def failures(report: Report, *, verbose: bool = False) -> list[str]:
    """What went wrong, cause by cause: as many as fit into :data:`LINES`, or all if ``verbose``."""
    causes = _ordered(report)
    lines = [f"{len(report.bad)} of {len(report.findings)} cases went wrong, {_plural(len(causes), 'cause')}:"]
    for number, cause in enumerate(causes, 1):
        described = [f"{number:2}. {line}" if i == 0 else f"    {line}" for i, line in enumerate(_cause(cause))]
        if len(lines) + len(described) > LINES and not verbose and number > 1:
            subjects = dict.fromkeys(each.findings[0].subject for each in causes[number - 1 :])
            left = _plural(len(causes) - number + 1, "more cause")
            return [*lines, f"    ... and {left}, which -v shows: in {_enumerated(list(subjects))}"]
        lines += described
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


def aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Rows in columns, all but the first and the last aligned at the right."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return [
        "  ".join(
            cell.rjust(width) if 0 < i < len(row) - 1 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def declined(report: Report) -> list[str]:
    """Why cases did not run, and how many."""
    left = [each for each in report.findings if each.verdict in _NOT_RUN]
    reasons = [f"{each.case}: {each.reason}" if is_clause(each) else each.reason for each in left]
    counted = Counter(f"{each.verdict}: {reason}" for each, reason in zip(left, reasons, strict=True))
    return [f"{count:5d} {reason}" for reason, count in counted.most_common()]


def markdown(report: Report) -> str:
    """The whole report as a page: every subject, every cause, every reason to decline."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.counts().items() if count)
    lines = [f"# Conformance of {report.device}", "", f"{counts}.", ""]
    if report.stopped:
        lines += [f"The run was stopped {_escaped(report.stopped)}.", ""]
    if report.bad:
        lines += ["## What went wrong", ""]
        for cause in _ordered(report):
            first, *rest = _cause(cause)
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


def _ordered(report: Report) -> list[Cause]:
    """Causes, those with the most cases first."""
    return sorted(report.causes(), key=lambda cause: cause.cases, reverse=True)


def _cause(cause: Cause) -> list[str]:
    """What a cause is, where, what it concerns and what follows from it, and how to see it again."""
    first = cause.findings[0]
    again = f"again: {first.command}" if first.command else ""
    hint = cause.hint[:_WIDTH]
    return [line for line in (*_heading(first), first.where, *first.trace, _which(cause), hint, again) if line]


def _heading(finding: Finding) -> list[str]:
    """Verdict and reason, of a long one the beginning."""
    first, *more = (line[:_WIDTH] for line in f"{finding.verdict}: {finding.reason}".splitlines())
    return [first, *more[:2]]


def _which(cause: Cause) -> str:
    """The first case of a cause, what else it concerns, and what builds on these."""
    first, *others = cause.findings
    parts = [f"in {first.subject}: {_named(first)}"]
    if others:
        parts.append(f"and {_counted(others, first.subject)}")
    if cause.consequences:
        parts.append(f"which others build on: {_counted(cause.consequences)}")
    return "; ".join(parts)


def _counted(same: Sequence[Finding], subject: str = "") -> str:
    """``3 more cases: 2 of add, 1 of sub``; without the ops where all are of ``subject``."""
    found = Counter(finding.subject for finding in same)
    more = _plural(len(same), "more case")
    if list(found) == [subject]:
        return more
    return f"{more}: {_enumerated([f'{count} of {each}' for each, count in found.most_common()])}"


def _enumerated(names: Sequence[str]) -> str:
    """The first few of these, and how many others."""
    return ", ".join(names[:4]) + (f" and {_plural(len(names) - 4, 'other')}" if names[4:] else "")


def _named(finding: Finding) -> str:
    return f"{finding.case} ({finding.types})" if finding.types else finding.case


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
