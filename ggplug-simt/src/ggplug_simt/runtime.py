"""The runtime of one device: the guard of its driver, the order of its queues, its memory and its programs."""

from __future__ import annotations

from collections.abc import Callable

from ggplug.backend import Device
from ggplug_simt.driver import Driver
from ggplug_simt.guard import Guard
from ggplug_simt.ledger import Ledger
from ggplug_simt.order import Order
from ggplug_simt.programs import Programs


class Runtime:
    """The runtime of one device, used by its buffers, streams and plans.

    ``total``: returns the bytes of the device's memory, once the driver is open.
    """

    def __init__(self, device: Device, open_driver: Callable[[], Driver], total: Callable[[], int]) -> None:
        self.device = device
        self.guard = Guard(device, open_driver)
        self.order = Order(self.guard)
        self.ledger = Ledger(self.guard, self.order, total)
        self.programs = Programs(self.guard)

    @property
    def driver(self) -> Driver:
        """The vendor's driver, opened at first use.  Raises ComputeError if it does not start."""
        return self.guard.driver

    def reaches(self, other: Runtime) -> bool:
        """Whether queues of this device copy from and wait for another one, without the host."""
        return other is self or self.driver.reaches(other.driver)
