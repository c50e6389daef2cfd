"""How kernels are chosen and cut: matches, launches, sizes, and the text of programs."""

from __future__ import annotations

import ast
import dataclasses
import re
from importlib import resources

import numpy as np
import pytest
from paths import ROOT

from ggplug import ops, types
from ggplug.backend import Decline, Group
from ggplug.ops.base import OPS
from ggplug.quants import block_types, can_store, dequantize, put_scales
from ggplug.sketches.offers import examples
from ggplug.tensor import Tensor, new_tensor

pytest.importorskip("ggplug_simt")


from ggplug_simt import Launch, Launches, Properties, TensorArgument
from ggplug_simt.c import MatrixProduct, Source
from ggplug_simt.c.kernels import CHOOSERS, match, matrix
from ggplug_simt.c.kernels.elementwise import ONE, TWO
from ggplug_simt.c.launch import TENSOR, collapsed, launch
from ggplug_simt.c.profile import Profile, Tile
from ggplug_simt.c.source import part
from ggplug_simt.c.types import BLOCKS, FAMILIES
from ggplug_simt.cache import likely_nodes
from ggplug_simt.library import DST, FAULTS, SCRATCH, argument

GPU = Profile.of(Properties(processor=False, vector_width=1, local_bytes=49152, max_lanes=1024))
LIBRARY = dataclasses.replace(GPU, products=True)
CPU = Profile.of(Properties(processor=True, vector_width=16, local_bytes=1 << 20, max_lanes=4096))


def matched(node: Tensor, profile: Profile = GPU) -> Launches:
    found = match(profile, Group((node,)))
    assert isinstance(found, Launches), found
    return found


def test_every_op_that_is_no_view_has_a_chooser() -> None:
    of_core = [op for op in OPS.values() if not op.is_view and "." not in op.name]
    missing = [op.name for op in of_core if not CHOOSERS.keys() & set(op.__mro__)]
    assert missing == []


def test_doubles_are_moved_and_never_computed() -> None:
    """A type that no kernel reads is refused.  A Decline is false: `refuse(...) or launch(...)` would launch."""
    taken = {
        op.name
        for op in OPS.values()
        for kind, node in (() if op.is_view or "." in op.name else examples(op))
        if kind is types.F64 and match(GPU, Group((node,)))
    }
    assert taken <= {op.name for op in OPS.values() if op.moves} | {"pad", "set"}, taken


def test_every_expression_uses_the_parameters_that_it_names() -> None:
    for op, expression in (ONE | TWO).items():
        used = {int(n) for n in re.findall(r"\bP(\d)\b", expression.text)}
        assert used == set(range(len(expression.parameters))), op.name
        assert set(expression.parameters) <= set(op.parameters), op.name


def test_no_kernel_source_stands_twice() -> None:
    folder = resources.files("ggplug_simt.c").joinpath("kernels")
    names = [
        name
        for path in folder.iterdir()
        if path.name.endswith(".c")
        for name in re.findall(r"^KERNEL void (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(names) == len(set(names)) > 10
    for vendor in ("ggplug_opencl", "ggplug_cuda"):
        assert {path.suffix for path in (ROOT / vendor.replace("_", "-") / "src" / vendor).iterdir()} <= {
            ".py",
            ".typed",
            "",
        }


@pytest.mark.parametrize("vendor", ["ggplug_opencl", "ggplug_cuda"])
def test_a_vendors_package_is_small(vendor: str) -> None:
    lines = 0
    for path in (ROOT / vendor.replace("_", "-") / "src" / vendor).glob("*.py"):
        text = path.read_text(encoding="utf-8")
        strings = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Expr)]
        strings = [each for each in strings if isinstance(each.value, ast.Constant)]
        docstrings = {n for each in strings for n in range(each.lineno, (each.end_lineno or 0) + 1)}
        lines += sum(bool(line.strip()) for n, line in enumerate(text.splitlines(), 1) if n not in docstrings)
    assert 100 < lines < 450


