"""Several computations under way at the same time, so that devices which compute one after the other all have work.

A computation whose first half is on device A and whose second half is on B leaves A idle while B computes.  In a
pipeline the next computation is then on A.  Each that is under way has a scheduler of its own on the same devices, with
streams and memory of its own, and a thread that waits for it: so devices need not be asynchronous.  Where computations
write the same memory, such as a KV cache, they keep their order (:mod:`.under_way`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ggplug.errors import ParameterError
from ggplug.scheduler.scheduler import Scheduler
from ggplug.scheduler.under_way import Computation, UnderWay
from ggplug.system.copying import Uncopied

Job = Callable[[int], Callable[[], None]]
"""``job(number)`` prepares the computation of a graph by the scheduler with this number; what it returns computes it
once, and waits."""


class Pipeline(Uncopied):
    """Schedulers for several computations at a time: ``first``, and others like it, which are made when they are
    needed.

    :meth:`free` frees all but ``first``.
    """

    _INSTEAD = "make another one"

    def __init__(self, first: Scheduler) -> None:
        self.schedulers = [first]

    def compute(self, jobs: Sequence[Job], n_copies: int) -> None:
        """Computes jobs, ``n_copies`` at a time: number ``i`` by the scheduler with the number ``i % n_copies``.

        Jobs are prepared in their order, one at a time, while earlier ones compute.  The calling thread does those of
        the first scheduler, other threads those of the others.

        If a job fails, no more are prepared; those that are under way are waited for, and then the error of the first
        job that failed is raised.  If this thread is interrupted, no more splits are begun.

        All computations have the time limits and abort callbacks of the streams of ``first``.  While that has an eval
        callback, it alone computes, one job after the other.

        Raises ParameterError for less than one at a time, what making a stream raises, and the errors of jobs.
        """
        if n_copies < 1:
            raise ParameterError(f"n_copies must be at least 1, got {n_copies}", got=n_copies, wanted=1)
        first = self.schedulers[0]
        count = 1 if first._callback is not None else min(n_copies, max(1, len(jobs)))
        while len(self.schedulers) < count:
            self.schedulers.append(first.another())
        schedulers = self.schedulers[:count]
        for scheduler in schedulers[1:]:
            for stream, like in zip(scheduler.backends, first.backends, strict=True):
                stream.set_limits_of(like)
        running = _Running(jobs, schedulers)
        threads = [
            threading.Thread(target=running.work, args=(number,), name=f"ggplug-pipeline-{number}", daemon=True)
            for number in range(1, len(schedulers))
        ]
        started: list[threading.Thread] = []
        interrupt: BaseException | None = None
        try:
            for thread in threads:
                started.append(thread)
                thread.start()
            running.work(0)
        except BaseException as error:
            interrupt = error
            running.stop()
        for thread in started:
            while thread.is_alive():
                try:
                    thread.join()
                except BaseException as error:
                    interrupt = error
                    running.stop()
        failures = [running.failures[number] for number in sorted(running.failures)]
        running.failures.clear()  # an error whose frames refer to it would be kept with them
        try:
            if interrupt is not None:
                raise interrupt
            if failures:
                raise next((error for error in failures if not isinstance(error, Exception)), failures[0])
        finally:
            del failures, interrupt

    def free(self) -> None:
        """Frees all schedulers but the first one.  Raises as :meth:`.Scheduler.free`."""
        while len(self.schedulers) > 1:
            self.schedulers[-1].free()
            self.schedulers.pop()


class _Running:
    """Jobs that are being computed.  ``failures``: the errors, by the job's number."""

    def __init__(self, jobs: Sequence[Job], schedulers: Sequence[Scheduler]) -> None:
        self._jobs = jobs
        self._schedulers = schedulers
        self._under_way = UnderWay()
        self._changed = threading.Condition()
        self._prepared = 0
        """How many jobs were prepared."""
        self._ends = False
        """Whether no more jobs are prepared."""
        self.failures: dict[int, BaseException] = {}

    def work(self, which: int) -> None:
        """Does the jobs of a scheduler; errors are kept in ``failures``."""
        for number in range(which, len(self._jobs), len(self._schedulers)):
            computation: Computation | None = None
            try:
                with self._changed:
                    self._changed.wait_for(lambda number=number: self._ends or self._prepared == number)  # type: ignore[misc]
                if self._ends:
                    return
                computation = self._under_way.add() if len(self._schedulers) > 1 else None
                compute = self._jobs[number](which)
                with self._changed:
                    self._prepared += 1
                    self._changed.notify_all()
                self._schedulers[which].computation = computation
                compute()
            except BaseException as error:
                self.failures[number] = error
                self._end()
                if not isinstance(error, Exception):
                    self._under_way.stop()
            finally:
                self._schedulers[which].computation = None
                if computation is not None:
                    computation.end()

    def stop(self) -> None:
        """Prepares no more jobs, and begins no more splits."""
        self._end()
        self._under_way.stop()

    def _end(self) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify_all()
