"""Several devices as one compute what one device computes, with parts of the weights on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from installed import device_or_skip

import ggplug as gg
from ggplug import trace
from ggplug.backend import Decline, Device, Group, Groups, Operand
from ggplug.combined import CombinedDevice
from ggplug.combined.cuts import Cuts, Pieces
from ggplug.combined.weights import split_weights
from ggplug.errors import (
    BufferUseError,
    ComputeError,
    OutOfMemoryError,
    ParameterError,
    TimeLimitError,
    UnsupportedOpError,
)
from ggplug.ops import Add, MulMat, Sqr
from ggplug.patterns import Pattern, of, pattern
from ggplug.tensor import Context, Tensor
from ggplug.types import BufferUsage
from ggplug_testing import FakeDevice
from ggplug_testing.devices.packing import PackingDevice
from ggplug_testing.fake import FakeRegistration

HALVES = Cuts((Fraction(0), Fraction(1, 2), Fraction(1)))


def fakes(count: int = 2, **how: Any) -> list[FakeDevice]:
    return [FakeDevice(f"fake{number}", **how) for number in range(count)]


class Block(NamedTuple):
    """A block of two products, ``y = down silu(up x) + x``, whose weights are split."""

    device: CombinedDevice
    scheduler: gg.Scheduler
    weights: Context
    x: Tensor
    inner: Tensor
    graph: gg.Graph

    def compute(self) -> np.ndarray:
        self.scheduler.allocate(self.graph)
        self.x.set(self.values)
        self.scheduler.compute(self.graph)
        return self.graph.outputs[0].numpy()

    @property
    def values(self) -> np.ndarray:
        return np.random.default_rng(3).standard_normal((5, 32)).astype(np.float32)

    def expected(self) -> np.ndarray:
        up, down = (self.weights[name].numpy().astype(np.float64) for name in ("up", "down"))
        h = self.values @ up.T
        return (h / (1 + np.exp(-h))) @ down.T + self.values


def block_on(members: Sequence[Device], proportions: Sequence[float] | None = None, type: str = "f32") -> Block:
    device = CombinedDevice(members, proportions)
    weights = Context("weights")
    up, down = weights.new_tensor(type, (32, 192), "up"), weights.new_tensor(type, (192, 32), "down")
    x = gg.new_tensor("f32", (32, 5), "x").set_input()
    inner = gg.silu(gg.mul_mat(up, x), name="inner").set_output()
    graph = gg.Graph(gg.add(gg.mul_mat(down, inner), x, name="y"))
    for weight, memory in split_weights(device, graph, weights).items():
        buffer = memory.alloc(memory.alloc_size(weight))
        buffer.usage = BufferUsage.WEIGHTS
        weights.buffers.append(buffer)
        weight.place(buffer)
    random = np.random.default_rng(1)
    up.set(random.standard_normal((192, 32)).astype(np.float32))
    down.set(random.standard_normal((32, 192)).astype(np.float32))
    return Block(device, gg.Scheduler([device]), weights, x, inner, graph)


@pytest.fixture
def block() -> Iterator[Block]:
    found = block_on(fakes())
    with found.scheduler, found.weights:
        yield found


@pytest.mark.parametrize("execution", ["now", "late", "thread"])
@pytest.mark.parametrize(("count", "proportions"), [(2, None), (3, None), (2, [3, 1]), (3, [1, 2, 5])])
def test_a_block_split_over_devices_gives_what_its_formula_gives(
    execution: str, count: int, proportions: list[float] | None
) -> None:
    found = block_on(fakes(count, execution=execution), proportions)
    with found.scheduler, found.weights:
        np.testing.assert_allclose(found.compute(), found.expected(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found.compute(), found.expected(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("type", ["f16", "q8_0", "q4_0"])
def test_blocks_of_quantised_rows_are_not_cut(type: str) -> None:
    found = block_on(fakes(), type=type)
    with found.scheduler, found.weights:
        np.testing.assert_allclose(found.compute(), found.expected(), rtol=3e-2, atol=0.5)


def test_each_member_has_its_part_of_the_weights_only(block: Block) -> None:
    first, second = block.device.members
    assert isinstance(first, FakeDevice)
    assert isinstance(second, FakeDevice)
    nbytes = sum(weight.nbytes for weight in block.weights)
    for member in (first, second):
        assert nbytes / 2 <= member.used < nbytes / 2 + 4096
    assert block.weights["up"].buffer_type is block.device.split_memory(1, HALVES)
    assert block.weights["down"].buffer_type is block.device.split_memory(0, HALVES)


def test_a_result_that_is_split_is_read_whole(block: Block) -> None:
    block.compute()
    h = block.values @ block.weights["up"].numpy().T
    np.testing.assert_allclose(block.inner.numpy(), h / (1 + np.exp(-h)), rtol=1e-4, atol=1e-4)
    buffer, offset = block.inner.locate()
    part = np.empty(40, np.uint8)
    buffer.get(offset + 700, part)
    assert part.tobytes() == block.inner.tobytes()[700:740]


def test_a_result_that_shares_bytes_with_another_tensor_is_not_split(block: Block) -> None:
    x = block.x
    with block.device.buffer_type.alloc(1 << 13) as buffer:
        inner = gg.mul_mat(block.weights["up"], x)
        inner.place(buffer, 0)
        same = gg.new_tensor("f32", (96, 10), "same")
        same.place(buffer, 0)
        graph = gg.Graph(inner)
        graph.expand(negated := gg.neg(same).set_output())
        block.scheduler.allocate(graph)
        x.set(block.values)
        block.scheduler.compute(graph)
        wanted = block.values @ block.weights["up"].numpy().T
        np.testing.assert_allclose(inner.numpy(), wanted, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(negated.numpy(), -inner.numpy().reshape(10, 96))


def test_a_part_of_a_split_result_is_overwritten(block: Block) -> None:
    block.compute()
    before = block.inner.numpy()
    block.inner.set_bytes(np.zeros(12, np.uint8), 192 * 4)
    before[1, :3] = 0
    np.testing.assert_array_equal(block.inner.numpy(), before)


def test_an_observed_computation_is_the_same(block: Block) -> None:
    wanted, seen = block.compute(), []
    block.scheduler.set_eval_callback(lambda tensor, ask: bool(ask or seen.append(tensor.numpy()) or True))
    np.testing.assert_array_equal(block.compute(), wanted)
    assert len(seen) == 4
    np.testing.assert_array_equal(seen[1], block.inner.numpy())


def test_split_weights_are_set_and_read_whole(block: Block) -> None:
    up = block.weights["up"]
    values = np.arange(192 * 32, dtype=np.float32).reshape(192, 32)
    np.testing.assert_array_equal(up.set(values).numpy(), values)
    with pytest.raises(BufferUseError, match="cannot be set on their own"):
        up.set_bytes(np.zeros(4, np.uint8))
    assert up.buffer is not None
    with pytest.raises(BufferUseError, match="no bytes in ggml's layout"):
        up.buffer.get(0, np.empty(4, np.uint8))


def test_a_part_of_a_leaf_whose_columns_are_split_is_set_and_read() -> None:
    memory = CombinedDevice(fakes()).split_memory(0, HALVES)
    with Context("leaf") as context:
        leaf = context.new_tensor("f32", (8, 5), "leaf")
        gg.allocate(context, memory, zeroed=True)
        values = np.zeros((5, 8), np.float32)
        leaf.set_bytes(np.arange(1, 12, dtype=np.float32), 13 * 4)
        values.reshape(-1)[13:24] = np.arange(1, 12)
        np.testing.assert_array_equal(leaf.numpy(), values)
        middle = gg.view(leaf, 8, 2, nb=(leaf.nb[1],), offset=2 * leaf.nb[1])
        np.testing.assert_array_equal(middle.numpy(), values[2:4])
        middle.set(-values[1:3])
        np.testing.assert_array_equal(leaf.numpy(), [*values[:2], *-values[1:3], values[4]])


def stored_rows(read: Callable[[Tensor], Tensor]) -> tuple[np.ndarray, np.ndarray, str]:
    """What is read of a cache of 6 rows after 3 of a product were stored there, on one device and split, and where."""
    random = np.random.default_rng(4)
    w, x = random.standard_normal((16, 8)).astype(np.float32), random.standard_normal((3, 8)).astype(np.float32)
    found = []
    device = CombinedDevice(fakes())
    for where in (gg.device("CPU"), device):
        with Context("leafs") as leafs, gg.Scheduler([where, gg.device("CPU")]) as scheduler:
            weight, cache = leafs.new_tensor("f32", (8, 16), "w"), leafs.new_tensor("f32", (16, 6), "cache")
            rows = gg.tensor(np.array([4, 0, 3], np.int32))
            graph = gg.Graph(read(gg.set_rows(cache, gg.mul_mat(weight, gg.tensor(x)), rows)))
            split = split_weights(device, graph, [weight]) if where is device else {}
            for leaf in (weight, cache):
                memory = split.get(leaf, where.buffer_type)
                leafs.buffers.append(memory.alloc(memory.alloc_size(leaf)))
                leafs.buffers[-1].usage = BufferUsage.WEIGHTS
                leaf.place(leafs.buffers[-1])
            weight.set(w)
            cache.set_zero()
            scheduler.compute(graph)
            found += [graph.outputs[0].numpy()]
            lies = cache.buffer_type.name
    return found[0], found[1], lies


def test_a_cache_in_which_split_rows_are_stored_is_split_by_heads() -> None:
    def attention(cache: Tensor) -> Tensor:
        heads = gg.permute(gg.view(cache, 4, 4, 6, nb=(16, 64)), 0, 2, 1, 3)
        q = gg.tensor(np.random.default_rng(6).standard_normal((4, 3, 4)).astype(np.float32))
        return gg.flash_attn_ext(q, heads, heads, None, 0.5)

    wanted, found, lies = stored_rows(attention)
    assert lies == "fake0+fake1 columns at 1/2"
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("read", [gg.sum_rows, lambda cache: gg.get_rows(cache, gg.tensor(np.array([3, 4], np.int32)))])
def test_a_cache_that_another_op_than_attention_reads_is_mirrored(read: Callable[[Tensor], Tensor]) -> None:
    wanted, found, lies = stored_rows(read)
    assert lies == "fake0+fake1"
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_member_packs_its_part_of_a_weight() -> None:
    device = CombinedDevice([PackingDevice(), FakeDevice("fake")])
    (packed,) = device.members[0].extra_buffer_types
    memory = device.split_memory(1, HALVES, [packed, device.members[1].buffer_type])
    with Context("weights") as weights, gg.Scheduler([device]) as scheduler:
        w = weights.new_tensor("f32", (8, 6), "w")
        gg.allocate(weights, memory, BufferUsage.WEIGHTS)
        random = np.random.default_rng(2)
        values, x = random.standard_normal((6, 8)).astype(np.float32), random.standard_normal((3, 8)).astype(np.float32)
        w.set(values)
        np.testing.assert_array_equal(w.numpy(), values)
        graph = gg.Graph(gg.mul_mat(w, gg.tensor(x)))
        scheduler.compute(graph)
        np.testing.assert_allclose(graph.outputs[0].numpy(), x @ values.T, rtol=1e-5)
        with pytest.raises(BufferUseError, match="cannot be set on their own"):
            w.set_bytes(np.zeros(4, np.uint8))


def test_explain_and_the_trace_show_members_and_exchanges(block: Block) -> None:
    explained = block.scheduler.explain(block.graph)
    assert "packed" not in str(explained)
    details = [row.text for row in explained.details]
    assert len(details) == 2
    assert details[0].startswith("stage 0 on fake0 and fake1: 3 nodes, 3 in parts; then sum of mul_mat")
    assert details[1] == "stage 1 on fake0 and fake1: 1 nodes, 0 in parts"
    with trace.recording() as recorded:
        block.compute()
    tracks = {span.track for span in recorded.spans if span.kind == "member"}
    assert tracks == {"fake0+fake1: fake0", "fake0+fake1: fake1"}
    (exchanged,) = (span for span in recorded.spans if span.kind == "exchange")
    assert exchanged.facts == {"bytes": 32 * 5 * 4}


# -- groups ----------------------------------------------------------------------------------------

SQUARED_SUM = pattern("squared sum", lambda a, b: of(Sqr)(of(Add)(a, b)), inplace=("a",))
SQUARED_PRODUCT = pattern("squared product", lambda a, b: of(Sqr)(of(MulMat)(a, b)))


class Squaring(FakeDevice):
    """A device that computes a square with the sum under it, unless it ``refuses``; ``together``: how often it did."""

    together = 0
    refuses = False

    @property
    def patterns(self) -> list[Pattern]:
        return [SQUARED_PRODUCT, SQUARED_SUM]

    def match(self, group: Group) -> Any:
        if len(group) == 1:
            return super().match(group)
        if self.refuses or SQUARED_SUM.names(group) is None:
            return Decline("it computes squares alone")
        return self._square

    def _square(self, group: Group, operands: dict[Tensor, Operand]) -> None:
        self.together += 1
        a, b = (operands[source].array() for source in group.sources)
        np.square(a + b, out=operands[group.node].array())


class Squares(NamedTuple):
    """``y = down (up x + bias)^2``, whose weights are split between two devices that square sums."""

    members: list[Squaring]
    scheduler: gg.Scheduler
    weights: Context
    square: Tensor
    graph: gg.Graph
    x: Tensor

    def compute(self) -> np.ndarray:
        self.scheduler.allocate(self.graph)
        self.x.set(np.linspace(-1, 1, 40, dtype=np.float32).reshape(5, 8))
        self.scheduler.compute(self.graph)
        return self.graph.outputs[0].numpy()

    def expected(self) -> np.ndarray:
        up, bias, down = (self.weights[name].numpy().astype(np.float64) for name in ("up", "bias", "down"))
        return np.square(np.linspace(-1, 1, 40).reshape(5, 8) @ up.T + bias) @ down.T


@pytest.fixture
def squares() -> Iterator[Squares]:
    members = [Squaring("fake0"), Squaring("fake1", execution="late")]
    device = CombinedDevice(members)
    weights = Context("weights")
    up, bias, down = (weights.new_tensor("f32", ne, n) for n, ne in (("up", (8, 6)), ("bias", (6,)), ("down", (6, 3))))
    x = gg.new_tensor("f32", (8, 5), "x").set_input()
    square = gg.sqr(gg.add(gg.mul_mat(up, x), bias), name="square")
    graph = gg.Graph(gg.mul_mat(down, square, name="y"))
    split = split_weights(device, graph, weights)
    for weight in (up, bias, down):
        memory = split.get(weight, device.buffer_type)
        buffer = memory.alloc(memory.alloc_size(weight))
        buffer.usage = BufferUsage.WEIGHTS
        weights.buffers.append(buffer)
        weight.place(buffer)
        weight.set(np.random.default_rng(2).standard_normal(weight.shape).astype(np.float32))
    with gg.Scheduler([device]) as scheduler, weights:
        yield Squares(members, scheduler, weights, square, graph, x)


def test_members_compute_the_groups_that_all_of_them_form(squares: Squares) -> None:
    np.testing.assert_allclose(squares.compute(), squares.expected(), rtol=1e-5)
    assert [member.together for member in squares.members] == [1, 1]
    groups = squares.scheduler.explain(squares.graph).groups
    assert [group.kernel for group in groups if len(group.nodes) > 1] == ["add sqr on each of fake0+fake1"]


def test_the_result_of_a_group_is_split_and_read_whole(squares: Squares) -> None:
    squares.square.set_output()
    squares.compute()
    up, bias = (squares.weights[name].numpy().astype(np.float64) for name in ("up", "bias"))
    wanted = np.square(np.linspace(-1, 1, 40).reshape(5, 8) @ up.T + bias)
    np.testing.assert_allclose(squares.square.numpy(), wanted, rtol=1e-5)


def test_a_group_that_a_member_declines_is_computed_node_by_node_and_explained(squares: Squares) -> None:
    squares.members[1].refuses = True
    np.testing.assert_allclose(squares.compute(), squares.expected(), rtol=1e-5)
    assert [member.together for member in squares.members] == [0, 0]
    (missed,) = squares.scheduler.explain(squares.graph).missed
    assert missed.reason == "fake1: it computes squares alone"


def test_nodes_with_an_exchange_in_between_are_no_group(squares: Squares) -> None:
    squared = gg.Graph(gg.sqr(squares.graph.outputs[0]))
    squares.scheduler.allocate(squared)
    (missed,) = squares.scheduler.explain(squared).missed
    assert (missed.pattern, missed.reason) == ("squared product", "the members exchange a result in between")


def test_a_plan_refuses_a_group_with_an_exchange_in_between(squares: Squares) -> None:
    graph = gg.Graph(gg.sqr(squares.graph.outputs[0]))
    last_two = tuple(graph.order[-2:])
    (stream,) = squares.scheduler.backends[:1]
    with pytest.raises(UnsupportedOpError, match="the members exchange a result in between"):
        stream.plan(graph, Groups([last_two], frozenset()))


# -- exchanges -------------------------------------------------------------------------------------


def test_a_backend_brings_its_own_all_reduce() -> None:
    members, calls = fakes(), []

    class Reducing(FakeRegistration):
        def get(self, name: str) -> Any:
            return {
                "ggml_backend_comm_init": lambda streams: calls.append("init") or tuple(streams),
                "ggml_backend_comm_allreduce_tensor": self.reduce,
                "ggml_backend_comm_free": lambda comm: calls.append("free"),
            }.get(name)

        def reduce(self, comm: Sequence[object], operands: Sequence[Operand]) -> bool:
            assert len(comm) == len(operands) == 2
            calls.append("reduce")
            found = [np.empty(each.tensor.nbytes, np.uint8) for each in operands]
            for each, values in zip(operands, found, strict=True):
                each.buffer.get(each.offset, values)
            total = (found[0].view(np.float32) + found[1].view(np.float32)).view(np.uint8)
            for each in operands:
                each.buffer.set(each.offset, total)
            return True

    Reducing(*members)
    found = block_on(members)
    with found.scheduler, found.weights:
        np.testing.assert_allclose(found.compute(), found.expected(), rtol=1e-4, atol=1e-4)
    assert calls == ["init", "reduce", "free"]


def test_the_memory_of_split_rows_is_found_by_ggmls_name() -> None:
    device = CombinedDevice(fakes())
    memory = device.registration.get("ggml_backend_split_buffer_type")(0, [1, 3])
    assert memory.device is device
    assert memory is device.rows([1, 3])
    assert device.registration.get("something else") is None


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["kernel", "compute", "set", "get"])
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("execution", ["now", "late"])
def test_an_error_of_a_member_is_raised_and_the_device_computes_again(kind: Any, failing: int, execution: str) -> None:
    found = block_on(fakes(execution=execution))
    member = found.device.members[failing]
    assert isinstance(member, FakeDevice)
    with found.scheduler, found.weights:
        wanted = found.compute()
        used = member.used
        member.fail(kind)
        with pytest.raises(ComputeError, match=member.name):
            found.compute()
        np.testing.assert_array_equal(found.compute(), wanted)
        assert member.used == used


@pytest.mark.parametrize("aborts", [True, False])
def test_an_error_of_the_time_limit_names_a_node_of_the_graph(aborts: bool) -> None:
    found = block_on(fakes() if aborts else [gg.device("CPU"), device_or_skip("OpenCL0")])
    with found.scheduler, found.weights:
        wanted = found.compute()
        found.scheduler.set_time_limit(1e-9)
        with pytest.raises(TimeLimitError, match="longer than its time limit of 1e-09 s") as raised:
            found.compute()
        assert raised.value.tensor in found.graph.nodes
        found.scheduler.set_time_limit(None)
        np.testing.assert_array_equal(found.compute(), wanted)


def test_nothing_stays_allocated_where_one_member_has_too_little_memory() -> None:
    large, small = FakeDevice("large"), FakeDevice("small", memory=1000)
    device = CombinedDevice([large, small])
    with pytest.raises(OutOfMemoryError, match="small"):
        device.buffer_type.alloc(2000)
    with pytest.raises(OutOfMemoryError, match="small"):
        device.split_memory(1, HALVES).alloc(4000)
    assert large.used == small.used == 0


def test_nothing_stays_allocated_after_all_was_freed() -> None:
    found = block_on(fakes())
    with found.scheduler, found.weights:
        found.compute()
    assert [member.used for member in found.device.members if isinstance(member, FakeDevice)] == [0, 0]


def test_an_op_that_splits_no_weights_needs_the_whole_weight_and_is_declined(block: Block) -> None:
    up = block.weights["up"]
    assert not block.device.supports_op(gg.scale(up, 2.0))
    assert block.device.supports_op(gg.mul_mat(up, gg.new_tensor("f32", (32, 1))))


@pytest.mark.parametrize("members", [0, 1])
def test_a_combined_device_needs_two_members(members: int) -> None:
    with pytest.raises(ParameterError, match=f"at least two members, got {members}"):
        CombinedDevice(fakes(members))


def test_proportions_are_positive_and_one_for_each_member() -> None:
    for wrong in ([1], [1, 0], [1, -1], [1, float("nan")], [1e308, 1e308]):
        with pytest.raises(ParameterError, match="positive proportions"):
            CombinedDevice(fakes(), wrong)


def test_a_device_is_not_combined_with_itself() -> None:
    with pytest.raises(ParameterError, match="different members, got CPU more than once"):
        gg.device("CPU+CPU")


# -- cuts ------------------------------------------------------------------------------------------


def test_cuts_lie_between_pieces_that_all_dimensions_allow() -> None:
    pieces = Pieces(96, 2)
    assert pieces.fits(12)
    assert pieces.fits(8)
    assert not pieces.fits(3)
    assert pieces.chosen([1, 1]).bounds == (0, Fraction(1, 2), 1)
    assert pieces.chosen([100, 1]).bounds == (0, Fraction(3, 4), 1)


def test_joined_cuts_are_the_same() -> None:
    a, b = Pieces(12, 2), Pieces(8, 2)
    assert a.joins(b)
    assert a.chosen([3, 1]) == b.chosen([3, 1])
    assert not Pieces(3, 2).joins(Pieces(4, 2))
