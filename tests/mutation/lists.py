"""The faults that are listed in ``data/``: changes of source that somebody made by hand, and mechanical ones.

``byhand.txt`` says in its first lines how it is to be read.  ``mechanical.txt`` has a line for each change: module,
function, operator, number, before, after, and what became of it.  It is made by a rule, the first place of every
operator in every function of :data:`MODULES`, by ``python -m tests.mutation.score --record``, and checked against the
source, so that no fault silently seeds nothing.  What a line ends with: nothing; ``equivalent:`` and why no result can
differ, and then it is no fault and not seeded; or ``missed:`` and why the suite does not find it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ggplug.backend import Device
from ggplug_testing.devices.fusing import FusingDevice
from ggplug_testing.devices.packing import PackingDevice
from ggplug_testing.devices.reference import ReferenceDevice
from ggplug_testing.fake import FakeDevice
from tests.mutation.fault import Fault
from tests.mutation.operators import Mechanical, changes, functions
from tests.mutation.seeding import SUBJECT, Edit
from tests.mutation.streams import SynchronousDevice
from tests.mutation.subject import SubjectDevice

DEVICES: dict[str, Callable[[], Device]] = {
    "subject": SubjectDevice,
    "synchronous": SynchronousDevice,
    "late": partial(FakeDevice, "faulty", execution="late"),
    "reference": partial(ReferenceDevice, "faulty"),
    "fusing": partial(FusingDevice, "faulty"),
    "packing": partial(PackingDevice, "faulty"),
}
"""What changes are seeded into.  All conform."""

MODULES = (
    *(f"{SUBJECT}.{name}" for name in ("values", "formulas", "kernels", "together", "panels", "memory", "device")),
    *(f"ggplug.discrete.{name}" for name in ("queue", "memory", "plan")),
)
"""What is changed mechanically."""

BY_HAND = Path(__file__).parent / "data" / "byhand.txt"
RECORD = Path(__file__).parent / "data" / "mechanical.txt"


def by_hand() -> Iterator[Fault]:
    """The changes that were made by hand."""
    for section in re.split(r"^@ ", BY_HAND.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        place, *entries = re.split(r"\n(?=\w[\w.]*: )", section)
        module, device = place.split()
        for entry in entries:
            title, *lines = entry.splitlines()
            function, name = title.split(": ", 1)
            for bits in (31, 32) if "{bits}" in name else (0,):
                filled = [line.replace("{bits}", str(bits)).replace("{mask}", hex((1 << bits) - 1)) for line in lines]
                old, new, found_by, missed = ([each[2:] for each in filled if each[:1] in marks] for marks in _MARKS)
                edit = Edit(module, function, "\n".join(old), "\n".join(new))
                yield Fault(
                    name.replace("{bits}", str(bits)), DEVICES[device], tuple(found_by), (edit,), " ".join(missed)
                )


_MARKS = ({" ", "-"}, {" ", "+"}, {"?"}, {"!"})


class Recorded(NamedTuple):
    """A line of the mechanical ones: ``equivalent`` and ``missed`` are reasons, or empty."""

    seed: Mechanical
    equivalent: str = ""
    missed: str = ""


def recorded() -> list[Recorded]:
    """The mechanical ones as they are written down."""
    return [_read(line) for line in RECORD.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


def found() -> Iterator[Mechanical]:
    """The mechanical ones as the rule makes them of the source now."""
    for module in MODULES:
        tree = ast.parse(inspect.getsource(importlib.import_module(module)))
        for name, function in functions(tree).items():
            yield from (each for each in changes(module, name, function) if each.number == 0)


def record() -> None:
    """Writes the list of mechanical ones anew; what became of a line that stays as it was is kept."""
    known = {each.seed: each for each in recorded()}
    lines = ["# " + "\t".join((*Mechanical._fields, "what became of it"))]
    for seed in found():
        each = known.get(seed, Recorded(seed))
        became = [f"{what}: {why}" for what, why in zip(each._fields[1:], each[1:], strict=True) if why]
        lines.append("\t".join([*map(str, seed), *became]))
    RECORD.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _read(line: str) -> Recorded:
    module, function, operator, number, before, after, *became = line.split("\t")
    seed = Mechanical(module, function, operator, int(number), before, after)
    return Recorded(seed, **dict(each.split(": ", 1) for each in became))
