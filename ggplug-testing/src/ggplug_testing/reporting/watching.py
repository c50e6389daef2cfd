"""Following a run of the suite case by case: choosing cases, and reporting what is running now."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ggplug_testing.reporting.report import Finding


class Watch:
    """Is called before every case and after it; the base class wants all cases and does nothing.

    ``subject``: the op's name, ``"contract"``, ``"graph"`` or ``"groups"``; ``case``: the case's label.
    """

    def wants(self, subject: str, case: str) -> bool:
        """Whether the case shall run."""
        return True

    def begins(self, subject: str, case: str) -> None:
        """The case runs next."""

    def ended(self, finding: Finding) -> None:
        """The case that began last is done."""

    def enough(self) -> bool:
        """Whether no further case needs to run; called after each case."""
        return False


EVERYTHING = Watch()
"""Wants every case, and reports none."""


class Following(Watch):
    """Passes on to another watch, and keeps what has ended.

    ``findings``: of the cases that have ended since :meth:`forget`.  ``started``: called with subject and case when one
    begins.  ``clock``: seconds from whenever.
    """

    def __init__(
        self,
        watch: Watch,
        started: Callable[[str, str], object] = lambda subject, case: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watch = watch
        self._started = started
        self._clock = clock
        self.findings: list[Finding] = []
        self._current = ""
        self._began = 0.0

    @property
    def where(self) -> str:
        """The subject and the case that has begun and not ended, and since when, in words; or an empty string."""
        if not self._current:
            return ""
        return f"{self._current}, which had been running for {self._clock() - self._began:,.1f} s"

    def forget(self) -> None:
        """Begins anew, without findings."""
        self.findings = []
        self._current = ""

    def wants(self, subject: str, case: str) -> bool:
        return self._watch.wants(subject, case)

    def begins(self, subject: str, case: str) -> None:
        self._current, self._began = f"{subject}: {case}", self._clock()
        self._watch.begins(subject, case)
        self._started(subject, case)

    def ended(self, finding: Finding) -> None:
        self.findings.append(finding)
        self._current = ""
        self._watch.ended(finding)

    def enough(self) -> bool:
        return self._watch.enough()


class One(Watch):
    """Wants only the cases with this label, which may be that of a variant in the place of a source."""

    def __init__(self, case: str) -> None:
        self._case = case

    def wants(self, subject: str, case: str) -> bool:
        return self._case == case or self._case.startswith(f"{case}{IN_THE_PLACE}")


IN_THE_PLACE = ", in the place of "
"""Between the label of a case and the source whose bytes the result takes over in a variant of it."""
