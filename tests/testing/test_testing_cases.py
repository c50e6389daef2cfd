"""Cases come from declarations: layouts are what they say, ops of other packages bring their own or get what fits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pytest

import ggplug as gg
from ggplug import quants, types
from ggplug.errors import ParameterError
from ggplug.ops.base import OPS, Array, Op, is_multiple
from ggplug.ops.elementwise import Binary
from ggplug.tensor import Spec, like
from ggplug_testing import FakeDevice, ReferenceDevice, cases_of, generates
from ggplug_testing.cases import GENERATORS, LAYOUTS, Case, Layout, Leafs, graph_cases, node
from ggplug_testing.cases.case import ENCODED, QUANTIZED
from ggplug_testing.cases.sketched import ones_cases
from ggplug_testing.judging.oracle import decoded, evaluate
from ggplug_testing.running.runner import run_case, run_op


@pytest.mark.parametrize("layout", get_args(Layout))
def test_a_layout_gives_the_extents_that_were_asked_for(layout: Layout) -> None:
    leafs = Leafs(1)
    last = 1 if layout == "elements apart" else 2
    x = leafs.tensor(types.F32, 7, 5, 3, last, layout=layout)
    assert x.ne == (7, 5, 3, last)
    assert leafs.values[x.root].size == x.root.nbytes
    assert x.view_offset + x.nbytes <= x.root.nbytes
    facts = {
        "packed": not x.is_view,
        "offset": x.is_contiguous() and x.view_offset > 0,
        "rows apart": x.nb[1] > 7 * 4 and x.view_offset == 0,
        "window": x.nb[3] > x.nb[2] * x.ne[2] and x.view_offset > 0,
        "permuted": x.is_permuted() and not x.is_transposed(),
        "transposed": x.is_transposed(),
        "elements apart": x.nb[:3] == (12, 84, 420) and x.view_offset == 4,
        "ones outermost": x.is_contiguous(),
    }
    assert facts[layout]
    assert set(facts) == {*LAYOUTS, "elements apart", "ones outermost"}


def test_extents_of_one_may_have_strides_of_their_own_in_a_contiguous_tensor() -> None:
    x = Leafs(1).tensor(types.F32, 1, 5, 1, 2, layout="ones outermost")
    assert x.ne == (1, 5, 1, 2)
    assert x.nb == (40, 4, 40, 20)
    assert x.is_contiguous()
    assert Leafs(1).tensor(types.Q8_0, 32, 1, 3, layout="ones outermost").nb == (34, 102, 34, 102)


def test_a_norm_that_goes_by_the_stride_of_an_extent_of_one_is_found() -> None:
    class ByStride(ReferenceDevice):
        def match(self, group: Any) -> Any:
            kernel = super().match(group)

            def reads(op: Any, dst: Any, x: Any) -> None:
                kernel(op, dst, x)
                if group.node.src[0].nb[0] != 4:
                    dst.array()[...] = 7

            return reads

    device = ByStride("by-stride")
    stream = device.init()
    found = [run_case(device, stream, case) for case in ones_cases(OPS["group_norm"])]
    stream.free()
    assert {each.verdict for each in found} == {"passed", "failed"}


MOVING = ("cpy", "cont", "dup", "concat", "repeat")


@pytest.mark.parametrize("name", MOVING)
def test_blocks_of_any_bytes_are_moved_in_each_type_that_has_blocks(name: str) -> None:
    labels = [case.label for case in cases_of(OPS[name]) if case.every_type]
    assert {label.split()[3] for label in labels} == {kind.name for kind in QUANTIZED}


@pytest.mark.parametrize("name", MOVING)
def test_a_copy_that_encodes_blocks_again_is_found_in_every_type(name: str) -> None:
    class ByNumbers(ReferenceDevice):
        def match(self, group: Any) -> Any:
            kernel = super().match(group)
            kind = group.node.type

            def moves(op: Any, dst: Any, *src: Any) -> None:
                kernel(op, dst, *src)
                stored = dst.array()
                with np.errstate(all="ignore"):
                    numbers = decoded(stored, dst.tensor).astype(np.float32)
                    stored[...] = quants.quantize(numbers, kind).view(stored.dtype).reshape(stored.shape)

            return moves if quants.can_store(kind) else kernel

    device = ByNumbers("by-numbers")
    cases = [case for case in cases_of(OPS[name]) if case.every_type]
    wrong = [each.case for each in run_op(device, OPS[name], cases=cases) if each.verdict == "failed"]
    assert {label.split()[3] for label in wrong} == {kind.name for kind in ENCODED}


def test_a_block_of_nan_over_another_one_was_written_where_its_op_writes() -> None:
    def make(leafs: Leafs) -> Any:
        nan = np.full(32, np.nan, np.float32)
        first, second = (leafs.array(types.Q8_0, nan) for _ in range(2))

        def fill(values: Any) -> None:
            for number, leaf in enumerate((first, second)):
                values[leaf][2:] = number

        leafs.change(fill)
        return node(OPS["cpy"], first, second)

    device = ReferenceDevice()
    with device.init() as stream:
        assert run_case(device, stream, Case("cpy", "nan", make, "bits")).verdict == "passed"


@pytest.mark.parametrize("layout", get_args(Layout))
def test_given_values_are_what_the_tensor_shows(layout: Layout) -> None:
    values = np.arange(30, dtype=np.int32).reshape(2, 3, 5)
    leafs = Leafs(0)
    x = leafs.array(types.I32, values, layout)
    np.testing.assert_array_equal(evaluate(gg.Graph(x), leafs.values)[x][0], values)


def test_what_repeats_to_another_extent_is_met_with_more_than_one_and_fewer_than_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked of each question of a shape rule, distinguished by op, line and number in the call."""
    met: dict[tuple[str, int, int], set[bool]] = {}
    last: list[Any] = [None, 0]

    def repeats(n: int, m: int) -> bool:
        asking = sys._getframe(1)
        last[:] = asking, last[1] + 1 if asking is last[0] else 0
        if is_multiple(n, m):
            met.setdefault((op.name, asking.f_lineno, last[1]), set()).add(1 < m < n)
        return is_multiple(n, m)

    for op in OPS.values():
        if "is_multiple" in op.result.__globals__ and not issubclass(op, Binary):
            monkeypatch.setitem(op.result.__globals__, "is_multiple", repeats)
            for case in cases_of(op):
                case.make(Leafs(0))
    assert len({name for name, _, _ in met}) == 10
    assert [key for key, between in met.items() if True not in between] == []


