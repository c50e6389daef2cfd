"""Sorting within rows."""

from __future__ import annotations

from collections.abc import Iterator

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor, contiguous_strides
from ggplug.types import I32
from ggplug_simt.c.kernels.accepted import FLOATS, refuse
from ggplug_simt.c.kernels.copy import move
from ggplug_simt.c.launch import LIMIT, launch, launches_of, units
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, SCRATCH, Launch, Launches, TensorArgument, argument, argument_of

_SHORT = (32, 256)  # each block size is another program, so there are few
_WORD = 8  # bytes of an element while it is sorted


def argsort(profile: Profile, node: Tensor) -> Launches | Decline:
    """The positions of each row's elements in sorted order, NaN last; equal ones keep their order.

    A row that fits is sorted in local memory.  A longer one is sorted in blocks that fit, which are then merged in
    pairs: comparators across blocks run in global memory, the others in local memory.
    """
    refused = refuse(node, {I32}, FLOATS)
    if refused is not None:
        return refused
    if node.ne[0] > LIMIT // 2:
        return Decline(f"argsort merges blocks of powers of two in 32 bits, rows of {node.ne[0]} are too long")
    (x,) = node.src
    assert x is not None
    assert isinstance(node.op, ops.Argsort)
    return launches_of(*_launches(profile, x, argument(DST, node), bool(node.op.order)))


def top_k(profile: Profile, node: Tensor) -> Launches | Decline:
    """All positions of each row sorted in scratch memory, of which the first are taken."""
    refused = refuse(node, {I32}, FLOATS)
    if refused is not None:
        return refused
    (x,) = node.src
    assert x is not None
    if x.ne[0] > LIMIT // 2:
        return Decline(f"top_k merges blocks of powers of two in 32 bits, rows of {x.ne[0]} are too long")
    nb = contiguous_strides(I32, x.ne)
    every = argument_of(SCRATCH, I32, x.ne, nb)
    first = argument_of(SCRATCH, I32, node.ne, nb)
    taken = move(profile, I32, argument(DST, node), first)
    return launches_of(*_launches(profile, x, every._replace(written=True), True), taken, scratch=nb[3] * x.ne[3])


def _launches(profile: Profile, x: Tensor, dst: TensorArgument, descending: bool) -> Iterator[Launch | Decline]:
    n = x.ne[0]
    tensors = {"dst": dst, "x": argument(0, x)}
    defines = {"VEC": profile.vec, "TX": x.type.name, **({"DESCENDING": 1} if descending else {})}
    longest = _power_of_two(profile.tile.local_bytes // _WORD)
    block = next((size for size in _SHORT if n <= size <= longest), longest)

    def blocks(done: bool) -> Launch | Decline:
        return launch(
            "sort",
            "sort_blocks",
            tensors,
            groups=-(-n // block) * x.nrows,
            lanes=min(profile.row_lanes, block // 2),
            defines={**defines, "SIZE": block},
            sorted=int(done),
        )

    def pairs(stride: int, mirrored: bool) -> Launch | Decline:
        counted = tensors["dst"]._replace(ne=(-(-n // (2 * stride)) * stride, *x.ne[1:]))
        return launch(
            "sort",
            "sort_pairs",
            {**tensors, "dst": counted},
            groups=-(-units(counted.ne, 1) // profile.unit_lanes),
            lanes=profile.unit_lanes,
            defines=defines,
            stride=stride,
            mirrored=int(mirrored),
        )

    yield blocks(done=False)
    merged = block
    while merged < n:
        stride = merged
        while stride >= block:
            yield pairs(stride, mirrored=stride == merged)
            stride //= 2
        yield blocks(done=True)
        merged *= 2


def _power_of_two(n: int) -> int:
    """The largest power of two up to n."""
    return 1 << (n.bit_length() - 1)


CHOOSERS = {ops.Argsort: argsort, ops.TopK: top_k}
