"""Streams over a queue: order, events, asynchronous errors and draining, on top of one method, ``submit(job)``.

A stream gives its work to the queue as *jobs*.  The queue calls them, on any thread and at any time, but those of one
stream one after the other in the order in which they were submitted.  That is all that a device has to provide::

    class MyStream(QueuedBackend):
        def __init__(self, device):
            super().__init__(device)
            self._executor = ThreadPoolExecutor(1)

        def submit(self, job):
            self._executor.submit(job)

        def close(self):
            self._executor.shutdown()

What a job raises stays with its stream, until ``synchronize`` raises it, once.  A job that has to wait for one of
another stream waits on the queue's thread; a queue that cannot wait checks :attr:`Job.ready` first.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import numpy as np

from ggplug.backend import (
    UNGROUPED,
    Backend,
    Buffer,
    Bytes,
    Capabilities,
    Device,
    Event,
    Groups,
    Plan,
    beyond_limit,
    check_target,
)
from ggplug.discrete.memory import DiscreteBuffer
from ggplug.discrete.plan import QueuedPlan, Running
from ggplug.errors import BufferUseError, ComputeError, DeviceLostError, GGPlugError, in_one_line
from ggplug.graph import Graph
from ggplug.host import HOST
from ggplug.sharing import using
from ggplug.tensor import Tensor
from ggplug.values.arrays import as_bytes

_LOOK_AGAIN = 0.001
"""Seconds after which a thread that waits under a time limit looks again."""


class Batch:
    """Jobs that belong together: when one fails, the rest is dropped."""

    failed = False


class Job:
    """A piece of work of a stream, for the queue to call.

    ``stream``: whose it is.  ``done``: whether it was called and has ended, however that was.  A queue that breaks off
    before it calls a job calls it again; it may call one again that is done, too.
    """

    __slots__ = ("_after", "_batch", "_ended", "_run", "done", "stream")

    def __init__(self, stream: QueuedBackend, run: Callable[[], None], batch: Batch | None, after: Job | None) -> None:
        self.stream = stream
        self.done = False
        self._run = run
        self._batch = batch or Batch()
        self._after = after
        self._ended = threading.Lock()
        """Held until the job is done."""
        self._ended.acquire()

    @property
    def ready(self) -> bool:
        """Whether calling it would not have to wait for another stream."""
        after = self._after
        return after is None or after.done

    def __call__(self) -> None:
        """Does the work, and keeps its error for the stream.  Raises only an interrupt of the thread that does it."""
        if self.done:
            return
        try:
            # What the work refers to is released with it; events may refer to the job itself for longer.
            run, self._run = self._run, _taken
            after, self._after = self._after, None
            if after is not None:
                after.wait()
            if not self._batch.failed:
                run()
        except Exception as error:
            self._batch.failed = True
            self.stream.failed(error)
        except BaseException as interrupt:
            self._batch.failed = True
            self.stream.failed(ComputeError(f"{self.stream.device.name}: work was interrupted: {interrupt!r}"))
            raise
        finally:
            # No call before the job is done and those that wait go on: see ggplug.sharing.
            self.done = True
            self._ended.release()
            self.stream.passed(self)

    def wait(self) -> None:
        """Waits until it is done.  Raises what :meth:`QueuedBackend.wait_for` raises."""
        if not self.done:
            self.stream.wait_for(self)


class QueuedBackend(Backend, ABC):
    """A stream over a queue.  Subclasses provide :meth:`submit`; the memory is :class:`DiscreteBuffer`.

    Its plans are :class:`~ggplug.discrete.QueuedPlan`, unless it overrides :meth:`plan`.
    """

    device: DiscreteDevice

    def __init__(self, device: DiscreteDevice) -> None:
        super().__init__(device)
        self.last: Job | None = None
        """The job submitted last."""
        self.running: Running | None = None
        """The kernel that the queue calls now; None while it does other work."""
        self._job_error: GGPlugError | None = None
        self._error_lock = threading.Lock()
        self._process = os.getpid()
        device.joined(self)

    # Required

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Takes a job, to be called later, after those that this stream submitted before.  May call it now."""

    # Optional

    def close(self) -> None:
        """Ends the queue, when the stream was freed and everything submitted to it is done (default: nothing)."""

    def can_wait_for(self, other: Backend) -> bool:
        """Whether jobs of this stream may wait for those of another one (default: for those of any queue).

        Where it may not, the host waits.
        """
        return isinstance(other, QueuedBackend)

    def advance(self, job: Job) -> None:
        """Called before the host waits for a job (default: nothing, because the queue executes jobs by itself).

        A queue without a thread of its own calls jobs here until that one is done.
        """

    # Provided

    def give(self, run: Callable[[], None], *, batch: Batch | None = None, after: Job | None = None) -> Job:
        """Submits ``run()``, to be called after the job ``after`` of another stream, unless ``batch`` has failed."""
        before, job = self.last, Job(self, run, batch, after)
        self.last = job
        try:
            self.submit(job)
        except BaseException:
            # The queue may have the job already.
            begun, job._run = job._run is _taken, _taken
            if not begun:
                self.last = before
            raise
        return job

    def drain(self) -> None:
        """Waits until everything submitted so far is done.  Errors stay."""
        last = self.last
        if last is not None:
            last.wait()

    def synchronize(self) -> None:
        self.drain()
        with self._error_lock:
            error, self._job_error = self._job_error, None
        if error is not None:
            raise error

    def failed(self, error: Exception) -> None:
        """Keeps what a job raised, if it is the first since the stream was synchronized."""
        if not isinstance(error, GGPlugError):
            typed = ComputeError(f"{self.device.name} failed: {in_one_line(error)}", device=self.device)
            typed.__cause__ = error
            error = typed
        with self._error_lock:
            self._job_error = self._job_error or error

    def _check_open(self) -> None:
        super()._check_open()
        self._check_process()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise DeviceLostError(
                f"this stream of {self.device.name} stays with the process that this one was forked from",
                device=self.device,
                remedy="make a new stream with device.init() in this process",
            )

    def passed(self, job: Job) -> None:
        """Called when a job of this stream is done, on the thread that did it (default: nothing)."""

    def wait_for(self, job: Job) -> None:
        """Waits for a job of this stream.  Raises DeviceLostError in a process that was forked from the stream's."""
        self.advance(job)
        self._check_process()
        while (limit := self.time_limit) is not None and not job.done:
            running = self.running
            if running is not None and time.monotonic() - running.start > limit:
                raise beyond_limit(self.device, limit, running.node, running.kernel, goes_on=True)
            time.sleep(_LOOK_AGAIN)  # a lock would stay locked after an interrupt between taking and releasing it
        with job._ended:  # another thread does it
            pass

    def set_async(self, buffer: Buffer, offset: int, data: Any) -> None:
        own, raw = self.own(buffer), as_bytes(data)
        with using((own,)):
            start, _ = own.check_write(offset, raw.size)
            self.give(lambda: own.store(start, raw))

    def get_async(self, buffer: Buffer, offset: int, out: Bytes) -> None:
        own, target = self.own(buffer), check_target(out)
        with using((own,)):
            start, _ = own.check_read(offset, target.size)
            self.give(lambda: own.fetch(start, target))

    def copy_async(
        self,
        source: Buffer,
        source_offset: int,
        target: Buffer,
        target_offset: int,
        size: int,
        source_stream: Backend | None = None,
    ) -> None:
        own = self.own(target)
        after = None
        if source_stream is not None and source_stream is not self:
            if isinstance(source_stream, QueuedBackend) and self.can_wait_for(source_stream):
                after = source_stream.last
            else:
                source_stream.synchronize()
        if not isinstance(source, DiscreteBuffer):
            # Read here: a job that claims memory would wait for whoever holds it and waits for the job, as would two
            # threads that share it below.
            start, count = source.check_read(source_offset, size)
            staging = np.empty(count, np.uint8)
            source.get(start, staging)
            source, source_offset, size = HOST.wrap(staging), 0, count
        with using((own, source)):
            start, count = source.check_read(source_offset, size)
            to, _ = own.check_write(target_offset, count)
            foreign = source if isinstance(source, DiscreteBuffer) and source.device is not self.device else None
            if foreign is not None:
                foreign._read_from(self)  # before the queue has the job, because an interrupt may come between
            job = self.give(lambda: own.copy(source, start, to, count), after=after)
            if foreign is not None:
                foreign._read_from(self, job)

    def own(self, buffer: Buffer) -> DiscreteBuffer:
        """The buffer, if it is memory of this device.  Raises BufferUseError; FreedError if the stream was freed."""
        self._check_open()
        if not isinstance(buffer, DiscreteBuffer) or buffer.device is not self.device:
            raise BufferUseError(
                f"{buffer!r} is no memory of {self.device.name}",
                device=self.device,
                got=buffer,
                remedy="copy it over first",
            )
        return buffer

    def plan(self, graph: Graph, groups: Groups = UNGROUPED) -> Plan:
        return QueuedPlan(self, graph, groups)

    def free(self) -> None:
        if not self.freed:
            try:
                super().free()
            finally:
                if self.freed:
                    self.close()