def test_the_tensor_struct_is_as_c_lays_it_out() -> None:
    assert TENSOR.itemsize == 56
    assert {name: TENSOR.fields[name][1] for name in TENSOR.names} == {"offset": 0, "nb": 8, "ne": 40}


def test_a_contiguous_tensor_is_one_long_row() -> None:
    (launch,) = matched(ops.gelu(new_tensor(types.F32, (3, 5, 7, 2)))).launches
    assert [o.ne for o in launch.tensors] == [(210, 1, 1, 1)] * 2


def test_dimensions_are_joined_as_far_as_all_operands_allow() -> None:
    x = new_tensor(types.F32, (4, 5, 6))
    bias = new_tensor(types.F32, (4,))
    (launch,) = matched(ops.add(x, bias)).launches
    dst, _, y = launch.tensors
    assert dst.ne == (4, 30, 1, 1)
    assert y.nb[:2] == (4, 0)


def test_joining_keeps_the_address_of_every_element() -> None:
    generator = np.random.default_rng(5)
    for _ in range(300):
        ne = tuple(int(n) for n in generator.integers(1, 4, 4))
        strides = generator.choice([0, 4, 8, 12, 24, 36], (2, 4)).tolist()
        operands = [TensorArgument(DST, ne, tuple(nb)) for nb in strides]  # type: ignore[arg-type]
        joined = collapsed(operands, (1, 1))
        assert joined[0].ne == joined[1].ne

        def addresses(o: TensorArgument) -> list[int]:
            grid = np.indices(o.ne[::-1]).reshape(4, -1)[::-1]
            return (np.array(o.nb) @ grid).tolist()

        for before, after in zip(operands, joined, strict=True):
            assert addresses(before) == addresses(after)


def test_few_columns_go_by_rows_and_many_by_tiles() -> None:
    weight = new_tensor(types.Q4_0, (256, 512))
    for columns, name in ((1, "mul_mat_rows"), (8, "mul_mat_rows"), (9, "mul_mat_tiles"), (200, "mul_mat_tiles")):
        node = ops.mul_mat(weight, new_tensor(types.F32, (256, columns)))
        assert matched(node).launches[0].program.kernel == name


def test_columns_that_chose_the_same_expert_share_tiles_where_they_are_many() -> None:
    experts = new_tensor(types.Q4_0, (256, 100, 4))
    few, many = (
        ops.mul_mat_id(experts, new_tensor(types.F32, (256, 1, tokens)), new_tensor(types.I32, (2, tokens)))
        for tokens in (42, 43)
    )
    assert [each.program.kernel for each in matched(few).launches] == ["mul_mat_id"]
    found = matched(many)
    route, tiles = found.launches
    assert (route.program.kernel, route.groups) == ("route", 5)
    assert tiles.program.kernel == "mul_mat_tiles"
    # 86 columns fill five tiles of 16, and every expert may have one that is not full, as may those columns that
    # chose none; rows take two tiles of 64
    assert dict(tiles.program.defines)["TILE_N"] == "16"
    assert tiles.groups == 2 * (4 + 1 + 5)
    assert found.scratch == 4 * (1 + 86) * (4 + 1)
    assert [place.position for place in (route.tensors[0], tiles.tensors[-1])] == [SCRATCH, SCRATCH]


def test_tiles_fit_into_local_memory_and_into_a_group() -> None:
    for local, lanes in ((49152, 1024), (16384, 256), (8192, 64), (16384, 100), (16384, 12), (4096, 1)):
        profile = Profile.of(Properties(processor=False, vector_width=1, local_bytes=local, max_lanes=lanes))
        tile = profile.tile
        assert tile.local_bytes <= local
        assert tile.k % 32 == 0
        assert tile.m % tile.item_m == tile.n % tile.item_n == 0
        assert tile.blocks % min(profile.tile_lanes, tile.blocks) == 0
        for most in (profile.unit_lanes, profile.row_lanes, profile.dot_lanes, profile.tile_lanes):
            assert 1 <= most <= lanes
            assert most.bit_count() == 1, "groups add up in halves"


