"""Kernels of GPUs where vectors are longer than rows, where numbers are not finite, and where strides are zero."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ggplug import ops, types
from ggplug.backend import Device, Group
from ggplug.graph import Graph
from ggplug.memory import allocate_graph
from ggplug.ops.base import OPS
from ggplug.ops.unary import Unary
from ggplug.sketches import parameters_of
from ggplug.tensor import new_tensor
from ggplug.types import F32
from ggplug_testing.cases import Case, Leafs
from ggplug_testing.cases.case import node
from ggplug_testing.running.runner import run_case

pytest.importorskip("ggplug_simt")

from simt_devices import EVERYWHERE, IN_VECTORS, everywhere, over_devices
from simt_devices import device as device

from ggplug_simt.c.types import BLOCKS

Make = Callable[[Leafs], Any]


def conforms(device: Device, op: str, **cases: Make) -> None:
    with device.init() as stream:
        findings = [run_case(device, stream, Case(op, label, make)) for label, make in cases.items()]
    assert [str(finding) for finding in findings if finding.verdict != "passed"] == []


@everywhere
def test_what_lies_beyond_a_rows_end_has_no_part_in_its_softmax(device: Device) -> None:
    def made(n: int, scale: float, masked: bool) -> Make:
        def make(leafs: Leafs) -> Any:
            mask = np.where(leafs.random.random((3, n)) < 0.5, -math.inf, 0.25)
            mask[:, 0] = 0
            mask[2] = -math.inf
            x, hidden = leafs.tensor(F32, n, 3), leafs.array(F32, mask) if masked else None
            return node(OPS["soft_max"], x, hidden, scale=scale)

        return make

    cases = {
        f"{n} elements, scale {scale}{', masked' * masked}": made(n, scale, masked)
        for n in (1, 3, 16, 17, 37)
        for scale in (0.0, -0.0, -0.7, 3.0)
        for masked in (False, True)
    }
    conforms(device, "soft_max", **cases)


@everywhere
def test_slopes_too_small_for_float32_hide_what_a_mask_hides(device: Device) -> None:
    def make(leafs: Leafs) -> Any:
        mask = leafs.array(F32, np.where(leafs.random.random((3, 9)) < 0.5, -math.inf, -1.0))
        return node(OPS["soft_max"], leafs.tensor(F32, 9, 3, 6), mask, max_bias=700.0)

    conforms(device, "soft_max", steep=make)


@over_devices("op", ["sum", "sum_rows", "mean", "rms_norm", "l2_norm", "argmax", "cont"], EVERYWHERE)
def test_rows_of_one_repeated_element_are_as_long_as_they_are(op: str, device: Device) -> None:
    def repeated(kind: types.Type) -> Make:
        def make(leafs: Leafs) -> Any:
            few = leafs.tensor(kind, 5, 3)
            return node(OPS[op], ops.transpose(ops.view(few, 5, 21, nb=(0,), offset=0)))

        return make

    conforms(device, op, **{kind.name: repeated(kind) for kind in (types.F32, types.F16, types.BF16)})


@everywhere
def test_products_with_one_repeated_element_are_sums(device: Device) -> None:
    def make(columns: int) -> Make:
        def repeated(leafs: Leafs) -> Any:
            b = ops.transpose(ops.view(leafs.tensor(F32, columns, 2), columns, 21, nb=(0,), offset=0))
            return node(OPS["mul_mat"], leafs.tensor(F32, 21, 5), b)

        return repeated

    conforms(device, "mul_mat", few=make(3), many=make(40))


@over_devices("type", [type for type in types.TYPES if type.is_quantized and type in BLOCKS], IN_VECTORS)
def test_vectors_of_halves_may_lie_at_any_even_address(type: types.Type, device: Device) -> None:
    def make(leafs: Leafs) -> Any:
        b = ops.view(leafs.tensor(types.F16, 258, 4), 256, 4, nb=(516,), offset=2)
        return node(OPS["mul_mat"], leafs.tensor(type, 256, 9), b)

    conforms(device, "mul_mat", shifted=make)


@everywhere
def test_columns_that_chose_no_expert_are_zero_where_columns_share_tiles(device: Device) -> None:
    def make(leafs: Leafs) -> Any:
        ids = leafs.random.integers(0, 2, (300, 2))
        ids[7, 1], ids[100], ids[299, 0] = 2, [-1, 2**31 - 1], -(2**31)
        return node(
            OPS["mul_mat_id"], leafs.tensor(F32, 40, 70, 2), leafs.tensor(F32, 40, 2, 300), leafs.array(types.I32, ids)
        )

    assert "route" in [each.program.kernel for each in device.match(Group((make(Leafs(0)),))).launches]
    conforms(device, "mul_mat_id", few=make)


@everywhere
def test_infinite_elements_make_a_sum_infinite_wherever_they_are(device: Device) -> None:
    def infinite(place: int, sign: float) -> Make:
        def make(leafs: Leafs) -> Any:
            # Rows apart, so that they are not added up as one.
            rows = leafs.random.standard_normal((6, 50))
            rows[place] = sign * math.inf
            return node(OPS["sum"], ops.view(leafs.array(F32, rows), 37, 6, nb=(200,), offset=0))

        return make

    cases = {f"{sign} in row {place}": infinite(place, sign) for place in (0, 3, 5) for sign in (1, -1)}
    conforms(device, "sum", **cases)


@over_devices("op", sorted(op.name for op in OPS.values() if issubclass(op, Unary)), IN_VECTORS)
def test_an_element_has_no_part_in_the_results_of_its_neighbours(op: str, device: Device) -> None:
    (parameters, *_) = parameters_of(OPS[op])

    def norm_near(far: float) -> npt.NDArray[Any]:
        values = np.random.default_rng(2).uniform(1, 2, 512) * 2.0 ** np.random.default_rng(3).integers(-20, 3, 512)
        values = values.astype(np.float32)
        values[5::16] = far
        x = new_tensor(F32, (512,)).set_input()
        graph = Graph(node(OPS[op], x, **parameters).set_output())
        allocation = allocate_graph(graph, device.buffer_type)
        allocation.prepare(graph)
        x.set(values)
        with device.init() as stream:
            stream.compute(graph, allocation)
            found: npt.NDArray[Any] = graph.nodes[0].numpy()
        return np.delete(found, np.arange(5, 512, 16))

    wanted = norm_near(0.75)
    for far in (3e4, 1e6, 1e10, 3e38, math.inf, -math.inf, math.nan):
        np.testing.assert_allclose(norm_near(far), wanted, rtol=1e-6)


@everywhere
def test_parameters_that_float32_does_not_reach_are_infinite(device: Device) -> None:
    conforms(device, "clamp", wide=lambda leafs: node(OPS["clamp"], leafs.tensor(F32, 20), min=-1e300, max=1e300))
    conforms(device, "scale", far=lambda leafs: node(OPS["scale"], leafs.tensor(F32, 20), s=1.0, bias=-1e300))
