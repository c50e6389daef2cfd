"""Runs the suite in a worker process, so that a crash or a hang fails one case and the others go on.

The worker reports before each case which one begins.  When it dies, or says nothing for too long, the case that it was
at is charged with it; a new worker takes the cases that are left.  What ``faulthandler`` writes at the end names the
line at which the process was.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ggplug_testing.reporting.causes import of_dump
from ggplug_testing.reporting.report import Finding, Verdict
from ggplug_testing.reporting.watching import EVERYTHING, One, Watch

Run = Callable[[str, Watch], tuple[str, list[Finding]]]
"""``(unit, watch) -> (the device's name, findings)``: what a worker does when a unit is requested."""


class Channel:
    """A worker's end: it receives names of units, and reports case by case."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def serve(self, run: Run) -> None:
        """Runs what is requested until the other end is gone."""
        self._connection.send(("ready", None))
        while True:
            try:
                unit, case, done = self._connection.recv()
            except EOFError:
                return
            watch = _Reporting(self._connection, case, done)
            # The watch has sent these to the other end already.
            device, findings = run(unit, watch)
            rest = [finding for finding in findings if finding.case not in watch.sent]
            self._connection.send(("done", (device, rest)))


class _Reporting(Watch):
    """Reports every case to the other end; leaves out those that are done there."""

    def __init__(self, connection: Any, case: str | None, done: Collection[str]) -> None:
        self._connection = connection
        self._chosen = Watch() if case is None else One(case)
        self._done = done
        self.sent: set[str] = set()

    def wants(self, subject: str, case: str) -> bool:
        return self._chosen.wants(subject, case) and case not in self._done

    def begins(self, subject: str, case: str) -> None:
        self._connection.send(("begins", case))

    def ended(self, finding: Finding) -> None:
        self.sent.add(finding.case)
        self._connection.send(("ended", finding))


class Worker:
    """Runs units in a process of its own, and starts another one when that dies.

    ``target``: what the process does with its :class:`Channel`; it has to be importable, as for ``multiprocessing``.
    ``timeout``: seconds without a word after which a case hangs.
    """

    TIMEOUT = 300.0
    """Seconds that a case may take if nothing else is said, and that a worker has to begin."""

    def __init__(self, target: Callable[[Channel], None], timeout: float = TIMEOUT) -> None:
        self.device = ""
        """The device's name, as soon as a unit is done."""
        self._target = target
        self._timeout = timeout
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._connection: Connection | None = None
        self._ready = False
        self._folder = tempfile.TemporaryDirectory(prefix="ggplug-worker-")
        self._dump = Path(self._folder.name) / "dump"

    def run(
        self,
        unit: str,
        subject: str,
        case: str | None = None,
        *,
        again: bool = True,
        watch: Watch = EVERYTHING,
        done: Collection[str] = (),
        until: float = math.inf,
    ) -> list[Finding]:
        """All findings of a unit; ``case``: only the cases with this label.  Never raises for what the device does.

        ``again``: after a crash or a hang, a new process takes the cases that are left.  ``watch`` is called
        here, and chooses no cases.  ``done``: cases that are left out.  ``until``: of ``time.monotonic``, when the
        process is ended.  A KeyboardInterrupt here ends it, too.
        """
        findings: list[Finding] = []
        begun = [*done]
        while True:
            connection = self._connected()
            current = None
            repeated = False
            verdict: Verdict
            try:
                connection.send((unit, case, begun))
                while True:
                    patience = min(self._timeout if self._ready else self.TIMEOUT, max(0.0, until - time.monotonic()))
                    if not connection.poll(patience) or time.monotonic() > until:
                        verdict = "hung"
                        break
                    what, content = connection.recv()
                    self._ready = True
                    if what == "ready":
                        continue
                    if what == "begins":
                        current = content
                        repeated = content in begun
                        begun.append(content)
                        watch.begins(subject, content)
                    elif what == "ended":
                        findings.append(content)
                        current = None
                        watch.ended(findings[-1])
                    else:
                        self.device = content[0]
                        return [*findings, *content[1]]
            except (EOFError, OSError):
                verdict = "crashed"
            except KeyboardInterrupt:
                self.kill()
                raise
            reason, dump = self._ended(verdict)
            over = verdict == "hung" and time.monotonic() > until
            reason = "the time was over" if over else reason
            if current is None:
                reason += f", {f'after {begun[-1]!r}' if begun else 'before the first case'} of {unit}"
            where = of_dump(dump)
            findings.append(
                Finding(subject, current or "", verdict, reason, float("inf"), where=where, cause=f"{verdict} {where}")
            )
            watch.ended(findings[-1])
            if current is None or repeated or over or not again:
                return findings

    def _connected(self) -> Connection:
        if self._connection is None:
            ours, theirs = self._context.Pipe()
            self._process = self._context.Process(
                target=_work, args=(self._target, theirs, str(self._dump)), daemon=True
            )
            self._process.start()
            theirs.close()
            self._connection = ours
            self._ready = False
        return self._connection

    def _ended(self, verdict: Verdict) -> tuple[str, str]:
        """Ends the process, if it did not; why that was, and what it dumped."""
        assert self._connection is not None
        if verdict == "hung":
            self._abort()
        self._process.join(30)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        code = self._process.exitcode
        self._connection.close()
        self._connection = None
        dump = self._dump.read_text(encoding="utf-8", errors="replace") if self._dump.exists() else ""
        if verdict == "hung":
            return f"nothing happened for {self._timeout:g} seconds", dump
        died = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"the process ended {died}", dump

    def _abort(self) -> None:
        """Makes the process write where its threads are, and end."""
        if sys.platform == "win32":
            self._process.terminate()
        else:
            os.kill(self._process.pid, signal.SIGABRT)

    def kill(self) -> None:
        """Ends the process at once; a unit that another thread runs in it crashes."""
        if self._connection is not None:
            self._process.kill()

    def close(self) -> None:
        """Ends the process."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._process.join(30)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
        self._folder.cleanup()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _work(target: Callable[[Channel], None], connection: Connection, dump: str) -> None:
    # A terminal sends Ctrl-C to all processes; the one at the other end ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(dump, "w", encoding="utf-8") as file:
        faulthandler.enable(file)
        with contextlib.suppress(BrokenPipeError):
            target(Channel(connection))
        faulthandler.disable()
