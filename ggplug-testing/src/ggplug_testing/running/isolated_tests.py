"""Tests of the suite in a worker: a second session of pytest, which runs one test per request."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from ggplug_testing.reporting.report import Finding
from ggplug_testing.reporting.verdicts import FOUND, WATCH, conclude, followed
from ggplug_testing.reporting.watching import EVERYTHING, Watch
from ggplug_testing.running.isolation import Channel, Worker
from ggplug_testing.suite import BackendSuite

_SUBJECTS: dict[str, Callable[[Any], str]] = {
    "test_contract": lambda item: "contract",
    "test_graphs": lambda item: "graph",
    "test_groups": lambda item: "groups",
    "test_op": lambda item: str(item.callspec.params["op_name"]),
}
"""The suite's tests, and what each is about."""


class Isolating:
    """Has the suite's tests run in a worker; all other tests run here."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._worker: Worker | None = None

    def pytest_itemcollected(self, item: Any) -> None:
        if _is_of_suite(item):
            item.setup = lambda: None  # its fixtures are those of the worker's session
            item.runtest = partial(self._run, item)

    def _run(self, item: Any) -> None:
        if self._worker is None:
            paths = dict.fromkeys(str(each.path) for each in item.session.items if _is_of_suite(each))
            work = partial(serve, arguments=_arguments(self._config, list(paths)))
            self._worker = Worker(work, self._config.getoption("--ggplug-timeout"))
        case = self._config.getoption("--ggplug-case")
        with followed(item, self._worker.device or item.cls.__name__, EVERYTHING) as watch:
            findings = self._worker.run(item.nodeid, _SUBJECTS[item.originalname](item), case, watch=watch)
        conclude(item, self._worker.device or item.cls.__name__, findings)

    def pytest_sessionfinish(self) -> None:
        if self._worker is not None:
            self._worker.close()


def _is_of_suite(item: pytest.Item) -> bool:
    cls = getattr(item, "cls", None)
    return isinstance(cls, type) and issubclass(cls, BackendSuite) and getattr(item, "originalname", "") in _SUBJECTS


def _arguments(config: pytest.Config, paths: Sequence[str]) -> list[str]:
    """With what a session collects the same tests."""
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", f"--rootdir={config.rootpath}", *paths]
    if config.inipath is not None:
        arguments += ["-c", str(config.inipath)]
    named = config.getoption("--ggplug-device")
    if named is not None:
        arguments += ["--ggplug-device", named]
    if config.pluginmanager.hasplugin("xdist"):
        arguments.append("-n0")
    return arguments


def serve(channel: Channel, arguments: Sequence[str]) -> None:
    """Runs in a worker."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        sys.stdout = nowhere
        pytest.main([*arguments], plugins=[_Serving(channel)])


class _Serving:
    """A session that runs the tests that are requested."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}

        def run(unit: str, watch: Watch) -> tuple[str, list[Finding]]:
            item = items[unit]
            item.config.stash[WATCH] = watch
            reports = runtestprotocol(item, log=False, nextitem=None)
            if FOUND in item.stash:
                return item.stash[FOUND]
            # The test could not begin: a fixture failed, or there is no device.
            for report in reports:
                if not report.passed:
                    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
                    verdict: Any = "declined" if report.skipped else "raised"
                    return "", [Finding(_SUBJECTS[item.originalname](item), "", verdict, reason)]  # type: ignore[attr-defined]
            return "", []

        self._channel.serve(run)
        return True
