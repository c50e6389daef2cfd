"""What the calls of CuPy work on: devices with memory, queues that run late, and a log.

Whatever is given to a queue runs when somebody waits for it, or for what comes after it, and not before: a program that
forgets to wait, or to make one queue wait for another, sees that in its results.  Addresses of devices' memory are
no addresses of the host.  Fresh memory is filled with bytes that are NaN in every floating-point type.
"""

from __future__ import annotations

import bisect
import ctypes
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cupy_stand_in.errors import STICKY, CUDARuntimeError, Fault, Status

Bytes = npt.NDArray[np.uint8]
Task = Callable[[], None]

FRESH = 0xFF
GUARD = 256
"""Bytes on either side of an allocation that nobody may write, all of them UNTOUCHED."""
UNTOUCHED = 0xA5
THREADS = 1024
"""Work-items of a group at most."""

_UNIT = 512  # cudaMalloc's alignment
_DEVICE_SHIFT = 48  # beyond what a process of the host can address


@dataclass
class Gpu:
    """Properties that a device reports.  ``memory``: bytes.  ``peers``: devices whose memory it can reach."""

    name: str = "Stand-in GPU"
    memory: int = 1 << 30
    capability: tuple[int, int] = (9, 0)
    integrated: bool = False
    pci: tuple[int, int, int] = (0, 1, 0)  # domain, bus, device
    peers: frozenset[int] = frozenset()

    def properties(self, hip: bool) -> dict[str, Any]:
        """As ``cudaGetDeviceProperties``, by CuPy's names."""
        domain, bus, device = self.pci
        return {
            **({"gcnArchName": b"gfx942:sramecc+:xnack-"} if hip else {}),
            "name": self.name.encode(),
            "totalGlobalMem": self.memory,
            "sharedMemPerBlock": 49152,
            "maxThreadsPerBlock": THREADS,
            "major": self.capability[0],
            "minor": self.capability[1],
            "integrated": int(self.integrated),
            "multiProcessorCount": 4,
            "pciDomainID": domain,
            "pciBusID": bus,
            "pciDeviceID": device,
        }


@dataclass(eq=False)
class Allocation:
    """Memory of a device; once it is freed, there is no ``whole``."""

    address: int
    size: int
    device: int
    whole: Bytes | None

    def bytes(self, offset: int, size: int | None, what: str) -> Bytes:
        """What is there from an offset on, to the end without a size.  Raises Fault."""
        if self.whole is None:
            raise Fault(f"{what}: {self} were freed")
        end = self.size if size is None else offset + size
        if end > self.size:
            raise Fault(f"{what}: {size} bytes at {offset} are beyond {self}")
        return self.whole[GUARD + offset : GUARD + end]

    def check(self, what: str) -> None:
        """Raises Fault if something was written outside of the memory."""
        if self.whole is not None:
            around = (self.whole[:GUARD], self.whole[GUARD + self.size :])
            if not all((part == UNTOUCHED).all() for part in around):
                raise Fault(f"{what}: something was written outside of {self}")

    def __str__(self) -> str:
        return f"the {self.size} bytes at {self.address:#x}"


class Pinned(NamedTuple):
    """Memory of the host that stays where it is; ``alive`` says whether it is still there."""

    address: int
    size: int
    alive: Callable[[], object]


@dataclass(eq=False)
class Device:
    """The state of a device.  ``lost``: the error that ended it, or 0.  ``reached``: peers with access enabled."""

    number: int
    gpu: Gpu
    used: int = 0
    lost: int = 0
    reached: set[int] = field(default_factory=set)
    allocations: list[Allocation] = field(default_factory=list)

    def allocate(self, size: int) -> Allocation:
        """Memory at an address that was never used before."""
        last = self.allocations[-1] if self.allocations else Allocation((self.number + 1) << _DEVICE_SHIFT, 0, 0, None)
        address = rounded(last.address + last.size + 2 * GUARD)
        whole = np.full(size + 2 * GUARD, FRESH, np.uint8)
        whole[:GUARD] = whole[GUARD + size :] = UNTOUCHED
        made = Allocation(address, size, self.number, whole)
        self.allocations.append(made)
        return made