def test_a_tile_shrinks_where_it_would_be_mostly_empty() -> None:
    tile = Tile(128, 96, 32, 32, 12)
    assert tile.fitted(2048, 512) == tile
    assert tile.fitted(32, 20) == Tile(32, 24, 32, 32, 12)
    assert tile.fitted(100, 100) == Tile(128, 96, 32, 32, 12).fitted(100, 100)


def test_a_decline_names_op_type_and_what_there_is() -> None:
    node = ops.mul_mat(new_tensor(types.F64, (256, 8)), new_tensor(types.F32, (256, 2)))
    found = match(GPU, Group((node,)))
    assert isinstance(found, Decline)
    there = sorted(kind.name for kind in (types.F32, types.F16, types.BF16, *BLOCKS))
    assert found.reason == f"mul_mat of f64 has no kernel (there are {', '.join(there)})"


def test_matching_is_a_function_of_the_signature() -> None:
    def node() -> Tensor:
        return ops.soft_max(new_tensor(types.F32, (9, 4, 2)), new_tensor(types.F16, (9, 4)), scale=0.5, max_bias=2.0)

    assert match(GPU, Group((node(),))) == match(GPU, Group((node(),)))
    assert match(GPU, Group((node(),))) != match(CPU, Group((node(),)))


def test_a_programs_text_has_the_structs_of_the_types_it_needs_as_core_declares_them() -> None:
    (launch,) = matched(ops.get_rows(new_tensor(types.Q8_0, (64, 4)), new_tensor(types.I32, (2,)))).launches
    assert isinstance(launch.program, Source)
    text = launch.program.text("cuda")
    assert "#define TX q8_0" in text
    for kind in BLOCKS:
        assert (kind.c_struct() in text) == (kind is types.Q8_0), kind
    assert "get_rows" in text
    (launch,) = matched(ops.norm(new_tensor(types.F32, (64, 4)))).launches
    assert isinstance(launch.program, Source)
    assert "USES_" not in launch.program.text("cuda")


def test_the_families_declare_every_block_type_once() -> None:
    assert sorted(kind.name for kind in BLOCKS) == sorted(kind.name for kind in block_types())
    assert sum(map(len, FAMILIES.values())) == len(BLOCKS)


def test_a_type_is_declared_as_the_c_of_its_family_defines_it() -> None:
    for family, declared in FAMILIES.items():
        text = part(f"types/{family}.h")
        ends = {blocks.type.name: "WITH_MINIMUM" if blocks.has_minimum else "OF" for blocks in declared}
        assert {name: end for end, name in re.findall(r"^BLOCKS_(\w+)\((\w+)\)$", text, re.MULTILINE)} == ends
        stored = re.findall(r"^INLINE void store_(\w+)\(", text, re.MULTILINE)
        assert stored == [blocks.type.name for blocks in declared if blocks.is_written]


def test_the_types_that_ops_store_are_written() -> None:
    assert {kind for kind, blocks in BLOCKS.items() if blocks.is_written} == set(filter(can_store, block_types()))


@pytest.mark.parametrize("kind", BLOCKS, ids=lambda kind: kind.name)
def test_a_group_is_what_the_least_scale_of_a_block_changes(kind: types.Type) -> None:
    """A bit of a number, or of a row of a grid, changes at most eight elements, a bit of a scale all of its group."""
    blocks = np.random.default_rng(5).integers(0, 256, (16, kind.block_bytes), np.uint8)
    put_scales(blocks, kind, 1.5)
    flipped = blocks[:, None] ^ np.packbits(np.eye(8 * kind.block_bytes, dtype=np.uint8), axis=1)
    before, after = dequantize(blocks, kind).view(np.int32), dequantize(flipped, kind).view(np.int32)
    changed = (before[:, None] != after).any(axis=0).sum(axis=1)
    assert BLOCKS[kind].group == min(32, changed[changed > 8].min())


