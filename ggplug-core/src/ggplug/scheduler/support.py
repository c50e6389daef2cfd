"""What the streams of a scheduler can do: which ops, in which memory.  Every question is asked only once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ggplug.backend import Backend, BufferType, Decline, Support, answer_of
from ggplug.graph import Graph
from ggplug.groups import signature_of
from ggplug.tensor import Tensor

MEMORY = 1 << 16
"""Answers that are kept."""


class Streams:
    """The streams in order of priority, the memory that each keeps its results in, and what they support.

    ``Device.match`` is a pure function of :func:`~ggplug.groups.signature_of`, so answers are kept by that, over all
    graphs.
    """

    def __init__(self, backends: Sequence[Backend], buffer_types: Sequence[BufferType]) -> None:
        self.backends = tuple(backends)
        self.buffer_types = tuple(buffer_types)
        self._kinds: dict[Any, int] = {}
        self._answers: list[dict[int, Support]] = [{} for _ in backends]
        self._works_in: list[dict[BufferType, bool]] = [{} for _ in backends]

    def __len__(self) -> int:
        return len(self.backends)

    def names(self) -> list[str]:
        """Their names; further streams of one device are numbered."""
        names: list[str] = []
        for backend in self.backends:
            known = sum(other.name == backend.name for other in self.backends[: len(names)])
            names.append(f"{backend.name} ({known + 1})" if known else backend.name)
        return names

    def works_in(self, stream: int, buffer_type: BufferType) -> bool:
        """Whether the stream's kernels can work in that memory."""
        known = self._works_in[stream]
        answer = known.get(buffer_type)
        if answer is None:
            answer = known[buffer_type] = self.backends[stream].device.supports_buffer_type(buffer_type)
        return answer

    def kind(self, node: Tensor) -> int:
        """A number for the node's signature."""
        key = signature_of(node)
        number = self._kinds.get(key)
        if number is None:
            if len(self._kinds) > MEMORY:
                self._kinds.clear()
                self._answers = [{} for _ in self.backends]
            number = self._kinds[key] = len(self._kinds)
        return number

    def supports(self, stream: int, node: Tensor, kind: int) -> Support:
        """Whether the stream computes the node of that kind, or why not."""
        known = self._answers[stream]
        answer = known.get(kind)
        if answer is None:
            device = self.backends[stream].device
            answer = known[kind] = answer_of(device, node, device.supports_op)
        return answer

    def kinds(self, graph: Graph) -> dict[int, int]:
        """The kind of every node that computes something, by position."""
        tensors = graph.tensors
        return {
            position: self.kind(tensors[position])
            for position in graph.order
            if not tensors[position].op.is_view  # type: ignore[union-attr]
        }

    def reason(self, stream: int, node: Tensor, kind: int) -> str:
        """Why the stream declines a node; empty if it does not."""
        answer = self.supports(stream, node, kind)
        return answer.reason if isinstance(answer, Decline) else ""


