"""A device that computes formulas in float32, operation by operation, conforms, in whatever order it adds up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ggplug.backend import Operand
from ggplug.ops.base import OPS, Array, Op
from ggplug_testing import cases_of
from ggplug_testing.cases import Case
from ggplug_testing.judging.oracle import decoded, round_into
from ggplug_testing.running.runner import run_op
from ggplug_testing.vectors import find_device
from tests.mutation.kernels import FaultyKernels

Sum = Callable[[Array], Array]
"""Of the last axis, which stays."""

ONE = np.float32(1)


def one_by_one(x: Array) -> Array:
    return np.add.accumulate(x, axis=-1, dtype=np.float32)[..., -1:] if x.shape[-1] else np.zeros((*x.shape[:-1], 1))


def in_pairs(x: Array) -> Array:
    """Halves added to each other until one number is left."""
    while x.shape[-1] > 1:
        if x.shape[-1] % 2:
            x = np.concatenate([x, np.zeros((*x.shape[:-1], 1), np.float32)], axis=-1)
        x = x[..., ::2] + x[..., 1::2]
    return x if x.shape[-1] else np.zeros((*x.shape[:-1], 1))


def in_lanes(x: Array) -> Array:
    """Eight sums side by side, as vector registers have them, and these added up."""
    padded = np.concatenate([x, np.zeros((*x.shape[:-1], -x.shape[-1] % 8), np.float32)], axis=-1)
    return in_pairs(one_by_one(np.moveaxis(padded.reshape(*x.shape[:-1], -1, 8), -2, -1))[..., 0])


def norm(op: Op, x: Array, add: Sum) -> Array:
    n = np.float32(x.shape[-1])
    centred = x - add(x) / n
    return centred * (ONE / np.sqrt(add(centred * centred) / n + np.float32(op.eps)))  # type: ignore[attr-defined]


def rms_norm(op: Op, x: Array, add: Sum) -> Array:
    return x * (ONE / np.sqrt(add(x * x) / np.float32(x.shape[-1]) + np.float32(op.eps)))  # type: ignore[attr-defined]


def l2_norm(op: Op, x: Array, add: Sum) -> Array:
    return x * (ONE / np.fmax(np.sqrt(add(x * x)), np.float32(op.eps)))  # type: ignore[attr-defined]


def group_norm(op: Op, x: Array, add: Sum) -> Array:
    channels = -(-x.shape[1] // op.n_groups)  # type: ignore[attr-defined]
    parts = np.split(x, range(channels, x.shape[1], channels), axis=1)
    return np.concatenate(
        [norm(op, part.reshape(x.shape[0], 1, 1, -1), add).reshape(part.shape) for part in parts], axis=1
    )


FORMULAS: dict[str, Callable[[Op, Array, Sum], Array]] = {
    "norm": norm,
    "rms_norm": rms_norm,
    "l2_norm": l2_norm,
    "group_norm": group_norm,
    "sum_rows": lambda op, x, add: add(x),
    "mean": lambda op, x, add: add(x) / np.float32(x.shape[-1]),
    "sum": lambda op, x, add: add(x.reshape(1, 1, 1, -1)),
    "cumsum": lambda op, x, add: np.add.accumulate(x, axis=-1, dtype=np.float32),
}
"""As their docstrings write them; of other ops the references of sources in float32."""

WIDER = {"rope", "rope_back"}
"""Ops that take more than float32, as docs/precision.md says."""

OTHERS = [op.name for op in OPS.values() if not (op.is_view or op.moves or op.writes or op.name in {*FORMULAS, *WIDER})]


def narrow(values: Array) -> Array:
    """Floats as float32."""
    return values.astype(np.float32) if values.dtype.kind == "f" else values


def in_float32(add: Sum) -> FaultyKernels:
    """The device."""

    def kernel(op: Op, dst: Operand, *src: Operand | None) -> None:
        if not dst.tensor.size:
            return
        sources = [None if each is None else narrow(decoded(each.array(), each.tensor)) for each in src]
        x = sources[0] if sources else None
        with np.errstate(all="ignore"):
            if op.name in FORMULAS and x is not None and x.size:
                values = FORMULAS[op.name](op, x, add)
                assert values.dtype == np.float32
            else:
                values = np.asarray(op.reference(*sources)).reshape(dst.tensor.ne[::-1])
        round_into(dst.array(), dst.tensor, values.astype(np.float64) if values.dtype.kind == "f" else values)

    return FaultyKernels(kernel)


def expect_near_enough(add: Sum, name: str, cases: list[Case]) -> None:
    found = run_op(in_float32(add), OPS[name], cases=cases)
    bad = [str(each) for each in found if each.bad]
    assert not bad, "\n".join([f"{len(bad)} of {len(found)}", *bad[:20]])


@pytest.mark.parametrize("add", [one_by_one, in_pairs, in_lanes])
@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_in_float32_operation_by_operation_is_near_enough(name: str, add: Sum) -> None:
    expect_near_enough(add, name, cases_of(OPS[name]))


@pytest.mark.parametrize("name", OTHERS)
def test_so_are_the_references_of_other_ops_in_float32(name: str) -> None:
    every = cases_of(OPS[name])
    special = [case for case in every if "special" in case.label]
    expect_near_enough(in_pairs, name, [*special, *every[:: max(1, len(every) // 12)]])


@pytest.mark.parametrize("name", ["CPU", "OpenCL0"])
@pytest.mark.parametrize("op", ["norm", "rms_norm", "l2_norm", "sum_rows", "mean", "sum"])
def test_devices_of_ggplug_keep_what_sums_in_float32_lose(name: str, op: str) -> None:
    pytest.importorskip(f"ggplug_{name.lower().rstrip('0')}")
    wide = [case for case in cases_of(OPS[op]) if "wide row" in case.label]
    assert wide
    found = run_op(find_device(name), OPS[op], cases=wide, max_nmse=1e-5)
    assert [str(each) for each in found if each.bad] == []
