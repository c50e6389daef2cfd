"""Matrix products on the CPU device: every path, on both sides of every threshold, against float64 NumPy."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("ggplug_cpu")

import ggplug as gg
from ggplug import types
from ggplug.backend import Decline
from ggplug.tensor import Tensor, decode, encode, new_tensor
from ggplug_cpu import features
from ggplug_cpu.kernels.mul_mat import DOT_COLUMNS, plan_mul_mat, plan_mul_mat_id
from ggplug_cpu.kernels.steps import FAULT_WORDS, FAULTS, POSITION, Steps
from ggplug_cpu.tape import WORKSPACE, Entry, Ref, Tape
from ggplug_cpu.team import Team

Array = npt.NDArray[Any]

# Targets whose kernels' logic differs.  GGPLUG_TEST_TARGETS=all runs the whole file for each; without it every test runs
# for this machine's own target and a few for the others.
_EVERYWHERE = os.environ.get("GGPLUG_TEST_TARGETS") == "all"
_OTHERS = [name for name in ("generic", "avx2", "avx512") if name in features.choices()]
if features.has("avx512f"):
    _OTHERS.append("native+amx-emulated")

#: NMSE allowed against float64 on the decoded weights; block types are compared with ggml's algorithm instead.
_ALLOWED = {"f32": 1e-11, "f16": 1e-6, "bf16": 6e-6}

_POSITION = 77


@pytest.fixture(scope="module")
def teams() -> Iterator[dict[int, Team]]:
    made = {n: Team(n) for n in (1, 2)}
    yield made
    for team in made.values():
        team.close()


@pytest.fixture(params=["native", *_OTHERS] if _EVERYWHERE else ["native"])
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    with features.forced(request.param):
        yield request.param


@pytest.fixture(params=_OTHERS)
def other_target(request: pytest.FixtureRequest) -> Iterator[str]:
    with features.forced(request.param):
        yield request.param


@dataclass
class Operand:
    """A tensor, or a view of one, and the bytes of its root."""

    tensor: Tensor
    raw: npt.NDArray[np.uint8]

    @property
    def address(self) -> int:
        return int(self.raw.ctypes.data) + self.tensor.view_offset

    @property
    def values(self) -> Array:
        """float64, NumPy's order."""
        return decode(self.raw[self.tensor.view_offset :], self.tensor).astype(np.float64)

    def view(self, tensor: Tensor) -> Operand:
        return Operand(tensor, self.raw)


def operand(type_name: str, *ne: int, seed: int, scale: float = 1.0) -> Operand:
    """Normal numbers, rounded to a type; ``ne`` innermost first."""
    tensor = new_tensor(type_name, ne)
    numbers = np.random.default_rng(seed).standard_normal(tensor.ne[::-1]).astype(np.float32) * np.float32(scale)
    return Operand(tensor, encode(numbers, tensor.type).reshape(-1).copy())


def steps_of(node: Tensor) -> Steps:
    steps = plan_mul_mat(node) if isinstance(node.op, gg.ops.MulMat) else plan_mul_mat_id(node)
    assert not isinstance(steps, Decline), steps.reason
    return steps


def compute(team: Team, node: Tensor, *sources: Operand) -> tuple[Array, list[int]]:
    """The result, and the record of faults.  Every byte around the result must stay as it is."""
    steps = steps_of(node)
    guard = 64
    result = np.full(node.size + 2 * guard, np.nan, np.float32)
    faults = np.zeros(FAULT_WORDS, np.int64)
    bases = [result.ctypes.data + 4 * guard, *(s.address for s in sources), faults.ctypes.data]

    def placed(word: Any) -> Any:
        if not isinstance(word, Ref) or word.slot == WORKSPACE:
            return word
        if word.slot == POSITION:
            return _POSITION
        return Ref(len(bases) - 1 if word.slot == FAULTS else word.slot, word.offset)

    entries = [Entry(e.kernel, [placed(w) for w in e.words], e.tasks, e.barrier_before) for e in steps.entries]
    tape = Tape(entries, len(bases), steps.workspace_bytes, steps.scratch_bytes)
    team.run(tape.bind(bases))
    assert np.isnan(result[:guard]).all()
    assert np.isnan(result[-guard:]).all()
    return result[guard:-guard].reshape(node.ne[::-1]), faults.tolist()


def product(a: Array, b: Array) -> Array:
    """float64, with a's matrices repeated for b's."""
    a = np.repeat(np.repeat(a, b.shape[0] // a.shape[0], 0), b.shape[1] // a.shape[1], 1)
    out: Array = b @ a.swapaxes(-1, -2)
    return out


def nmse(got: Array, wanted: Array) -> float:
    return float(((got.astype(np.float64) - wanted) ** 2).sum() / (wanted**2).sum())


def rounded_to_q8_0(b: Array) -> Array:
    """What ggml multiplies block types with: int8 and an f16 scale for every 32 activations."""
    groups = b.astype(np.float32).reshape(-1, 32)
    scale = np.abs(groups).max(1, keepdims=True) / np.float32(127)
    with np.errstate(divide="ignore"):
        inverse = np.where(scale > 0, 1 / scale, 0)
    quants = np.rint(groups * inverse)
    return (quants.astype(np.float64) * scale.astype(np.float16).astype(np.float64)).reshape(b.shape)


def check(got: Array, a: Operand, b: Operand) -> None:
    wanted = product(a.values, b.values)
    name = a.tensor.type.name
    if name in _ALLOWED:
        assert nmse(got, wanted) <= _ALLOWED[name]
    elif b.tensor.type.is_quantized:
        assert nmse(got, wanted) <= 1e-11  # nothing is rounded but sums
    else:
        assert nmse(got, wanted) <= 2 * nmse(product(a.values, rounded_to_q8_0(b.values)), wanted)


def kernels(node: Tensor) -> str:
    return steps_of(node).name


PAIRS = [
    ("f32", "f32"),
    ("f16", "f32"),
    ("f16", "f16"),
    ("bf16", "f32"),
    ("bf16", "bf16"),
    ("q8_0", "f32"),
    ("q8_0", "q8_0"),
    ("q4_0", "f32"),
    ("q4_0", "q8_0"),
]
WHOLE = 1 << 30


@pytest.mark.parametrize(("weights", "activations"), PAIRS)
def test_products_of_every_pair_and_shape_are_as_exact_as_promised(
    target: str, teams: dict[int, Team], weights: str, activations: str
) -> None:
    block = 32 if weights in ("q8_0", "q4_0") else 1
    for K, M, N in [
        (32, 1, 1), (64, 3, 2), (96, 17, 4), (160, 33, 5), (32, 100, 100), (544, 40, 13), (1056, 65, 30), (2080, 19, 7),
        (1, 1, 1), (3, 17, 3), (7, 5, 17), (31, 50, 1), (129, 4, 4), (515, 35, 6),
    ]:  # fmt: skip
        if K % block:
            continue
        a, b = operand(weights, K, M, seed=K), operand(activations, K, N, seed=N)
        node = gg.mul_mat(a.tensor, b.tensor)
        got, _ = compute(teams[2], node, a, b)
        check(got, a, b)
        assert ("mul_mat_dot" in kernels(node)) == (N <= DOT_COLUMNS)