def test_only_the_files_of_the_families_name_block_types() -> None:
    name = re.compile(rf"\b({'|'.join(kind.name for kind in types.TYPES if kind.is_quantized)})\b", re.IGNORECASE)
    package = ROOT / "ggplug-simt" / "src" / "ggplug_simt"
    for path in sorted(package.rglob("*")):
        of_families, of_reports = package / "c" / "types" in path.parents, package / "report" in path.parents
        if path.suffix in (".py", ".c", ".h") and not of_families and not of_reports:
            assert not name.search(path.read_text(encoding="utf-8")), path


def test_groups_that_no_slice_of_a_tile_holds_are_declined() -> None:
    weights, x = new_tensor(types.Q4_0, (256, 64)), new_tensor(types.F32, (256, 20))
    narrow = dataclasses.replace(GPU, tile=dataclasses.replace(GPU.tile, k=16))
    found = match(narrow, Group((ops.mul_mat(weights, x),)))
    assert isinstance(found, Decline)
    assert found.reason == "a tile's slices of 16 have no whole groups of 32 elements of q4_0"
    assert match(narrow, Group((ops.mul_mat(new_tensor(types.Q6_K, (256, 64)), x),)))


def test_spans_are_the_bytes_of_the_tensors_that_a_launch_reaches() -> None:
    x = new_tensor(types.F32, (12, 5, 3, 2))
    part = ops.view(x, 4, 5, 3, 2, nb=x.nb[1:], offset=16)
    nodes = [
        *likely_nodes(),
        ops.add(part, part),
        ops.cont(ops.permute(x, 1, 2, 0, 3)),
        ops.concat(x, x, 2),
        ops.swiglu(x),
        ops.argsort(new_tensor(types.F32, (5000, 2))),
        ops.repeat(x, new_tensor(types.F32, (24, 5, 6, 2))),
    ]
    checked = 0
    for profile in (GPU, LIBRARY, CPU):
        for node in nodes:
            found = match(profile, Group((node,)))
            if not isinstance(found, Launches):
                continue
            for each in (each for made in found.launches for each in made.tensors if each.position != FAULTS):
                tensor = None
                if each.position != SCRATCH:
                    tensor = node if each.position == DST else node.src[each.position]
                size = found.scratch if tensor is None else tensor.nbytes
                assert 0 < each.span <= size - each.delta, (node, found)
                checked += tensor is not None and each.span == tensor.nbytes
    assert checked > 100


def test_a_program_stores_in_the_tensors_that_its_launch_marks() -> None:
    w, m, v = (argument(n, new_tensor(types.F32, (8,))) for n in range(3))
    tensors = {"w": w._replace(written=True), "m": m._replace(written=True), "v": v}
    made = launch("optimisers", "step", tensors, groups=1, lanes=1, defines={})
    assert isinstance(made, Launch)
    assert [each.written for each in made.tensors] == [True, True, False]
    assert isinstance(made.program, Source)
    assert made.program.writes == ("w", "m")
    assert made.program.parameters() == (
        "GLOBAL char *w_data, GLOBAL char *m_data, GLOBAL const char *v_data, const arguments args"
    )


def test_nothing_is_launched_where_nothing_is_written() -> None:
    into, rows = new_tensor(types.Q4_K, (256, 4)), new_tensor(types.F32, (256, 0))
    assert matched(ops.set_rows(into, rows, new_tensor(types.I64, (0,)))).launches == ()
    assert matched(ops.gelu(new_tensor(types.F32, (0, 3)))).launches == ()


