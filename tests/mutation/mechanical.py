"""The faults that operators make of the subject's source and of the kit under it, from a recorded list.

``data/mechanical.txt`` has a line for each: module, function, operator, number, before, after, and what became of it.
The list is made by a rule, the first site of every operator in every function of :data:`MODULES`, by
``python -m tests.mutation.score --record``, and checked against the source, so that no fault silently seeds nothing.
What a line ends with: nothing; ``equivalent:`` and why no result can differ, and then it is no fault and not seeded; or
``missed:`` and why the suite does not find it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.mutation.operators import functions, sites
from tests.mutation.seeding import SUBJECT, Mechanical

MODULES = (
    *(f"{SUBJECT}.{name}" for name in ("values", "formulas", "kernels", "together", "panels", "memory", "device")),
    *(f"ggplug.discrete.{name}" for name in ("queue", "memory", "plan", "device")),
)
"""What is changed."""

RECORD = Path(__file__).parent / "data" / "mechanical.txt"


class Recorded(NamedTuple):
    """A line: ``equivalent`` and ``missed`` are reasons, or empty."""

    seed: Mechanical
    equivalent: str = ""
    missed: str = ""


def recorded() -> list[Recorded]:
    """The list as it is written down."""
    return [_read(line) for line in RECORD.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


def found() -> Iterator[Mechanical]:
    """The list as the rule makes it of the source now."""
    for module in MODULES:
        tree = ast.parse(inspect.getsource(importlib.import_module(module)))
        for name, function in functions(tree).items():
            for site in sites(name, function):
                if site.number == 0:
                    yield Mechanical(module, *site)


def record() -> None:
    """Writes the list anew; what became of a line that stays as it was is kept."""
    known = {each.seed: each for each in recorded()} if RECORD.exists() else {}
    lines = ["# " + "\t".join((*Mechanical._fields, "what became of it")), *map(_written, _merged(known))]
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _merged(known: dict[Mechanical, Recorded]) -> Iterator[Recorded]:
    return (known.get(seed, Recorded(seed)) for seed in found())


def _written(each: Recorded) -> str:
    outcome = [f"{what}: {why}" for what, why in zip(each._fields[1:], each[1:], strict=True) if why]
    return "\t".join([*map(str, each.seed), *outcome])


def _read(line: str) -> Recorded:
    module, function, operator, number, before, after, *outcome = line.split("\t")
    seed = Mechanical(module, function, operator, int(number), before, after)
    given = dict(each.split(": ", 1) for each in outcome)
    return Recorded(seed, **given)