def test_a_case_that_is_declined_costs_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(leafs: Leafs) -> None:
        raise AssertionError("values were made")

    monkeypatch.setattr(Leafs, "_make_pending", drawn)
    device = FakeDevice(declines=lambda node: "no time")
    stream = device.init()
    for name in ("add", "get_rows", "im2col", "norm", "set_rows", "soft_max"):
        assert {run_case(device, stream, case).verdict for case in cases_of(OPS[name])} == {"declined"}


def test_distinct_indices_differ_within_a_row() -> None:
    leafs = Leafs(2)
    ids = leafs.indices((5, 4, 3), 6, distinct=True)
    shown = evaluate(gg.Graph(ids), leafs.values)[ids].reshape(12, 5)
    assert all(len(set(row)) == 5 for row in shown.tolist())
    assert shown.max() < 6


def test_the_same_seed_gives_the_same_bytes() -> None:
    first, second = Leafs(9), Leafs(9)
    a, b = first.tensor(types.Q4_0, 64, 3), second.tensor(types.Q4_0, 64, 3)
    np.testing.assert_array_equal(first.values[a], second.values[b])


def test_an_unknown_layout_is_an_error() -> None:
    nonsense: Any = "diagonal"
    with pytest.raises(ParameterError, match="no layout 'diagonal'"):
        Leafs(0).tensor(types.F32, 3, layout=nonsense)


@pytest.fixture
def define() -> Iterator[Any]:
    """Ops and generators that a test defines, and that are gone afterwards."""
    before, generators = set(OPS), set(GENERATORS)
    yield None
    for name in set(OPS) - before:
        del OPS[name]
    for name in set(GENERATORS) - generators:
        del GENERATORS[name]


@pytest.mark.usefixtures("define")
def test_an_op_of_another_package_gets_the_cases_that_its_shape_rule_takes() -> None:
    class Average(Op):
        name = "test.average"

        def result(self, a: gg.Tensor, b: gg.Tensor, c: gg.Tensor | None = None) -> Spec:
            gg.add(a, b)
            return like(a)

        def reference(self, a: Array, b: Array, c: Array | None = None) -> Array:
            return (a + b) / 2 if c is None else (a + b + c) / 3

    findings = run_op(ReferenceDevice(), Average)
    assert len(findings) > 100
    assert {finding.verdict for finding in findings} == {"passed"}
    assert any("without c" in finding.case for finding in findings)


@pytest.mark.usefixtures("define")
def test_an_op_of_another_package_brings_its_own_cases() -> None:
    class Shift(Op):
        name = "test.shift"
        by: int

        def result(self, x: gg.Tensor) -> Spec:
            return like(x)

        def reference(self, x: Array) -> Array:
            return np.roll(x, self.by, axis=-1)

    (finding,) = run_op(ReferenceDevice(), Shift)
    assert finding.verdict == "never run"
    assert finding.reason.startswith("no case could be made for test.shift, for f32[33x7]: Shift: missing")

    @generates(Shift)
    def shift_cases(cls: type[Op]) -> Iterator[Case]:
        for by in (0, 1, -3):
            yield Case(cls.name, f"by {by}", lambda leafs, by=by: node(cls, leafs.tensor(types.F32, 9, 2), by=by))

    assert [case.label for case in cases_of(Shift)] == ["by 0", "by 1", "by -3"]
    assert {finding.verdict for finding in run_op(ReferenceDevice(), Shift)} == {"passed"}


def test_an_error_of_ones_own_can_be_allowed() -> None:
    case = next(case for case in cases_of(OPS["mul_mat"]) if case.label == "f32 x f32 m=33 n=70 k=256")
    device = FakeDevice()
    assert run_case(device, device.init(), case, max_nmse=0.5).verdict == "passed"


def test_graphs_have_names_of_their_own() -> None:
    labels = [case.label for case in graph_cases()]
    assert len(set(labels)) == len(labels) > 15
