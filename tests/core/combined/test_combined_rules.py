"""Each op of a combined device, after a product whose weights are split, gives what one device gives."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import ggplug as gg
from ggplug.combined import CombinedDevice
from ggplug.combined.weights import split_weights
from ggplug.tensor import Context, Tensor
from ggplug.types import BufferUsage
from ggplug_testing import FakeDevice

HEADS, D, TOKENS = 4, 8, 6


def heads(h: Tensor) -> Tensor:
    return gg.reshape(h, D, HEADS, TOKENS)


def by_token(h: Tensor) -> Tensor:
    return gg.permute(heads(h), 0, 2, 1, 3)


def constant(*shape: int, type: str = "f32") -> Tensor:
    return gg.tensor(np.random.default_rng(5).standard_normal(shape), type)


def ids(*values: int) -> Tensor:
    return gg.tensor(np.array(values, np.int32))


def attended(h: Tensor, groups: int = HEADS) -> Tensor:
    k, v = (constant(groups, 5, D, type="f16") for _ in range(2))
    return gg.flash_attn_ext(by_token(h), k, v, constant(TOKENS, 5, type="f16"), 0.3, sinks=constant(HEADS))


IN_PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "with a bias": lambda h: h + constant(HEADS * D),
    "with a number for each token": lambda h: h * constant(TOKENS, 1),
    "with a whole tensor first": lambda h: constant(TOKENS, HEADS * D) - h,
    "of one function": gg.silu,
    "gated": lambda h: gg.swiglu(h, constant(TOKENS, HEADS * D)),
    "norms of heads": lambda h: gg.rms_norm(heads(h)) * constant(D),
    "rotated heads": lambda h: gg.rope(heads(h), ids(*range(TOKENS)), n_dims=D),
    "soft max of heads": lambda h: gg.soft_max(heads(h), scale=0.5),
    "attention": attended,
    "attention to one head of keys": lambda h: attended(h, 1),
    "attention to grouped heads": lambda h: attended(h, 2),
    "joined heads": lambda h: gg.scale(gg.reshape(gg.rms_norm(heads(h)), HEADS * D, TOKENS), 2.0),
    "copied after a permutation": lambda h: gg.cont(by_token(h)),
    "transposed": lambda h: gg.cont(gg.transpose(h)),
    "a view with another dimension": lambda h: gg.cont(
        gg.permute(gg.view(heads(h), D, HEADS, 3, 2, nb=(4 * D, 4 * D * HEADS, 12 * D * HEADS)), 0, 2, 1, 3)
    ),
    "the first elements of each head": lambda h: gg.cont(gg.view(h, 3, HEADS, TOKENS, nb=(4 * D, h.nb[1]))),
    "the second elements of each head": lambda h: gg.cont(gg.view(h, 1, HEADS, TOKENS, nb=(4 * D, h.nb[1]), offset=4)),
    "products of heads": lambda h: gg.mul_mat(constant(2, 5, D), by_token(h)),
    "chosen tokens": lambda h: gg.get_rows(h, ids(3, 0, 3)),
    "chosen biases": lambda h: gg.add_id(
        gg.reshape(h, HEADS * D, 2, 3), constant(4, HEADS * D), gg.tensor(np.array([[0, 3], [1, 1], [2, 0]], np.int32))
    ),
}
WHOLE: dict[str, Callable[[Tensor], Tensor]] = {
    "norms of rows": gg.rms_norm,
    "sums of rows": gg.sum_rows,
    "concatenated": lambda h: gg.concat(h, h, dim=0),
    "soft max of rows": gg.soft_max,
    "gated halves": lambda h: gg.swiglu(h),
    "the ends of heads": lambda h: gg.cont(gg.view(h, 6, HEADS, 4, nb=(4 * D, h.nb[1]), offset=16)),
    "a part of each row": lambda h: gg.cont(gg.view(h, 9, TOKENS, nb=(h.nb[1],), offset=20)),
    "rows that reach into the next head": lambda h: gg.cont(
        gg.view(gg.reshape(h, D, HEADS * TOKENS // 2, 2), 5, HEADS, nb=(4 * D * HEADS,), offset=20)
    ),
    "repeated": lambda h: gg.repeat(h, gg.new_tensor("f32", (HEADS * D, 2 * TOKENS))),
    "slopes of heads": lambda h: gg.soft_max(heads(h), constant(HEADS, D, type="f16"), max_bias=2.0),
    "sorted": lambda h: gg.argsort(h),
    "also read whole": lambda h: gg.silu(h) + gg.sum_rows(h),
    "a Python function": lambda h: gg.map_custom1(h, lambda out, x, *_: np.copyto(out, x + 1)),
}


def on_one(build: Callable[[Tensor], Tensor], w: np.ndarray, x: np.ndarray) -> np.ndarray:
    return gg.compute(build(gg.mul_mat(gg.tensor(w), gg.tensor(x)))).numpy()


def on_members(build: Callable[[Tensor], Tensor], w: np.ndarray, x: np.ndarray, members: int) -> tuple[np.ndarray, str]:
    """The values on fake devices, and what the first stages compute in parts."""
    cpu = gg.device("CPU")
    device = CombinedDevice([FakeDevice(f"fake{n}", inner=cpu) for n in range(members)])
    with Context("weights") as weights, gg.Scheduler([device, cpu]) as scheduler:
        weight = weights.new_tensor("f32", w.shape[::-1], "w")
        graph = gg.Graph(build(gg.mul_mat(weight, gg.tensor(x))))
        ((_, memory),) = split_weights(device, graph, weights).items()
        buffer = memory.alloc(memory.alloc_size(weight))
        weights.buffers.append(buffer)
        buffer.usage = BufferUsage.WEIGHTS
        weight.place(buffer)
        weight.set(w)
        scheduler.compute(graph)
        details = " ".join(row.text for row in scheduler.explain(graph).details)
        return graph.outputs[0].numpy(), details


@pytest.mark.parametrize("members", [2, 4])
@pytest.mark.parametrize("name", [*IN_PARTS, *WHOLE])
def test_an_op_after_a_split_product_gives_what_one_device_gives(name: str, members: int) -> None:
    random = np.random.default_rng(7)
    w, x = (random.standard_normal((n, 16)).astype(np.float32) for n in (HEADS * D, TOKENS))
    build = IN_PARTS.get(name) or WHOLE[name]
    found, details = on_members(build, w, x, members)
    np.testing.assert_allclose(found, on_one(build, w, x), rtol=1e-4, atol=1e-4)
    joined = "join of" in details
    if name in WHOLE:
        assert joined or "fake" not in details.partition(";")[0] or name == "a Python function", details
    elif members == 2:
        assert not joined, details
        assert not re.search(r"(\d+) nodes, (?!\1 in parts)", details), details
