"""A report's file as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

UNITS = {
    "gigaflops": "GFLOP/s",
    "gigabytes_per_second": "GB/s",
    "sequences_per_second": "sequences/s",
    "milliseconds": "ms",
    "milliseconds_alone": "ms alone, with waiting",
    "microseconds_a_launch": "microseconds a launch on the host",
    "microseconds_a_node": "microseconds a node until all is done",
}
"""What follows a figure, by its name; a name that is not here is said in words."""

SHOWN = {"Failures": 100, "Not run": 100, "Declined": 12}
"""How many are listed; the file has them all."""

Record = Mapping[str, Any]


def markdown(content: Mapping[str, Any]) -> str:
    """Tables of everything in a report's file, device by device."""
    lines = [f"Made by `python -m {content['program']}` on {content['date']}", ""]
    taken = f"{content['seconds']:.0f} of {content['budget_seconds']:.0f} seconds"
    lines += _table(("", ""), [*content["environment"].items(), ("time", taken)])
    for name, device in content["devices"].items():
        lines += ["", f"## {name}: {device['description']}", *_device(device["parts"])]
    return "\n".join(lines) + "\n"


def plan(steps: Mapping[str, Sequence[str]], seconds: float) -> str:
    """What a report would run, by the names of each part's steps."""
    rows = [(part, len(names), "; ".join(names)) for part, names in steps.items()]
    lines = [f"On a device this would be run, in at most {seconds:.0f} seconds:", ""]
    return "\n".join([*lines, *_table(("part", "steps", "which"), rows)]) + "\n"


def _device(parts: Mapping[str, Record]) -> Iterator[str]:
    for record in parts.values():
        for answer in record["results"].values():
            if "facts" in answer:
                yield ""
                yield from _table(("", ""), [(_words(k), v) for k, v in answer["facts"].items()])
    yield ""
    heading = "part", "passed", "failed", "declined", "errors", "not run", "seconds", "programs compiled", "in seconds"
    yield from _table(heading, [_summary(name, record) for name, record in parts.items()])
    for name, record in parts.items():
        yield from _figures(name, {step: a["figures"] for step, a in record["results"].items() if "figures" in a})
    yield from _section("Failures", _failures(parts))
    yield from _section("Not run", _not_run(parts))
    yield from _section("Declined", _declined(parts))


def _summary(name: str, record: Record) -> Sequence[object]:
    answers = record["results"].values()
    failed, declined = (sum(len(a.get(key, ())) for a in answers) for key in ("failed", "declined"))
    programs = record["programs"]
    return (
        name,
        sum(a.get("passed", 0) for a in answers),
        failed,
        declined,
        len(record["errors"]),
        _lacking(record),
        record["seconds"],
        programs["compiled"],
        f"{programs['seconds']:.1f}",
    )


def _lacking(record: Record) -> str:
    missing = record["not_run"]
    return str(len(missing)) if record["steps"] or not missing else "everything"


def _failures(parts: Mapping[str, Record]) -> Iterator[str]:
    for name, record in parts.items():
        for error in record["errors"]:
            where = f"{name}, {error['step']}" if error["step"] else name
            yield f"{where}: {error['error']}"
        for answer in record["results"].values():
            for case in answer.get("failed", ()):
                yield f"{name}, {case['case']}: {case['reason']}"


def _not_run(parts: Mapping[str, Record]) -> Iterator[str]:
    for name, record in parts.items():
        if record["not_run"]:
            yield f"{name}: {', '.join(record['not_run'])}"


def _declined(parts: Mapping[str, Record]) -> Iterator[str]:
    for name, record in parts.items():
        reasons = Counter(case["reason"] for a in record["results"].values() for case in a.get("declined", ()))
        yield from (f"{name}: {count} times: {reason}" for reason, count in reasons.most_common())


def _section(title: str, entries: Iterable[str]) -> Iterator[str]:
    listed = list(entries)
    if listed:
        yield from ("", f"### {title}", "")
        yield from (f"- {' '.join(entry.split())}" for entry in listed[: SHOWN[title]])
        if len(listed) > SHOWN[title]:
            yield f"- and {len(listed) - SHOWN[title]} more"


def _figures(name: str, measured: Mapping[str, Mapping[str, float | None]]) -> Iterator[str]:
    """A column for each figure where all have the same ones, else one for all, with their units."""
    if not measured:
        return
    yield ""
    keys = list(next(iter(measured.values())))
    if all(list(figures) == keys for figures in measured.values()):
        rows = [(step, *(_number(*each) for each in figures.items())) for step, figures in measured.items()]
        yield from _table((name, *(UNITS.get(key, _words(key)) for key in keys)), rows)
    else:
        joined = {
            step: ", ".join(f"{_number(key, value)} {UNITS.get(key, _words(key))}" for key, value in figures.items())
            for step, figures in measured.items()
        }
        yield from _table((name, "measured"), joined.items())


def _number(key: str, value: float | None) -> str:
    if value is None:
        return "no number"
    if value >= 1000 or isinstance(value, int):
        return f"{value:,.0f}"
    return f"{value:.7f}" if key.endswith("cosine") else f"{value:.3g}"


def _words(key: str) -> str:
    return key.replace("_", " ")


def _table(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield _row(heading)
    yield "|" + "---|" * len(heading)
    yield from map(_row, rows)


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(" ".join(str(cell).replace("|", "\\|").split()) for cell in cells) + " |"
