"""The pytest plugin (entry point ``pytest11``): the suite's options, and what it found at the end.

pytest imports this at every start, so it imports nothing that is not needed yet.
"""

from __future__ import annotations

from typing import Any


def _seconds(text: str) -> float:
    from ggplug.system.durations import seconds

    return seconds(text)


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("ggplug", "conformance of ggplug devices")
    group.addoption(
        "--ggplug-device",
        metavar="NAME",
        default=None,
        help="the device that BackendSuite tests, where the test class names none",
    )
    group.addoption(
        "--ggplug-case", metavar="LABEL", default=None, help="of the chosen tests only the cases with this label"
    )
    group.addoption(
        "--ggplug-isolate",
        action="store_true",
        help="run the cases of BackendSuite in a worker process, so that a crash or a hang fails one case",
    )
    group.addoption(
        "--ggplug-timeout",
        type=_seconds,
        default=300.0,
        metavar="SECONDS",
        help="after how long a case of a worker hangs (default: %(default)g)",
    )
    group.addoption("--ggplug-json", metavar="FILE", default=None, help="write what BackendSuite found as JSON")
    group.addoption("--ggplug-markdown", metavar="FILE", default=None, help="write what BackendSuite found as a page")


def pytest_configure(config: Any) -> None:
    from ggplug_testing.reporting.verdicts import Verdicts

    config.pluginmanager.register(Verdicts(config), "ggplug-verdicts")
    if config.getoption("--ggplug-isolate"):
        from ggplug_testing.running.isolated_tests import Isolating

        config.pluginmanager.register(Isolating(config), "ggplug-isolating")