def test_the_library_multiplies_weights_of_float32_where_they_lie() -> None:
    node = ops.mul_mat(new_tensor(types.F32, (64, 20)), new_tensor(types.F32, (64, 9)))
    found = matched(node, LIBRARY)
    (launch,) = found.launches
    assert launch.program == MatrixProduct(exact=True)
    assert found.scratch == 0
    assert [(o.position, o.ne[:3], o.nb[1]) for o in launch.tensors] == [
        (DST, (20, 9, 1), 80),
        (0, (64, 20, 1), 256),
        (1, (64, 9, 1), 256),
    ]


def test_other_weights_are_decoded_first_and_may_lose_bits_unless_the_op_forbids_it() -> None:
    weights, x = new_tensor(types.Q4_0, (64, 20)), new_tensor(types.F32, (64, 9))
    found = matched(ops.mul_mat(weights, x), LIBRARY)
    decode, product = found.launches
    assert str(decode.program) == "map_one[TD=f32 TX=q4_0]"
    assert decode.tensors[0].position == product.tensors[1].position == SCRATCH
    assert product.program == MatrixProduct(exact=False)
    assert found.scratch == 64 * 20 * 4
    exact = matched(ops.mul_mat(weights, x, precision=types.Precision.F32), LIBRARY)
    assert exact.launches[1].program == MatrixProduct(exact=True)


def test_large_weights_are_decoded_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "DECODED", 64 * 8 * 4)
    weights = new_tensor(types.F16, (64, 20))
    found = matched(ops.mul_mat(weights, new_tensor(types.F32, (64, 9))), LIBRARY)
    assert found.scratch == 64 * 8 * 4
    products = [each for each in found.launches if isinstance(each.program, MatrixProduct)]
    assert [(p.tensors[0].ne[0], p.tensors[0].delta) for p in products] == [(8, 0), (8, 32), (4, 64)]
    decodes = [each for each in found.launches if each not in products]
    assert [d.tensors[1].delta for d in decodes] == [0, 8 * weights.nb[1], 16 * weights.nb[1]]


def test_matrices_that_share_weights_are_columns_of_one_product() -> None:
    keys, queries = new_tensor(types.F32, (16, 30, 2)), new_tensor(types.F32, (16, 10, 6))
    (launch,) = matched(ops.mul_mat(keys, queries), LIBRARY).launches
    dst, a, b = launch.tensors
    assert (dst.ne, a.ne, b.ne) == ((30, 30, 2, 1), (16, 30, 2, 1), (16, 30, 2, 1))
    assert (dst.nb[2], b.nb[2]) == (3 * 30 * 10 * 4, 3 * 16 * 10 * 4)


def test_one_matrix_of_weights_serves_columns_that_do_not_follow_each_other() -> None:
    heads = ops.permute(new_tensor(types.F32, (16, 6, 10)), 0, 2, 1, 3)
    (launch,) = matched(ops.mul_mat(new_tensor(types.F32, (16, 30)), heads), LIBRARY).launches
    dst, a, b = launch.tensors
    assert (dst.ne[1:3], a.nb[2], b.nb[1:3]) == ((10, 6), 0, (16 * 6 * 4, 16 * 4))


def test_what_the_library_cannot_read_goes_through_tiles() -> None:
    transposed = ops.transpose(new_tensor(types.F32, (9, 64)))
    heads = ops.permute(new_tensor(types.F32, (16, 6, 10)), 0, 2, 1, 3)
    for node in (
        ops.mul_mat(new_tensor(types.F32, (64, 20)), transposed),
        ops.mul_mat(new_tensor(types.F32, (64, 20)), new_tensor(types.F16, (64, 9))),
        ops.mul_mat(new_tensor(types.F32, (16, 30, 2)), heads),
    ):
        assert [each.program.kernel for each in matched(node, LIBRARY).launches] == ["mul_mat_tiles"]


