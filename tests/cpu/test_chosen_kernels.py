"""A device matches once for all groups with the same signature, by everything that needs the answer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from installed import device_or_skip

import ggplug as gg
from ggplug.backend import UNGROUPED, BufferType, Decline, Group, signature_of
from ggplug.errors import ComputeError
from ggplug.host import HOST, HostBufferType
from ggplug.memory import allocate_graph
from ggplug.ops import OPS
from ggplug_testing.cases import cases_of
from ggplug_testing.cases.case import Leafs
from ggplug_testing.devices.reference import ReferenceDevice

N = 8


class Counting(ReferenceDevice):
    """Records the ops that it matches."""

    def __init__(self) -> None:
        super().__init__("counting")
        self.matched: list[str] = []
        self.mode = 0
        self.other = HostBufferType("other", self)

    @property
    def variant(self) -> Any:
        return self.mode

    def match(self, group: Group) -> Any:
        assert group.node.op is not None
        self.matched.append(group.node.op.name)
        if any(source.root.buffer_type is self.other for source in group.sources):
            return Decline("not from there")
        return super().match(group)


def values(n: int = N, memory: BufferType = HOST) -> gg.Tensor:
    x = gg.new_tensor("f32", (n,))
    x.place(memory.alloc(x.nbytes))
    return x.set(1)


def build(x: gg.Tensor) -> gg.Graph:
    return gg.Graph(gg.neg(gg.sqr(gg.neg(x))).set_output())


def test_a_device_matches_each_new_kind_of_node_once() -> None:
    device = Counting()
    with gg.Scheduler([device]) as scheduler, gg.Scheduler([device]) as another, device.init() as stream:
        graph = build(values())
        scheduler.explain(graph)
        scheduler.compute(graph)
        assert sorted(device.matched) == ["neg", "neg", "sqr"]  # one neg reads placed memory, the other one does not
        assert all(device.supports_op(node) for node in graph.nodes)
        new = build(values())
        another.compute(new)
        stream.compute(new, allocate_graph(new, device.buffer_type))
        scheduler.compute(gg.Graph(gg.sqr(gg.sqr(gg.neg(values())))))
        assert len(device.matched) == 3
        scheduler.compute(build(values(2 * N)))
        assert len(device.matched) == 6


def test_the_memory_of_a_views_root_counts() -> None:
    device = Counting()
    for view in (lambda x: x, lambda x: gg.view(x, (4,)), lambda x: gg.reshape(gg.view(x, (4,)), 2, 2)):
        assert device.supports_op(gg.neg(view(values())))
        answer = device.supports_op(gg.neg(view(values(memory=device.other))))
        assert isinstance(answer, Decline)
        assert answer.reason == "not from there"


def test_a_device_whose_answers_depend_on_more_says_so() -> None:
    device = Counting()
    node = gg.neg(values())
    device.supports_op(node)
    device.mode = 1
    device.supports_op(node)
    device.mode = 0
    device.supports_op(node)
    assert device.matched == ["neg", "neg"]


def test_a_match_that_raised_is_tried_again() -> None:
    class Failing(Counting):
        def match(self, group: Group) -> Any:
            super().match(group)
            if len(self.matched) == 1:
                raise ZeroDivisionError("now and then")
            return None if len(self.matched) == 2 else ReferenceDevice.match(self, group)

    device, node = Failing(), gg.neg(values())
    with pytest.raises(ComputeError, match="now and then"):
        device.supports_op(node)
    with pytest.raises(ComputeError, match="counting returned None"):
        device.supports_op(node)
    assert device.supports_op(node)


def test_no_more_answers_are_kept_than_a_device_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Counting()
    monkeypatch.setattr(Counting, "CHOICES", 4)
    for n in range(1, 20):
        assert device.supports_op(gg.neg(values(n)))
        assert len(device.__dict__["_chosen"]) <= 4


@pytest.mark.parametrize("name", ["CPU", "OpenCL0"])
def test_real_devices_choose_once_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device, matched = device_or_skip(name), []
    match = type(device).match
    monkeypatch.setattr(type(device), "match", lambda device, group: matched.append(group) or match(device, group))
    with gg.Scheduler([device]) as scheduler:
        for _ in range(3):
            x = gg.new_tensor("f32", (173,), "x")
            graph = gg.Graph(gg.neg(x).set_output())
            scheduler.allocate(graph)
            x.set(np.ones(173))
            scheduler.compute(graph)
            assert (graph.outputs[0].numpy() == -1).all()
        scheduler.reserve(gg.Graph(gg.neg(gg.neg(x))))
    assert len(matched) == len(set(map(signature_of, matched)))
    assert sum(len(group) == 1 for group in matched) == 1


TWO_SOURCES: list[Callable[[gg.Tensor, gg.Tensor], gg.Tensor]] = [
    gg.add,
    gg.sub,
    gg.mul,
    gg.div,
    gg.mul_mat,
    gg.cpy,
    lambda x, y: gg.swiglu(x, gate=y),
    lambda x, y: gg.soft_max(x, mask=y),
    lambda x, y: gg.concat(x, y, 1),
]


@pytest.mark.parametrize("name", ["CPU", "OpenCL0"])
def test_the_kernel_of_a_node_goes_by_the_number_of_a_source_also_where_two_are_one_tensor(name: str) -> None:
    """The kernel that was chosen for ``f(x, x)`` serves ``f(x, y)``, too."""
    device = device_or_skip(name)
    for op in TWO_SOURCES:
        x, y = (gg.new_tensor("f32", (16, 16)) for _ in range(2))
        one, other = (Group((op(x, source),)) for source in (x, y))
        assert signature_of(one) == signature_of(other)
        assert device.match(one) == device.match(other), other


@pytest.mark.parametrize("name", ["CPU", "OpenCL0"])
def test_nodes_with_one_signature_have_one_kernel_whichever_is_matched_first(name: str) -> None:
    device = device_or_skip(name)
    chosen: dict[Any, Any] = {}
    again = 0
    for case in itertools.chain.from_iterable(map(cases_of, OPS.values())):
        made = case.make(Leafs(case.seed))
        graph = gg.Graph(*([made] if isinstance(made, gg.Tensor) else made))
        for group in UNGROUPED.of(graph):
            found = device.match(group)
            again += signature_of(group) in chosen
            assert chosen.setdefault(signature_of(group), found) == found, case
    assert again > 500
