"""Rotary embedding on devices that need not have float64: angles of thousands of periods."""

from __future__ import annotations

import numpy as np
import pytest

from ggplug import ops, types
from ggplug.backend import Decline, Device, Group
from ggplug.errors import ParameterError
from ggplug.graph import Graph
from ggplug.memory import allocate_graph
from ggplug.tensor import new_tensor
from ggplug.types import RopeMode

pytest.importorskip("ggplug_simt")

from simt_devices import device as device
from simt_devices import everywhere

from ggplug_simt import Properties
from ggplug_simt.c.kernels import match
from ggplug_simt.c.profile import Profile

PAIRS, HEADS = 32, 11


@everywhere
@pytest.mark.parametrize(
    "parameters",
    [{}, {"freq_base": 5e5, "n_ctx_orig": 8192, "freq_scale": 1 / 40, "ext_factor": 0.9, "attn_factor": 0.8}],
    ids=["plain", "yarn and factors"],
)
def test_rotations_of_far_positions_are_as_good_as_those_of_near_ones(
    parameters: dict[str, float], device: Device
) -> None:
    generator = np.random.default_rng(5)
    near = [0, 1, 2, 77, -3, -1000]
    far = [8192, 131_071, 1 << 20, (1 << 20) - 3, (1 << 24) + 1, -131_071]
    positions = np.array(near + far, np.int32)
    values = generator.uniform(-1, 1, (len(positions), HEADS, 2 * PAIRS)).astype(np.float32)
    divided = generator.uniform(0.5, 4, PAIRS).astype(np.float32)
    x = new_tensor(types.F32, (2 * PAIRS, HEADS, len(positions))).set_input()
    pos = new_tensor(types.I32, (len(positions),)).set_input()
    factors = new_tensor(types.F32, (PAIRS,)).set_input() if parameters else None
    graph = Graph(
        ops.rope(x, pos, freq_factors=factors, n_dims=2 * PAIRS, mode=RopeMode.NEOX, **parameters).set_output()
    )
    with device.init() as stream:
        allocation = allocate_graph(graph, device.buffer_type)
        allocation.prepare(graph)
        x.set(values)
        pos.set(positions)
        if factors is not None:
            factors.set(divided)
        stream.compute(graph, allocation)
        got = graph.nodes[0].numpy()
    op = graph.nodes[0].op
    assert op is not None
    sources = [values[np.newaxis].astype(np.float64), positions[np.newaxis, np.newaxis, np.newaxis]]
    wanted = op.reference(*sources, divided.astype(np.float64) if parameters else None)[0]
    assert np.abs(got - wanted).max() < 5e-7


def test_frequencies_beyond_float32_are_declined_or_refused() -> None:
    profile = Profile.of(Properties(processor=False, vector_width=1, local_bytes=49152, max_lanes=1024))
    x, pos = new_tensor(types.F32, (64, 2, 3)), new_tensor(types.I32, (12,))
    node = ops.rope(x, pos, n_dims=32, mode=RopeMode.VISION, sections=(4, 4, 4, 4), freq_base=1e-20)
    found = match(profile, Group((node,)))
    assert isinstance(found, Decline)
    assert "angles beyond float32" in found.reason
    for parameters in ({"freq_base": 1e-300}, {"freq_scale": np.inf}):
        with pytest.raises(ParameterError, match="freq_base and freq_scale"):
            ops.rope(x, pos, n_dims=64, **parameters)