class QueuedEvent(Event):
    """A mark in a queue: the job that was submitted last when it was recorded."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.job: Job | None = None

    def record(self, stream: Backend) -> None:
        if isinstance(stream, QueuedBackend):
            self.job = stream.last
        else:
            super().record(stream)

    def wait(self, stream: Backend) -> None:
        job = self.job
        if job is None or job.done:
            return
        if isinstance(stream, QueuedBackend) and stream.can_wait_for(job.stream):
            if stream is not job.stream:
                stream.give(_nothing, after=job)
        else:
            job.wait()

    def synchronize(self) -> None:
        if self.job is not None:
            self.job.wait()

    def free(self) -> None:
        self.job = None


class DiscreteDevice(Device):
    """A device with memory and queues of its own, and a table of ``kernels``.

    In addition to what every device needs, a subclass has :meth:`init`, which returns a new :class:`QueuedBackend`, and
    a buffer type whose buffers are :class:`DiscreteBuffer`.  If it has an ``__init__``, that calls this one.
    """

    capabilities = Capabilities(asynchronous=True, events=True)

    def __init__(self) -> None:
        self._queued: WeakSet[QueuedBackend] = WeakSet()
        self._queued_lock = threading.Lock()

    def operand(self, tensor: Tensor, buffer: DiscreteBuffer, offset: int) -> Any:
        """A kernel's argument for a tensor, which lies at byte ``offset`` of a buffer.

        ``offset`` is that of the tensor itself, a view's too.  Made when a plan is bound, and used until it is bound to
        other memory; so it shows the memory, not a copy of it.  Default: the three.
        """
        return tensor, buffer, offset

    def event(self) -> Event:
        return QueuedEvent(self)

    def drain(self) -> None:
        """Waits for everything submitted to any stream so far; errors stay with the streams in which they happened."""
        with self._queued_lock:
            streams = list(self._queued)
        for stream in streams:
            stream.drain()

    def joined(self, stream: QueuedBackend) -> None:
        """Called by a new stream of this device."""
        with self._queued_lock:
            self._queued.add(stream)


def _nothing() -> None:
    """Does nothing: the work of a job that only waits."""


def _taken() -> None:
    """Does nothing: replaces the work of a job that has begun or was withdrawn."""
