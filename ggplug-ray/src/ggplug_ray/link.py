"""The client's end of a device's process: messages, and the detection that the process is gone.

Ray reports processes that ended, but not ones that stopped, nor machines that cannot be reached any more.  So a thread
of the client asks each process every second whether it runs (:class:`Watch`); a process that does not answer for
:data:`SILENCE` seconds counts as lost, and every call that waits for it raises DeviceLostError.  No call waits in Ray
for longer than :data:`LOOK` seconds, so that the interpreter's exit is never blocked.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any
from weakref import WeakSet

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, ObjectStoreFullError, RayError, RayTaskError

from ggplug.backend import Device
from ggplug.errors import ComputeError, OutOfMemoryError, in_one_line
from ggplug.tensor import Tensor
from ggplug_ray.faults import decode, lost
from ggplug_ray.host import FAILED, PART, Range, Stored, Stores

LOOK = 0.2
"""Seconds after which a call that waits looks whether the device is lost."""

BEAT = 1.0
"""Seconds between two questions whether a process runs."""

SILENCE = 7.0
"""Seconds without an answer after which a process counts as lost."""

OPENING = 60.0
"""Seconds that a process may take to start and to find its device."""

MOST_UNSENT = 4 << 20
"""Bytes that may wait for the next message."""

WITH_ANSWER = 1 << 20
"""Up to so many bytes come with an answer, not through Ray's object store."""

EXITING = "the interpreter exits"


class Expected:
    """The ranges that were read after a computation, whose bytes come with the answer to the next one like it.

    ``buffers``: the numbers of those that the computation accesses; others may be freed before the next one.
    """

    def __init__(self, buffers: Collection[int] = ()) -> None:
        self._buffers = frozenset(buffers)
        self._ranges: dict[Range, bool] = {}
        """For each range whether it was read since."""

    def ranges(self) -> tuple[Range, ...]:
        """The ranges that were read after the last computation; from now on they are expected."""
        self._ranges = {each: False for each, read in self._ranges.items() if read}
        return tuple(self._ranges)

    def read(self, asked: Range) -> None:
        """Notes that a range was read, unless all together would be too large."""
        if asked[0] not in self._buffers:
            return
        if asked in self._ranges or sum(size for _, _, size in self._ranges) + asked[2] <= WITH_ANSWER:
            self._ranges[asked] = True


