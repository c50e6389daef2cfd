"""The guard of a driver: opens it when it is first needed, and converts its exceptions to typed errors."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from ggplug.backend import Device
from ggplug.errors import (
    ComputeError,
    DeviceLostError,
    GGPlugError,
    KernelCompileError,
    OutOfMemoryError,
    in_one_line,
)
from ggplug.ops.base import Op
from ggplug.sharing import present_while
from ggplug_simt.driver import ANY_THREAD, Driver, Failure

_GUARDS: weakref.WeakSet[Guard] = weakref.WeakSet()


class Guard:
    """The driver of one device; every call of the vendor's library is a :class:`Call`.

    ``device`` is named in errors.  ``open_driver`` makes the driver; it is called again after it failed.  A process
    that is forked after the guard was made cannot use the device: vendors' libraries, and the threads of some, stay
    with the parent.
    """

    def __init__(self, device: Device, open_driver: Callable[[], Driver]) -> None:
        self.device = device
        self.lost = ""
        """Why the device cannot be used any more; empty while it can."""
        self.lock = threading.RLock()
        """Held while the driver is opened, memory is counted, or a synchronous transfer runs."""
        self._open_driver = open_driver
        self.opened: Driver | None = None
        """The driver, once it is."""
        _GUARDS.add(self)

    @property
    def driver(self) -> Driver:
        """The vendor's driver, opened at first use.  Raises ComputeError if it does not start."""
        if self.opened is None:
            with self.lock:
                if self.opened is None:
                    if self.lost:
                        raise self._gone(f"{self.device.name} is lost: {self.lost}")
                    try:
                        self.opened = self._open_driver()
                    except Exception as error:
                        raise ComputeError(
                            f"{self.device.name} does not start: {in_one_line(error)}",
                            device=self.device,
                            remedy="another program may be using the whole device; all other devices stay usable",
                        ) from error
        return self.opened

    def guarded(self, what: str, *, op: object = None, kernel: str | None = None, requested: int | None = None) -> Call:
        """A block for calls of the vendor's library: converts its exceptions to typed errors.

        Entering raises DeviceLostError if the device is lost.
        """
        return Call(self, what, op, kernel, requested)

    def check(self, op: object = None, kernel: str | None = None) -> None:
        """Raises DeviceLostError if the device is lost."""
        if self.lost:
            name = self.device.name
            raise self._gone(f"{name} is lost, with all values in its buffers: {self.lost}", op=op, kernel=kernel)

    def typed(
        self, error: Exception, what: str, *, op: object = None, kernel: str | None = None, requested: int | None = None
    ) -> GGPlugError:
        """The typed error for an exception of the vendor's library; remembers that a device was lost."""
        device = self.device
        failure, details = self.driver.failure(error)
        of = f" of {op.name}" if isinstance(op, Op) else ""
        where = f"{device.name}: {what}" + (f" {kernel}{of}" if kernel else "")
        if failure is Failure.MEMORY:
            free, total = device.memory()
            asked = f" for {requested} bytes" if requested is not None else ""
            return OutOfMemoryError(
                f"{where}: no memory{asked} ({free} of {total} bytes are free)",
                device=device,
                op=op,
                kernel=kernel,
                requested=requested,
                free=free,
                remedy="free buffers, or place part of the graph on another device",
            )
        if failure is Failure.COMPILE:
            return KernelCompileError(f"{where} failed\n{details}", device=device, op=op, kernel=kernel, log=details)
        if failure is Failure.LOST:
            self.lost = str(error)
            return self._gone(f"{where}: the device is gone ({error})", op=op, kernel=kernel)
        return ComputeError(f"{where} failed: {in_one_line(error)}", device=device, op=op, kernel=kernel)

    def _gone(self, message: str, *, op: object = None, kernel: str | None = None) -> DeviceLostError:
        remedy = "all other devices stay usable; a new process, spawned and not forked, can use this one"
        return DeviceLostError(message, device=self.device, op=op, kernel=kernel, remedy=remedy)


class Call:
    """A block in which the calling thread uses the vendor's library; :meth:`Guard.guarded` makes it.

    ``what``, ``op``, ``kernel``, ``requested``: what the block does, for the error; they may be set later on.

    Entering raises DeviceLostError where the device is lost already.  Each computation enters two of them, so they
    make as few calls as they can.
    """

    __slots__ = ("_current", "_end", "_guard", "kernel", "op", "requested", "what")

    def __init__(
        self,
        guard: Guard,
        what: str,
        op: object = None,
        kernel: str | None = None,
        requested: int | None = None,
    ) -> None:
        self._guard = guard
        self.what = what
        self.op = op
        self.kernel = kernel
        self.requested = requested
        self._end: Callable[..., None] | None = partial(self._left)

    def __enter__(self) -> None:
        guard = self._guard
        if guard.lost:
            guard.check(self.op, self.kernel)
        # From here on only the block refers to ``end``: it is released when the block ends, also by an interrupt.
        end, self._end = self._end, None
        try:
            present_while(end)
            self._current: AbstractContextManager[object] = (guard.opened or guard.driver).current()
            if self._current is not ANY_THREAD:
                self._current.__enter__()
        except BaseException as error:
            end = None
            self._explain(error)
            raise

    if TYPE_CHECKING:

        def __exit__(self, *exc: object) -> None: ...

    else:
        __exit__ = property(attrgetter("_end"))

    def _left(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if self._current is not ANY_THREAD:
                self._current.__exit__(None, None, None)
        except BaseException as failed:
            self._explain(failed)
            raise
        if error is not None:
            self._explain(error)

    def _explain(self, error: BaseException) -> None:
        """Raises the typed error for an exception of the library; returns for others (KeyboardInterrupt)."""
        if isinstance(error, Exception) and not isinstance(error, GGPlugError):
            raise self._guard.typed(
                error, self.what, op=self.op, kernel=self.kernel, requested=self.requested
            ) from error


def _lose_all() -> None:
    """What a forked process does first."""
    for guard in _GUARDS:
        guard.lost = "this process was forked from the one that listed it"
        guard.lock = threading.RLock()  # a thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lose_all)
