"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug.types import F32, I32
from ggplug_simt.c.kernels.accepted import refuse
from ggplug_simt.c.launch import LIMIT, launch, launches_of, units
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, Launch, Launches, TensorArgument, argument

_ALL_F32 = ({F32},) * 8


def ssm_conv(profile: Profile, node: Tensor) -> Launches | Decline:
    """Sums of products of neighbouring tokens."""
    x, weights = node.src
    assert x is not None
    assert weights is not None
    refused = refuse(node, *_ALL_F32)
    if refused is not None:
        return refused
    return launches_of(
        launch(
            "recurrent",
            "convolve_tokens",
            {"dst": argument(DST, node), "x": argument(0, x), "weights": argument(1, weights)},
            groups=-(-units(node.ne, profile.vec) // profile.unit_lanes),
            lanes=profile.unit_lanes,
            defines={"VEC": profile.vec, "UNIT": profile.vec},
        )
    )


def ssm_scan(profile: Profile, node: Tensor) -> Launches | Decline:
    """The selective scan: a state for each row of each head of each sequence."""
    s, x, b = node.src[0], node.src[1], node.src[4]
    assert isinstance(node.op, ops.SsmScan)
    assert s is not None
    assert x is not None
    assert b is not None
    refused = refuse(node, *_ALL_F32[:7], {I32})
    if refused is not None:
        return refused
    sizes = {
        "size": s.ne[0],
        "dim": s.ne[1],
        "heads": s.ne[2],
        "of_groups": b.ne[1],
        "tokens": x.ne[2],
        "sequences": x.ne[3],
        "snapshots": node.op.snapshots,
    }
    return _launch(profile, "scan", node, s.ne[1] * s.ne[2] * x.ne[3], sizes)


def matrices(profile: Profile, node: Tensor) -> Launches | Decline:
    """A matrix for each head of each sequence: rwkv_wkv6, rwkv_wkv7, gated_linear_attn."""
    op, like, state = node.op, node.src[0], node.src[-1]
    assert op is not None
    assert like is not None
    assert state is not None
    refused = refuse(node, *_ALL_F32)
    if refused is not None:
        return refused
    kernel = {"rwkv_wkv6": "wkv6", "rwkv_wkv7": "wkv7", "gated_linear_attn": "gated"}[op.name]
    size, heads, tokens = like.ne[:3]
    sizes: dict[str, float | int] = {"size": size, "heads": heads, "tokens": tokens, "sequences": state.ne[1]}
    sizes["scale"] = op.scale if isinstance(op, ops.GatedLinearAttn) else 1.0
    return _launch(profile, kernel, node, size * heads * state.ne[1], sizes)


def gated_delta_net(profile: Profile, node: Tensor) -> Launches | Decline:
    """The gated delta rule: a matrix for each head of each sequence."""
    v = node.src[2]
    assert isinstance(node.op, ops.GatedDeltaNet)
    assert v is not None
    refused = refuse(node, *_ALL_F32)
    if refused is not None:
        return refused
    size, heads, tokens, sequences = v.ne
    sizes: dict[str, float | int] = {"size": size, "heads": heads, "tokens": tokens, "sequences": sequences}
    sizes |= {"snapshots": node.op.snapshots, "scale": size**-0.5}
    return _launch(profile, "delta", node, size * heads * sequences, sizes)


def _launch(
    profile: Profile, kernel: str, node: Tensor, count: int, sizes: Mapping[str, float | int]
) -> Launches | Decline:
    """A launch of ``count`` items, each with a row of a state; tensors have the names of the op's sources."""
    assert node.op is not None
    tensors: dict[str, TensorArgument] = {"dst": argument(DST, node)}
    for position, (name, tensor) in enumerate(zip(node.op.sources, node.src, strict=True)):
        assert tensor is not None
        tensors[name] = argument(position, tensor)
    if any(extent >= LIMIT for extent in (count, *node.ne)):
        return Decline(f"{node.op.name} counts rows of states in 32 bits, {count} are too many")
    defines: dict[str, object] = {"VEC": profile.vec, "UNIT": profile.vec}
    if "ids" in tensors:
        defines["ID_TYPE"] = "int32_t"
    made: Launch | Decline = launch(
        "recurrent",
        kernel,
        tensors,
        groups=-(-count // profile.unit_lanes),
        lanes=profile.unit_lanes,
        defines=defines,
        **sizes,
        count=count,
    )
    return launches_of(made)


CHOOSERS = {
    ops.SsmConv: ssm_conv,
    ops.SsmScan: ssm_scan,
    ops.RwkvWkv6: matrices,
    ops.RwkvWkv7: matrices,
    ops.GatedLinearAttn: matrices,
    ops.GatedDeltaNet: gated_delta_net,
}
