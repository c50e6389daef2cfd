"""Graphs as models have them whose nodes the library in C computes together, by name."""

from __future__ import annotations

from collections.abc import Callable

from ggplug import ops, types
from ggplug.graph import Graph
from ggplug.tensor import Tensor, new_tensor


def f32(*ne: int) -> Tensor:
    return new_tensor(types.F32, ne).set_input()


def biased_product(columns: int = 3) -> Graph:
    product = ops.mul_mat(new_tensor(types.Q8_0, (64, 24)).set_input(), f32(64, columns))
    return Graph(ops.add(ops.gelu(ops.add(product, f32(24))), f32(24, columns)).set_output())


def gated_products(columns: int = 3) -> Graph:
    x = f32(64, columns)
    gate, up = (ops.mul_mat(new_tensor(types.F16, (64, 24)).set_input(), x) for _ in range(2))
    return Graph(ops.swiglu(gate, gate=up).set_output())


def norm_of_a_sum() -> Graph:
    x = f32(40, 3)
    total = ops.add(x, f32(40, 3))
    normed = ops.add(ops.mul(ops.norm(total), f32(40)), f32(40))
    return Graph(ops.add(ops.mul_mat(f32(40, 40), normed), total).set_output())


def scaled_norm() -> Graph:
    return Graph(ops.mul(ops.rms_norm(f32(40, 3)), f32(40)).set_output())


def rotation_into_a_cache() -> Graph:
    rotated = ops.rope(f32(16, 2, 3), new_tensor(types.I32, (3,)).set_input(), n_dims=16)
    rows, ids = ops.reshape(rotated, 32, 3), new_tensor(types.I64, (3,)).set_input()
    return Graph(ops.set_rows(new_tensor(types.F16, (32, 8)).set_input(), rows, ids).set_output())


def run_of_ops() -> Graph:
    x = f32(40, 3)
    return Graph(ops.scale(ops.mul(ops.silu(x), f32(40)), 0.5).set_output())


EXAMPLES: dict[str, tuple[Callable[[], Graph], list[str]]] = {
    "biased product": (biased_product, ["mul_mat_rows[TA=q8_0 TB=f32] + add_gelu_add"]),
    "gated products": (gated_products, ["mul_mat_rows[TA=f16 TB=f32]", "mul_mat_rows[TA=f16 TB=f32] + swiglu"]),
    "norm of a sum": (
        norm_of_a_sum,
        ["normalise[TD=f32 TX=f32 TY=f32] + mul_add", "mul_mat_rows[TA=f32 TB=f32] + add"],
    ),
    "scaled norm": (scaled_norm, ["normalise[TD=f32 TX=f32] + mul"]),
    "rotation into a cache": (rotation_into_a_cache, ["rope[TD=f16 TX=f32] + set_rows"]),
    "run of ops": (run_of_ops, ["map_run[TD=f32 TX=f32] + silu_mul_scale"]),
}
"""A graph, and the launches that compute it."""
