"""Verdicts in a session of pytest: how a test ends by what it found, and what is shown of all at the end."""

from __future__ import annotations

import json
import shlex
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ggplug_testing.reporting.watching import Following, Watch
from ggplug_testing.running.stopping import in_words, stoppable

if TYPE_CHECKING:
    from ggplug_testing.reporting.report import Finding, Report

PROPERTY = "ggplug_conformance"
"""Name under which the suite's tests attach what they found; it travels with the reports of distributed runs."""

WATCH = pytest.StashKey[Watch]()
"""In a configuration: what follows the cases."""

FOUND = pytest.StashKey["tuple[str, list[Finding]]"]()
"""In a test: the device's name, and what was found."""


STOPPED = pytest.StashKey["tuple[Report, str]"]()
"""In a configuration: what the test found that was stopped, and where it was."""


@contextmanager
def followed(test: pytest.Item, device: str, watch: Watch) -> Iterator[Watch]:
    """A watch for the cases of a test, which passes them on to ``watch``.

    What was found until a KeyboardInterrupt is shown at the end; inside of the block other signals that ask for the
    end do as SIGINT does.
    """
    following = Following(watch)
    try:
        with stoppable():
            yield following
    except KeyboardInterrupt as stop:
        report, where = _report(test, device, following.findings), following.where or test.name
        report.stopped = in_words(stop, where)
        test.config.stash[STOPPED] = report, where
        raise


def conclude(test: pytest.Item, device: str, findings: Sequence[Finding]) -> None:
    """Fails a test if a finding is bad, skips it if none passed; attaches the findings, to be shown at the end."""
    from ggplug_testing.reporting.rendering import failures

    report = _report(test, device, findings)
    test.user_properties.append((PROPERTY, report.to_json()))
    if report.bad:
        pytest.fail("\n".join(failures(report)), pytrace=False)
    if not report.counts()["passed"]:
        pytest.skip("; ".join(dict.fromkeys(f.reason for f in findings)) or "no case of this test was chosen")


def _report(test: pytest.Item, device: str, findings: Sequence[Finding]) -> Report:
    from ggplug_testing.reporting.report import Report

    return Report(device, [f._replace(command=_command(test, f)) if f.bad else f for f in findings])


def _command(test: pytest.Item, finding: Finding) -> str:
    """The command that runs one case in the folder where pytest was started."""
    start, (_, *names) = test.config.invocation_params.dir, test.nodeid.split("::")
    file = test.path.relative_to(start) if test.path.is_relative_to(start) else test.path
    named = test.config.getoption("--ggplug-device")
    device = [] if named is None else ["--ggplug-device", named]
    case = [] if finding.subject == "contract" else ["--ggplug-case", finding.case]
    return shlex.join(["pytest", "::".join((file.as_posix(), *names)), *device, *case])


class Verdicts:
    """Collects what the tests of one session found, shows it at the end, and writes the reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._found: list[dict[str, Any]] = []
        self._tests: dict[str, str] = {}
        """The names of all tests that have not begun, by id; nothing where other processes run them."""
        self._count = 0
        self._ending = ExitStack()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._tests = {item.nodeid: item.name for item in session.items}
        self._count = len(self._tests)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tests.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            attached = _attached(report)
            if attached and not self._found:
                self._ending.enter_context(stoppable())
            self._found.extend(map(json.loads, attached))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        stop, stopped = excinfo.value, self._config.stash.get(STOPPED, None)
        if not isinstance(stop, KeyboardInterrupt):
            return
        if stopped is not None:
            report, where = stopped
            report.stopped = in_words(stop, where, self._left())
            self._found.append(json.loads(report.to_json()))
        elif self._found:
            self._found[-1]["stopped"] = in_words(stop, "", self._left())

    def _left(self) -> str:
        """How many tests had not begun, and which was the next."""
        if not self._tests:
            return ""
        first = next(iter(self._tests.values()))
        return f"{len(self._tests)} of {self._count} tests had not begun, {first} the first of them"

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        self._ending.close()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None, None, None]:
        """Shows failures of the suite by cause and not by test: one mistake fails many tests."""
        if self._found:
            self._show(terminalreporter)
        stats = terminalreporter.stats
        failed = stats.get("failed", [])
        stats["failed"] = [each for each in failed if not _attached(each)]
        try:
            return (yield)
        finally:
            stats["failed"] = failed
            if not failed:
                del stats["failed"]

    def _show(self, terminal: Any) -> None:
        from ggplug_testing.reporting.rendering import markdown, text

        reports = self._reports()
        for report in reports:
            terminal.section(f"ggplug conformance of {report.device}")
            for line in text(report, verbose=self._config.get_verbosity() > 0).splitlines():
                terminal.write_line(line)
        for option, written in (
            ("--ggplug-json", json.dumps([report.as_dict() for report in reports], indent=1)),
            ("--ggplug-markdown", "\n".join(map(markdown, reports))),
        ):
            path = self._config.getoption(option)
            if path is not None:
                Path(path).write_text(written, encoding="utf-8")

    def _reports(self) -> list[Report]:
        from ggplug_testing.reporting.report import Report

        names = dict.fromkeys(each["device"] for each in self._found)
        return [Report.merge(name, [each for each in self._found if each["device"] == name]) for name in names]


def _attached(report: Any) -> list[str]:
    """What a test's report has attached."""
    return [value for name, value in getattr(report, "user_properties", ()) if name == PROPERTY]
