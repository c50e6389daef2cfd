"""What devices say to each op in each type: the matrix behind ``ggplug ops``.

Nodes are the sketches of the conformance suite (:mod:`ggplug.testing.cases.sketches`) with the types of their sources
exchanged, as far as the op's shape rule takes them; devices are asked by ``supports_op``.  Nothing is computed, and no
values are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ggplug.backend import Decline, Device
from ggplug.errors import GGPlugError
from ggplug.ops.base import Op
from ggplug.tensor import Tensor, extents
from ggplug.testing.cases import cases_of
from ggplug.testing.cases.case import Leafs
from ggplug.testing.cases.sketches import EXTENTS, Sketch, maker, sketches
from ggplug.types import F32, I32, I64, TYPES, Type

_WHOLE_BLOCKS = {**EXTENTS, "n": 256, "m": 512, "K": 256}


class Offer(NamedTuple):
    """What a device says to an op in a type.

    ``nodes``: how many it was asked about; ``accepted``: how many of them it computes; ``reasons``: why not the others.
    """

    op: str
    type: str
    device: str
    nodes: int
    accepted: int
    reasons: tuple[str, ...]


class Outlines(Leafs):
    """Leafs without values."""

    def __init__(self) -> None:
        super().__init__(0)

    def tensor(self, type: Type, *ne: int, layout: Any = "packed", **values: Any) -> Tensor:
        full, rank = extents(ne)
        return self._lay(type, full, rank, layout)

    def array(self, type: Type, values: Any, layout: Any = "packed") -> Tensor:
        full, rank = extents(values.shape[::-1])
        return self._lay(type, full, rank, layout)


def examples(op: type[Op]) -> Iterator[tuple[Type, Tensor]]:
    """Nodes of an op, each with the type that it is an example of: that of a source, else of its result."""
    seen = set()
    for kind, made in _made(op):
        key = kind, made.type, tuple(None if each is None else each.type for each in made.src)
        if key not in seen:
            seen.add(key)
            yield kind, made


def _made(op: type[Op]) -> Iterator[tuple[Type, Tensor]]:
    found = [sketch for sketch in sketches(op) if sketch.shown is None]
    for sketch in found:
        for kind in TYPES:
            for types in _exchanged(sketch, kind):
                try:
                    made = maker(op, sketch._replace(types=types), _WHOLE_BLOCKS, sketch.layouts())(Outlines())
                except GGPlugError:
                    continue
                yield kind, made
    if not found and not op.is_view:
        for case in cases_of(op):
            result = case.make(Outlines())
            if isinstance(result, Tensor) and isinstance(result.op, op):
                first = next((each for each in result.src if each is not None), result)
                yield first.type, result


def _exchanged(sketch: Sketch, kind: Type) -> Iterator[tuple[Type, ...]]:
    """The types of a sketch with one exchanged, and with all that are the same as the first.

    One of the others is exchanged where it is special already: of a type that is neither F32 nor that of ids.
    """
    types = tuple(sketch.type_of(position) for position in range(len(sketch.sources)))
    yield tuple(kind if each is types[0] else each for each in types)
    for position, own in enumerate(types):
        if position == 0 or own not in (F32, I32, I64):
            yield (*types[:position], kind, *types[position + 1 :])


def offers(devices: Sequence[Device], ops: Iterable[type[Op]], types: Sequence[Type] = TYPES) -> Iterator[Offer]:
    """What each device says, op after op and type after type; ops that compute nothing are left out."""
    for op in ops:
        nodes: dict[Type, list[Tensor]] = {}
        for kind, made in examples(op):
            nodes.setdefault(kind, []).append(made)
        for kind in (each for each in TYPES if each in types and each in nodes):
            for device in devices:
                answers = [device.supports_op(made) for made in nodes[kind]]
                reasons = [answer.reason for answer in answers if isinstance(answer, Decline)]
                accepted = len(answers) - len(reasons)
                yield Offer(op.name, kind.name, device.name, len(answers), accepted, tuple(dict.fromkeys(reasons)))
