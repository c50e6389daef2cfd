"""The ops and memories that the streams of a scheduler support."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ggplug.backend import Backend, BufferType, Decline, Support, answer_of
from ggplug.graph import Graph
from ggplug.nodes.groups import signature_of
from ggplug.tensor import Tensor


class Streams:
    """A scheduler's streams in order of priority, the memory that each keeps its results in, and what they support."""

    def __init__(self, streams: Sequence[Backend], buffer_types: Sequence[BufferType]) -> None:
        self._streams = tuple(streams)
        self.buffer_types = tuple(buffer_types)
        self._works_in: list[dict[BufferType, bool]] = [{} for _ in streams]
        self._working_in: dict[BufferType, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __getitem__(self, number: int) -> Backend:
        return self._streams[number]

    def __iter__(self) -> Iterator[Backend]:
        return iter(self._streams)

    def index(self, stream: Backend) -> int:
        """A stream's number.  Raises ValueError if it is not in the list."""
        return self._streams.index(stream)

    def names(self) -> list[str]:
        """The names of the streams; the second and later streams of a device are numbered."""
        names: list[str] = []
        for backend in self._streams:
            known = sum(other.name == backend.name for other in self._streams[: len(names)])
            names.append(f"{backend.name} ({known + 1})" if known else backend.name)
        return names

    def works_in(self, stream: int, buffer_type: BufferType) -> bool:
        """Whether the stream's kernels can access that memory."""
        known = self._works_in[stream]
        answer = known.get(buffer_type)
        if answer is None:
            answer = known[buffer_type] = self._streams[stream].device.supports_buffer_type(buffer_type)
        return answer

    def working_in(self, buffer_type: BufferType) -> tuple[int, ...]:
        """The numbers of the streams whose kernels can access that memory, in order."""
        found = self._working_in.get(buffer_type)
        if found is None:
            found = tuple(stream for stream in range(len(self)) if self.works_in(stream, buffer_type))
            self._working_in[buffer_type] = found
        return found

    def supports(self, stream: int, node: Tensor) -> Support:
        """Whether the stream supports a node, or why not."""
        device = self._streams[stream].device
        answer: Support = answer_of(device, node, device.supports_op)
        return answer

    def reason(self, stream: int, node: Tensor) -> str:
        """Why the stream declines a node; empty if it does not."""
        answer = self.supports(stream, node)
        return answer.reason if isinstance(answer, Decline) else ""


def kinds(graph: Graph) -> dict[int, int]:
    """A number for every node that computes something, by position; nodes with equal signatures have the same one."""
    numbers: dict[Any, int] = {}
    tensors = graph.tensors
    return {
        position: numbers.setdefault(signature_of(tensors[position]), len(numbers))
        for position in graph.order
        if not tensors[position].op.is_view  # type: ignore[union-attr]
    }
