"""A device whose streams compute on one team of threads: what they ask of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ggplug.backend import Device
from ggplug.errors import ComputeError
from ggplug.sharing import locked
from ggplug_cpu import topology

if TYPE_CHECKING:
    from ggplug_cpu.team import Team

T = TypeVar("T")


class ThreadedDevice(Device):
    """A device whose streams compute on one :attr:`team` of threads, one stream at a time."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._team: Team | None = None

    @property
    def team(self) -> Team:
        """The threads; started when they are first needed."""
        if self._team is None:
            from ggplug_cpu.team import Team

            with self._lock:
                if self._team is None:
                    self._team = Team()
        return self._team

    @property
    def n_threads(self) -> int:
        """How many threads compute."""
        if self._team is not None:
            return self._team.n_threads
        return topology.default_threads()

    def set_team(self, team: Team) -> None:
        """Computes on another team from now on: another number of threads, affinity, priority or polling.

        Waits for the computations of the old one; raises BusyError within one of them.
        """
        while (old := self._team) is not team:
            if old is None:
                with self._lock:
                    if self._team is None:
                        self._team = team
                continue
            with locked(old):
                if self._team is old:
                    self._team = team
                    old.end()

    def with_team(self, action: Callable[[Team], T]) -> T:
        """Returns ``action(team)``; if another team replaced this one while it waited, calls it with the new one."""
        while True:
            team = self.team
            try:
                return action(team)
            except ComputeError:
                if team is self.team:
                    raise
