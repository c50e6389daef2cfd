"""Copies: other strides, conversions, concatenation and repetition."""

from __future__ import annotations

import math

from ggplug import ops
from ggplug.backend import Decline
from ggplug.ops.windows import Window
from ggplug.tensor import Tensor, contiguous_strides
from ggplug.types import I32, Type
from ggplug_simt.c.kernels.accepted import FLOATS, KEPT, READABLE, WRITABLE, refuse
from ggplug_simt.c.kernels.elementwise import IDENTITY, TWO, map_one, map_two
from ggplug_simt.c.launch import LIMIT, collapsed, launch, launches_of, units
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, NOTHING, SCRATCH, Launch, Launches, TensorArgument, argument, argument_of

_WORDS = {8: "uint64_t", 4: "uint32_t", 2: "uint16_t", 1: "uint8_t"}


def word(type: Type) -> tuple[str, int]:
    """The widest C type that a block of ``type`` is made of, and how many of them."""
    size = type.block_bytes
    # Blocks are only as aligned as their fields, none of which is wider than two bytes.
    wide = next(w for w in ((2, 1) if type.is_quantized else (8, 4, 2, 1)) if size % w == 0)
    return _WORDS[wide], size // wide


def _blocks(place: TensorArgument, type: Type) -> TensorArgument:
    """The argument in elements of whole blocks."""
    return place._replace(ne=(place.ne[0] // type.block_size, *place.ne[1:]))


def move(profile: Profile, type: Type, dst: TensorArgument, x: TensorArgument) -> Launch | Decline:
    """dst = x, without conversion, x repeated to dst's extents."""
    dst, x = _blocks(dst, type), _blocks(x, type)
    if dst.ne == x.ne:
        dst, x = collapsed((dst, x), (1, 1))
    spelled, parts = word(type)
    return launch(
        "copy",
        "move",
        {"dst": dst, "x": x},
        groups=-(-units(dst.ne, profile.vec) // profile.unit_lanes),
        lanes=profile.unit_lanes,
        defines={"VEC": profile.vec, "WORD": spelled, "PARTS": parts},
    )


def reshape(profile: Profile, dst: TensorArgument, dst_type: Type, x: TensorArgument, x_type: Type) -> Launch | Decline:
    """dst = x with other extents, element by element; without conversion between equal types."""
    if math.prod(dst.ne) >= 2 * LIMIT:
        return Decline(f"reshape counts elements in 32 bits, {math.prod(dst.ne)} are too many")
    spelled, parts = word(dst_type)
    defines: dict[str, object] = {"VEC": profile.vec, "WORD": spelled, "PARTS": parts}
    unit = 1
    if dst_type is x_type:
        dst, x = _blocks(dst, dst_type), _blocks(x, x_type)
    else:
        unit = max(profile.vec, dst_type.block_size)
        defines |= {**KEPT, "CONVERT": 1, "UNIT": unit, "TD": dst_type.name, "TX": x_type.name}
    return launch(
        "copy",
        "reshape",
        {"dst": dst, "x": x},
        groups=-(-units(dst.ne, unit) // profile.unit_lanes),
        lanes=profile.unit_lanes,
        defines=defines,
    )


def copy(profile: Profile, node: Tensor) -> Launches | Decline:
    """cpy, cont and dup: the same elements in ggml's order, perhaps in another type."""
    x = node.src[0]
    assert node.op is not None
    assert x is not None
    if node.type is not x.type and (x.type not in READABLE | {I32} or node.type not in WRITABLE | {I32}):
        return Decline(f"{node.op.name} from {x.type.name} to {node.type.name} has no kernel")
    to, come = argument(DST, node), argument(0, x)
    if node.ne != x.ne:
        # The contiguous tensor takes the extents of the other one.
        if node.is_contiguous() and x.ne[0] % node.type.block_size == 0:
            to = argument_of(DST, node.type, x.ne, contiguous_strides(node.type, x.ne))
        elif x.is_contiguous() and node.ne[0] % x.type.block_size == 0:
            come = argument_of(0, x.type, node.ne, contiguous_strides(x.type, node.ne))
        elif x.type is node.type and x.type.is_quantized and x.ne[0] != node.ne[0]:
            # blocks in order, through contiguous memory, which both shapes fit
            between = argument_of(SCRATCH, x.type, x.ne, contiguous_strides(x.type, x.ne))
            again = argument_of(SCRATCH, x.type, node.ne, contiguous_strides(x.type, node.ne))
            return launches_of(
                move(profile, x.type, between._replace(written=True), come),
                move(profile, x.type, to, again),
                scratch=between.span,
            )
        else:
            return launches_of(reshape(profile, to, node.type, come, x.type))
    if node.type is x.type:
        return launches_of(move(profile, node.type, to, come))
    return launches_of(map_one(profile, None, IDENTITY, to, node.type, come, x.type))


def repeat(profile: Profile, node: Tensor) -> Launches | Decline:
    """x several times in each dimension."""
    x = node.src[0]
    assert x is not None
    return launches_of(move(profile, node.type, argument(DST, node), argument(0, x)))


def concat(profile: Profile, node: Tensor) -> Launches | Decline:
    """a, and after it b: two copies into parts of the result."""
    a, b = node.src
    assert isinstance(node.op, ops.Concat)
    assert a is not None
    assert b is not None
    dim = node.op.dim
    start = a.ne[dim] * node.nb[dim] // (a.type.block_size if dim == 0 else 1)
    parts = []
    for position, source, delta in ((0, a, 0), (1, b, start)):
        if math.prod(source.ne):
            into = argument_of(DST, node.type, source.ne, node.nb, delta)
            parts.append(move(profile, node.type, into, argument(position, source)))
    return launches_of(*parts)


def shifted(profile: Profile, node: Tensor) -> Launches | Decline:
    """pad, pad_reflect_1d and roll: elements at other positions, and elements beyond the source."""
    op, x = node.op, node.src[0]
    assert x is not None
    defines: dict[str, object] = {}
    start: tuple[int, ...]
    if isinstance(op, ops.Pad):
        start = op.before
        defines = {"CIRCULAR": 1} if op.circular else {}
    elif isinstance(op, ops.Roll):
        # less than an extent, so that differences stay within 32 bits
        start = tuple(shift % n for shift, n in zip(op.shifts, x.ne, strict=True))
        defines = {"CIRCULAR": 1}
    else:
        assert isinstance(op, ops.PadReflect1d)
        start = (op.p0, 0, 0, 0)
        defines = {"REFLECTED": 1}
    spelled, parts = word(node.type)
    defines |= {"VEC": profile.vec, "WORD": spelled, "PARTS": parts}
    return launches_of(
        launch(
            "copy",
            "shifted",
            {"dst": argument(DST, node), "x": argument(0, x)},
            groups=-(-units(node.ne, profile.vec) // profile.unit_lanes),
            lanes=profile.unit_lanes,
            defines=defines,
            **{f"start_{i}": count for i, count in enumerate(start)},
        )
    )


def set_window(profile: Profile, node: Tensor) -> Launches | Decline:
    """The window of a = b."""
    b = node.src[1]
    assert b is not None
    if not b.size:
        return NOTHING
    return launches_of(move(profile, node.type, window(node, DST), argument(1, b)))


def acc(profile: Profile, node: Tensor) -> Launches | Decline:
    """The window of a += b."""
    b = node.src[1]
    assert b is not None
    refused = refuse(node, FLOATS, FLOATS, FLOATS)
    if refused is not None:
        return refused
    if not b.size:
        return NOTHING
    kind = node.type
    return launches_of(
        map_two(profile, ops.Add(), TWO[ops.Add], window(node, DST), kind, window(node, 0), kind, argument(1, b), kind)
    )


def window(node: Tensor, position: int) -> TensorArgument:
    """The window that a node writes, in its result or in its first source, which are the same bytes."""
    op, b, kind = node.op, node.src[1], node.type
    assert isinstance(op, Window)
    assert b is not None
    counts = (*op.strides, op.offset)
    nb1, nb2, nb3, start = (count // kind.block_size * kind.block_bytes for count in counts)
    return argument_of(position, kind, b.ne, (kind.block_bytes, nb1, nb2, nb3), start)


CHOOSERS = {
    ops.Acc: acc,
    ops.Concat: concat,
    ops.Cont: copy,
    ops.Cpy: copy,
    ops.Dup: copy,
    ops.Pad: shifted,
    ops.PadReflect1d: shifted,
    ops.Repeat: repeat,
    ops.Roll: shifted,
    ops.Set: set_window,
}
