"""The pytest plugin (entry point ``pytest11``): an option that names the device, and a table of verdicts at the end.

pytest imports this at every start, so it imports nothing that is not needed yet.
"""

from __future__ import annotations

import json
from typing import Any

PROPERTY = "ggplug_conformance"
"""Name under which the suite's tests attach what they found; it travels with the reports of distributed runs."""

_found: list[dict[str, Any]] = []


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("ggplug", "conformance of ggplug devices")
    group.addoption(
        "--ggplug-device",
        metavar="NAME",
        default=None,
        help="the device that BackendSuite tests, where the test class names none",
    )


def pytest_configure(config: Any) -> None:
    _found.clear()


def pytest_runtest_logreport(report: Any) -> None:
    for name, value in report.user_properties if report.when == "call" else ():
        if name == PROPERTY:
            _found.append(json.loads(value))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _found:
        return
    from ggplug.testing.report import Report

    for device in dict.fromkeys(each["device"] for each in _found):
        report = Report.merge(device, [each for each in _found if each["device"] == device])
        terminalreporter.section(f"ggplug conformance of {device}")
        for line in report.table().splitlines():
            terminalreporter.write_line(line)
