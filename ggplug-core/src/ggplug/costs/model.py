"""Predicts how long nodes, copies and splits take on the streams of a scheduler."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterable, Mapping, Sequence

from ggplug.backend import Backend, BufferType, Device
from ggplug.costs.kept import keep, rates_of
from ggplug.costs.measuring import Kernel, measure, measure_copies, measure_kernels
from ggplug.costs.rates import Rates
from ggplug.costs.work import Work, cost_of, inner_bytes, work_of
from ggplug.errors import ParameterError
from ggplug.tensor import Tensor

COMPUTING = 16
"""Operations for each byte, from which on a kernel is bound by computing and not by memory."""
UNPACKING = 5e-9
"""Seconds for each byte that the host converts, of memory with a layout of its own."""

_MOST = 1 << 14
"""Predictions that are kept."""

_measuring = threading.Lock()


class CostModel:
    """The times of several devices.

    ``rates``: those to use, by device, which are neither measured nor kept; of other devices they are measured when
    they are first needed, kept on disk, and refined by what runs.
    """

    def __init__(self, rates: Mapping[Device, Rates] | None = None) -> None:
        self._given = dict(rates or {})
        self._single: dict[tuple[Rates, Work], tuple[int, float]] = {}

    def rates(self, stream: Backend) -> Rates:
        """The times of a stream."""
        given = self._given.get(stream.device)
        return rates_of(stream) if given is None else given

    def ready(self, streams: Sequence[Backend], memories: Sequence[BufferType]) -> bool:
        """Measures streams, and the copies between their memories, as far as that was not done before.

        Returns whether all streams could be measured; only then there is something to predict.
        """
        for stream, memory in zip(streams, memories, strict=True):
            if stream.device in self._given:
                continue
            rates = self.rates(stream)
            with _measuring:
                before = rates.changes
                if not rates.asked:
                    rates.asked = True
                    measure(stream, rates)
                for other in memories:
                    if not stream.device.supports_buffer_type(other):
                        measure_copies(stream, memory, other, rates)
                if rates.changes != before:
                    keep(stream, rates)
        return all(self.rates(stream).split is not None for stream in streams)

    def measure(self, stream: Backend, memory: BufferType, kernels: Iterable[Kernel]) -> None:
        """Measures the kernels of a graph on a stream that were not measured before."""
        if stream.device not in self._given:
            rates = self.rates(stream)
            with _measuring:
                before = rates.changes
                measure_kernels(stream, memory, kernels, rates)
                if rates.changes != before:
                    keep(stream, rates)

    # -- predictions -------------------------------------------------------------------------------

    def kernel(self, stream: Backend, nodes: Sequence[Tensor]) -> float:
        """Seconds of the kernel that computes these nodes: one, or those of a group.

        A group that was not measured takes as long as its nodes, with one launch; those that are bound by memory take
        less, because inner results are not moved.
        """
        rates = self.rates(stream)
        work = work_of(nodes)
        known = self._single.get((rates, work))
        if known is not None and known[0] == rates.changes:
            return known[1]
        found = rates.kernel(work)
        if found is None and len(nodes) > 1:
            found = rates.launch + sum(self._in_group(stream, node, nodes) for node in nodes)
        if found is None:
            found = rates.any_kernel(work) or 0.0
        found = max(found, rates.launch)
        if len(self._single) >= _MOST:
            self._single.clear()
        self._single[rates, work] = rates.changes, found
        return found

    def _in_group(self, stream: Backend, node: Tensor, nodes: Sequence[Tensor]) -> float:
        """Seconds of a node of a group, without the launch."""
        seconds = self.kernel(stream, [node]) - self.rates(stream).launch
        flops, moved = cost_of(node)
        if flops > COMPUTING * moved:
            return seconds
        return seconds * max(moved - inner_bytes(node, nodes, nodes[-1]), 0) / max(moved, 1)

    def copy(self, stream: Backend, source: BufferType, nbytes: int) -> float:
        """Seconds of a copy from a memory to that of a stream."""
        if not nbytes:
            return 0.0
        rates = self.rates(stream)
        found = rates.copy(source.name, nbytes)
        if found is None:
            found = rates.any_copy(nbytes) or 0.0
        return found + (UNPACKING * nbytes if source.has_own_layout else 0.0)

    def split(self, stream: Backend) -> float:
        """Seconds that a split takes besides its kernels and copies."""
        return self.rates(stream).split or 0.0

    def call(self, stream: Backend) -> float:
        """Seconds that a call takes besides its splits, the first of which is this stream's."""
        return self.rates(stream).call

    # -- refinement --------------------------------------------------------------------------------

    def note(self, stream: Backend, kernels: Sequence[tuple[Sequence[Tensor], float]]) -> None:
        """Takes over measured times of kernels, of equal ones the mean, and keeps them."""
        rates = self.rates(stream)
        times: dict[Work, list[float]] = {}
        for nodes, seconds in kernels:
            times.setdefault(work_of(nodes), []).append(seconds)
        for work, each in times.items():
            rates.note(work, max(statistics.fmean(each), rates.launch))
        if kernels and stream.device not in self._given:
            keep(stream, rates)

    def note_call(self, stream: Backend, seconds: float) -> None:
        """Takes over the measured time of a call besides its splits."""
        self.rates(stream).note_call(seconds)

    def note_copy(self, stream: Backend, source: BufferType, nbytes: int, seconds: float) -> None:
        """Takes over the measured time of a copy."""
        self.rates(stream).note_copy(source.name, nbytes, seconds)


def cost_model(policy: object) -> CostModel:
    """The cost model of the policy ``"cost"``, or the one that stands for it.  Raises ParameterError for others."""
    if isinstance(policy, CostModel):
        return policy
    if policy == "cost":
        return CostModel()
    raise ParameterError(f"policy must be 'ggml' or 'cost', got {policy!r:.80}", got=policy, wanted=("ggml", "cost"))
