"""Packed weights on the CPU device: the bytes that were stored, and the numbers that plain weights give."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("ggplug_cpu")

from cpu_groups import with_other_instructions

import ggplug as gg
from ggplug.backend import Backend, Decline, Device
from ggplug.errors import BufferUseError, PlacementError
from ggplug.memory import allocate_graph
from ggplug.scheduler import Scheduler
from ggplug.tensor import Tensor
from ggplug.types import by_name
from ggplug_cpu import features
from ggplug_cpu.instruction_sets import X86_64
from ggplug_cpu.ops.mul_mat.layout import base_of, layout
from ggplug_cpu.ops.mul_mat.packed import most_in_place, packed_as
from ggplug_cpu.packed import PackedBufferType
from ggplug_cpu.types.blocks import ANY_NUMBER

FLOATS = ("f32", "f16", "bf16")
#: Block types whose packed numbers are read: bytes, nibbles, nibbles with minima, nibbles that choose levels.
OF_ONE_GROUP = ("q8_0", "q4_0", "q4_1", "iq4_nl")
#: The same of several groups, whose scales are packed as well.
OF_GROUPS = ("q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_xs")
BLOCKS = (*OF_ONE_GROUP, *OF_GROUPS)
#: Block types whose plain rows are kept with their panels: groups of 32 with minima, of 16, with byte scales.
TWICE = ("q5_1", "nvfp4", "mxfp4")
#: Targets with other vectors, and other kinds of products, each with a type of weights.
OTHERS = with_other_instructions()
if features.has("avx512f"):
    OTHERS.append(("native+amx-emulated", "q8_0"))
if features.has("avxvnni"):
    OTHERS += [("avx2+avxvnni", "q4_1"), ("avx2+avxvnni", "q6_K")]
if features.has("avx2"):
    OTHERS += [("avx2", each) for each in ("q8_0", "iq4_xs", "q3_K", "q4_K", "q5_K")]


@pytest.fixture(scope="module")
def cpu() -> Device:
    return gg.device("CPU")


@pytest.fixture
def stream(cpu: Device) -> Iterator[Backend]:
    with cpu.init() as made:
        yield made


def packed_type(cpu: Device) -> PackedBufferType:
    (kind,) = cpu.extra_buffer_types
    assert isinstance(kind, PackedBufferType)
    return kind


def packed_type_for(cpu: Device, type_name: str) -> PackedBufferType:
    """Skips where products on this processor read no packed weights of the type."""
    kind = packed_type(cpu)
    if type_name not in kind.forms:
        pytest.skip(f"{type_name} is not packed for {features.target()}")
    return kind


def bits(type_name: str, *ne: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Any bits, NaNs of all kinds among them."""
    return np.random.default_rng(seed).integers(0, 256, gg.new_tensor(type_name, ne).nbytes, np.uint8)


def pair(cpu: Device, type_name: str, *ne: int, seed: int = 1, name: str = "w") -> tuple[Tensor, Tensor]:
    """The same random weights twice: plain, and packed."""
    packed_type_for(cpu, type_name)
    random = np.random.default_rng(seed)
    plain = gg.tensor(random.standard_normal(ne[::-1]).astype(np.float32), type_name, name=name)
    return plain, packed_copy(cpu, plain)


def packed_copy(cpu: Device, plain: Tensor) -> Tensor:
    kind = packed_type(cpu)
    packed = gg.new_tensor(plain.type, plain.ne[: plain.rank], plain.name)
    packed.place(kind.alloc(kind.alloc_size(packed)))
    return packed.set_bytes(plain.tobytes())


def x_of(*ne: int, seed: int = 2) -> Tensor:
    return gg.tensor(np.random.default_rng(seed).standard_normal(ne[::-1]).astype(np.float32))


def result(stream: Backend, node: Tensor) -> npt.NDArray[np.float32]:
    graph = gg.Graph(node)
    stream.compute(graph, allocate_graph(graph, stream.device.buffer_type))
    return node.numpy()


