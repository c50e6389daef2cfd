"""Launch sequences of queues that take launches one by one, as OpenCL's and CUDA's do, with grids of one dimension.

When a sequence is submitted a second time with the same bindings, runs of its launches may be captured, each as one
launch.  A new binding drops what was captured.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ggplug_simt.driver import Binding, Dispatch, Handle, LaunchSequence, Queue


class Bound:
    """A kernel with its arguments, ready to be launched many times.

    A launch keeps the arguments that it was submitted with.  ``capturable``: :meth:`StepwiseQueue.capture` may capture
    its launches.
    """

    capturable: bool = True

    def set_buffer(self, position: int, handle: Handle) -> None:
        """Sets the pointer argument at ``position``."""
        raise NotImplementedError

    def set_arguments(self, position: int, arguments: npt.NDArray[np.uint8]) -> None:
        """Sets the struct argument at ``position``, by value."""
        raise NotImplementedError


class StepwiseQueue(Queue):
    """A queue whose launches are Python functions, each called once for a launch."""

    @abstractmethod
    def bind(self, dispatch: Dispatch) -> Bound:
        """The kernel of a launch, its arguments not set yet."""

    @abstractmethod
    def launcher(self, bound: Bound, groups: int, lanes: int) -> Callable[[], object]:
        """A function that launches ``bound`` in this queue; it is called many times, so it should be fast."""

    def capture(self, launchers: Sequence[Callable[[], object]]) -> Callable[[], object] | None:
        """Captures launches: returns a function that launches all of them as one, with their current arguments.

        None if that is not possible (default).
        """
        return None

    def sequence(self, dispatches: Sequence[Dispatch]) -> StepwiseSequence:
        return StepwiseSequence(self, dispatches)


class StepwiseSequence(LaunchSequence):
    """Launches that are submitted one by one, or in captured runs."""

    def __init__(self, queue: StepwiseQueue, dispatches: Sequence[Dispatch]) -> None:
        self._queue = queue
        self._dispatches = list(dispatches)
        self._bound = [queue.bind(each) for each in dispatches]
        self._launchers = [self._launcher(bound, each) for bound, each in zip(self._bound, dispatches, strict=True)]
        self._starts = list(enumerate(self._launchers))
        self._submitted = 0

    def _launcher(self, bound: Bound, dispatch: Dispatch) -> Callable[[], object]:
        return self._queue.launcher(bound, dispatch.grid[0], dispatch.lanes)

    def replace(self, number: int, dispatch: Dispatch) -> None:
        self._dispatches[number] = dispatch
        self._bound[number] = self._queue.bind(dispatch)
        self._launchers[number] = self._launcher(self._bound[number], dispatch)
        self._submitted = 0
        self._starts = list(enumerate(self._launchers))

    def bind(self, number: int, tensor: int, binding: Binding) -> None:
        self._bound[number].set_buffer(tensor, binding.handle)
        self._drop()

    def set_arguments(self, arguments: npt.NDArray[np.uint8], stale: Sequence[int]) -> None:
        for number in stale:
            dispatch = self._dispatches[number]
            start, size = dispatch.arguments
            self._bound[number].set_arguments(len(dispatch.written), arguments[start : start + size])
        self._drop()

    def _drop(self) -> None:
        """Drops captured runs, which have the old bindings."""
        if self._submitted > 1:
            self._starts = list(enumerate(self._launchers))
        self._submitted = 0

    def submit(self) -> None:
        self._submitted += 1
        if self._submitted == 2:
            self._starts = self._captured()
        for self.at, start in self._starts:  # noqa: B020 - error handlers read the number
            start()

    def submit_one(self, number: int) -> None:
        self.at = number
        self._launchers[number]()

    def _captured(self) -> list[tuple[int, Callable[[], object]]]:
        """The launches, with runs captured as one if the queue can do that; each with the number of its first
        launch.
        """
        starts: list[tuple[int, Callable[[], object]]] = []
        by_kind = itertools.groupby(enumerate(self._launchers), lambda each: self._bound[each[0]].capturable)
        for capturable, run in by_kind:
            launches = list(run)
            together = None
            if capturable and len(launches) > 1:
                self.at = launches[0][0]
                together = self._queue.capture([start for _, start in launches])
            starts += launches if together is None else [(self.at, together)]
        return starts
