"""Which devices compute which op in which type: the matrix behind ``ggplug ops``.

Each device's ``supports_op`` is asked about nodes that are made from the op's sketches, with other types of the sources
wherever the op's shape rule accepts them.  The nodes of an op without sketches have sources of equal shape.  Nothing is
computed, and no values are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ggplug.backend import Decline, Device
from ggplug.errors import GGPlugError
from ggplug.ops.base import Op
from ggplug.sketches.layouts import Outlines
from ggplug.sketches.sketch import EXTENTS, Sketch, maker
from ggplug.sketches.table import sketches
from ggplug.tensor import Tensor
from ggplug.types import F32, I32, I64, TYPES, Type

_WHOLE_BLOCKS = {**EXTENTS, "n": 256, "m": 512, "K": 256}


class Offer(NamedTuple):
    """What a device says to an op in a type.

    ``nodes``: how many were tried; ``accepted``: how many of them it computes; ``reasons``: why not the others.
    """

    op: str
    type: str
    device: str
    nodes: int
    accepted: int
    reasons: tuple[str, ...]


def examples(op: type[Op]) -> Iterator[tuple[Type, Tensor]]:
    """Nodes of an op, each with the type that it is an example of: that of a source, else of its result."""
    seen = set()
    for kind, made in _made(op):
        key = kind, made.type, tuple(None if each is None else each.type for each in made.src)
        if key not in seen:
            seen.add(key)
            yield kind, made


def _made(op: type[Op]) -> Iterator[tuple[Type, Tensor]]:
    own = [sketch for sketch in sketches(op) if sketch.view is None]
    for sketch in own or _alike(op):
        for kind, types in _exchanged(sketch):
            try:
                made = maker(op, sketch._replace(types=types), _WHOLE_BLOCKS, sketch.layouts())(Outlines())
            except (GGPlugError, TypeError):  # TypeError: an op of somebody else has parameters without a default
                continue
            yield made.type if kind is None else kind, made


def _alike(op: type[Op]) -> Iterator[Sketch]:
    """For an op without sketches: sources of equal shape, with and without the optional ones at the end."""
    counts = {len(op.sources), sum(name not in op.optional for name in op.sources)}
    for count in () if op.is_view else sorted(counts, reverse=True):
        for source in ("n r b c", "n r", "n", "n n"):
            yield Sketch((source,) * count)


def _exchanged(sketch: Sketch) -> Iterator[tuple[Type | None, tuple[Type, ...]]]:
    """Each type, and the types of a sketch with one exchanged for it, or all that are the same as the first.

    One of the others is exchanged where it is special already: of a type that is neither F32 nor that of ids.
    """
    types = sketch.kinds()
    if not types:
        yield None, ()
        return
    for kind in TYPES:
        yield kind, tuple(kind if each is types[0] else each for each in types)
        for position, own in enumerate(types):
            if position == 0 or own not in (F32, I32, I64):
                yield kind, (*types[:position], kind, *types[position + 1 :])


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
