"""The ops' references give ggml's own recorded results, each within the error that ggml's suite allows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ggplug.ops import OPS
from ggplug_testing.devices.reference import ReferenceDevice
from ggplug_testing.reporting.report import Finding
from ggplug_testing.running.placement import Placement
from ggplug_testing.vectors import Recording, replay

# Views have no cases of their own: they come with the ops that read them.
UNRECORDED = {
    # compared with NumPy in test_ops_functions.py
    "diag_mask_zero",
    "view",
    "reshape",
    "permute",
    "transpose",
    # ggml's suite has no case of these; test_ops_images.py proves them otherwise
    "im2col_back",
    "pool_2d_back",
    "win_part",
    "win_unpart",
    "get_rel_pos",
    "add_rel_pos",
    # the gradient of attention, in which ggml aborts; test_ops_flash_attention.py
    "flash_attn_back",
    # newer than the recording; test_ops_special.py and test_ops_functions.py
    "swiglu_clamp",
    "dsv4_hc_pre_gated",
    # Python functions; test_python_calls.py
    "map_custom1",
    "map_custom2",
    "map_custom3",
    "custom_4d",
}

# What ggml calls the cases of ops whose functions have another name.
RENAMED = {
    "conv_2d": "conv_2d_direct",
    "conv_2d_dw": "conv_2d_dw_direct",
    "conv_3d": "conv_3d_direct",
    "upscale": "interpolate",
}

LARGE = {"group_norm", "rwkv_wkv6", "rwkv_wkv7", "gated_linear_attn", "ssm_scan"}
"""Ops whose recorded cases are too large for the compact file; test_ops_recurrent.py proves them as well."""


@pytest.fixture(scope="module")
def recording(shared: Path | None, data: Path) -> Recording:
    complete = None if shared is None else shared / "vectors" / "ggml_ops.npz"
    return Recording(complete if complete and complete.is_file() else data / "ggml_ops_compact.npz")


@pytest.fixture(scope="module")
def outcomes(recording: Recording) -> list[Finding]:
    return list(replay(recording, ReferenceDevice()))


def test_no_reference_differs_from_ggml(outcomes: list[Finding]) -> None:
    failed = [f"{o.subject} {o.case}: {o.reason}" for o in outcomes if o.verdict == "failed"]
    assert not failed, "\n".join(failed)


def test_only_missing_ops_and_types_are_left_out(outcomes: list[Finding]) -> None:
    for outcome in outcomes:
        if outcome.verdict == "declined":
            assert "is not defined" in outcome.reason or "has no reference" in outcome.reason, outcome


def test_every_op_was_compared(outcomes: list[Finding], shared: Path | None) -> None:
    named = {outcome.subject.lower() for outcome in outcomes if outcome.verdict == "passed"}
    passed = {RENAMED.get(name, name) for name in named}
    declared = {name for name, cls in OPS.items() if cls.__module__.startswith("ggplug.ops.")}
    complete = shared is not None and (shared / "vectors" / "ggml_ops.npz").is_file()
    assert declared - passed == UNRECORDED | (set() if complete else LARGE)


def test_copies_into_block_types_have_the_very_bytes_of_ggml(recording: Recording) -> None:
    device, compared = ReferenceDevice(), 0
    with device.init() as stream:
        for case in recording:
            if case.op not in ("CPY", "SET_ROWS") or case.build() is not None:
                continue
            with Placement(case.graph, device.buffer_type, guarded=64, aliases=case.aliases) as placement:
                for leaf, raw in case.inputs():
                    placement.write(leaf, raw)
                stream.compute(case.graph, placement.allocation)
                for tensor, raw in case.outputs():
                    if tensor.type.is_quantized:
                        np.testing.assert_array_equal(placement.read_bytes(tensor), raw, case.vars)
                        compared += 1
    assert compared > 10