class Link:
    """One process of a device, as its client sees it.

    ``there``: the device's name on its node.  ``lost``: why the process is gone; None while it runs.  ``actor``: Ray's
    handle.  ``process``: its number on its machine, once it has answered.
    """

    def __init__(self, device: Device, node: str, there: str, actor: Any) -> None:
        self.device, self.node, self.there, self.actor = device, node, there, actor
        self.process = 0
        self.lost: str | None = None
        self.dropped: deque[tuple[str, int]] = deque()
        """What was collected by Python, not freed: finalizers send no messages, the watch does."""
        self._stores: list[Stored] = []
        """Bytes of inputs that go with the next message."""
        self._unsent = 0
        """Their size."""
        self._sent = 0
        """How many of them went with messages."""
        self._sending = threading.Lock()
        self._changes = 0
        """How many messages may have changed bytes."""
        self._unanswered: set[Any] = set()
        """The references of those that were not answered yet."""
        self._expected: Expected | None = None
        """Of the computation that was answered last, as long as nothing has changed since."""
        self._known: dict[Range, Any] = {}
        """The bytes that came with its answer."""
        self._returning: dict[int, Any] = {}
        """Ray's method for messages, by the number of parts that an answer has; it takes a while to make."""
        self.ahead = 0.0
        """Seconds by which the client's clock of traces is ahead of the process's."""

    def call(self, what: str, *given: Any, tensors: Sequence[Tensor] = ()) -> Any:
        """Sends a message and waits for the answer.

        Raises the error of the process, whose tensors are positions in ``tensors``; DeviceLostError.
        """
        return self.answer(self.send(what, *given), tensors=tensors)

    def send(self, what: str, *given: Any, size: int = 0) -> Any:
        """Sends a message; returns Ray's reference to the answer, or several.  Raises DeviceLostError.

        ``size``: of the bytes that the answer consists of; 0: anything else.
        """
        with self.guarded(), self._sending:
            if self._stores and any(isinstance(each, ray.ObjectRef) for each in given):
                # Ray does not deliver a message whose argument could not be computed: nothing may be lost with it.
                self._unanswered.discard(self._deliver("clock"))
            return self._deliver(what, *given, size=size)

    def _deliver(self, what: str, *given: Any, size: int = 0) -> Any:
        sent = self._sent + len(self._stores)
        stores = Stores(self._stores, sent) if sent else None
        if size == 0 or size > WITH_ANSWER:
            answer = first = self.actor.do.remote(what, *given, stores=stores)
        else:
            parts = -(-size // PART)
            if parts not in self._returning:
                self._returning[parts] = self.actor.do.options(num_returns=1 + parts)
            answer = self._returning[parts].remote(what, *given, stores=stores, parts=parts)
            first = answer[0]
        if what != "fetch" or self._stores:
            self._change()
            self._unanswered.add(first)
        self._stores, self._unsent, self._sent = [], 0, sent
        return answer

    def _change(self) -> None:
        self._changes += 1
        self._known, self._expected = {}, None

    def compute(self, expected: Expected, *given: Any, tensors: Sequence[Tensor] = ()) -> None:
        """Sends the message ``compute``, and waits for the answer, with which expected bytes come.

        Raises as :meth:`call`.
        """
        with self.guarded(), self._sending:
            # Bytes that another message changes meanwhile would come as they were before or after that.
            ranges = () if self._unanswered else expected.ranges()
            sent = self._deliver("compute", *given, ranges, size=sum(size for _, _, size in ranges))
            changes = self._changes
        raw = self.answer(sent, tensors=tensors)
        known, start = {}, 0
        for each in ranges:
            known[each] = raw[start : start + each[2]]
            start += each[2]
        with self._sending:
            if self._changes == changes:
                self._known, self._expected = known, expected

    def fetch(self, number: int, offset: int, size: int) -> Any:
        """The bytes of a buffer, which may have come already.  Raises as :meth:`call`."""
        asked = number, offset, size
        with self._sending:
            raw = self._known.get(asked)
            if self._expected is not None:
                self._expected.read(asked)
        return self.answer(self.send("fetch", *asked, size=size)) if raw is None else raw

    def check(self) -> None:
        """Raises DeviceLostError if the process is gone."""
        if not ray.is_initialized():  # a call would start another cluster
            self.lose("this process has left the cluster")
        if self.lost is not None:
            raise lost(self.device, self.node, self.lost)

    def store(self, number: int, offset: int, data: bytes) -> None:
        """Stores a few bytes before whatever is sent next happens, without a message of their own.

        Raises DeviceLostError.
        """
        self.check()
        with self._sending:
            self._change()
            self._stores.append((number, offset, data))
            self._unsent += len(data)
            too_many = self._unsent > MOST_UNSENT
        if too_many:
            self.call("clock")

    def waiting(self, number: int, offset: int, size: int) -> bytes | None:
        """Bytes of a buffer that are not sent yet; None if they are, or if only a part of them waits."""
        with self._sending:
            for there, start, data in reversed(self._stores):
                if there == number and start < offset + size and offset < start + len(data):
                    inside = start <= offset and offset + size <= start + len(data)
                    return data[offset - start : offset - start + size] if inside else None
        return None

    def answer(self, sent: Any, *others: Link, tensors: Sequence[Tensor] = ()) -> Any:
        """The answer to a message.  ``others``: processes that it depends on, too."""
        several = isinstance(sent, list)
        try:
            while True:
                try:
                    with self.guarded(*others):
                        found = ray.get(sent, timeout=LOOK)
                except GetTimeoutError:
                    continue
                (state, value), *parts = found if several else (found,)
                if state == FAILED:
                    raise decode(value, self.device, self.there, tensors)
                return np.frombuffer(b"".join(parts), np.uint8) if several else value
        finally:
            self._unanswered.discard(sent[0] if several else sent)

    @contextlib.contextmanager
    def guarded(self, *others: Link) -> Iterator[None]:
        """A call of Ray, whose errors become those of ggplug."""
        for each in (self, *others):
            each.check()
        with WATCH.inside():
            try:
                yield
            except GetTimeoutError:
                raise
            except ObjectStoreFullError as error:
                what = f"{self.device.name}: Ray's object store is full: {in_one_line(error)}"
                raise OutOfMemoryError(what, device=self.device) from error
            except RayTaskError as error:  # not of the process's code, which returns errors: it could not run
                raise self._failed(error, *others) from error
            except RayError as error:
                self.lose(_reason(error))
                raise lost(self.device, self.node, self.lost or "") from error

    def _failed(self, error: RayTaskError, *others: Link) -> Exception:
        """The error of a message that could not be processed, mostly because the other process is gone."""
        for each in others:
            if each.lost is None and not each.answers():
                each.lose(_reason(error))
            if each.lost is not None:
                return lost(each.device, each.node, each.lost)
        return ComputeError(f"{self.device.name}: {in_one_line(error)}", device=self.device)

    def answers(self) -> bool:
        """Whether the process answers within a second."""
        try:
            ray.get(self.actor.beat.remote(()), timeout=1)
        except RayError:
            return False
        return True

    def lose(self, reason: str) -> None:
        """The process is gone.  What is left of it is killed, so that its memory comes back."""
        if self.lost is None:
            self.lost = reason
            if reason != EXITING and ray.is_initialized():
                with contextlib.suppress(Exception):
                    ray.kill(self.actor, no_restart=True)

    def drop(self, kind: str, number: int) -> None:
        """Has a buffer, a stream or a plan freed soon.  For finalizers: sends nothing now."""
        self.dropped.append((kind, number))

    def flush(self) -> None:
        """Sends what was dropped, and waits until it is freed."""
        while self.dropped:
            with contextlib.suppress(IndexError):
                self.call("drop", *self.dropped.popleft())

    def set_clock(self) -> None:
        """Compares the two clocks, as well as the fastest of some messages allows."""
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            there = self.call("clock")
            end = time.perf_counter()
            if end - start < best:
                best, self.ahead = end - start, (start + end) / 2 - there


def _reason(error: BaseException) -> str:
    """The last line of Ray's message, which says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


class Watch:
    """The thread that asks all processes of devices whether they run, and what happens when the interpreter exits."""

    def __init__(self) -> None:
        self._links: WeakSet[Link] = WeakSet()
        self._lock = threading.Lock()
        self._calls = 0
        self._thread: threading.Thread | None = None

    def add(self, link: Link) -> None:
        """Watches a process from now on."""
        with self._lock:
            self._links.add(link)
            if self._thread is None:
                # Registered after Ray's own function, so it is called before that.
                atexit.register(self._exit)
                self._thread = threading.Thread(target=self._run, name="ggplug-ray-watch", daemon=True)
                self._thread.start()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """A call of Ray: before the interpreter exits, all of them return."""
        with self._lock:
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1

    def _exit(self) -> None:
        for link in list(self._links):
            link.lose(EXITING)
        end = time.monotonic() + 10 * LOOK
        while self._calls and time.monotonic() < end:
            time.sleep(LOOK / 10)

    def _run(self) -> None:
        asked: dict[Link, tuple[float, Any]] = {}
        """When each process was asked, and the reference to its answer."""
        last = time.monotonic()
        while True:
            time.sleep(BEAT / 2)
            now = time.monotonic()
            late, last = now - last > SILENCE / 2, now
            with self._lock:
                links = [link for link in self._links if link.lost is None]
            asked = {link: asked[link] for link in links if link in asked}
            for link in links:
                with self.inside():
                    self._ask(link, asked, now, late)

    def _ask(self, link: Link, asked: dict[Link, tuple[float, Any]], now: float, late: bool) -> None:
        """Looks whether a process has answered, and asks again.  ``late``: this process itself did not run."""
        since, reference = asked.get(link, (now, None))
        if not ray.is_initialized():
            link.lose("this process has left the cluster")
            return
        try:
            if reference is not None:
                if not ray.wait([reference], timeout=0)[0]:
                    if late:
                        asked[link] = now, reference
                    elif now - since > SILENCE:
                        link.lose(f"its process {link.process} has not answered for {now - since:.0f} s")
                    return
                ray.get(reference, timeout=LOOK)
            if reference is None or now - since >= BEAT:
                dropped = [link.dropped.popleft() for _ in range(len(link.dropped))]
                asked[link] = now, link.actor.beat.options(concurrency_group="beat").remote(dropped)
        except GetTimeoutError:
            return
        except RayError as error:
            link.lose(_reason(error))
        except Exception as error:
            link.lose(in_one_line(error))


WATCH = Watch()