def test_few_columns_decode_weights_in_registers_even_with_a_library() -> None:
    node = ops.mul_mat(new_tensor(types.F32, (64, 20)), new_tensor(types.F32, (64, matrix.FEW)))
    assert [each.program.kernel for each in matched(node, LIBRARY).launches] == ["mul_mat_rows"]


def test_more_than_32_bits_count_is_declined() -> None:
    far = 2**31 - 8
    blocks = new_tensor(types.Q8_0, (2**18 + 32, 2**16))
    apart = ops.view(blocks, 2**18, 2**16, nb=(blocks.nb[1],), offset=0)
    for node in (
        ops.abs(new_tensor(types.F32, (far,))),
        ops.sum_rows(new_tensor(types.F16, (far, 2))),
        ops.norm(new_tensor(types.F16, (far,))),
        ops.argsort(new_tensor(types.F16, (2**30 + 1,))),
        ops.set_rows(new_tensor(types.F32, (8, far)), new_tensor(types.F32, (8, 1)), new_tensor(types.I64, (1,))),
        ops.cpy(ops.transpose(new_tensor(types.F32, (2**17, 2**17))), apart),
        ops.soft_max(new_tensor(types.F32, (4, 2**25))),
        ops.rope(
            new_tensor(types.F32, (64, 2, 3)),
            new_tensor(types.I32, (12,)),
            n_dims=64,
            mode=types.RopeMode.MROPE,
            sections=(2**31, 8, 8, 0),
        ),
    ):
        found = match(GPU, Group((node,)))
        assert isinstance(found, Decline), node
        assert "32 bits" in found.reason


def test_dimensions_are_joined_only_as_far_as_32_bits_count() -> None:
    kernel = matched(ops.abs(new_tensor(types.F16, (2**16, 2**15))))
    (launch,) = kernel.launches
    assert [place.ne for place in launch.tensors] == [(2**16, 2**15, 1, 1)] * 2


def test_products_over_nothing_are_no_work_for_the_library() -> None:
    node = ops.mul_mat(new_tensor(types.Q8_0, (0, 64)), new_tensor(types.F32, (0, 40)))
    assert [each.program.kernel for each in matched(node, LIBRARY).launches] == ["mul_mat_tiles"]


def test_kernels_with_ids_have_a_record_for_faults_and_others_have_none() -> None:
    x, ids = new_tensor(types.F32, (64, 9)), new_tensor(types.I32, (5,))
    experts, tokens = new_tensor(types.F32, (64, 8, 3)), new_tensor(types.F32, (64, 1, 90))
    indexed = [op for op in OPS.values() if op.indexes is not None]
    nodes = [
        ops.get_rows(x, ids),
        ops.set_rows(x, new_tensor(types.F32, (64, 5)), ids),
        ops.mul_mat_id(experts, tokens, new_tensor(types.I32, (2, 90))),
        ops.mul_mat_id(experts, new_tensor(types.F32, (64, 1, 2)), new_tensor(types.I32, (2, 2))),
        ops.add_id(tokens, new_tensor(types.F32, (64, 8)), new_tensor(types.I32, (1, 90))),
        ops.get_rows_back(new_tensor(types.F32, (64, 5)), ids, rows=9),
        ops.ssm_scan(
            *(
                new_tensor(types.F32, ne)
                for ne in ((8, 3, 2, 4), (3, 2, 5, 4), (2, 5, 4), (1, 2), (8, 1, 5, 4), (8, 1, 5, 4))
            ),
            new_tensor(types.I32, (4,)),
        ),
    ]
    assert {type(node.op) for node in nodes} == set(indexed)
    for node in nodes:
        records = [place for each in matched(node).launches for place in each.tensors if place.position == FAULTS]
        assert len(records) == 1, node
    for node in (ops.rope(x, new_tensor(types.I32, (1,)), n_dims=64), ops.norm(x)):
        assert not [place for each in matched(node).launches for place in each.tensors if place.position == FAULTS]
