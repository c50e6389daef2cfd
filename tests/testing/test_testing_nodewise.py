"""Two devices compared node by node: a seeded fault is found at its node, and nothing else is called wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from wrong_device import Wrong

import ggplug as gg
from ggplug.backend import Decline, Device, Group
from ggplug.cli.output import plain
from ggplug.errors import GraphError, TensorStateError
from ggplug.graph import Graph
from ggplug.testing import Differences, FakeDevice, ReferenceDevice, compare
from ggplug_testing.devices.fusing import PATTERNS, FusingDevice

RANDOM = np.random.default_rng(5)


def drawn(*shape: int) -> gg.Tensor:
    return gg.tensor(RANDOM.standard_normal(shape).astype(np.float32))


def is_op(name: str) -> Callable[[Group], bool]:
    return lambda group: len(group) == 1 and group.node.op.name == name


def layers() -> Graph:
    """x -> mul_mat -> rms_norm, mul (a group on devices that have it) -> silu -> mul_mat."""
    x = drawn(3, 32)
    y = gg.mul_mat(drawn(16, 32), x, name="first")
    y = gg.mul(gg.rms_norm(y, name="normed"), drawn(16), name="scaled")
    y = gg.silu(y, name="active")
    return Graph(gg.mul_mat(drawn(8, 16), y, name="last").set_output())


def names(found: Differences) -> list[str]:
    return [each.node.name for each in found.wrong]


def test_right_devices_agree_on_every_node() -> None:
    seen: list[tuple[int, int]] = []
    found = compare(
        layers(), ReferenceDevice(), FusingDevice(), progress=lambda done, total: seen.append((done, total))
    )
    assert found.ok
    assert found.first is None
    assert found.n_nodes == 5
    assert seen == [(n, 5) for n in range(1, 6)]
    assert str(found) == "5 nodes agree on reference and fusing"


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("op", ["mul_mat", "rms_norm", "mul", "silu"])
def test_a_wrong_op_is_found_where_it_is_and_nowhere_else(op: str, reference: bool) -> None:
    graph = layers()
    found = compare(graph, ReferenceDevice(), Wrong(is_op(op), patterns=()), reference=reference)
    assert names(found) == [node.name or "normed" for node in graph.nodes if node.op.name == op]
    first = found.first
    assert first is not None
    assert first.device == "wrong"
    assert first.kernel == f"wrong_{op}"
    assert first.blamed == ("wrong",)
    assert first.node.number == [node.op.name for node in graph.nodes].index(op)
    assert first.elements[0].place == (0, 0)
    assert first.elements[0].got - first.elements[0].wanted == pytest.approx(0.01, rel=1e-3)
    after = [node.name for node in graph.nodes[first.node.number + 1 :] if node.op.name != op]
    assert [each.name for each in found.follows] == after


def test_the_first_device_may_be_the_wrong_one() -> None:
    found = compare(layers(), Wrong(is_op("silu"), patterns=()), ReferenceDevice())
    assert names(found) == ["active"]
    assert found.wrong[0].blamed == ("wrong",)
    found = compare(layers(), Wrong(is_op("silu"), patterns=()), ReferenceDevice(), reference=True)
    assert [(each.node.name, each.device) for each in found.wrong] == [("active", "wrong")]


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("a_is_wrong", [False, True])
def test_a_wrong_group_is_distinguished_from_wrong_nodes(reference: bool, a_is_wrong: bool) -> None:
    patterns = [each for each in PATTERNS if each.name == "norm_scale"]
    wrong = Wrong(lambda group: len(group) == 2, patterns=patterns)
    devices = (wrong, ReferenceDevice()) if a_is_wrong else (ReferenceDevice(), wrong)
    found = compare(layers(), *devices, reference=reference)
    assert [(each.node.name, each.device, each.kernel) for each in found.wrong] == [
        ("scaled", "wrong", "wrong_rms_norm_mul")
    ]
    assert [node.name for node in found.wrong[0].group] == ["normed", "scaled"]
    assert found.wrong[0].alone == ()
    both = Wrong(lambda group: group.node.name == "scaled", patterns=patterns)
    alone = compare(layers(), ReferenceDevice(), both, reference=reference).wrong[0]
    assert [node.name for node in alone.alone] == ["scaled"]
    assert compare(layers(), ReferenceDevice(), wrong, groups=False, reference=reference).ok


def test_a_group_that_writes_into_a_cache_is_judged_from_what_lay_there() -> None:
    def graph() -> Graph:
        cache, rows = drawn(6, 8), gg.tensor(np.array([4, 1], np.int64))
        rotated = gg.rope(drawn(2, 1, 8), gg.tensor(np.array([4, 1], np.int32)), 8, name="rotated")
        held = gg.set_rows(cache, gg.reshape(rotated, 8, 2), rows, name="held")
        again = gg.set_rows(held, drawn(1, 8), gg.tensor(np.array([4], np.int64)), name="again")
        return Graph(gg.scale(again, 2.0, name="read").set_output())

    before = graph()
    held = before.leafs[0].tobytes()
    assert compare(before, ReferenceDevice(), FusingDevice()).ok
    assert before.leafs[0].tobytes() == held, "the graph's own tensors stay as they are"
    found = compare(graph(), ReferenceDevice(), Wrong(lambda group: group.node.name == "held"))
    assert names(found) == ["held"]
    assert [node.name for node in found.wrong[0].group] == ["rotated", "held"]
    assert [node.name for node in found.wrong[0].alone] == ["held"]
    assert [node.name for node in found.follows] == ["again", "read"]


class Meddling(FusingDevice):
    """A device whose kernel of one op also changes other arguments than its result."""

    def __init__(self, op: str, meddle: Callable[..., None]) -> None:
        super().__init__("meddling", patterns=())
        self.op, self.meddle = op, meddle

    def match(self, group: Group) -> Any:
        found = super().match(group)
        if isinstance(found, Decline) or group.node.op.name != self.op:
            return found

        def kernel(*args: Any) -> None:
            found(*args)
            self.meddle(*args)

        return kernel


def only_wrong(graph: Graph, device: Device) -> tuple[str, str]:
    """The op and the reason of the one node that the device computes wrongly, whoever judges it."""
    found = compare(graph, ReferenceDevice(), device)
    assert compare(graph, ReferenceDevice(), device, reference=True).wrong[0].reason == found.wrong[0].reason
    [wrong] = found.wrong
    assert wrong.blamed == ("meddling",)
    return wrong.node.op, wrong.reason


def test_a_kernel_that_changes_what_it_reads_is_found_and_no_reader_is_blamed() -> None:
    def clear(node: Any, result: Any, a: Any, b: Any) -> None:
        a.array()[...] = 0

    leaf = drawn(4, 8)
    held = leaf.tobytes()
    made = gg.add(leaf, drawn(4, 8), name="made")
    graph = Graph(gg.sub(made, gg.mul(made, drawn(4, 8))).set_output())
    op, reason = only_wrong(graph, Meddling("mul", clear))
    assert (op, "'made'" in reason, "which is only read" in reason) == ("mul", True, True)
    op, reason = only_wrong(graph, Meddling("add", clear))
    assert (op, "in host" in reason, "which is only read" in reason) == ("add", True, True)
    assert leaf.tobytes() == held, "the graph's own tensors stay as they are"


def test_a_kernel_that_writes_more_of_a_cache_than_its_rows_is_found() -> None:
    def write_a_later_row(node: Any, result: Any, *sources: Any) -> None:
        row = result.array()
        np.lib.stride_tricks.as_strided(row, (1, 1, 10, 8), row.strides)[0, 0, 8] = 5

    cache = drawn(10, 8)
    graph = Graph(gg.cpy(drawn(4, 8), gg.view(cache, 8, 4, nb=(32,))).set_output())
    graph.expand(gg.scale(cache, 2.0).set_output())
    op, reason = only_wrong(graph, Meddling("cpy", write_a_later_row))
    assert (op, reason.split()[:2]) == ("cpy", ["byte", str(8 * 32)])


def test_a_source_that_an_optimiser_writes_wrongly_is_found() -> None:
    def forget(node: Any, result: Any, w: Any, gradient: Any, m: Any, v: Any, settings: Any) -> None:
        m.array()[...] = 0

    w, gradient, m = drawn(4, 8), drawn(4, 8), drawn(4, 8)
    w.flags |= gg.types.TensorFlag.PARAM
    settings = gg.tensor(np.array([1e-3, 0.9, 0.999, 1e-8, 0.0, 0.1, 0.001], np.float32))
    graph = Graph(gg.opt_step_adamw(w, gradient, m, gg.tensor(np.ones((4, 8), np.float32)), settings).set_output())
    op, reason = only_wrong(graph, Meddling("opt_step_adamw", forget))
    assert (op, "which it writes, too" in reason) == ("opt_step_adamw", True)


def test_a_small_error_that_grows_is_no_wrong_node() -> None:
    y = gg.exp(gg.tensor(np.full((1, 1), 0.001, np.float32)))
    for _ in range(10):
        y = gg.sqr(y)
    # One rounding, which exp may be off by, is 1024 of them after ten squares; a square may be off by one.
    found = compare(Graph(y.set_output()), ReferenceDevice(), Wrong(is_op("exp"), by=2.0**-23, patterns=()))
    assert found.ok
    first, *_, last = found.growth
    assert (first.number, last.number) == (0, 10)
    assert first.nmse is not None
    assert last.nmse is not None
    assert math.sqrt(last.nmse / first.nmse) == pytest.approx(1024, rel=0.01)
    off = Wrong(is_op("sqr"), by=1000 * 2.0**-23, patterns=())
    assert len(compare(Graph(y), ReferenceDevice(), off).wrong) == 10


def test_the_difference_from_end_to_end_begins_at_the_wrong_node() -> None:
    found = compare(layers(), ReferenceDevice(), Wrong(is_op("silu"), patterns=()))
    assert found.growth[0].name == "active"
    assert found.growth[-1].name == "last"
    assert found.growth[-1].nmse == pytest.approx(found.follows[-1].nmse)


def test_what_a_device_declines_or_fails_at_is_reported() -> None:
    class Fewer(ReferenceDevice):
        def match(self, group: Group) -> Any:
            if group.node.op.name == "silu":
                return Decline("no silu here")
            if group.node.op.name == "mul":

                def kernel(*_: Any) -> None:
                    raise RuntimeError("out of luck")

                return kernel
            return super().match(group)

    found = compare(layers(), ReferenceDevice(), Fewer("fewer"))
    assert [(each.node.name, each.device, each.reason) for each in found.declined] == [
        ("active", "fewer", "no silu here")
    ]
    assert names(found) == ["scaled"]
    assert "out of luck" in found.wrong[0].reason
    assert compare(layers(), Fewer("fewer"), Fewer("other"), groups=False).declined


def test_integers_that_select_may_order_equal_values_otherwise() -> None:
    class Backwards(ReferenceDevice):
        def match(self, group: Group) -> Any:
            def kernel(_: Any, dst: Any, x: Any) -> None:
                values = x.array()[..., ::-1]
                dst.array()[...] = (values.shape[-1] - 1 - np.argsort(values, axis=-1, kind="stable")).astype(np.int32)

            return kernel if group.node.op.name == "argsort" else super().match(group)

    values = np.array([[3.0, 1.0, 1.0, 2.0]], np.float32)
    assert compare(Graph(gg.argsort(gg.tensor(values))), ReferenceDevice(), Backwards("backwards")).ok


@pytest.mark.parametrize("device", [FakeDevice("npu"), gg.device("CPU")])
def test_devices_with_memory_of_their_own_and_compiled_ones_are_compared(device: Device) -> None:
    graph = layers()
    assert compare(graph, ReferenceDevice(), device).ok
    assert names(compare(graph, device, Wrong(is_op("silu"), patterns=()))) == ["active"]


def test_weights_of_one_type_that_a_kernel_reads_wrongly() -> None:
    def reads_q8(group: Group) -> bool:
        return group.node.op.name == "mul_mat" and group.node.src[0].type is gg.Q8_0

    x = drawn(2, 64)
    y = gg.mul_mat(gg.tensor(RANDOM.standard_normal((64, 64)), "q4_0"), x, name="of q4_0")
    y = gg.mul_mat(gg.tensor(RANDOM.standard_normal((64, 64)), "q8_0"), y, name="of q8_0")
    found = compare(Graph(y), gg.device("CPU"), Wrong(reads_q8, by=10.0))
    assert names(found) == ["of q8_0"]
    assert "q8_0 [64x64]" in found.wrong[0].sources


def test_values_are_given_or_there() -> None:
    x = gg.new_tensor("f32", 8, "x").set_input()
    graph = Graph(gg.silu(x).set_output())
    with pytest.raises(TensorStateError, match="'x'"):
        compare(graph, ReferenceDevice(), FusingDevice())
    values = {x: np.arange(8, dtype=np.float32)}
    assert compare(graph, ReferenceDevice(), FusingDevice(), values=values).ok
    assert not compare(graph, ReferenceDevice(), Wrong(is_op("silu"), patterns=()), values=values).ok


def test_an_input_without_elements_has_no_value_to_give() -> None:
    x, empty = gg.new_tensor("f32", (8, 2), "x").set_input(), gg.new_tensor("f32", (8, 0), "empty").set_input()
    graph = Graph(gg.silu(gg.concat(x, empty, 1)).set_output())
    values = {x: np.arange(16, dtype=np.float32)}
    assert compare(graph, ReferenceDevice(), FusingDevice(), values=values).ok
    assert not compare(graph, ReferenceDevice(), Wrong(is_op("silu"), patterns=()), values=values).ok


def test_graphs_that_are_not_equal_are_refused() -> None:
    whole = layers()
    with pytest.raises(GraphError, match="are not equal graphs"):
        compare((whole, Graph(gg.silu(drawn(8)))), ReferenceDevice(), FusingDevice())
    with pytest.raises(GraphError):
        compare(Graph.part(whole.nodes[:1], whole=whole), ReferenceDevice(), FusingDevice())


def test_what_was_found_is_plain_data() -> None:
    found = compare(layers(), ReferenceDevice(), Wrong(is_op("silu"), patterns=()))
    read = json.loads(json.dumps(plain(found.to_dict())))
    assert read["ok"] is False
    assert read["wrong"][0]["node"] == {"number": 3, "name": "active", "op": "silu", "nmse": 0.0} | {
        "nmse": read["wrong"][0]["node"]["nmse"]
    }
    assert "node 3 'active' = silu f32 [16x3] of scaled f32 [16x3] on wrong: " in str(found)
