"""Runs cases in this process.

``python -m tests.hostile.run DEVICE`` is the child: it reads cases from standard input, a line of JSON each, and
answers each with a line, so that the parent knows which case ended the process.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any

import ggplug as gg
from ggplug.errors import GGPlugError

from .draw import draw, target_of
from .machine import Machine
from .outcome import Fault, Outcome
from .trial import Trial, spell


def run(name: str, machine: Machine, fixed: Mapping[str, Any] | None = None) -> Outcome:
    """Runs a case; never raises but for what ends a process."""
    try:
        case = draw(name, fixed)
    except GGPlugError as error:
        return Outcome("refused", spell(error), uses=[target_of(name)])
    try:
        outcome = Trial(case, machine).outcome()
    except Fault as fault:
        outcome = Outcome("fault", str(fault), fault.kind)
    except Exception as error:
        typed = "raises" if isinstance(error, GGPlugError) else "untyped"
        outcome = Outcome("fault", traceback.format_exc(), f"{typed} {type(error).__name__}")
    outcome.uses = list(case.uses)
    return outcome


def main(arguments: list[str]) -> None:
    """The child: answers each case with a line of JSON."""
    faulthandler.enable()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed is no answer
    machine = Machine(gg.device(arguments[0]))
    print(json.dumps({"ready": machine.device.description}), file=answers)
    for line in sys.stdin:
        job = json.loads(line)
        outcome = run(job["case"], machine, job.get("fixed"))
        print(json.dumps(dataclasses.asdict(outcome)), file=answers)
    machine.free()


if __name__ == "__main__":
    main(sys.argv[1:])
