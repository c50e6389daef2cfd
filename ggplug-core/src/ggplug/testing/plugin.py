"""The pytest plugin (entry point ``pytest11``): an option that names the device, and a table of verdicts at the end.

pytest imports this at every start, so it imports nothing that is not needed yet.
"""

from __future__ import annotations

import json
from typing import Any

PROPERTY = "ggplug_conformance"
"""Name under which the suite's tests attach what they found; it travels with the reports of distributed runs."""


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("ggplug", "conformance of ggplug devices")
    group.addoption(
        "--ggplug-device",
        metavar="NAME",
        default=None,
        help="the device that BackendSuite tests, where the test class names none",
    )


def pytest_configure(config: Any) -> None:
    config.pluginmanager.register(Verdicts(), "ggplug-verdicts")


class Verdicts:
    """Collects what the tests of one session found, and prints it."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        for name, value in report.user_properties if report.when == "call" else ():
            if name == PROPERTY:
                self.found.append(json.loads(value))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.found:
            return
        from ggplug.testing.report import Report

        for device in dict.fromkeys(each["device"] for each in self.found):
            report = Report.merge(device, [each for each in self.found if each["device"] == device])
            terminalreporter.section(f"ggplug conformance of {device}")
            for line in report.table().splitlines():
                terminalreporter.write_line(line)
