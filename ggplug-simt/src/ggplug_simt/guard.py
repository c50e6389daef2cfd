"""Calls of a vendor's library: what they raise becomes the typed error, and nobody leaves the interpreter meanwhile."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from ggplug.errors import GGPlugError
from ggplug.sharing import CLOSED, NOTHING, OPEN, Claim
from ggplug_simt.driver import ANY_THREAD

if TYPE_CHECKING:
    from ggplug_simt.device import SimtDevice


class Guard(Claim):
    """While the calling thread is in the vendor's library; ``SimtDevice.guarded`` makes one.

    ``what``, ``op``, ``kernel``, ``requested``: what is being done, for the error; they may be set later on.
    ``own``, ``shared``: what the thread needs meanwhile, as :class:`~ggplug.sharing.Claim` takes it; by default it is
    only present.

    Entering raises DeviceLostError where the device is lost already.  Each computation enters two of them, so they
    make as few calls as they can.
    """

    __slots__ = ("_current", "_device", "kernel", "op", "requested", "what")

    def __init__(
        self, device: SimtDevice, what: str, op: object = None, kernel: str | None = None,
        requested: int | None = None, own: Collection[Any] = (), shared: Collection[Any] = NOTHING,
    ) -> None:  # fmt: skip
        self._device = device
        self.what = what
        self.op = op
        self.kernel = kernel
        self.requested = requested
        self._own = own
        self._shared = shared
        self._kind = CLOSED if own else OPEN

    def __enter__(self, depth: int = 1) -> None:
        device = self._device
        if device.lost:
            raise device.gone(
                f"{device.name} is lost, its buffers hold nothing: {device.lost}", op=self.op, kernel=self.kernel
            )
        Claim.__enter__(self, depth + 1)
        try:
            self._current: AbstractContextManager[object] = (device.opened or device.driver).current()
            if self._current is not ANY_THREAD:
                self._current.__enter__()
        except BaseException as error:
            Claim.__exit__(self)
            self._explain(error)
            raise

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:  # type: ignore[override]
        try:
            if self._current is not ANY_THREAD:
                self._current.__exit__(None, None, None)
        except BaseException as failed:
            Claim.__exit__(self)
            self._explain(failed)
            raise
        Claim.__exit__(self)
        if error is not None:
            self._explain(error)

    def _explain(self, error: BaseException) -> None:
        """Raises the typed error for what is none, unless it is not about the device (KeyboardInterrupt)."""
        if isinstance(error, Exception) and not isinstance(error, GGPlugError):
            raise self._device.typed(
                error, self.what, op=self.op, kernel=self.kernel, requested=self.requested
            ) from error
