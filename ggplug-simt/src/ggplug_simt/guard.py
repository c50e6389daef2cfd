"""The guard of a driver: opens it when it is first needed, and turns what it raises into typed errors."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator

from ggplug.backend import Device
from ggplug.errors import (
    ComputeError,
    DeviceLostError,
    GGPlugError,
    KernelCompileError,
    OutOfMemoryError,
)
from ggplug.ops.base import Op
from ggplug.sharing import present
from ggplug_simt.driver import Driver, Failure

_GUARDS: weakref.WeakSet[Guard] = weakref.WeakSet()


class Guard:
    """The driver of one device; every call of the vendor's library is made inside of :meth:`guarded`.

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
        self._driver: Driver | None = None
        _GUARDS.add(self)

    @property
    def is_open(self) -> bool:
        """Whether the driver was needed yet."""
        return self._driver is not None

    @property
    def driver(self) -> Driver:
        """The vendor's driver, opened at first use.  Raises ComputeError if it does not start."""
        if self._driver is None:
            with self.lock:
                if self._driver is None:
                    if self.lost:
                        raise self._gone(f"{self.device.name} is lost: {self.lost}")
                    try:
                        self._driver = self._open_driver()
                    except Exception as error:
                        raise ComputeError(
                            f"{self.device.name} does not start: {error}", device=self.device,
                            remedy="another program may have taken all of it; other devices go on",
                        ) from error  # fmt: skip
        return self._driver

    @contextlib.contextmanager
    def guarded(
        self, what: str, *, op: object = None, kernel: str | None = None, requested: int | None = None
    ) -> Iterator[None]:
        """Turns what the vendor's library raises inside into the typed error; refuses a lost device at once."""
        self.check(op, kernel)
        try:
            with present(), self.driver.current():
                yield
        except GGPlugError:
            raise
        except Exception as error:
            raise self.typed(error, what, op=op, kernel=kernel, requested=requested) from error

    def check(self, op: object = None, kernel: str | None = None) -> None:
        """Raises DeviceLostError if the device is lost."""
        if self.lost:
            name = self.device.name
            raise self._gone(f"{name} is lost, its buffers hold nothing: {self.lost}", op=op, kernel=kernel)

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
                f"{where}: no memory{asked} ({free} of {total} bytes are free)", device=device, op=op, kernel=kernel,
                requested=requested, free=free, remedy="free buffers, or place part of the graph on another device",
            )  # fmt: skip
        if failure is Failure.COMPILE:
            return KernelCompileError(f"{where} failed\n{details}", device=device, op=op, kernel=kernel, log=details)
        if failure is Failure.LOST:
            self.lost = str(error)
            return self._gone(f"{where}: the device is gone ({error})", op=op, kernel=kernel)
        return ComputeError(f"{where} failed: {error}", device=device, op=op, kernel=kernel)

    def _gone(self, message: str, *, op: object = None, kernel: str | None = None) -> DeviceLostError:
        remedy = "the other devices go on; a new process, spawned and not forked, can use this one"
        return DeviceLostError(message, device=self.device, op=op, kernel=kernel, remedy=remedy)


def _lose_all() -> None:
    """What a forked process does first."""
    for guard in _GUARDS:
        guard.lost = "this process was forked from the one that listed it"
        guard.lock = threading.RLock()  # a thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lose_all)
