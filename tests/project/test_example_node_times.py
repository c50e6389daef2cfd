"""The example of hooks: times of nodes by device and op, and a policy that places products."""

from __future__ import annotations

from examples.node_times import computed
from ggplug.hookspecs import HOOKS
from ggplug_testing import FakeDevice, ReferenceDevice
from ggplug_testing.devices.fusing import FusingDevice


def test_times_are_told_for_each_op_and_the_policy_places_products() -> None:
    devices = [ReferenceDevice("first"), ReferenceDevice("second")]
    times = computed(devices).nanoseconds
    assert ("second", "mul_mat") in times
    assert {ops for _, ops in times} in ({"mul_mat", "add", "relu"}, {"mul_mat", "add + relu"})
    assert all(spent > 0 for spent in times.values())
    assert "ggplug_nodes_timed" not in HOOKS.callers
    assert "ggplug_placement" not in HOOKS.callers


def test_members_of_a_group_are_named_together() -> None:
    times = computed([FusingDevice()]).nanoseconds
    assert any(" + " in ops for _, ops in times), times


def test_a_device_that_cannot_tell_nodes_apart_has_one_time_for_all() -> None:
    times = computed([FakeDevice("whole")]).nanoseconds
    assert sum(spent for spent in times.values()) > 0
