"""The work queue of the fake device: when, in which order and on which thread it executes submitted work.

Only what the contract leaves open varies.  Work of one stream keeps its order and waits for its
events; work of different streams may run in any order.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ggplug.discrete import Job
from ggplug.errors import ComputeError, ParameterError

Order = Literal["given", "shuffled"]
Outcome = Literal["ran", "stuck", "nothing left"]


class Task(NamedTuple):
    """A job of a stream; ``serial`` numbers all work of the device."""

    serial: int
    job: Job


@dataclass(eq=False)
class Lane:
    """The pending work of one stream."""

    name: str
    tasks: deque[Task] = field(default_factory=deque)

    def runnable(self) -> bool:
        return bool(self.tasks) and self.tasks[0].job.ready


class WorkQueue:
    """Pending work of all streams of a device.

    ``order``: ``"given"`` runs a waited-for stream first and otherwise the oldest work; ``"shuffled"`` picks the next
    stream at random (seeded) among all that may go on.  ``threaded``: work runs on a thread of its own, one piece at
    a time, each time that the queue is stepped; so its order is the same in every run.
    """

    def __init__(self, order: Order = "given", *, seed: int = 0, threaded: bool = False) -> None:
        if order not in ("given", "shuffled"):
            raise ParameterError(f"order must be 'given' or 'shuffled', got {order!r}", got=order)
        self.lanes: list[Lane] = []
        self._order = order
        self._random = random.Random(seed)
        self._serial = 0
        self._lock = threading.RLock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fake-device") if threaded else None

    def lane(self, name: str) -> Lane:
        """Adds the queue of a new stream."""
        made = Lane(name)
        with self._lock:
            self.lanes.append(made)
        return made

    def submit(self, lane: Lane, job: Job) -> None:
        """Submits a job to a stream."""
        with self._lock:
            self._serial += 1
            lane.tasks.append(Task(self._serial, job))

    def step(self, count: int = 1) -> int:
        """Executes up to ``count`` pieces of work; returns how many there were."""
        for done in range(count):
            if self._run_one(None, self._serial) != "ran":
                return done
        return count

    def drain(self, lane: Lane | None = None) -> None:
        """Executes until everything that was submitted to a stream so far, or with None to every stream, is done.

        Raises ComputeError if streams wait for each other.
        """
        last = self._serial
        while (outcome := self._run_one(lane, last)) != "nothing left":
            if outcome == "stuck":
                raise self._stuck()

    def advance(self, lane: Lane, job: Job) -> None:
        """Executes until a job of a stream is done.  Raises ComputeError if streams wait for each other."""
        last = self._serial
        while not job.done and (outcome := self._run_one(lane, last)) != "nothing left":
            if outcome == "stuck":
                raise self._stuck()

    def _stuck(self) -> ComputeError:
        stuck = ", ".join(each.name for each in self.lanes if each.tasks)
        return ComputeError(f"the streams {stuck} wait for events that no stream will record")

    @property
    def pending(self) -> int:
        """The number of pieces of pending work."""
        return sum(len(lane.tasks) for lane in self.lanes)

    def close(self, lanes: Iterable[Lane] = ()) -> None:
        """Takes streams out of the queue; without any left, ends the thread."""
        with self._lock:
            for lane in lanes:
                if lane in self.lanes:
                    self.lanes.remove(lane)

    def _run_one(self, wanted: Lane | None, last: int) -> Outcome:
        if self._pool is not None and not threading.current_thread().name.startswith("fake-device"):
            return self._pool.submit(self._run_here, wanted, last).result()
        return self._run_here(wanted, last)

    def _run_here(self, wanted: Lane | None, last: int) -> Outcome:
        with self._lock:
            # Other threads may give work all the time: what counts is what was there when the caller began to wait.
            lanes = self.lanes if wanted is None else [wanted]
            if not any(lane.tasks and lane.tasks[0].serial <= last for lane in lanes):
                return "nothing left"
            able = [lane for lane in self.lanes if lane.runnable()]
            if not able:
                return "stuck"
            if self._order == "shuffled":
                lane = self._random.choice(able)
            elif wanted in able:
                lane = wanted
            else:
                lane = min(able, key=lambda each: each.tasks[0].serial)
            job = lane.tasks[0].job
            try:
                job()
            finally:
                # Only now: who looks at the queue must not take work for done while it runs.
                if job.done:
                    lane.tasks.popleft()
            return "ran"