def rounded(size: int) -> int:
    """A whole number of units of device memory."""
    return -(-size // _UNIT) * _UNIT


class Queue:
    """Work of a stream: given, and done in order when somebody asks for it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.given = 0
        self.done = 0
        self.captured: list[Task] | None = None
        """What was given while the stream captures."""
        self.invalid = False
        self._work: deque[Task] = deque()

    def give(self, work: Task) -> None:
        """More to do, or to capture."""
        if self.captured is not None:
            self.check()
            self.captured.append(work)
        else:
            self._work.append(work)
            self.given += 1

    def run(self, until: int) -> None:
        """Does everything up to the given number of it; a device that is lost does nothing any more."""
        while self.done < until and not self.device.lost:
            self.done += 1
            try:
                self._work.popleft()()
            except CUDARuntimeError as error:
                self.device.lost = error.status
                raise

    def check(self) -> None:
        """Raises CUDARuntimeError if an error ended the capture that is going on."""
        if self.invalid:
            raise CUDARuntimeError(901)

    def forbid_capture(self) -> None:
        """Before what a capturing stream does not allow, and which ends the capture."""
        if self.captured is not None:
            self.check()
            self.invalid = True
            raise CUDARuntimeError(900)


class Mark(NamedTuple):
    """A point in a queue: so much was given."""

    queue: Queue
    number: int


@dataclass(eq=False)
class Call:
    """A call into CuPy: its name, the thread's device, and the arguments, which are attributes too."""

    name: str
    device: int
    arguments: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["arguments"][name]
        except KeyError:
            raise AttributeError(name) from None


class Machine:
    """The devices, the log of calls, and the errors that a test has ordered.  ``hip``: they are AMD's."""

    def __init__(self, gpus: tuple[Gpu, ...], hip: bool) -> None:
        self.hip = hip
        self.devices = [Device(number, gpu) for number, gpu in enumerate(gpus)]
        self.lock = threading.RLock()
        self.log: list[Call] = []
        self.ordered: dict[str, deque[Exception | int | None]] = {}
        self.faults: list[Fault] = []
        self.pinned: list[Pinned] = []
        self._handles: dict[int, Any] = {}
        self._thread = threading.local()

    # -- calls ---------------------------------------------------------------------------------------

    def note(self, name: str, device: Device, error: type[Status], arguments: dict[str, Any]) -> Call:
        """Puts a call into the log; raises what a test has ordered for it, or what the device was lost for."""
        made = Call(name, self.current, arguments)
        self.log.append(made)
        ordered = self.ordered.get(name)
        refusal = ordered.popleft() if ordered else None
        if isinstance(refusal, Exception):
            raise refusal
        if refusal in STICKY:
            device.lost = refusal
        elif refusal:
            raise error(refusal)
        self.bound |= error is CUDARuntimeError
        lost = error.of_lost(device.lost) if device.lost else None
        if lost is not None:
            raise lost
        return made

    def handle(self, meant: Any) -> int:
        """A number for something, as libraries give it."""
        number = 0x5000_0000 + 16 * len(self._handles)
        self._handles[number] = meant
        return number

    def meant(self, handle: int) -> Any:
        """What a handle stands for; None if it is none, or not any more."""
        return self._handles.get(handle)

    def drop(self, handle: int) -> None:
        """Makes a handle mean nothing."""
        self._handles[handle] = None

    # -- the thread ----------------------------------------------------------------------------------

    @property
    def current(self) -> int:
        """The number of the calling thread's device."""
        return getattr(self._thread, "device", 0)

    @current.setter
    def current(self, number: int) -> None:
        self._thread.device = number

    @property
    def bound(self) -> bool:
        """Whether the calling thread has a context: calls of the runtime see to it, those of the driver need it."""
        return getattr(self._thread, "bound", False)

    @bound.setter
    def bound(self, there: bool) -> None:
        self._thread.bound = there

    @property
    def device(self) -> Device:
        """The calling thread's device.  Raises CUDARuntimeError without one."""
        if not self.devices:
            raise CUDARuntimeError(100)
        return self.devices[self.current]

    @property
    def streams(self) -> list[int]:
        """The calling thread's streams on its device, the current one last."""
        stacks: dict[int, list[int]] = self._thread.__dict__.setdefault("streams", {})
        return stacks.setdefault(self.current, [0])

    def abandoned(self, queue: Queue) -> None:
        """Does the work of a queue that nobody has any more; errors go only to the log of mistakes."""
        try:
            queue.run(queue.given)
        except Fault as fault:
            self.faults.append(fault)
        except CUDARuntimeError:
            pass

    # -- memory --------------------------------------------------------------------------------------

    def allocation(self, address: int, what: str) -> tuple[Allocation, int]:
        """The device memory that an address is in, and the offset in it.  Raises Fault."""
        number = (address >> _DEVICE_SHIFT) - 1
        known = self.devices[number].allocations if 0 <= number < len(self.devices) else []
        at = bisect.bisect_right(known, address, key=lambda each: each.address) - 1
        if at < 0 or address >= known[at].address + known[at].size:
            raise Fault(f"{what}: there is no memory at {address:#x}")
        return known[at], address - known[at].address

    def place(self, address: int, size: int, what: str) -> Callable[[], Bytes]:
        """Finds memory of a device or of the host when work is done.  Raises Fault, then."""
        if address >> _DEVICE_SHIFT:
            allocation, offset = self.allocation(address, what)
            return lambda: allocation.bytes(offset, size, what)
        pinned = self.pinned_at(address)

        def host() -> Bytes:
            if pinned is not None and pinned.alive() is None:
                raise Fault(f"{what}: pinned memory was freed")
            return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)

        return host

    def is_host(self, address: int) -> bool:
        """Whether it is an address of the host."""
        return not address >> _DEVICE_SHIFT

    def pinned_at(self, address: int) -> Pinned | None:
        """The pinned memory that an address of the host is in."""
        self.pinned = [each for each in self.pinned if each.alive() is not None]
        return next((each for each in self.pinned if each.address <= address < each.address + each.size), None)