# -- bytes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_name", [*FLOATS, *BLOCKS, *TWICE])
def test_any_bits_come_back_from_packed_memory(cpu: Device, type_name: str) -> None:
    kind, block = packed_type_for(cpu, type_name), by_name(type_name).block_size
    for ne in ((1, 1), (7, 3), (512, 32), (513, 33), (2049, 65), (100, 5, 2, 3)):
        ne = (-(-ne[0] // block) * block, *ne[1:])
        raw = bits(type_name, *ne)
        tensor = gg.new_tensor(type_name, ne)
        tensor.place(kind.alloc(kind.alloc_size(tensor)))
        tensor.set_bytes(raw)
        assert tensor.tobytes() == raw.tobytes(), ne
        assert tensor.buffer is not None
        assert bytes(tensor.buffer._memory) != raw.tobytes() or min(ne) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("type_name", ["f32", "q4_0", TWICE[0]])
def test_packed_bytes_do_not_depend_on_how_many_threads_put_them_in_order(
    cpu: Device, type_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = packed_type_for(cpu, type_name)
    tensor = gg.new_tensor(type_name, (1280, 97, 2))
    raw = bits(type_name, *tensor.ne)
    found = []
    for threads, least in ((1, 1 << 18), (3, 1 << 10)):
        monkeypatch.setattr("ggplug_cpu.packed.default_threads", lambda threads=threads: threads)
        monkeypatch.setattr("ggplug_cpu.packed.BYTES_OF_A_THREAD", least)
        buffer = kind.alloc(kind.alloc_size(tensor))
        buffer._memory[:] = 7  # type: ignore[attr-defined]  # what fills up is written, too
        tensor.place(None)
        tensor.place(buffer)
        tensor.set_bytes(raw)
        assert tensor.tobytes() == raw.tobytes()
        found.append(bytes(buffer._memory)[: kind.alloc_size(tensor)])  # type: ignore[attr-defined]
    assert found[0] == found[1]


@pytest.mark.parametrize("type_name", [*FLOATS, *BLOCKS])
def test_packed_weights_grow_only_by_what_fills_up_panels(cpu: Device, type_name: str) -> None:
    kind, type = packed_type_for(cpu, type_name), by_name(type_name)
    if kind.forms[type_name].keeps_rows:
        pytest.skip("has no packed order of its own for these instructions")
    assert kind.alloc_size(gg.new_tensor(type_name, (1024, 384))) == type.row_bytes(1024) * 384
    K = max(64, type.block_size)
    assert kind.alloc_size(gg.new_tensor(type_name, (K, 33))) <= type.row_bytes(K) * 64


@pytest.mark.parametrize("type_name", TWICE)
def test_a_type_without_a_packed_order_of_its_own_takes_its_rows_and_panels(
    cpu: Device, stream: Backend, type_name: str
) -> None:
    kind, type = packed_type_for(cpu, type_name), by_name(type_name)
    form = kind.forms[type_name]
    assert form.keeps_rows
    plain, panels = type.row_bytes(1024) * 384, form.matrix_bytes(1024, 384)
    assert panels > 1024 * 384
    assert kind.alloc_size(gg.new_tensor(type_name, (1024, 384))) == plain + panels
    weights, packed = pair(cpu, type_name, 256, 70)
    x = x_of(256, 1)  # one column reads the rows, as of plain weights
    np.testing.assert_array_equal(result(stream, gg.mul_mat(packed, x)), result(stream, gg.mul_mat(weights, x)))


def test_weights_with_plain_rows_are_packed_only_for_the_instructions_in_use(cpu: Device) -> None:
    with features.forced("generic"):
        kind = packed_type_for(cpu, "mxfp4")
        w = gg.new_tensor("mxfp4", (256, 40))
        w.place(kind.alloc(kind.alloc_size(w)))
    if features.target() != kind.target:
        with pytest.raises(BufferUseError, match="for other instructions"):
            w.set_bytes(bits("mxfp4", 256, 40))


def test_packed_memory_takes_leafs_of_known_types_without_gaps(cpu: Device) -> None:
    kind = packed_type(cpu)
    w = gg.new_tensor("f32", (8, 8))
    buffer = kind.alloc(4096)
    for refused in (gg.new_tensor("i32", (8, 8)), gg.add(w, w), gg.new_tensor("f32", (8, 0))):
        with pytest.raises(BufferUseError, match="cannot be placed in CPU packed"):
            refused.place(buffer)
    with pytest.raises(BufferUseError, match="must be a multiple of 64"):
        w.place(buffer, 32)


# -- products --------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_name", [*FLOATS, *BLOCKS, *TWICE])
def test_products_of_many_columns_have_the_bits_that_plain_weights_give(
    cpu: Device, stream: Backend, type_name: str
) -> None:
    shapes = ((100, 33), (1100, 70))
    if by_name(type_name).is_quantized:
        shapes = ((96, 33), (2144, 70)) if by_name(type_name).block_size == 32 else ((256, 33), (2304, 70))
    for (k, m), columns in itertools.product(shapes, (13, 41)):
        plain, packed = pair(cpu, type_name, k, m)
        x = x_of(k, columns)
        wanted, got = (result(stream, gg.mul_mat(w, x)) for w in (plain, packed))
        np.testing.assert_array_equal(got, wanted, err_msg=f"{k} x {m} by {columns}")


@pytest.mark.parametrize(("target", "type_name"), OTHERS)
def test_on_other_instructions_too(cpu: Device, type_name: str, target: str) -> None:
    with features.forced(target), cpu.init() as stream:
        k = max(96, by_name(type_name).block_size) if by_name(type_name).is_quantized else 70
        plain, packed = pair(cpu, type_name, k, 37)
        x = x_of(k, 17)
        np.testing.assert_array_equal(
            result(stream, gg.mul_mat(packed, x)), result(stream, gg.mul_mat(plain, x)), strict=True
        )
        assert packed.tobytes() == plain.tobytes()


def test_a_tile_of_eight_rows_reads_weights_of_int8_once_and_takes_all_of_them_on_avx512() -> None:
    with features.forced(features.cross_target(X86_64, "sapphirerapids", (*X86_64.levels["avx512"][1], "avx512vnni"))):
        assert [n for n in range(1, 18) if layout("i8").is_one_tile(n)] == list(range(1, 9))


@pytest.mark.parametrize("kind", ["f32", "bf16", "i8", "amx"])
def test_tiles_take_any_number_of_rows(kind: str) -> None:
    sizes = layout(kind).tiles
    for rows in range(1, 50):
        left = rows
        while left > 0:
            left -= next(size for size, least in sizes if left >= least)
        assert left > -sizes[0][0]


@pytest.mark.parametrize("type_name", [*FLOATS, "q4_1", *OF_GROUPS])
def test_a_number_does_not_depend_on_how_many_columns_or_threads_there_are(
    cpu: Device, stream: Backend, type_name: str
) -> None:
    if packed_type_for(cpu, type_name).forms[type_name].keeps_rows:
        pytest.skip("few columns read the plain rows")
    K = 768 if type_name in OF_GROUPS else 608
    _, packed = pair(cpu, type_name, K, 200)
    x = np.random.default_rng(3).standard_normal((70, K)).astype(np.float32)
    many = result(stream, gg.mul_mat(packed, gg.tensor(x)))
    for columns in (1, 3, 5, 8, 12, 40):
        few = result(stream, gg.mul_mat(packed, gg.tensor(x[:columns])))
        np.testing.assert_array_equal(few.reshape(columns, -1), many[:columns])
    before = stream.n_threads  # type: ignore[attr-defined]
    try:
        stream.set_n_threads(3)  # type: ignore[attr-defined]
        np.testing.assert_array_equal(result(stream, gg.mul_mat(packed, gg.tensor(x))), many)
    finally:
        stream.set_n_threads(before)  # type: ignore[attr-defined]


@pytest.mark.parametrize("type_name", ["f32", "q4_0", "q6_K"])
def test_matrices_of_weights_are_broadcast_and_routed(cpu: Device, stream: Backend, type_name: str) -> None:
    K = max(64, by_name(type_name).block_size)
    plain, packed = pair(cpu, type_name, K, 40, 2, 3)
    x = x_of(K, 14, 4, 3)
    np.testing.assert_array_equal(result(stream, gg.mul_mat(packed, x)), result(stream, gg.mul_mat(plain, x)))
    plain, packed = pair(cpu, type_name, K, 40, 3)
    x, ids = x_of(K, 1, 90), gg.tensor(np.random.default_rng(4).integers(0, 3, (90, 2)).astype(np.int32))
    np.testing.assert_array_equal(
        result(stream, gg.mul_mat_id(packed, x, ids)), result(stream, gg.mul_mat_id(plain, x, ids))
    )


def epilogues(w: Tensor, again: Tensor, bias: Tensor, x: Tensor, residual: Tensor) -> dict[str, Tensor]:
    return {
        "bias": gg.add(gg.mul_mat(w, x), bias),
        "bias and activation": gg.gelu(gg.add(gg.mul_mat(w, x), bias)),
        "bias and residual": gg.add(gg.add(gg.mul_mat(w, x), bias), residual),
        "gate": gg.swiglu(gg.mul_mat(w, x), gg.mul_mat(again, x)),
        "rearranged": gg.cont(gg.permute(gg.mul_mat(w, gg.reshape(x, 96, 4, 5)), 0, 2, 1)),
    }


def test_groups_of_products_are_formed_and_have_the_same_bits(cpu: Device) -> None:
    (plain, packed), (gate, packed_gate) = (pair(cpu, "bf16", 96, 64, seed=seed) for seed in (1, 7))
    leafs = x_of(64, 1, seed=3), x_of(96, 20), x_of(64, 20, seed=4)
    bias, x, residual = gg.tensor(leafs[0].numpy()[0]), *leafs[1:]
    wanted, got = epilogues(plain, gate, bias, x, residual), epilogues(packed, packed_gate, bias, x, residual)
    with Scheduler([cpu]) as scheduler:
        for name, node in got.items():
            groups = scheduler.explain(gg.Graph(node)).groups
            assert len(groups) == 1, name
            assert "packed" in groups[0].kernel, name
            graphs = [gg.Graph(each) for each in (wanted[name], node)]
            results = []
            for graph in graphs:
                scheduler.compute(graph)
                results.append(graph.outputs[0].numpy())
            np.testing.assert_array_equal(results[1], results[0], err_msg=name)


def test_a_gate_of_one_packed_and_one_plain_weight_is_right(cpu: Device) -> None:
    plain, packed = pair(cpu, "f32", 96, 64)
    again, _ = pair(cpu, "f32", 96, 64, seed=7)
    x = x_of(96, 20)
    wanted, got = (gg.swiglu(gg.mul_mat(w, x), gg.mul_mat(again, x)) for w in (plain, packed))
    with Scheduler([cpu]) as scheduler:
        results = []
        for node in (wanted, got):
            graph = gg.Graph(node)
            scheduler.compute(graph)
            results.append(node.numpy())
    np.testing.assert_array_equal(results[1], results[0])


# -- what is declined ------------------------------------------------------------------------------


def test_ops_and_views_that_were_not_written_for_packed_weights_are_declined_with_a_reason(cpu: Device) -> None:
    _, w = pair(cpu, "f32", 64, 64)
    x = x_of(64, 20)
    declined = {
        "get_rows on the CPU reads its source 0 as plain bytes": gg.get_rows(w, gg.tensor(np.array([1], np.int32))),
        "mul_mat on the CPU reads its source 1 as plain bytes": gg.mul_mat(x_of(64, 3), w),
        "mul_mat on the CPU reads no view": gg.mul_mat(gg.view(w, 64, 8, offset=w.nb[1]), x),
        "add on the CPU reads its source 0": gg.add(w, x_of(64, 64)),
        "cpy on the CPU reads its source 1": gg.cpy(x_of(64, 64), w),
    }
    for reason, node in declined.items():
        answer = cpu.supports_op(node)
        assert isinstance(answer, Decline)
        assert reason in answer.reason
        assert "CPU packed" in answer.reason
    with Scheduler([cpu]) as scheduler, pytest.raises(PlacementError, match="as plain bytes, not in CPU packed"):
        scheduler.compute(gg.Graph(declined["add on the CPU reads its source 0"]))


def test_weights_that_were_packed_for_other_instructions_are_not_read(cpu: Device) -> None:
    with features.forced("generic"):
        _, w = pair(cpu, "f32", 64, 64)
        x = x_of(64, 20)
        assert cpu.supports_op(gg.mul_mat(w, x))
        kind = packed_type(cpu)
    if features.target() != kind.target:
        answer = cpu.supports_op(gg.mul_mat(w, x))
        assert isinstance(answer, Decline)
        assert "not packed for the instructions" in answer.reason
        assert not cpu.supports_buffer_type(kind)
        assert cpu.extra_buffer_types[0] is not kind
    assert np.isfinite(w.numpy()).all()  # it can still be read


def test_packed_weights_of_bf16_do_not_serve_a_product_in_full_precision(cpu: Device) -> None:
    plain, packed = pair(cpu, "bf16", 64, 64)
    nodes = [gg.mul_mat(w, x_of(64, 20), precision=gg.Precision.F32) for w in (plain, packed)]
    assert cpu.supports_op(nodes[0])
    if packed_type(cpu).forms["bf16"].kind != "f32":
        assert "of kind f32" in cpu.supports_op(nodes[1]).reason  # type: ignore[union-attr]


def test_activations_that_are_blocks_themselves_meet_packed_weights(cpu: Device, stream: Backend) -> None:
    plain, packed = pair(cpu, "q4_1", 128, 40)
    x = gg.tensor(np.random.default_rng(6).standard_normal((19, 128)).astype(np.float32), "q8_0")
    np.testing.assert_array_equal(result(stream, gg.mul_mat(packed, x)), result(stream, gg.mul_mat(plain, x)))


def test_a_group_with_a_value_that_is_not_finite_gives_what_it_gives_with_plain_weights(
    cpu: Device, stream: Backend
) -> None:
    plain, packed = pair(cpu, "q8_0", 128, 40)
    values = np.random.default_rng(6).standard_normal((19, 128)).astype(np.float32)
    values[3, 70], values[5, 1] = np.nan, np.inf
    x = gg.tensor(values)
    np.testing.assert_array_equal(result(stream, gg.mul_mat(packed, x)), result(stream, gg.mul_mat(plain, x)))


def test_what_encoders_compute_with_packed_weights_is_prebuilt(cpu: Device) -> None:
    from ggplug_cpu.prebuild import likely_kernels

    found = {kernel.name for kernel in likely_kernels()}
    forms = packed_type(cpu).forms
    assert forms
    for name, form in forms.items():
        activations = "int8" if base_of(form.kind) == "i8" else "f32"
        wanted = f"mul_mat_gemm[{form.kind},{activations},rows,{packed_as(form.kind, name)}]"
        assert wanted in found, name
        if form.keeps_rows:
            assert f"pack_panels[{form.kind},{name},rows]" in found
        elif name in OF_GROUPS and most_in_place(form.kind, packed_as(form.kind, name)) < ANY_NUMBER:
            assert f"pack_panels[{form.kind},{name},packed]" in found
